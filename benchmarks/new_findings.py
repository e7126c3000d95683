"""Which score notices a finding that a model has never seen? Each class is held out in turn.

    python benchmarks/new_findings.py IMAGES [--groups FILE.csv] [--exemplars 20] [--features FILE.safetensors]

IMAGES is a folder with a folder for each class (the last one on the way to an image). Features are those of a frozen
EfficientNet-Lite0 with ImageNet's weights, computed once and kept in --features. Of each class 70 % of the images are
learned from, 10 % set the threshold at a rate of 5 %, 20 % test; images of a group (--groups: path, group) stay
together. A class is then left out of the first two, and its images are the new finding. Logits are those of ridge
regression on the features (the method `analytic`), over the temperature that calibrates them. With --exemplars the
scores know so many images of each class; otherwise all that were learned from.

AUROC is the probability that an image of the new finding has the larger score than a test image of a known class.
Prints a table of scores, with the share of known and of new images beyond the threshold, and the AUROC of each class.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from endocil.data.augment import normalise
from endocil.data.cache import load_images
from endocil.data.seeding import generator
from endocil.datasets import load_table
from endocil.learning.build import build_learning, complete
from endocil.learning.features import l2_normalise
from endocil.model.calibration import RATE, fit_temperature, threshold_of
from endocil.settings.settings import load_settings

LEAST = 20  # images of a class that takes part
SHRINKAGE = 0.1
DIMENSIONS = (256, 512)  # of ViM's principal space
Parts = dict[str, Tensor]  # of a score: held out, known, new


def features_of(images: Path, size: int, file: Path | None) -> tuple[Tensor, Tensor, tuple[str, ...], tuple[str, ...]]:
    """Features (n, d), labels, classes and ids; from the file if it is there."""
    values = {
        "data": {"name": "folder", "root": str(images), "size": size, "class_from": "leaf"},
        "scenario": {"tasks": 1},
        "network": {"backbone": "efficientnet-lite0", "weights": "imagenet"},
        "method": {"name": "simplecil"},
    }
    settings = complete(load_settings(values))
    table = load_table(settings.data.name, settings.data.options)
    labels = torch.from_numpy(table.labels)
    if file is not None and file.exists():
        return load_file(file)["features"], labels, table.classes, table.ids
    method, pixels = build_learning(settings)[0].eval(), load_images(table, size).pixels
    with torch.no_grad():
        batches = [
            method.embed(normalise(torch.as_tensor(pixels[i : i + 32]), method.normalisation))
            for i in range(0, len(table), 32)
        ]
    features = torch.cat(batches)
    if file is not None:
        save_file({"features": features}, file)
    return features, labels, table.classes, table.ids


def split(labels: Tensor, groups: list[str]) -> tuple[Tensor, Tensor]:
    """Masks of test and held-out images; whole groups, class by class."""
    random = generator(0, "new findings")
    test, held = torch.zeros(len(labels), dtype=torch.bool), torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = defaultdict(list)
        for row in torch.nonzero(labels == label).flatten().tolist():
            members[groups[row]].append(row)
        names, n = sorted(members), int((labels == label).sum())
        for place in torch.randperm(len(names), generator=random).tolist():
            rows = members[names[place]]
            if int((test & (labels == label)).sum()) < 0.2 * n:
                test[rows] = True
            elif int((held & (labels == label)).sum()) < 0.1 * n:
                held[rows] = True
    return test, held


@dataclass(frozen=True)
class Sums:
    """Of the images of each class, by which every covariance without one of them is a subtraction."""

    counts: Tensor  # (C,)
    sums: Tensor  # (C, d)
    products: Tensor  # (C, d, d)

    def without(self, left_out: int, weights: Callable[[Tensor], Tensor] = torch.ones_like) -> tuple[Tensor, ...]:
        """Counts, means (C - 1, d), weighted mean, covariance within classes and of all, over the other classes."""
        keep = torch.arange(len(self.counts)) != left_out
        n, means = self.counts[keep], self.sums[keep] / self.counts[keep][:, None]
        w = weights(n)
        products = torch.einsum("c,cij->ij", w, self.products[keep])
        within = products - (means * (w * n)[:, None]).T @ means
        mean = (w * n) @ means / (w * n).sum()
        total = products - (w * n).sum() * torch.outer(mean, mean)
        return n, means, mean, within / (w * n).sum(), total / (w * n).sum()


def sums_of(features: Tensor, labels: Tensor, n: int) -> Sums:
    rows = [features[labels == label].double() for label in range(n)]
    counts = torch.tensor([float(len(own)) for own in rows], dtype=torch.float64)
    return Sums(counts, torch.stack([own.sum(dim=0) for own in rows]), torch.stack([own.T @ own for own in rows]))


def whitening(covariance: Tensor) -> Tensor:
    """By the shrunk covariance: distances of whitened features are Mahalanobis'."""
    level = SHRINKAGE * covariance.diagonal().mean()
    shrunk = (1.0 - SHRINKAGE) * covariance + level * torch.eye(len(covariance), dtype=covariance.dtype)
    whitened: Tensor = torch.linalg.cholesky(torch.linalg.inv(shrunk))
    return whitened.float()


