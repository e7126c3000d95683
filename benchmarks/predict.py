"""How fast is a model's prediction beside a bare torch loop: the network alone, and from files to probabilities.

    OMP_NUM_THREADS=1 python benchmarks/predict.py [--images 128] [--rounds 6] [--width 64] [--size 256]

ResNet-18 with 14 classes and class means, in batches of 64. "Network": the pixels lie in memory for both; the bare loop
normalises a batch, runs the network in channels-last layout and takes the softmax. "Files": JPEGs of 720 x 576 pixels;
the bare loop decodes them with Pillow in as many threads, ahead of the network. Both take turns in one process; the
first round does not count. The figure is the median over the rounds of the bare loop's time over the model's, with its
range: 1 is as fast, below 1 slower. Prints a Markdown table.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from decode import make_files
from PIL import Image
from torch import Tensor

import endocil
from endocil.data.augment import IMAGENET
from endocil.data.decode import RULES
from endocil.data.inputs import Inputs
from endocil.data.scenario import Task
from endocil.learning.build import build_learning
from endocil.learning.checkpoint import grow
from endocil.learning.features import CLASS_MEANS
from endocil.learning.memory import no_images
from endocil.model.file import ModelFile
from endocil.model.manifest import LearnedClass, Manifest, Preprocessing, Step
from endocil.model.model import Model
from endocil.settings.settings import load_settings

CLASSES = 14
BATCH = 64


class InMemory:
    """Pixels that are there already."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def read(self, image_id: str, size: int) -> np.ndarray:
        picture: np.ndarray = self.pixels[int(image_id)]
        return picture

    def fingerprint(self, ids: Sequence[str]) -> str:
        return ""


def untrained(width: int, size: int) -> Model:
    """A model of first values: they take as long as trained ones."""
    settings = {"data": {"name": "synthetic", "size": size}, "network": {"width": width}, "method": {"name": "icarl"}}
    method, _ = build_learning(load_settings(settings))
    grow(method, Task(0, 0, CLASSES), torch.device("cpu"))
    means = torch.nn.functional.normalize(torch.rand(CLASSES, 8 * width), dim=1)
    manifest = Manifest(
        name="untrained",
        settings=settings,
        classes=tuple(LearnedClass(name=str(i), task=0, images=1) for i in range(CLASSES)),
        increments=(CLASSES,),
        preprocessing=Preprocessing(
            size=size, crop_frame=False, mean=IMAGENET.mean, deviation=IMAGENET.std, rules=RULES
        ),
        calibration=None,
        metrics=None,
        environment={},
        history=(Step(made="now", by="run", endocil=endocil.__version__, parent=None),),
        learns=False,
    )
    content = ModelFile(manifest, method.state_dict(), {CLASS_MEANS: means}, no_images(size), no_images(size))
    return Model.from_file(content)


@torch.no_grad()
def bare(network: torch.nn.Module, batches: Iterator[Tensor]) -> Tensor:
    """What one would write without a toolbox."""
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET.mean, IMAGENET.std))
    found = []
    for batch in batches:
        images = batch.permute(0, 3, 1, 2).float().div_(255).sub_(mean).div_(deviation)
        found.append(torch.softmax(network(images), dim=1))
    return torch.cat(found)


def decoded(paths: Sequence[Path], size: int) -> Iterator[Tensor]:
    def read(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting = pool.map(read, paths)
        for start in range(0, len(paths), BATCH):
            n = min(BATCH, len(paths) - start)
            yield torch.from_numpy(np.stack([next(waiting) for _ in range(n)]))


def ratios(ours: Callable[[], object], other: Callable[[], object], rounds: int) -> list[float]:
    """The other's seconds over ours, round by round; the first does not count."""
    found = []
    for turn in range(rounds + 1):
        took = []
        for work in (ours, other) if turn % 2 else (other, ours):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        mine, theirs = took if turn % 2 else took[::-1]
        found.append(theirs / mine)
    return found[1:]


def rows(images: int, rounds: int, width: int, size: int) -> list[tuple[str, list[float]]]:
    model = untrained(width, size)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (images, size, size, 3), dtype=np.uint8)
    ids = tuple(map(str, range(images)))
    held = Inputs(ids, ids, InMemory(pixels))
    network = model.method
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), images)
        paths = sorted(Path(folder).iterdir())
        said = torch.from_numpy(model.predict(held, batch=BATCH).probabilities)
        torch.testing.assert_close(
            said, bare(network, iter(torch.from_numpy(pixels).split(BATCH))), rtol=1e-3, atol=1e-3
        )
        return [
            (
                "network",
                ratios(
                    lambda: model.predict(held, batch=BATCH),
                    lambda: bare(network, iter(torch.from_numpy(pixels).split(BATCH))),
                    rounds,
                ),
            ),
            (
                "files",
                ratios(lambda: model.predict(folder, batch=BATCH), lambda: bare(network, decoded(paths, size)), rounds),
            ),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--size", type=int, default=256)
    args = parser.parse_args()
    print("| what | bare time / model's time | range |")
    print("|---|---|---|")
    for what, found in rows(args.images, args.rounds, args.width, args.size):
        print(f"| {what} | {statistics.median(found):.3f} | {min(found):.3f} to {max(found):.3f} |", flush=True)


if __name__ == "__main__":
    main()
