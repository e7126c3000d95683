"""What is known about a public data set: where to get it, its contents, the spellings of its classes, its terms.

The facts of the paper's four data sets and of CIFAR-100 are in facts.toml; a copy of a data set is compared with them.
Nothing here uses the network.
"""

import hashlib
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass  # which checks what facts.toml holds

from endocil.data.decode import file_of, read_dimensions
from endocil.data.lists import PARTS, Row, table_of
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.errors import SettingsError
from endocil.io.archives import Progress

_SMALL = 32  # pixels: JPEGs are then decoded at an eighth of their size, but from all their bytes


@dataclass(frozen=True)
class Archive:
    """A file to download."""

    name: str
    holds: str
    url: str = ""
    size: int | None = None  # bytes; None: not known
    sha256: str = ""  # empty: not known, or different on each download


@dataclass(frozen=True)
class DataSet:
    """One public data set."""

    name: str
    title: str
    variable: str  # the environment variable that the presets read
    pages: tuple[str, ...]
    archives: tuple[Archive, ...]
    place: str  # how to put it on the disk
    licence: str
    citation: str
    splits: str
    counts: Mapping[str, Mapping[str, int]]  # part -> class folder, spelled as published -> images
    presets: tuple[str, ...]
    remarks: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)  # other spelling -> class folder
    inside: tuple[str, ...] = ()  # folders between the top and the class folders
    files: tuple[str, ...] = ()  # to extract beside images and lists
    of_paper: bool = True

    @cached_property
    def classes(self) -> dict[str, int]:
        """Class folder -> images in all parts."""
        return dict(sum((Counter(part) for part in self.counts.values()), Counter()))

    @cached_property
    def _spellings(self) -> dict[str, str]:
        names = {_plain(name): name for name in self.classes}
        return names | {_plain(other): name for other, name in self.aliases.items()}

    def class_of(self, name: str) -> str | None:
        """The class of a folder or a label, whatever its case, spaces, dashes and apostrophes."""
        return self._spellings.get(_plain(name))

    def is_inside(self, folder: str) -> bool:
        """Is this the name of a folder inside the data set?"""
        known = {_plain(name) for name in (*self.inside, *PARTS)}
        return _plain(folder) in known or self.class_of(folder) is not None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


_TABLES = tomllib.loads(Path(__file__).with_name("facts.toml").read_text("utf-8"))


def _data_set(name: str, table: dict[str, Any]) -> DataSet:
    """`class_names` and `per_class` (part -> images) are short for counts that are the same for all classes."""
    names = table.pop("class_names", ())
    counts = {part: dict.fromkeys(names, n) for part, n in table.pop("per_class", {}).items()}
    return DataSet(name=name, **{"counts": counts, **table})


PUBLIC = {name: _data_set(name, table) for name, table in _TABLES.items()}


def find(name: str) -> DataSet:
    """A data set by its name."""
    if name not in PUBLIC:
        raise SettingsError(f"unknown public data set '{name}'; known: {', '.join(PUBLIC)}")
    return PUBLIC[name]


def describe(facts: DataSet) -> str:
    """Where to get a data set and where to put it, as text."""
    lines = [("page", page) for page in facts.pages]
    for archive in facts.archives:
        size = "size not known" if archive.size is None else f"{archive.size:,} bytes"
        checksum = f"sha256 {archive.sha256}" if archive.sha256 else "no checksum known"
        lines.append(("archive", f"{archive.name}: {archive.holds}"))
        lines += [("", text) for text in (archive.url, f"{size}, {checksum}") if text]
    lines += [
        ("licence", facts.licence),
        ("cite", facts.citation),
        ("place", facts.place),
        ("then", f"export {facts.variable}=PATH, and: endocil run {facts.presets[0]}"),
        ("check", f"endocil data check {facts.name} PATH"),
        ("presets", ", ".join(facts.presets)),
        ("splits", facts.splits),
        *(("remark", remark) for remark in facts.remarks),
        ("classes", "; ".join(f"{name} {n:,}" for name, n in sorted(facts.classes.items()))),
    ]
    title = f"{facts.title}: {sum(facts.classes.values()):,} images in {len(facts.classes)} classes"
    return "\n".join((title, *(f"  {name:<11}{text}" for name, text in lines)))


