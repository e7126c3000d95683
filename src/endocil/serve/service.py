"""What a server is made of, and what it does with images."""

import asyncio
import io
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image as KeptImages

from endocil.data.table import UnreadableImageError
from endocil.model.inference import Predicted
from endocil.model.manifest import Preprocessing
from endocil.serve import messages
from endocil.serve.engine import Engine, Places, Turns
from endocil.serve.limits import Limits, no_answer, too_large, unknown
from endocil.serve.logs import Metrics
from endocil.serve.models import Loaded, Served, ask
from endocil.serve.runs import Runs
from endocil.serve.uploads import Memory, claimed, pixels_of

DECODERS = 2  # at a time, so that a few large images cannot fill the memory

Decoded = np.ndarray | messages.Problem
Answers = list[messages.Said | messages.Problem]  # of one model, image by image
Made = TypeVar("Made")


@dataclass
class Service:
    models: Served
    runs: Runs
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.memory = Memory(self.limits.memory_bytes)
        self.engine: Engine[Loaded, Predicted] = Engine(
            partial(ask, passed=self.metrics.passed_through), queue=self.limits.queue, batch=self.limits.batch
        )
        self._decoders = Turns(DECODERS)

    def start(self) -> None:
        self.engine.start()

    def close(self) -> None:
        self.engine.close()
        self._decoders.close()

    async def predict(
        self, uploads: Sequence[bytes], asked: Sequence[Loaded], top: int, nearest: int
    ) -> list[messages.Image]:
        """Every model on every image. A model that is exchanged meanwhile still ends what it began."""
        with self.engine.admitted(len(uploads) * len(asked)) as places:
            try:
                async with asyncio.timeout(self.limits.answer_seconds):
                    told = await self._told(uploads, asked, places, top, nearest)
            except TimeoutError:
                seconds = f"{self.limits.answer_seconds:g} seconds"
                raise no_answer(f"no answer within {seconds}; try again") from None
        images = []
        for index, answers in enumerate(zip(*told, strict=True)):
            problem = next((one for one in answers if isinstance(one, messages.Problem)), None)
            said = [one for one in answers if isinstance(one, messages.Said)]
            images.append(messages.Image(index=index, problem=problem, answers=[] if problem else said))
        unreadable = sum(image.problem is not None for image in images)
        self.metrics.count(self.metrics.images, "unreadable", unreadable)
        self.metrics.count(self.metrics.images, "answered", len(images) - unreadable)
        return images

    async def _told(
        self, uploads: Sequence[bytes], asked: Sequence[Loaded], places: Places, top: int, nearest: int
    ) -> list[Answers]:
        """By model; models that see images alike share what is decoded."""
        await self._refuse_many_pixels(uploads)
        decoded: dict[Preprocessing, list[Decoded]] = {}
        for rules in (one.bundle.manifest.preprocessing for one in asked):
            if rules not in decoded:
                decoded[rules] = await self._decoders.each(partial(self._decode, rules), uploads)
        return await _together(
            self._ask(one, decoded[one.bundle.manifest.preprocessing], places, top, nearest) for one in asked
        )

    async def _refuse_many_pixels(self, uploads: Sequence[bytes]) -> None:
        """By the headers, before anything is decoded; images that are too large by themselves never are."""
        sizes = [width * height for width, height in await self._decoders.each(claimed, uploads)]
        total = sum(size for size in sizes if size <= self.limits.pixels)
        if total > self.limits.request_pixels:
            raise too_large(
                f"{total:,} pixels in all; at most {self.limits.request_pixels:,} at a time are accepted: send fewer "
                f"images"
            )

    async def _ask(
        self, loaded: Loaded, decoded: Sequence[Decoded], places: Places, top: int, nearest: int
    ) -> Answers:
        good = [pixels for pixels in decoded if not isinstance(pixels, messages.Problem)]
        if not good:
            return [one for one in decoded if isinstance(one, messages.Problem)]
        rows = iter(await self.engine.ask(loaded, torch.from_numpy(np.stack(good)), places))
        return [
            one if isinstance(one, messages.Problem) else said(loaded, *next(rows), top, nearest)
            for one in decoded
        ]

    def _decode(self, rules: Preprocessing, data: bytes) -> Decoded:
        try:
            return pixels_of(data, rules, self.limits.pixels)
        except UnreadableImageError as error:
            return messages.Problem(code="unreadable", message=str(error))

    def exemplar(self, loaded: Loaded, row: int) -> bytes:
        """A picture of the bundle as PNG."""
        pictures = loaded.bundle.content.exemplars
        if row >= len(pictures):
            raise unknown("exemplar")
        file = io.BytesIO()
        KeptImages.fromarray(pictures.pixels[row].numpy()).save(file, "PNG")
        return file.getvalue()


async def _together(asking: Iterable[Coroutine[Any, Any, Made]]) -> list[Made]:
    """All of them; where one fails the others are not left at work for nobody."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in asking]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def said(loaded: Loaded, predicted: Predicted, row: int, top: int, nearest: int) -> messages.Said:
    """One row of a pass, as the API tells it."""
    origins, by_mean = loaded.bundle.content.exemplars.provenance, predicted.mean_probabilities
    near = predicted.nearest[row][:nearest] if predicted.nearest else ()
    return messages.Said(
        model=loaded.id,
        digest=loaded.bundle.digest,
        calibrated=predicted.calibrated,
        top=_best(predicted.probabilities[row], predicted.classes, top),
        nearest_mean=None if by_mean is None else _best(by_mean[row], predicted.classes, top),
        unlike=None if predicted.unlike is None else bool(predicted.unlike[row]),
        unlike_score=float(predicted.unlike_score[row]),
        nearest=[
            messages.Near(
                exemplar=one,
                name=origins[one].class_name,
                picture=f"/api/v1/models/{loaded.id}/exemplars/{loaded.bundle.digest[:16]}/{one}.png",
            )
            for one in near
        ],
    )


def _best(shares: torch.Tensor, classes: Sequence[str], top: int) -> list[messages.Scored]:
    values, order = shares.sort(descending=True, stable=True)
    pairs = zip(order[:top].tolist(), values[:top].tolist(), strict=True)
    return [messages.Scored(name=classes[label], probability=value) for label, value in pairs]


def service_of(
    bundles: Sequence[Path], models: Path | None, runs: Path | None, limits: Limits, *, trust: bool = False
) -> Service:
    return Service(Served.of(bundles, models, trust=trust), Runs(runs), limits)
