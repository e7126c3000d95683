"""MRFA, multi-layer rehearsal feature augmentation (Zheng et al., ICML 2024), on iCaRL.

Exemplars are few and soon learned by heart. So each is made harder at one place of the network, drawn at random:
what a stage (or the classifier) sees of it is moved along the gradient of its loss. The teacher's answer is asked
for under the same change. New images stay as they are.
As theirs, the gradients are taken in a pass of the exemplars alone before the step, batch norm in eval mode.
Differs from the authors: no hooks, and that pass leaves no gradients of parameters behind.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.losses import Outcome, distillation
from endocil.data.batches import Batch
from endocil.data.scenario import Task
from endocil.errors import EndocilError
from endocil.methods import common as moves
from endocil.methods.base import Phase, TaskData
from endocil.methods.icarl import ICaRL

SITES = (
    "layer1",
    "layer2",
    "layer3",
    "layer4",
    "classifier",
)  # whose input is changed: the authors' for ResNet-18


@dataclass(frozen=True)
class Push:
    """What is added to the input of each site: for these rows of the batch, this much of this gradient."""

    rows: Mapping[str, Tensor] = field(default_factory=dict)  # (k,) rows of the batch
    amounts: Mapping[str, Tensor] = field(default_factory=dict)  # (k,)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)  # (k, ...)

    def __call__(self, site: str, x: Tensor) -> Tensor:
        """x + amount |x|^2 g for the site's rows; neither |x|^2 nor g is differentiated."""
        if site not in self.rows:
            return x
        rows = self.rows[site]
        squares = x.detach()[rows].flatten(1).square().sum(dim=1)  # (k,)
        sizes = (self.amounts[site] * squares).view(-1, *[1] * (x.ndim - 1))
        return x.index_add(0, rows, (sizes * self.gradients[site]).to(x))


class MRFA(ICaRL):
    """iCaRL whose exemplars are made harder inside the network, at one place each, before they are learned."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        step: float = 1e-4,  # p_l: the authors, for tasks of equal size
        auto_kd: bool = False,  # weigh the two losses by the share of old classes: the authors, for a large first task
        **shared: Any,
    ) -> None:
        super().__init__(backbone, **shared)
        moves.refuse_outside("step", step, step >= 0, "a number from 0 on (the default is 0.0001)")
        if "before_stage" not in inspect.signature(backbone.forward).parameters:
            raise EndocilError(
                f"network.backbone {type(backbone).__name__} does not let its stages' inputs be changed: "
                f"its forward takes no before_stage (see ResNet in networks/resnet.py)"
            )
        self.step, self.auto_kd = step, auto_kd

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (plain,) = super().phases(task, data)
        if self.teacher is None:
            return (plain,)
        teacher, share = self.teacher, moves.old_share(task)
        label_weight, old_weight = (2.0 * (1.0 - share), share) if self.auto_kd else (1.0, 1.0)

        def objective(batch: Batch) -> Outcome:
            push = self._push(batch)
            features = push("classifier", self.backbone(batch.images, push))
            logits = self.classifier(features)
            with torch.no_grad():
                taught = teacher[1](push("classifier", teacher[0](batch.images, push)))  # type: ignore[index]
            told = distillation(logits, taught, self.temperature)
            losses = {
                "classification": label_weight
                * functional.cross_entropy(logits, batch.labels, reduction="none"),
                "distillation": old_weight * self.distil * told,
            }
            return Outcome(losses, logits, features)

        return (replace(plain, objective=objective),)

    def _push(self, batch: Batch) -> Push:
        """One site and one size for each exemplar of the batch, and the gradient of the exemplars' loss there."""
        exemplars = torch.nonzero(batch.from_memory).flatten()  # (b,)
        if not len(exemplars):
            return Push()
        gradients = self._gradients(batch, exemplars)
        drawn = batch.uniform(2, "push")[exemplars]  # (b, 2)
        site_of = (drawn[:, 0] * len(SITES)).long()
        push: dict[str, tuple[Tensor, ...]] = {}
        for index, site in enumerate(SITES):
            mine = torch.nonzero(site_of == index).flatten()
            if len(mine):
                push[site] = (exemplars[mine], self.step * drawn[mine, 1], gradients[site][mine])
        return Push(*({site: parts[i] for site, parts in push.items()} for i in range(3)))

    def _gradients(self, batch: Batch, exemplars: Tensor) -> dict[str, Tensor]:
        """Gradient of the exemplars' mean cross-entropy by the input of each site."""
        inputs: dict[str, Tensor] = {}

        def watch(site: str, x: Tensor) -> Tensor:
            inputs[site] = x if x.requires_grad else x.requires_grad_()  # all before it may be frozen
            return inputs[site]

        device = batch.images.device.type
        with moves.evaluating(self.backbone), torch.autocast(device, enabled=False), torch.enable_grad():
            features = watch("classifier", self.backbone(batch.images[exemplars], watch))
            losses = functional.cross_entropy(
                self.classifier(features), batch.labels[exemplars], reduction="sum"
            )
            mean = losses / batch.batch_from_memory.sum()
            gradients = torch.autograd.grad(mean, list(inputs.values()))
        return dict(zip(inputs, gradients, strict=True))
