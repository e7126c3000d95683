"""MRFA: what is done to which exemplar, against a plain loop; random numbers by key; everything else is iCaRL."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, differing, new_method, state_of
from present import present
from torch import Tensor, nn
from torch.nn import functional

from endocil import EndocilError
from endocil.components.losses import Outcome
from endocil.data.batches import Batch, ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.learning.training import only_training
from endocil.methods import common, method_options
from endocil.methods.base import Schedule, TaskData
from endocil.methods.mrfa import MRFA

SITES = ("layer1", "layer2", "layer3", "layer4", "classifier")  # of ResNet-18
KEY = (0, 1, 0, 0, 0)  # seed, task, phase, epoch, step: one whose numbers reach every site
LABELS = torch.tensor([0, 3, 1, 0, 2, 1, 1, 0, 3, 2])  # two old classes, two new ones
KNOWN = LABELS < 2


def grown(name: str = "mrfa", **options: Any) -> MRFA:
    """Ready for its second task, in float64, with a teacher unlike itself."""
    method = new_method(name, **options)
    method.grow(Task(0, 0, 2))
    method.grow(Task(1, 2, 2))
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=random)
    ready: MRFA = method.double().eval()
    return ready


class Flat(nn.Flatten):
    """A backbone without stages."""

    n_features = 3


def batch_of(labels: Tensor = LABELS, known: Tensor = KNOWN) -> Batch:
    pictures = torch.randn(len(labels), 3, 32, 32, generator=torch.Generator().manual_seed(3)).double()
    return Batch(pictures, labels, known, labels, known, KEY)


def objective_of(method: MRFA, images: Images) -> Callable[[Batch], Outcome]:
    data = TaskData(ImageSet.of(images, torch.arange(30, 40)), ImageSet.of(images, torch.arange(5), from_memory=True))
    (phase,) = method.phases(Task(1, 2, 2), data)
    return phase.objective


def stages(network: nn.Module, classifier: nn.Module) -> list[Any]:
    """The network cut before each site."""
    part = network.get_submodule

    def stem(x: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu(part("bn1")(part("conv1")(x))), 3, 2, 1)

    def last(x: Tensor) -> Tensor:
        features: Tensor = part("layer4")(x).mean(dim=(2, 3))
        return features

    return [stem, part("layer1"), part("layer2"), part("layer3"), last, classifier]


def through(parts: list[Any], x: Tensor) -> Tensor:
    for part in parts:
        x = part(x)
    return x


def pushed_logits(cut: list[Any], picture: Tensor, site: int, amount: float, gradient: Tensor) -> Tensor:
    """One image through the network; what the site sees is moved by amount |x|^2 gradient."""
    x = through(cut[: site + 1], picture)
    return through(cut[site + 1 :], x + amount * (x**2).sum() * gradient)


def gradient_at(cut: list[Any], picture: Tensor, label: Tensor, site: int, share: float) -> Tensor:
    x = through(cut[: site + 1], picture).detach().requires_grad_()
    loss = share * functional.cross_entropy(through(cut[site + 1 :], x), label)
    return torch.autograd.grad(loss, x)[0]


@pytest.mark.parametrize("auto_kd", [False, True])
def test_the_objective_equals_a_plain_loop_over_the_images(images: Images, auto_kd: bool) -> None:
    method, batch = grown(step=0.05, distil=0.5, auto_kd=auto_kd), batch_of()
    outcome = objective_of(method, images)(batch)
    drawn = torch.rand(10, 2, generator=generator(*KEY, "push"))
    mine, theirs = stages(method.backbone, method.classifier), stages(*present(method.teacher).children())
    label_weight, old_weight = (1.0, 0.5) if not auto_kd else (2 * (1 - 2 / 4), 0.5 * 2 / 4)
    moved = 0.0
    for n in range(10):
        picture, label = batch.images[n : n + 1], LABELS[n : n + 1]
        site, amount = int(drawn[n, 0] * 5), 0.05 * float(drawn[n, 1]) * float(KNOWN[n])
        gradient = gradient_at(mine, picture, label, site, 1 / int(KNOWN.sum()))
        with torch.no_grad():
            logits = pushed_logits(mine, picture, site, amount, gradient)
            teacher_logits = pushed_logits(theirs, picture, site, amount, gradient)
            moved = max(moved, float((logits - pushed_logits(mine, picture, site, 0.0, gradient)).abs().max()))
        assert torch.allclose(present(outcome.logits)[n], logits[0], atol=1e-9)
        loss = functional.cross_entropy(logits, label)
        assert outcome.losses["classification"][n].item() == pytest.approx(label_weight * loss.item())
        told = -(torch.softmax(teacher_logits / 2, 1) * torch.log_softmax(logits[:, :2] / 2, 1)).sum()
        assert outcome.losses["distillation"][n].item() == pytest.approx(old_weight * told.item())
    assert moved > 1e-3  # far above the tolerance


def test_neither_the_length_nor_the_gradient_is_differentiated(images: Images) -> None:
    method, batch = grown(step=0.05), batch_of()
    push = method._perturbation(batch)
    fixed = {
        site: push.amounts[site].view(-1, *[1] * (gradient.ndim - 1)) * gradient
        for site, gradient in push.gradients.items()
    }

    def constant(site: str, x: Tensor) -> Tensor:
        rows = push.rows[site]
        squares = torch.tensor([(x[row] ** 2).sum().item() for row in rows], dtype=torch.float64)
        return x.index_add(0, rows, squares.view(-1, *[1] * (x.ndim - 1)) * fixed[site])

    logits = method.classifier(constant("classifier", method.backbone(batch.images, constant)))
    expected = torch.autograd.grad(logits.sum(), list(method.backbone.parameters()))
    found = present(objective_of(method, images)(batch).logits)
    actual = torch.autograd.grad(found.sum(), list(method.backbone.parameters()))
    assert len(push.rows) == len(SITES)
    for one, other in zip(expected, actual, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-10 * float(one.abs().max()))


def test_a_step_of_zero_is_icarl_bit_for_bit(images: Images, tmp_path: Path) -> None:
    compared: list[tuple[str, dict[str, Any]]] = [("icarl", {}), ("mrfa", {"step": 0.0}), ("mrfa", {"step": 0.01})]
    icarl, zero, other = (
        state_of(Life(images, tmp_path / str(i), new_method(name, epochs=1, **options)).live(2).method)
        for i, (name, options) in enumerate(compared)
    )
    assert differing(icarl, zero) == []
    assert "classifier.weight" in differing(icarl, other)


def test_new_images_are_untouched_and_every_exemplar_is_moved(images: Images) -> None:
    batch = batch_of()
    moved, plain = (present(objective_of(grown(step=step), images)(batch).logits) for step in (0.05, 0.0))
    assert torch.equal(moved[~KNOWN], plain[~KNOWN])
    assert bool(((moved - plain)[KNOWN].abs().amax(dim=1) > 0).all())


def test_a_batch_without_exemplars_is_icarls_even_with_new_images_of_known_classes(images: Images) -> None:
    batch = batch_of(known=torch.zeros(10, dtype=torch.bool))
    methods = grown(step=0.05), grown("icarl")
    losses, plain = (objective_of(method, images)(batch).losses for method in methods)
    assert torch.equal(losses["classification"], plain["classification"])
    assert torch.equal(losses["distillation"], plain["distillation"])


def test_each_exemplar_has_one_site_and_sites_and_sizes_are_evenly_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    method, n = grown(step=0.5), 600
    labels = torch.arange(n) % 2
    drawn = batch_of(labels, labels == 0).uniform(2, "push")

    def no_gradients(batch: Batch, exemplars: Tensor) -> dict[str, Tensor]:
        return dict.fromkeys(SITES, torch.zeros(len(exemplars), 1))

    monkeypatch.setattr(method, "_input_gradients", no_gradients)
    push = method._perturbation(batch_of(labels, labels == 0))
    rows = torch.cat([push.rows[site] for site in SITES])
    assert sorted(rows.tolist()) == list(range(0, n, 2))
    assert min(len(push.rows[site]) for site in SITES) > 35  # 60 on average
    amounts = torch.cat([push.amounts[site] for site in SITES])
    assert torch.equal(amounts, 0.5 * drawn[rows, 1])
    assert float(amounts.mean()) == pytest.approx(0.25, abs=0.03)


def test_two_shares_of_a_batch_are_moved_as_the_whole_batch_is(images: Images) -> None:
    method, whole = grown(step=0.05), batch_of()
    objective = objective_of(method, images)
    together = present(objective(whole).logits)
    for start, stop in ((0, 4), (4, 10)):
        part = slice(start, stop)
        share = replace(whole, images=whole.images[part], labels=LABELS[part], from_memory=KNOWN[part], start=start)
        assert torch.equal(share.uniform(2, "push"), whole.uniform(2, "push")[part])
        assert torch.allclose(present(objective(share).logits), together[part], atol=1e-10)
    assert torch.equal(present(objective(batch_of()).logits), together)
    other = present(objective(replace(whole, key=(*KEY[:-1], 8))).logits)
    assert not torch.allclose(other[KNOWN], together[KNOWN])


@pytest.mark.parametrize("site", range(5))
def test_an_infinitesimal_step_does_not_decrease_the_exemplars_loss(site: int) -> None:
    method, batch = grown(), batch_of()
    exemplars = torch.nonzero(KNOWN).flatten()
    gradient = method._input_gradients(batch, exemplars)[SITES[site]]
    cut = stages(method.backbone, method.classifier)

    def loss(size: float) -> float:
        with torch.no_grad():
            parts = [
                pushed_logits(cut, batch.images[n : n + 1], site, size, gradient[i : i + 1])
                for i, n in enumerate(exemplars.tolist())
            ]
            return float(functional.cross_entropy(torch.cat(parts), LABELS[exemplars]))

    assert float(gradient.norm()) > 0.0
    assert loss(1e-7) > loss(0.0)


def test_training_leaves_no_hook_moves_statistics_once_and_gives_the_teacher_no_gradient(images: Images) -> None:
    method, icarl, batch = grown(step=0.05), grown("icarl"), batch_of()
    for one in (method, icarl):
        objective = objective_of(one, images)
        with only_training(one, (one.backbone, one.classifier)):
            modes = [module.training for module in one.modules()]
            losses = objective(batch).losses.values()
            torch.stack([loss.mean() for loss in losses]).sum().backward()
            assert modes == [module.training for module in one.modules()]
            assert all(parameter.grad is None for parameter in present(one.teacher).parameters())
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    assert not any(getattr(module, kind) for module in method.modules() for kind in hooks)
    # the first batch norm comes before every site: its statistics are those of one plain pass
    assert torch.equal(*(one.backbone.get_buffer("bn1.running_mean") for one in (method, icarl)))
    assert int(method.backbone.get_buffer("layer4.1.bn2.num_batches_tracked")) == 1


def test_uneven_tasks_frozen_stages_and_known_classes_are_learned(images: Images, tmp_path: Path) -> None:
    method = new_method("mrfa", epochs=1, step=0.01, freeze=("stem", "layer1"))
    life = Life(images, tmp_path, method).live(1)  # then 17 images: the last batch would be one image
    task, kept = life.scenario.tasks[1], set(life.kept_rows()[0].tolist())
    known = [row for row in life.scenario.rows("train", slice(0, 1)).tolist() if row not in kept]
    life.learner.learn(
        task, life.new_images(task) + ImageSet.of(images, torch.tensor(known)), life.images.table.classes
    )
    life.step(life.scenario.tasks[2])
    assert life.method(torch.randn(1, 3, 32, 32)).shape == (1, 6)
    method.requires_grad_(True)(torch.randn(2, 3, 32, 32)).sum().backward()
    touched = {parameter for parameter in method.parameters() if parameter.grad is not None}
    assert touched == {parameter for module in method.predictors for parameter in module.parameters()}


def test_defaults_and_schedule_are_the_authors_and_wrong_values_are_refused() -> None:
    own, icarls = {"step": 1e-4, "auto_kd": False}, {"temperature": 2.0, "distil": 1.0}
    assert method_options("mrfa") == {**own, **icarls, "native_schedule": False}
    native = new_method("mrfa", native_schedule=True).schedule
    assert native(Task(0, 0, 2)) == common.PYCIL_FIRST_TASK
    assert native(Task(1, 2, 2)) == Schedule(epochs=170, milestones=(80, 120), weight_decay=2e-4, batch_size=128)
    for option, value in (("temperature", 0.0), ("step", -1e-4)):
        wrong: dict[str, Any] = {option: value}
        with pytest.raises(EndocilError, match=rf"method\.{option} is {value}; expected a number"):
            new_method("mrfa", **wrong)
    flat = Flat()
    with pytest.raises(EndocilError, match=r"network\.backbone Flat .* takes no before_stage"):
        MRFA(flat)
