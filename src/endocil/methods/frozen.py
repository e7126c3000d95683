"""What the methods for frozen features share: they learn from sums over the images of each class.

The sums are kept in `statistics`, in float64; images are not kept. So classes may come back with more images, no order
of tasks changes the result, and images that are at hand again can be subtracted.

The backbone is frozen from the start, with pretrained weights; or it is trained on the first task alone and frozen then
(first-session adaptation: Panos et al., ICCV 2023), by its labels, or by its labels and rotations: every image is
turned by 0, 90, 180 or 270 degrees, and each pair of class and rotation is a class (Lee et al., ICML 2020).
"""

import hashlib
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome
from endocil.components.ridge import add_products, packed_length, unpacked
from endocil.data.batches import Batch, ImageSet
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import EndocilError, FileFormatError, SettingsError
from endocil.io.files import LARGEST
from endocil.methods.base import Method, Phase, TaskData
from endocil.networks import GrowingClassifier, trained_parts
from endocil.networks.pooled_stages import PooledStages

ROTATIONS = {"frozen": 0, "labels": 1, "rotations": 4}  # of the images in the training of the first task
LEARNED = "learned"  # (n, 8) uint8: what tells whether an image with its class is in the sums
COUNTS = "counts"  # (n_seen,) float64: images of each class
TOTAL = "total"  # (d,) float64: the sum of all features
SQUARES = "squares"  # (packed_length(d),) float64: the sum of their products f f^T, packed
MOST_FEATURES = 4096  # of which products are kept
LARGEST_STATISTICS = LARGEST * 9 // 10  # of a model file; the rest is for the network and kept images


