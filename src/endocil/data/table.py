"""The table of images: their ids, labels, groups and sources, and the reader of their pixels."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image

from endocil.errors import DataError


class UnreadableImageError(DataError):
    """One image that cannot be read; the message is the reason, without the image's name."""


class Reader(Protocol):
    """Gives the pixels of an image by its id; called by several threads at once.

    A reader that computes its pixels in Python may set `in_processes = True`: then processes get copies of it.
    Methods that not every reader has: `whole(image_id)`, the image in its own size; `dimensions(image_id)`, its width
    and height; `path(image_id)`, its file."""

    def read(self, image_id: str, size: int) -> np.ndarray:
        """(size, size, 3) uint8 RGB; raises UnreadableImageError with a reason."""
        ...

    def fingerprint(self, ids: Sequence[str]) -> str:
        """A text that changes when the pixels of these images would."""
        ...


@runtime_checkable
class WholeReader(Reader, Protocol):
    """A reader that also gives an image in its own size."""

    def whole(self, image_id: str) -> Image.Image:
        """RGB and upright; raises UnreadableImageError with a reason."""
        ...


COLUMNS = {"groups": "", "sources": "", "parts": "", "frames": -1, "arrivals": -1}  # name -> value where unknown


@dataclass(frozen=True, eq=False)
class ImageTable:
    """One row per image. Ids are unique and stable: relative paths with forward slashes, or names."""

    ids: tuple[str, ...]
    labels: np.ndarray  # (N,) int64 into classes
    classes: tuple[str, ...]
    reader: Reader
    groups: tuple[str, ...] = ()  # images of one group belong together (a patient, a video); "" where unknown
    sources: tuple[str, ...] = ()  # the device or centre; "" where unknown
    notes: tuple[str, ...] = ()  # what the loader left out or noticed, in sentences
    parts: tuple[str, ...] = ()  # a split that comes with the data: part or number of the fold; "" where none
    frames: tuple[int, ...] = ()  # which frame of its group's video it is; -1 where unknown
    arrivals: tuple[int, ...] = ()  # the task in which it arrives, where the data says so; -1 where not

    def __post_init__(self) -> None:
        for name in ("ids", "classes", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, unknown in COLUMNS.items():
            object.__setattr__(self, name, tuple(getattr(self, name)) or (unknown,) * len(self.ids))
        labels = np.array(self.labels, dtype=np.int64)  # a copy: the caller may change the array
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)
        if labels.ndim != 1:
            raise DataError(f"image table: labels have shape {labels.shape}; expected one number per image")
        for name in ("labels", *COLUMNS):
            n = len(getattr(self, name))
            if n != len(self.ids):
                raise DataError(f"image table: {len(self.ids)} ids, but {n} {name}; give one per image")
        _refuse_repeated("image id", self.ids)
        _refuse_repeated("class", self.classes)
        wrong = np.flatnonzero((labels < 0) | (labels >= len(self.classes)))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"image table: image {self.ids[row]!r} has label {labels[row]}, "
                f"but the {len(self.classes)} classes are numbered 0 to {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.ids)

    def counts(self) -> np.ndarray:
        """How many images each class has."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)  # (C,)

    def take(self, rows: Sequence[int] | np.ndarray) -> "ImageTable":
        """These rows in this order (or a mask of rows); all classes stay, also those left without images."""
        index = np.asarray(rows) if len(rows) else np.zeros(0, np.int64)
        chosen = np.arange(len(self))[index]  # (M,) checks the range and converts a mask to rows
        return replace(
            self,
            labels=self.labels[chosen],
            **{name: tuple(getattr(self, name)[row] for row in chosen) for name in ("ids", *COLUMNS)},  # type: ignore[arg-type]
        )

    def keep_classes(self, names: Sequence[str]) -> "ImageTable":
        """Only the images of these classes, which are numbered in the order given here."""
        unknown = sorted(set(names) - set(self.classes))
        if unknown:
            raise DataError(f"unknown classes {', '.join(unknown)}; known: {', '.join(self.classes)}")
        _refuse_repeated("class", names)
        new_label = np.full(len(self.classes), -1, np.int64)  # (C,) -1: the class goes
        for label, name in enumerate(names):
            new_label[self.classes.index(name)] = label
        kept = self.take(new_label[self.labels] >= 0)
        return replace(kept, labels=new_label[kept.labels], classes=tuple(names))

    def digest(self, size: int) -> str:
        """A key for the pixels of this table at this size: changes with the ids, the files and the size."""
        text = "\0".join((str(size), self.reader.fingerprint(self.ids), *self.ids))
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _refuse_repeated(kind: str, names: Sequence[str]) -> None:
    for name, n in Counter(names).items():
        if n > 1:
            raise DataError(f"image table: {kind} {name!r} occurs more than once; each must be unique")


def spelling(name: str) -> str:
    """The same for classes called Polyps, polyp and POLYP-S."""
    return "".join(filter(str.isalnum, name.casefold())).removesuffix("s") or name
