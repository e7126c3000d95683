"""Files: safe reading, atomic writing, and locks.

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
import time
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, Literal

from filelock import lock_descriptor

from endocil.errors import DataError, ResourceError, SettingsError
from endocil.io.process import is_requested

LOCK_FILE = ".lock"  # in a folder that one process at a time works in
LOOK_SECONDS = 0.1  # between two looks at a lock that another process holds
LARGEST = 2**30  # bytes of a file that is read in one piece
ENCODING, ENCODING_ERRORS = ("utf-8", "surrogateescape")  # names of files that are no UTF-8 must survive a CSV file
Lock = Literal["held", "taken", "none"]
MOST_LEVELS = 32  # of tables and lists in TOML
MOST_DOTS, MOST_TOML = 300, 2**20  # in a line, and characters: reading takes the square of a dotted key's parts
_TOO_DEEP = f"tables or lists are nested more than {MOST_LEVELS} deep"
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp", re.DOTALL)
_FORMULA_STARTS = "=+-@\t\r'"  # of what a spreadsheet would run; and of what has our apostrophe already
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


class UnfitFileError(OSError):
    """A pipe, a device or a file that is too large: it must not be read."""


def read_whole(path: Path) -> bytes:
    """The bytes of a file; what never ends (a pipe, a device) or would fill the memory raises UnfitFileError."""
    status = os.stat(path)
    refuse_special(path, status)
    if status.st_size > LARGEST:
        reason = f"{status.st_size:,} bytes; at most {LARGEST:,} are accepted"
        raise UnfitFileError(errno.EFBIG, reason, str(path))
    if not status.st_size and stat.S_ISREG(status.st_mode):  # files of the system have no size and may never end
        return b""
    return path.read_bytes()


def refuse_special(path: Path, status: os.stat_result | None = None) -> None:
    """A pipe, a socket or a device raises UnfitFileError: opening it could wait forever."""
    mode = (status or os.stat(path)).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnfitFileError(errno.EINVAL, "a pipe, a socket or a device, not a file", str(path))


def refuse_existing(path: Path, *, force: bool | None = None) -> None:
    """Results are never overwritten by accident. `force`: of the option --force; None where a command has none."""
    if path.is_dir():
        raise SettingsError(f"{path} is a folder; expected the name of a file")
    if path.exists() and not force:
        way_out = "" if force is None else ", or overwrite it with --force"
        raise SettingsError(f"{path} exists already; choose another file with -o{way_out}")


def private(path: str, flags: int) -> int:
    """An opener for `open`: a new file is for its owner alone, whatever the umask, and no link is followed."""
    flags |= getattr(os, "O_NOFOLLOW", 0)
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    with suppress(FileExistsError):
        descriptor = os.open(path, flags | os.O_EXCL, 0o600)
        if os.name == "posix":
            os.fchmod(descriptor, 0o660 if _is_shared(os.path.dirname(path) or ".") else 0o600)
        return descriptor
    if flags & os.O_EXCL:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    return os.open(path, flags)


def make_private_folder(path: Path) -> None:
    """A new folder is for its owner alone, whatever the umask; one that exists stays as its owner made it."""
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
        return  # another process was faster
    if os.name == "posix":
        path.chmod(0o2770 if _is_shared(path.parent) else 0o700)


def _is_shared(folder: str | Path) -> bool:
    """Whether its owner shares a folder with a group, by the bit that makes new files the group's (chmod 2770)."""
    return bool(os.stat(folder).st_mode & stat.S_ISGID)


