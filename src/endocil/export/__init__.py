"""A bundle as an ONNX file, for systems that run no Python: pixels in, calibrated probabilities out.

The graph begins at what a decoder gives, uint8 pixels of the bundle's size: normalisation and calibration are part of
it, so that nobody has to write them again, and differently. What it answers is compared with torch before it is kept.
"""

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.bundle.content import Content, read_content
from endocil.bundle.restoring import restored
from endocil.bundle.unlike import MEANS, WHITENING
from endocil.errors import EndocilError
from endocil.evaluation import CLASS_MEANS
from endocil.export.describing import describe
from endocil.export.parity import (
    COMPARED,
    INPUT,
    TOLERANCE,
    expected_of,
    largest_difference,
    pictures_of,
    temperature_of,
)
from endocil.files import write_atomically
from endocil.memory import unit
from endocil.methods import Method

if TYPE_CHECKING:
    import onnx

__all__ = ["COMPARED", "INPUT", "TOLERANCE", "Exported", "Graph", "export"]
OPSET = 18


@dataclass(frozen=True)
class Exported:
    """What was written, and how near it is to torch."""

    path: Path
    outputs: tuple[str, ...]
    pictures: int  # that were compared
    generated: bool  # drawn by a program: the bundle holds none
    difference: float  # the largest, of all outputs


class Graph(nn.Module):
    """(B, size, size, 3) uint8, red, green, blue, to logits, probabilities, features, and what follows from them."""

    factor: Tensor
    shift: Tensor
    means: Tensor | None
    whitening: Tensor | None
    whitened: Tensor | None  # class means

    def __init__(self, method: Method, content: Content) -> None:
        super().__init__()
        self.method, manifest = method, content.manifest
        deviation = torch.tensor(manifest.preprocessing.deviation)
        self.register_buffer("factor", 1.0 / (255.0 * deviation))
        self.register_buffer("shift", -torch.tensor(manifest.preprocessing.mean) / deviation)
        self.temperature = temperature_of(manifest)
        means = method.statistics.get(CLASS_MEANS)
        self.register_buffer("means", None if means is None else means.detach().clone())
        self.register_buffer("whitening", content.spread.get(WHITENING))
        self.register_buffer("whitened", content.spread.get(MEANS))

    @property
    def outputs(self) -> tuple[str, ...]:
        names = ("logits", "probabilities", "features")
        told = {"mean_distances": self.means, "unlike_score": self.whitened}
        return (*names, *(name for name, needed in told.items() if needed is not None))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        values = (pixels.to(torch.float32) * self.factor + self.shift).permute(0, 3, 1, 2)
        features = self.method.embed(values)
        logits = self.method.classify(features)
        answers = [logits, functional.softmax(logits / self.temperature, dim=1), features]
        if self.means is not None:
            directions = unit(features)
            squares = directions.square().sum(dim=1, keepdim=True) + self.means.square().sum(dim=1)
            answers.append((squares - 2.0 * directions @ self.means.T).clamp_min(0.0))
        if self.whitening is not None and self.whitened is not None:
            apart = (features @ self.whitening)[:, None] - self.whitened  # (B, C, d)
            answers.append(apart.square().sum(dim=2).amin(dim=1).sqrt())
        return tuple(answers)


def export(bundle: Path | str, path: Path | str, *, trust: bool = False) -> Exported:
    """Write the bundle's model as ONNX, once onnxruntime has answered as torch does; whole or not at all."""
    _refuse_missing_packages()
    bundle, path = Path(bundle), Path(path)
    _refuse_to_write_over(bundle, path)
    content = read_content(bundle)
    method = restored(content, trust=trust)
    graph = Graph(method, content).eval()
    pixels, generated = pictures_of(content)
    model = _traced(graph, content.manifest.preprocessing.size)
    describe(model, content)
    data = model.SerializeToString()
    difference = largest_difference(data, graph.outputs, pixels, expected_of(method, content, pixels))
    write_atomically(path, data)
    return Exported(path, graph.outputs, len(pixels), generated, difference)


def _refuse_missing_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise EndocilError(
            f"the export needs {error.name}; install it by: pip install 'endocil[onnx]'"
        ) from error


def _refuse_to_write_over(bundle: Path, path: Path) -> None:
    """What is read is never written over."""
    if path.is_dir():
        raise EndocilError(f"{path} is a folder; expected the name of an ONNX file")
    if path.exists() and bundle.exists() and os.path.samefile(bundle, path):
        raise EndocilError(f"{path} is the bundle that is exported; choose another file with -o")


def _traced(graph: Graph, size: int) -> "onnx.ModelProto":
    """By tracing: no network here decides by what is on a picture. torch's other exporter takes many times as long."""
    import onnx

    example, file = torch.zeros(2, size, size, 3, dtype=torch.uint8), io.BytesIO()
    names = list(graph.outputs)
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            graph,
            (example,),
            file,  # type: ignore[arg-type]  # a file will do, too
            input_names=[INPUT],
            output_names=names,
            opset_version=OPSET,
            dynamic_axes={name: {0: "batch"} for name in (INPUT, *names)},
            dynamo=False,
        )
    return onnx.load_from_string(file.getvalue())


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of its own progress and of things that a user cannot change."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
