"""A few images of one class learned into a model of others: what do the old classes lose, is the new one known?

    export HYPER_KVASIR_PART=/where/the/subset/is
    export PYTHONPATH=tests/model OMP_NUM_THREADS=1
    python benchmarks/few_images.py -o results.jsonl [--images 10 20 50 100] [--seeds 0 1 2] [--train all heads]

For each seed a run of one task without four classes; then, for each of
the four, `endocil learn` of so many of its training images into that model, the whole network as in a run (`all`) or
the heads alone (`heads`); recall on the validation and the test images before and after. A line of JSON for each.
Stopped, the same command goes on.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learn_one_class import SETTINGS, folder_of, recalls, settings_of

from endocil.data.scenario import Scenario
from endocil.data.seeding import generator
from endocil.data.splits import TEST, TRAIN, VALIDATION
from endocil.io.files import write_csv
from endocil.learning.build import complete
from endocil.release.learn import learn
from endocil.runs.parts import images_and_scenario
from endocil.runs.run import resume, run

CLASSES = ("cecum", "esophagitis-a", "polyps", "ulcerative-colitis-grade-2")
CHANGES = ("scenario.tasks=1", "scenario.validation=0.2", "train.epochs=20", "train.milestones=[10,14]")


def write_few(scenario: Scenario, name: str, n: int, seed: int, path: Path) -> Path:
    """So many training images of a class, drawn at random; returns where they lie."""
    table = scenario.table
    rows = np.flatnonzero((table.labels == table.classes.index(name)) & (scenario.part == TRAIN))
    order = torch.randperm(len(rows), generator=generator(seed, "few", name))[:n].sort().values
    write_csv(path, ("path", "label", "split"), [(table.ids[row], name, TRAIN) for row in rows[order.numpy()]])
    return folder_of(table)


def result_of(
    base: Path,
    scenario: Scenario,
    name: str,
    n: int,
    seed: int,
    train: str,
    folder: Path,
    before: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """`before`: recall of each old class on each part."""
    place = folder / f"{name}-{n}-{train}"
    place.mkdir(parents=True, exist_ok=True)
    root = write_few(scenario, name, n, seed, place / "new.csv")
    after = place / "after.endocil"
    if not after.exists():
        learn(base, place / "new.csv", after, changes=[f"data.root={root}"], train=train)  # type: ignore[arg-type]
    measured = {}
    for part, old in before.items():
        measured[part] = {"before": old, "after": recalls(after, scenario, [*old, name], part)["softmax"]}
    return {"seed": seed, "class": name, "images": n, "train": train, **measured}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a line of JSON for each result")
    parser.add_argument("--work", type=Path, help="folder of runs and model files; by default beside the output")
    parser.add_argument("--settings", default=str(SETTINGS))
    parser.add_argument("--method", default="endocil")
    parser.add_argument("--classes", nargs="+", default=CLASSES)
    parser.add_argument("--images", nargs="+", type=int, default=[10, 20, 50, 100])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--train", nargs="+", default=["all", "heads"])
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    options = parser.parse_args()
    work = options.work or options.output.with_suffix(".work")
    lines = options.output.read_text("utf-8").splitlines() if options.output.exists() else []
    done = {tuple(json.loads(line)[key] for key in ("seed", "class", "images", "train")) for line in lines}
    for seed in options.seeds:
        settings = settings_of(options.settings, options.method, seed, [*CHANGES, *options.changes])
        _, scenario = images_and_scenario(complete(settings))
        left_out = (*settings.scenario.leave_out, *options.classes)
        base = work / f"base-{seed}"
        if (base / "settings.toml").exists():
            resume(base)
        else:
            others = settings.scenario.model_copy(update={"leave_out": left_out})
            run(settings.model_copy(update={"scenario": others}), base)
        old = [name for name in scenario.table.classes if name not in options.classes]
        before = {part: recalls(base, scenario, old, part)["softmax"] for part in (VALIDATION, TEST)}
        for n, name, train in (
            (n, name, train) for n in options.images for name in options.classes for train in options.train
        ):
            if (seed, name, n, train) in done:
                continue
            found = result_of(base, scenario, name, n, seed, train, work / f"seed-{seed}", before)
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            after = found[TEST]["after"]
            change = np.mean([after[one] - before[TEST][one] for one in old])
            print(f"seed {seed}, {n} of {name}, {train}: old {change:+.1f}, new {after[name]:.1f}", flush=True)


if __name__ == "__main__":
    main()
