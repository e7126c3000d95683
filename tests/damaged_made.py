"""Caches with unreadable images, and checkpoints made by hand: further kinds of tests/damaged.py.

Unreadable images are left out by their names, which stand in the cache: a changed one must never let a black image in
or leave a sound one out. A checkpoint made by hand has a right checksum and wrong types, sizes or values: a resume
learns from it or refuses it with a reason.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from damaged import Results, damage, pictures
from damaged_records import WRONG, another, places, replaced
from torch import Tensor

N = 40  # images of a cache: more than one chunk
STOPPED = (("icarl", "epoch"), ("icarl", "learned"), ("ewc", "epoch"), ("analytic", "learned"), ("bic", "epoch"))


class Colours:
    """Image "7" is the colour 7; images 3, 4 and 36 cannot be read, image `last` ends the build."""

    def __init__(self, last: str = "") -> None:
        self.last = last

    def read(self, image_id: str, size: int) -> np.ndarray:
        from endocil.data.table import UnreadableImageError

        if image_id == self.last:
            raise KeyboardInterrupt
        if image_id in ("3", "4", "36"):
            raise UnreadableImageError(f"{image_id} is damaged")
        return np.full((size, size, 3), int(image_id), np.uint8)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "colours"


def try_skipped(start: int, stop: int) -> dict[str, Any]:
    """Finished and unfinished caches whose images are partly unreadable: the same images are loaded and left out."""
    from endocil.data.cache import load_images
    from endocil.data.table import ImageTable
    from endocil.errors import EndocilError

    def table_of(reader: Colours) -> ImageTable:
        return ImageTable(tuple(map(str, range(N))), np.zeros(N), ("a",), reader, ("",) * N, ("",) * N)

    results = Results()
    with tempfile.TemporaryDirectory() as place:
        finished, unfinished = Path(place) / "finished", Path(place) / "unfinished"
        expected = load_images(table_of(Colours()), 8, folder=finished, workers=1, skip_unreadable=True)
        with suppress(KeyboardInterrupt):
            load_images(table_of(Colours("38")), 8, folder=unfinished, workers=1, skip_unreadable=True)
        sound = [{path: path.read_bytes() for path in folder.iterdir()} for folder in (finished, unfinished)]

        def read(folder: Path) -> None:
            images = load_images(table_of(Colours()), 8, folder=folder, workers=1, skip_unreadable=True)
            same = images.skipped == expected.skipped and images.table.ids == expected.table.ids
            if not same or not torch.equal(images.gather(torch.arange(len(images.rows))), colours):
                raise AssertionError(f"other images were loaded; left out are {images.skipped}")

        colours = expected.gather(torch.arange(len(expected.rows)))
        for number in range(start, stop):
            chance = random.Random(f"skipped {number}")
            folder, files = (finished, unfinished)[number % 2], sound[number % 2]
            text = [path for path in files if path.suffix in (".json", ".jsonl")]
            path = chance.choice(text if number % 8 else sorted(files))
            data = bytearray(files[path])
            if number % 3 == 0 and data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            elif path in text:
                data = bytearray(another(bytes(data), path.suffix, chance))
            elif data:
                data = bytearray(damage(bytes(data), chance, list(pictures().values())))
            path.unlink()
            path.write_bytes(data)  # a new file: the old one may be mapped
            results.of(number, path.suffix, partial(read, folder), EndocilError)
            for other in folder.iterdir():
                other.unlink()
            for other, content in files.items():
                other.write_bytes(content)
    return results.summary()


def _other(tensor: Tensor, chance: random.Random) -> Tensor:
    """A tensor of another type, size or value."""
    changes: list[Callable[[], Tensor]] = [
        lambda: tensor.to(chance.choice((torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool))),
        lambda: tensor.flatten(),
        lambda: tensor[None],
        lambda: tensor.new_empty(0),
        lambda: tensor.new_zeros(()),
        lambda: tensor[: len(tensor) // 2] if tensor.dim() else tensor,
        lambda: torch.cat([tensor, tensor]) if tensor.dim() else tensor,
        lambda: tensor.transpose(0, -1) if tensor.dim() else tensor,
        lambda: torch.full_like(tensor, 255 if tensor.dtype == torch.uint8 else chance.choice((0, 1, -1))),
        lambda: (
            torch.full_like(tensor, chance.choice((float("nan"), float("inf"), -1e30)))
            if tensor.is_floating_point()
            else tensor.clone().fill_(0)
        ),
        lambda: tensor.flip(0) if tensor.dim() else tensor,
    ]
    return chance.choice(changes)().contiguous().clone()


def by_hand(header: dict[str, Any], tensors: dict[str, Tensor], chance: random.Random) -> None:
    """Another value in the header, or another, a missing, a further or a renamed tensor."""
    for _ in range(chance.choice((1, 1, 1, 3))):
        kind, names = chance.randrange(6), sorted(tensors)
        if kind < 3 or not names:
            found = [place for place in places(header) if place]
            changed = replaced(header, chance.choice(found), chance.choice(WRONG))
            header.clear()
            header.update(changed)
        elif kind == 3:
            name = chance.choice(names)
            tensors[name] = _other(tensors[name], chance)
        elif kind == 4:
            del tensors[chance.choice(names)]
        else:
            name = chance.choice(names)
            part = name.partition("/")[0]
            tensors[chance.choice((f"{part}/x", "x", f"{part}/", f"{name}/{name}"))] = tensors.pop(name)


def try_made(start: int, stop: int) -> dict[str, Any]:
    """Runs that were stopped within an epoch, between two phases or between two tasks, of several methods."""
    from tiny_runs import tiny

    from endocil.errors import EndocilError
    from endocil.learning.checkpoint import FILE, read_tensors, write_tensors
    from endocil.runs.run import resume, run

    class StoppedError(Exception):
        pass

    results = Results()
    with tempfile.TemporaryDirectory() as place:
        os.environ["ENDOCIL_CACHE"] = str(Path(place) / "cache")
        folder, stopped = Path(place) / "run", list[Path]()
        for method, event in STOPPED:

            def stop_there(record: dict[str, Any], event: str = event) -> None:
                if record["event"] == event and record["task"] == 1:
                    raise StoppedError

            stopped.append(Path(place) / f"{method}-{event}")
            with suppress(StoppedError):
                run(tiny(method, run={"checkpoint_seconds": 0.0}), stopped[-1], show=stop_there)
        outside = {path.name for path in Path(place).iterdir()} | {"run"}

        def go_on() -> None:
            def enough(record: dict[str, Any]) -> None:
                if record["event"] in ("epoch", "learned"):
                    raise StoppedError

            with suppress(StoppedError):
                resume(folder, show=enough)

        for number in range(start, stop):
            chance = random.Random(f"made {number}")
            shutil.copytree(stopped[number % len(stopped)], folder)
            path = chance.choice([folder / FILE, folder / FILE, *folder.glob("exemplars-*.safetensors")])
            header, tensors = read_tensors(path, "")
            before = json.dumps(header, default=str)
            by_hand(header, tensors, chance)
            with suppress(TypeError):  # a header that JSON cannot hold
                write_tensors(path, header, tensors)
            kind = f"{stopped[number % len(stopped)].name} {path.name.partition('-')[0]}"
            results.of(
                number, f"{kind}, header changed {before != json.dumps(header, default=str)}", go_on, EndocilError
            )
            shutil.rmtree(folder)
            if not {one.name for one in Path(place).iterdir()} <= outside:
                results.failures.append(f"{number}: something was written outside")
    return results.summary()


MADE: dict[str, Callable[[int, int], dict[str, Any]]] = {"skipped": try_skipped, "made": try_made}
