"""The application: middleware, API, pages and their assets."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import endocil
from endocil.model.disclaimer import DISCLAIMER
from endocil.serve.api import router
from endocil.serve.errors import ApiError
from endocil.serve.guard import API, Access, Guard
from endocil.serve.monitoring import Log
from endocil.serve.service import Service

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PAGES = {"/": "index.html", "/docs": "docs.html"}
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
CODES = {400: "malformed", 404: "not-found", 405: "wrong-method"}


def create_app(
    service: Service, *, token: str | None = None, names: frozenset[str] = frozenset(), log: Log | None = None
) -> FastAPI:
    """`names`: host names of this server besides its IP addresses and localhost."""
    log = log or Log()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        log("started", models=[model.digest[:16] for model in service.models.all()])
        yield
        service.close()
        log("stopped")

    app = FastAPI(
        title="endocil",
        version=endocil.__version__,
        description=f"{DISCLAIMER} Predictions of models.",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    access = Access(token, LOCAL_NAMES | names)
    app.include_router(router(service, access))
    _add_assets(app)
    app.exception_handler(ApiError)(_api_error)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(HTTPException)(_http_error)
    app.add_middleware(Guard, access=access, limits=service.limits, log=log, metrics=service.metrics)
    return app


def _add_assets(app: FastAPI) -> None:
    """One route for each file, read once: a path is never built from a request."""
    folder = resources.files("endocil.serve").joinpath("assets")
    for path, name in PAGES.items():
        page = folder.joinpath(name).read_text("utf-8").replace("$disclaimer", DISCLAIMER)
        app.add_api_route(path, _send(page.encode(), MEDIA_TYPES[".html"]), include_in_schema=False)
    for entry in folder.iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in MEDIA_TYPES and entry.name not in PAGES.values():
            endpoint = _send(entry.read_bytes(), MEDIA_TYPES[suffix])
            app.add_api_route(f"/assets/{entry.name}", endpoint, include_in_schema=False)


def _send(data: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(data, media_type=media_type)

    return send


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _validation_error(request: Request, error: Exception) -> Response:
    """Names the value that is wrong, and repeats nothing of what was sent."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][:2])
    return ApiError(422, "invalid", f"{place}: {first['msg']}").response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    code = CODES.get(error.status_code, "http-error")
    return ApiError(error.status_code, code, str(error.detail), headers).response()