@contextmanager
def replacing(path: Path, n_bytes: int, *, public: bool = False) -> Iterator[IO[bytes]]:
    """An open file that takes the place of `path` when the block ends well, or else is removed.

    `n_bytes` are to be written; the error of a full disk names them. `public`: not for its owner alone."""
    with explaining_failure(path, n_bytes):
        if public:
            path.parent.mkdir(parents=True, exist_ok=True)
        else:
            make_private_folder(path.parent)
        remove_leftovers(path.parent)
        temporary, file = _open_temporary(path, public)
        try:
            with file:
                yield file
                flush(file)
                if os.name == "posix":  # while the file is locked
                    os.replace(temporary, path)
            if os.name != "posix":  # which renames no open file
                os.replace(temporary, path)
            flush_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _open_temporary(path: Path, public: bool) -> tuple[Path, IO[bytes]]:
    """A new file, locked as long as it is open, by which `remove_leftovers` knows that it is being written."""
    while True:
        temporary = temporary_beside(path)
        file = open(temporary, "xb", opener=None if public else private)  # noqa: SIM115
        lock(file, wait=False)
        if temporary.exists():  # else it was taken for a leftover before it was locked
            return temporary, file
        file.close()


@contextmanager
def explaining_failure(path: Path, n_bytes: int) -> Iterator[None]:
    """A file that cannot be written is a ResourceError with the bytes that are needed and free."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        way_out = "free some space" if full else "check that the folder may be written to"
        with suppress(OSError):
            way_out = f"{free_bytes(path.parent):,} bytes are free there; {way_out}"
        reason = error.strerror or str(error)
        raise ResourceError(
            f"cannot write {path} ({n_bytes:,} bytes): {reason}; {way_out} or choose another folder"
        ) from error


def flush_folder(folder: Path) -> None:
    """Force the names of a folder onto the disk; only POSIX can open a folder."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(path: Path, *parts: bytes | memoryview | str, public: bool = False) -> None:
    """Write the whole file or leave what was there; after a crash it is the old one or the new one.

    `public`: made to be shown, so that the umask decides who may read it; else its owner alone."""
    content = [part.encode(ENCODING, ENCODING_ERRORS) if isinstance(part, str) else part for part in parts]
    with replacing(path, sum(map(len, content)), public=public) as file:
        for part in content:
            file.write(part)


@contextmanager
def filling_folder(path: Path, *, public: bool = False) -> Iterator[Path]:
    """A temporary folder that takes the place of `path` (new or empty) when the block ends well, or is removed."""
    temporary, descriptor = temporary_beside(path), -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        while not temporary.exists():  # or it was taken for a leftover before it was locked
            temporary.mkdir(0o777 if public else 0o700)
            if os.name == "posix":
                descriptor = os.open(temporary, os.O_RDONLY)
                lock(descriptor, wait=False)
        yield temporary
        if path.exists():
            path.rmdir()  # not every system renames over an existing folder
        temporary.rename(path)
    except OSError as error:
        reason = error.strerror or error
        raise ResourceError(f"cannot write {path}: {reason}; nothing was left there, choose another folder") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Whether a file or folder is one that is being written, or was when its process was killed."""
    return bool(_TEMPORARY.fullmatch(path.name))


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes have left; one that is still written is locked."""
    if os.name != "posix":  # folders cannot be locked there
        return
    for left in filter(is_temporary, map(Path, os.scandir(folder))):
        with suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if lock(descriptor, wait=False) == "held":
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            finally:
                os.close(descriptor)