class _NoPixels:
    """For images whose files are missing."""

    def read(self, image_id: str, size: int) -> np.ndarray:
        raise UnreadableImageError("only the published number of images is known")

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "published counts"


def published_table(facts: DataSet) -> ImageTable:
    """A table with the published number of images of each class, without the images."""
    rows = [
        Row(f"{part}/{name}/{i}", name, part=part)
        for part, counts in facts.counts.items()
        for name, n in sorted(counts.items())
        for i in range(n)
    ]
    return table_of(rows, _NoPixels())


@dataclass(frozen=True)
class ClassCheck:
    """One class of one part: the images published, found, and found but unreadable."""

    label: str
    part: str
    expected: int
    found: int
    unreadable: int

    @property
    def verdict(self) -> str:
        problems = [f"{self.expected - self.found:,} missing"] if self.found < self.expected else []
        problems += [f"{self.found - self.expected:,} more"] if self.found > self.expected else []
        problems += [f"{self.unreadable:,} unreadable"] if self.unreadable else []
        return ", ".join(problems) or "complete"


def check_archive(facts: DataSet, file: Path, progress: Progress | None = None) -> tuple[str, bool]:
    """A sentence on the size and checksum of the archive, and whether it is certainly damaged."""
    size = file.stat().st_size
    same = [archive for archive in facts.archives if archive.name.lower() == file.name.lower()]
    candidates = same or facts.archives  # browsers rename what they download
    known = candidates[0] if same or len(candidates) == 1 else None
    if known is None or known.size is None or not known.sha256:
        return f"{file.name}: {size:,} bytes; no size or checksum is known for it", False
    if size != known.size:
        problem = f"{size:,} bytes, not the {known.size:,} of {known.name}: another packing, or incomplete"
        return f"{file.name}: {problem}", False  # the images decide
    digest, done = hashlib.sha256(), 0
    with open(file, "rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(done, size)
    if digest.hexdigest() != known.sha256:
        problem = f"the size fits, the sha256 does not ({digest.hexdigest()}): it is damaged; download it again"
        return f"{file.name}: {problem}", True
    return f"{file.name}: size and sha256 are those of {known.name}", False


def check_classes(facts: DataSet, table: ImageTable, unreadable: Iterable[str] = ()) -> list[ClassCheck]:
    """Every published class, by part where the data set was published in parts."""
    bad = set(unreadable)
    parts = table.parts if "" not in facts.counts else ("",) * len(table)
    rows = list(zip(table.ids, table.labels.tolist(), parts, strict=True))
    present = Counter((table.classes[label], part) for _, label, part in rows)
    broken = Counter((table.classes[label], part) for image, label, part in rows if image in bad)
    return [
        ClassCheck(label, part, expected, present[label, part], broken[label, part])
        for part, counts in facts.counts.items()
        for label, expected in sorted(counts.items())
    ]


def find_unreadable(table: ImageTable, progress: Progress | None = None, *, quick: bool = False) -> dict[str, str]:
    """Id -> reason, of images that cannot be decoded; `quick` reads only their headers, and misses truncated files."""

    def reason_of(image: str) -> str:
        path = file_of(table.reader, image)
        try:
            read_dimensions(path) if quick and path else table.reader.read(image, _SMALL)
        except UnreadableImageError as error:
            return str(error)
        return ""

    bad = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for done, (image, reason) in enumerate(zip(table.ids, pool.map(reason_of, table.ids), strict=True), start=1):
            if reason:
                bad[image] = reason
            if progress:
                progress(done, len(table))
    return bad