def ridge(sums: Sums, left_out: int, share: float) -> tuple[Tensor, Tensor]:
    """Weights and intercept of ridge regression with classes weighted by 1 / sqrt(n)."""
    n, means, mean, _, total = sums.without(left_out, lambda counts: counts.rsqrt())
    w = n.rsqrt() * n / (n.rsqrt() * n).sum()
    target = w[:, None] * (torch.eye(len(n), dtype=torch.float64) - w)  # (C, C): sum of w (y - mean y) per class
    penalty = share * total.diagonal().mean() * torch.eye(len(total), dtype=torch.float64)
    solution = torch.linalg.solve(total + penalty, (means - mean).T @ target)
    return solution.float(), (w - mean @ solution).float()


def scores(raw: Sums, unit: Sums, bank: Tensor, queries: Parts, labels: Tensor, left_out: int) -> dict[str, Parts]:
    """The larger, the less like what was learned. `queries`: features; `labels`: of the held-out ones."""
    found: dict[str, Parts] = defaultdict(dict)
    for kind, sums, change in (("", raw, lambda rows: rows), (" of unit features", unit, l2_normalise)):
        _, means, mean, within, total = sums.without(left_out)
        by_class, by_all = whitening(within), whitening(total)
        for part, rows in queries.items():
            own = change(rows)
            near = torch.cdist(own @ by_class, means.float() @ by_class).square().amin(dim=1)
            found[f"Mahalanobis{kind}"][part] = near.sqrt()
            found[f"relative Mahalanobis{kind}"][part] = near - ((own - mean.float()) @ by_all).square().sum(dim=1)
    _, means, mean, _, total = raw.without(left_out)
    directions = torch.linalg.eigh(total.float()).eigenvectors
    weight, bias = ridge(raw, left_out, 0.1)
    temperature = fit_temperature(queries["held out"] @ weight + bias, labels)
    for part, rows in queries.items():
        found["nearest neighbour"][part] = torch.cdist(l2_normalise(rows), bank).amin(dim=1)
        found["distance to the nearest class mean"][part] = -(l2_normalise(rows) @ l2_normalise(means.float()).T).amax(
            1
        )
        logits = (rows @ weight + bias) / temperature
        found["energy"][part] = -torch.logsumexp(logits, dim=1)
        found["minus the largest probability"][part] = -logits.softmax(dim=1).amax(dim=1)
        apart = rows - mean.float()
        for d in DIMENSIONS:
            inside = (apart @ directions[:, -d:]).square().sum(dim=1)
            found[f"residual {d}"][part] = (apart.square().sum(dim=1) - inside).clamp_min(0).sqrt()
    logits = (queries["held out"] @ weight + bias) / temperature
    for d in DIMENSIONS:
        alpha = logits.amax(dim=1).mean() / found[f"residual {d}"]["held out"].mean()
        residual = found.pop(f"residual {d}")
        found[f"ViM, {d} dimensions"] = {part: alpha * residual[part] + found["energy"][part] for part in queries}
    for first in ("Mahalanobis of unit features", "relative Mahalanobis of unit features", "nearest neighbour"):
        one, two = (_standard(found[name]) for name in (first, "energy"))
        found[f"{first} + energy"] = {part: one[part] + two[part] for part in queries}
    return found


