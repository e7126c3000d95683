"""Locks on files: held until the file is closed or its process ends, however that happens."""

import sys
from typing import IO, Any, Literal

Lock = Literal["held", "taken", "none"]


def lock(file: IO[Any], *, wait: bool = True) -> Lock:
    """Held from now on; taken where another process holds it and `wait` is false; none where the system or
    the file system has no locks."""
    if sys.platform == "win32":
        return "none"
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "taken"
    except OSError:
        return "none"
    return "held"
