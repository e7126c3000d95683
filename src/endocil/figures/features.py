"""The first task's training features of one fixed network, and what selectors choose among them.

As in the paper the network stays that of the first task, so that selectors differ in nothing but their choice."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from endocil.figures.material import Experiment, Material, NotDrawnError
from endocil.memory import SELECTORS, Candidates, Selector, build_selector, even_share, unit
from endocil.randomness import generator
from endocil.report.runs import RunRecord
from endocil.selection import Selection

WANTED = "needs a run that keeps its features: --set run.keep=true"
MMD, MEAN = "mmd", "mean"


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """The training images of one class of the first task, as the fixed network sees them."""

    name: str
    label: int
    features: Tensor  # (m, d) of length 1
    scores: Tensor  # (m, C) logits
    seed: int

    def choose(self, select: Selector, n: int) -> Selection:
        """As a memory with this selector would have chosen."""
        random = generator(self.seed, 0, self.label, "selection")
        return select(Candidates(self.features, self.scores, random), n)


@dataclass(frozen=True)
class FixedFeatures:
    """All classes of the first task of one run."""

    panel: str  # the data
    network: str  # the experiment that trained it
    classes: tuple[ClassFeatures, ...]
    quota: int  # exemplars of each class
    kernel: Mapping[str, Any]  # options of the MMD selector

    @property
    def title(self) -> str:
        return f"{self.panel}, network of {self.network} after task 0"

    def selectors(self) -> dict[str, Selector]:
        """Every selector that there is, by name; MMD with the options of the run."""
        return {name: build_selector(name, self.kernel if name == MMD else {}) for name in SELECTORS}


def fixed_features(material: Material) -> list[FixedFeatures]:
    """Of each data the first run that has kept its features."""
    found = []
    for panel, members in material.panels.items():
        kept = next(((group, run) for group in members for run in group.results if _files(run)), None)
        if kept:
            found.append(_read(panel, *kept))
    if not found:
        raise NotDrawnError(WANTED)
    return found


def _files(run: RunRecord) -> tuple[Path, Path] | None:
    """Features and weights after the first task, where both are there."""
    if run.folder is None:
        return None
    files = (run.folder / "features" / "task-0.safetensors", run.folder / "weights" / "task-0.safetensors")
    return files if all(file.is_file() for file in files) else None


def _read(panel: str, group: Experiment, run: RunRecord) -> FixedFeatures:
    files = _files(run)
    assert files is not None
    kept, weights = load_file(files[0]), load_file(files[1])
    scores = torch.nn.functional.linear(
        kept["features"], weights["classifier.weight"], weights["classifier.bias"]
    )
    features, memory = unit(kept["features"]), run.settings["memory"]
    names, seed = run.metrics["classes"], int(run.settings["seed"])
    classes = tuple(
        ClassFeatures(names[label], label, features[mine], scores[mine], seed)
        for label in torch.unique(kept["labels"]).tolist()
        for mine in [kept["labels"] == label]
    )
    quota = memory.get("per_class") or even_share(
        [len(one.features) for one in classes], int(memory["total"])
    )
    own = {key: value for key, value in memory.items() if key not in ("per_class", "total", "select")}
    return FixedFeatures(panel, group.label, classes, int(quota), own if memory.get("select") == MMD else {})
