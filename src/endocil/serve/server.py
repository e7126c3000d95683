"""The HTTP server: uvicorn, with limits on connections that its settings do not offer.

uvicorn waits for ever for the headers of a request, and its `limit_concurrency` turns away open connections together
with surplus ones. So each of its connections is wrapped in one of ours, which sees only what any asyncio.Protocol sees,
and learns from the application when a request is being handled.
"""

import asyncio
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from endocil.errors import ResourceError
from endocil.serve.errors import ApiError
from endocil.serve.guard import SECURITY_HEADERS
from endocil.serve.limits import Limits
from endocil.serve.monitoring import SERVER_LOGGER, Log, exclusive_stderr

KEEP_ALIVE = 15  # seconds that an idle connection stays open
SURPLUS_SECONDS = 1.0  # that a surplus connection has to read why it is closed
CONNECTION = "connection"  # where a request's state holds its connection


class LimitedConnection(asyncio.Protocol):
    """A connection that must send the headers of a request in time; a surplus one gets an error, whatever it sends."""

    def __init__(
        self, limits: Limits, connections: set["LimitedConnection"], app_state: dict[str, Any], **options: Any
    ) -> None:
        self.limits, self.connections = limits, connections
        self.http = H11Protocol(app_state={**app_state, CONNECTION: self}, **options)
        self._surplus = False
        self._requests = 0  # being handled
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._surplus = len(self.connections) >= self.limits.connections
        if self._surplus:
            logging.getLogger(SERVER_LOGGER).warning("More than %d connections.", self.limits.connections)
            self._start_deadline(min(SURPLUS_SECONDS, self.limits.header_seconds))
        else:
            self.connections.add(self)
            self.http.connection_made(self.transport)
            self._start_deadline(self.limits.header_seconds)

    def data_received(self, data: bytes) -> None:
        if self._surplus:
            self.transport.write(surplus_response(self.limits.connections))
            self.transport.close()
            return
        self.http.data_received(data)
        if not self._requests and self._deadline is None:  # a further request begins
            self._start_deadline(self.limits.header_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_deadline()
        if not self._surplus:
            self.connections.discard(self)
            self.http.connection_lost(error)

    def pause_writing(self) -> None:
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self.http.resume_writing()

    def begin_request(self) -> None:
        self._requests += 1
        self._stop_deadline()

    def end_request(self) -> None:
        self._requests -= 1

    def _start_deadline(self, seconds: float) -> None:
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.transport.close)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def surplus_response(connections: int) -> bytes:
    """The complete HTTP response to a surplus connection, in the form of all others."""
    message = f"{connections} connections are already open; try again"
    response = ApiError(503, "full", message, {"Retry-After": "5", "Connection": "close"}).response()
    response.headers.update(SECURITY_HEADERS)
    head = b"".join(b"%s: %s\r\n" % pair for pair in response.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"\r\n" + bytes(response.body)


def report_requests(app: ASGIApp) -> ASGIApp:
    """Tells a request's connection when it begins and ends."""

    async def reporting(scope: Scope, receive: Receive, send: Send) -> None:
        connection: LimitedConnection | None = scope.get("state", {}).pop(CONNECTION, None)
        if connection is None:
            return await app(scope, receive, send)
        connection.begin_request()
        try:
            await app(scope, receive, send)
        finally:
            connection.end_request()

    return reporting


def configure(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        report_requests(app),
        http=cast("type[asyncio.Protocol]", partial(LimitedConnection, limits, set())),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # clients can write them
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(limits.upload_seconds + limits.answer_seconds),
    )


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A listening socket and its address; connections wait in its backlog until the server runs."""
    ipv6 = ":" in host
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ipv6 else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise ResourceError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from error
    return listener, f"http://{f'[{host}]' if ipv6 else host}:{listener.getsockname()[1]}"


@contextmanager
def stopping_on_signals(server: uvicorn.Server) -> Iterator[None]:
    """SIGINT and SIGTERM stop the server with exit status 0: uvicorn raises them again when it has stopped."""

    def stop(*_: object) -> None:
        server.should_exit = True

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def serve(
    app: ASGIApp, host: str, port: int, limits: Limits, log: Log, started: Callable[[str], None]
) -> None:
    """Until a signal arrives; requests under way are still answered. `started` gets the address."""
    listener, address = listen(host, port)
    server = uvicorn.Server(configure(app, limits))
    with stopping_on_signals(server):
        started(address)
        with exclusive_stderr(log):
            server.run(sockets=[listener])
