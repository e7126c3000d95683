"""Checkpoints: one file of tensors and numbers, replaced atomically, and one of exemplars, written once per task; and
the folder of a task that is learned outside a run.

Structure is a function of the task sizes, so a checkpoint stores values only: a fresh method is grown to the same
point and the values overwrite its own. Both files carry a checksum of all their bytes, as safetensors has none: a
flipped bit is found, not learned from. It stands in the file's own header, and is taken with zeros in its place.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from endocil.data.scenario import Task
from endocil.data.seeding import torch_seeded
from endocil.errors import EndocilError, FileFormatError, ResourceError, SettingsError
from endocil.io.files import LOCK_FILE, locked, make_private_folder, parse_json, write_atomically, write_json
from endocil.learning.events import refuse_unfit
from endocil.learning.memory import ExemplarMemory, KeptImages, Provenance
from endocil.learning.optimizers import Number, OptimizerState
from endocil.methods.base import Method

FORMAT = 5
FILE = "checkpoint.safetensors"
ANEW = "start the run again in a new folder"
EXEMPLARS = "exemplars-{task}.safetensors"  # written once a task: pixels do not change in between
KEY = "endocil"  # of a file's metadata
SEAL = "blake2b-128:"
OPEN = SEAL + "0" * 32
BLOCK = 1 << 20  # bytes


@dataclass(frozen=True)
class Position:
    """The position of a run: everything before this step of this epoch of this phase of this task is done."""

    task: int = 0
    phase: int = 0
    epoch: int = 0
    step: int = 0

    @property
    def grown(self) -> int:
        """How many tasks the method has made room for."""
        return self.task + (self.phase > 0 or self.epoch > 0 or self.step > 0)


class _Header(BaseModel):
    """What is relied on: a checkpoint may come with somebody else's run, its checksum made anew."""

    model_config = ConfigDict(strict=True)
    task: NonNegativeInt
    phase: NonNegativeInt
    epoch: NonNegativeInt
    step: NonNegativeInt
    events: NonNegativeInt
    exemplars: Annotated[str, Field(pattern=r"^exemplars-[0-9]+\.safetensors$")] | None
    optimizer: dict[str, bool | Number]
    settings: dict[str, Any]
    results: dict[str, str] = {}


@dataclass(frozen=True)
class Checkpoint:
    position: Position
    events: int  # lines of events.jsonl that belong to it
    tensors: Mapping[str, Tensor]
    exemplars: KeptImages | None  # of the memory, where there is one
    numbers: Mapping[str, Number]  # of the optimiser's state, beside its tensors
    settings: Mapping[str, Any]  # that it was learned by
    results: Mapping[str, str] = field(default_factory=dict)  # files of the tasks that are done -> their digests

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors stored under `name/`."""
        return _part(self.tensors, name)

    def optimizer(self) -> OptimizerState:
        return OptimizerState(self.part("optimizer"), self.numbers)


def _part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def save_checkpoint(
    folder: Path,
    position: Position,
    events: int,
    method: Method,
    memory: ExemplarMemory | None,
    *,
    optimizer: OptimizerState | None = None,
    rule: nn.Module | None = None,
    precision: nn.Module | None = None,
    log: Mapping[str, Tensor] | None = None,
    settings: Mapping[str, Any] | None = None,
    results: Mapping[str, str] | None = None,
) -> None:
    optimizer = optimizer or OptimizerState()
    exemplars = None if memory is None else _save_exemplars(folder, position.task, memory.exemplars)
    tensors = {
        **add_prefix("method", method.state_dict()),
        **add_prefix("statistics", method.statistics),
        **add_prefix("optimizer", optimizer.tensors),
        **add_prefix("rule", {} if rule is None else rule.state_dict()),
        **add_prefix("precision", {} if precision is None else precision.state_dict()),
        **add_prefix("log", log or {}),
    }
    header = {
        "format": FORMAT,
        "events": events,
        "exemplars": exemplars,
        "optimizer": optimizer.numbers,
        "settings": dict(settings or {}),
        "results": dict(results or {}),
        **asdict(position),
    }
    write_tensors(folder / FILE, header, tensors)
    for old in folder.glob(EXEMPLARS.format(task="*")):
        if old.name != exemplars:
            old.unlink(missing_ok=True)


def _save_exemplars(folder: Path, task: int, exemplars: KeptImages) -> str:
    """The name of the file with the exemplars that later tasks, from this one on, are learned with."""
    path = folder / EXEMPLARS.format(task=task)
    if not path.exists():
        provenance = [asdict(one) for one in exemplars.provenance]
        tensors = {"pixels": exemplars.pixels.contiguous(), **add_prefix("tensors", exemplars.tensors)}
        write_tensors(path, {"provenance": provenance}, tensors)
    return path.name


def add_prefix(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # a copy of its own for each name: safetensors refuses tensors that share memory
    return {
        f"{name}/{key}": torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        for key, value in tensors.items()
    }


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none yet."""
    path = folder / FILE
    if not path.exists():
        return None
    header, values = read_tensors(path, ANEW)
    if header.get("format") != FORMAT:
        raise FileFormatError(
            f"checkpoint {path} has format {header.get('format')}; this version of endocil reads {FORMAT}: {ANEW}"
        )
    refuse_unfit(f"checkpoint {path}", _Header, header)
    position = Position(header["task"], header["phase"], header["epoch"], header["step"])
    exemplars = None if header["exemplars"] is None else _load_exemplars(folder / header["exemplars"])
    numbers, results = header["optimizer"], header.get("results", {})
    return Checkpoint(position, header["events"], values, exemplars, numbers, header["settings"], results)


