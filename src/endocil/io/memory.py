"""How much memory this process may still take."""

from contextlib import suppress
from pathlib import Path

MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")  # version 2


def available_memory() -> int | None:
    """Bytes, of the machine or of its container, whichever is less; none where the system does not say."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = MACHINE.read_text("ascii").splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limit, used = ((CONTAINER / name).read_text("ascii") for name in ("memory.max", "memory.current"))
        found.append(int(limit) - int(used))
    return min(found, default=None)
