"""MRFA, multi-layer rehearsal feature augmentation (Zheng et al., ICML 2024), on iCaRL.

Exemplars are few and soon overfitted. So each is made harder at one site of the network, drawn at random: the input of
a stage (or of the classifier) is moved along the gradient of its loss. The teacher sees the same perturbation. New
images stay as they are.
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
from endocil.errors import SettingsError
from endocil.methods import common
from endocil.methods.base import Phase, TaskData
from endocil.methods.icarl import ICaRL


@dataclass(frozen=True)
class Perturbation:
    """Added to the input of each site: for these rows of the batch, this much of this gradient."""

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
    """iCaRL whose exemplars are made harder inside the network, at one site each, before they are learned."""

    mixes_labels = False  # a mixed image is neither exemplar nor new

    def __init__(
        self,
        backbone: nn.Module,
        *,
        step: float = 1e-4,  # p_l: the authors, for tasks of equal size
        auto_kd: bool = False,  # weight the two losses by the ratio of old classes: the authors, for a large first task
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        common.check_number("step", step, step >= 0, "a number from 0 on (the default is 0.0001)")
        stages = list(getattr(backbone, "stages", ()))
        if "before_stage" not in inspect.signature(backbone.forward).parameters or not stages:
            raise SettingsError(
                f"network.backbone {type(backbone).__name__} does not let its stages' inputs be changed: "
                f"its forward takes no before_stage, or it has no stages (see networks/staged_backbone.py); "
                f"take a ResNet or EfficientNet-Lite"
            )
        self.step, self.auto_kd = step, auto_kd
        # whose input is changed: every stage after the stem, as the authors' layer1 to layer4 of ResNet-18
        self.sites = (*stages[1:], "classifier")

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (phase,) = super().phases(task, data)
        if self.teacher is None:
            return (phase,)
        teacher, old_ratio = self.teacher, common.old_class_ratio(task, data)
        label_weight, old_weight = (2.0 * (1.0 - old_ratio), old_ratio) if self.auto_kd else (1.0, 1.0)

        def objective(batch: Batch) -> Outcome:
            perturb = self._perturbation(batch)
            features = perturb("classifier", self.backbone(batch.images, perturb))
            logits = self.classifier(features)
            with torch.no_grad():
                teacher_logits = teacher[1](  # type: ignore[index]
                    perturb("classifier", teacher[0](batch.images, perturb))  # type: ignore[index]
                )
            losses = {
                "classification": label_weight * common.cross_entropy(self, logits, batch),
                "distillation": old_weight * self.distil * distillation(logits, teacher_logits, self.temperature),
            }
            return Outcome(losses, logits, features)

        return (replace(phase, objective=objective, takes_maps=False),)

    def _perturbation(self, batch: Batch) -> Perturbation:
        """One site and one size for each exemplar of the batch, and the gradient of the exemplars' loss there."""
        exemplars = torch.nonzero(batch.from_memory).flatten()  # (b,)
        if not len(exemplars):
            return Perturbation()
        gradients = self._input_gradients(batch, exemplars)
        drawn = batch.uniform(2, "push")[exemplars]  # (b, 2)
        site_of = (drawn[:, 0] * len(self.sites)).long()
        parts: dict[str, tuple[Tensor, ...]] = {}
        for index, site in enumerate(self.sites):
            rows = torch.nonzero(site_of == index).flatten()
            if len(rows):
                parts[site] = (exemplars[rows], self.step * drawn[rows, 1], gradients[site][rows])
        return Perturbation(*({site: part[i] for site, part in parts.items()} for i in range(3)))

    def _input_gradients(self, batch: Batch, exemplars: Tensor) -> dict[str, Tensor]:
        """Gradient of the exemplars' mean cross-entropy by the input of each site."""
        inputs: dict[str, Tensor] = {}

        def record_input(site: str, x: Tensor) -> Tensor:
            inputs[site] = x if x.requires_grad else x.requires_grad_()  # all before it may be frozen
            return inputs[site]

        device = batch.images.device.type
        with common.eval_mode(self.backbone), torch.autocast(device, enabled=False), torch.enable_grad():
            features = record_input("classifier", self.backbone(batch.images[exemplars], record_input))
            logits, labels = self.classifier(features), batch.labels[exemplars]
            losses = functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
            mean = losses / batch.batch_from_memory.sum()
            gradients = torch.autograd.grad(mean, list(inputs.values()))
        return dict(zip(inputs, gradients, strict=True))
