"""Which score tells images that are unlike anything a model has learned?

    python benchmarks/out_of_distribution.py MODEL... --known IMAGES --unknown IMAGES

IMAGES is what `endocil predict` takes: a folder or a CSV list. `--known` are images of the model's classes that it was
not trained on, `--unknown` images of a class that it does not know. Beside these, pictures that no endoscope gives are
made of the known ones: noise, one flat colour, gray, red and blue exchanged, colours inverted. AUROC is the
probability that an unknown image has the larger score than a known one; 0.5 is blind. Beside it in brackets the share
beyond the threshold that was set on the model's held-out images for a rate of 5 %. Means over the models of one
method. Prints a Markdown table; `benchmarks/learn_one_class.py` leaves models and lists that fit.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from endocil.learning.features import Outputs, l2_normalise, outputs_of
from endocil.model.calibration import RATE, threshold_of
from endocil.model.model import Model
from endocil.model.out_of_distribution import ood_scores, spread_of

MADE = 200  # pictures of each kind
Scores = dict[str, Tensor]


def pixels_of(model: Model, images: Path) -> Tensor:
    """As the model sees them."""
    found: list[Tensor] = []
    model.predict(images, on_batch=lambda _, pixels, __: found.append(pixels.clone()))
    return torch.cat(found)


def made_of(known: Tensor) -> dict[str, Tensor]:
    random, shape = torch.Generator().manual_seed(0), (MADE, *known.shape[1:])
    some = known[torch.randperm(len(known), generator=random)[:MADE]]
    flat = torch.randint(0, 256, (MADE, 1, 1, 3), generator=random, dtype=torch.uint8)
    return {
        "noise": torch.randint(0, 256, shape, generator=random, dtype=torch.uint8),
        "flat": flat.expand(shape).contiguous(),
        "gray": some.float().mean(dim=3, keepdim=True).to(torch.uint8).expand(some.shape).contiguous(),
        "red for blue": some.flip(3).contiguous(),
        "inverted": 255 - some,
    }


def scores(seen: Outputs, exemplars: Tensor, spread: Mapping[str, Tensor]) -> Scores:
    """The larger, the more unlike."""
    found = {
        "minus the largest probability": -torch.softmax(seen.logits, dim=1).max(dim=1).values,
        "minus the largest logit": -seen.logits.max(dim=1).values,
        "minus the log of the summed exponentials (energy)": -torch.logsumexp(seen.logits, dim=1),
        "distance to the nearest exemplar": torch.cdist(l2_normalise(seen.features), exemplars).min(dim=1).values,
    }
    if seen.distances is not None:
        found["distance to the nearest class mean"] = seen.distances.min(dim=1).values
    if spread:
        found["the same by the exemplars' spread (Mahalanobis)"] = ood_scores(seen, spread)
    return found


def auroc(known: Tensor, unknown: Tensor) -> float:
    """The share of pairs in which the unknown image has the larger score; equals count half."""
    larger = (unknown[:, None] > known[None]).double() + 0.5 * (unknown[:, None] == known[None]).double()
    return float(larger.mean())


def measured(path: Path, known: Path, unknown: Path) -> tuple[str, dict[str, dict[str, tuple[float, float]]]]:
    """The model's method, and of each score and kind of image AUROC and the share that is flagged."""
    model = Model.load(path)
    method = model.method
    exemplars = l2_normalise(outputs_of(method, model.exemplars.pixels).features)
    spread = spread_of(method, model.exemplars, model.classes)
    at_home = pixels_of(model, known)
    kinds = {"unknown class": pixels_of(model, unknown), **made_of(at_home)}
    of_known, held = (
        scores(outputs_of(method, pixels), exemplars, spread) for pixels in (at_home, model.held_out.pixels)
    )
    thresholds = {name: threshold_of(scored, RATE) for name, scored in held.items()}
    limits = {name: limit for name, limit in thresholds.items() if limit is not None}
    if len(limits) < len(thresholds):
        raise SystemExit(f"{path} has too few held-out images to set a rate of {RATE:.0%}")
    table: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in held}
    for kind, pixels in {"known": at_home, **kinds}.items():
        for name, scored in scores(outputs_of(method, pixels), exemplars, spread).items():
            flagged = float((scored > limits[name]).double().mean())
            table[name][kind] = (auroc(of_known[name], scored), flagged)
    return model.settings.method.name, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--unknown", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    by_method = defaultdict(list)
    for path in args.models:
        method, table = measured(path, args.known, args.unknown)
        by_method[method].append(table)
    kinds = list(next(iter(table.values())))
    print(f"| method | score | known flagged | {' | '.join(kinds[1:])} |")
    print(f"|---|---|---:|{'---:|' * len(kinds[1:])}")
    for method, tables in by_method.items():
        for score in tables[0]:
            cells = [f"{fmean(one[score]['known'][1] for one in tables):.1%}"]
            for kind in kinds[1:]:
                ranks, flagged = zip(*(one[score][kind] for one in tables), strict=True)
                cells.append(f"{fmean(ranks):.2f} ({fmean(flagged):.0%})")
            print(f"| {method} ({len(tables)}) | {score} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
