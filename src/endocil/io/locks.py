"""Locks on open files: held until the file is closed or its process ends, however that happens.

filelock's own classes open a path to write; here a caller may also probe the lock of a folder that it cannot write to.
"""

from typing import IO, Any, Literal

from filelock import lock_descriptor

Lock = Literal["held", "taken", "none"]


def lock(file: IO[Any], *, wait: bool = True) -> Lock:
    """Held from now on; taken: another process holds it and `wait` is false; none: the file system has no locks."""
    try:
        return "held" if lock_descriptor(file.fileno(), blocking=wait) else "taken"
    except OSError:
        return "none"
