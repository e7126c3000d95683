"""Small invented runs for figures: records in memory, and folders on the disk."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors.torch import save_file

from endocil.metrics.metrics import summarise
from endocil.model.prediction_files import write_predictions
from endocil.model.predictions import Predictions

CLASSES = ("cecum", "polyps", "pylorus", "z-line")
SIZES = (2, 1, 1)
EPOCHS = 3


def settings_of(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Complete enough for labels; a change is given as method__loss="cross_entropy"."""
    settings: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "folder", "root": "/images/small", "size": 16},
        "scenario": {"increments": list(SIZES)},
        "memory": {"per_class": 3, "select": "mean"},
        "method": {"name": "endocil", "loss": "cross_entropy", "gradients": "calibrated"},
        "run": {"keep": False},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        settings[section][name] = value
    return settings


def predictions_of(seed: int = 0, sizes: Sequence[int] = SIZES) -> list[Predictions]:
    """Ten test images of each class; the logits prefer the image's own class, less so after each task."""
    random = np.random.default_rng(seed)
    found = []
    for task, seen in enumerate(np.cumsum(sizes).tolist()):
        labels = np.repeat(np.arange(seen), 10)
        scores = random.normal(size=(len(labels), seen)) + (3 - task) * np.eye(seen)[labels]
        images = tuple(f"{i}.jpg" for i in range(len(labels)))
        found.append(Predictions(images, labels, CLASSES[:seen], scores.astype(np.float32), None, ("",) * len(labels)))
    return found


def events_of(sizes: Sequence[int] = SIZES, *, level: float = 1.0) -> list[dict[str, Any]]:
    """Epoch e of task t has the gradient level x (10 t + e + 1); class c has the loss level x (c + 1) / (e + 1)."""
    events: list[dict[str, Any]] = []
    for task, seen in enumerate(np.cumsum(sizes).tolist()):
        new = [f"class {label}" for label in range(seen - sizes[task], seen)]
        events.append({"event": "task", "task": task, "classes": new, "exemplars": 3 * (seen - sizes[task])})
        for epoch in range(EPOCHS):
            losses = [level * (c + 1) / (epoch + 1) for c in range(seen)]
            events.append(
                {
                    "event": "epoch", "task": task, "phase": "train", "epoch": epoch, "epochs": EPOCHS,
                    "losses": {}, "learning_rate": 0.1 if epoch < 2 else 0.01, "per_class": {"classification": losses},
                    "classifier_gradient": level * (10 * task + epoch + 1), "gamma": task / 2,
                    "weight_norms": [float(c + 1) for c in range(seen)], "seconds": 2.0,
                }
            )  # fmt: skip
        events.append({"event": "learned", "task": task, "parameters": 10**6 * (task + 1), "peak_megabytes": 50.0})
    return events


def write_run(folder: Path, settings: Mapping[str, Any] | None = None, *, level: float = 1.0, **options: Any) -> Path:
    """A finished run with invented results."""
    settings = settings or settings_of()
    sizes = options.get("sizes", SIZES)
    folder.mkdir(parents=True)
    told = predictions_of(settings["seed"], sizes)
    for task, each in enumerate(told):
        write_predictions(folder / "predictions" / f"task-{task}.csv", each)
    (folder / "settings.toml").write_text(tomli_w.dumps(settings))
    (folder / "environment.json").write_text("{}")
    (folder / "metrics.json").write_text(json.dumps(summarise(told)))
    lines = [json.dumps(event) for event in events_of(sizes, level=level)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    split = [
        f"{name}-{i}.jpg,{name},0,{'test' if i < 10 else 'train'},,"
        for c, name in enumerate(CLASSES)
        for i in range(30 + 10 * c)
    ]
    (folder / "split.csv").write_text("\n".join(["image,class,task,part,group,source", *split]) + "\n")
    return folder


def keep_features(folder: Path, counts: Sequence[int] = (30, 24), d: int = 6) -> Path:
    """What run.keep leaves after the first task: clouds around two points, and a classifier."""
    random = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    features = torch.rand(len(labels), d, generator=random) + 2.0 * torch.eye(d)[labels]
    (folder / "features").mkdir()
    (folder / "weights").mkdir()
    kept = {"features": features, "labels": labels, "rows": torch.arange(len(labels))}
    save_file(kept, folder / "features" / "task-0.safetensors")
    weights = {"classifier.weight": torch.eye(d)[: len(counts)].clone(), "classifier.bias": torch.zeros(len(counts))}
    save_file(weights, folder / "weights" / "task-0.safetensors")
    return folder
