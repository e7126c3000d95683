"""Optimisers, rates and clipping: what a step does, against a plain loop, and what a checkpoint keeps of it."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import POOLED, Life, differing, new_method, state_of
from torch import Tensor, nn
from torch.optim import Optimizer

from endocil import EndocilError, load_settings
from endocil.components.gradients import calibrated_gradient
from endocil.data.augment import Augmentation
from endocil.data.batches import training_batches
from endocil.data.cache import Images
from endocil.learning.build import NO_BITS, build_learning
from endocil.learning.checkpoint import FILE, grow
from endocil.learning.optimizers import optimizer_of, restore_state
from endocil.learning.optimizers import state_of as optimizer_state
from endocil.learning.training import fit, only_training, step
from endocil.methods import Method
from endocil.methods.base import Phase, Schedule, Task
from endocil.registry import trust

trust(["test_optimizers:Counting", "test_optimizers:Hoarding"])

CPU = torch.device("cpu")


class Counting(Optimizer):
    """Plain descent that slows down with the steps it has counted: state in numbers, in a group, and in tensors."""

    def __init__(self, params: Any, lr: float = 0.1, weight_decay: float = 0.0, *, slow: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "slow": slow, "taken": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["taken"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                state["length"] = state.get("length", torch.zeros(2, dtype=torch.float64)) + parameter.grad.norm()
                rate = group["lr"] / (1.0 + group["slow"] * (state["steps"] + group["taken"]))
                parameter.sub_(rate * parameter.grad / (1.0 + float(state["length"][0])))


class Hoarding(Optimizer):
    """Keeps what no checkpoint can hold."""

    def __init__(self, params: Any, lr: float = 0.1, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.state[self.param_groups[0]["params"][0]]["past"] = [1.0]


FINE_TUNING: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "optimizer_options": {"betas": [0.8, 0.99]}, "learning_rate": 1e-3},
    "amsgrad": {"optimizer": "adamw", "optimizer_options": {"amsgrad": True}, "learning_rate": 1e-3},
    "own": {"optimizer": "test_optimizers:Counting", "optimizer_options": {"slow": 0.2}},
    "no momentum": {"momentum": 0.0, "clip_gradients": 0.5},
    "everything": {
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "cosine": True,
        "warmup": 0.4,
        "backbone_factor": 0.1,
        "clip_gradients": 1.0,
    },
}


def method_with(name: str, freeze: tuple[str, ...] = (), options: dict[str, Any] | None = None, **changes: Any) -> Any:
    method = new_method(name, freeze=freeze, **(options or {}))
    before = method.schedule
    method.schedule = lambda task: replace(before(task), **changes)
    return method


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("endocil", "everything"),
        ("dgr", "adamw"),
        ("bic", "own"),
        ("foster", "amsgrad"),
        ("der", "no momentum"),
        ("memo", "everything"),
    ],
)
def test_a_life_stopped_at_any_epoch_goes_on_to_the_same_bits(
    images: Images, tmp_path: Path, name: str, changes: str
) -> None:
    network = "resnet18" if name == "memo" else POOLED  # MEMO's branches are stages

    def life(folder: Path) -> Life:
        method = method_with(name, options={"network": network}, **FINE_TUNING[changes])
        return Life(images, folder, method, clock=itertools.count(0, 100).__next__)

    straight, stops = life(tmp_path / "whole"), list[Path]()

    def keep(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and (straight.folder / FILE).exists():
            stops.append(shutil.copytree(straight.folder, tmp_path / f"stop-{len(stops)}"))

    straight.journal.show = keep
    straight.live()
    assert len(stops) >= 5
    for stop in stops:
        resumed = life(stop).go_on()
        assert differing(state_of(straight.method), state_of(resumed.method)) == [], stop


def second_phase(images: Images, folder: Path, method: Method) -> tuple[Life, Phase]:
    life = Life(images, folder, method, increments=(2, 2, 2)).live(1)
    task = life.scenario.tasks[1]
    grow(life.method, task, CPU)
    (phase, *_) = life.method.phases(task, life.data(task))
    return life, phase


def trained(life: Life, phase: Phase, *, accumulate: int = 1) -> dict[str, Tensor]:
    """After three steps with batch norm's statistics frozen: in pieces each would have its own."""
    with only_training(life.method, (*phase.train, phase.gradients)):
        for module in life.method.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        optimizer = optimizer_of(phase)
        for batch in list(training_batches(phase.images, 12, Augmentation(), 0, (1, 0, 0), CPU))[:3]:
            step(phase, batch, optimizer, life.fabric, accumulate=accumulate)
    return {name: value.clone() for name, value in life.method.state_dict().items()}


