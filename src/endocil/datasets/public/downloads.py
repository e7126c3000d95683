"""Downloads of public data sets: their images, their official splits, and notes on what is missing or left out.

A download is the folder of a data set, one above or below it, or the archive as it was downloaded. Class folders are
found at any depth, by their names. An image's id is its class and its path below the class folder, so that it is the
same wherever the data set is and however it was unpacked.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from posixpath import basename

from endocil.data import lists
from endocil.data.decode import FileReader
from endocil.data.lists import PARTS, Row
from endocil.data.table import ImageTable
from endocil.datasets.public.facts import DataSet, check_classes
from endocil.errors import DataError
from endocil.io.archives import RECORD, Progress, extract
from endocil.io.files import expand
from endocil.io.walk import archive_stem, file_kind, is_archive, is_hidden, is_image, is_label_file, walk


@dataclass(frozen=True)
class File:
    """A file below the top folder, and its path on the disk."""

    parts: tuple[str, ...]  # folders from the top folder on, and the name; "" is a folder that cannot be listed
    path: str

    @property
    def name(self) -> str:
        return self.parts[-1]


@dataclass(frozen=True)
class ClassImage(Row):
    """An image of a class; its path is that on the disk."""

    folder: tuple[str, ...] = ()  # of the class, from the top folder on


@dataclass
class Download:
    """The files that the user has of a data set."""

    facts: DataSet
    root: str
    images: list[ClassImage] = field(default_factory=list)  # sorted by id
    unclassified: list[File] = field(default_factory=list)  # images in no class folder
    labels: list[File] = field(default_factory=list)  # csv, xlsx and json files
    archives: list[File] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # kinds of files that were left out
    notes: list[str] = field(default_factory=list)

    def add(self, files: Iterator[File]) -> None:
        for file in files:
            if any(is_hidden(part) for part in file.parts):
                self.others["hidden"] += 1
            elif is_image(file.name) or not file.name:
                self._add_image(file)
            elif is_label_file(file.name):
                self.labels.append(file)
            elif is_archive(file.name):
                self.archives.append(file)
            else:
                self.others[file_kind(file.name)] += 1

    def _add_image(self, file: File) -> None:
        """Its class is the innermost folder that has a class's name."""
        for depth in range(len(file.parts) - 2, -1, -1):
            label = self.facts.class_of(file.parts[depth])
            if label is not None:
                part = PARTS.get(file.parts[depth - 1].casefold(), "") if depth else ""
                image_id = "/".join((label, *file.parts[depth + 1 :]))
                folder = file.parts[: depth + 1]
                self.images.append(ClassImage(file.path, label, part=part, id=image_id, folder=folder))
                return
        self.unclassified.append(file)


def find_download(facts: DataSet, root: str, setting: str = "data.root", progress: Progress | None = None) -> Download:
    """All files at `root`; an archive is extracted into the cache first."""
    download = Download(facts, root)
    place = expand(root, setting)
    if place.is_file():
        _add_archive(download, place, (), progress)
    elif place.is_dir():
        _add_folder(download, place, progress)
    else:
        raise DataError(
            f"{setting} = '{root}' does not exist; give the folder or the archive of {facts.title} by "
            f"--set {setting}=PATH ('endocil data where {facts.name}' shows where to get it)"
        )
    download.images.sort(key=lambda image: image.id)
    first: dict[tuple[str, str], ClassImage] = {}
    for image in download.images:  # two copies of a class would be counted as one large one
        other = first.setdefault((image.label, image.part), image)
        if other.folder != image.folder:
            raise DataError(
                f"the class '{image.label}' occurs twice below {root}: {'/'.join(other.folder)} and "
                f"{'/'.join(image.folder)}; give the folder of one data set by data.root"
            )
    return download


def _add_archive(download: Download, archive: Path, parents: tuple[str, ...], progress: Progress | None) -> None:
    """Its files count as in a folder of its name: a tar.gz of one class may have no folder inside."""
    extracted = extract(archive, progress=progress)
    download.others.update(extracted.left_out)
    download.add(_walk(extracted.folder, (*parents, archive_stem(archive.name))))


