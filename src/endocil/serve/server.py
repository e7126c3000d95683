"""The HTTP server: uvicorn, with limits on connections and an end that its settings do not offer.

uvicorn waits for ever for the headers of a request and for a client that does not read; its `limit_concurrency` turns
away open connections together with surplus ones; and when it stops, it closes a connection whose request has not
arrived completely. So each of its connections is wrapped in one of ours, which sees what any asyncio.Protocol sees, and
learns from the application when a request is being handled.
"""

import asyncio
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from endocil.errors import ResourceError
from endocil.io.process import STOP
from endocil.serve.guard import CLOSE, SECURITY_HEADERS, Limits
from endocil.serve.monitoring import SERVER_LOGGER, Log, exclusive_stderr
from endocil.serve.schemas import ApiError

KEEP_ALIVE = 15  # seconds that an idle connection stays open
SURPLUS_SECONDS = 1.0  # that a surplus connection has to read why it is closed
MOST_SURPLUS = 64  # of them at once; more are closed without a word
PATIENCE = 1.0  # seconds that a connection may wait for its client before it has to make room for a new one
SLOW = 16_384  # bytes per second; slower uploads have to make room
LINGER = 1.0  # seconds that idle connections stay open when the server stops: a request may be on its way
CONNECTION = "connection"  # where a request's state holds its connection


@dataclass
class Connections:
    """All connections of a server."""

    limits: Limits
    open: set["LimitedConnection"] = field(default_factory=set)
    surplus: int = 0
    stopping: bool = False

    def make_room(self) -> bool:
        """Whether one more may be open; where all are, one that keeps the server waiting is given up.

        Of the client that has most of these, the one that keeps it waiting for longest."""
        if len(self.open) < self.limits.connections:
            return True
        waiting = [one for one in self.open if one.waits_for_client() >= PATIENCE]
        if not waiting:
            return False
        by_client = Counter(one.client for one in waiting)
        max(waiting, key=lambda one: (by_client[one.client], one.waits_for_client())).give_up()
        return True


