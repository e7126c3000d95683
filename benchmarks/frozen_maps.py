"""How much faster is fine-tuning where the maps of frozen stages are computed once for each image?

    export GASTROVISION=/where/the/images/are OMP_NUM_THREADS=1
    taskset -c 1 python benchmarks/frozen_maps.py [--last 3 5] [--epochs 2] [--set KEY=VALUE ...]

iCaRL on EfficientNet-Lite0 with ImageNet's weights, frozen up to a stage, without brightness. Each run is made three
times in a row in one process: on the images, on the maps, and on the maps once they are stored. The processor's time
counts, as the machine may be busy: of the training loop, of the maps within it, and of the whole run.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from endocil.learning import frozen_maps, training
from endocil.learning.build import complete
from endocil.learning.learner import Learner
from endocil.runs.parts import images_and_scenario
from endocil.runs.run import run
from endocil.settings.settings import load_settings

WAYS = ("images", "maps", "stored maps")


@contextmanager
def timed(owner: Any, name: str, spent: dict[str, float]) -> Iterator[None]:
    original: Callable[..., Any] = getattr(owner, name)

    def measured(*given: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return original(*given, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.process_time() - began

    with patch.object(owner, name, measured):
        yield


def one_run(last: int, way: str, epochs: int, changes: list[str], folder: Path) -> dict[str, Any]:
    frozen = json.dumps(["stem", *(f"stage{i}" for i in range(1, last + 1))])
    fixed = ["method.name=icarl", "network.backbone=efficientnet-lite0", "network.weights=imagenet", "data.size=96"]
    fixed += [f"network.freeze={frozen}", "train.brightness=0", f"train.epochs={epochs}", "train.learning_rate=0.01"]
    settings = load_settings("gastrovision", [*fixed, "run.threads=1", *changes])
    spent: dict[str, float] = {}
    with ExitStack() as stack:
        stack.enter_context(patch.dict("os.environ", {"ENDOCIL_CACHE": str(folder / "cache")}))
        images_and_scenario(complete(settings))  # decoded before the clock starts
        stack.enter_context(timed(Learner, "_train", spent))
        stack.enter_context(timed(training, "inputs_of", spent))
        if way == "images":
            stack.enter_context(patch.object(frozen_maps, "LIMIT", 0))
        began = time.process_time()
        result = run(settings, folder / f"{last} {way}")
        whole = time.process_time() - began
    return {
        "frozen to": f"stage{last}",
        "way": way,
        "training": round(spent["_train"], 1),
        "of which maps": round(spent["inputs_of"], 1),
        "whole run": round(whole, 1),
        "accuracy after each task": result.metrics["softmax"]["acc"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--last", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--set", nargs="+", default=[], dest="changes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for last in given.last:
            for way in WAYS:
                print(json.dumps(one_run(last, way, given.epochs, given.changes, Path(place))), flush=True)


if __name__ == "__main__":
    main()
