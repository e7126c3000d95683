"""Files: read whole and safely, written whole or not at all.

A file is written under a temporary name, flushed, then renamed: after a crash it is the old one or the new one.
"""

import csv
import errno
import io
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from endocil.errors import DataError, ResourceError, SettingsError

LARGEST = 2**30  # bytes of a file that is read in one piece
ENCODING, ENCODING_ERRORS = (
    "utf-8",
    "surrogateescape",
)  # names of files that are no UTF-8 must survive a CSV file


class UnfitFileError(OSError):
    """A pipe, a device or a file that is too large: it must not be read."""


def read_whole(path: Path) -> bytes:
    """The bytes of a file; what never ends (a pipe, a device) or would fill the memory raises UnfitFileError."""
    status = os.stat(path)
    refuse_special(path, status)
    if status.st_size > LARGEST:
        reason = f"{status.st_size:,} bytes; at most {LARGEST:,} are accepted"
        raise UnfitFileError(errno.EFBIG, reason, str(path))
    return path.read_bytes() if status.st_size else b""  # files of the system have no size and may never end


def refuse_special(path: Path, status: os.stat_result | None = None) -> None:
    """A pipe, a socket or a device raises UnfitFileError: opening it could wait forever."""
    mode = (status or os.stat(path)).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnfitFileError(errno.EINVAL, "a pipe, a socket or a device, not a file", str(path))


@contextmanager
def replacing(path: Path, n_bytes: int) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, or else is removed.

    `n_bytes` are to be written; the error of a full disk names them."""
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, n_bytes, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write the whole file or leave what was there; after a crash it is the old one or the new one."""
    content = data.encode(ENCODING, ENCODING_ERRORS) if isinstance(data, str) else data
    with replacing(path, len(content)) as temporary, open(temporary, "xb") as file:
        file.write(content)
        flush(file)


@contextmanager
def filling_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `path` (new or empty) when the block ends well, or is removed."""
    temporary = temporary_beside(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            path.rmdir()  # not every system renames over an existing folder
        temporary.rename(path)
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(
            f"cannot write {path}: {reason}; nothing was left there, choose another folder"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Indented JSON; NaN and infinity are refused, because other readers do not know them."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A comma-separated file with a header line."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def read_csv(path: Path, separators: str = ",", *, any_bytes: bool = True) -> list[dict[str, str]]:
    """One dictionary per line; a line with too few or too many fields is refused by its number."""
    lines = read_fields(path, separators, any_bytes=any_bytes)
    if not lines:
        return []
    header = lines[0][1]
    for number, fields in lines[1:]:
        if len(fields) != len(header):
            raise DataError(f"{path}, line {number}: expected the fields {','.join(header)}")
    return [dict(zip(header, fields, strict=True)) for _, fields in lines[1:]]


def read_fields(path: Path, separators: str, *, any_bytes: bool) -> list[tuple[int, list[str]]]:
    """(line number, fields) of the lines that are not empty; one of `separators` is chosen by the first line.

    With `any_bytes`, names of files that are no UTF-8 come back as they were written; else they are refused."""
    try:
        data = read_whole(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if b"\0" in data:
        raise DataError(f"{path} is not UTF-8 text; save it as CSV in UTF-8")
    try:
        text = data.decode("utf-8-sig", ENCODING_ERRORS if any_bytes else "strict")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {number}: is not UTF-8 text; save the file as UTF-8") from None
    first = next((line for line in text.splitlines() if line.strip()), "")
    # as a spreadsheet would: the one that gives the most columns
    separator = max(separators, key=lambda separator: _n_columns(first, separator))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [(reader.line_num, fields) for fields in reader if any(map(str.strip, fields))]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error


def _n_columns(line: str, separator: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=separator), []))
    except csv.Error:  # reported with its line when the whole file is read
        return 0


def expand(text: str, setting: str) -> Path:
    """A path with ~ and $VARIABLES filled in; a variable that is not set is named."""
    path = Path(os.path.expandvars(text)).expanduser()
    left = re.search(r"\$\{?(\w+)", str(path))
    if left and not path.exists():
        raise SettingsError(
            f"{setting} = '{text}': the environment variable {left[1]} is not set; "
            f"set it, or give the path by --set {setting}=PATH"
        )
    return path


def free_bytes(folder: Path) -> int:
    """Free space where this folder is, or would be."""
    existing = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path("/"))
    return shutil.disk_usage(existing).free


def flush(file: io.BufferedWriter) -> None:
    """Force what was written onto the disk, so that a rename never shows an empty file after a power cut."""
    file.flush()
    os.fsync(file.fileno())


def temporary_beside(path: Path) -> Path:
    """A name of its own in the same folder, so that renaming it is atomic."""
    return path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.tmp")


def temporaries_beside(path: Path) -> list[Path]:
    """The temporary files and folders of this path that processes that were killed have left."""
    form = re.compile(re.escape(f".{path.name[:100]}.") + r"[0-9a-f]{32}\.tmp")
    return sorted(left for left in path.parent.glob(".*.tmp") if form.fullmatch(left.name))


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":  # only there can a folder be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Path, n_bytes: int, error: OSError) -> ResourceError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free some space" if full else "check that the folder may be written to"
    with suppress(OSError):
        way_out = f"{free_bytes(path.parent):,} bytes are free there; {way_out}"
    reason = error.strerror or str(error)
    return ResourceError(
        f"cannot write {path} ({n_bytes:,} bytes): {reason}; {way_out} or choose another folder"
    )


def cache_folder() -> Path:
    """Where decoded images and extracted archives are kept by default."""
    return Path(os.environ.get("ENDOCIL_CACHE") or "~/.cache/endocil").expanduser()


def portable(value: Any) -> Any:
    """The same value with each absolute path cut to its last name: a path says where, not what."""
    if isinstance(value, Mapping):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    return last_name(value) if isinstance(value, str) and _is_absolute(value) else value


def last_name(path: str) -> str:
    return PureWindowsPath(path).name or path  # a Windows path understands both slashes


def _is_absolute(text: str) -> bool:
    # Runs come from other systems too, so both kinds of paths count on each of them.
    return PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~/")
