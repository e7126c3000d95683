"""Tables of public data sets, and what is to be said about them: what is missing, repeated, or left out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from posixpath import basename

import numpy as np

from endocil.datasets.downloads import Download, Entry, PlacedFiles
from endocil.datasets.facts import DataSet
from endocil.errors import EndocilError
from endocil.images.table import ImageTable


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    id: str
    label: str
    path: str
    part: str = ""
    group: str = ""
    frame: int = -1
    source: str = ""

    @classmethod
    def of(cls, entry: Entry) -> "Row":
        return cls(entry.id, entry.label, entry.path, entry.part)

    @property
    def name(self) -> str:
        return basename(self.id)


@dataclass(frozen=True)
class Shortfall:
    """Images of a class, and of a part where the data set has parts, against what was published."""

    label: str
    part: str
    expected: int
    found: int


def table_of(found: Download, rows: Iterable[Row], notes: Sequence[str] = ()) -> ImageTable:
    """The rows in the order of their ids, with all that is to be said about them."""
    rows = sorted(rows, key=lambda row: row.id)
    if not rows:
        raise _no_class(found)
    _refuse_repeated(found, rows)
    classes = tuple(sorted({row.label for row in rows}))
    number = {label: i for i, label in enumerate(classes)}
    return ImageTable(
        ids=tuple(row.id for row in rows),
        labels=np.array([number[row.label] for row in rows], np.int64),
        classes=classes,
        reader=PlacedFiles.of({row.id: row.path for row in rows}),
        groups=tuple(row.group for row in rows),
        sources=tuple(row.source for row in rows),
        notes=(*found.notes, *_count_notes(found.facts, rows), *notes, *_left_out(found, rows)),
        parts=tuple(row.part for row in rows),
        frames=tuple(row.frame for row in rows),
    )


def shortfalls(facts: DataSet, found: Counter[tuple[str, str]]) -> list[Shortfall]:
    """What differs from the published counts; `found` counts (class, part)."""
    whole = "" in facts.counts  # published as one part: how the user has split it does not matter
    if whole:
        joined: Counter[tuple[str, str]] = Counter()
        for (label, _), n in found.items():
            joined[label, ""] += n
        found = joined
    listed = [
        Shortfall(label, part, expected, found[label, part])
        for part, counts in facts.counts.items()
        for label, expected in counts.items()
    ]
    return [entry for entry in listed if entry.expected != entry.found]


def repeated_names(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """File name -> its images, where several have it."""
    by_name: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
    return {name: same for name, same in by_name.items() if len(same) > 1}


def listed(names: Iterable[str], most: int = 5) -> str:
    """A few names for a sentence."""
    every = list(names)
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


def _refuse_repeated(found: Download, rows: Sequence[Row]) -> None:
    for before, row in pairwise(rows):
        if before.id == row.id:
            raise EndocilError(
                f"{row.id} is there twice below {found.root}: {before.path} and {row.path}; "
                f"remove one, or give the folder of one data set by data.root"
            )


def _no_class(found: Download) -> EndocilError:
    facts = found.facts
    lies = f"; there are archives: {listed(file.path for file in found.archives)}" if found.archives else ""
    return EndocilError(
        f"no class folder of {facts.title} at {found.root}; expected folders such as "
        f"{listed(list(facts.classes)[:3])} at any depth{lies}; give the folder or the archive by data.root "
        f"('endocil data where {facts.name}' tells where to get it)"
    )


def _count_notes(facts: DataSet, rows: Sequence[Row]) -> list[str]:
    differ = shortfalls(facts, Counter((row.label, row.part) for row in rows))
    notes = []
    for part, counts in facts.counts.items():
        here = [entry for entry in differ if entry.part == part]
        what = f" of its {part} part" if part else ""
        if len(here) == len(counts) and not any(entry.found for entry in here):
            notes.append(f"None of the {sum(counts.values()):,} images{what} is there.")
            continue
        less = [f"{e.label} {e.found} of {e.expected}" for e in here if e.found < e.expected]
        more = [f"{e.label} {e.found} for {e.expected}" for e in here if e.found > e.expected]
        if less:
            notes.append(f"{len(less)} classes{what} have fewer images than published: {listed(less)}.")
        if more:
            notes.append(f"{len(more)} classes{what} have more images than published: {listed(more)}.")
    return notes


def _left_out(found: Download, rows: Sequence[Row]) -> list[str]:
    notes = []
    if found.others:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(found.others.items()))
        notes.append(f"{found.others.total()} files that are no images were left out: {kinds}.")
    taken = {row.path for row in rows}
    homeless = [file for file in found.homeless if file.path not in taken]
    if homeless:
        folders = sorted({"/".join(file.parts[:-1]) or "." for file in homeless})
        notes.append(f"{len(homeless):,} images in no class folder were left out: {listed(folders)}.")
    return notes
