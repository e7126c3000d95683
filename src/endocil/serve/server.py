"""A connection of the HTTP server: so many at once, each with so long to say what it wants."""

import asyncio
import math
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
from endocil.serve.guard import HEADERS, POLICY, refused
from endocil.serve.limits import Limits, full
from endocil.serve.logs import Log, alone_on_standard_error

SURPLUS_SECONDS = 1.0  # that one too many has to hear why it is turned away


def connections_for(limits: Limits) -> type[H11Protocol]:
    """One that has not said in time what it wants is closed; one too many is told so, whatever it wants."""

    class Connection(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _surplus = False

        def connection_made(self, transport: Any) -> None:
            self._surplus = len(self.connections) >= limits.connections
            super().connection_made(transport)
            if self._surplus:
                self.connections.discard(self)
                self.logger.warning("More than %d connections.", limits.connections)
            seconds = min(SURPLUS_SECONDS, limits.header_seconds) if self._surplus else limits.header_seconds
            self._deadline = self.loop.call_later(seconds, self._give_up)

        def data_received(self, data: bytes) -> None:
            if self._surplus:
                self.transport.write(turned_away(limits.connections))
                self.transport.close()
                return
            super().data_received(data)
            if self._busy():
                self._stop_waiting()
            elif self._deadline is None:  # another request begins on the same connection
                self._deadline = self.loop.call_later(limits.header_seconds, self._give_up)

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

    return Connection


def turned_away(connections: int) -> bytes:
    """The whole answer, with the notice, the headers and the form of every other."""
    answer = refused(full(f"{connections} connections are open already; try again"))
    for name, value in {**HEADERS, "Content-Security-Policy": POLICY, "Connection": "close"}.items():
        answer.headers[name] = value
    head = b"".join(b"%s: %s\r\n" % pair for pair in answer.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"\r\n" + bytes(answer.body)


# The HTTP server: says where it listens, and ends when all are answered.

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


def serve(
    app: FastAPI, host: str, port: int, limits: Limits, log: Log, started: Callable[[str], None]
) -> None:
    """Until a signal comes; then what is under way is still answered."""
    server = Server(configured(app, host, port, limits), started)
    try:
        with alone_on_standard_error(log):
            server.run()
    except SystemExit as error:  # uvicorn's answer to an address that is taken
        raise EndocilError(f"cannot listen on {host}, port {port}; choose another with --port") from error


def configured(app: FastAPI, host: str, port: int, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=connections_for(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anybody could write them
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(limits.upload_seconds + limits.answer_seconds),
    )
