"""The parts of a server, and the way of uploaded images through them: decode, predict, collect."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from endocil.data.table import UnreadableImageError
from endocil.model.manifest import Preprocessing
from endocil.serve.engine import Engine, Reservation
from endocil.serve.errors import ApiError, too_large
from endocil.serve.fair_queue import FairQueue
from endocil.serve.limits import Limits
from endocil.serve.models import BatchPredictions, ServedModel, ServedModels
from endocil.serve.monitoring import Metrics
from endocil.serve.runs import Runs
from endocil.serve.schemas import Error, ImageResult, Prediction
from endocil.serve.uploads import UploadMemory, decode_image, header_size

DECODERS = 2  # threads; few, so that large images cannot fill the memory

Decoded = np.ndarray | Error
Result = TypeVar("Result")


@dataclass
class Service:
    models: ServedModels
    runs: Runs
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.memory = UploadMemory(self.limits.memory_bytes)
        self.engine: Engine[ServedModel, BatchPredictions] = Engine(
            lambda model, pixels: model.predict(pixels, self.metrics.count_pass),
            queue=self.limits.queue,
            batch=self.limits.batch,
        )
        self._decoders = FairQueue(DECODERS)
        self.metrics.waiting_images.set_function(lambda: self.engine.waiting)
        self.metrics.upload_bytes.set_function(lambda: self.memory.used)

    def start(self) -> None:
        self.engine.start()

    def close(self) -> None:
        self.engine.close()
        self._decoders.close()

    async def predict(
        self, uploads: Sequence[bytes], models: Sequence[ServedModel], top: int, nearest: int
    ) -> list[ImageResult]:
        """Every model on every image. A model that is replaced meanwhile still finishes this request."""
        seconds = self.limits.answer_seconds
        with self.engine.reserve(len(uploads) * len(models)) as reservation:
            try:
                async with asyncio.timeout(seconds):
                    by_model = await self._predict(uploads, models, reservation, top, nearest)
            except TimeoutError:
                message = f"no answer within {seconds:g} seconds; try again"
                raise ApiError(503, "timeout", message, {"Retry-After": "5"}) from None
        images = []
        for index, results in enumerate(zip(*by_model, strict=True)):
            error = next((result for result in results if isinstance(result, Error)), None)
            predictions = [] if error else [result for result in results if isinstance(result, Prediction)]
            images.append(ImageResult(index=index, error=error, predictions=predictions))
        unreadable = sum(image.error is not None for image in images)
        self.metrics.images.labels("unreadable").inc(unreadable)
        self.metrics.images.labels("predicted").inc(len(images) - unreadable)
        return images

    async def _predict(
        self,
        uploads: Sequence[bytes],
        models: Sequence[ServedModel],
        reservation: Reservation,
        top: int,
        nearest: int,
    ) -> list[list[Prediction | Error]]:
        """By model and image; models with the same preprocessing share the decoded images."""
        await self._check_pixels(uploads)
        decoded: dict[Preprocessing, list[Decoded]] = {}
        for preprocessing in (model.preprocessing for model in models):
            if preprocessing not in decoded:
                decoded[preprocessing] = await self._decoders.map(
                    partial(self._decode, preprocessing), uploads
                )
        return await _gather(
            self._predict_with(model, decoded[model.preprocessing], reservation, top, nearest)
            for model in models
        )

    async def _check_pixels(self, uploads: Sequence[bytes]) -> None:
        """By the headers, before decoding; images that exceed the limit of one image are never decoded."""
        sizes = [width * height for width, height in await self._decoders.map(header_size, uploads)]
        total = sum(size for size in sizes if size <= self.limits.pixels)
        if total > self.limits.request_pixels:
            raise too_large(
                f"{total:,} pixels in all; at most {self.limits.request_pixels:,} at a time are accepted: send fewer "
                f"images"
            )

    def _decode(self, preprocessing: Preprocessing, data: bytes) -> Decoded:
        try:
            return decode_image(data, preprocessing, self.limits.pixels)
        except UnreadableImageError as error:
            return Error(code="unreadable", message=str(error))

    async def _predict_with(
        self,
        model: ServedModel,
        decoded: Sequence[Decoded],
        reservation: Reservation,
        top: int,
        nearest: int,
    ) -> list[Prediction | Error]:
        readable = [pixels for pixels in decoded if not isinstance(pixels, Error)]
        if not readable:
            return [image for image in decoded if isinstance(image, Error)]
        rows = iter(await self.engine.run(model, torch.from_numpy(np.stack(readable)), reservation))
        results: list[Prediction | Error] = []
        for image in decoded:
            if isinstance(image, Error):
                results.append(image)
            else:
                batch, row = next(rows)
                results.append(batch.row(row, top, nearest))
        return results


async def _gather(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results; when one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def create_service(
    paths: Sequence[Path], models: Path | None, runs: Path | None, limits: Limits, *, trust: bool = False
) -> Service:
    """`models`: the folder of model files for exchanges; `runs`: the folder of runs to browse."""
    return Service(ServedModels.load(paths, models, trust=trust), Runs(runs), limits)
