"""What every method does on a small fixed life, as digests: they stay while the house around the methods is rebuilt.

One thread and float64, so that a processor's rounding does not decide which image is an exemplar or which class is
predicted. `python tests/digests.py` writes digests.json anew: only when a change of results is meant.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from life import ALL_METHODS, Life, new_method
from pictures import make_images
from torch import Tensor, nn

from endocil.data.batches import ImageSet
from endocil.metrics.metrics import summarise
from endocil.model.predictions import HEADS, Predictions, predict

FILE = Path(__file__).with_name("digests.json")
SIZES = [14, 11, 12, 4, 13, 9]
# At the usual 0.1 LUCIR's small network is chaotic: the last bits, which differ between processors, grow to other
# predictions. Weights then differ by 0.8 of their norm, with 0.03 by 5e-7 (SSE4.1 against AVX512).
RATES = {"lucir": 0.03}


@contextmanager
def float64() -> Iterator[None]:
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def _in_its_precision(layer: nn.Conv2d, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0].to(layer.weight.dtype),)


def life_of(name: str, folder: Path, **how: Any) -> Life:
    """Call it and use it inside `float64()`."""
    method = new_method(name, **({"rate": RATES[name]} if name in RATES else {}))
    for module in method.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(_in_its_precision)
    return Life(make_images(SIZES, size=16), folder, method, **how)


def digests_of(name: str, folder: Path) -> dict[str, str]:
    """Of the predicted classes after each task, the exemplars after each, and the metrics."""
    with float64():
        life = life_of(name, folder)
        predictions, memories = [], []
        for task in life.scenario.tasks:
            life.step(task)
            predictions.append(_predicted(life, task.index))
            memories.append(life.memory.records() if life.memory else [])
        classes = [_classes(one) for one in predictions]
        return {
            "predictions": _digest(classes),
            "memory": _digest(memories),
            "metrics": _digest(_rounded(summarise(predictions))),
        }


def _predicted(life: Life, task: int) -> Predictions:
    seen = life.scenario.tasks[task].seen
    shown = ImageSet.of(life.images, life.scenario.rows("test", seen))
    return predict(life.method, shown, 64, classes=life.images.table.classes[seen], fabric=life.fabric)


def _classes(predictions: Predictions) -> list[list[int]]:
    heads = HEADS if predictions.distances is not None else HEADS[:1]
    return [predictions.predicted(head).tolist() for head in heads]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = {name: digests_of(name, Path(place, name)) for name in ALL_METHODS}
    FILE.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
