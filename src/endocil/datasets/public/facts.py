"""What is known about a public data set: where to get it, its contents, the spellings of its classes, its terms."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from endocil.data.lists import PARTS

SIMULA_TERMS = (
    "not resolved: LICENSE.md of its repository is CC BY 4.0; its README allows research and education, and asks "
    "for prior written permission for competitions and commercial use"
)


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
    aliases: Mapping[str, str]  # other spelling -> class folder
    inside: tuple[str, ...] = ()  # folders between the top and the class folders
    presets: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

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


def parse_counts(text: str) -> dict[str, int]:
    """`name number; name number; ...`"""
    pairs = (entry.strip().rpartition(" ") for entry in text.split(";"))
    return {name: int(number) for name, _, number in pairs}
