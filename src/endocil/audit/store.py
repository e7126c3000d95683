"""Measured things of a table, kept beside the decoded images: whole files under a key, or nothing."""

import hashlib
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from endocil.files import write_atomically
from endocil.images.cache import default_folder
from endocil.images.table import ImageTable


def place(table: ImageTable, size: int, rules: str, folder: Path | None) -> Path:
    """The file for this table, its files as they are now, and these rules of measuring."""
    key = hashlib.sha256(f"{rules}\0{table.digest(size)}".encode()).hexdigest()
    return (folder or default_folder()) / f"{key}.npz"


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    whole = BytesIO()
    np.savez(whole, allow_pickle=False, **dict(arrays))
    write_atomically(path, whole.getvalue())


def load(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """None where nothing is kept or what is kept is damaged: a checksum of each array stands in the file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
