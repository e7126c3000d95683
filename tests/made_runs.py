"""Run folders made by hand: invented numbers that look like results, clearly no results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from endocil.metrics.metrics import summarise
from endocil.model.predictions import Predictions

CLASSES = (
    "barretts", "bbps-0-1", "bbps-2-3", "cecum", "dyed-lifted-polyps", "dyed-resection-margins",
    "esophagitis-a", "esophagitis-b-d", "polyps", "pylorus", "retroflex-rectum", "retroflex-stomach",
    "ulcerative-colitis-grade-2", "z-line",
)  # fmt: skip
TASK_SIZES = (4, 3, 3, 2, 2)
SOURCES = ("colonoscope", "gastroscope")
EPOCHS = 6
KEEPING = ("icarl", "endocil")  # methods with a memory

# method -> how much is known of a class just learned, and the share of it that each later task takes away
SKILL = {"finetune": (0.93, 0.9), "icarl": (0.88, 0.22), "endocil": (0.86, 0.13), "joint": (0.80, 0.0)}
OPTIONS: dict[str, dict[str, Any]] = {
    "finetune": {},
    "icarl": {"temperature": 2.0, "distil": 1.0},
    "endocil": {"temperature": 2.0, "beta": 0.96, "loss": "prior_regularized", "gradients": "calibrated"},
    "joint": {},
}
SELECTORS: dict[str, dict[str, Any]] = {"mmd": {"kernels": 5, "scale": 2.0}, "mean": {}}


def settings_of(method: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Complete settings; a change is given as memory__select="mean"."""
    select = changes.pop("memory__select", "mmd" if method == "endocil" else "mean")
    settings: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "folder", "root": "/home/somebody/images/test-kvasir", "size": 64},
        "scenario": {"increments": list(TASK_SIZES), "order": "alphabetical", "minimum": 100},
        "network": {"backbone": "resnet18", "width": 16},
        "memory": {"per_class": 30, "select": select, **SELECTORS[select]},
        "method": {"name": method, **OPTIONS.get(method, {})},
        "train": {"epochs": EPOCHS, "learning_rate": 0.1, "milestones": [3, 5], "crop": False},
        "run": {"threads": 2, "keep": False},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            settings[section][name] = value
        else:
            settings[key] = value
    return settings


def metrics_of(
    method: str, seed: int = 0, classes: Sequence[str] = CLASSES, sizes: Sequence[int] = TASK_SIZES
) -> dict[str, Any]:
    """The metrics of a made-up forgetter."""
    sizes = [len(classes)] if method == "joint" else list(sizes)
    return summarise([_predictions(method, seed, classes, sizes, t) for t in range(len(sizes))])


def _predictions(method: str, seed: int, classes: Sequence[str], sizes: Sequence[int], t: int) -> Predictions:
    random = np.random.default_rng([seed, t, *map(ord, method)])
    seen = sum(sizes[: t + 1])
    labels = np.repeat(np.arange(seen), [20 + 7 * (i % 5) for i in range(seen)])
    learned = np.repeat(np.arange(len(sizes)), sizes)[labels]  # the task of each image
    known, lost = SKILL.get(method, (0.85, 0.2))
    right = random.random(len(labels)) < known * (1 - lost) ** (t - learned)
    guess = random.integers(sum(sizes[:t]) if lost > 0.5 else 0, seen, len(labels))
    scores = np.eye(seen, dtype=np.float32)[np.where(right, labels, guess)]
    return Predictions(
        images=tuple(f"{i}.jpg" for i in range(len(labels))),
        labels=labels,
        classes=tuple(classes[:seen]),
        scores=scores,
        distances=1 - scores + 1.6 * random.random(scores.shape, np.float32) if method in KEEPING else None,
        sources=tuple(SOURCES[i % 2] for i in range(len(labels))),
    )


def _ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _events(method: str, metrics: Mapping[str, Any], epochs: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for t, (start, end) in enumerate(_ranges(metrics["task_sizes"])):
        names = metrics["classes"][start:end]
        events.append({"event": "task", "task": t, "classes": names})
        for epoch in range(epochs):
            losses = {"classification": 2.2 * 0.7**epoch + 0.1}
            if t and method in KEEPING:
                losses["distillation"] = 0.8 * 0.9**epoch
            rate = 0.1 * 0.1 ** sum(epoch >= at for at in (epochs // 2, epochs * 5 // 6))
            where = {"event": "epoch", "task": t, "phase": "train", "epoch": epoch, "epochs": epochs}
            events.append(where | {"learning_rate": rate, "losses": losses, "gamma": None, "seconds": 1.5})
        if method in KEEPING:
            mmd2, bound = (0.0123, 1.467) if method == "endocil" else (None, None)
            events += [
                {"event": "selection", "task": t, "class": c, "kept": 30, "of": 212, "mmd2": mmd2, "bound": bound}
                for c in names
            ]
        learned = {"event": "learned", "task": t, "parameters": 11184720, "peak_megabytes": 700.4 + t}
        events.append(learned | {"measured": {"alignment": 1 + t / 10} if t and method == "wa" else {}})
    return events


def write_run(
    folder: Path, settings: Mapping[str, Any], metrics: Mapping[str, Any] | None = None, *, epochs: int = EPOCHS
) -> Path:
    """A whole run folder with invented results for these settings."""
    method = settings["method"]["name"]
    metrics = metrics or metrics_of(method, settings["seed"])
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text(tomli_w.dumps(settings))
    (folder / "environment.json").write_text(json.dumps({"python": "3.11.2", "torch": "2.9.0", "commit": None}))
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in _events(method, metrics, epochs)))
    _write_images(folder, metrics, keeps=method in KEEPING)
    return folder


def _write_images(folder: Path, metrics: Mapping[str, Any], *, keeps: bool) -> None:
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in metrics["classes"]}
    split, memory = ["image,class,task,part,group,source"], ["image,class,order,task,group,source"]
    for i, name in enumerate(metrics["classes"]):
        n_test = sum(metrics["softmax"]["confusion"][i])
        for k in range(5 * n_test):
            part = "test" if k < n_test else "train"
            split.append(f"{i}-{k}.jpg,{quoted[name]},0,{part},,{SOURCES[k % 2]}")
        memory += [f"{i}-{k}.jpg,{quoted[name]},{k},0,,{SOURCES[k % 2]}" for k in range(30)]
    (folder / "split.csv").write_text("\n".join(split) + "\n")
    if keeps:
        (folder / "memory").mkdir()
        last = len(metrics["task_sizes"]) - 1
        (folder / "memory" / f"task-{last}.csv").write_text("\n".join(memory) + "\n")
