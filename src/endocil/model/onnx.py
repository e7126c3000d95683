"""A model as an ONNX file, for systems that run no Python: pixels in, calibrated probabilities out.

Its metadata describe the classes, the preprocessing and the outputs. The file is written only if onnxruntime and torch
agree, on one image and on a batch.
"""

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.data import resize
from endocil.datasets.synthetic import CLASSES, render
from endocil.errors import EndocilError
from endocil.io.files import refuse_existing, write_atomically
from endocil.learning.features import CLASS_MEANS, l2_normalise, outputs_of
from endocil.methods import Method
from endocil.model import DISCLAIMER
from endocil.model.file import ModelFile, model_path, read_model_file
from endocil.model.manifest import Calibration, Manifest, Preprocessing
from endocil.model.out_of_distribution import MEANS, PRINCIPAL, WHITENING, ood_scores, vim_scores
from endocil.model.restore import model_settings, restored_method

if TYPE_CHECKING:
    import onnx

INPUT = (
    "uint8, batch x height x width x (red, green, blue), values from 0 to 255; the graph normalises them by mean and "
    "deviation"
)
DECODING = (  # data/decode.py in words
    "the first page or frame of a file",
    "upright: turned and mirrored as the EXIF orientation of the file says",
    "transparent parts lie on black",
    "gray of 16 bits: value // 257; gray of 32 bits: as 8 bits where no value is above 255, else as 16 bits; floats: "
    "times 255 where none is above 1, as they are where none is above 255, else divided by 257, then rounded",
    "CMYK and every other mode: to RGB as Pillow's convert('RGB') does; colour profiles are not applied",
)
RESIZING = (
    "to size x size whatever the shape, by a bilinear filter that averages over all the pixels that shrink into one "
    "(Pillow's BILINEAR)"
)
PADDING = (  # data/resize.py in words
    "decoded whole, without shrinking; by a bilinear filter that averages over all the pixels that shrink into one "
    "(Pillow's BILINEAR), the longer side to size pixels and the shorter one in proportion, rounded, half a pixel up, "
    "to 1 at least; then in the middle of a black square of size x size, where an odd rest comes to the right and below"
)
SHRINKING = (  # data/decode.py in words
    "a gray or RGB JPEG whose shorter side is at least 9/8 of 2, 4 or 8 times the size is decoded by libjpeg at 1/2, "
    "1/4 or 1/8, the smallest that applies, and resized from there; decoding it whole gives slightly other pixels"
)
FRAME = {  # data/resize.py in words
    "rules": resize.FRAME_RULES,
    "black": resize.BLACK,
    "squares": resize.SQUARES,
    "edge": resize.EDGE,
    "smallest": resize.SMALLEST,
    "how": "before resizing, from the picture decoded whole, without shrinking: a pixel is lit where its brightest "
    "channel is above black; lay squares of ceil(longer side / squares) pixels from the upper left corner; a square is "
    "lit where at least half its pixels are; the view is the largest area of lit squares that touch by their sides; "
    "take its box and one square more on each side; trim rows, and then columns, from both ends while less than the "
    "share edge of their pixels in the box is lit; where nothing is lit, or the box has less than the share smallest "
    "of the picture, nothing is cut",
}
SCORE = {  # how far out of distribution an image is: by the spread of features, by class means, without either
    "spread": "the output ood_score",
    "means": "square root of the smallest of mean_distances",
    "logits": "minus the largest of logits",
}
MEAN_PROBABILITIES = "softmax of -mean_distances / mean_temperature"


def describe(model: "onnx.ModelProto", content: ModelFile) -> None:
    """Write classes, preprocessing and calibration into the metadata of the ONNX model."""
    import onnx

    manifest = content.manifest
    name = manifest.name.encode("utf-8", "backslashreplace").decode()  # of a file, it may be no text
    metadata: dict[str, Any] = {
        "notice": DISCLAIMER,
        "name": name,
        "classes": json.dumps(content.classes),
        "preprocessing": json.dumps(preprocessing_of(manifest.preprocessing)),
        "calibration": json.dumps(manifest.calibration and calibration_of(manifest.calibration, content)),
        "model": content.digest,
        "endocil": version("endocil"),
    }
    model.producer_name, model.producer_version = "endocil", version("endocil")
    model.doc_string = f"{DISCLAIMER} {name}: {len(content.classes)} classes."
    onnx.helper.set_model_props(model, metadata)


