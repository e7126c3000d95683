"""Downloads of public data sets: their images, and whether they are complete.

A download is the folder of a data set, one above or below it, or the archive as it was downloaded. Class folders are
found at any depth, by their names. An image's id is its class and its path below the class folder, so that it is the
same wherever the data set is and however it was unpacked.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from endocil.data.decode import file_of, read_dimensions
from endocil.data.lists import PARTS
from endocil.data.table import ImageTable, Reader, UnreadableImageError
from endocil.datasets.public.facts import Archive, DataSet
from endocil.errors import DataError
from endocil.io.archives import RECORD, Progress, extract
from endocil.io.files import expand
from endocil.io.walk import archive_stem, file_kind, is_archive, is_hidden, is_image, is_label_file, walk

_SMALL = 32  # pixels: JPEGs are then decoded at an eighth of their size, but from all their bytes


@dataclass(frozen=True)
class File:
    """A file below the top folder, and its path on the disk."""

    parts: tuple[str, ...]  # folders from the top folder on, and the name
    path: str

    @property
    def name(self) -> str:
        return self.parts[-1]


@dataclass(frozen=True)
class Entry:
    """An image of a class."""

    label: str
    part: str  # of a split that the folders show; "" where none
    below: tuple[str, ...]  # path below the class folder
    folder: tuple[str, ...]  # of the class
    path: str

    @property
    def id(self) -> str:
        return "/".join((self.label, *self.below))

    @property
    def name(self) -> str:
        return self.below[-1]


@dataclass
class Download:
    """The files that the user has of a data set."""

    facts: DataSet
    root: str
    entries: list[Entry] = field(default_factory=list)  # sorted by id
    unclassified: list[File] = field(default_factory=list)  # images in no class folder
    labels: list[File] = field(default_factory=list)  # csv, xlsx and json files
    archives: list[File] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # kinds of files that were left out
    notes: list[str] = field(default_factory=list)

    def add(self, files: Iterator[File]) -> None:
        for file in files:
            if any(is_hidden(part) for part in file.parts):
                self.others["hidden"] += 1
            elif is_image(file.name):
                entry = _entry(self.facts, file)
                self.entries.append(entry) if entry else self.unclassified.append(file)
            elif is_label_file(file.name):
                self.labels.append(file)
            elif is_archive(file.name):
                self.archives.append(file)
            else:
                self.others[file_kind(file.name)] += 1


def find_download(
    facts: DataSet, root: str, setting: str = "data.root", progress: Progress | None = None
) -> Download:
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
    download.entries.sort(key=lambda entry: entry.id)
    _refuse_two_copies(download)
    return download


def _add_archive(
    download: Download, archive: Path, parents: tuple[str, ...], progress: Progress | None
) -> None:
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
        download.notes.append(
            f"{place} is a folder inside the data set; the whole of it was taken from {top}."
        )
        for folder in sorted(path for path in top.iterdir() if path.is_dir() and facts.is_inside(path.name)):
            download.add(_walk(folder, (folder.name,)))
    known = {entry.label for entry in download.entries}
    for file in download.archives:
        if _is_needed(facts, file.name, known):
            _add_archive(download, Path(file.path), file.parts[:-1], progress)


def _is_needed(facts: DataSet, archive: str, known: set[str]) -> bool:
    """The archive of a class that has no folder, or of the whole set where no class has one."""
    label = facts.class_of(archive_stem(archive))
    if label is not None:
        return label not in known
    return not known and archive.lower() in {one.name.lower() for one in facts.archives}


def _walk(top: Path, above: tuple[str, ...]) -> Iterator[File]:
    for place in walk(top):
        for name in place.files:
            if name != RECORD:
                yield File((*above, *place.parts, name), os.path.join(place.path, name))


def _entry(facts: DataSet, file: File) -> Entry | None:
    """The class is the innermost folder that has a class's name."""
    for depth in range(len(file.parts) - 2, -1, -1):
        label = facts.class_of(file.parts[depth])
        if label is not None:
            part = PARTS.get(file.parts[depth - 1].casefold(), "") if depth else ""
            return Entry(label, part, file.parts[depth + 1 :], file.parts[: depth + 1], file.path)
    return None


def _refuse_two_copies(download: Download) -> None:
    """Two copies of a class would be counted as one large one."""
    place: dict[tuple[str, str], Entry] = {}
    for entry in download.entries:
        first = place.setdefault((entry.label, entry.part), entry)
        if first.folder != entry.folder:
            raise DataError(
                f"the class '{entry.label}' is there twice below {download.root}: {'/'.join(first.folder)} and "
                f"{'/'.join(entry.folder)}; give the folder of one data set by data.root"
            )


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
    known = _known_archive(facts, file.name)
    if known is None or known.size is None or not known.sha256:
        return f"{file.name}: {size:,} bytes; no size or checksum is known for it", False
    if size != known.size:
        return (
            f"{file.name}: {size:,} bytes, not the {known.size:,} of {known.name}: another packing, or not whole",
            False,  # the images decide
        )
    digest = _sha256(file, progress)
    if digest != known.sha256:
        return (
            f"{file.name}: the size fits, the sha256 does not ({digest}): it is damaged; download it again",
            True,
        )
    return f"{file.name}: size and sha256 are those of {known.name}", False


def check_classes(facts: DataSet, table: ImageTable, unreadable: Iterable[str]) -> list[ClassCheck]:
    """Every published class, by part where the data set has parts."""
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


def find_unreadable(
    table: ImageTable, progress: Progress | None = None, *, quick: bool = False
) -> dict[str, str]:
    """Id -> reason, of images that cannot be decoded; `quick` reads only their headers, and misses cut files."""
    bad = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        reasons = pool.map(lambda image: _why_unreadable(table.reader, image, quick), table.ids)
        for done, (image, reason) in enumerate(zip(table.ids, reasons, strict=True), start=1):
            if reason:
                bad[image] = reason
            if progress:
                progress(done, len(table))
    return bad


def _why_unreadable(reader: Reader, image: str, quick: bool) -> str:
    path = file_of(reader, image)
    try:
        read_dimensions(path) if quick and path else reader.read(image, _SMALL)
    except UnreadableImageError as error:
        return str(error)
    return ""


def _known_archive(facts: DataSet, name: str) -> Archive | None:
    """The archive of this name, or the only one: browsers rename what they download."""
    same = [archive for archive in facts.archives if archive.name.lower() == name.lower()]
    return (same or list(facts.archives))[0] if same or len(facts.archives) == 1 else None


def _sha256(file: Path, progress: Progress | None) -> str:
    digest, done, size = hashlib.sha256(), 0, file.stat().st_size
    with open(file, "rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(done, size)
    return digest.hexdigest()
