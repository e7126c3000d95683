"""The routes of the API."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from endocil.serve import guard, messages
from endocil.serve.guard import same
from endocil.serve.limits import Refusal, unknown
from endocil.serve.models import MOST_NEAREST, Loaded
from endocil.serve.service import Service
from endocil.serve.uploads import uploaded

TWELVE_HOURS = 12 * 3600
Id = Annotated[str, Path(pattern="^model-[0-9]{1,4}$")]
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "additionalProperties": False,
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                            "description": "BMP, JPEG, PNG, TIFF or WebP.",
                        }
                    },
                }
            }
        },
    }
}


def refusals(**why: str) -> dict[int | str, dict[str, Any]]:
    """For the documentation: status by status, with the notice as everywhere."""
    every = {
        "401": "No token, or a wrong one.",
        "403": "Another site's page asked, or the server was called by a foreign name.",
        "408": "The request arrived too slowly.",
        "413": "The request is too large.",
        "422": "A value is not as described here.",
        "500": "The server failed.",
    }
    told = every | {status.removeprefix("s"): text for status, text in why.items()}
    return {int(status): {"description": text, "model": messages.Refused} for status, text in told.items()}


def router(service: Service) -> APIRouter:
    api = APIRouter(prefix=guard.API, responses=refusals())

    @api.get("/health", summary="Is the server up? Needs no token")
    async def health() -> messages.Health:
        return messages.Health()

    @api.get("/metrics", summary="What it has done, for Prometheus", response_class=Response)
    async def metrics() -> Response:
        text = service.metrics.text(service.engine.waiting, service.memory.held)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @api.post("/session", summary="For browsers: the token becomes a cookie", responses=refusals())
    async def session(request: Request, response: Response) -> messages.Health:
        if not request.app.state.guard_token:
            return messages.Health()
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not same(given.strip(), request.app.state.guard_token):
            raise guard.unauthorised()
        response.set_cookie(
            guard.COOKIE, request.state.session, max_age=TWELVE_HOURS, httponly=True, samesite="strict"
        )
        return messages.Health()

    @api.get("/models", summary="The models that answer, and what one request may bring")
    async def models() -> messages.Models:
        limits = service.limits
        return messages.Models(
            models=[one.summary() for one in service.models.all()],
            bundles=await asyncio.to_thread(lambda: list(service.models.bundles())),
            limits=messages.LimitsSaid(
                upload_bytes=limits.upload_bytes,
                images=limits.images,
                pixels=limits.pixels,
                request_pixels=limits.request_pixels,
            ),
            runs=service.runs.folder is not None,
        )

    @api.get("/models/{id}", summary="The card of a model", responses=refusals(s404="No such model."))
    async def card(id: Id) -> messages.Card:
        return service.models.get(id).card()

    @api.put(
        "/models/{id}",
        summary="Let another bundle of the folder take the place of a model",
        description="It is loaded, checked and tried first; where it is refused, the old one goes on. "
        "No request is lost: each ends with the model it began with.",
        responses=refusals(
            s400="The body is no JSON.", s404="No such model or bundle.", s409="Another one is being loaded."
        ),
    )
    async def swap(id: Id, wanted: messages.Swap, request: Request) -> messages.Swapped:
        try:
            before, now = await service.models.swap(id, wanted.bundle)
        except Refusal as refusal:
            if refusal.code == "refused-bundle":
                service.metrics.count(service.metrics.swaps, "refused")
            raise
        service.metrics.count(service.metrics.swaps, "done")
        request.state.facts = {"before": before.bundle.digest[:16], "now": now.bundle.digest[:16]}
        return messages.Swapped(before=before.bundle.digest, model=now.summary())

    @api.get(
        "/models/{id}/exemplars/{digest}/{row}.png",
        summary="A picture that a model remembers",
        response_class=Response,
        responses={200: {"content": {"image/png": {}}}, **refusals(s404="No such model or exemplar.")},
    )
    async def exemplar(
        id: Id,
        digest: Annotated[str, Path(pattern="^[0-9a-f]{16}$")],
        row: Annotated[int, Path(ge=0, le=10**6)],
    ) -> Response:
        loaded = service.models.get(id)
        if not loaded.bundle.digest.startswith(digest):  # exchanged since: its rows are other pictures
            raise unknown("exemplar")
        return Response(await asyncio.to_thread(service.exemplar, loaded, row), media_type="image/png")

    @api.post(
        "/predict",
        summary="Classes of images",
        description="One image or several in a form; a second model answers beside the first with `compare`. "
        "An image that cannot be read has a `problem` and no answers.",
        openapi_extra=FORM,
        responses=refusals(
            s400="The form is damaged, or has no images.",
            s404="No such model.",
            s415="Not a form.",
            s429="Too much is waiting; come again after the seconds of Retry-After.",
            s503="No answer in time, or the server is stopping.",
        ),
    )
    async def predict(
        request: Request,
        model: Annotated[str | None, Query(pattern="^model-[0-9]{1,4}$")] = None,
        compare: Annotated[str | None, Query(pattern="^model-[0-9]{1,4}$")] = None,
        top: Annotated[int, Query(ge=1, le=100)] = 3,
        nearest: Annotated[int, Query(ge=0, le=MOST_NEAREST)] = 3,
    ) -> messages.Predictions:
        asked = _asked(service, model, compare)
        service.engine.refuse_more(1)  # before anything is uploaded in vain
        with service.memory.share() as share:
            uploads = await uploaded(request, service.limits, share)
            request.state.facts = {
                "images": len(uploads),
                "bytes": share.held,
                "models": [one.bundle.digest[:16] for one in asked],
            }
            return messages.Predictions(images=await service.predict(uploads, asked, top, nearest))

    @api.get("/runs", summary="Finished runs")
    async def runs() -> messages.Runs:
        listed, left_out = await asyncio.to_thread(service.runs.summaries)
        return messages.Runs(runs=listed, left_out=left_out)

    @api.get(
        "/runs/{id}/report",
        summary="The report of a run",
        response_class=Response,
        responses={200: {"content": {"text/html": {}}}, **refusals(s404="No such report.")},
    )
    async def report(id: Annotated[str, Path(pattern="^[0-9a-f]{16}$")]) -> Response:
        page, policy = await asyncio.to_thread(service.runs.report, id)
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": policy})

    return api


def _asked(service: Service, model: str | None, compare: str | None) -> list[Loaded]:
    asked = [service.models.first() if model is None else service.models.get(model)]
    if compare is not None:
        asked.append(service.models.get(compare))
    return asked