class LimitedConnection(asyncio.Protocol):
    """A connection that must send the headers of a request in time; a surplus one gets an error, whatever it sends."""

    def __init__(self, connections: Connections, app_state: dict[str, Any], **options: Any) -> None:
        self.connections, self.limits = connections, connections.limits
        self.http = H11Protocol(app_state={**app_state, CONNECTION: self}, **options)
        self.client = ""  # its address
        self._surplus = False
        self._requests = 0  # being handled
        self._begun = False  # some of the next request has arrived
        self._idle_since = self._upload_since = self._stuck_since = self._now()
        self._received = 0  # bytes of the request
        self._upload: asyncio.Timeout | None = None  # while a request waits for the rest of itself
        self._stuck: asyncio.TimerHandle | None = None  # while the client does not read
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.client = str((transport.get_extra_info("peername") or ("",))[0])
        self._surplus = not self.connections.make_room()
        if self._surplus:
            self.connections.surplus += 1
            if self.connections.surplus > MOST_SURPLUS:
                self.transport.abort()
                return
            logging.getLogger(SERVER_LOGGER).warning("More than %d connections.", self.limits.connections)
            self._start_deadline(min(SURPLUS_SECONDS, self.limits.header_seconds))
        else:
            self.connections.open.add(self)
            self.http.connection_made(self.transport)
            self._start_deadline(self.limits.header_seconds)
            if self.connections.stopping:  # it had waited to be accepted
                self.linger()

    def data_received(self, data: bytes) -> None:
        if self._surplus:
            self.transport.write(surplus_response(self.limits.connections))
            self.transport.close()
            return
        self._received += len(data)
        self._begun = True
        self.http.data_received(data)
        if not self._requests and self._deadline is None:  # a further request begins
            self._start_deadline(self.limits.header_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_deadline()
        self._read_on()
        if self._surplus:
            self.connections.surplus -= 1
        else:
            self.connections.open.discard(self)
            self.http.connection_lost(error)

    def pause_writing(self) -> None:
        self.http.pause_writing()
        self._stuck_since = self._now()
        self._stuck = asyncio.get_running_loop().call_later(self.limits.upload_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._read_on()
        self.http.resume_writing()

    def _read_on(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    @contextmanager
    def request(self) -> Iterator[None]:
        """While the application handles a request, which is not limited here."""
        self._requests += 1
        self._begun, self._received, self._upload_since = False, 0, self._now()
        self._stop_deadline()
        try:
            yield
        finally:
            self._requests -= 1
            self._idle_since = self._now()
            if self.connections.stopping:
                self.linger()

    async def receive(self, receive: Receive) -> Message:
        """The next part of a request; meanwhile the connection may have to make room for another."""
        try:
            async with asyncio.timeout(None) as self._upload:
                return await receive()
        except TimeoutError:
            text = "the request arrives too slowly, and others are waiting; try again"
            raise ApiError(408, "too-slow", text, CLOSE) from None
        finally:
            self._upload = None

    def waits_for_client(self) -> float:
        """Seconds that the server waits for this client; 0 while it works for it, or receives what it sends."""
        now = self._now()
        if self._stuck is not None:
            return now - self._stuck_since
        if not self._requests:
            return now - self._idle_since
        if self._upload is not None:
            seconds = now - self._upload_since
            return seconds if self._received < SLOW * seconds else 0.0
        return 0.0

    def give_up(self) -> None:
        """One that has sent part of a body is told why; one that sends nothing, or does not read, is not."""
        self.connections.open.discard(self)
        if self._stuck is not None:
            self.transport.abort()
        elif self._upload is not None:
            self._upload.reschedule(asyncio.get_running_loop().time())
        else:
            self.transport.close()

    def linger(self) -> None:
        """The server stops: what has been sent is read and answered, an idle connection is closed soon."""
        asyncio.get_running_loop().call_later(LINGER, self._close_idle)

    def _close_idle(self) -> None:
        if not self._requests and not self._begun:  # of one that has begun, the deadline decides
            self.transport.close()

    def is_last(self) -> bool:
        """The response that begins now is the last one: the server stops, and nothing more has been read."""
        return self.connections.stopping and not self.http.conn.trailing_data[0]

    def _start_deadline(self, seconds: float) -> None:
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.transport.close)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def surplus_response(connections: int) -> bytes:
    """The complete HTTP response to a surplus connection, in the form of all others."""
    message = f"{connections} connections are already open; try again"
    response = ApiError(503, "full", message, {"Retry-After": "5", "Connection": "close"}).response()
    response.headers.update(SECURITY_HEADERS)
    head = b"".join(b"%s: %s\r\n" % pair for pair in response.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"\r\n" + bytes(response.body)


def report_requests(app: ASGIApp) -> ASGIApp:
    """Tells a request's connection when it begins and ends, and the client when it is the last one."""

    async def reporting(scope: Scope, receive: Receive, send: Send) -> None:
        connection: LimitedConnection | None = scope.get("state", {}).pop(CONNECTION, None)
        if connection is None:
            await app(scope, receive, send)
            return

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and connection.is_last():
                named = [(name, value) for name, value in message["headers"] if name.lower() != b"connection"]
                message = {**message, "headers": [*named, (b"connection", b"close")]}
            await send(message)

        with connection.request():
            await app(scope, partial(connection.receive, receive), send_last)

    return reporting


def configure(app: ASGIApp, limits: Limits, connections: Connections | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        report_requests(app),
        http=cast("type[asyncio.Protocol]", partial(LimitedConnection, connections or Connections(limits))),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # clients can write them; Proxies reads those of trusted ones
        timeout_keep_alive=KEEP_ALIVE,
    )


class Server(uvicorn.Server):
    """Stops when every request that has been read is answered, or after a while."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.connections, self.seconds = Connections(limits), limits.stop_seconds
        self.unfinished = 0  # requests that were not answered in time, and got status 503
        super().__init__(configure(app, limits, self.connections))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.connections.stopping = True
        for _ in range(3):
            await asyncio.sleep(0)  # connections that wait to be accepted are
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        for connection in list(self.connections.open):
            connection.linger()
        if not await self._end(self.seconds):
            tasks = list(self.server_state.tasks)
            self.unfinished = len(tasks)
            for task in tasks:
                task.cancel()
            await self._end(SURPLUS_SECONDS, force=True)
        await self.lifespan.shutdown()

    async def _end(self, seconds: float, *, force: bool = False) -> bool:
        """Whether all connections and requests end in time; a second signal ends the waiting."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.connections.open or self.server_state.connections or self.server_state.tasks:
            if loop.time() > deadline or (self.force_exit and not force):
                return not self.server_state.tasks
            await asyncio.sleep(0.02)
        return True

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A listening socket and its address; connections wait in its backlog until the server runs."""
    ipv6 = ":" in host
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ipv6 else socket.AF_INET, backlog=2048)
    except OSError as error:
        raise ResourceError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from error
    return listener, f"http://{f'[{host}]' if ipv6 else host}:{listener.getsockname()[1]}"


def serve(app: ASGIApp, host: str, port: int, limits: Limits, log: Log, started: Callable[[str], None]) -> None:
    """Until a signal arrives; requests under way are still answered. `started` gets the address.

    SIGINT, SIGTERM and SIGUSR1 stop the server with exit status 0: uvicorn raises the first two again when it has
    stopped. Requests that could not be answered in time are a ResourceError."""
    listener, address = listen(host, port)
    server = Server(app, limits)

    def stop(*_: object) -> None:
        server.should_exit = True

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, *STOP)}
    try:
        started(address)
        with exclusive_stderr(log):
            server.run(sockets=[listener])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if server.unfinished:
        raise ResourceError(
            f"stopped with {server.unfinished} requests unanswered, which got status 503; --stop-seconds "
            f"({limits.stop_seconds:g}) says how long they may take"
        )
