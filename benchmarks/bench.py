"""All speed figures in one table; `make bench` runs this.

    python benchmarks/bench.py [--quick] [--peers-python ~/peers/bin/python] [--output bench.md]

Every figure is a ratio of two things that took turns in this one run, on one thread each: the median over the rounds,
and the range. More than 1 says that what is measured is faster than what it is measured against. `--quick` takes
minutes, the whole table about twenty on a machine that is not busy. Peers that are not installed are printed as such
(benchmarks/selection.py says how to install them).
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import decode
import first_task
import selection
import torch
import training

from endocil.data.cache import load_images

Row = training.Row
HEAD = "| what | ratio | remark |\n|---|---:|---|"
LONGER = ("network.width=32", "train.epochs=20")  # starting a process must not be what a sweep measures
QUICK = training.Size(rounds=6, batches=3)


def of_training(quick: bool) -> Iterator[Row]:
    """Images per second: more than 1 is faster."""
    for name in training.MEASURED:
        if not (quick and name == "compilation"):  # compiling takes minutes
            yield from training.rows(QUICK if quick else training.Size(), [name])


def of_selection(quick: bool, peers_python: str | None) -> Iterator[Row]:
    """Processor time of the others by ours: more than 1 says that ours is faster."""
    for row in selection.measured(quick, peers_python, rounds=3):
        against = "" if row.what == "ours" else " / ours"
        what = f"selection, {row.what}{against}, m = {row.m}, n = {row.n}"
        same = {True: "the same rows", False: "OTHER ROWS", None: ""}[row.same]
        remark = "; ".join(part for part in (same, row.note) if part)
        yield what, "-" if row.ratio is None else f"{row.ratio:.1f}", remark


def of_cache(images: int, rounds: int) -> Iterator[Row]:
    """Time of decoding by that of the cache: more than 1 says that the cache is faster."""
    names = [f"{number:05d}.jpg" for number in range(images)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        decode.make_files(folder, images)
        took = decode.compare(folder, names, rounds, workers=1)
        pillow, cache = ([used for _, used in took[name]] for name in ("pillow", "cache"))
        each = [theirs / ours for theirs, ours in zip(pillow, cache, strict=True)]
        yield training.figure("filling the cache, Pillow / ours, 256 px", (each, min(pillow) / min(cache)))
        stored = load_images(decode.table_of(folder, names), decode.SIZE, folder=folder / "kept", workers=1)

        def read() -> None:
            for chosen in torch.randperm(images).split(64):
                stored.gather(chosen)

        found = training.ratios(read, lambda: decode.with_pillow([folder / name for name in names], 1), rounds)
        yield training.figure("an epoch's pixels, decoding with Pillow / from the cache, 256 px", found)


def of_first_task(rounds: int) -> Iterator[Row]:
    """Processor time of a sweep whose runs train it each by that of one whose runs share it: more than 1 is faster."""
    for row in first_task.rows(rounds=rounds, overrides=LONGER):
        remark = f"{row['range']} in {row['rounds']} rounds; {row['sweep']}; same results bit for bit"
        yield "sweep, first task trained by every run / shared", str(row["ratio"]), remark


def rows(quick: bool, peers_python: str | None = None) -> Iterator[Row]:
    """The whole table, a row at a time."""
    yield from of_training(quick)
    yield from of_selection(quick, peers_python)
    yield from of_cache(*((200, 3) if quick else (2000, 5)))
    yield from of_first_task(1 if quick else 2)


def write(found: Iterator[Row], say: Callable[[str], None]) -> None:
    """As Markdown; a line is there as soon as it is measured."""
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    say(f"torch {torch.__version__}, {os.cpu_count()} processors{load}, {time.strftime('%Y-%m-%d')}\n")
    say(HEAD)
    for row in found:
        say(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes, nothing compiled")
    parser.add_argument("--peers-python", help="the Python of an environment that has the peers of selection")
    parser.add_argument("--output", type=Path, help="write the table to this file too")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with chosen.output.open("w") if chosen.output else nullcontext() as file:

        def say(line: str) -> None:
            print(line, flush=True)
            if file is not None:
                print(line, file=file, flush=True)

        write(rows(chosen.quick, chosen.peers_python), say)


if __name__ == "__main__":
    main()
