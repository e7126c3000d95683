"""The application: the routes of the API, the pages and their assets, and the errors in one form."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import endocil
from endocil.model import DISCLAIMER
from endocil.serve import schemas
from endocil.serve.guard import API, COOKIE, Access, Guard
from endocil.serve.monitoring import Log
from endocil.serve.schemas import ApiError, not_found
from endocil.serve.served_models import MAX_NEAREST
from endocil.serve.service import Service
from endocil.serve.sessions import Proxies, Sessions
from endocil.serve.uploads import Allocation, read_images

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PAGES = {"index.html": "/", "docs.html": "/docs"}
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
CODES = {400: "malformed", 404: "not-found", 405: "wrong-method"}
MODEL_ID = "^model-[0-9]{1,4}$"
ModelId = Annotated[str, Path(pattern=MODEL_ID, description="Of a served model: model-1, model-2, ...")]
OptionalModelId = Annotated[str | None, Query(pattern=MODEL_ID, description="The first model if it is not given.")]
SecondModelId = Annotated[str | None, Query(pattern=MODEL_ID, description="A second model, for the same images.")]
IMAGES = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "string", "format": "binary"},
    "description": "BMP, DICOM, JPEG, PNG, TIFF or WebP.",
}
FORM = {"type": "object", "required": ["images"], "additionalProperties": False, "properties": {"images": IMAGES}}
ONE_IMAGE = FORM | {"properties": {"images": IMAGES | {"maxItems": 1}}}
MODEL_HEADER = "X-Endocil-Model"


def errors(descriptions: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    """For the documentation: the errors that every route can return, and those of this one."""
    common = {
        401: "No token, or a wrong one.",
        403: "Sent by a page of another site, or to a host name that is not this server's.",
        408: "The request arrived too slowly.",
        413: "The request is too large.",
        422: "A value does not match this description.",
        429: "Too many wrong tokens.",
        500: "The server failed.",
    }
    return {
        status: {"description": text, "model": schemas.ErrorResponse}
        for status, text in (common | descriptions).items()
    }


def create_app(
    service: Service,
    *,
    token: str | None = None,
    names: frozenset[str] = frozenset(),
    sessions: Sessions | None = None,
    proxies: Proxies | None = None,
    log: Log | None = None,
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
    access = Access(token, LOCAL_NAMES | names, sessions or Sessions(), proxies or Proxies())
    app.include_router(router(service, access))
    _add_assets(app)
    app.exception_handler(RequestValidationError)(_error_response)
    app.exception_handler(HTTPException)(_error_response)
    app.add_middleware(Guard, access=access, limits=service.limits, log=log, metrics=service.metrics)
    return app


def _add_assets(app: FastAPI) -> None:
    """One route for each file, read once: a path is never built from a request."""
    for file in resources.files("endocil.serve").joinpath("assets").iterdir():
        media_type = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            data = file.read_bytes().replace(b"$disclaimer", DISCLAIMER.encode())
            path = PAGES.get(file.name, f"/assets/{file.name}")
            app.add_api_route(path, _send(data, media_type), include_in_schema=False)


def _send(data: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(data, media_type=media_type)

    return send


async def _error_response(request: Request, error: Exception) -> Response:
    """Names the value that is wrong, and repeats nothing of what was sent."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][:2])
        return ApiError(422, "invalid", f"{place}: {first['msg']}").response()
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return error.response()
    headers = dict(error.headers) if error.headers else None
    code = CODES.get(error.status_code, "http-error")
    return ApiError(error.status_code, code, str(error.detail), headers).response()


