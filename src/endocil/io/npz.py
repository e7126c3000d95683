"""Arrays of an .npz file, read without pickle: each is compared with what the file holds before memory is taken."""

import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from endocil.errors import FileFormatError
from endocil.io.files import LARGEST, refuse_special

_DAMAGED = (OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, zipfile.BadZipFile)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Name -> array, of numbers and text alone; objects, which are pickles, are refused."""
    try:
        refuse_special(path)
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
            if (size := sum(entry.file_size for entry in entries)) > LARGEST:
                raise ValueError(f"{size:,} bytes unpacked; at most {LARGEST:,} are accepted")
            return {entry.filename.removesuffix(".npy"): _array(file, entry) for entry in entries}
    except _DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileFormatError(f"{path} cannot be read as .npz: {reason}") from error


def _array(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with file.open(entry) as stream:
        version = npy.read_magic(stream)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read_header is None:
            raise ValueError(f"{entry.filename} is of version {version}; save it with numpy.savez")
        shape, fortran, dtype = read_header(stream)
        if dtype.kind not in "biufU":
            raise ValueError(f"{entry.filename} holds {dtype}; expected numbers or text, no objects (pickles)")
        if (claimed := dtype.itemsize * int(np.prod(shape, dtype=object))) != (left := entry.file_size - stream.tell()):
            raise ValueError(f"{entry.filename} claims {claimed:,} bytes and holds {left:,}")
        values = np.frombuffer(stream.read(), dtype)
    return values.reshape(shape, order="F" if fortran else "C")
