"""The HTTP server: says where it listens, and ends when all are answered."""

import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from endocil.errors import EndocilError
from endocil.serve.connections import connections_for
from endocil.serve.limits import Limits
from endocil.serve.logs import Log, alone_on_standard_error

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