def _add_folder(download: Download, place: Path, progress: Progress | None) -> None:
    facts = download.facts
    start = top = Path(os.path.abspath(place))
    while facts.is_inside(top.name):
        top = top.parent
    if top == start:
        download.add(_walk(place, ()))
    else:
        download.notes.append(f"{place} is a folder inside the data set; the whole of it was taken from {top}.")
        for folder in sorted(path for path in top.iterdir() if path.is_dir() and facts.is_inside(path.name)):
            download.add(_walk(folder, (folder.name,)))
    known = {image.label for image in download.images}
    for file in download.archives:
        label = facts.class_of(archive_stem(file.name))
        if label is None:  # the archive of the whole set counts where no class has a folder
            needed = not known and file.name.lower() in {archive.name.lower() for archive in facts.archives}
        else:
            needed = label not in known
        if needed:
            _add_archive(download, Path(file.path), file.parts[:-1], progress)


def _walk(top: Path, above: tuple[str, ...]) -> Iterator[File]:
    for place in walk(top):
        for name in ("",) if place.unreadable else place.files:
            if name != RECORD:
                yield File((*above, *place.parts, name), os.path.join(place.path, name))


def table_of(download: Download, rows: Iterable[Row], notes: Sequence[str] = ()) -> ImageTable:
    """The rows in the order of their ids, with notes on the numbers of images and on what was left out."""
    rows = sorted(rows, key=lambda row: row.id)
    facts = download.facts
    if not rows:
        names = listed(file.path for file in download.archives)
        archives = f"; there are archives: {names}" if names else ""
        raise DataError(
            f"no class folder of {facts.title} at {download.root}; expected folders such as "
            f"{listed(list(facts.classes)[:3])} at any depth{archives}; give the folder or the archive by data.root "
            f"('endocil data where {facts.name}' shows where to get it)"
        )
    for before, row in pairwise(rows):
        if before.id == row.id:
            raise DataError(
                f"{row.id} occurs twice below {download.root}: {before.path} and {row.path}; "
                f"remove one, or give the folder of one data set by data.root"
            )
    top = os.path.commonpath([os.path.dirname(row.path) for row in rows])
    table = lists.table_of([replace(row, path=os.path.relpath(row.path, top)) for row in rows], FileReader(Path(top)))
    every_note = (*download.notes, *_count_notes(facts, table), *notes, *_left_out(download, rows))
    return replace(table, notes=every_note)


def repeated_names(rows: Sequence[Row]) -> list[str]:
    """The file names that several images have."""
    names = Counter(basename(row.id) for row in rows)
    return [name for name, n in names.items() if n > 1]


def listed(names: Iterable[str], most: int = 5) -> str:
    """A few names for a sentence."""
    every = list(names)
    return ", ".join(every[:most]) + (", ..." if len(every) > most else "")


def _count_notes(facts: DataSet, table: ImageTable) -> list[str]:
    notes = []
    checks = check_classes(facts, table)
    for part, counts in facts.counts.items():
        here = [check for check in checks if check.part == part]
        of_part = f" of its {part} part" if part else ""
        if not any(check.found for check in here):
            notes.append(f"None of the {sum(counts.values()):,} images{of_part} is there.")
            continue
        less = [f"{check.label} {check.found} of {check.expected}" for check in here if check.found < check.expected]
        more = [f"{check.label} {check.found} for {check.expected}" for check in here if check.found > check.expected]
        if less:
            notes.append(f"{len(less)} classes{of_part} have fewer images than published: {listed(less)}.")
        if more:
            notes.append(f"{len(more)} classes{of_part} have more images than published: {listed(more)}.")
    return notes


def _left_out(download: Download, rows: Sequence[Row]) -> list[str]:
    notes = []
    if download.others:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(download.others.items()))
        notes.append(f"{download.others.total()} files that are no images were left out: {kinds}.")
    taken = {row.path for row in rows}
    unclassified = [file for file in download.unclassified if file.path not in taken]
    if unclassified:
        folders = sorted({"/".join(file.parts[:-1]) or "." for file in unclassified})
        notes.append(f"{len(unclassified):,} images in no class folder were left out: {listed(folders)}.")
    return notes


def with_video(row: Row, pattern: re.Pattern[str]) -> Row:
    """The video is the group; the name of an image tells it, and the number of the frame."""
    matched = pattern.fullmatch(basename(row.id))
    return replace(row, group=matched[1], frame=int(matched[2])) if matched else row
