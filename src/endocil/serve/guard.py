"""By which name a server was called, and from whose page."""

import asyncio
import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endocil.errors import EndocilError
from endocil.io.files import read_whole
from endocil.serve.limits import Limits, Refusal, too_large, too_slow
from endocil.serve.logs import Log, Metrics
from endocil.serve.messages import Problem, Refused


def known_host(host: str, names: frozenset[str]) -> bool:
    """A number of the network can be nobody else's name; a name must be one of ours."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if name.lower() in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def foreign(headers: Headers, host: str, *, page: bool) -> bool:
    """Asked for by another site's page, which a browser says in one of two ways; a plain link to a page is fine."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return True
    link = page and headers.get("sec-fetch-mode") == "navigate"
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not link


# Who may ask: everybody on this machine, or whoever has the token.

VARIABLE = "ENDOCIL_TOKEN"
SHORTEST = 16  # characters


def token_from(file: Path | None) -> str | None:
    """From a file or the environment: arguments of a program can be read by all users of a machine."""
    if file is None:
        token, source = os.environ.get(VARIABLE), VARIABLE
    else:
        try:
            token, source = read_whole(file).decode("utf-8", "replace").strip(), str(file)
        except OSError as error:
            raise EndocilError(f"cannot read the token in {file}: {error.strerror or error}") from error
    if token is None:
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise EndocilError(
            f"the token in {source} must be at least {SHORTEST} printable ASCII characters without spaces; make one "
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


def refuse_open_doors(host: str, token: str | None) -> None:
    if not is_local(host) and token is None:
        raise EndocilError(
            f"--host {host} can be reached from other machines, which needs a token: give --token-file or set "
            f"{VARIABLE}"
        )


def same(one: str, other: str) -> bool:
    """In a time that tells nothing of where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


# Before a request is looked at: who asks, from which page, how much and how slowly. After it: headers, the log.

API = "/api/v1"
OPEN = {f"{API}/health", f"{API}/session"}  # without a token
COOKIE = "endocil_session"
SMALL = 65_536  # bytes of a request that brings no images
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware around everything."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        log: Log,
        metrics: Metrics,
        token: str | None,
        names: frozenset[str],
    ) -> None:
        self.app, self.limits, self.log, self.metrics = app, limits, log, metrics
        self.token, self.names = token, names
        self.session = secrets.token_urlsafe(32)  # ends with the server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begun, told, method = time.perf_counter(), _Told(send), scope["method"]
        scope.setdefault("state", {})["session"] = self.session
        if method == "HEAD":  # answered as GET is; the server that asked leaves the body out
            scope = {**scope, "method": "GET"}
        try:
            self._admit(scope)
            await self.app(scope, self._measured(scope, receive), told)
        except Refusal as refusal:
            await _refuse(refusal, scope, receive, told)
        except Exception as error:
            self.log.error(error)
            if not told.status:
                failure = Refusal(500, "failed", "the server failed; its log says where")
                await _refuse(failure, scope, receive, told)
        finally:
            self._record(scope, method, told.status, time.perf_counter() - begun)

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not known_host(host, self.names):  # a name that an attacker's DNS has pointed here
            raise Refusal(403, "foreign-host", "this server is not known by that name")
        if foreign(headers, host, page=not scope["path"].startswith(API)):
            raise Refusal(403, "foreign-origin", "this was asked for by a page of another site")
        guarded = self.token and scope["path"].startswith(API) and scope["path"] not in OPEN
        if guarded and not self.authorised(headers):
            raise unauthorised()
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most(scope):
            raise too_large(f"more than {self._most(scope):,} bytes; send less at a time")

    def authorised(self, headers: Headers) -> bool:
        """By the token, or by the cookie of a session; other cookies and ways to sign in are others' affair."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return same(given.strip(), self.token or "")
        return same(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""), self.session)

    def _most(self, scope: Scope) -> int:
        return self.limits.upload_bytes if scope["path"] == f"{API}/predict" else SMALL

    def _measured(self, scope: Scope, receive: Receive) -> Receive:
        """Counts what arrives, while it arrives, and looks at the clock."""
        end = asyncio.get_running_loop().time() + self.limits.upload_seconds
        most, seen, whole = self._most(scope), 0, False

        async def measured() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise too_slow(f"not here within {self.limits.upload_seconds:g} seconds") from None
            seen += len(message.get("body", b""))
            whole = message["type"] == "http.disconnect" or not message.get("more_body", False)
            if seen > most:
                raise too_large(f"more than {most:,} bytes; send less at a time")
            return message

        return measured

    def _record(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        """By the route, not the path: what clients write there is theirs."""
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.request(route, status, seconds)
        facts: dict[str, Any] = scope.get("state", {}).get("facts", {})
        self.log(
            "request",
            method=method if method in ("GET", "POST", "PUT", "HEAD") else "other",
            route=route,
            status=status,
            milliseconds=round(1000 * seconds, 1),
            **facts,
        )


class _Told:
    """Passes an answer on, with the headers that every answer has."""

    def __init__(self, send: Callable[[Message], Awaitable[None]]) -> None:
        self.send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in {**HEADERS, "Content-Security-Policy": POLICY}.items():
                headers.setdefault(name, value)
        await self.send(message)


def unauthorised() -> Refusal:
    return Refusal(
        401,
        "no-token",
        "this server asks for a token, as 'Authorization: Bearer TOKEN'",
        {"WWW-Authenticate": "Bearer"},
    )


def refused(refusal: Refusal) -> JSONResponse:
    said = Refused(error=Problem(code=refusal.code, message=str(refusal.detail)))
    return JSONResponse(said.model_dump(), refusal.status_code, refusal.headers)


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    await refused(refusal)(scope, receive, send)
