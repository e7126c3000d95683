"""Wall time of iCaRL from JPEG files to results, in PyCIL and in endocil, in turns on the same machine.

    python benchmarks/pycil_parity/wall.py --pycil PyCIL --images HYPER_KVASIR_PART [--seeds 0 1 2] [--workers 0 2]

Both read the files, train the same network for as many epochs with the same batch, choose exemplars and evaluate both
heads after each task, and may use all cores. endocil starts with an empty cache. PyCIL is its own: it opens every file
in every epoch (with as many loader processes as `--workers` says; each number is tried) and tests every few epochs.
Prints seconds, ratio and accuracy of each seed, and where endocil's time goes.
"""

import argparse
import importlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import peer
import torch
from runs import INCREMENT, QUOTA, SETTINGS, WIDTH, KeptImages, settings

import endocil
from endocil.data.decode import file_of
from endocil.data.splits import TEST, TRAIN
from endocil.learning.build import complete
from endocil.runs.parts import images_and_scenario


class Files(KeptImages):
    """The same split and class order, but every picture by the path of its file."""

    use_path = True

    def __init__(self, images: Path) -> None:
        super().__init__(images)
        from torchvision import transforms

        table, scenario = images_and_scenario(complete(endocil.load_settings(settings(images, "icarl", 0))))
        paths = np.array([str(file_of(table.table.reader, image)) for image in table.table.ids])
        every = slice(0, len(table.table.classes))
        self.train_data, self.test_data = (paths[scenario.rows(part, every).numpy()] for part in (TRAIN, TEST))
        size = SETTINGS["data"]["size"]
        self.train_trsf = [transforms.Resize((size, size)), *self.train_trsf]
        self.test_trsf = [transforms.Resize((size, size)), *self.test_trsf]


def theirs(pictures: Files, seed: int, workers: int) -> tuple[float, float]:
    """Seconds of PyCIL's iCaRL, and its accuracy at the end."""
    train = SETTINGS["train"]
    constants = {
        "batch_size": train["batch_size"],
        "num_workers": workers,
        "init_epoch": train["epochs"],
        "init_milestones": train["milestones"],
        "epochs": train["epochs"],
        "milestones": train["milestones"],
    }
    peer.use_convnet(lambda: peer.seeded_convnet(WIDTH, seed))
    torch.manual_seed(seed)
    np.random.seed(seed)
    _loader_processes(workers)
    managers: Any = importlib.import_module("utils.data_manager")
    managers._get_idata = lambda name: pictures
    began = time.perf_counter()
    manager = managers.DataManager("imagenet-like", False, seed, INCREMENT, INCREMENT)
    learner, _ = peer.learner("icarl", constants, fixed_memory=True, memory_per_class=QUOTA)
    learner.topk = 2
    accuracy = 0.0
    for _ in range(manager.nb_tasks):
        learner.incremental_train(manager)
        (predicted, labels), _ = (
            learner._eval_cnn(learner.test_loader),
            learner._eval_nme(learner.test_loader, learner._class_means),
        )
        accuracy = 100 * float((predicted[:, 0] == labels).mean())
        learner.after_task()
    return time.perf_counter() - began, accuracy


def _loader_processes(workers: int) -> None:
    """Where PyCIL has the number of loader processes in its code."""
    base: Any = importlib.import_module("models.base")
    loader = torch.utils.data.DataLoader
    base.DataLoader = lambda *given, **named: loader(*given, **{**named, "num_workers": workers})


def ours(images: Path, seed: int, folder: Path) -> tuple[float, float, dict[str, float]]:
    """Seconds of a whole run without a cache, its accuracy, and the seconds of its parts."""
    parts: dict[str, float] = {}
    os.environ["ENDOCIL_CACHE"] = str(folder / "cache")
    began = time.perf_counter()

    def show(record: dict[str, Any]) -> None:
        if record["event"] == "plan":
            parts["reading the images, leak check"] = time.perf_counter() - began
        if record["event"] == "epoch":
            parts["training"] = parts.get("training", 0.0) + record["seconds"]

    chosen = {**settings(images, "icarl", seed), "run": {}}
    metrics = endocil.run(chosen, folder / "run", show=show).metrics
    seconds = time.perf_counter() - began
    parts["exemplars, evaluation, files, page"] = seconds - sum(parts.values())
    shutil.rmtree(folder / "cache")
    return seconds, metrics["softmax"]["acc_last"], parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pycil", type=Path, required=True, help="checkout of PyCIL")
    parser.add_argument("--images", type=Path, required=True, help="image folder of JPEG files")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    options = parser.parse_args()
    peer.open_pycil(options.pycil)
    pictures = Files(options.images)
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            seconds, accuracy, parts = ours(options.images, seed, Path(folder))
        told = ", ".join(f"{what} {100 * part / seconds:.0f} %" for what, part in parts.items())
        print(f"seed {seed}: endocil {seconds:.0f} s, accuracy {accuracy:.1f} ({told})", flush=True)
        for workers in options.workers:
            theirs_seconds, theirs_accuracy = theirs(pictures, seed, workers)
            print(
                f"seed {seed}: PyCIL with {workers} loader processes {theirs_seconds:.0f} s, accuracy "
                f"{theirs_accuracy:.1f}; endocil is {theirs_seconds / seconds:.2f} times as fast",
                flush=True,
            )


if __name__ == "__main__":
    main()
