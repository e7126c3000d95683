"""The public data sets of the paper, and their descriptions for the commands. Nothing here uses the network.

Class counts were counted on the published files and lists; sizes and checksums of archives are from a public record
of a download. Exceptions are noted.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from endocil.data.table import ImageTable, UnreadableImageError
from endocil.datasets.public import capsule_vision, gastrovision, hyper_kvasir, kvasir_capsule
from endocil.datasets.public.facts import DataSet
from endocil.errors import SettingsError

CATALOGUE = {
    facts.name: facts
    for facts in (hyper_kvasir.FACTS, gastrovision.FACTS, kvasir_capsule.FACTS, capsule_vision.FACTS)
}


def find(name: str) -> DataSet:
    """A data set by its name."""
    if name not in CATALOGUE:
        raise SettingsError(f"unknown public data set '{name}'; known: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def describe(facts: DataSet) -> str:
    """Where to get a data set and where to put it, as text."""
    return "\n".join(_description(facts))


def _description(facts: DataSet) -> Iterator[str]:
    yield f"{facts.title}: {sum(facts.classes.values()):,} images in {len(facts.classes)} classes"
    for page in facts.pages:
        yield f"  page       {page}"
    for archive in facts.archives:
        yield f"  archive    {archive.name}: {archive.holds}"
        if archive.url:
            yield f"             {archive.url}"
        yield f"             {_size(archive.size)}, {_checksum(archive.sha256)}"
    yield f"  licence    {facts.licence}"
    yield f"  cite       {facts.citation}"
    yield f"  place      {facts.place}"
    yield f"  then       export {facts.variable}=PATH, and: endocil run {facts.presets[0]}"
    yield f"  check      endocil data check {facts.name} PATH"
    yield f"  presets    {', '.join(facts.presets)}"
    yield f"  splits     {facts.splits}"
    for remark in facts.remarks:
        yield f"  remark     {remark}"
    yield f"  classes    {'; '.join(f'{name} {n:,}' for name, n in sorted(facts.classes.items()))}"


def _size(size: int | None) -> str:
    return "size not known" if size is None else f"{size:,} bytes"


def _checksum(sha256: str) -> str:
    return f"sha256 {sha256}" if sha256 else "no checksum known"


class _NoPixels:
    """For images whose files are missing."""

    def read(self, image_id: str, size: int) -> np.ndarray:
        raise UnreadableImageError("only the published number of images is known")

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "published counts"


def as_published(facts: DataSet) -> ImageTable:
    """A table with the published number of images of each class, without the images."""
    classes = tuple(sorted(facts.classes))
    counts = [facts.classes[name] for name in classes]
    ids = tuple(f"{name}/{i}" for name, n in zip(classes, counts, strict=True) for i in range(n))
    return ImageTable(
        ids=ids,
        labels=np.repeat(np.arange(len(classes)), counts),
        classes=classes,
        reader=_NoPixels(),
        groups=("",) * len(ids),
        sources=("",) * len(ids),
    )
