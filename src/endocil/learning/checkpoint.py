"""One file that holds a run in progress: tensors and plain numbers in safetensors, replaced atomically.

Structure is a function of the task sizes, so a checkpoint stores values only: a fresh method is grown to the same
point and the values overwrite its own.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from endocil.data.scenario import Task
from endocil.errors import EndocilError
from endocil.io.files import write_atomically
from endocil.learning.memory import ExemplarMemory
from endocil.methods.base import Method

FORMAT = 1
FILE = "checkpoint.safetensors"


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

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors stored under `name/`."""
        return {
            key[len(name) + 1 :]: value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }

    def momentum(self) -> list[Tensor]:
        found = self.part("momentum")
        return [found[str(i)] for i in range(len(found))]


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
    tensors = {
        **_under("method", method.state_dict()),
        **_under("statistics", method.statistics),
        **_under("memory", {} if memory is None else memory.state()),
        **_under("momentum", {str(i): tensor for i, tensor in enumerate(momentum)}),
        **_under("rule", {} if rule is None else rule.state_dict()),
        **_under("precision", {} if precision is None else precision.state_dict()),
    }
    header = json.dumps({"format": FORMAT, "events": events, **asdict(position)})
    write_atomically(folder / FILE, save(tensors, metadata={"endocil": header}))


def _under(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["endocil"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise EndocilError(
            f"checkpoint {path} cannot be read ({error}); start the run again in a new folder"
        ) from error
    if header["format"] != FORMAT:
        raise EndocilError(
            f"checkpoint {path} has format {header['format']}; this version of endocil reads {FORMAT}"
        )
    position = Position(header["task"], header["phase"], header["epoch"])
    return Checkpoint(position, header["events"], tensors)


def grow(method: Method, task: Task, device: torch.device) -> None:
    """Make room for a task and put the method where it learns, in the layout that convolutions are fastest in."""
    method.grow(task)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def restore(
    checkpoint: Checkpoint,
    method: Method,
    memory: ExemplarMemory | None,
    tasks: tuple[Task, ...],
    device: torch.device,
) -> None:
    """Grow a fresh method to where the checkpoint stands, step by step as the run did, and overwrite its values."""
    for task in tasks[: checkpoint.position.grown]:
        grow(method, task, device)
    try:
        method.load_state_dict(checkpoint.part("method"))
    except RuntimeError as error:
        raise EndocilError(
            "the checkpoint does not fit the run's settings.toml; was that changed since?"
        ) from error
    method.statistics = checkpoint.part("statistics")
    if memory is not None:
        memory.load_state(checkpoint.part("memory"))
