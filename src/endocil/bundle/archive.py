"""The file of a bundle: a zip without compression whose comment is the sha256 of everything before it.

So a single wrong bit is seen before anything is read, nothing can unpack to more than the file's own size, and
the digest names the bundle. Only known names are accepted; nothing is ever extracted to the disk.
"""

import hashlib
import io
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from endocil.errors import EndocilError
from endocil.files import write_atomically
from endocil.opening import LARGEST, UnfitFileError, read_whole

MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
_NAMES = re.compile(r"manifest\.json|weights\.safetensors|(exemplars|held-out)(\.csv|/\d{6}\.png)")
_DIGITS = 64  # of a sha256
_WHEN = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes
_BROKEN = (
    zipfile.BadZipFile,
    OSError,
    ValueError,
    KeyError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)


def write_archive(path: Path, content: Mapping[str, bytes]) -> str:
    """Write the file whole or not at all; its digest."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            assert _NAMES.fullmatch(name), name
            archive.writestr(zipfile.ZipInfo(name, _WHEN), data)
        archive.comment = b"0" * _DIGITS
    body = file.getvalue()[:-_DIGITS]
    if len(body) + _DIGITS > LARGEST:
        raise EndocilError(
            f"the bundle would have {len(body):,} bytes; at most {LARGEST:,} can be read again"
        )
    digest = hashlib.sha256(body).hexdigest()
    write_atomically(path, body + digest.encode())
    return digest


def read_archive(path: Path) -> tuple[dict[str, bytes], str]:
    """The content by name, and the digest; a damaged or foreign file is refused in one line."""
    data = _bytes(path)
    body, digest = data[:-_DIGITS], data[-_DIGITS:]
    if not zipfile.is_zipfile(io.BytesIO(data)) or not re.fullmatch(rb"[0-9a-f]{64}", digest):
        raise EndocilError(
            f"{path} is not a bundle, or was cut; make one with 'endocil bundle RUN -o {path.name}'"
        )
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise EndocilError(
            f"the bundle {path} is damaged: its checksum is wrong; fetch it again from where it came"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _refuse_strange(path, entries, len(data))
            return {entry.filename: archive.read(entry) for entry in entries}, digest.decode()
    except EndocilError:  # a ValueError too
        raise
    except _BROKEN as error:
        raise EndocilError(f"the bundle {path} is damaged: {_line(error)}") from error


def _bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise EndocilError(
                f"{path} is a folder; expected a bundle, a file that 'endocil bundle' has written"
            )
        return read_whole(path)
    except FileNotFoundError as error:
        raise EndocilError(f"there is no bundle {path}") from error
    except UnfitFileError as error:
        raise EndocilError(f"{path} is not a bundle: {error.strerror}") from error
    except OSError as error:
        raise EndocilError(f"the bundle {path} cannot be read: {error.strerror or error}") from error


def _refuse_strange(path: Path, entries: list[zipfile.ZipInfo], size: int) -> None:
    """What no bundle has: other names, a name twice, compression, encryption, more bytes than the file."""
    names = [entry.filename for entry in entries]
    strange = [name for name in names if not _NAMES.fullmatch(name)]
    if strange:
        raise EndocilError(
            f"the bundle {path} holds {_shown(strange[0])}, which no bundle has; it is refused"
        )
    if len(set(names)) < len(names):
        raise EndocilError(f"the bundle {path} holds a file twice; it is refused")
    for entry in entries:
        if (
            entry.compress_type != zipfile.ZIP_STORED
            or entry.flag_bits & 1
            or entry.file_size != entry.compress_size
        ):
            raise EndocilError(
                f"the bundle {path} holds {entry.filename} compressed or encrypted; it is refused"
            )
    if sum(entry.file_size for entry in entries) > size:
        raise EndocilError(f"the bundle {path} claims to hold more bytes than it has; it is refused")


def _shown(name: str) -> str:
    """A name from outside, as harmless text of bounded length."""
    return repr(name[:80].encode("ascii", "backslashreplace").decode())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
