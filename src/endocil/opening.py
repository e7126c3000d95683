"""What may be opened: a file of a size that fits into memory, and nothing that never ends."""

import errno
import os
import stat
from pathlib import Path

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
