"""The first task, trained once: methods that start alike load its network from a folder, bit for bit.

A file is named after everything that decides those bits: code, images, network, schedule, seed, machine. It holds
backbone and classifier after the phase, and what each epoch measured. One process trains, under a lock that ends
with it; others wait and load the result. A method says by `Phase.first_task_name` that its first task is alike.
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
from endocil.io.files import lock, make_private_folder, parse_json, private, write_atomically
from endocil.learning.optimizers import optimizer_class
from endocil.methods.base import Method, Phase
from endocil.networks import instruction_set

PACKAGE = Path(__file__).parents[1]
KNOWN = ("endocil", "torch", "abc", "builtins")  # where the bases of a method from outside come from
Log = Callable[[str], None]


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
        self, method: Method, phase: Phase, *, seed: int, augmentation: Augmentation, log: Log
    ) -> Iterator["StoredTask"]:
        """The entry of this first task; while it is open, no other process trains it."""
        refuse_more_than_the_network(method, phase)
        schedule = phase.schedule
        decides = {
            **self.facts,
            "start": self.start,
            "code": _code(
                method,
                optimizer_class(schedule.optimizer),
                *(operation.function for operation in augmentation.operations),
            ),
            "machine": machine_of(method.device),
            "objective": phase.first_task_name,
            "augmented": phase.augmented,
            "takes_maps": phase.takes_maps,
            "schedule": {**dataclasses.asdict(schedule), "milestones": schedule.milestone_epochs},
            "augmentation": dataclasses.asdict(augmentation),
            "seed": seed,
            "network": [repr(method.backbone), sorted(getattr(method.backbone, "frozen_stages", ()))],
            "normalisation": dataclasses.asdict(method.normalisation),
            "classifier": repr(method.classifier),
            "images": _digest_of_images(phase.images),
        }
        key = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()
        make_private_folder(self.folder)
        with open(self.folder / f"{key}.lock", "ab", opener=private) as file:
            if lock(file, wait=False) == "taken":  # where files cannot be locked, each trains for itself
                log("another run is training the same first task; waiting for it")
                lock(file)
            yield StoredTask(self.folder / f"{key}.safetensors", log)


@dataclass(frozen=True)
class StoredTask:
    """The file of one first task, which may not exist yet."""

    path: Path
    log: Log

    def take(self) -> Trained | None:
        """The stored first task; None if there is none, or it is damaged or belongs to another key."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                header = parse_json((file.metadata() or {})["endocil"])
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
            if (header["key"], header["state"]) != (self.path.stem, digest_of(state)):
                raise ValueError("its content does not match its name")
            return Trained(state, header["epochs"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            self.log(f"the shared first task {self.path} cannot be used ({error}); it is trained again")
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
    more = any(parameter not in network for module in phase.train for parameter in module.parameters())
    if phase.first_task_name and (more or phase.also_changes or phase.after_step or any(map(len, phase.replay))):
        raise EndocilError(
            f"{type(method).__name__} shares its phase '{phase.name}', which changes more than backbone and "
            f"classifier, or learns from more than its images; leave Phase.first_task_name empty"
        )


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


def _code(method: Method, *further: Any) -> str:
    """A method from outside shares with itself alone: its options count too."""
    code = code_of(type(method), type(method.backbone), *further)
    if type(method) in _from_outside(type(method)):
        plain = {key: value for key, value in vars(method).items() if isinstance(value, str | int | float)}
        code += f"{type(method)} {sorted(plain.items())}"
    return code


def code_of(*things: Any) -> str:
    """A digest of the package, and of the files of classes and functions from outside."""
    total = hashlib.sha256(_package().encode())
    for file in sorted({Path(inspect.getfile(base)) for thing in things for base in _from_outside(thing)}):
        total.update(file.name.encode() + file.read_bytes())
    return total.hexdigest()


def _from_outside(thing: Any) -> set[Any]:
    """A function, or a class and its bases, as far as they come from outside."""
    bases = getattr(thing, "__mro__", (thing,))
    return {base for base in bases if base.__module__.partition(".")[0] not in KNOWN}


@functools.cache  # a process runs the code that it began with
def _package() -> str:
    return digest_of_code(PACKAGE)


def digest_of_code(folder: Path) -> str:
    """Of every file of code: which of them decide bits changes with the code itself."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        total.update(f"{file.relative_to(folder).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


def machine_of(device: torch.device) -> dict[str, Any]:
    """What may select another kernel and change the last digit."""
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "instructions": instruction_set(),
        "threads": torch.get_num_threads(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": torch.backends.cudnn.version(),
    }
