"""What may be opened: a file of a size that fits into memory, and nothing that never ends."""

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

from endocil.errors import EndocilError

LARGEST = 2**30  # bytes of a file that is read in one piece


class UnfitFileError(OSError):
    """Something with a file's name that must not be read."""


def read_whole(path: Path) -> bytes:
    """The bytes of a file; what never ends (a pipe, a device) or would fill the memory is an UnfitFileError."""
    status = os.stat(path)
    refuse_special(path, status)
    if status.st_size > LARGEST:
        reason = f"{status.st_size:,} bytes; at most {LARGEST:,} are accepted"
        raise UnfitFileError(errno.EFBIG, reason, str(path))
    return path.read_bytes() if status.st_size else b""  # files of the system have no size and may never end


def refuse_special(path: Path, status: os.stat_result | None = None) -> None:
    """A pipe, a socket or a device is an UnfitFileError: opening it could wait for ever."""
    mode = (status or os.stat(path)).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnfitFileError(errno.EINVAL, "a pipe, a socket or a device, not a file", str(path))


# Files that are whole or not there: written under a temporary name, flushed, then renamed.

# File names that are no valid UTF-8 must come back from a CSV file as they went in.
ENCODING, ENCODING_ERRORS = "utf-8", "surrogateescape"


@contextmanager
def replacing(path: Path, wanted: int) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, or else is removed.

    `wanted` is the number of bytes to be written; it is named when the disk is full."""
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, wanted, error) from error
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
        raise EndocilError(
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


def read_csv(path: Path, marks: str = ",", *, any_bytes: bool = True) -> list[dict[str, str]]:
    """One dictionary per line; a line with too few or too many fields is refused by its number."""
    lines = read_fields(path, marks, any_bytes=any_bytes)
    if not lines:
        return []
    header = lines[0][1]
    for number, fields in lines[1:]:
        if len(fields) != len(header):
            raise EndocilError(f"{path}, line {number}: expected the fields {','.join(header)}")
    return [dict(zip(header, fields, strict=True)) for _, fields in lines[1:]]


def read_fields(path: Path, marks: str, *, any_bytes: bool) -> list[tuple[int, list[str]]]:
    """(line number, fields) of the lines that are not empty, parted by that of `marks` which parts the first one.

    With `any_bytes` names of files that are no UTF-8 come back as they were written; else they are refused."""
    try:
        data = read_whole(path)
    except OSError as error:
        raise EndocilError(f"cannot read {path}: {error.strerror or error}") from error
    if b"\0" in data:
        raise EndocilError(f"{path} is no text in UTF-8; save it as CSV in UTF-8")
    try:
        text = data.decode("utf-8-sig", ENCODING_ERRORS if any_bytes else "strict")
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise EndocilError(f"{path}, line {number}: is no text in UTF-8; save the file as UTF-8") from None
    first = next((line for line in text.splitlines() if line.strip()), "")
    # as a spreadsheet would: the mark that gives the most columns
    mark = max(marks, key=lambda mark: _n_columns(first, mark))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
    try:
        return [(reader.line_num, fields) for fields in reader if any(map(str.strip, fields))]
    except csv.Error as error:
        raise EndocilError(f"{path}, line {reader.line_num}: {error}") from error


def _n_columns(line: str, mark: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=mark), []))
    except csv.Error:  # said with its line when the whole is read
        return 0


def expand(text: str, setting: str) -> Path:
    """A path with ~ and $VARIABLES filled in; a variable that is not set is named."""
    path = Path(os.path.expandvars(text)).expanduser()
    left = re.search(r"\$\{?(\w+)", str(path))
    if left and not path.exists():
        raise EndocilError(
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
    """What `temporary_beside` has named for this path, and a process that was killed has left there."""
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


def _cannot_write(path: Path, wanted: int, error: OSError) -> EndocilError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free some space" if full else "check that the folder may be written to"
    with suppress(OSError):
        way_out = f"{free_bytes(path.parent):,} bytes are free there; {way_out}"
    reason = error.strerror or str(error)
    return EndocilError(
        f"cannot write {path} ({wanted:,} bytes): {reason}; {way_out} or choose another folder"
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
