"""Whole lives on both sides: accuracy of iCaRL, WA and DER in PyCIL and in endocil, several seeds each.

Same images and pixels, split, class order, first backbone weights, schedule and memory; the rest is random on each
side. Every finished run is one line of the results file and is not repeated. Prints a Markdown table.
"""

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import peer
import torch

import endocil
from endocil.data.augment import IMAGENET
from endocil.data.splits import TEST, TRAIN
from endocil.learning.build import complete
from endocil.runs.parts import images_and_scenario

INCREMENT, WIDTH, QUOTA = 3, 16, 30
SETTINGS: dict[str, dict[str, Any]] = {
    "data": {"name": "folder", "class_from": "leaf", "size": 64},
    # PyCIL takes its stem from the data set's name and equal increments: twelve classes, not fourteen
    "scenario": {"minimum": 100, "leave_out": ["ulcerative-colitis-grade-3", "z-line"], "increments": [INCREMENT] * 4},
    "network": {"width": WIDTH},
    "memory": {"per_class": QUOTA},
    "train": {"epochs": 15, "milestones": [7, 11], "batch_size": 64},
    "run": {"threads": 1},
}


def settings(images: Path, method: str, seed: int) -> dict[str, Any]:
    data = {**SETTINGS["data"], "root": str(images)}
    return {**SETTINGS, "seed": seed, "data": data, "method": {"name": method}}


def ours(images: Path, method: str, seed: int, folder: Path) -> dict[str, list[float]]:
    metrics = endocil.run(settings(images, method, seed), folder).metrics
    return {head: metrics[head]["acc"] for head in ("softmax", "nearest_mean")}


class KeptImages:
    """Our pixels, split and class order as a data set of PyCIL."""

    use_path = False

    def __init__(self, images: Path) -> None:
        from torchvision import transforms

        table, scenario = images_and_scenario(complete(endocil.load_settings(settings(images, "icarl", 0))))
        every = slice(0, len(table.table.classes))
        self.class_order = list(range(every.stop))
        rows = {part: scenario.rows(part, every) for part in (TRAIN, TEST)}
        self.train_data, self.test_data = (table.gather(rows[part]).numpy() for part in (TRAIN, TEST))
        self.train_targets, self.test_targets = (table.table.labels[rows[part]] for part in (TRAIN, TEST))
        self.train_trsf = [
            transforms.RandomHorizontalFlip(0.5),
            transforms.ColorJitter(brightness=63 / 255),
            transforms.ToTensor(),
        ]
        self.test_trsf = [transforms.ToTensor()]
        self.common_trsf = [transforms.Normalize(IMAGENET.mean, IMAGENET.std)]

    def download_data(self) -> None:
        """They are here."""


def theirs(images: Path, method: str, seed: int) -> dict[str, list[float]]:
    """The loop of PyCIL's trainer.py, with a seed that counts and accuracies that are not rounded."""
    train = SETTINGS["train"]
    epochs, milestones = train["epochs"], train["milestones"]
    shared = {"batch_size": train["batch_size"], "num_workers": 0}
    first = {"init_epoch": epochs, "init_milestones": milestones}
    constants = {**shared, **first, "epochs": epochs, "milestones": milestones}
    peer.use_convnet(lambda: peer.seeded_convnet(WIDTH, seed))
    torch.manual_seed(seed)
    np.random.seed(seed)
    managers: Any = importlib.import_module("utils.data_manager")
    managers._get_idata = lambda name: KeptImages(images)
    manager = managers.DataManager("imagenet-like", False, seed, INCREMENT, INCREMENT)
    learner, _ = peer.learner(method, constants, fixed_memory=True, memory_per_class=QUOTA)
    learner.topk = 2  # five of three classes cannot be ranked
    curves: dict[str, list[float]] = {"softmax": [], "nearest_mean": []}
    for _ in range(manager.nb_tasks):
        learner.incremental_train(manager)
        loader = learner.test_loader
        for head, (predicted, labels) in {
            "softmax": learner._eval_cnn(loader),
            "nearest_mean": learner._eval_nme(loader, learner._class_means),
        }.items():
            curves[head].append(100 * float((predicted[:, 0] == labels).mean()))
        learner.after_task()
    return curves


def without_workers() -> None:
    """PyCIL asks for four processes for each class when it chooses exemplars."""
    base: Any = importlib.import_module("models.base")
    loader = base.DataLoader
    base.DataLoader = lambda *given, **named: loader(*given, **{**named, "num_workers": 0})


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def run_missing(options: argparse.Namespace) -> None:
    done = {(line["side"], line["method"], line["seed"]) for line in read(options.results)}
    for seed in options.seeds:
        for method in options.methods:
            for side in options.sides:
                if (side, method, seed) in done:
                    continue
                began = time.perf_counter()
                if side == "pycil":
                    curves = theirs(options.images, method, seed)
                else:
                    folder = options.results.parent / "runs" / f"{method}-{seed}-{int(time.time())}"
                    curves = ours(options.images, method, seed, folder)
                seconds = round(time.perf_counter() - began)
                line = {"side": side, "method": method, "seed": seed, "seconds": seconds, **curves}
                with options.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def table(lines: Sequence[dict[str, Any]], methods: Sequence[str], seeds: Sequence[int]) -> str:
    """Softmax head and nearest mean, last and average; the seeds in brackets."""
    rows = ["| method | head | accuracy | endocil | PyCIL | difference |", "|---|---|---|---|---|---|"]
    found = {(line["side"], line["method"], line["seed"]): line for line in lines}
    for method in methods:
        both = [seed for seed in seeds if all((side, method, seed) in found for side in ("endocil", "pycil"))]
        if not both:
            continue
        for head in ("softmax", "nearest_mean"):
            for name, measure in {"last": lambda curve: curve[-1], "average": mean}.items():
                values = {
                    side: [measure(found[side, method, seed][head]) for seed in both] for side in ("endocil", "pycil")
                }
                cells = [
                    f"{spread(values[side])} ({', '.join(f'{value:.2f}' for value in values[side])})"
                    for side in ("endocil", "pycil")
                ]
                difference = mean(values["endocil"]) - mean(values["pycil"])
                rows.append(f"| {method} | {head} | {name} | {cells[0]} | {cells[1]} | {difference:+.2f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pycil", type=Path, required=True, help="checkout of PyCIL")
    parser.add_argument("--images", type=Path, required=True, help="image folder (Hyper-Kvasir, or the part of it)")
    parser.add_argument("--results", type=Path, default=Path("pycil-parity.jsonl"))
    parser.add_argument("--methods", nargs="+", default=["icarl", "wa", "der"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--sides", nargs="+", choices=["pycil", "endocil"], default=["pycil", "endocil"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "pycil" in options.sides:
        peer.open_pycil(options.pycil)
        without_workers()
    run_missing(options)
    print(table(read(options.results), options.methods, options.seeds))


if __name__ == "__main__":
    main()
