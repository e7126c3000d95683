"""The application: guard, API and page."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import endocil
from endocil.model.disclaimer import NOTICE
from endocil.serve.api import router
from endocil.serve.guard import API, Guard, refused
from endocil.serve.limits import Refusal
from endocil.serve.logs import Log
from endocil.serve.service import Service

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
}
KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
CODES = {400: "malformed", 404: "unknown", 405: "wrong-method"}


def application(
    service: Service, *, token: str | None = None, names: frozenset[str] = LOCAL, log: Log | None = None
) -> FastAPI:
    """`names`: what the server may be called in an address, besides its numbers."""
    log = log or Log()

    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        log("started", models=[one.bundle.digest[:16] for one in service.models.all()])
        yield
        service.close()
        log("stopped")

    app = FastAPI(
        title="endocil",
        version=endocil.__version__,
        description=f"{NOTICE} Predictions of bundles.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,
        lifespan=living,
    )
    app.state.guard_token = token
    app.include_router(router(service))
    _serve_assets(app)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http)
    app.add_middleware(
        Guard, limits=service.limits, log=log, metrics=service.metrics, token=token, names=LOCAL | names
    )
    return app


def _serve_assets(app: FastAPI) -> None:
    """Each file by its own route, read once: no path is ever put together."""
    folder = resources.files("endocil.serve").joinpath("assets")
    for path, (name, kind) in PAGES.items():
        page = folder.joinpath(name).read_text("utf-8").replace("$notice", NOTICE)
        app.add_api_route(path, _file(page.encode(), kind), include_in_schema=False)
    for entry in folder.iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in KINDS:
            answer = _file(entry.read_bytes(), KINDS[suffix])
            app.add_api_route(f"/assets/{entry.name}", answer, include_in_schema=False)


def _file(data: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        return Response(data, media_type=kind)

    return file


async def _invalid(request: Request, error: Exception) -> Response:
    """Says which value it is, and repeats nothing of what was sent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][:2])
    return refused(Refusal(422, "invalid", f"{place}: {first['msg']}"))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Refusal):
        return refused(error)
    headers = dict(error.headers) if error.headers else None
    code = CODES.get(error.status_code, "refused")
    return refused(Refusal(error.status_code, code, str(error.detail), headers))
