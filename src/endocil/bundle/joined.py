"""The exemplars of a bundle and new images as one set to learn from; the memory map of the new ones is not copied."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from endocil.bundle.newcomers import Newcomers
from endocil.bundle.pictures import Origin, Pictures
from endocil.errors import EndocilError
from endocil.images.cache import Images
from endocil.images.table import ImageTable
from endocil.report.names import portable
from endocil.scenario import TRAIN

KEPT = "memory"  # the part of exemplars, beside train, validation and test


@dataclass(frozen=True, eq=False)
class Joined(Images):
    """`pixels` are those of the exemplars; rows from their number on are rows of `new`."""

    new: Tensor  # (m, size, size, 3) uint8, memory-mapped
    part: np.ndarray  # (N,) str: memory, or train, validation or test of the new images

    def gather(self, index: Tensor) -> Tensor:
        rows, n = self.rows[index], len(self.pixels)
        fresh = rows >= n
        found = torch.empty((len(rows), *self.new.shape[1:]), dtype=torch.uint8)
        found[~fresh] = self.pixels.index_select(0, rows[~fresh])
        found[fresh] = self.new.index_select(0, rows[fresh] - n)
        return found


def join(
    classes: Sequence[str], exemplars: Pictures, held_out: Pictures, newcomers: Newcomers
) -> tuple[Joined, tuple[str, ...]]:
    """All of them in one table, classes that are new behind the others in alphabetical order; and what to say.

    A new image with the id and the pixels of an exemplar is that exemplar, and is left out. So is one with the pixels
    of a held-out image, whatever its id: that one must never be trained on; and one to be held out with the pixels of
    an exemplar, which was."""
    images, table, origins = newcomers.images, newcomers.images.table, exemplars.origins
    ids = [str(portable(name)) for name in table.ids]
    held = _held(images, ids, held_out)
    aside = np.flatnonzero(newcomers.part != TRAIN).tolist()
    trained = _same_pixels(images, aside, exemplars)
    repeated = {*_repeated(images, ids, exemplars), *held, *trained}
    rows = np.array([row for row in range(len(table)) if row not in repeated], np.int64)
    names, labels = _labels(classes, origins, table.take(rows))
    taken = [origin.image for origin in (*origins, *held_out.origins)]
    distinct, renamed = _distinct([ids[row] for row in rows], taken)
    joined = ImageTable(
        ids=(*(origin.image for origin in origins), *distinct),
        labels=labels,
        classes=names,
        reader=table.reader,
        groups=(*(origin.group for origin in origins), *(table.groups[row] for row in rows)),
        sources=(*(origin.source for origin in origins), *(table.sources[row] for row in rows)),
    )
    n = len(exemplars)
    part = np.array([*[KEPT] * n, *newcomers.part[rows]], dtype="U10")
    places = torch.cat([torch.arange(n), n + images.rows[torch.from_numpy(rows)]])
    found = Joined(joined, exemplars.pixels, places, images.skipped, images.pixels, part)
    return found, _told(len(repeated), sum(held.values()), renamed)


def _labels(
    classes: Sequence[str], origins: Sequence[Origin], new: ImageTable
) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of all classes, and the label of every image."""
    mine = [new.classes[label] for label in new.labels.tolist()]
    names = (*classes, *sorted(set(mine) - set(classes)))
    label = {name: number for number, name in enumerate(names)}
    told = [label[name] for name in (*(origin.class_name for origin in origins), *mine)]
    return names, np.array(told, np.int64)


def _repeated(images: Images, ids: Sequence[str], pictures: Pictures) -> list[int]:
    """Rows of new images that are among the exemplars already."""
    table, place = images.table, {origin.image: row for row, origin in enumerate(pictures.origins)}
    found = []
    for row, name in enumerate(ids):
        if name not in place or not torch.equal(
            images.gather(torch.tensor([row]))[0], pictures.pixels[place[name]]
        ):
            continue
        _refuse_other_class(pictures.origins[place[name]], name, table.classes[table.labels[row]])
        found.append(row)
    return found


def _held(images: Images, ids: Sequence[str], held_out: Pictures) -> dict[int, bool]:
    """Rows of new images that are held out already, and whether by another name."""
    table, found = images.table, {}
    for row, origin in _same_pixels(images, range(len(table)), held_out).items():
        _refuse_other_class(origin, ids[row], table.classes[table.labels[row]])
        found[row] = origin.image != ids[row]
    return found


def _same_pixels(images: Images, rows: Sequence[int], pictures: Pictures) -> dict[int, Origin]:
    """Of some rows those with the pixels of a picture, and where it came from."""
    if not len(pictures):
        return {}
    origin_of = {
        _print(pixels): origin for pixels, origin in zip(pictures.pixels, pictures.origins, strict=True)
    }
    found = {}
    for part in torch.split(torch.tensor(rows, dtype=torch.int64), 256):
        for row, pixels in zip(part.tolist(), images.gather(part), strict=True):
            if (origin := origin_of.get(_print(pixels))) is not None:
                found[row] = origin
    return found


def _print(pixels: Tensor) -> bytes:
    return hashlib.sha256(pixels.numpy().tobytes()).digest()


def _refuse_other_class(origin: Origin, image: str, name: str) -> None:
    if origin.class_name != name:
        inside = "" if origin.image == image else f" {origin.image},"
        raise EndocilError(
            f"the image {image} is '{name}' among the new images, but the bundle holds it as{inside} "
            f"'{origin.class_name}'; take it off the new images, or out of the bundle with 'endocil forget --image'"
        )


def _distinct(ids: Sequence[str], taken: Sequence[str]) -> tuple[list[str], int]:
    """The ids, with a number behind those that stand for another image already; how many have one."""
    used, found = set(taken), []
    for name in ids:
        chosen, number = name, 1
        while chosen in used:
            number += 1
            chosen = f"{name} ({number})"
        used.add(chosen)
        found.append(chosen)
    return found, sum(new != old for new, old in zip(found, ids, strict=True))


def _told(repeated: int, elsewhere: int, renamed: int) -> tuple[str, ...]:
    said = []
    if repeated:
        other = f" ({elsewhere:,} as held-out images of another name)" if elsewhere else ""
        said.append(f"{repeated:,} new images are left out: the bundle holds them already{other}")
    if renamed:
        said.append(f"{renamed:,} new images have the name of another image; a number is put behind it")
    return tuple(said)
