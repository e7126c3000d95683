"""A file that grows past the system's memory holds the same bytes as one that was written the ordinary way."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from endocil.data import readers as direct
from endocil.data.readers import PAGE, GrowingFile, aligned

BUFFER = 2**20


def pieces(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    sizes = [0, 1, PAGE - 1, PAGE, 3 * PAGE, BUFFER + 5, *random.integers(1, 5 * PAGE, 20)]
    random.shuffle(sizes)
    return [random.integers(0, 256, size, np.uint8) for size in sizes]


def grow(path: Path, end: int, parts: list[np.ndarray]) -> None:
    file = GrowingFile(path, end)
    for part in parts:
        file.append(part)
    file.close()
    file.close()  # a second time does nothing


@pytest.mark.parametrize("end", [0, 1, 128, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 77])
def test_bytes_come_behind_the_end_and_what_stood_there_is_gone(tmp_path: Path, end: int) -> None:
    path, old = tmp_path / "file", np.random.default_rng(0).bytes(10 * PAGE)
    path.write_bytes(old)
    parts = pieces(end)
    grow(path, end, parts)
    assert path.read_bytes() == old[:end] + b"".join(part.tobytes() for part in parts)


def refused_by_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system without O_DIRECT: the flag cannot be set."""
    import fcntl

    real = fcntl.fcntl

    def refuse(file: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(file, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refuse)


def refused_by_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system that takes the flag and refuses the write."""
    import fcntl

    real = os.write

    def refuse(file: int, data: memoryview) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(file, data)

    monkeypatch.setattr(os, "write", refuse)


def short_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[: max(len(data) // 2, 1)]))


def without_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS and Windows."""
    monkeypatch.setattr(direct, "_DIRECT", 0)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system has no O_DIRECT")
@pytest.mark.parametrize("limit", [refused_by_flag, refused_by_write, short_writes, without_flag])
def test_file_systems_that_cannot_are_written_the_ordinary_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[[pytest.MonkeyPatch], None]
) -> None:
    limit(monkeypatch)
    parts = pieces(1)
    grow(tmp_path / "file", 0, parts)
    assert (tmp_path / "file").read_bytes() == b"".join(part.tobytes() for part in parts)


def test_aligned_memory_goes_to_the_file_without_the_buffer(tmp_path: Path) -> None:
    part = aligned((3, PAGE, 2))
    assert part.ctypes.data % PAGE == 0
    part[:] = np.random.default_rng(0).integers(0, 256, part.shape, np.uint8)
    rest = np.arange(100, dtype=np.uint8)
    grow(tmp_path / "file", 0, [part.reshape(-1), part.reshape(-1)[: PAGE + 9], rest, part.reshape(-1)])
    raw = part.tobytes()
    assert (tmp_path / "file").read_bytes() == raw + raw[: PAGE + 9] + rest.tobytes() + raw


def test_a_full_disk_is_an_error_and_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, __: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = GrowingFile(tmp_path / "file", 0)
    monkeypatch.setattr(os, "write", full)
    through_the_buffer = np.zeros(PAGE + 1, np.uint8)[
        1:
    ]  # never page-aligned: `close` has something to write
    with pytest.raises(OSError, match="No space left"):
        file.append(through_the_buffer)
    with pytest.raises(OSError, match="No space left"):
        file.close()
    file.close()
