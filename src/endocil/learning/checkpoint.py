"""A run in progress on disk: one file of tensors and plain numbers, replaced atomically, and one of exemplars.

Structure is a function of the task sizes, so a checkpoint stores values only: a fresh method is grown to the same
point and the values overwrite its own.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from endocil.data.scenario import Task
from endocil.errors import FileFormatError
from endocil.io.files import write_atomically
from endocil.learning.memory import ExemplarMemory, KeptImages, Provenance
from endocil.methods.base import Method

FORMAT = 2
FILE = "checkpoint.safetensors"
EXEMPLARS = "exemplars-{task}.safetensors"  # written once a task: pixels do not change in between


@dataclass(frozen=True)
class Position:
    """Where a run stands: all before this epoch of this phase of this task is done."""

    task: int = 0
    phase: int = 0
    epoch: int = 0

    @property
    def grown(self) -> int:
        """How many tasks the method has made room for."""
        return self.task + (self.phase > 0 or self.epoch > 0)


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    events: int  # lines of events.jsonl that belong to it
    tensors: Mapping[str, Tensor]
    exemplars: KeptImages | None  # of the memory, where there is one

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors stored under `name/`."""
        return {
            key[len(name) + 1 :]: value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }

    def momentum(self) -> list[Tensor]:
        stored = self.part("momentum")
        return [stored[str(i)] for i in range(len(stored))]


def save_checkpoint(
    folder: Path,
    position: Position,
    events: int,
    method: Method,
    memory: ExemplarMemory | None,
    *,
    momentum: Iterable[Tensor] = (),
    rule: nn.Module | None = None,
    precision: nn.Module | None = None,
) -> None:
    exemplars = None if memory is None else _save_exemplars(folder, position.task, memory.exemplars)
    tensors = {
        **add_prefix("method", method.state_dict()),
        **add_prefix("statistics", method.statistics),
        **add_prefix("momentum", {str(i): tensor for i, tensor in enumerate(momentum)}),
        **add_prefix("rule", {} if rule is None else rule.state_dict()),
        **add_prefix("precision", {} if precision is None else precision.state_dict()),
    }
    header = {"format": FORMAT, "events": events, "exemplars": exemplars, **asdict(position)}
    write_atomically(folder / FILE, save(tensors, metadata={"endocil": json.dumps(header)}))
    for old in folder.glob(EXEMPLARS.format(task="*")):
        if old.name != exemplars:
            old.unlink(missing_ok=True)


def _save_exemplars(folder: Path, task: int, exemplars: KeptImages) -> str:
    """The name of the file with the exemplars that later tasks, from this one on, are learned with."""
    path = folder / EXEMPLARS.format(task=task)
    if not path.exists():
        provenance = json.dumps([asdict(one) for one in exemplars.provenance])
        pixels = {"pixels": exemplars.pixels.contiguous()}
        write_atomically(path, save(pixels, metadata={"provenance": provenance}))
    return path.name


def add_prefix(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # a copy of its own for each name: safetensors refuses tensors that share memory
    return {
        f"{name}/{key}": torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        for key, value in tensors.items()
    }


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The run's checkpoint, or none when it was stopped before the first was written."""
    path = folder / FILE
    if not path.exists():
        return None
    header, tensors = _read(path, "endocil")
    if header["format"] != FORMAT:
        raise FileFormatError(
            f"checkpoint {path} has format {header['format']}; this version of endocil reads {FORMAT}: "
            f"start the run again in a new folder"
        )
    position = Position(header["task"], header["phase"], header["epoch"])
    exemplars = None
    if header["exemplars"] is not None:
        provenance, stored = _read(folder / header["exemplars"], "provenance")
        exemplars = KeptImages(stored["pixels"], tuple(Provenance(**one) for one in provenance))
    return Checkpoint(position, header["events"], tensors, exemplars)


def _read(path: Path, key: str) -> tuple[Any, dict[str, Tensor]]:
    """The JSON under `key` of the file's metadata, and its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[key])
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise FileFormatError(
            f"checkpoint {path} cannot be read ({error}); start the run again in a new folder"
        ) from error


def grow(method: Method, task: Task, device: torch.device) -> None:
    """Make room for a task and put the method where it learns, in the layout that convolutions are fastest in."""
    method.grow(task)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def restore(
    checkpoint: Checkpoint,
    method: Method,
    memory: ExemplarMemory | None,
    tasks: tuple[Task, ...],
    classes: Sequence[str],
    device: torch.device,
) -> None:
    """Grow a fresh method to where the checkpoint stands, step by step as the run did, and overwrite its values."""
    for task in tasks[: checkpoint.position.grown]:
        grow(method, task, device)
    try:
        method.load_state_dict(checkpoint.part("method"))
    except RuntimeError as error:
        raise FileFormatError(
            "the checkpoint does not fit the run's settings.toml; was that changed since?"
        ) from error
    method.statistics = checkpoint.part("statistics")
    if memory is not None and checkpoint.exemplars is not None:
        memory.load(checkpoint.exemplars, classes)