def preprocessing_of(rules: Preprocessing) -> dict[str, Any]:
    """The constants of the preprocessing, and its rules in words."""
    steps = {"decoding": list(DECODING)}
    cut: dict[str, Any] = {"frame": FRAME} if rules.crop_frame else {}
    if not rules.crop_frame and rules.fit == "stretch":
        cut = {"shrinking": SHRINKING}
    resizing = PADDING if rules.fit == "pad" else RESIZING
    return {"input": INPUT, **rules.model_dump(mode="json"), **steps, **cut, "resizing": resizing}


def calibration_of(fitted: Calibration, content: ModelFile) -> dict[str, Any]:
    """Temperatures and threshold as JSON; without a threshold the score is there, but flags nothing."""
    has_means = CLASS_MEANS in content.statistics
    score = SCORE["spread" if content.spread else "means" if has_means else "logits"]
    if fitted.ood_threshold is not None:
        score += "; out of distribution where it is above ood_threshold"
    means = {"mean_probabilities": MEAN_PROBABILITIES} if has_means else {}
    return {**fitted.model_dump(mode="json"), "ood_score": score, **means}


# --- onnxruntime compared with torch

INPUT_NAME = "pixels"
TOLERANCE = 1e-4  # relative and absolute
COMPARED = 32  # images


def temperature_of(manifest: Manifest) -> float:
    return 1.0 if manifest.calibration is None else manifest.calibration.temperature