class FrozenMethod(Method):
    """`consolidate` adds the new images to the sums and computes the classifier from them; only the first task may
    train."""

    classifier: GrowingClassifier
    learns_known_classes = True
    chooses_penalty: bool = False  # on images that it learns; true: what was chosen stays when they are subtracted
    keeps_moments = True  # of all features together; false: the method's own sums give them

    def __init__(
        self,
        backbone: nn.Module,
        *,
        features: str = "last",  # of the backbone; or "stages": pooled from the maps of its stages
        stride: int = 8,  # of the first map that counts, with "stages"
        first_task: str = "frozen",  # or the backbone learns from it: "labels", "rotations"
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        if features not in ("last", "stages"):
            raise SettingsError(f"method.features is {features!r}; expected 'last' or 'stages'")
        if first_task not in ROTATIONS:
            raise SettingsError(f"method.first_task is {first_task!r}; expected 'frozen', 'labels' or 'rotations'")
        if first_task != "frozen" and not trained_parts(backbone):
            raise SettingsError(
                f"method.first_task={first_task!r} trains the backbone, and network.freeze freezes all of it; "
                f"leave out network.freeze, or method.first_task"
            )
        self.rotations = ROTATIONS[first_task]
        self.first_head = GrowingClassifier(int(backbone.n_features)) if self.rotations else None  # type: ignore[arg-type]
        self.pooled = PooledStages.of(backbone, stride) if features == "stages" else None
        if self.pooled is not None:
            self.classifier = GrowingClassifier(self.pooled.n_features)

    @property
    def trains_first_task(self) -> bool:
        return self.rotations > 0

    @property
    def frozen(self) -> bool:
        return True  # whatever network.freeze says: from the end of the first task on nothing trains the backbone

    def embed(self, images: Tensor) -> Tensor:
        return super().embed(images) if self.pooled is None else self.pooled(self.backbone, images)

    @property
    def embeds_by(self) -> str:
        return "" if self.pooled is None else repr(self.pooled)

    def grow(self, task: Task) -> None:
        super().grow(task)
        if self.first_head is not None and task.index == 0:
            self.first_head.grow(self.rotations * task.n_new, generator(self.seed, "first task"))

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        if self.first_head is None or task.index > 0:
            return ()
        head, rotations = self.first_head, self.rotations

        def objective(batch: Batch) -> Outcome:
            turns = (rotations * batch.uniform(1, "rotation")[:, 0]).long()  # (B,) quarters
            images = batch.images.clone()
            for k in range(1, rotations):
                images[turns == k] = torch.rot90(batch.images[turns == k], k, (2, 3))
            logits = head(self.backbone(images))  # (B, rotations n_new): a class for each pair of class and rotation
            labels = rotations * batch.labels + turns
            return Outcome({"classification": functional.cross_entropy(logits, labels, reduction="none")})

        train = (*trained_parts(self.backbone), head)
        return (Phase("first task", data.new, train, self.schedule(task), objective),)

    def consolidate(self, task: Task, data: TaskData) -> None:
        if data.features is None:
            raise EndocilError(f"{type(self).__name__} learns from features, and none were given")
        features, labels = data.features(data.new).double(), data.new.labels
        self.choose(task, features, labels)
        self.add(features, labels, task.n_seen)
        known = self.statistics.get(LEARNED, torch.zeros(0, 8, dtype=torch.uint8))
        self.statistics[LEARNED] = torch.cat([known.cpu(), learned_keys(data.new)])
        try:
            self.solve()
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise EndocilError(
                f"the sums over images have no solution ({error}): a penalty that was set too low for these features, "
                f"or sums from a damaged file; raise the penalty in the settings, or start again from a sound file"
            ) from error

    def subtract(self, images: ImageSet, features: Tensor) -> Tensor:
        """Take images out of the sums, those of them that were learned: a mask (n,) of these images."""
        left = [bytes(row.tolist()) for row in self.statistics[LEARNED].cpu()]
        found = []
        for key in (bytes(row.tolist()) for row in learned_keys(images)):
            found.append(key in left)
            if found[-1]:
                left.remove(key)
        mask = torch.tensor(found, dtype=torch.bool)
        if bool(mask.any()):
            n = len(self.statistics[COUNTS])
            self.add(features[mask].double(), images.labels[mask], n, sign=-1.0)
            rows = torch.tensor([list(key) for key in left], dtype=torch.uint8)
            self.statistics[LEARNED] = rows.reshape(-1, 8)
            self.solve()
        return mask

    def choose(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Choose what is chosen by held-back images, before the new images are in the sums."""

    def add(self, features: Tensor, labels: Tensor, n: int, sign: float = 1.0) -> None:
        """Add images of the first n classes to the sums, or subtract them: features are (m, d) float64."""
        counts = self.grown_statistic(COUNTS, n)
        self.statistics[COUNTS] = counts + sign * torch.bincount(labels, minlength=n)
        d = features.shape[1]
        if self.keeps_moments and d <= MOST_FEATURES:
            total, squares = torch.zeros(d, dtype=torch.float64), torch.zeros(packed_length(d), dtype=torch.float64)
            if TOTAL in self.statistics:
                total, squares = (self.statistics[name].cpu().clone() for name in (TOTAL, SQUARES))
            add_products(squares, features, sign)
            self.statistics |= {TOTAL: total + sign * features.sum(dim=0), SQUARES: squares}

    def feature_moments(self) -> tuple[float, Tensor, Tensor] | None:
        """Of all learned images: how many, the sum (d,) of their features and of f f^T (d, d); None without them."""
        if SQUARES not in self.statistics:
            return None
        total = self.statistics[TOTAL].cpu()
        return float(self.statistics[COUNTS].sum()), total, unpacked(self.statistics[SQUARES].cpu(), len(total))

    @abstractmethod
    def solve(self) -> None:
        """The classifier, from the sums alone."""

    def grown_statistic(self, name: str, n: int, *shape: int) -> Tensor:
        """A sum for each of n classes, with zeros for those that are new: (n, *shape) float64."""
        grown = torch.zeros(n, *shape, dtype=torch.float64)
        if name in self.statistics:
            known = self.statistics[name].cpu()  # from a model file or checkpoint, maybe
            if known.shape[:1] > (n,) or known.shape[1:] != shape or known.dtype != grown.dtype or not known.dim():
                raise FileFormatError(
                    f"the statistic {name} is {known.dtype} of shape {tuple(known.shape)}, expected {grown.dtype} of "
                    f"shape {tuple(grown.shape)} at most: the file was changed"
                )
            grown[: len(known)] = known
        return grown

    def set_classifier(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Rows (n_seen, d) and biases of the classifier; without biases these are 0."""
        with torch.no_grad():
            self.classifier.weight.copy_(weight)
            self.classifier.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)


def learned_keys(images: ImageSet) -> Tensor:
    """(n, 8) uint8: a digest of the pixels of each image and of its label."""
    keys = [
        list(hashlib.blake2b(digest + label.to_bytes(8, "little"), digest_size=8).digest())
        for digest, label in zip(images.pixel_digests(), images.labels.tolist(), strict=True)
    ]
    return torch.tensor(keys, dtype=torch.uint8).reshape(-1, 8)


def refuse_large_statistics(n_bytes: int, way_out: str) -> list[str]:
    """A problem where the sums do not fit a model file."""
    if n_bytes <= LARGEST_STATISTICS:
        return []
    return [
        f"the sums that the method keeps would take {n_bytes / 1e9:,.1f} GB, and a model file holds at most "
        f"{LARGEST_STATISTICS / 1e9:,.1f} GB of them; {way_out}"
    ]
