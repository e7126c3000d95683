"""Invented runs on Hyper-Kvasir with the paper's settings, and the places they make."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from endocil.metrics.metrics import TABLE_METRICS
from endocil.reports.ledger import Entry
from endocil.runs.records import completed
from endocil.settings.settings import load_settings
from reproduction.paper import Place, paper, places

SIZES = [4, 3, 3, 3, 3]
CLASSES = paper()["per_class"]["classes"]
PRESETS = {data: completed(load_settings(data)) for data in paper()["data"]}
NOTHING_ELSE = "odd"  # an option that a method as it comes has not


def run_of(method: str, seed: int, last: float, **changes: Any) -> Entry:
    """An invented run on Hyper-Kvasir with the paper's settings; `last` is its Acc_last, other metrics follow."""
    preset = PRESETS["hyper-kvasir"]
    settings: dict[str, Any] = {"seed": seed, "method": {"name": method}}
    settings |= {name: dict(preset[name]) for name in ("data", "scenario", "network", "train")}
    del settings["data"]["root"]
    settings["memory"] = {"per_class": 30, "select": changes.pop("select", "mean")}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        settings[section][name] = value
    values = dict.fromkeys(TABLE_METRICS, last) | {"af": 100 - last, "balanced_last": last}
    acc = [last + 8, last + 6, last + 4, last + 2, last]
    metrics = {
        "softmax": {**values, "acc": acc, "per_class": {name: {"recall": last} for name, _ in CLASSES}},
        "classes": [str(i) for i in range(16)],
        "task_sizes": SIZES,
        "test_images": [0, 0, 0, 0, 2103],
    }
    file = Path(f"{method}-{seed}-{sorted(changes.items())}-{settings['memory']}.json")
    return Entry(file, settings, metrics, 0 if method == "finetune" else 480)


def places_of(entries: Sequence[Entry]) -> list[Place]:
    def plain(settings: Any) -> bool:
        return not {"loss", "gradients", NOTHING_ELSE} & settings["method"].keys()

    return places(entries, plain, lambda settings: "loss" in settings["method"], PRESETS)


def seeds_of(method: str, *values: float, **changes: Any) -> list[Entry]:
    return [run_of(method, seed, value, **copy.deepcopy(changes)) for seed, value in enumerate(values)]