def _load_exemplars(path: Path) -> KeptImages:
    header, stored = read_tensors(path, ANEW)
    try:
        provenance = tuple(Provenance(**one) for one in header["provenance"])
        pixels, tensors = stored["pixels"], _part(stored, "tensors")
        of_types = all(type(getattr(one, key.name)) is key.type for one in provenance for key in fields(one))
        of_images = pixels.dtype == torch.uint8 and pixels.shape == (len(provenance), *pixels.shape[1:3], 3)
        if not of_types or not of_images or any(values.shape[:1] != pixels.shape[:1] for values in tensors.values()):
            raise ValueError("types or sizes are not those of exemplars")
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); {ANEW}") from error
    return KeptImages(pixels, provenance, tensors)


def grow(method: Method, task: Task, device: torch.device) -> None:
    """Add the outputs of a task and move the method to its device, in channels-last layout."""
    with torch_seeded(method.seed, task.index, "own method"):
        method.grow(task)
    method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def restore(
    checkpoint: Checkpoint,
    method: Method,
    memory: ExemplarMemory | None,
    tasks: tuple[Task, ...],
    classes: Sequence[str],
    device: torch.device,
    *,
    grown: int = 0,
    size: int | None = None,
) -> None:
    """Grow a method to where the checkpoint stands, step by step as the run did, and overwrite its values.

    `grown`: how many of the tasks it has made room for already; a fresh method for none. `size`: of the images."""
    for task in tasks[grown : checkpoint.position.grown]:
        grow(method, task, device)
    try:
        method.load_state_dict(checkpoint.part("method"))
    except RuntimeError as error:
        raise FileFormatError("the checkpoint does not fit the run's settings.toml; was that changed since?") from error
    method.statistics = checkpoint.part("statistics")
    if memory is None:
        return
    kept = checkpoint.exemplars
    if kept is None or not {one.class_name for one in kept.provenance} <= {*classes}:
        raise FileFormatError(f"the exemplars of the checkpoint are not those of the run's classes; {ANEW}")
    if size is not None and len(kept) and kept.pixels.shape[1:3] != (size, size):
        raise FileFormatError(f"the exemplars of the checkpoint are not of {size} x {size} pixels; {ANEW}")
    memory.load(kept, classes)


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
            header = parse_json((file.metadata() or {})[KEY])
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


