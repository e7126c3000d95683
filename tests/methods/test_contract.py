"""What every entry of METHODS promises the house (architecture, "The Method contract")."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import ALL_METHODS, TRAINED, Life, Lives, differing, new_method, state_of

from endocil.components.gradients import GradientRule
from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, ImageSet, training_batches
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.learning.training import fit, only_training
from endocil.methods import METHODS
from endocil.methods.base import Phase, TaskData

Grown = Callable[[int], tuple[Life, Task, TaskData]]


def batch_of(phase: Phase, n: int = 8) -> Batch:
    batches = training_batches(phase.images, n, Augmentation(), 0, ("test",), torch.device("cpu"))
    return next(iter(batches))


@pytest.fixture(params=ALL_METHODS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def grown(name: str, lives: Lives, tmp_path: Path) -> Grown:
    """A life that has learned all but the last of so many tasks and has made room for that one."""

    def grow(n_tasks: int) -> tuple[Life, Task, TaskData]:
        n_tasks = min(n_tasks, len(lives.whole(name).scenario.tasks))
        life = lives.after(name, n_tasks - 1, tmp_path)
        task = life.scenario.tasks[n_tasks - 1]
        life.method.grow(task)
        return life, task, life.data(task)

    return grow


def after_each_task(name: str, lives: Lives, folder: Path) -> Iterator[tuple[Task, Life]]:
    for task in lives.whole(name).scenario.tasks:
        yield task, lives.after(name, task.index + 1, folder / str(task.index))


def test_scores_have_one_column_for_each_seen_class(name: str, lives: Lives, tmp_path: Path) -> None:
    for task, life in after_each_task(name, lives, tmp_path):
        features = life.method.embed(torch.randn(3, 3, 32, 32))
        assert features.ndim == 2
        assert life.method.classify(features).shape == (3, task.n_seen)
        assert life.method(torch.randn(1, 3, 32, 32)).shape == (1, task.n_seen)


def test_an_objective_gives_one_loss_per_image_or_a_penalty(grown: Grown) -> None:
    life, task, data = grown(2)
    for phase in life.method.phases(task, data):
        batch = batch_of(phase)
        outcome = phase.objective(batch)
        assert outcome.losses
        assert all(loss.shape in ((len(batch),), ()) for loss in outcome.losses.values())
        assert outcome.logits is None or outcome.logits.shape == (len(batch), task.n_seen)


def test_asking_for_phases_changes_nothing(grown: Grown) -> None:
    life, task, data = grown(2)
    before = state_of(life.method)
    first = life.method.phases(task, data)
    again = life.method.phases(task, data)
    assert differing(before, state_of(life.method)) == []
    assert [(p.name, p.schedule, p.images.rows.tolist()) for p in first] == [
        (p.name, p.schedule, p.images.rows.tolist()) for p in again
    ]


def test_every_trained_parameter_gets_a_gradient_and_no_other_does(grown: Grown) -> None:
    life, task, data = grown(3)
    for phase in life.method.phases(task, data):
        trained = {parameter for module in phase.train for parameter in module.parameters()}
        with only_training(life.method, phase.train):
            losses = phase.objective(batch_of(phase)).losses.values()
            torch.stack([loss.mean() for loss in losses]).sum().backward()
            for name, parameter in life.method.named_parameters():
                assert (parameter.grad is not None) == (parameter in trained), name
                parameter.grad = None


def test_modules_outside_the_phase_keep_their_bits_and_batch_norm_statistics(grown: Grown) -> None:
    life, task, data = grown(3)
    for phase in life.method.phases(task, data):
        inside = {id(value) for module in phase.train for value in module.state_dict(keep_vars=True).values()}
        outside = {k for k, v in life.method.state_dict(keep_vars=True).items() if id(v) not in inside}
        before = state_of(life.method)
        options: dict[str, Any] = {"fabric": life.fabric, "augmentation": Augmentation(), "seed": 0, "key": (0,)}
        list(fit(phase, life.method, **options, logged_head=life.method.classifier))
        changed = set(differing(before, state_of(life.method)))
        assert not changed & outside
        assert changed


def test_predictors_hold_exactly_the_parameters_that_prediction_uses(name: str, lives: Lives, tmp_path: Path) -> None:
    for _, life in after_each_task(name, lives, tmp_path):
        method = life.method.requires_grad_(True)
        method(torch.randn(2, 3, 32, 32)).sum().backward()
        used = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
        told = {id(parameter) for module in method.predictors for parameter in module.parameters()}
        assert used == {name for name, parameter in method.named_parameters() if id(parameter) in told}
        method.zero_grad(set_to_none=True)


def test_images_of_known_classes_may_come_with_new_ones(name: str, lives: Lives, tmp_path: Path) -> None:
    life = lives.after(name, 1, tmp_path)
    for task in life.scenario.tasks[1:2]:
        known = ImageSet.of(life.images, life.scenario.rows("train", task.old)[::3])
        data = TaskData(life.new_images(task) + known, life.data(life.scenario.tasks[0]).exemplars)
        life.learner.learn(task, data.new, life.images.table.classes)
        assert life.method(torch.randn(2, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize("name", [name for name in ALL_METHODS if METHODS[name].learns_known_classes])
@pytest.mark.parametrize("back", [1, 2], ids=["one class comes back", "all classes come back"])
def test_images_of_known_classes_may_come_alone_and_are_learned(
    name: str, back: int, lives: Lives, tmp_path: Path
) -> None:
    life, task = lives.after(name, 1, tmp_path), Task(1, 2, 0)
    rows = life.scenario.rows("train", slice(0, back))[::3]
    before, kept = state_of(life.method), len(life.memory or ())
    life.learner.learn(task, ImageSet.of(life.images, rows), life.images.table.classes)
    assert life.method(torch.randn(2, 3, 32, 32)).isfinite().all()
    assert life.method.classifier.out_features == 2
    assert any(key.startswith("classifier") for key in differing(before, state_of(life.method)))
    assert len(life.memory or ()) == kept  # chosen again, from old and new together
    fresh = new_method(name, seed=7)
    for one in (life.scenario.tasks[0], task):
        fresh.grow(one)
    fresh.load_state_dict(life.method.state_dict())


def test_a_batch_without_exemplars_gives_finite_losses(grown: Grown) -> None:
    life, task, data = grown(2)
    for phase in life.method.phases(task, data):
        batch = batch_of(replace(phase, images=data.new))
        assert not batch.from_memory.any()
        with only_training(life.method, phase.train):
            losses = phase.objective(batch).losses
            torch.stack([loss.mean() for loss in losses.values()]).sum().backward()
        assert all(loss.isfinite().all() for loss in losses.values())


def test_a_remainder_of_one_image_and_a_class_below_the_quota_are_learned(
    name: str, images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method(name))
    rows = life.scenario.rows("train", life.scenario.tasks[0].new)
    labels = ImageSet.of(life.images, rows).labels
    few = torch.cat([rows[labels == 0][:2], rows[labels == 1][:7]])  # 9 images in batches of 8; a class of 2 < 4
    life.learner.learn(life.scenario.tasks[0], ImageSet.of(life.images, few), life.images.table.classes)
    for task in life.scenario.tasks[1:]:
        life.learner.learn(task, life.new_images(task), life.images.table.classes)
    assert life.method(torch.randn(2, 3, 32, 32)).isfinite().all()
    if life.memory is not None:
        assert life.data(life.scenario.tasks[0]).exemplars.counts(6).tolist()[:2] == [2, 4]


def test_a_fresh_method_grown_alike_accepts_a_trained_state(name: str, lives: Lives, tmp_path: Path) -> None:
    life = lives.after(name, 3, tmp_path)
    fresh = new_method(name, seed=7)
    for task in life.scenario.tasks:
        fresh.grow(task)
    fresh.load_state_dict(life.method.state_dict())
    pictures = torch.randn(4, 3, 32, 32)
    life.method.eval()
    fresh.eval()
    # The trained network is channels-last and the fresh one is not: other kernels, other rounding.
    torch.testing.assert_close(fresh(pictures), life.method(pictures), rtol=1e-4, atol=1e-4)


def test_learning_again_with_the_same_seed_gives_the_same_bits(name: str, lives: Lives, tmp_path: Path) -> None:
    again = Life(lives.images, tmp_path, new_method(name)).live()
    assert differing(state_of(lives.whole(name).method), state_of(again.method)) == []


def test_frozen_stages_keep_their_bits_through_a_life(images: Images, tmp_path: Path) -> None:
    for name in TRAINED:
        method = new_method(name, freeze=("stem", "layer1"))
        before = state_of(method)
        Life(images, tmp_path / name, method).live(2)
        after = state_of(method)
        kept = [key for key in before if key.startswith(("backbone.conv1", "backbone.bn1", "backbone.layer1"))]
        assert differing({k: before[k] for k in kept}, {k: after[k] for k in kept}) == []
        assert not torch.equal(before["backbone.layer4.0.conv1.weight"], after["backbone.layer4.0.conv1.weight"])


def test_the_first_task_is_the_same_in_every_method_that_starts_with_cross_entropy(
    lives: Lives, tmp_path: Path
) -> None:
    plain_endocil = Life(lives.images, tmp_path / "endocil", new_method("endocil", loss="cross_entropy"))
    others = [name for name in TRAINED if name not in ("dgr", "endocil", "joint", "lucir", "podnet")]
    started = [plain_endocil.live(1), *(lives.after(name, 1, tmp_path / name) for name in others)]
    states = [state_of(life.method) for life in started]
    plain = {key: value for key, value in states[0].items() if key.startswith(("backbone.", "classifier."))}
    assert len(plain) > 100
    for other in states[1:]:
        assert differing(plain, {key: other[key] for key in plain}) == []


def test_gradient_rules_are_modules_whose_plain_form_collects_nothing() -> None:
    assert GradientRule().collect(Outcome({}), 1) == {}
