"""The HTTP server: patient with requests, not with connections that say nothing; ends when all are answered."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from endocil.errors import EndocilError
from endocil.serve.limits import Limits
from endocil.serve.logs import Log, ServerRecords

KEEP_ALIVE = 15  # seconds that a quiet connection is kept


class Server(uvicorn.Server):
    """Says where it listens, and takes a signal for a wish, not for a failure."""

    def __init__(self, config: uvicorn.Config, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            self._tell(f"http://{host}:{port}")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wishes = (signal.SIGINT, signal.SIGTERM)
        before = {one: signal.signal(one, self.handle_exit) for one in wishes}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def patient_for(seconds: float) -> type[H11Protocol]:
    """A connection that has not said within so many seconds what it wants is closed."""

    class Patient(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._deadline = self.loop.call_later(seconds, self._give_up)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._busy():
                self._stop_waiting()
            elif self._deadline is None:  # another request begins on the same connection
                self._deadline = self.loop.call_later(seconds, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            self._deadline = None
            if not self._busy():
                self.transport.close()

    return Patient


def serve(
    app: FastAPI, host: str, port: int, limits: Limits, log: Log, started: Callable[[str], None]
) -> None:
    """Until a signal comes; then what is under way is still answered."""
    server = Server(configured(app, host, port, limits), started)
    records = logging.getLogger("uvicorn.error")
    records.handlers, records.propagate = [ServerRecords(log)], False
    try:
        server.run()
    except SystemExit as error:  # uvicorn's answer to an address that is taken
        raise EndocilError(f"cannot listen on {host}, port {port}; choose another with --port") from error


def configured(app: FastAPI, host: str, port: int, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=patient_for(limits.header_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody could write them
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(limits.upload_seconds + limits.answer_seconds),
    )
