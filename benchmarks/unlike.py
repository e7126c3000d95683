"""Which score tells images of a class that was never learned from those of known ones?

    python benchmarks/unlike.py [--methods icarl,endocil] [--left-out 4]

Synthetic endoscopy of 64 px and 10 classes. Of these one is left out, the others are learned in three tasks and
bundled with a validation part; then the run's test images (known) and all images of the class left out (unknown) are
scored. AUROC is the probability that an unknown image has the larger score; 0.5 is blind. "flagged" is the share beyond
the threshold that was set on the held-out images for a rate of 5 %. Every class that is left out is a run of its own;
the table shows means over them, and the lowest AUROC. Prints a Markdown table and, beside it, how well the known
classes were learned.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from endocil.assembly import images_and_scenario
from endocil.bundle.calibration import RATE, threshold_of
from endocil.bundle.looking import Seen, look
from endocil.bundle.making import make_bundle
from endocil.bundle.restoring import restored
from endocil.datasets import load_table
from endocil.experiment import run
from endocil.images.reading import read_many
from endocil.memory import unit
from endocil.run_folder import RunFolder
from endocil.scenario import TEST

DATA: dict[str, Any] = {"images": 1500, "classes": 10, "imbalance": 3.0}
SIZE = 64


def settings(method: str, left_out: str, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "data": {"name": "synthetic", "size": SIZE, **DATA},
        "scenario": {"tasks": 3, "validation": 0.2, "leave_out": [left_out]},
        "network": {"width": 16},
        "memory": {"per_class": 20},
        "method": {"name": method},
        "train": {"epochs": 16, "milestones": [8, 12], "learning_rate": 0.02},  # as the demo
        "run": {"threads": 1},
    }


def auroc(known: Tensor, unknown: Tensor) -> float:
    """The share of pairs in which the unknown image has the larger score; equals count half."""
    larger = (unknown[:, None] > known[None]).double() + 0.5 * (unknown[:, None] == known[None]).double()
    return float(larger.mean())


def scores(seen: Seen, exemplars: Tensor) -> dict[str, Tensor]:
    """The larger, the more unlike."""
    found = {
        "minus the largest probability": -torch.softmax(seen.logits, dim=1).max(dim=1).values,
        "minus the largest logit": -seen.logits.max(dim=1).values,
        "minus the log of the summed exponentials (energy)": -torch.logsumexp(seen.logits, dim=1),
        "distance to the nearest exemplar": torch.cdist(unit(seen.features), exemplars).min(dim=1).values,
    }
    if seen.distances is not None:
        found["distance to the nearest class mean"] = seen.distances.min(dim=1).values
    return found


def measured(folder: Path, method: str, left_out: str, seed: int) -> Mapping[str, tuple[float, float, float]]:
    """Of each score: AUROC, share of known images flagged, share of unknown ones."""
    run(settings(method, left_out, seed), folder)
    content = make_bundle(folder).content
    network = restored(content)
    images, scenario = images_and_scenario(RunFolder(folder).settings())
    known = images.gather(torch.from_numpy(np.flatnonzero(scenario.part == TEST)))
    table = load_table("synthetic", DATA)
    ids = [table.ids[i] for i in np.flatnonzero(table.labels == table.classes.index(left_out))]
    unknown = torch.from_numpy(read_many(table.reader, ids, SIZE)[0])
    exemplars = unit(look(network, content.exemplars.pixels).features)
    at_home, held, abroad = (
        scores(look(network, pixels), exemplars) for pixels in (known, content.held_out.pixels, unknown)
    )
    limits = {name: threshold_of(scored, RATE) for name, scored in held.items()}
    assert None not in limits.values(), "too few held-out images to set the rate"
    return {
        name: (
            auroc(at_home[name], abroad[name]),
            float((at_home[name] > limits[name]).double().mean()),
            float((abroad[name] > limits[name]).double().mean()),
        )
        for name in at_home
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default="icarl,endocil")
    parser.add_argument("--left-out", type=int, default=4, help="classes, each left out of a run of its own")
    args = parser.parse_args()
    classes = load_table("synthetic", DATA).classes[:: max(1, 10 // args.left_out)][: args.left_out]
    print(f"left out, one at a time: {', '.join(classes)}\n")
    print("| method | score | AUROC | lowest | known flagged | unknown flagged |")
    print("|---|---|---|---|---|---|")
    for method in args.methods.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = [measured(Path(folder, name), method, name, seed) for seed, name in enumerate(classes)]
            learned = [RunFolder(Path(folder, name)).metrics()["softmax"]["acc_last"] for name in classes]
        for score in found[0]:
            ranks, home, abroad = zip(*(one[score] for one in found), strict=True)
            told = f"{fmean(ranks):.3f} | {min(ranks):.3f} | {fmean(home):.1%} | {fmean(abroad):.1%}"
            print(f"| {method} | {score} | {told} |", flush=True)
        print(
            f"{method}: {', '.join(f'{one:.1f}' for one in learned)} % of the known images right",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
