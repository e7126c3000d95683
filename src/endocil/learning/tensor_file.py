"""Files of tensors that carry a checksum of all their bytes: a flipped bit is found, not learned from.

Safetensors has none. The checksum stands in the file's own header, and is taken with zeros in its place."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from endocil.errors import FileFormatError
from endocil.io.files import write_atomically

KEY = "endocil"  # of the file's metadata
SEAL = "blake2b-128:"
OPEN = SEAL + "0" * 32
BLOCK = 1 << 20  # bytes


def write_tensors(path: Path, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """`header` is plain data; after a crash the file is the old one or the new one."""
    # the seal comes first, so that nothing in the header can be taken for it
    data = memoryview(save(dict(tensors), metadata={KEY: json.dumps({"seal": OPEN, **header})}))
    head = bytes(data[: _head_length(data[:8])])
    rest = data[len(head) :]
    total = hashlib.blake2b(head, digest_size=16)
    total.update(rest)
    head = head.replace(OPEN.encode(), f"{SEAL}{total.hexdigest()}".encode(), 1)
    write_atomically(path, head, rest)


def read_tensors(path: Path, way_out: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors; a file that is not as it was written is refused, with the way out."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[KEY])
            if "seal" not in header:
                raise ValueError("it has no checksum: another version of endocil wrote it")
            if header.pop("seal") != _seal_of(path):
                raise ValueError("its bytes are not those that were written: the file is damaged")
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); {way_out}") from error


def _seal_of(path: Path) -> str:
    total = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        length = file.read(8)
        head = length + file.read(_head_length(length) - 8)
        start = head.index(SEAL.encode())
        total.update(head[:start] + OPEN.encode() + head[start + len(OPEN) :])
        while block := file.read(BLOCK):
            total.update(block)
    return f"{SEAL}{total.hexdigest()}"


def _head_length(first: bytes | memoryview) -> int:
    """Bytes before the tensors: safetensors begins with the length of its JSON."""
    return 8 + int.from_bytes(first, "little")
