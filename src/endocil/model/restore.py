"""From a model file to the method that was learned.

The network is first built without memory: what it would hold is known by shape, so absurd sizes cost nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from endocil.errors import EndocilError, FileFormatError, SettingsError
from endocil.learning.build import build_learning, complete
from endocil.learning.checkpoint import grow
from endocil.learning.features import seen_in
from endocil.methods import Method
from endocil.model.file import ModelFile
from endocil.model.out_of_distribution import MEANS
from endocil.settings.settings import Settings, load_settings


@contextmanager
def without_memory() -> Iterator[None]:
    """Tensors made here are on torch's device "meta": names, shapes and types, no values."""
    with torch.device("meta"), _Shortcuts():
        yield


class _Shortcuts(TorchFunctionMode):
    """The few calculations that first values need, by shape alone.

    Without these torch would do the same, but loads its compiler for it: seconds, and a folder for temporary files."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function in (Tensor.normal_, Tensor.mul, Tensor.sub) and not _tensors(args[1:]):
            return args[0]
        return _joined(*args, **options) if function is torch.cat else function(*args, **options)


def _tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) for value in values)


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype)


_UNBUILDABLE = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError)


CHANGEABLE = ("train", "run", "memory", "method")
FIXED = ("method.name", "run.first_tasks", "run.keep", "run.gallery")  # learning on has no use for these


def restored_method(file: ModelFile, settings: Settings, device: torch.device) -> Method:
    """The method as it was after its last task, in eval mode; `settings` are those of `model_settings`."""
    build = _grown if any(":" in name for name in _names(settings).values()) else _filled
    with _one_line():
        method = build(settings, file)
        method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        method.statistics = {name: value.clone() for name, value in file.statistics.items()}
        _refuse_wrong_outputs(method.eval(), file)
    return method


def _filled(settings: Settings, file: ModelFile) -> Method:
    """Built without memory, compared with the weights, and only then filled with them."""
    with without_memory():
        method, _ = build_learning(settings)
        for task in file.tasks:
            method.grow(task)
            if len(method.state_dict()) > len(file.state):  # before many tasks make it any larger
                break
    _refuse_unfit(method.state_dict(), file.state)
    method.load_state_dict({name: value.clone() for name, value in file.state.items()}, assign=True)
    if any(value.is_meta for value in chain(method.parameters(), method.buffers())):
        raise ValueError("some of the network's values are not among the weights")
    return method


def _grown(settings: Settings, file: ModelFile) -> Method:
    """Code from outside, which is trusted: grown as the run did it, as its constructor may need real numbers."""
    method, _ = build_learning(settings)
    for task in file.tasks:
        grow(method, task, torch.device("cpu"))
    _refuse_unfit(method.state_dict(), file.state)
    method.load_state_dict(dict(file.state))
    return method


def _refuse_unfit(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    for name in sorted({*expected, *state}):
        if name not in state:
            raise ValueError(f"{name} is missing")
        if name not in expected:
            raise ValueError(f"{name[:80]!a} is not part of the network")
        wanted, found = expected[name], state[name]
        if wanted.shape != found.shape or wanted.dtype != found.dtype:
            raise ValueError(
                f"{name} is {found.dtype} of shape {tuple(found.shape)}, expected {wanted.dtype} of "
                f"shape {tuple(wanted.shape)}"
            )


def _refuse_wrong_outputs(method: Method, file: ModelFile) -> None:
    """What comes out of the network must fit the classes and their means: one black image shows it."""
    size, n = file.manifest.preprocessing.size, len(file.classes)
    seen = seen_in(method, torch.zeros(1, size, size, 3, dtype=torch.uint8))
    if seen.logits.shape != (1, n) or (seen.distances is not None and seen.distances.shape != (1, n)):
        raise ValueError(f"the network does not tell {n} classes apart")
    if file.spread and file.spread[MEANS].shape[1] != seen.features.shape[1]:
        raise ValueError("the spread is of other features than the network's")


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except (EndocilError, *_UNBUILDABLE) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        shown = reason.encode("ascii", "backslashreplace").decode()
        raise FileFormatError(f"the model's weights do not fit its settings: {shown}") from error


def model_settings(file: ModelFile, changes: Sequence[str] = (), *, trust: bool = False) -> Settings:
    """The settings of a model, complete, with `changes` such as "train.epochs=10".

    `trust`: they may name methods, backbones or selectors of other packages, whose code runs when they are imported;
    without it such a model is refused. No file that they name is read: the weights that a backbone once started
    from are part of the model."""
    for change in changes:
        key = change.partition("=")[0].strip()
        if key in FIXED or key.partition(".")[0] not in CHANGEABLE:
            raise SettingsError(
                f"'{key}' cannot be changed in a model that has learned; --set takes train.*, run.*, memory.*, "
                f"options of the method, and data.* for reading the new images"
            )
    settings = file.settings
    for key, name in _names(settings).items():
        if ":" in name and not trust:
            raise SettingsError(
                f"the model's {key} is {name[:100]!a}, code from outside the package; "
                f"it is run only with --trust (trust=True in Python)"
            )
    network = settings.network.model_copy(update={"weights": None})
    settings = load_settings(settings.model_copy(update={"network": network}), changes)
    with _one_line():
        return complete(settings, data=False)


def _names(settings: Settings) -> dict[str, str]:
    """What settings name that could be code from outside; a model never loads data by them."""
    return {
        "method.name": settings.method.name,
        "network.backbone": settings.network.backbone,
        "memory.select": settings.memory.select or "",
    }
