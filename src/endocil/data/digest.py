"""One digest for the images of a scenario, the same wherever their files are."""

import hashlib
from pathlib import Path

import numpy as np

from endocil.data.decode import file_of, read_file
from endocil.data.fingerprints import cache_path, load_arrays, save_arrays
from endocil.data.scenario import Scenario
from endocil.data.table import ImageTable
from endocil.errors import EndocilError

RULES = "content 1"  # raise it when the same files get another digest


def scenario_digest(scenario: Scenario) -> str:
    """A digest of ids, classes, parts and file contents: the same for a copy of the files."""
    rows = zip(image_rows(scenario), _file_digests(scenario.table), strict=True)
    texts = [RULES, *sorted("\0".join((*row, file)) for row, file in rows)]
    return hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()[:16]


def image_rows(scenario: Scenario) -> list[tuple[str, str, str]]:
    """Id, class and part of each image."""
    table = scenario.table
    names = [table.classes[label] for label in table.labels]
    return list(zip(table.ids, names, map(str, scenario.part), strict=True))


def _file_digests(table: ImageTable) -> list[str]:
    """A digest of the file of each image; "" where it has none. Read once, then kept until a file changes."""
    path = cache_path(table, 0, RULES, None)
    kept = load_arrays(path, ("files",))
    if kept is None:
        files = [file_of(table.reader, image) for image in table.ids]
        digests = {file: _file_digest(file) for file in dict.fromkeys(files)}  # a file may have many frames
        kept = {"files": np.array([digests[file] for file in files])}
        save_arrays(path, kept)
    return [str(digest) for digest in kept["files"]]


def _file_digest(file: Path | None) -> str:
    try:
        return "" if file is None else hashlib.sha256(read_file(file)).hexdigest()
    except EndocilError:  # a run may leave such images out
        return "unreadable"