def pictures_of(content: ModelFile) -> tuple[Tensor, bool]:
    """Images to compare on: a sample of the model's own; random ones if it holds none."""
    own = torch.cat([content.exemplars.pixels, content.held_out.pixels])
    if len(own):
        step = max(1, len(own) // COMPARED)
        return own[::step][:COMPARED], False
    size, names = content.manifest.preprocessing.size, sorted(CLASSES)
    drawn = [render(0, names[index % len(names)], index, size) for index in range(COMPARED)]
    return torch.from_numpy(np.stack(drawn)), True


@torch.no_grad()
def expected_of(method: Method, content: ModelFile, pixels: Tensor) -> dict[str, Tensor]:
    """Expected outputs, by the functions that runs use, not by the exported graph."""
    outputs = outputs_of(method, pixels, 8)
    answers = {
        "logits": outputs.logits,
        "probabilities": functional.softmax(outputs.logits / temperature_of(content.manifest), dim=1),
        "features": outputs.features,
    }
    if outputs.distances is not None:
        answers["mean_distances"] = outputs.distances
    if content.spread:
        answers["ood_score"] = ood_scores(outputs, content.spread)
    return answers


def largest_difference(data: bytes, outputs: tuple[str, ...], pixels: Tensor, expected: dict[str, Tensor]) -> float:
    """The largest difference, on one image and on a batch, to show that the batch size is dynamic."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    largest = 0.0
    for rows in (slice(0, 1), *(slice(start, start + 7) for start in range(1, len(pixels), 7))):
        answers = session.run(list(outputs), {INPUT_NAME: pixels[rows].numpy()})
        for name, answer in zip(outputs, answers, strict=True):
            there, here = torch.from_numpy(answer), expected[name][rows]
            difference = float((there - here).abs().max())
            largest = max(largest, difference)
            if not torch.allclose(there, here, rtol=TOLERANCE, atol=TOLERANCE):
                raise EndocilError(
                    f"onnxruntime and torch differ in {name} by {difference:.2g}, more than {TOLERANCE}; "
                    f"nothing was written"
                )
    return largest


# --- the export

OPSET = 18


@dataclass(frozen=True)
class Exported:
    """What was written, and its largest difference from torch."""

    path: Path
    outputs: tuple[str, ...]
    pictures: int  # images that were compared
    generated: bool  # drawn by a program: the model holds none
    difference: float  # the largest, of all outputs


class Graph(nn.Module):
    """(B, size, size, 3) uint8, red, green, blue, to logits, probabilities, features, and what follows from them."""

    factor: Tensor
    shift: Tensor
    means: Tensor | None

    def __init__(self, method: Method, content: ModelFile) -> None:
        super().__init__()
        self.method, manifest = method, content.manifest
        deviation = torch.tensor(manifest.preprocessing.deviation)
        self.register_buffer("factor", 1.0 / (255.0 * deviation))
        self.register_buffer("shift", -torch.tensor(manifest.preprocessing.mean) / deviation)
        self.temperature = temperature_of(manifest)
        means = method.statistics.get(CLASS_MEANS)
        self.register_buffer("means", None if means is None else means.detach().clone())
        self.spread = sorted(content.spread)
        for name, value in content.spread.items():
            self.register_buffer(f"spread_{name}", value)

    @property
    def outputs(self) -> tuple[str, ...]:
        names = ("logits", "probabilities", "features")
        optional = {"mean_distances": self.means is not None, "ood_score": bool(self.spread)}
        return (*names, *(name for name, there in optional.items() if there))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        values = (pixels.to(torch.float32) * self.factor + self.shift).permute(0, 3, 1, 2)
        features = self.method.embed(values)
        logits = self.method.classify(features)
        outputs = [logits, functional.softmax(logits / self.temperature, dim=1), features]
        if self.means is not None:
            directions = l2_normalise(features)
            squares = directions.square().sum(dim=1, keepdim=True) + self.means.square().sum(dim=1)
            outputs.append((squares - 2.0 * directions @ self.means.T).clamp_min(0.0))
        spread = {name: getattr(self, f"spread_{name}") for name in self.spread}
        if PRINCIPAL in spread:
            outputs.append(vim_scores(features, logits, spread))
        elif spread:
            apart = (features @ spread[WHITENING])[:, None] - spread[MEANS]  # (B, C, d)
            outputs.append(apart.square().sum(dim=2).amin(dim=1).sqrt())
        return tuple(outputs)


def export(model: Path | str, path: Path | str, *, trust: bool = False, force: bool = False) -> Exported:
    """Write the model as ONNX, once onnxruntime has given what torch gives; the complete file or none.

    `force`: overwrite an existing file."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise EndocilError(f"the export needs {error.name}; install it by: pip install 'endocil[onnx]'") from error
    model, path = model_path(Path(model)), Path(path)
    if path.is_dir():
        raise EndocilError(f"{path} is a folder; expected the name of an ONNX file")
    if path.exists() and model.exists() and os.path.samefile(model, path):
        raise EndocilError(f"{path} is the model that is exported; choose another file with -o")
    refuse_existing(path, force=force)
    content = read_model_file(model)
    method = restored_method(content, model_settings(content, trust=trust), torch.device("cpu"))
    graph = Graph(method, content).eval()
    pixels, generated = pictures_of(content)
    traced = _traced(graph, content.manifest.preprocessing.size)
    describe(traced, content)
    data = traced.SerializeToString()
    difference = largest_difference(data, graph.outputs, pixels, expected_of(method, content, pixels))
    write_atomically(path, data)
    return Exported(path, graph.outputs, len(pixels), generated, difference)


def _traced(graph: Graph, size: int) -> "onnx.ModelProto":
    """By tracing: no network here has control flow that depends on pixels, and torch's other exporter is far slower."""
    import onnx

    example, file = torch.zeros(2, size, size, 3, dtype=torch.uint8), io.BytesIO()
    names = list(graph.outputs)
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            graph,
            (example,),
            file,  # type: ignore[arg-type]  # a file will do, too
            input_names=[INPUT_NAME],
            output_names=names,
            opset_version=OPSET,
            dynamic_axes={name: {0: "batch"} for name in (INPUT_NAME, *names)},
            dynamo=False,
        )
    return onnx.load_from_string(file.getvalue())


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter prints progress and warnings that a user can do nothing about."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
