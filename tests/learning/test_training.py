"""The one training loop: what a step does, what an epoch measures, and when it refuses to go on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, new_method
from torch import nn
from torch.nn import functional

from endocil import EndocilError
from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, training_batches
from endocil.data.cache import Images
from endocil.learning.memory import update_memory
from endocil.learning.optimizers import state_of
from endocil.learning.training import Epoch, fit
from endocil.methods.base import Phase, Schedule


def first_phase(life: Life, **schedule: Any) -> Phase:
    task = life.scenario.tasks[0]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    return Phase(phase.name, phase.images, phase.train, Schedule(**schedule), phase.objective, phase.gradients)


def train(life: Life, phase: Phase, **options: Any) -> list[Epoch]:
    options = {"fabric": life.fabric, "augmentation": Augmentation(), "seed": 0, "key": (0, 0), **options}
    return list(fit(phase, life.method, logged_head=life.method.classifier, **options))


def test_training_is_plain_sgd_on_the_mean_of_the_losses(images: Images, tmp_path: Path) -> None:
    schedule = {"epochs": 2, "milestones": (1,), "batch_size": 8, "weight_decay": 1e-3}
    life = Life(images, tmp_path, new_method("finetune"))
    train(life, first_phase(life, **schedule))
    other = Life(images, tmp_path / "other", new_method("finetune"))
    phase = first_phase(other, **schedule)
    other.method.train()
    parameters = [*other.method.backbone.parameters(), *other.method.classifier.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1, 0.9, weight_decay=1e-3)
    for epoch in range(2):
        optimizer.param_groups[0]["lr"] = (0.1, 0.01)[epoch]
        for batch in training_batches(phase.images, 8, Augmentation(), 0, (0, 0, epoch), torch.device("cpu")):
            loss = functional.cross_entropy(other.method(batch.images), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in life.method.state_dict().items():
        assert torch.allclose(value, other.method.state_dict()[name], rtol=1e-4, atol=1e-5), name


def test_an_epoch_measures_losses_per_class_rate_gradient_and_speed(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("endocil")).live(1)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    epochs = train(life, phase)
    measured = epochs[0].measured
    assert set(measured["losses"]) == {"classification", "distillation"}
    assert [len(values) for values in measured["per_class"].values()] == [task.n_seen] * 2
    counts = phase.images.counts(task.n_seen)
    weighted = sum(n * value for n, value in zip(counts.tolist(), measured["per_class"]["classification"], strict=True))
    assert weighted / len(phase.images) == pytest.approx(measured["losses"]["classification"], rel=1e-5)
    assert measured["gamma"] > 0
    assert measured["classifier_gradient"] > 0
    assert len(measured["classifier_rows"]) == task.n_seen
    norms = life.method.classifier.weight.norm(dim=1).tolist()
    assert epochs[-1].measured["weight_norms"] == pytest.approx(norms, abs=1e-5)
    assert measured["images"] == len(phase.images)
    assert measured["images_per_second"] > 0


def test_a_class_without_images_in_the_epoch_has_no_loss_rather_than_zero(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("finetune")).live(1)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    assert train(life, phase)[0].measured["per_class"]["classification"][:2] == [None, None]


def test_a_penalty_without_images_counts_once_a_step(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("finetune"))
    phase = first_phase(life, epochs=1, batch_size=8)

    def objective(batch: Batch) -> Outcome:
        found = phase.objective(batch)
        return Outcome({**found.losses, "penalty": 0.0 * life.method.classifier.weight.sum() + 3.0})

    with_penalty = Phase("train", phase.images, phase.train, phase.schedule, objective)
    assert train(life, with_penalty)[0].measured["losses"]["penalty"] == pytest.approx(3.0)


def test_a_loss_that_is_no_number_ends_in_one_clear_line(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("finetune"))
    phase = first_phase(life, epochs=3, batch_size=8, learning_rate=1e12)
    with pytest.raises(EndocilError, match=r"the classification loss became .* lower train\.learning_rate"):
        train(life, phase)


def test_features_that_are_no_numbers_end_in_one_clear_line(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("icarl")).live(1)
    with torch.no_grad():
        life.method.backbone.bn1.bias.fill_(torch.inf)
    task, classes = life.scenario.tasks[0], images.table.classes
    new = life.new_images(task)
    with pytest.raises(EndocilError, match=r"features are not finite after task 1; lower train\.learning_rate"):
        update_memory(life.method, life.memory, new, task, classes, batch_size=64, fabric=life.fabric)


def test_modules_are_put_back_as_they_were_even_after_an_error(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("icarl")).live(2)
    wanted = {name: parameter.requires_grad for name, parameter in life.method.named_parameters()}
    assert not any(wanted[name] for name in wanted if name.startswith("teacher"))
    assert all(wanted[name] for name in wanted if not name.startswith("teacher"))
    assert not life.method.training


def test_without_momentum_there_is_no_optimiser_state_to_keep(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("finetune"))
    epoch = train(life, first_phase(life, epochs=1, batch_size=8, momentum=0.0))[-1]
    assert state_of(epoch.optimizer).tensors == {}


def test_a_parameter_that_the_loss_leaves_alone_keeps_its_place_in_the_optimisers_state(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("icarl"))
    phase = first_phase(life, epochs=1)
    unused = nn.Linear(3, 2)
    phase = replace(phase, train=(unused, *phase.train))
    (epoch,) = train(life, phase)
    parameters = [parameter for module in phase.train for parameter in module.parameters()]
    kept = {f"{i}/momentum_buffer": one.shape for i, one in enumerate(parameters)}
    assert {name: one.shape for name, one in state_of(epoch.optimizer).tensors.items()} == kept
