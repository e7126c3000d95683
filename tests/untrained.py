"""Models of networks that have learned nothing, made in a moment: for tests of what is done with models."""

from pathlib import Path
from typing import Any

import torch
from pictures import make_images

from endocil.data.augment import IMAGENET
from endocil.data.decode import RULES
from endocil.data.scenario import Task
from endocil.learning.build import build_learning, complete
from endocil.learning.features import CLASS_MEANS, Outputs, class_means, outputs_of
from endocil.learning.memory import KeptImages, Provenance, no_images
from endocil.methods import Method
from endocil.model.file import ModelFile, write_model_file
from endocil.model.manifest import Calibration, GateVerdict, LearnedClass, Manifest, Preprocessing, Step
from endocil.model.out_of_distribution import ood_scores, spread_of_features
from endocil.settings.settings import load_settings

CLASSES = ("z-line", "polyp", "<b>cecum</b>", "ulcer, bleeding", "=1+1")  # names are data, whatever they look like
EACH = 3  # exemplars of a class
INCREMENTS = (2, 1, 2)
VERDICT = GateVerdict(
    passed=True,
    line="PASS: 3 checks of the rules hold.",
    made="2026-02-03T04:05:06+00:00",
    judged="a" * 64,
    old="b" * 64,
    old_title="first, version 1",
    rules="gate.toml",
    rules_digest="c" * 64,
    test="test-images",
    images=120,
)


def untrained(
    method: str = "icarl",
    *,
    seed: int = 0,
    size: int = 32,
    width: int = 8,
    calibrated: bool = True,
    pictures: bool = True,
    crop_frame: bool = False,
    name: str = "untrained",
) -> ModelFile:
    """Five classes in three tasks; in a method that wants them all at once, in one."""
    settings = complete(
        load_settings(
            {
                "seed": seed,
                "data": {"name": "synthetic", "size": size, "crop_frame": crop_frame},
                "network": {"width": width},
                "method": {"name": method},
                "run": {"threads": 1},
            }
        )
    )
    built, _ = build_learning(settings)
    increments = (len(CLASSES),) if built.joint else INCREMENTS
    _grow(built, increments)
    _shake(built, seed)
    made = make_images([EACH] * len(CLASSES), size=size, seed=seed)
    own = _pictures(made.pixels, increments) if pictures else no_images(size)
    outputs = outputs_of(built, made.pixels)
    if built.replay:
        built.statistics[CLASS_MEANS] = class_means(outputs.features, torch.tensor(made.table.labels), len(CLASSES))
    spread = spread_of_features(outputs.features, torch.tensor(made.table.labels)) if built.replay else {}
    manifest = Manifest(
        name=name,
        settings=settings.model_dump(mode="json", exclude_none=True),
        classes=tuple(LearnedClass(name=CLASSES[label], task=task, images=10) for task, label in _labels(increments)),
        increments=increments,
        preprocessing=Preprocessing(
            size=size, crop_frame=crop_frame, mean=IMAGENET.mean, deviation=IMAGENET.std, rules=RULES
        ),
        calibration=_calibration(built, outputs, spread) if calibrated else None,
        metrics=None,
        environment={},
        history=(Step(made="2026-01-01T00:00:00+00:00", by="run", endocil="0.1.0", parent=None),),
        learns=pictures,
    )
    state = {key: value.clone() for key, value in built.state_dict().items()}
    return ModelFile(manifest, state, dict(built.statistics), own, no_images(size), spread=spread)


def write_untrained(path: Path, method: str = "icarl", **how: Any) -> Path:
    write_model_file(path, untrained(method, **how))
    return path


def _grow(method: Method, increments: tuple[int, ...]) -> None:
    old = 0
    for index, new in enumerate(increments):
        method.grow(Task(index, old, new))
        old += new


def _shake(method: Method, seed: int) -> None:
    """Branches begin as copies of each other, which an optimiser of graphs would melt into one; and what begins as 0
    or 1 would not be missed if an export left it out."""
    random = torch.Generator().manual_seed(seed)
    for name, value in method.state_dict().items():
        if not value.is_floating_point():
            continue
        noise = 0.1 * torch.randn(value.shape, generator=random)
        if name.endswith("running_var"):
            value *= noise.exp()  # stays above 0
        else:
            value += noise * (value.std() if value.ndim > 1 else 1.0)


def _labels(increments: tuple[int, ...]) -> list[tuple[int, int]]:
    tasks = [task for task, size in enumerate(increments) for _ in range(size)]
    return [(task, label) for label, task in enumerate(tasks)]


def _pictures(pixels: torch.Tensor, increments: tuple[int, ...]) -> KeptImages:
    origins = tuple(
        Provenance(f"secret/patient-{label}-{order}.png", CLASSES[label], order, task, "patient", "gastroscope")
        for task, label in _labels(increments)
        for order in range(EACH)
    )
    return KeptImages(pixels, origins)


def _calibration(method: Method, outputs: Outputs, spread: dict[str, torch.Tensor]) -> Calibration:
    """A temperature that is not 1, and a threshold that pictures of the same kind stay below."""
    return Calibration(
        images=len(outputs.logits),
        temperature=1.7,
        mean_temperature=0.3 if CLASS_MEANS in method.statistics else None,
        error_before=0.2,
        error=0.1,
        folds=2,
        ood_threshold=float(ood_scores(outputs, spread).max()) + 0.05,
        ood_rate=0.05,
    )
