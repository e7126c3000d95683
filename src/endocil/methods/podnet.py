"""PODNet, pooled outputs distillation (Douillard et al., ECCV 2020).

Maps of every stage, pooled over width and over height, are held to those of the previous task's network, and so are the
features. Each class has several proxies, scored by cosine. A second phase learns the classifier alone on as many new
images of a class as there are exemplars.
The authors' code does not do what the paper says of its classification loss: see `nca`. The images of the second phase
are drawn at random; theirs are chosen by herding.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome
from endocil.data.batches import Batch, ImageSet
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.methods import common
from endocil.methods.base import Method, Phase, Schedule, TaskData
from endocil.networks import CosineClassifier, LastBlocks, trained_parts

Nca = Literal["code", "paper"]
AUTHORS = Schedule(epochs=160, cosine=True, weight_decay=5e-4, batch_size=128)


class PODNet(Method):
    """Proxies and their NCA loss, maps and features held to the old network's; then a balanced classifier."""

    classifier: CosineClassifier
    replay = learns_known_classes = True
    native = (AUTHORS, AUTHORS)

    def __init__(
        self,
        backbone: nn.Module,
        *,
        proxies: int = 10,  # for each class: the authors
        pod_spatial: float = 3.0,  # lambda_c: the authors, CIFAR-100
        pod_flat: float = 1.0,  # lambda_f: the authors
        nca_loss: Nca = "code",  # as the authors' code computes it, or as the paper prints it
        margin: float = 0.6,  # delta of the printed loss; in the code's it cancels
        balance_epochs: int = 20,  # of the second phase: the authors; 0: none
        balance_rate: float = 0.05,  # its learning rate: the authors
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number("proxies", proxies, proxies >= 1, "a number of 1 or more (the default is 10)")
        common.check_number("pod_spatial", pod_spatial, pod_spatial >= 0, "a number of 0 or more (the default is 3)")
        common.check_number("pod_flat", pod_flat, pod_flat >= 0, "a number of 0 or more (the default is 1)")
        common.check_choice("nca_loss", nca_loss, get_args(Nca))
        common.check_number("margin", margin, margin >= 0, "a number of 0 or more (the default is 0.6)")
        common.check_number("balance_epochs", balance_epochs, balance_epochs >= 0, "a number of epochs, or 0")
        common.check_number("balance_rate", balance_rate, balance_rate > 0, "a number above 0 (the default is 0.05)")
        LastBlocks.check_divisible(backbone)
        self.pod_spatial, self.pod_flat, self.nca_loss, self.margin = pod_spatial, pod_flat, nca_loss, margin
        self.balance_epochs, self.balance_rate = balance_epochs, balance_rate
        common.drop_last_relu(backbone)
        self.classifier = CosineClassifier(int(backbone.n_features), proxies=proxies)  # type: ignore[arg-type]
        self.teacher: nn.Module | None = None

    def grow(self, task: Task) -> None:
        self.teacher = common.frozen_copy(self.backbone) if task.index > 0 else None
        super().grow(task)

    def prepare(self, task: Task, data: TaskData) -> None:
        if task.index > 0 and task.n_new and data.features is not None:
            features, labels = functional.normalize(data.features(data.new), dim=1), data.new.labels
            new = range(task.n_old, task.n_seen)
            self.classifier.imprint(torch.cat([centres(features[labels == c], self.classifier.proxies) for c in new]))

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        schedule = self.schedule(task)
        # old proxies stay as they are; without a new class, those of the classes that come back learn
        head = (self.classifier.tasks[-1], self.classifier.scale) if task.n_new else (self.classifier,)
        factor = math.sqrt(task.n_seen / common.arriving_classes(task, data))
        objective = self._objective(self.teacher, factor)
        train = Phase("train", data.all, (*trained_parts(self.backbone), *head), schedule, objective)
        if task.index == 0 or not self.balance_epochs:
            return (train,)
        slow = replace(schedule, epochs=self.balance_epochs, learning_rate=self.balance_rate, cosine=False, warmup=0)
        slow = replace(slow, milestones=())  # a constant rate
        images = balanced(data, generator(self.seed, task.index, "balanced"))
        return (train, Phase("balance", images, (self.classifier,), slow, self._objective(None)))

    def _objective(self, teacher: nn.Module | None, factor: float = 1.0) -> Callable[[Batch], Outcome]:
        """Without a teacher for a classifier alone, on which maps and features do not depend."""
        label_loss = nca if self.nca_loss == "code" else lambda z, y: printed_nca(z, y, self._scaled_margin())

        def objective(batch: Batch) -> Outcome:
            maps, features = maps_and_features(self.backbone, batch.images)
            logits = self.classify(features)
            losses = {"classification": label_loss(logits, batch.labels)}
            if teacher is not None:
                with torch.no_grad():
                    old_maps, old_features = maps_and_features(teacher[0], batch.images)  # type: ignore[index]
                losses["pod_spatial"] = self.pod_spatial * factor * pod(maps, old_maps)
                losses["pod_flat"] = (
                    self.pod_flat * factor * (1.0 - functional.cosine_similarity(features, old_features))
                )
            return Outcome(losses, logits, features)

        return objective

    def _scaled_margin(self) -> Tensor:
        """Logits are scaled, and so is what is taken off them."""
        return self.classifier.scale.factor * self.margin


def maps_and_features(backbone: Any, images: Tensor) -> tuple[list[Tensor], Tensor]:
    """The outputs of the stages after the stem, (B, c, h, w) each, and the features (B, d)."""
    inputs: list[Tensor] = []

    def record(stage: str, x: Tensor) -> Tensor:
        inputs.append(x)
        return x

    before_last = backbone.general(images, record)
    last = backbone.last_block(before_last)
    return [*inputs[1:], before_last, last], last.mean(dim=(2, 3))


def pod(maps: list[Tensor], old_maps: list[Tensor]) -> Tensor:
    """POD-spatial, one per image: the mean over stages of the distance between normalised pooled squares."""
    distances = [(_pooled(a) - _pooled(b)).norm(dim=1) for a, b in zip(maps, old_maps, strict=True)]
    return torch.stack(distances).mean(dim=0)


def _pooled(maps: Tensor) -> Tensor:
    """(B, c h + c w) of length 1: squares summed over the width, and over the height."""
    squares = maps.square()
    return functional.normalize(torch.cat([squares.sum(dim=3).flatten(1), squares.sum(dim=2).flatten(1)], 1), dim=1)


def nca(logits: Tensor, labels: Tensor) -> Tensor:
    """The authors' code, one per image: max z - z_y + log(1 + sum over c != y of exp(z_c - max z)).

    A margin taken off every logit alike cancels, and the class of the image counts as exp(0) in the sum."""
    shifted = logits - logits.max(dim=1, keepdim=True).values
    own = functional.one_hot(labels, logits.shape[1]).bool()
    return torch.logsumexp(shifted.masked_fill(own, 0.0), dim=1) - shifted.gather(1, labels[:, None])[:, 0]


def printed_nca(logits: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """The paper's equation, one per image: max(0, log sum over c != y of exp(z_c) - (z_y - margin))."""
    own = functional.one_hot(labels, logits.shape[1]).bool()
    if logits.shape[1] == 1:  # nothing to keep away from
        return logits[:, 0] * 0.0
    rest = torch.logsumexp(logits.masked_fill(own, -torch.inf), dim=1)
    return functional.relu(rest - logits.gather(1, labels[:, None])[:, 0] + margin)


def balanced(data: TaskData, random: torch.Generator) -> ImageSet:
    """The exemplars and, of each class, as many images as the class with most exemplars has, or all it has."""
    images, most = data.all, int(data.exemplars.counts(1).max()) if len(data.exemplars) else len(data.all)
    order = torch.randperm(len(images), generator=random)
    order = order[torch.argsort(~images.from_memory[order], stable=True)]  # exemplars first
    seen, kept = dict[int, int](), []
    for place, label in zip(order.tolist(), images.labels[order].tolist(), strict=True):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= most:
            kept.append(place)
    return images.take(torch.tensor(sorted(kept)))


@torch.no_grad()
def centres(features: Tensor, n: int, rounds: int = 20) -> Tensor:
    """(n, d) by k-means: the first is nearest to the mean, each next one farthest from those before. With fewer images
    than n, images come again."""
    mean = features.mean(dim=0, keepdim=True)
    chosen = [int(torch.cdist(mean, features)[0].argmin())]
    while len(chosen) < min(n, len(features)):
        chosen.append(int(torch.cdist(features[chosen], features).amin(dim=0).argmax()))
    found = features[chosen]
    for _ in range(rounds):
        nearest = torch.cdist(found, features).argmin(dim=0)
        found = torch.stack(
            [features[nearest == i].mean(dim=0) if bool((nearest == i).any()) else found[i] for i in range(len(found))]
        )
    return found[torch.arange(n) % len(found)]
