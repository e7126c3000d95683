"""Public data sets as the user has them: the folder, one above or below it, or the archive as it was downloaded.

Class folders are found wherever they lie, by their names. An image's id is its class and its path below the
class folder, so that it is the same wherever the data set lies and however it was unpacked.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from endocil.data.decode import FileReader
from endocil.data.lists import PARTS
from endocil.data.table import ImageTable, UnreadableImageError
from endocil.datasets.public.facts import Archive, DataSet
from endocil.errors import EndocilError
from endocil.io import archives as members
from endocil.io.archives import RECORD, Progress, extract
from endocil.io.files import expand
from endocil.io.walk import walk


@dataclass(frozen=True)
class File:
    """A file below the top folder, and where it really lies."""

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
    """What the user has of a data set."""

    facts: DataSet
    root: str
    entries: list[Entry] = field(default_factory=list)  # sorted by id
    homeless: list[File] = field(default_factory=list)  # images in no class folder
    labels: list[File] = field(default_factory=list)  # csv, xlsx and json files
    archives: list[File] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # kinds of files that were left out
    notes: list[str] = field(default_factory=list)

    def add(self, files: Iterator[File]) -> None:
        for file in files:
            if any(members.is_hidden(part) for part in file.parts):
                self.others["hidden"] += 1
            elif members.is_image(file.name):
                entry = _entry(self.facts, file)
                self.entries.append(entry) if entry else self.homeless.append(file)
            elif members.is_labels(file.name):
                self.labels.append(file)
            elif members.is_archive(file.name):
                self.archives.append(file)
            else:
                self.others[members.ending(file.name)] += 1


@dataclass(frozen=True)
class PlacedFiles:
    """Reads images that lie anywhere below a folder."""

    files: FileReader
    paths: Mapping[str, str]  # id -> path below the folder

    @classmethod
    def of(cls, paths: Mapping[str, str]) -> "PlacedFiles":
        top = os.path.commonpath([os.path.dirname(path) for path in paths.values()])
        return cls(FileReader(Path(top)), {key: os.path.relpath(path, top) for key, path in paths.items()})

    def read(self, image_id: str, size: int) -> np.ndarray:
        return self.files.read(self.paths[image_id], size)

    def whole(self, image_id: str) -> Image.Image:
        return self.files.whole(self.paths[image_id])

    def dimensions(self, image_id: str) -> tuple[int, int]:
        return self.files.dimensions(self.paths[image_id])

    def fingerprint(self, ids: Sequence[str]) -> str:
        return self.files.fingerprint([self.paths[image_id] for image_id in ids])

    def path(self, image_id: str) -> Path:
        return self.files.root / self.paths[image_id]


def find_download(
    facts: DataSet, root: str, setting: str = "data.root", progress: Progress | None = None
) -> Download:
    """All that lies at `root`; an archive is extracted into the cache first."""
    found = Download(facts, root)
    place = expand(root, setting)
    if place.is_file():
        _add_archive(found, place, (), progress)
    elif place.is_dir():
        _add_folder(found, place, progress)
    else:
        raise EndocilError(
            f"{setting} = '{root}' does not exist; give the folder or the archive of {facts.title} by "
            f"--set {setting}=PATH ('endocil data where {facts.name}' tells where to get it)"
        )
    found.entries.sort(key=lambda entry: entry.id)
    _refuse_two_places(found)
    return found


def _add_archive(found: Download, archive: Path, parents: tuple[str, ...], progress: Progress | None) -> None:
    """Its files stand in a folder of its name: a tar.gz of one class may have no folder inside."""
    extracted = extract(archive, progress=progress)
    found.others.update(extracted.left_out)
    found.add(_walk(extracted.folder, (*parents, members.stem(archive.name))))


def _add_folder(found: Download, place: Path, progress: Progress | None) -> None:
    facts = found.facts
    given = top = Path(os.path.abspath(place))
    while facts.is_inside(top.name):
        top = top.parent
    if top == given:
        found.add(_walk(place, ()))
    else:
        found.notes.append(f"{place} is a folder inside the data set; the whole of it was taken from {top}.")
        for folder in sorted(path for path in top.iterdir() if path.is_dir() and facts.is_inside(path.name)):
            found.add(_walk(folder, (folder.name,)))
    seen = {entry.label for entry in found.entries}
    for file in found.archives:
        if _is_needed(facts, file.name, seen):
            _add_archive(found, Path(file.path), file.parts[:-1], progress)


def _is_needed(facts: DataSet, archive: str, seen: set[str]) -> bool:
    """The archive of a class that has no folder, or of the whole set where no class has one."""
    label = facts.class_of(members.stem(archive))
    if label is not None:
        return label not in seen
    return not seen and archive.lower() in {known.name.lower() for known in facts.archives}


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


def _refuse_two_places(found: Download) -> None:
    """Two copies of a class would be counted as one large one."""
    place: dict[tuple[str, str], Entry] = {}
    for entry in found.entries:
        first = place.setdefault((entry.label, entry.part), entry)
        if first.folder != entry.folder:
            raise EndocilError(
                f"the class '{entry.label}' is there twice below {found.root}: {'/'.join(first.folder)} and "
                f"{'/'.join(entry.folder)}; give the folder of one data set by data.root"
            )


# Is a download whole? Size and checksum of the archive, images of each class, and files that are no images.

_SMALL = 32  # pixels: JPEGs are decoded at an eighth then, from all their bytes


@dataclass(frozen=True)
class ClassCheck:
    """One class of one part: published, found, and found but no image."""

    label: str
    part: str
    expected: int
    found: int
    unreadable: int

    @property
    def verdict(self) -> str:
        trouble = [f"{self.expected - self.found:,} missing"] if self.found < self.expected else []
        trouble += [f"{self.found - self.expected:,} more"] if self.found > self.expected else []
        trouble += [f"{self.unreadable:,} unreadable"] if self.unreadable else []
        return ", ".join(trouble) or "complete"


def check_archive(facts: DataSet, file: Path, progress: Progress | None = None) -> tuple[str, bool]:
    """What the archive's size and checksum say, and whether it is certainly damaged."""
    size = file.stat().st_size
    known = _known(facts, file.name)
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
    found = Counter((table.classes[label], part) for _, label, part in rows)
    broken = Counter((table.classes[label], part) for image, label, part in rows if image in bad)
    return [
        ClassCheck(label, part, expected, found[label, part], broken[label, part])
        for part, counts in facts.counts.items()
        for label, expected in sorted(counts.items())
    ]


def find_unreadable(
    table: ImageTable, progress: Progress | None = None, *, quick: bool = False
) -> dict[str, str]:
    """Id -> reason, of images that cannot be decoded; `quick` looks at their headers alone, and misses cut files."""
    reader = table.reader
    assert isinstance(reader, PlacedFiles)
    bad = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        reasons = pool.map(lambda image: _trouble(reader, image, quick), table.ids)
        for done, (image, reason) in enumerate(zip(table.ids, reasons, strict=True), start=1):
            if reason:
                bad[image] = reason
            if progress:
                progress(done, len(table))
    return bad


def _trouble(reader: PlacedFiles, image: str, quick: bool) -> str:
    try:
        reader.dimensions(image) if quick else reader.read(image, _SMALL)
    except UnreadableImageError as error:
        return str(error)
    return ""


def _known(facts: DataSet, name: str) -> Archive | None:
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
