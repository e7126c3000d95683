"""Does onnxruntime answer as torch does? Asked about pictures, one alone and several at once."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from endocil.bundle.content import Content
from endocil.bundle.looking import look
from endocil.bundle.manifest import Manifest
from endocil.bundle.unlike import unlike_scores
from endocil.datasets.synthetic import CLASSES, render
from endocil.errors import EndocilError
from endocil.methods import Method

INPUT = "pixels"
TOLERANCE = 1e-4  # relative and absolute
COMPARED = 32  # pictures


def temperature_of(manifest: Manifest) -> float:
    return 1.0 if manifest.calibration is None else manifest.calibration.temperature


def pictures_of(content: Content) -> tuple[Tensor, bool]:
    """Pictures to compare on: the bundle's own, from its first to its last; drawn ones where it holds none."""
    own = torch.cat([content.exemplars.pixels, content.held_out.pixels])
    if len(own):
        step = max(1, len(own) // COMPARED)
        return own[::step][:COMPARED], False
    size, names = content.manifest.preprocessing.size, sorted(CLASSES)
    drawn = [render(0, names[index % len(names)], index, size) for index in range(COMPARED)]
    return torch.from_numpy(np.stack(drawn)), True


@torch.no_grad()
def expected_of(method: Method, content: Content, pixels: Tensor) -> dict[str, Tensor]:
    """By the functions that train and test with torch, not by the graph that was exported."""
    seen = look(method, pixels, 8)
    answers = {
        "logits": seen.logits,
        "probabilities": functional.softmax(seen.logits / temperature_of(content.manifest), dim=1),
        "features": seen.features,
    }
    if seen.distances is not None:
        answers["mean_distances"] = seen.distances
    if content.spread:
        answers["unlike_score"] = unlike_scores(seen, content.spread)
    return answers


def largest_difference(
    data: bytes, outputs: tuple[str, ...], pixels: Tensor, expected: dict[str, Tensor]
) -> float:
    """The largest difference; one picture alone and several at once, so that the batch is really free."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    largest = 0.0
    start = 0
    while start < len(pixels):
        rows = slice(start, start + (1 if start == 0 else 7))
        answers = session.run(list(outputs), {INPUT: pixels[rows].numpy()})
        for name, answer in zip(outputs, answers, strict=True):
            there, here = torch.from_numpy(answer), expected[name][rows]
            difference = float((there - here).abs().max())
            largest = max(largest, difference)
            if not torch.allclose(there, here, rtol=TOLERANCE, atol=TOLERANCE):
                raise EndocilError(
                    f"onnxruntime and torch differ in {name} by {difference:.2g}, more than {TOLERANCE}; "
                    f"nothing was written"
                )
        start = rows.stop
    return largest