# --- the folder of one task that is learned outside a run

FINGERPRINT, EVENTS = "learning.json", "events.jsonl"
CREATED = "made_folder"  # by us; a folder of the user's stays
COMPARED = {"parent": "model file", "images": "new images", "settings": "settings", "terms": "--licence and --consent"}


@dataclass(frozen=True)
class WorkFolder:
    """A killed command resumes from here; the folder is removed at the end."""

    path: Path
    ours: bool = False  # named after the output, so it is not a folder of the user's, whoever made it

    @contextmanager
    def open(self, facts: dict[str, str]) -> Iterator[None]:
        """One process at a time; what lies here must be of the same model, images and settings."""
        if self.path.is_file():
            raise SettingsError(f"{self.path} is a file; choose another folder with --work")
        made = not self.path.exists()
        if not made and not self._only_ours():
            raise SettingsError(f"{self.path} holds other files; choose another folder with --work")
        make_private_folder(self.path)
        with locked(self.path, f"another process is learning in {self.path}; let it finish"):
            for left in self._temporary():  # a kill in the middle of writing
                left.unlink(missing_ok=True)
            made = made or self._recorded().get(CREATED) == "yes"
            self._compare({**facts, CREATED: "yes" if made else "no"})
            try:
                yield
            except EndocilError:
                if not self.begun():
                    self.remove()
                raise

    def _only_ours(self) -> bool:
        """Nothing, a step that was begun, or what a kill leaves before its first record was written."""
        names = {entry.name for entry in self.path.iterdir()} - {file.name for file in self._temporary()}
        if LOCK_FILE in names and (self.path / LOCK_FILE).stat().st_size > 0:  # ours is empty
            return False
        begun = set(COMPARED) <= set(self._recorded())
        names -= {file.name for file in self.path.glob(EXEMPLARS.format(task="*"))} if begun else set()
        return names <= ({LOCK_FILE, FINGERPRINT, EVENTS, FILE} if begun else {LOCK_FILE})

    def _temporary(self) -> list[Path]:
        """What a kill in the middle of writing has left."""
        names = "|".join(re.escape(name) for name in (FINGERPRINT, EVENTS, FILE))
        form = re.compile(rf"\.({names}|{EXEMPLARS.format(task='[0-9]+')})\.[0-9a-f]{{32}}\.tmp")
        return [left for left in self.path.glob(".*.tmp") if form.fullmatch(left.name)]

    def _recorded(self) -> dict[str, str]:
        file = self.path / FINGERPRINT
        if not file.is_file():
            return {}
        try:
            facts = parse_json(file.read_text("utf-8"))
        except ValueError:  # somebody else's: ours are complete or absent
            return {}
        return facts if isinstance(facts, dict) else {}

    def begun(self) -> bool:
        """Whether anything is learned that would be lost."""
        return (self.path / FILE).exists()

    def _compare(self, facts: dict[str, str]) -> None:
        if not self.begun():
            write_json(self.path / FINGERPRINT, facts)
            return
        recorded = self._recorded()
        for key in COMPARED:
            if recorded.get(key) != facts[key]:
                raise FileFormatError(
                    f"{self.path} has a checkpoint for other {COMPARED[key]}; repeat the original command, delete the "
                    f"folder to start again, or choose another with --work"
                )

    def discard(self) -> None:
        """Remove what is left of a step that has no checkpoint, unless a process is working on it."""
        if self.path.is_dir() and self._only_ours():
            with suppress(ResourceError), locked(self.path, ""):
                self.remove()

    def remove(self) -> None:
        """What we have written, and the folder if we made it and nothing else lies in it."""
        made = self.ours or self._recorded().get(CREATED) == "yes"
        with suppress(OSError):
            exemplars = self.path.glob(EXEMPLARS.format(task="*"))
            own = (self.path / name for name in (FILE, EVENTS, LOCK_FILE, FINGERPRINT))
            for file in (*self._temporary(), *exemplars, *own):
                file.unlink(missing_ok=True)
            if made:
                self.path.rmdir()
