"""The first task, trained once: methods that start alike take its network from a folder, to the same bits.

A file is named after everything that decides those bits: code, images, network, schedule, seed, machine. It holds
backbone and classifier after the phase, and what each epoch measured. One process trains, under a lock that dies
with it; others wait and take the result. A method says by `Phase.shared` that its first task is alike.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from endocil.data.augment import Augmentation
from endocil.data.batches import ImageSet
from endocil.errors import EndocilError
from endocil.io.files import write_atomically
from endocil.io.locks import lock
from endocil.methods.base import Method, Phase
from endocil.networks import instruction_set

PACKAGE = Path(__file__).parents[1]
KNOWN = ("endocil", "torch", "abc", "builtins")  # where the bases of a method from outside come from
Say = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """A first task as it was trained: the network, and one event for each epoch."""

    state: Mapping[str, Tensor]
    epochs: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class FirstTasks:
    """A folder of trained first tasks.

    `start` is a digest of the backbone that the run began with; `facts` are what else decides bits: precision."""

    folder: Path
    start: str
    facts: Mapping[str, Any]

    @contextmanager
    def of(
        self, method: Method, phase: Phase, *, seed: int, augmentation: Augmentation, say: Say
    ) -> Iterator["Place"]:
        """The place of this first task; while this is open no other process trains it."""
        refuse_more_than_the_network(method, phase)
        schedule = phase.schedule
        decides = {
            **self.facts,
            "start": self.start,
            "code": _code(method),
            "machine": _machine(method.device),
            "objective": phase.shared,
            "augmented": phase.augmented,
            "schedule": {**dataclasses.asdict(schedule), "milestones": schedule.milestone_epochs},
            "augmentation": dataclasses.asdict(augmentation),
            "seed": seed,
            "network": [repr(method.backbone), sorted(getattr(method.backbone, "frozen_stages", ()))],
            "classifier": repr(method.classifier),
            "images": _digest_of_images(phase.images),
        }
        key = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{key}.lock").open("ab") as file:
            _lock(file, say)
            yield Place(self.folder / f"{key}.safetensors", say)


@dataclass(frozen=True)
class Place:
    """Where one first task is kept, or will be."""

    path: Path
    say: Say

    def take(self) -> Trained | None:
        """What is kept there; none where nothing is, or what is there is damaged or another's."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["endocil"])
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
            if (header["key"], header["state"]) != (self.path.stem, digest_of(state)):
                raise ValueError("its content is not what its name says")
            return Trained(state, header["epochs"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            self.say(f"the shared first task {self.path} cannot be used ({error}); it is trained anew")
            return None

    def keep(self, method: Method, epochs: Sequence[dict[str, Any]]) -> None:
        state = network_of(method)
        header = {"key": self.path.stem, "state": digest_of(state), "epochs": list(epochs)}
        write_atomically(self.path, save(state, metadata={"endocil": json.dumps(header)}))


def network_of(method: Method) -> dict[str, Tensor]:
    """Values of backbone and classifier, in memory of their own."""
    return {
        f"{part}.{name}": torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        for part, module in _network(method).items()
        for name, value in module.state_dict().items()
    }


def put_into(method: Method, state: Mapping[str, Tensor]) -> None:
    """Backbone and classifier take these values, and stand as a phase leaves them."""
    for part, module in _network(method).items():
        own = {name[len(part) + 1 :]: value for name, value in state.items() if name.startswith(f"{part}.")}
        module.load_state_dict(own)
    method.eval()


def _network(method: Method) -> dict[str, nn.Module]:
    return {"backbone": method.backbone, "classifier": method.classifier}


def refuse_more_than_the_network(method: Method, phase: Phase) -> None:
    network = {parameter for module in _network(method).values() for parameter in module.parameters()}
    if phase.shared and any(
        parameter not in network for module in phase.train for parameter in module.parameters()
    ):
        raise EndocilError(
            f"{type(method).__name__} shares its phase '{phase.name}', which trains more than backbone and "
            f"classifier; leave Phase.shared empty"
        )


def _lock(file: Any, say: Say) -> None:
    """Wait until no other process trains this; where files cannot be locked, each trains for itself."""
    if lock(file, wait=False) == "taken":
        say("another run is training the same first task; waiting for it")
        lock(file)


def digest_of(state: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, value in sorted(state.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _digest_of_images(images: ImageSet) -> str:
    """Of the pixels themselves, so that it does not matter where they come from; names and order count too."""
    names = "\0".join(images.images.describe(row)[0] for row in images.rows.tolist())
    total = hashlib.sha256(names.encode(errors="surrogateescape") + images.labels.numpy().tobytes())
    for rows in torch.split(images.rows, 256):
        total.update(images.images.gather(rows).contiguous().numpy().tobytes())
    return total.hexdigest()


def _code(method: Method) -> str:
    """Of the package. A method or backbone from outside shares with itself alone: its files and options count."""
    bases = {base for one in (type(method), type(method.backbone)) for base in one.__mro__}
    own = {base for base in bases if base.__module__.partition(".")[0] not in KNOWN}
    total = hashlib.sha256(_package().encode())
    for file in sorted({Path(inspect.getfile(base)) for base in own}):
        total.update(file.name.encode() + file.read_bytes())
    if type(method) in own:
        plain = {key: value for key, value in vars(method).items() if isinstance(value, str | int | float)}
        total.update(f"{type(method)} {sorted(plain.items())}".encode())
    return total.hexdigest()


@functools.cache  # a process runs the code that it began with
def _package() -> str:
    return digest_of_code(PACKAGE)


def digest_of_code(folder: Path) -> str:
    """Of every file of code: which of them decide bits changes with the code itself."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        total.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


def _machine(device: torch.device) -> dict[str, Any]:
    """What may choose another kernel, and with it another last digit."""
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "instructions": instruction_set(),
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }
