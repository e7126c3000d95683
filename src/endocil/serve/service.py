"""The parts of a server, and the way of uploaded images through them: decode, predict, collect."""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from endocil.data.dicom import DicomFrame, frame_count, is_dicom
from endocil.data.table import UnreadableImageError
from endocil.errors import ResourceError
from endocil.model import DISCLAIMER
from endocil.model.gradcam import last_blocks, over_original
from endocil.model.manifest import Preprocessing
from endocil.model.predictions import Predictions
from endocil.serve.guard import Limits
from endocil.serve.monitoring import Metrics
from endocil.serve.queues import Engine, FairQueue, Reservation, gather
from endocil.serve.schemas import ApiError, Error, ImageResult, Prediction, busy, not_found, too_large
from endocil.serve.served_models import ServedModel, ServedModels
from endocil.serve.served_runs import Runs
from endocil.serve.uploads import UploadMemory, decode_image, decode_own_size, header_size

GRADCAMS = 4  # drawn at once; further requests get status 429
DECODERS = 2  # threads; few, so that large images cannot fill the memory
LARGE = 12_000_000  # pixels of an image that is decoded with no other of its kind beside it


@dataclass
class Service:
    models: ServedModels
    runs: Runs
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.memory = UploadMemory(int(self.limits.memory_megabytes * 1e6))
        self.engine: Engine[ServedModel, Predictions] = Engine(
            lambda model, pixels: model.predict(pixels, self.metrics.count_pass),
            queue=self.limits.queue,
            batch=self.limits.batch,
        )
        self._decoders = FairQueue(DECODERS)
        self._drawing = 0  # Grad-CAM images
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
        async with self._answer_in_time():
            files = await self._images_in(uploads)
            units = [image for file in files for image in file]
            with self.engine.reserve(len(units) * len(models)) as reservation:
                results = iter(await self._predict(units, models, reservation, top, nearest))
        images = [
            next(results).model_copy(update={"index": index, "frame": frame if len(file) > 1 else None})
            for index, file in enumerate(files)
            for frame in range(1, len(file) + 1)
        ]
        unreadable = sum(image.error is not None for image in images)
        self.metrics.images.labels("unreadable").inc(unreadable)
        self.metrics.images.labels("predicted").inc(len(images) - unreadable)
        return images

    async def gradcam(self, upload: bytes, model: ServedModel, class_name: str | None, frame: int) -> bytes:
        """An image in its own size with the evidence for a class drawn over it, as PNG."""
        if not last_blocks(model.model.method):
            raise ApiError(422, "no-gradcam", f"the backbone of {model.id} has no feature maps for Grad-CAM")
        if class_name is not None and class_name not in model.class_names:
            raise not_found("class")
        if self._drawing >= GRADCAMS:
            raise busy(f"{GRADCAMS} Grad-CAM images are already being drawn; try again")
        self._drawing += 1
        try:
            async with self._answer_in_time():
                frames = (await self._decoders.map(frame_count, [upload]))[0] if is_dicom(upload) else 1
                if frame > frames:
                    raise not_found("frame")
                data = DicomFrame(upload, frame) if is_dicom(upload) else upload
                return await self._draw(data, model, class_name)
        except UnreadableImageError as error:
            raise ApiError(422, "unreadable", str(error)) from error
        finally:
            self._drawing -= 1

    async def _draw(self, data: bytes | DicomFrame, model: ServedModel, class_name: str | None) -> bytes:
        (size,) = await self._decoders.map(header_size, [data])
        large = [prod(size) > LARGE]
        (pixels,) = await self._decoders.map(partial(self._decode, model.preprocessing), [data], large)
        if isinstance(pixels, Error):
            raise ApiError(422, pixels.code, pixels.message)
        evidence, name = await self.engine.call(partial(model.evidence, pixels, class_name))

        def draw(data: bytes | DicomFrame) -> bytes:
            preprocessing = model.preprocessing
            crop_frame, fit = preprocessing.crop_frame, preprocessing.fit
            drawn = over_original(decode_own_size(data), evidence, crop_frame=crop_frame, fit=fit)
            text = PngInfo()
            for key, value in (("Disclaimer", DISCLAIMER), ("Model", model.digest), ("Class", name)):
                text.add_itxt(key, value)
            file = io.BytesIO()
            Image.fromarray(drawn).save(file, "PNG", compress_level=1, pnginfo=text)
            return file.getvalue()

        (drawn,) = await self._decoders.map(draw, [data], [True])  # one at a time: predictions keep a thread
        return drawn

    @asynccontextmanager
    async def _answer_in_time(self) -> AsyncIterator[None]:
        seconds = self.limits.answer_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            message = f"no answer within {seconds:g} seconds; try again"
            raise ApiError(503, "timeout", message, {"Retry-After": "5"}) from None

    async def _images_in(self, uploads: Sequence[bytes]) -> list[Sequence[bytes | DicomFrame]]:
        """The images of each file: a DICOM file may have several frames, each of which is an image."""
        places = [place for place, data in enumerate(uploads) if is_dicom(data)]
        counts = await self._decoders.map(frame_count, [uploads[place] for place in places]) if places else []
        total = len(uploads) - len(places) + sum(counts)
        if total > self.limits.images:
            raise too_large(f"{total:,} images, frames counted; at most {self.limits.images} at a time are accepted")
        files: list[Sequence[bytes | DicomFrame]] = [[data] for data in uploads]
        for place, n in zip(places, counts, strict=True):
            files[place] = [DicomFrame(uploads[place], frame) for frame in range(1, n + 1)]
        return files

    async def _predict(
        self,
        uploads: Sequence[bytes | DicomFrame],
        models: Sequence[ServedModel],
        reservation: Reservation,
        top: int,
        nearest: int,
    ) -> list[ImageResult]:
        """Models with the same preprocessing share the decoded images."""
        sizes = [prod(size) for size in await self._decoders.map(header_size, uploads)]
        total = sum(size for size in sizes if size <= self.limits.pixels)  # larger images are never decoded
        if total > self.limits.request_pixels:
            raise too_large(
                f"{total:,} pixels in all; at most {self.limits.request_pixels:,} at a time are accepted: send fewer "
                f"images"
            )
        decoded: dict[Preprocessing, list[np.ndarray | Error]] = {}
        for preprocessing in dict.fromkeys(model.preprocessing for model in models):
            decode = partial(self._decode, preprocessing)
            decoded[preprocessing] = await self._decoders.map(decode, uploads, [size > LARGE for size in sizes])

        async def predict_with(model: ServedModel) -> dict[int, Prediction]:
            """By the image's index; unreadable ones are left out."""
            images = enumerate(decoded[model.preprocessing])
            readable = {index: pixels for index, pixels in images if not isinstance(pixels, Error)}
            if not readable:
                return {}
            pixels = torch.from_numpy(np.stack(list(readable.values())))
            rows = zip(readable, await self.engine.run(model, pixels, reservation), strict=True)
            return {index: model.prediction(batch, row, top, nearest) for index, (batch, row) in rows}

        by_model = await gather(predict_with(model) for model in models)
        results = []
        for index, images in enumerate(zip(*decoded.values(), strict=True)):
            error = next((image for image in images if isinstance(image, Error)), None)
            predictions = [] if error else [predictions[index] for predictions in by_model]
            results.append(ImageResult(index=index, error=error, predictions=predictions))
        return results

    def _decode(self, preprocessing: Preprocessing, data: bytes | DicomFrame) -> np.ndarray | Error:
        try:
            return decode_image(data, preprocessing, self.limits.pixels)
        except (UnreadableImageError, ResourceError) as error:  # the second: DICOM without pydicom
            return Error(code="unreadable", message=str(error))
