"""From a model file to the trained method.

The network is first built on torch's meta device, so absurd sizes in a hostile file allocate nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from endocil.errors import EndocilError, FileFormatError, SettingsError
from endocil.io.terminal import one_line
from endocil.learning.build import build_learning, complete
from endocil.learning.checkpoint import grow
from endocil.learning.features import outputs_of
from endocil.methods import Method
from endocil.model.file import ModelFile
from endocil.model.out_of_distribution import features_in
from endocil.registry import trust as trust_names
from endocil.settings.settings import Settings, load_settings


@contextmanager
def without_memory() -> Iterator[None]:
    """Tensors made here are on torch's device "meta": names, shapes and types, no values."""
    with torch.device("meta"), _Shortcuts():
        yield


_KEEP_SHAPE = (functional.batch_norm, functional.relu, functional.relu6)


class _Shortcuts(TorchFunctionMode):
    """The few operations that initialisation needs on the meta device, and those that show the shapes of maps.

    Without these torch would do the same, but loads its compiler for it: seconds, and a folder for temporary files."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        others = [value.shape for value in args[1:] if isinstance(value, Tensor)]
        if function in (Tensor.normal_, Tensor.mul, Tensor.sub) and not others:
            return args[0]
        if function in _KEEP_SHAPE or (function is Tensor.add and others == [args[0].shape]):
            return args[0]
        if function is torch.conv2d and not isinstance(args[4] if len(args) > 4 else options.get("padding"), str):
            return _convolved(*args, **options)
        if function is torch.randn:
            return torch.empty(*args, **{key: value for key, value in options.items() if key != "generator"})
        return _joined(*args, **options) if function is torch.cat else function(*args, **options)


def _convolved(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """The shape that a convolution gives."""
    each = ([value] * 2 if isinstance(value, int) else value for value in (stride, padding, dilation))
    sizes = zip(images.shape[2:], weight.shape[2:], *each, strict=True)
    places = [(size + 2 * pad - apart * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, apart in sizes]
    return torch.empty(len(images), len(weight), *places, dtype=images.dtype)


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype)


_UNBUILDABLE = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, AttributeError)
CHANGEABLE = ("train", "run", "memory", "method")
FIXED = ("method.name", "run.first_tasks", "run.keep", "run.gallery")  # learning on has no use for these


def restored_method(file: ModelFile, settings: Settings, device: torch.device) -> Method:
    """The method as it was after its last task, in eval mode; `settings` are those of `model_settings`."""
    with _one_line():
        method = _grown(settings, file) if settings.outside_code(data=False) else _filled(settings, file)
        method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        method.statistics = {name: value.clone() for name, value in file.statistics.items()}
        _refuse_wrong_input_or_output(method.eval(), file)
    return method


def _filled(settings: Settings, file: ModelFile) -> Method:
    """Built on the meta device, compared with the weights, and only then given them."""
    with without_memory():
        method, _ = build_learning(settings)
        for task in file.tasks:
            method.grow(task)
            if len(method.state_dict()) > len(file.state):  # before many tasks make it any larger
                break
    _refuse_unfit(method.state_dict(), file.state)
    if settings.network.backbone.startswith("timm:"):  # some of its values are made by the constructor alone
        return _grown(settings, file)
    method.load_state_dict({name: value.clone() for name, value in file.state.items()}, assign=True)
    if any(value.is_meta for value in chain(method.parameters(), method.buffers())):
        raise ValueError("some of the network's values are not among the weights")
    return method


def _grown(settings: Settings, file: ModelFile) -> Method:
    """Built and grown as in the run, for trusted code from outside and timm: its constructor may need real values."""
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
        own, stored = expected[name], state[name]
        if own.shape != stored.shape or own.dtype != stored.dtype:
            raise ValueError(
                f"{name} is {stored.dtype} of shape {tuple(stored.shape)}, expected {own.dtype} of "
                f"shape {tuple(own.shape)}"
            )


def _refuse_wrong_input_or_output(method: Method, file: ModelFile) -> None:
    """Normalisation and output shapes must fit the network and the classes; one black image is passed through."""
    recorded, expected = file.manifest.preprocessing, method.normalisation
    if (recorded.mean, recorded.deviation) != (expected.mean, expected.std):
        raise ValueError(
            f"images were normalised by {recorded.mean} and {recorded.deviation}; the network expects "
            f"{expected.mean} and {expected.std}"
        )
    size, n = file.manifest.preprocessing.size, len(file.classes)
    outputs = outputs_of(method, torch.zeros(1, size, size, 3, dtype=torch.uint8))
    if outputs.logits.shape != (1, n) or (outputs.distances is not None and outputs.distances.shape != (1, n)):
        raise ValueError(f"the network does not have {n} outputs, one for each class")
    if file.spread and features_in(file.spread) != outputs.features.shape[1]:
        raise ValueError("the spread of the learned features has another number of features than the network")


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except (EndocilError, *_UNBUILDABLE) as error:
        reason = one_line(error)[:200]
        shown = reason.encode("ascii", "backslashreplace").decode()
        raise FileFormatError(f"the model's weights do not fit its settings: {shown}") from error


def model_settings(file: ModelFile, changes: Sequence[str] = (), *, trust: bool = False) -> Settings:
    """The settings of a model, complete, with `changes` such as "train.epochs=10".

    `trust`: they may name methods, optimisers and the like of other packages, whose code runs when they are imported;
    without it such a model is refused. No file that they name is read: the weights that a backbone once started
    from are part of the model."""
    for change in changes:
        key = change.partition("=")[0].strip()
        if key in FIXED or key.partition(".")[0] not in CHANGEABLE:
            raise SettingsError(
                f"'{key}' cannot be changed in a model that has learned; --set takes train.*, run.*, memory.*, "
                f"options of the method, and the data.* keys that say how the new images are read (not name, size, "
                f"crop_frame, fit)"
            )
    settings = file.settings
    outside = settings.outside_code(data=False)  # a model never loads data by its settings
    for key, name in outside.items():
        if not trust:
            raise SettingsError(
                f"the model's {key} is {name[:100]!a}, code from outside the package; "
                f"it is run only with --trust (trust=True in Python)"
            )
    trust_names(outside.values())
    network = settings.network.model_copy(update={"weights": None})
    settings = settings.model_copy(update={"network": network})
    if changes:
        settings = load_settings(settings, changes)
        trust_names(load_settings({}, changes).outside_code(data=False).values())  # what the caller typed
    with _one_line():
        return complete(settings, data=False)
