"""A connection of the HTTP server: so many at once, each with so long to say what it wants."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from endocil.serve.guard import HEADERS, POLICY, refused
from endocil.serve.limits import Limits
from endocil.serve.refusals import full

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