def router(service: Service, access: Access) -> APIRouter:
    api = APIRouter(prefix=API, responses=errors({}))

    @api.get("/health", summary="Is the server up? Needs no token")
    async def health() -> schemas.Health:
        return schemas.Health()

    @api.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.post("/session", summary="For browsers: exchange the token for a cookie")
    async def session(request: Request, response: Response) -> schemas.Health:
        if access.token is not None:  # which the guard has checked
            https = access.proxies.is_https(request.scope, request.headers)
            age = int(access.sessions.seconds)
            response.set_cookie(
                COOKIE, access.sessions.new(), max_age=age, secure=https, httponly=True, samesite="strict"
            )
        return schemas.Health()

    @api.get("/models", summary="The served models, and the limits of a request")
    async def models() -> schemas.ModelList:
        return schemas.ModelList(
            models=[model.summary() for model in service.models.all()],
            files=list(await asyncio.to_thread(service.models.files)),
            limits=schemas.RequestLimits.model_validate(service.limits),
            runs=service.runs.folder is not None,
            only_gated=service.models.only_gated,
        )

    @api.get("/models/{id}", summary="The card of a model", responses=errors({404: "No such model."}))
    async def card(id: ModelId) -> schemas.ModelCard:
        return service.models.get(id).card()

    @api.put(
        "/models/{id}",
        summary="Replace a model by another model file of the folder",
        description="The file is loaded, checked and run once before it replaces the model; an invalid file changes "
        "nothing. No request is lost: each is finished by the model it began with.",
        responses=errors(
            {
                400: "The body is not JSON.",
                404: "No such model or model file.",
                409: "Another model is being loaded.",
                503: "The exchange cannot be kept for a restart.",
            }
        ),
    )
    async def swap(id: ModelId, body: schemas.SwapRequest, request: Request) -> schemas.SwapResponse:
        try:
            previous, current = await service.models.swap(id, body.file)
        except ApiError as error:
            if error.code in ("invalid-model", "not-gated"):
                service.metrics.swaps.labels("refused").inc()
            raise
        service.metrics.swaps.labels("done").inc()
        request.state.log_fields = {"previous": previous.digest[:16], "current": current.digest[:16]}
        return schemas.SwapResponse(previous=previous.digest, model=current.summary())

    @api.get(
        "/models/{id}/exemplars/{digest}/{row}.png",
        summary="An exemplar of a model",
        response_class=Response,
        responses={200: {"content": {"image/png": {}}}, **errors({404: "No such model or exemplar."})},
    )
    async def exemplar(
        id: ModelId,
        digest: Annotated[
            str, Path(pattern="^[0-9a-f]{16}$", description="First 16 characters of the model's digest.")
        ],
        row: Annotated[int, Path(ge=0, le=10**6, description="Of the exemplar.")],
    ) -> Response:
        model = service.models.get(id)
        if not model.digest.startswith(digest):  # replaced meanwhile: its rows are other images
            raise not_found("exemplar")
        return Response(await asyncio.to_thread(model.exemplar, row), media_type="image/png")

    @api.post(
        "/predict",
        summary="Classes of images",
        description="One or several images in a form; `compare` adds the predictions of a second model. "
        "An image that cannot be read has an `error` and no predictions. Every frame of a DICOM file is an image.",
        openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM}}}},
        responses=errors(
            {
                400: "The form is damaged, or has no images.",
                404: "No such model.",
                415: "Not a form.",
                429: "Too many images are waiting; try again after the seconds of Retry-After.",
                503: "No answer in time, or the server is stopping.",
            }
        ),
    )
    async def predict(
        request: Request,
        model: OptionalModelId = None,
        compare: SecondModelId = None,
        top: Annotated[int, Query(ge=1, le=100, description="Number of classes.")] = 3,
        nearest: Annotated[int, Query(ge=0, le=MAX_NEAREST, description="Number of nearest exemplars.")] = 3,
    ) -> schemas.PredictResponse:
        chosen = [service.models.get(model)]
        if compare is not None:
            chosen.append(service.models.get(compare))
        service.engine.check_capacity(1)  # before an upload that would be in vain
        with Allocation(service.memory) as allocation:
            images = await read_images(request, service.limits, allocation)
            request.state.log_fields = {
                "images": len(images),
                "bytes": allocation.used,
                "models": [one.digest[:16] for one in chosen],
            }
            return schemas.PredictResponse(images=await service.predict(images, chosen, top, nearest))

    @api.post(
        "/gradcam",
        summary="Where the evidence for a class lies in an image (Grad-CAM)",
        description="The image in its own size, as PNG, with the evidence for `class_name` drawn over it, from red to "
        "yellow; without `class_name` for the most probable class. It shows where the network looked, not whether it "
        f"was right. The header {MODEL_HEADER} has the digest of the model; the PNG file has it and the class as text. "
        "One image in a request. It needs a backward pass: predictions of other requests never wait for more than one.",
        openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": ONE_IMAGE}}}},
        response_class=Response,
        responses={
            200: {
                "content": {"image/png": {}},
                "headers": {MODEL_HEADER: {"description": "Digest of the model.", "schema": {"type": "string"}}},
            },
            **errors(
                {
                    400: "The form is damaged, or has no image.",
                    404: "No such model, class or frame.",
                    415: "Not a form.",
                    422: "A value does not match this description, the image cannot be read, or the model has no "
                    "feature maps for Grad-CAM.",
                    429: "Too much is waiting; try again after the seconds of Retry-After.",
                    503: "No answer in time, or the server is stopping.",
                }
            ),
        },
    )
    async def gradcam(
        request: Request,
        model: OptionalModelId = None,
        class_name: Annotated[
            str | None, Query(max_length=1000, description="The most probable class if it is not given.")
        ] = None,
        frame: Annotated[int, Query(ge=1, le=10**6, description="Of a DICOM file, from 1 on.")] = 1,
    ) -> Response:
        chosen = service.models.get(model)
        service.engine.check_capacity(1)
        with Allocation(service.memory) as allocation:
            (image,) = await read_images(request, replace(service.limits, images=1), allocation)
            request.state.log_fields = {"images": 1, "bytes": allocation.used, "models": [chosen.digest[:16]]}
            drawn = await service.gradcam(image, chosen, class_name, frame)
        return Response(drawn, media_type="image/png", headers={MODEL_HEADER: chosen.digest})

    @api.get("/runs", summary="Finished runs")
    async def runs() -> schemas.RunList:
        summaries, left_out = await asyncio.to_thread(service.runs.summaries)
        return schemas.RunList(runs=summaries, left_out=left_out)

    @api.get(
        "/runs/{id}/report",
        summary="The report of a run",
        response_class=Response,
        responses={200: {"content": {"text/html": {}}}, **errors({404: "No such report."})},
    )
    async def report(id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]) -> Response:
        page, policy = await asyncio.to_thread(service.runs.report, id)
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": policy})

    return api
