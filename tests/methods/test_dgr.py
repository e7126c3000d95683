"""DGR: the whole rule against a plain numpy loop over several tasks, its limits, and its options."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from life import Life, new_method
from pictures import make_images
from present import present
from torch import Tensor, nn
from torch.nn import functional

from endocil import EndocilError, Outcome, distillation
from endocil.data.batches import Batch, ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.methods import dgr, method_options
from endocil.methods.base import Phase, Schedule, TaskData
from endocil.methods.dgr import DGR, row_weights
from endocil.networks import GrowingClassifier

SIZES, QUOTA, STEPS, RATE, MOMENTUM, DECAY = (2, 1, 3), 5, 4, 0.1, 0.9, 5e-4


class Body(nn.Module):
    """One linear layer before the classifier: its gradient is easy to write down."""

    n_features = 5

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 5, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layer(images.flatten(1))
        return features


def small(**options: Any) -> DGR:
    torch.manual_seed(0)
    return DGR(Body(), **options).double()


def layer_of(method: DGR) -> nn.Parameter:
    return method.backbone.get_parameter("layer.weight")


def gradient_of(layer: nn.Linear | GrowingClassifier) -> Tensor:
    """(C, d + 1): of the weights and, last, of the bias."""
    return torch.cat([present(layer.weight.grad), present(layer.bias.grad)[:, None]], dim=1)


def tasks(sizes: tuple[int, ...] = SIZES) -> list[Task]:
    return [Task(index, sum(sizes[:index]), n_new) for index, n_new in enumerate(sizes)]


def data_of(images: Images, task: Task) -> TaskData:
    labels = torch.tensor(images.table.labels)
    rows = [torch.nonzero(labels == label).flatten() for label in range(task.n_seen)]
    old = torch.cat([torch.empty(0, dtype=torch.int64), *(mine[:QUOTA] for mine in rows[task.old])])
    return TaskData(ImageSet.of(images, torch.cat(rows[task.new])), ImageSet.of(images, old, from_memory=True))


def batches(task: Task) -> Iterator[Batch]:
    random = torch.Generator().manual_seed(task.index)
    for _ in range(STEPS):
        pictures = torch.randn(8, 3, 2, 2, generator=random, dtype=torch.float64)
        labels = torch.randint(task.n_seen, (8,), generator=random)
        yield Batch(pictures, labels, labels < task.n_old, labels, labels < task.n_old)


def step(phase: Phase, batch: Batch, optimizer: torch.optim.Optimizer) -> Outcome:
    outcome = phase.objective(batch)
    collected = phase.gradients.collect(outcome, len(batch))
    optimizer.zero_grad()
    torch.stack([loss.sum() / len(batch) for loss in outcome.losses.values()]).sum().backward()
    phase.gradients.overwrite(collected)
    optimizer.step()
    return outcome


def learn(method: DGR, images: Images, task: Task) -> None:
    data = data_of(images, task)
    (phase,) = method.phases(task, data)
    parameters = [parameter for module in phase.train for parameter in module.parameters()]
    optimizer = torch.optim.SGD(parameters, RATE, MOMENTUM, weight_decay=DECAY)
    for batch in batches(task):
        step(phase, batch, optimizer)
    method.consolidate(task, data)


def softmax(z: np.ndarray) -> np.ndarray:
    raised = np.exp(z - z.max(axis=1, keepdims=True))
    shares: np.ndarray = raised / raised.sum(axis=1, keepdims=True)
    return shares


def kept_back(z: np.ndarray, teacher_logits: np.ndarray, gone: np.ndarray, variant: str) -> np.ndarray:
    """Gradient of the distillation by the old logits, summed over images, temperature 2."""
    target = softmax(teacher_logits / 2)
    if variant == "pilot":
        plain: np.ndarray = (softmax(z / 2) - target) / 2
        return plain
    share = (gone + 0.001) / (gone + 0.001).sum()
    even = -(share * np.log(share)).sum() / math.log(len(gone))
    lost = gone / np.linalg.norm(gone)
    mixed = lost * z + (1 - lost) * teacher_logits
    both: np.ndarray = (even * (softmax(z / 2) - target) + (1 - even) * lost * (softmax(mixed / 2) - target)) / 2
    return both


def numpy_task(
    task: Task, net: list[Any], teacher: list[Any], images: Images, variant: str, new_ratio: str
) -> list[Any]:
    """A, W, b after the task: written from the specification, number by number."""
    full = np.bincount(images.table.labels)[: task.n_seen]
    n_old, n_new, kept = task.n_old, task.n_new, np.minimum(full, QUOTA)
    counts = np.concatenate([kept[:n_old], full[n_old:]])
    prior = np.log(counts / counts.sum())
    share, strength = n_old / (n_old + n_new), n_old / n_new
    if variant == "original":
        share = full[:n_old].sum() / full.sum()
        strength = 0.7 * math.sqrt(full[:n_old].sum() / full[n_old:].sum()) * 4
    velocity, phi = [0.0 * part for part in net], np.zeros(task.n_seen)
    for batch in batches(task):
        a, w, b = net
        x, labels = batch.images.flatten(1).numpy(), batch.labels.numpy()
        h = x @ a.T
        z = h @ w.T + b
        by_label = (softmax(z + prior) - np.eye(task.n_seen)[labels]) / len(x)
        by_teacher = np.zeros_like(z)
        if n_old:
            teacher_logits = x @ teacher[0].T @ teacher[1].T + teacher[2]
            gone = full[:n_old] - kept[:n_old]
            by_teacher[:, :n_old] = kept_back(z[:, :n_old], teacher_logits, gone, variant) / len(x)
        g_label, g_teacher = by_label.T @ h, by_teacher.T @ h
        phi += np.linalg.norm(g_label, axis=1)
        omega, gamma = np.empty(task.n_seen), 0.0
        omega[n_old:] = phi[n_old:].min() / phi[n_old:]
        if n_old:
            rho = phi[n_old:].mean() / phi[:n_old].mean()
            omega[:n_old] = phi[:n_old].min() / phi[:n_old] * min(1.0, rho)
            omega[n_old:] *= min(1.0, (rho if new_ratio == "code" else 1 / rho) * math.exp(-share))
            if np.linalg.norm(g_teacher) > 1e-12:  # at the first step the student is the teacher
                gamma = float(np.linalg.norm(omega[:, None] * g_label) / np.linalg.norm(g_teacher))
        gradients = [
            ((by_label + strength * by_teacher) @ w).T @ x,
            omega[:, None] * g_label + gamma * g_teacher,
            omega * by_label.sum(axis=0) + gamma * by_teacher.sum(axis=0),
        ]
        for i, gradient in enumerate(gradients):
            velocity[i] = MOMENTUM * velocity[i] + gradient + DECAY * net[i]
            net[i] = net[i] - RATE * velocity[i]
    return net


@pytest.mark.parametrize("variant", ["pilot", "original"])
@pytest.mark.parametrize("new_ratio", ["code", "inverse"])
def test_three_tasks_of_several_steps_equal_a_plain_numpy_loop(images: Images, variant: str, new_ratio: str) -> None:
    method = small(variant=variant, new_ratio=new_ratio)
    net: list[np.ndarray] = []
    for task in tasks():
        method.grow(task)
        rows, biases = (value.detach().numpy().copy() for value in method.classifier.parameters())
        teacher = net
        if net:
            rows[task.old], biases[task.old] = net[1], net[2]
        body = net[0] if net else layer_of(method).detach().numpy().copy()
        net = numpy_task(task, [body, rows, biases], teacher, images, variant, new_ratio)
        learn(method, images, task)
        found = [layer_of(method), method.classifier.weight, method.classifier.bias]
        for expected, actual in zip(net, found, strict=True):
            assert np.allclose(expected, actual.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_both_versions_agree_where_attenuation_is_off_and_as_much_is_gone_of_every_class() -> None:
    """Then the distillation of the original is the plain one, and its weight can be made the same."""
    even = make_images([10, 10, 10, 10], size=4)
    pilot = small(variant="pilot", attenuation=0.0)
    original = small(variant="original", attenuation=0.0, distil=0.25)  # 1 * 2 / 2 = 0.25 * sqrt(20 / 20) * 4
    for task in tasks((2, 2)):
        for method in (pilot, original):
            method.grow(task)
            learn(method, even, task)
        for one, other in zip(pilot.parameters(), original.parameters(), strict=True):
            assert torch.allclose(one, other, rtol=1e-10, atol=1e-13)
            assert task.index > 0 or torch.equal(one, other)  # the first task is the same whatever the counts


@pytest.mark.parametrize("variant", ["pilot", "original"])
def test_one_step_keeps_the_invariants_of_the_rule(images: Images, variant: str) -> None:
    gradients = {}
    for distil in (0.5, 2.0):
        method, (first, task) = small(variant=variant, distil=distil), tasks((4, 2))
        method.grow(first)
        method.grow(task)
        with torch.no_grad():
            method.classifier.weight.add_(torch.arange(30).view(6, 5).sin())  # away from the teacher
        (phase,) = method.phases(task, data_of(images, task))
        batch = next(batches(task))
        outcome = phase.objective(batch)
        total = torch.stack([loss.mean() for loss in outcome.losses.values()]).sum()
        (plain,) = torch.autograd.grad(total, layer_of(method), retain_graph=True)
        assert isinstance(phase.gradients, dgr.ReweightedGradient)
        parts = phase.gradients.collect(outcome, len(batch))
        total.backward()
        phase.gradients.overwrite(parts)
        assert torch.equal(present(layer_of(method).grad), plain)  # the backbone takes the plain gradient
        omega = row_weights(phase.gradients.gathered, 4, phase.gradients.new_factor)
        labels, teacher_logits = parts["classification"], parts["distillation"]
        weighted = omega[:, None] * labels
        gamma = phase.gradients.measured["gamma"]
        assert (gamma * teacher_logits[:, :-1]).norm().item() == pytest.approx(weighted[:, :-1].norm().item())
        assert not teacher_logits[4:].any()  # new rows carry no distillation
        found = gradient_of(method.classifier)
        assert torch.allclose(found[4:], weighted[4:])
        gradients[distil] = found
    assert torch.allclose(gradients[0.5], gradients[2.0], rtol=1e-10)  # its weight cancels in the classifier


def test_row_weights_are_above_0_and_at_most_1_and_greatest_where_least_was_gathered() -> None:
    gathered = torch.tensor([3.0, 1.0, 2.0, 8.0, 4.0]).double()
    for slower in (1.0, math.exp(-0.6)):
        omega = row_weights(gathered, 3, slower)
        assert bool(((omega > 0) & (omega <= 1)).all())
        assert (int(omega[:3].argmax()), int(omega[3:].argmax())) == (1, 1)
        assert omega[:3].tolist() == pytest.approx([1 / 3, 1.0, 1 / 2])  # rho = 3: r_old is 1
        assert omega[3:].tolist() == pytest.approx([min(1, 3 * slower) / 2, min(1, 3 * slower)])
        inverse = row_weights(gathered, 3, slower, inverse=True)
        assert inverse[3:].tolist() == pytest.approx([slower / 3 / 2, slower / 3])
    assert row_weights(gathered, 0, 1.0).tolist() == pytest.approx([1 / 3, 1.0, 1 / 2, 1 / 8, 1 / 4])
    assert bool(row_weights(torch.zeros(4), 2, 1.0).isfinite().all())  # rows that never got a gradient


def test_distribution_aware_distillation_is_plain_where_nothing_or_the_same_is_gone() -> None:
    logits, teacher_logits = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0)).double()

    def mixed(*removed: float) -> Tensor:
        gone = torch.tensor(removed).double()
        return dgr.distribution_aware_distillation(logits, teacher_logits[:, : len(removed)], gone, 2.0)

    plain = distillation(logits, teacher_logits, 2.0)
    assert torch.allclose(mixed(0, 0, 0), plain)
    assert torch.allclose(mixed(7, 7, 7), plain)
    assert not torch.allclose(mixed(0, 1, 90), plain)
    assert not mixed(9).any()  # over a single class


def test_the_original_shortens_gradients_beyond_ten_thousand(images: Images) -> None:
    layer = nn.Linear(3, 2).double()
    parts = {"classification": torch.full((2, 4), 1e5).double(), "distillation": torch.zeros(2, 4).double()}
    for clip, length in (((), 2e5 * math.sqrt(2)), ((layer,), 1e4)):
        dgr.ReweightedGradient(layer, 0, new_factor=1.0, clip=clip).overwrite(parts)
        found = gradient_of(layer)
        assert found.norm().item() == pytest.approx(length)
    for variant, clips in (("pilot", 0), ("original", 2)):  # backbone and classifier
        method = small(variant=variant)
        method.grow(Task(0, 0, 2))
        (phase,) = method.phases(Task(0, 0, 2), data_of(images, Task(0, 0, 2)))
        assert isinstance(phase.gradients, dgr.ReweightedGradient)
        assert len(phase.gradients._clip) == clips


def test_a_life_remembers_how_many_images_each_class_had_and_predicts_without_the_prior(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("dgr", epochs=1, variant="original")).live(1)
    (_, task, last), kept = life.scenario.tasks, set(life.kept_rows()[0].tolist())
    assert life.method.statistics[dgr.COUNTS].tolist() == [11, 8]
    known = [row for row in life.scenario.rows("train", slice(0, 1)).tolist() if row not in kept]
    life.learner.learn(
        task, life.new_images(task) + ImageSet.of(images, torch.tensor(known)), life.images.table.classes
    )
    assert life.method.statistics[dgr.COUNTS].tolist() == [11 + len(known), 8, 9]
    life.step(last)  # a class smaller than the quota among its three
    pictures = torch.randn(2, 3, 32, 32)
    raw = functional.linear(life.method.embed(pictures), *life.method.classifier.parameters())
    assert torch.equal(life.method(pictures), raw)
    life.method.requires_grad_(True)(pictures).sum().backward()
    touched = {parameter for parameter in life.method.parameters() if parameter.grad is not None}
    assert touched == {parameter for module in life.method.predictors for parameter in module.parameters()}


def test_every_task_starts_to_gather_anew_and_a_batch_may_be_one_new_image(images: Images) -> None:
    for variant in ("pilot", "original"):
        method = small(variant=variant)
        for task in tasks((2, 1)):
            method.grow(task)
            (phase,) = method.phases(task, data_of(images, task))
            assert isinstance(phase.gradients, dgr.ReweightedGradient)
            assert phase.gradients.gathered.tolist() == [0.0] * task.n_seen
            label, new = torch.tensor([task.n_seen - 1]), torch.tensor([False])
            batch = Batch(torch.randn(1, 3, 2, 2).double(), label, new, label, new)
            step(phase, batch, torch.optim.SGD(method.classifier.parameters(), RATE))
            assert bool((phase.gradients.gathered > 0).all())
            assert bool(method.classifier.weight.isfinite().all())


def test_defaults_and_schedule_are_the_authors_and_wrong_values_are_refused() -> None:
    weights = {"temperature": 2.0, "distil": None, "attenuation": 1.0}
    kinds = {"variant": "pilot", "new_ratio": "code", "native_schedule": False}
    assert method_options("dgr") == {**kinds, **weights}
    native = new_method("dgr", native_schedule=True).schedule
    cosine = Schedule(epochs=20, learning_rate=1e-3, cosine=True, weight_decay=5e-4, batch_size=128)
    assert [native(task) for task in tasks((2, 1))] == [cosine, cosine]
    for option, value in {"variant": "new", "new_ratio": "half", "temperature": 0.0, "attenuation": -1.0}.items():
        with pytest.raises(EndocilError, match=rf"method\.{option} is '?{value}'?; (known|expected)"):
            small(**{option: value})
