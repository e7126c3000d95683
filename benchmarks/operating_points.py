"""Coverage of prediction sets and sensitivity of operating points on test images, against what was asked.

    export HYPER_KVASIR_PART=/where/the/subset/is
    python benchmarks/operating_points.py -o results.jsonl [--settings experiments/hyper-kvasir-part-pretrained.toml]
    export GASTROVISION=/where/the/images/are
    python benchmarks/operating_points.py -o gastrovision.jsonl --settings gastrovision --set data.size=128 \\
        --set network.backbone=efficientnet-lite0 --set network.weights=imagenet --set 'network.freeze=["all"]'

For each seed another split: a run of `analytic` on frozen features, a quarter of the training images held out, at most
50 of each class kept; then its model's prediction sets and thresholds on the test images. A line of JSON for each seed.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from endocil.errors import EndocilError
from endocil.model.model import Model
from endocil.model.prediction_files import read_run_predictions
from endocil.model.predictions import Predictions
from endocil.runs.run import run
from endocil.settings.settings import load_settings

SETTINGS = Path(__file__).parents[1] / "experiments" / "hyper-kvasir-part-pretrained.toml"
COVERAGES, SENSITIVITIES = (0.8, 0.9, 0.95), (0.8, 0.9, 0.95)


def covered(said: Predictions, coverage: float, *, by_class: bool) -> dict[str, float]:
    """Of the test images, in percent: how many sets hold the class, of the worst class, and how large they are."""
    sets = said.prediction_sets(coverage, by_class=by_class)
    hit = np.array([said.classes[label] in own for label, own in zip(said.labels.tolist(), sets, strict=True)])
    of_class = [100.0 * float(hit[said.labels == label].mean()) for label in np.unique(said.labels)]
    return {
        "covered": 100.0 * float(hit.mean()),
        "mean of classes": float(np.mean(of_class)),
        "worst class": min(of_class),
        "classes in a set": float(np.mean([len(own) for own in sets])),
        "sets of one": 100.0 * float(np.mean([len(own) == 1 for own in sets])),
        "empty": 100.0 * float(np.mean([not own for own in sets])),
    }


def sensitive(said: Predictions, required: float) -> dict[str, float]:
    """Over the classes that have enough held-out images: sensitivity on test images, and in how many classes the number
    of hits lies within the 95 % that the stated Beta distribution and the number of test images allow."""
    from scipy.stats import betabinom

    found, within, specificity, too_few = [], [], [], 0
    scores = np.exp(said.scores - said.scores.max(axis=1, keepdims=True))
    scores /= scores.sum(axis=1, keepdims=True)
    for label, name in enumerate(said.classes):
        own = said.labels == label
        try:
            point = said.operating_points({name: required})[name]
        except EndocilError:
            too_few += 1
            continue
        flagged = scores[:, label] >= point.threshold
        hits, above = int(flagged[own].sum()), round(point.expected * (point.images + 1))
        low, high = betabinom.ppf([0.025, 0.975], int(own.sum()), above, point.images + 1 - above)
        within.append(low <= hits <= high)
        found.append(hits / int(own.sum()))
        specificity.append(float((~flagged[~own]).mean()))
    return {
        "classes": len(found),
        "too few": too_few,
        "mean sensitivity": 100.0 * float(np.mean(found)),
        "lowest": 100.0 * min(found),
        "as stated": 100.0 * float(np.mean(within)),
        "mean specificity": 100.0 * float(np.mean(specificity)),
    }


def result_of(source: str, changes: Sequence[str], seed: int, folder: Path) -> dict[str, Any]:
    own = [f"seed={seed}", f"scenario.split_seed={1993 + seed}", "scenario.validation=0.25", "run.held_out=50"]
    done = run(load_settings(source, [*own, "method.name=analytic", *changes]), folder)
    files = sorted((done.folder / "predictions").glob("*.csv"), key=lambda path: int(path.stem.rpartition("-")[2]))
    said = replace(read_run_predictions(files, of_run=True)[-1], calibration=Model.load(done.folder).calibration)
    assert said.calibration is not None
    assert said.calibration.scores is not None
    return {
        "seed": seed,
        "test_images": len(said),
        "held_out": {name: len(own) for name, own in said.calibration.scores.of_class.items()},
        "each class": {str(coverage): covered(said, coverage, by_class=True) for coverage in COVERAGES},
        "on average": {str(coverage): covered(said, coverage, by_class=False) for coverage in COVERAGES},
        "sensitivity": {str(required): sensitive(said, required) for required in SENSITIVITIES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a line of JSON for each seed")
    parser.add_argument("--work", type=Path, help="a new folder for runs; by default beside the output")
    parser.add_argument("--settings", default=str(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    options = parser.parse_args()
    work = options.work or options.output.with_suffix(".work")
    for seed in options.seeds:
        result = result_of(options.settings, options.changes, seed, work / f"seed-{seed}")
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