def _standard(parts: Parts) -> Parts:
    """In standard deviations of the held-out images."""
    held = parts["held out"]
    return {part: (values - held.mean()) / held.std() for part, values in parts.items()}


def auroc(known: Tensor, new: Tensor) -> float:
    """The share of pairs in which the new image has the larger score; equals count half."""
    _, places, counts = torch.unique(torch.cat([known, new]), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[places][len(known) :].double()
    n = len(new)
    return float((ranks.sum() - n * (n + 1) / 2) / (n * len(known)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--groups", type=Path, help="a CSV file: path, group")
    parser.add_argument("--exemplars", type=int, default=0)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    features, labels, classes, ids = features_of(args.images, args.size, args.features)
    group_of = {row["path"]: row["group"] for row in csv.DictReader(args.groups.open())} if args.groups else {}
    large = [c for c in range(len(classes)) if int((labels == c).sum()) >= LEAST]
    kept = torch.isin(labels, torch.tensor(large))
    rows = torch.nonzero(kept).flatten().tolist()
    features, labels = features[kept], torch.tensor([large.index(int(label)) for label in labels[kept]])
    test, held = split(labels, [group_of.get(ids[row], ids[row]) for row in rows])
    learned = ~test & ~held
    if args.exemplars:
        random = generator(0, "exemplars")
        learned_rows = torch.nonzero(learned).flatten()
        order = learned_rows[torch.randperm(len(learned_rows), generator=random)]
        chosen = torch.cat([order[labels[order] == c][: args.exemplars] for c in range(len(large))])
        learned = torch.zeros_like(learned).index_fill_(0, chosen, True)
    names = [classes[c] for c in large]
    raw, unit = (sums_of(own[learned], labels[learned], len(large)) for own in (features, l2_normalise(features)))
    ranks, shares = defaultdict(list), defaultdict(list)
    for label in range(len(large)):
        other = labels != label
        queries = {
            "held out": features[held & other],
            "known": features[test & other],
            "new": features[labels == label],
        }
        own_labels = labels[held & other]
        own_labels = own_labels - (own_labels > label).long()
        bank = l2_normalise(features[learned & other])
        for name, parts in scores(raw, unit, bank, queries, own_labels, label).items():
            limit = threshold_of(parts["held out"], RATE)
            if limit is None:
                raise SystemExit(f"too few held-out images to set a rate of {RATE:.0%}")
            ranks[name].append(auroc(parts["known"], parts["new"]))
            shares[name].append([float((parts[part] > limit).double().mean()) for part in ("known", "new")])
    print(f"{len(large)} classes, {int(learned.sum()):,} images learned from\n")
    print("| score | AUROC, mean | median | lowest | known flagged | new flagged |\n|---|---:|---:|---:|---:|---:|")
    best_first = sorted(ranks, key=lambda name: -fmean(ranks[name]))
    for name in best_first:
        known, new = (fmean(share[i] for share in shares[name]) for i in (0, 1))
        numbers = f"{fmean(ranks[name]):.3f} | {median(ranks[name]):.3f} | {min(ranks[name]):.3f}"
        print(f"| {name} | {numbers} | {known:.1%} | {new:.1%} |")
    print("\n| class held out | images | " + " | ".join(best_first) + " |\n|---|---:|" + "---:|" * len(best_first))
    for label, name in enumerate(names):
        cells = " | ".join(f"{ranks[score][label]:.2f}" for score in best_first)
        print(f"| {name} | {int((labels == label).sum())} | {cells} |")


if __name__ == "__main__":
    main()
