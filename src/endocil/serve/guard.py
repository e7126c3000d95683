"""Who may use a server, and how much: the middleware around every request, and the token it checks."""

import asyncio
import hmac
import ipaddress
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endocil.errors import SettingsError
from endocil.io.files import read_whole
from endocil.serve.errors import ApiError, too_large
from endocil.serve.limits import Limits
from endocil.serve.monitoring import Log, Metrics

API = "/api/v1"
WITHOUT_TOKEN = {f"{API}/health", f"{API}/session"}
COOKIE = "endocil_session"
MAX_BODY = 65_536  # bytes of a request without images
TOKEN_VARIABLE = "ENDOCIL_TOKEN"
MIN_TOKEN = 16  # characters
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


def is_local(host: str) -> bool:
    """An address that only this machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_token(host: str, token: str | None) -> None:
    if not is_local(host) and token is None:
        raise SettingsError(
            f"--host {host} can be reached from other machines, which needs a token: give --token-file or set "
            f"{TOKEN_VARIABLE}"
        )


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """By a name of this server, or by an IP address, which DNS cannot redirect."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name.lower() in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def is_cross_site(headers: Headers, host: str, *, page: bool) -> bool:
    """Sent by a page of another site, which browsers declare in one of two headers; links to a page are allowed."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return True
    link = page and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not link


@dataclass(frozen=True)
class Access:
    """The names of this server, and the token that clients need, if any."""

    token: str | None
    names: frozenset[str]
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))  # valid until the server ends

    def check(self, scope: Scope, headers: Headers) -> None:
        host, path = headers.get("host", ""), scope["path"]
        if not is_own_host(host, self.names):  # DNS rebinding: an attacker's name that points here
            raise ApiError(403, "foreign-host", "this server does not have that name; add it with --name")
        if is_cross_site(headers, host, page=not path.startswith(API)):
            raise ApiError(403, "foreign-origin", "the request was sent by a page of another site")
        if path.startswith(API) and path not in WITHOUT_TOKEN and not self.is_authorised(headers):
            raise unauthorised()

    def is_authorised(self, headers: Headers) -> bool:
        """By the token or the session cookie; cookies and schemes of other software are ignored."""
        if self.token is None:
            return True
        if headers.get("authorization", "").partition(" ")[0].lower() == "bearer":
            return self.has_token(headers)
        return _equal(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""), self.session)

    def has_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _equal(token.strip(), self.token or "")


def _equal(text: str, other: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def unauthorised() -> ApiError:
    return ApiError(
        401,
        "no-token",
        "this server requires a token: send 'Authorization: Bearer TOKEN'",
        {"WWW-Authenticate": "Bearer"},
    )


class Guard:
    """Middleware: access, size and speed of a request before it, security headers, log and metrics after it."""

    def __init__(self, app: ASGIApp, *, access: Access, limits: Limits, log: Log, metrics: Metrics) -> None:
        self.app, self.access, self.limits, self.log, self.metrics = app, access, limits, log, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        start, wrapped, method = time.perf_counter(), SendWrapper(send), scope["method"]
        scope.setdefault("state", {})
        if method == "HEAD":  # handled as GET; the HTTP server drops the body
            scope = {**scope, "method": "GET"}
        try:
            self._check(scope)
            await self.app(scope, self._limited(scope, receive), wrapped)
        except ApiError as error:
            await error.response()(scope, receive, wrapped)
        except Exception as error:
            self.log.error(error)
            if not wrapped.status:
                failure = ApiError(500, "failed", "the server failed; see its log")
                await failure.response()(scope, receive, wrapped)
        finally:
            self._record(scope, method, wrapped.status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        self.access.check(scope, headers)
        length = headers.get("content-length", "0")
        if length.isdecimal():
            self._check_size(scope, int(length))

    def _check_size(self, scope: Scope, n_bytes: int) -> None:
        limit = self.limits.upload_bytes if scope["path"] == f"{API}/predict" else MAX_BODY
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
                raise ApiError(408, "too-slow", text, {"Connection": "close"}) from None
            size += len(message.get("body", b""))
            complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
            self._check_size(scope, size)
            return message

        return limited

    def _record(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """By route, not by path: paths are written by clients."""
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.count_request(route, status, seconds)
        fields: dict[str, Any] = scope["state"].get("log_fields", {})
        self.log(
            "request",
            method=method if method in ("GET", "POST", "PUT", "HEAD") else "other",
            route=route,
            status=status,
            milliseconds=round(1000 * seconds, 1),
            **fields,
        )


class SendWrapper:
    """Adds the security headers to a response and remembers its status."""

    def __init__(self, send: Send) -> None:
        self.send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await self.send(message)
