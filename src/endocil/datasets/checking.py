"""Is a download whole? Size and checksum of the archive, images of each class, and files that are no images."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from endocil.datasets.downloads import PlacedFiles
from endocil.datasets.facts import Archive, DataSet
from endocil.images.table import ImageTable, UnreadableImageError

Progress = Callable[[int, int], None]

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
