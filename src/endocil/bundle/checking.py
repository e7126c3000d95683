"""Parts of a bundle that do not fit together are refused before a network of any size is built."""

from collections.abc import Mapping

import torch
from torch import Tensor

from endocil.bundle.manifest import Manifest
from endocil.bundle.pictures import Pictures, refuse_unknown
from endocil.bundle.plain import refuse_control, refuse_control_in
from endocil.bundle.unlike import MEANS, WHITENING
from endocil.errors import EndocilError
from endocil.images.augment import DEVIATION, MEAN
from endocil.settings import load_settings


def refuse_parts_that_do_not_fit(
    manifest: Manifest,
    state: Mapping[str, Tensor],
    statistics: Mapping[str, Tensor],
    spread: Mapping[str, Tensor],
    exemplars: Pictures,
    held_out: Pictures,
) -> None:
    """Each refusal says what is wrong, without the name of the file."""
    _refuse_control(manifest, statistics, exemplars, held_out)
    if not manifest.pictures and (len(exemplars) or len(held_out)):
        raise EndocilError("the bundle says that no picture is inside, but holds some")
    _refuse_tasks(manifest)
    _refuse_preprocessing(manifest)
    names = [learned.name for learned in manifest.classes]
    refuse_unknown("exemplars", exemplars, names, len(manifest.increments))
    refuse_unknown("held-out", held_out, names, len(manifest.increments))
    _refuse_spread(spread, len(names))
    for part in (state, statistics, spread):
        broken = [name for name, value in part.items() if not bool(value.isfinite().all())]
        if broken:
            raise EndocilError(f"numbers that are not finite in {broken[0][:80]!a}")


def _refuse_control(
    manifest: Manifest, statistics: Mapping[str, Tensor], exemplars: Pictures, held_out: Pictures
) -> None:
    """Weights have the names of the network's own."""
    refuse_control_in("manifest.json", manifest.model_dump(mode="json"))
    for name in statistics:
        refuse_control("the name of a statistic", name)
    for kind, pictures in (("exemplars.csv", exemplars), ("held-out.csv", held_out)):
        for origin in pictures.origins:
            for field, value in vars(origin).items():
                refuse_control(f"{kind}, {field}", str(value))


def _refuse_spread(spread: Mapping[str, Tensor], n: int) -> None:
    """Whether it fits the network's features is seen once there is a network."""
    if not spread:
        return
    if set(spread) != {MEANS, WHITENING}:
        raise EndocilError(f"a spread of {sorted(spread)[:5]!a}; expected {MEANS} and {WHITENING}")
    d = spread[MEANS].shape[-1] if spread[MEANS].ndim else 0
    for name, shape in ((MEANS, (n, d)), (WHITENING, (d, d))):
        found = spread[name]
        if tuple(found.shape) != shape or found.dtype != torch.float32:
            raise EndocilError(f"the spread's {name} is {found.dtype} of shape {tuple(found.shape)}")


def _refuse_tasks(manifest: Manifest) -> None:
    names, sizes = [learned.name for learned in manifest.classes], manifest.increments
    if len(set(names)) < len(names):
        raise EndocilError("a class is there twice")
    if sum(sizes) != len(names):
        raise EndocilError(f"{len(names)} classes, but tasks of {list(sizes)[:10]}")
    tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
    if [learned.task for learned in manifest.classes] != tasks:
        raise EndocilError("the classes do not stand in the order of their tasks")


def _refuse_preprocessing(manifest: Manifest) -> None:
    said, settings = manifest.preprocessing, load_settings(manifest.settings)
    if (settings.data.size, settings.data.crop_frame) != (said.size, said.crop_frame):
        raise EndocilError("its settings and its preprocessing name different sizes or frames")
    if (said.mean, said.deviation) != (MEAN, DEVIATION):
        raise EndocilError(
            f"pictures are normalised by {said.mean} and {said.deviation}; this version of endocil knows "
            f"{MEAN} and {DEVIATION}"
        )
