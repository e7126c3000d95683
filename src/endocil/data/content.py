"""Which images a scenario is of: one digest, the same wherever the files lie."""

import hashlib
from pathlib import Path

import numpy as np

from endocil.data import fingerprints as store
from endocil.data.decode import file_of, read_file
from endocil.data.scenario import Scenario
from endocil.data.table import ImageTable
from endocil.errors import EndocilError

RULES = "content 1"  # raise it when the same files are digested differently


def content(scenario: Scenario) -> str:
    """A digest of ids, classes, parts and files: copies of the files count as one."""
    rows = zip(rows_of(scenario), _files(scenario.table), strict=True)
    told = [RULES, *sorted("\0".join((*row, file)) for row, file in rows)]
    return hashlib.sha256("\0".join(told).encode(errors="surrogateescape")).hexdigest()[:16]


def rows_of(scenario: Scenario) -> list[tuple[str, str, str]]:
    """Of each image its id, class and part."""
    table = scenario.table
    names = [table.classes[label] for label in table.labels]
    return list(zip(table.ids, names, map(str, scenario.part), strict=True))


def _files(table: ImageTable) -> list[str]:
    """A digest of the file of each image; "" where no file is told. Read once, then kept until a file changes."""
    place = store.place(table, 0, RULES, None)
    kept = store.load(place, ("files",))
    if kept is None:
        files = [file_of(table.reader, image) for image in table.ids]
        digests = {file: _digest(file) for file in dict.fromkeys(files)}  # a file may have many frames
        kept = {"files": np.array([digests[file] for file in files])}
        store.save(place, kept)
    return [str(digest) for digest in kept["files"]]


def _digest(file: Path | None) -> str:
    try:
        return "" if file is None else hashlib.sha256(read_file(file)).hexdigest()
    except EndocilError:  # a run may leave such images out
        return "unreadable"