def write_json(path: Path, value: Any, *, public: bool = False) -> None:
    """Indented JSON; NaN and infinity are refused, because other readers do not know them."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", public=public)


def parse_json(text: str | bytes) -> Any:
    """JSON; whatever is wrong with it, also nesting too deep to read, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """TOML, which editors may begin with a byte-order mark; whatever is wrong with it is a TOMLDecodeError."""
    if len(text) > MOST_TOML or any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise tomllib.TOMLDecodeError(f"more than {MOST_TOML:,} characters, or {MOST_DOTS} dots in a line")
    try:
        values = tomllib.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    except ValueError as error:  # also a number of too many digits
        raise tomllib.TOMLDecodeError(str(error)) from error
    layer: list[Any] = [values]
    for _ in range(MOST_LEVELS):
        layer = [inner for one in layer for inner in (one.values() if isinstance(one, dict) else one)]
        layer = [one for one in layer if isinstance(one, dict | list)]
        if not layer:
            return values
    raise tomllib.TOMLDecodeError(_TOO_DEEP)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A comma-separated file with a header line. Names may hold any character but NUL, also ends of lines."""
    text = csv_text([header, *rows])
    if "\0" in text:
        raise DataError(f"{path} cannot be written: a name in it holds the character NUL; rename that image or group")
    write_atomically(path, text)


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    """Lines of CSV. A text that a spreadsheet would take for a formula has an apostrophe before it."""
    text = _joined(rows, "\n")
    if "\r" in text:  # the writer quotes ends of lines only if they are its own: so each line with them, then with ours
        text = "".join(_joined([row], "\r\n").removesuffix("\r\n") + "\n" for row in rows)
    return text


def _joined(rows: Iterable[Sequence[object]], end: str) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end)
    writer.writerows([_harmless(cell) if type(cell) is str else cell for cell in row] for row in rows)
    return text.getvalue()


def _harmless(cell: str) -> str:
    is_formula = cell[:1] in _FORMULA_STARTS and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def original(cell: str) -> str:
    """A cell of a CSV file without the apostrophe that `csv_text` has put before it."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def read_csv(path: Path, separators: str = ",", *, any_bytes: bool = True) -> list[dict[str, str]]:
    """One dictionary per line; a line with too few or too many fields is refused by its number."""
    lines = read_fields(path, separators, any_bytes=any_bytes)
    header = lines[0][1] if lines else []
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
        lines = ((reader.line_num, fields) for fields in reader if any(map(str.strip, fields)))
        return [(number, list(map(original, fields))) for number, fields in lines]
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


def flush(file: IO[bytes]) -> None:
    """Force what was written onto the disk, so that a rename never shows an empty file after a power cut."""
    file.flush()
    os.fsync(file.fileno())


def temporary_beside(path: Path) -> Path:
    """A unique name in the same folder, so that renaming it is atomic."""
    return path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.tmp")


def lock(file: IO[Any] | int, *, wait: bool = True) -> Lock:
    """A lock on an open file or folder, until it is closed or its process ends, however that happens.

    Held from now on; taken: another process holds it and `wait` is false; none: the file system has no locks. Who
    waits still stops where the process is told to. The classes of filelock open a path to write; here a caller may
    also probe the lock of a folder it cannot write to."""
    descriptor = file if isinstance(file, int) else file.fileno()
    try:
        while not lock_descriptor(descriptor, blocking=False):
            if not wait:
                return "taken"
            if is_requested():  # in `deferring`, where a signal does not interrupt
                raise KeyboardInterrupt
            time.sleep(LOOK_SECONDS)
    except OSError:
        return "none"
    return "held"


@contextmanager
def locked(folder: Path, refusal: str, *, patience: float = 0.0) -> Iterator[None]:
    """One process at a time works in this folder, where the system can lock files; others are refused.

    `patience`: seconds to wait for a process that holds the lock."""
    deadline = time.monotonic() + patience
    with open(folder / LOCK_FILE, "ab", opener=private) as file:
        while lock(file, wait=False) == "taken":
            if time.monotonic() >= deadline:
                raise ResourceError(refusal)
            time.sleep(LOOK_SECONDS)
        yield


def cache_folder() -> Path:
    """Where decoded images, extracted archives and features are kept by default."""
    return Path(os.environ.get("ENDOCIL_CACHE") or "~/.cache/endocil").expanduser()


def portable(value: Any) -> Any:
    """The same value with each absolute path cut to its last part, so that it can be published."""
    if isinstance(value, Mapping):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    if not isinstance(value, str):
        return value
    # runs come from other systems too, so both kinds of paths count on each of them
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute() or value.startswith("~/")
    return last_name(value) if absolute else value


def last_name(path: str) -> str:
    return PureWindowsPath(path).name or path  # a Windows path understands both slashes
