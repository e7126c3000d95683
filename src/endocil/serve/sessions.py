"""Signing in: sessions of browsers that expire, wrong tokens that are answered slowly, and what a proxy may tell."""

import asyncio
import hmac
import ipaddress
import math
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from endocil.errors import SettingsError
from endocil.serve.schemas import ApiError

SESSION_SECONDS = 12 * 3600.0
FREE = 10  # wrong tokens of a client that are answered at once
FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0  # seconds; doubled from one wrong token to the next
WINDOW = 600.0  # seconds after which a wrong token is forgotten
FREE_OF_ALL = 200  # wrong tokens of all clients in a window, after which each waits for the longest
MOST_WAITING = 32  # answers held back at once; as few connections are taken up
MOST_CLIENTS = 1024  # that are remembered


class Sessions:
    """Cookies that only this server can have made: when they end, a random part, and a signature of both.

    The key lives in memory, so that all sessions end with the server."""

    def __init__(self, seconds: float = SESSION_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        if not (seconds > 0 and math.isfinite(seconds)):
            raise SettingsError(f"--session-hours is {seconds / 3600:g}; expected a number above 0")
        self.seconds, self._clock, self._key = seconds, clock, secrets.token_bytes(32)

    def new(self) -> str:
        content = f"{math.ceil(self._clock() + self.seconds)}.{secrets.token_urlsafe(16)}"
        return f"{content}.{self._signature(content)}"

    def is_valid(self, cookie: str) -> bool:
        content, _, signature = cookie.rpartition(".")
        genuine = hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(content).encode())
        return genuine and int(content.partition(".")[0]) > self._clock()

    def _signature(self, content: str) -> str:
        return hmac.digest(self._key, content.encode("utf-8", "replace"), "sha256").hex()


class WrongTokens:
    """Holds back the answers to wrong tokens. Right ones are never held back, whoever else sends wrong ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_client: OrderedDict[str, deque[float]] = OrderedDict()  # their times
        self._of_all: deque[float] = deque(maxlen=FREE_OF_ALL + 1)
        self._waiting = 0

    def delay(self, client: str) -> float:
        """Seconds for a wrong token that a client has just sent, which is counted."""
        now = self._clock()
        of_client = self._by_client.setdefault(client, deque(maxlen=64))
        self._by_client.move_to_end(client)
        if len(self._by_client) > MOST_CLIENTS:
            self._by_client.popitem(last=False)
        for times in (of_client, self._of_all):
            times.append(now)
            while times[0] < now - WINDOW:
                times.popleft()
        if len(self._of_all) > FREE_OF_ALL:
            return LONGEST_DELAY
        n = len(of_client) - FREE
        return 0.0 if n <= 0 else min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (n - 1))

    async def hold(self, client: str) -> None:
        """Returns when the answer may be sent; raises where too many are held back."""
        delay = self.delay(client)
        if not delay:
            return
        if self._waiting >= MOST_WAITING:
            headers = {"Retry-After": str(math.ceil(LONGEST_DELAY)), "Connection": "close"}
            raise ApiError(429, "wrong-tokens", "too many wrong tokens; try again later", headers)
        self._waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1


@dataclass(frozen=True)
class Proxies:
    """Networks whose word on a request counts: how, and from where, it reached the proxy."""

    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    https: bool = False  # told by the operator: clients come by https

    @classmethod
    def of(cls, addresses: Sequence[str], *, https: bool = False) -> "Proxies":
        networks = []
        for address in addresses:
            try:
                networks.append(ipaddress.ip_network(address, strict=False))
            except ValueError as error:
                raise SettingsError(f"--proxy '{address}': expected an IP address or a network; {error}") from error
        return cls(tuple(networks), https)

    def is_https(self, scope: Scope, headers: Headers) -> bool:
        if self.https or scope.get("scheme") == "https":
            return True
        # the last value is the nearest proxy's; those before it may be the client's
        told = headers.getlist("x-forwarded-proto")
        return bool(told) and self._is_proxy(_peer(scope)) and told[-1].rpartition(",")[2].strip().lower() == "https"

    def client(self, scope: Scope, headers: Headers) -> str:
        """The address that a request comes from, or its network: an IPv6 client has as many as it likes."""
        address = _peer(scope)
        hops = [hop.strip() for line in headers.getlist("x-forwarded-for") for hop in line.split(",")]
        while hops and self._is_proxy(address):
            address = hops.pop()
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return address[:64]
        return str(known if known.version == 4 else ipaddress.ip_network((known, 64), strict=False))

    def _is_proxy(self, address: str) -> bool:
        try:
            known = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(known in network for network in self.networks)


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
