"""Random numbers that depend on what they are for, never on when they were drawn.

Every draw comes from a generator of (seed, task, phase, epoch, step, purpose), so a resumed run, prefetching
or another number of processes sees the same numbers.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator(seed: int, *key: int | str) -> torch.Generator:
    """A CPU generator of its own for this purpose; the same arguments always give the same numbers."""
    name = "/".join(str(part) for part in (seed, *key))
    data = name.encode(errors="surrogateescape")  # a file's name need not be valid text
    number = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    return torch.Generator().manual_seed(number >> 1)  # manual_seed takes 63 bits without a sign


@contextmanager
def torch_seeded(seed: int, *key: int | str) -> Iterator[None]:
    """While modules draw from torch's own generator: nn.Linear for its first values, dropout when it trains."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, *key).initial_seed())
        yield
