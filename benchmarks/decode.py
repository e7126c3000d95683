"""How fast the cache is filled beside a plain Pillow loop, and what reading it costs an epoch of training.

    python benchmarks/decode.py --images 10000

Makes JPEGs of 720 x 576 pixels, quality 90, from synthetic endoscopy with noise. They are read in rounds; in each
round the same files go through the cache at 256 px (decoded, written and flushed to the disk), through the
decoder alone, and through a pool of as many threads with `Image.open(path).convert("RGB").resize((256, 256))`,
in turns, so that a busy machine disturbs all alike; a round before them does not count. Then ResNet-18 is
trained for an epoch at 64 px, and the reading of its pixels from the cache is timed beside it. Prints Markdown
tables.
"""

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from endocil.data.augment import Augmentation
from endocil.data.batches import ImageSet, cut, training_batches
from endocil.data.cache import load_images
from endocil.data.decode import FileReader
from endocil.data.readers import read_in_chunks
from endocil.data.table import ImageTable
from endocil.datasets.synthetic import CLASSES, render
from endocil.networks import build_backbone

WIDTH, HEIGHT, SIZE = 720, 576, 256


def make_files(folder: Path, n: int) -> int:
    """n different files; the number of their bytes."""
    random = np.random.default_rng(0)
    scenes = [render(0, name, 4, WIDTH)[: HEIGHT + 64].astype(np.int16) for name in CLASSES]
    noise = random.normal(0, 3, (2 * HEIGHT, 2 * WIDTH, 1)).astype(np.int16)
    total = 0
    for number in range(n):
        down, across = int(random.integers(HEIGHT)), int(random.integers(WIDTH))
        start = int(random.integers(64))
        scene = scenes[number % len(scenes)][start : start + HEIGHT, :: 1 - 2 * (number // len(scenes) % 2)]
        pixels = (scene + noise[down : down + HEIGHT, across : across + WIDTH]).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        (folder / f"{number:05d}.jpg").write_bytes(buffer.getvalue())
        total += len(buffer.getvalue())
    return total


def table_of(folder: Path, names: list[str]) -> ImageTable:
    n = len(names)
    return ImageTable(tuple(names), np.arange(n) % 10, tuple("abcdefghij"), FileReader(folder), ("",) * n, ("",) * n)


def with_pillow(paths: list[Path], workers: int) -> None:
    def read(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(read, paths):
            pass


def with_the_decoder(table: ImageTable, workers: int) -> None:
    for _ in read_in_chunks(table.reader, table.ids, SIZE, workers):
        pass


def seconds(job: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of the processors."""
    clock, processors = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - clock, time.process_time() - processors


def compare(folder: Path, names: list[str], rounds: int, workers: int) -> dict[str, list[tuple[float, float]]]:
    took: dict[str, list[tuple[float, float]]] = {"cache": [], "decoder": [], "pillow": []}
    for number in (0, *range(rounds)):  # the first time does not count: memory and threads are made ready
        chosen = names[number::rounds]
        table, paths = table_of(folder, chosen), [folder / name for name in chosen]
        for path in paths:
            path.read_bytes()  # none of the three waits for the disk
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            jobs: list[tuple[str, Callable[[], object]]] = [
                ("cache", partial(load_images, table, SIZE, folder=Path(cache), workers=workers)),
                ("decoder", partial(with_the_decoder, table, workers)),
                ("pillow", partial(with_pillow, paths, workers)),
            ]
            turn = number % len(jobs)
            for name, job in jobs[turn:] + jobs[:turn]:
                took[name].append(seconds(job))
    return {name: times[1:] for name, times in took.items()}


def epoch_and_reading(folder: Path, names: list[str], batch_size: int) -> tuple[float, float]:
    """Seconds of an epoch of ResNet-18 at 64 px, and of copying its pixels out of the cache."""
    images = load_images(table_of(folder, names), 64, folder=folder / "cache-64")
    data = ImageSet.of(images, torch.arange(len(names)))
    backbone, _ = build_backbone("resnet18", seed=0, weights=None, freeze=[], options={})
    network = torch.nn.Sequential(backbone, torch.nn.Linear(512, 10))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def epoch() -> None:
        for batch in training_batches(data, batch_size, Augmentation(), 0, (0,), torch.device("cpu")):
            optimiser.zero_grad()
            functional.cross_entropy(network(batch.images), batch.labels).backward()
            optimiser.step()

    def reading() -> None:
        for rows in cut(torch.randperm(len(data)), batch_size):
            images.gather(rows)

    first, trained, second = (seconds(job)[0] for job in (reading, epoch, reading))
    return trained, (first + second) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--train", type=int, default=1024, help="images of the epoch that is trained")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kilobytes = make_files(folder, args.images) / args.images / 1000
        names = [f"{number:05d}.jpg" for number in range(args.images)]
        print(f"{args.images} files of {kilobytes:.0f} kB, {args.workers} threads, {args.rounds} rounds\n")
        took = compare(folder, names, args.rounds, args.workers)
        print("| what | images/s | times Pillow | in a round | times Pillow, processor time |")
        print("|---|---|---|---|---|")
        theirs = np.array(took["pillow"])  # (rounds, 2)
        for what, times in took.items():
            ours = np.array(times)
            ratios, (by_clock, by_processors) = theirs[:, 0] / ours[:, 0], theirs.sum(0) / ours.sum(0)
            spread = f"{ratios.min():.2f} to {ratios.max():.2f}"
            rate = args.images / ours[:, 0].sum()
            print(f"| {what} | {rate:.0f} | {by_clock:.2f} | {spread} | {by_processors:.2f} |", flush=True)
        trained, read = epoch_and_reading(folder, names[: args.train], 64)
        n = min(args.train, args.images)
        print(f"\nResNet-18 at 64 px, {n} images, {torch.get_num_threads()} threads: {trained:.2f} s to train an")
        print(f"epoch, {read:.4f} s to read it from the cache: {100 * read / trained:.2f} %")


if __name__ == "__main__":
    main()
