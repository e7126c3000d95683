"""A batch in pieces, a share without images, scaled losses: the step is that of the whole batch."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from life import TRAINED, Life, new_method
from small_networks import Convolution, Pooled
from torch import Tensor, nn

from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, share_of, training_batches
from endocil.data.cache import Images
from endocil.errors import EndocilError
from endocil.learning.checkpoint import grow
from endocil.learning.numerics import Precision, times_slower
from endocil.learning.optimizers import optimizer_of
from endocil.learning.training import only_training, step, total_loss
from endocil.methods import Method, build_method
from endocil.methods.base import Phase, shared_schedule
from endocil.networks import compile_backbones


def second_task(images: Images, folder: Path, method: str | Method) -> tuple[Life, Phase]:
    """A life about to learn its second task. With the usual rate six steps on few images can end anywhere, and with
    frozen statistics the weights then grew to 1e13 on some processors: no number to compare."""
    started = new_method(method, rate=0.01) if isinstance(method, str) else method
    life = Life(images, folder, started, increments=(2, 2, 2))
    at = min(1, len(life.scenario.tasks) - 1)
    task = life.live(at).scenario.tasks[at]
    grow(life.method, task, life.fabric.device)
    (phase, *_) = life.method.phases(task, life.data(task))
    return life, replace(phase, schedule=replace(phase.schedule, learning_rate=1e-3))


def batches(phase: Phase, share: tuple[int, int] = (0, 1)) -> list[Batch]:
    found = training_batches(phase.images, 12, Augmentation(), 0, (1, 0, 0), torch.device("cpu"), share)
    return list(found)[:3]


def trained(life: Life, phase: Phase, **how: Any) -> dict[str, Tensor]:
    """The state after three steps with batch norm's statistics frozen: in pieces each would have its own."""
    with only_training(life.method, (*phase.train, phase.gradients)):
        for module in life.method.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        optimizer = optimizer_of(phase)
        for batch in batches(phase):
            step(phase, batch, optimizer, life.fabric, **how)
    return {name: value.clone() for name, value in life.method.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", TRAINED)
def test_a_batch_in_four_pieces_trains_as_one(images: Images, tmp_path: Path, name: str) -> None:
    whole = trained(*second_task(images, tmp_path / "1", name))
    pieces = trained(*second_task(images, tmp_path / "4", name), accumulate=4)
    same(whole, pieces)


@pytest.mark.parametrize("name", ["dgr", "endocil", "icarl"])
def test_a_scaled_loss_gives_the_same_step(images: Images, tmp_path: Path, name: str) -> None:
    plain = trained(*second_task(images, tmp_path / "1", name))
    scaled = Precision("16", scale=2.0**10)
    scaled.bits = "32"  # the scale alone, without 16-bit numbers
    same(plain, trained(*second_task(images, tmp_path / "2", name), precision=scaled))


@pytest.mark.parametrize("name", TRAINED)
def test_shares_of_a_batch_add_up_to_it_even_if_one_is_empty(images: Images, tmp_path: Path, name: str) -> None:
    life, phase = second_task(images, tmp_path, name)
    whole = batches(phase)[0]
    few = replace(
        whole.part(slice(0, 2)),
        batch_labels=whole.batch_labels[:2],
        batch_from_memory=whole.batch_from_memory[:2],
        batch_streams=None if whole.batch_streams is None else whole.batch_streams[:2],
    )
    shares = [few.part(share_of(2, i, 3)) for i in range(3)]
    assert [len(share) for share in shares] == [0, 1, 1]
    life.method.eval()
    total = total_loss(phase.objective(few), 2, 2)
    parts = [total_loss(phase.objective(share), len(share), 2) for share in shares]
    torch.testing.assert_close(torch.stack(parts).sum(), total, rtol=1e-4, atol=1e-5)


def test_the_shares_of_a_batch_are_its_images_as_one_process_sees_them(images: Images, tmp_path: Path) -> None:
    _, phase = second_task(images, tmp_path, "icarl")
    whole = batches(phase)
    shares = [batches(phase, (i, 3)) for i in range(3)]
    for step_, batch in enumerate(whole):
        parts = [share[step_] for share in shares]
        assert torch.equal(torch.cat([part.images for part in parts]), batch.images)
        assert torch.equal(torch.cat([part.labels for part in parts]), batch.labels)
        drawn = torch.cat([part.uniform(2, "test") for part in parts])
        assert torch.equal(drawn, batch.uniform(2, "test"))
        assert all(torch.equal(part.batch_labels, batch.labels) for part in parts)


def test_an_overflowing_step_is_left_out_and_halves_the_scale() -> None:
    precision = Precision("16", scale=1024.0)
    assert precision.unscale([torch.tensor([2048.0])])
    assert precision.factor == 1024.0
    gradient = torch.tensor([torch.inf, 1.0])
    assert not precision.unscale([gradient])
    assert precision.factor == 512.0
    for _ in range(2000):
        assert precision.unscale([torch.ones(1)])
    assert precision.factor == 1024.0


def test_gradients_that_no_scale_makes_finite_end_the_run_instead_of_leaving_out_every_step() -> None:
    precision, unsound = Precision("16"), [torch.tensor([torch.nan])]
    for _ in range(40):  # from 2^16 down to 2^-24
        assert not precision.unscale(unsound)
    with pytest.raises(EndocilError, match=r"gradients are not finite even where losses are multiplied by .*e-08"):
        precision.unscale(unsound)


def test_gradients_are_divided_by_the_scale_that_they_were_multiplied_by() -> None:
    precision, gradient = Precision("16", scale=8.0), torch.tensor([24.0])
    precision.unscale([gradient])
    assert gradient.item() == 3.0
    assert Precision("32").factor == Precision("bf16").factor == 1.0


@pytest.mark.parametrize("bits", ["bf16", "16"])
def test_sixteen_bits_train_and_come_near_thirty_two(
    images: Images, tmp_path: Path, bits: Literal["bf16", "16"]
) -> None:
    def started(folder: str) -> tuple[Life, Phase]:
        torch.manual_seed(0)
        method = build_method("endocil", Pooled(), {}, schedule=shared_schedule(epochs=2, batch_size=8), seed=0)
        return second_task(images, tmp_path / folder, method)

    plain = trained(*started("1"))
    other = trained(*started("2"), precision=Precision(bits, scale=1.0))
    begun = started("3")[0].method.state_dict()
    moved = (plain["classifier.weight"] - begun["classifier.weight"]).norm()
    assert 0.0 < (other["classifier.weight"] - plain["classifier.weight"]).norm() < 0.2 * moved


@pytest.mark.slow
def test_compiled_backbones_keep_names_and_values_and_give_the_same_numbers() -> None:
    network = nn.Sequential(Convolution(), nn.Linear(4, 2))
    pictures = torch.randn(4, 3, 8, 8)
    plain, names = network(pictures), list(network.state_dict())
    compile_backbones(network)
    torch.testing.assert_close(network(pictures), plain, rtol=1e-4, atol=1e-5)
    assert list(network.state_dict()) == names
    weight = network.get_parameter("0.conv.weight")
    network.zero_grad()
    network(pictures).sum().backward()
    assert weight.grad is not None
    teacher = copy.deepcopy(network)
    torch.testing.assert_close(teacher(pictures), plain, rtol=1e-4, atol=1e-5)


def test_the_time_of_a_precision_is_compared_with_thirty_two_bits() -> None:
    assert times_slower("bf16", torch.device("cpu"), repeats=1) > 0.0


def test_penalties_count_by_the_share_of_images() -> None:
    outcome = Outcome({"images": torch.tensor([2.0, 4.0, 6.0]), "penalty": torch.tensor(5.0)})
    shares = [(Outcome({"images": part, "penalty": torch.tensor(5.0)}), len(part)) for part in
              (torch.tensor([2.0]), torch.tensor([4.0, 6.0]))]  # fmt: skip
    assert total_loss(outcome, 3, 3).item() == pytest.approx(9.0)
    assert sum(total_loss(share, n, 3).item() for share, n in shares) == pytest.approx(9.0)


@pytest.mark.parametrize("batch_size", [2, 3, 17, 64])
def test_pieces_have_at_least_two_images_and_every_process_has_as_many(
    images: Images, tmp_path: Path, batch_size: int
) -> None:
    _, phase = second_task(images, tmp_path, "icarl")
    for n in (1, 2, 4, 8):
        for processes in (1, 2):
            if batch_size < 2 * processes:
                continue
            where = (phase.images, batch_size, None, 0, (0,), torch.device("cpu"))
            shares = [next(training_batches(*where, (i, processes))) for i in range(processes)]
            cut = [share.pieces(n, processes) for share in shares]
            assert len({len(pieces) for pieces in cut}) == 1
            assert all(len(piece) > 1 for pieces in cut for piece in pieces)
            assert sum(len(piece) for pieces in cut for piece in pieces) == len(shares[0].batch_labels)


def test_a_batch_in_pieces_trains_with_batch_norm_learning(images: Images, tmp_path: Path) -> None:
    life, phase = second_task(images, tmp_path, "icarl")
    with only_training(life.method, (*phase.train, phase.gradients)):
        for batch in training_batches(phase.images, 17, Augmentation(), 0, (0,), torch.device("cpu")):
            step(phase, batch, optimizer_of(phase), life.fabric, accumulate=8)
    assert all(value.isfinite().all() for value in life.method.state_dict().values())


@pytest.mark.parametrize("crop", [False, True])
def test_a_batch_of_fewer_images_than_processes_leaves_some_without(images: Images, tmp_path: Path, crop: bool) -> None:
    _, phase = second_task(images, tmp_path, "icarl")
    two, seen = phase.images.take(torch.arange(2)), Augmentation(crop=crop)

    def shared(share: tuple[int, int]) -> Tensor:
        (batch,) = training_batches(two, 12, seen, 0, (1, 0, 0), torch.device("cpu"), share)
        return batch.images

    parts = [shared((rank, 3)) for rank in range(3)]
    assert sorted(len(part) for part in parts) == [0, 1, 1]
    assert torch.equal(torch.cat(parts), shared((0, 1)))