@pytest.mark.parametrize("name", ["endocil", "dgr", "foster"])
def test_with_adamw_and_clipping_a_batch_in_four_pieces_trains_as_one(
    images: Images, tmp_path: Path, name: str
) -> None:
    # a large epsilon: else AdamW divides a gradient by its length, and of one near 0 rounding decides the sign
    changes = {**FINE_TUNING["everything"], "optimizer_options": {"eps": 0.01}}
    whole = trained(*second_phase(images, tmp_path / "1", method_with(name, **changes)))
    pieces = trained(*second_phase(images, tmp_path / "4", method_with(name, **changes)), accumulate=4)
    for key, value in whole.items():
        torch.testing.assert_close(pieces[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_clipping_cuts_the_calibrated_gradient_and_adamw_steps_by_it(images: Images, tmp_path: Path) -> None:
    """EndoCIL's step by hand: two gradients of the classifier, CFG, the norm of all gradients, AdamW."""
    longest, rate = 0.05, 1e-2
    smooth: dict[str, Any] = {"eps": 0.01}
    changes: dict[str, Any] = {
        "optimizer": "adamw",
        "learning_rate": rate,
        "clip_gradients": longest,
        "backbone_factor": 0.1,
    }
    changes["optimizer_options"] = smooth
    # a cap on gamma: in the first step the student is the teacher, and gamma would enlarge rounding by millions
    capped: dict[str, Any] = {"gamma_max": 2.0}
    life, phase = second_phase(images, tmp_path / "a", method_with("endocil", options=capped, **changes))
    other, plain = second_phase(images, tmp_path / "b", method_with("endocil", options=capped, **changes))
    start = {name: value.clone() for name, value in life.method.state_dict().items()}
    found = trained(life, phase)
    method = other.method
    backbone, classifier = list(method.backbone.parameters()), method.classifier
    heads = [classifier.weight, classifier.bias]
    decay = plain.schedule.weight_decay
    by_hand = torch.optim.AdamW(
        [{"params": backbone, "lr": 0.1 * rate}, {"params": heads, "lr": rate}], weight_decay=decay, **smooth
    )
    rule: Any = plain.gradients
    lengths = []
    method.eval()
    for batch in list(training_batches(plain.images, 12, Augmentation(), 0, (1, 0, 0), CPU))[:3]:
        losses = plain.objective(batch).losses
        parts = {name: torch.autograd.grad(loss.mean(), heads, retain_graph=True) for name, loss in losses.items()}
        names = ("classification", "distillation")
        joined = [torch.cat([parts[name][0], parts[name][1][:, None]], 1) for name in names]
        gradient, _ = calibrated_gradient(joined[0], joined[1], rule.weights, gamma_max=2.0)
        by_hand.zero_grad()
        torch.stack([loss.mean() for loss in losses.values()]).sum().backward()
        classifier.weight.grad, classifier.bias.grad = gradient[:, :-1].clone(), gradient[:, -1].clone()
        length = torch.cat([one.grad.flatten() for one in [*backbone, *heads]]).norm()
        lengths.append(float(length))
        for one in [*backbone, *heads]:
            one.grad *= min(1.0, longest / float(length))
        by_hand.step()
    assert min(lengths) > longest  # every step was clipped
    for name in ("classifier.weight", "classifier.bias", "backbone.conv1.weight"):
        assert (found[name] - start[name]).abs().max() > 1e-4
        torch.testing.assert_close(found[name], method.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


def test_the_epoch_tells_the_length_of_the_gradient_before_clipping(images: Images, tmp_path: Path) -> None:
    def epochs(folder: str, **changes: Any) -> list[dict[str, Any]]:
        life, phase = second_phase(images, tmp_path / folder, method_with("endocil", **changes))
        where: dict[str, Any] = {"fabric": life.fabric, "augmentation": Augmentation(), "seed": 0, "key": (1, 0)}
        return [epoch.measured for epoch in fit(phase, life.method, logged_head=life.method.classifier, **where)]

    measured = epochs("clipped", clip_gradients=1e-3)[0]
    assert measured["gradient_norm"] > 1e-3 >= 0.999 * measured["classifier_gradient"]
    assert "gradient_norm" not in epochs("plain")[0]


@pytest.mark.parametrize("name", ["bic", "der", "foster", "icarl", "memo"])
@pytest.mark.parametrize("freeze", [(), ("stem", "layer1")])
def test_everything_but_the_heads_learns_at_the_lower_rate(
    images: Images, tmp_path: Path, name: str, freeze: tuple[str, ...]
) -> None:
    life = Life(images, tmp_path, method_with(name, freeze, backbone_factor=0.25), increments=(2, 2, 2)).live(1)
    task = life.scenario.tasks[1]
    grow(life.method, task, CPU)
    heads = {one for part in life.method.modules() if isinstance(part, nn.Linear) for one in part.parameters()}
    if name == "bic":
        heads |= set(life.method.corrections.parameters())
    for phase in life.method.phases(task, life.data(task)):
        optimizer = optimizer_of(phase)
        trained_here = {one for module in phase.train for one in module.parameters()}
        rates = {one: group.get("rate_factor", 1.0) for group in optimizer.param_groups for one in group["params"]}
        assert rates == {one: 1.0 if one in heads else 0.25 for one in trained_here}


def test_the_rate_rises_in_every_step_of_the_warm_up_and_falls_along_a_cosine_after_it() -> None:
    schedule = Schedule(epochs=10, learning_rate=1.0, cosine=True, warmup=2)
    rising = [schedule.learning_rate_at(epoch, step / 4) for epoch in (0, 1) for step in (1, 2, 3, 4)]
    assert rising == pytest.approx([step / 8 for step in range(1, 9)])
    assert schedule.learning_rate_at(2, 0.25) == 1.0
    assert schedule.learning_rate_at(6, 0.25) == pytest.approx(0.5)
    falling = [schedule.learning_rate_at(epoch) for epoch in range(2, 10)]
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == pytest.approx(0.0381, abs=1e-4)
    half_an_epoch = Schedule(epochs=5, learning_rate=1.0, warmup=0.1)
    assert [half_an_epoch.learning_rate_at(0, step / 4) for step in (1, 2, 3, 4)] == [0.5, 1.0, 1.0, 1.0]
    with pytest.raises(EndocilError, match=r"train\.warmup is 5 epochs, and a phase has 5; expected fewer"):
        Schedule(epochs=5, warmup=5)


def test_the_training_loop_sets_the_rates_of_the_schedule(images: Images, tmp_path: Path) -> None:
    seen: list[float] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(self.param_groups[0]["lr"])
            super().step(closure)

    import endocil.learning.optimizers as module

    changes: dict[str, Any] = {"warmup": 1, "cosine": True, "learning_rate": 0.01}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module.OPTIMIZERS, "sgd", Watched)
        life = Life(images, tmp_path, method_with("finetune", **changes)).live(1)
    n = len(seen) // 2
    assert seen[:n] == pytest.approx([0.01 * (i + 1) / n for i in range(n)])
    assert seen[n:] == [0.01] * n
    assert life.method.schedule(life.scenario.tasks[0]).epochs == 2


def test_a_restored_state_keeps_the_memory_layout_of_the_parameters() -> None:
    def made() -> tuple[nn.Conv2d, Optimizer]:
        layer = nn.Conv2d(3, 4, 3)
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        return layer, torch.optim.AdamW(layer.parameters())

    layer, optimizer = made()
    layer(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    other, resumed = made()
    restore_state(resumed, optimizer_state(optimizer))
    kept = resumed.state[other.weight]["exp_avg"]
    assert kept.stride() == other.weight.stride()
    assert torch.equal(kept, optimizer.state[layer.weight]["exp_avg"])
    assert resumed.state[other.weight]["step"] == 1


def test_an_optimiser_that_keeps_more_than_tensors_and_numbers_is_refused(images: Images, tmp_path: Path) -> None:
    method = method_with("finetune", optimizer="test_optimizers:Hoarding")
    life = Life(images, tmp_path, method, clock=itertools.count(0, 100).__next__)
    with pytest.raises(EndocilError, match=r"Hoarding keeps a list as 'past'; a checkpoint holds tensors and numbers"):
        life.live(1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.optimizer=adam"], "unknown train.optimizer 'adam'; known: adamw, sgd"),
        (["train.optimizer=torch:zeros"], "train.optimizer 'torch:zeros' is not an optimiser"),
        (["train.optimizer=torch.optim:LBFGS"], "evaluates the loss several times a step"),
        (["train.optimizer=adamw", "train.momentum=0.5"], "train.momentum is 0.5, but train.optimizer 'adamw' has no"),
        (["train.optimizer=adamw", "train.optimizer_options={beta=1}"], "unknown train.optimizer_options key 'beta'"),
        (["train.optimizer=adamw", "train.optimizer_options={betas=[2.0,0.9]}"], "refuses its options: Invalid beta"),
        (["train.optimizer_options={lr=1.0}"], "train.optimizer_options has 'lr'; set train.learning_rate instead"),
        (["train.warmup=1.5"], "train.warmup: expected whole epochs, such as 1, or a share of the epochs"),
        (["train.warmup=6"], "train.warmup is 6 epochs, and a phase has 6"),
        (["train.schedule=linear"], "train.schedule: input should be 'milestones' or 'cosine'"),
        (["train.optimizer=adamw", "method.native_schedule=true"], "so that train.optimizer would do nothing"),
        (["train.later_factor=0.3", "method.native_schedule=true"], "so that train.later_factor would do nothing"),
        (["train.backbone_factor=0.1", "network.freeze=['all']"], "network.freeze lets nothing of the backbone learn"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_runs(overrides: list[str], message: str) -> None:
    with pytest.raises(EndocilError) as refused:
        build_learning(load_settings("smoke", ["train.epochs=6", *overrides]).trusted())
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_first_task_learns_at_the_rate_and_later_tasks_at_a_share_of_it() -> None:
    settings = load_settings("smoke", ["train.learning_rate=0.2", "train.later_factor=0.25"]).trusted()
    method, _ = build_learning(settings)
    rates = [method.schedule(Task(index, 2 * index, 2)).learning_rate for index in range(3)]
    assert rates == [0.2, 0.05, 0.05]
    usual, _ = build_learning(load_settings("smoke").trusted())
    assert usual.schedule(Task(0, 0, 2)).learning_rate == usual.schedule(Task(1, 2, 2)).learning_rate


def test_the_rate_of_later_tasks_does_not_decide_a_shared_first_task() -> None:
    train = {section: keys for section, keys in NO_BITS.items() if section == "train"}
    one, other = (load_settings("smoke", [f"train.later_factor={factor}"]) for factor in (1.0, 0.3))
    assert one.model_dump(include={"train"}) != other.model_dump(include={"train"})
    assert one.model_dump(include={"train"}, exclude=train) == other.model_dump(include={"train"}, exclude=train)
