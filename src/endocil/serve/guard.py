"""Who may use a server, and how much: limits, the token, and the middleware around every request."""

import asyncio
import hmac
import ipaddress
import math
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endocil.data.decode import MAX_PIXELS
from endocil.errors import SettingsError
from endocil.io.files import read_whole
from endocil.serve.monitoring import Log, Metrics
from endocil.serve.schemas import ApiError, too_large
from endocil.serve.sessions import Proxies, Sessions, WrongTokens

API = "/api/v1"
WITHOUT_TOKEN, SESSION = {f"{API}/health"}, f"{API}/session"
WITH_IMAGES = {f"{API}/predict", f"{API}/gradcam"}
COOKIE = "endocil_session"
MAX_BODY = 65_536  # bytes of a request without images
TOKEN_VARIABLE = "ENDOCIL_TOKEN"
MIN_TOKEN = 16  # characters
CLOSE = {"Connection": "close"}
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a server accepts: limits of one request and of all requests together."""

    upload_megabytes: float = 32.0  # of one request, counted while it arrives
    images: int = 64  # of one request
    megapixels: float = 50.0  # of one image, by its header, before it is decoded
    request_megapixels: float = 400.0  # of all images of one request, likewise
    upload_seconds: float = 30.0  # until a request has arrived completely
    answer_seconds: float = 60.0  # from then until it is answered
    stop_seconds: float = 90.0  # from a signal to stop until what is not answered yet gets status 503
    header_seconds: float = 10.0  # until a connection has sent the headers of a request
    connections: int = 256  # open at once
    queue: int = 256  # images being decoded or waiting for a model; further requests get status 429
    memory_megabytes: float = 512.0  # of all uploads held at once
    batch: int = 32  # images of one forward pass

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (value > 0 and math.isfinite(value)):
                raise SettingsError(f"the limit {name} is {value}; expected a number above 0")
        if self.pixels > MAX_PIXELS:
            raise SettingsError(
                f"the limit megapixels is {self.megapixels}; expected at most {MAX_PIXELS / 1e6:.1f}, the largest "
                f"image that can be decoded"
            )
        if 2 * self.images > self.queue:
            raise SettingsError(
                f"a request may have {self.images} images for two models, but only {self.queue} can wait; raise "
                f"--queue or lower --images"
            )

    @property
    def upload_bytes(self) -> int:
        return int(self.upload_megabytes * 1e6)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1e6)

    @property
    def request_pixels(self) -> int:
        return int(self.request_megapixels * 1e6)


def read_token(file: Path | None) -> str | None:
    """From a file or the environment: the arguments of a program are visible to all users of a machine."""
    if file is None:
        token, source = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    else:
        try:
            token, source = read_whole(file).decode("utf-8", "replace").strip(), str(file)
        except OSError as error:
            raise SettingsError(f"cannot read the token in {file}: {error.strerror or error}") from error
    if token is None:
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token in {source} must be at least {MIN_TOKEN} printable ASCII characters without spaces; make one "
            f'with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return token


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_local(host: str) -> bool:
    """An address that only this machine can reach."""
    address = _ip_address(host)
    return host == "localhost" if address is None else address.is_loopback


def require_token(host: str, token: str | None) -> None:
    if not is_local(host) and token is None:
        raise SettingsError(
            f"--host {host} can be reached from other machines, which needs a token: give --token-file or set "
            f"{TOKEN_VARIABLE}"
        )


@dataclass(frozen=True)
class Access:
    """The names of this server, the token that clients need, if any, and what stands for it in browsers."""

    token: str | None
    names: frozenset[str]
    sessions: Sessions = field(default_factory=Sessions)
    proxies: Proxies = field(default_factory=Proxies)

    def check(self, scope: Scope, headers: Headers) -> None:
        host, path = headers.get("host", ""), scope["path"]
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        address = _ip_address(name.removeprefix("[").removesuffix("]"))  # which DNS cannot redirect
        if name.lower() not in self.names and address is None:  # DNS rebinding: an attacker's name that points here
            raise ApiError(403, "foreign-host", "this server does not have that name; add it with --name")
        # a page of another site, which browsers declare in one of two headers; links to a page are allowed
        is_api, origin = path.startswith(API), headers.get("origin")
        link = not is_api and headers.get("sec-fetch-mode") == "navigate"
        other_site = headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not link
        if other_site or (origin is not None and origin.partition("://")[2].lower() != host.lower()):
            raise ApiError(403, "foreign-origin", "the request was sent by a page of another site")
        if is_api and path not in WITHOUT_TOKEN:
            self._check_token(headers, by_cookie=path != SESSION)

    def _check_token(self, headers: Headers, *, by_cookie: bool) -> None:
        """Raises without the token or a session; cookies and schemes of other software are ignored."""
        if self.token is None:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            sent = token.strip().encode("utf-8", "replace")
            if not hmac.compare_digest(sent, self.token.encode()):  # in constant time
                raise WrongTokenError
        elif not by_cookie or not self.sessions.is_valid(cookie_parser(headers.get("cookie", "")).get(COOKIE, "")):
            raise NoTokenError


class NoTokenError(ApiError):
    def __init__(self) -> None:
        message = "this server requires a token: send 'Authorization: Bearer TOKEN'"
        super().__init__(401, "no-token", message, {"WWW-Authenticate": "Bearer"})


class WrongTokenError(NoTokenError):
    """Looks like no token to the client, but is answered more slowly the more there are."""


class Guard:
    """Middleware: access, size and speed of a request before it, security headers, log and metrics after it."""

    def __init__(self, app: ASGIApp, *, access: Access, limits: Limits, log: Log, metrics: Metrics) -> None:
        self.app, self.access, self.limits, self.log, self.metrics = app, access, limits, log, metrics
        self.wrong_tokens = WrongTokens()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start, status, method = time.perf_counter(), 0, scope["method"]
        scope.setdefault("state", {})
        if method == "HEAD":  # handled as GET; the HTTP server drops the body
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            headers = Headers(scope=scope)
            await self._check_access(scope, headers)
            length = headers.get("content-length", "0")
            if length.isdecimal():
                self._check_size(scope, int(length))
            await self.app(scope, self._limited(scope, receive), send_with_headers)
        except ApiError as error:
            await error.response()(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            if not status:
                stopping = ApiError(503, "stopping", "the server has stopped before this was answered", CLOSE)
                await stopping.response()(scope, receive, send_with_headers)
        except Exception as error:
            self.log.error(error)
            if not status:
                failure = ApiError(500, "failed", "the server failed; see its log")
                await failure.response()(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "other")  # not the path, which is written by the client
            known_method = method if method in ("GET", "POST", "PUT", "HEAD") else "other"
            details: dict[str, Any] = scope["state"].get("log_fields", {})
            self.metrics.requests.labels(route, status).inc()
            if route.endswith("/predict"):
                self.metrics.predict_seconds.observe(seconds)
            milliseconds = round(1000 * seconds, 1)
            self.log("request", method=known_method, route=route, status=status, milliseconds=milliseconds, **details)

    async def _check_access(self, scope: Scope, headers: Headers) -> None:
        try:
            self.access.check(scope, headers)
        except WrongTokenError:
            await self.wrong_tokens.hold(self.access.proxies.client(scope, headers))
            raise

    def _check_size(self, scope: Scope, n_bytes: int) -> None:
        limit = self.limits.upload_bytes if scope["path"] in WITH_IMAGES else MAX_BODY
        if n_bytes > limit:
            raise too_large(f"more than {limit:,} bytes; send less at a time")

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Limits the size and the duration of the body while it arrives."""
        deadline = asyncio.get_running_loop().time() + self.limits.upload_seconds
        size, complete = 0, False

        async def limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                text = f"the request did not arrive within {self.limits.upload_seconds:g} seconds"
                raise ApiError(408, "too-slow", text, CLOSE) from None
            size += len(message.get("body", b""))
            complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
            self._check_size(scope, size)
            return message

        return limited
