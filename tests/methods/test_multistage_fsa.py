"""MultiStage-FSA: what its first task trains, that nothing trains later, and what it is with its parts exchanged."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from life import EPOCHS, Life, Lives, differing, new_method, state_of
from pictures import make_images
from torch import Tensor

from endocil.data.augment import Augmentation
from endocil.data.batches import training_batches
from endocil.data.cache import Images
from endocil.errors import SettingsError
from endocil.learning.events import Journal

NAME = "multistage_fsa"


@pytest.fixture(scope="module")
def images() -> Images:
    return make_images([14, 11, 12, 4, 13, 9], size=32)


def backbone_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name.startswith("backbone.")}


def test_with_its_parts_exchanged_it_is_multistage_bit_for_bit(images: Images, tmp_path: Path) -> None:
    plain = Life(images, tmp_path / "plain", new_method("multistage")).live()
    exchanged = new_method(NAME, first_task="frozen", stride=8, penalty=0.3)
    assert differing(state_of(plain.method), state_of(Life(images, tmp_path / "fsa", exchanged).live().method)) == []


@pytest.mark.parametrize(("first_task", "rotations"), [("labels", 1), ("rotations", 4)])
def test_the_first_task_learns_pairs_of_class_and_rotation(
    first_task: str, rotations: int, images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method(NAME, first_task=first_task))
    task = life.scenario.tasks[0]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    life.method.eval()  # batch norm as one image sees it
    drawn: list[int] = []
    cpu = torch.device("cpu")
    for batch in training_batches(phase.images, 8, Augmentation(), 0, (0, 0, 0), cpu):
        losses = phase.objective(batch).losses["classification"]
        turns = (batch.uniform(1, "rotation")[:, 0] * rotations).long().tolist()
        drawn += turns
        for image, label, turn, loss in zip(batch.images, batch.labels.tolist(), turns, losses, strict=True):
            turned = torch.rot90(image, turn, (1, 2))
            logits = life.method.first_head(life.method.backbone(turned[None]))[0]
            expected = -torch.log_softmax(logits, 0)[label * rotations + turn]
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    assert life.method.first_head.out_features == rotations * task.n_new
    assert set(drawn) == set(range(rotations))


def test_the_network_learns_in_the_first_task_and_never_again(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method(NAME))
    untrained = backbone_of(state_of(life.method))
    life.step(life.scenario.tasks[0])
    first = backbone_of(state_of(life.method))
    assert differing(untrained, first)
    for task in life.scenario.tasks[1:]:
        life.step(task)
    assert differing(first, backbone_of(state_of(life.method))) == []
    assert life.memory is None


def test_later_tasks_in_one_or_in_several_give_the_same_model(images: Images, tmp_path: Path) -> None:
    several = Life(images, tmp_path / "several", new_method(NAME), increments=(2, 2, 2)).live()
    together = Life(images, tmp_path / "together", new_method(NAME), increments=(2, 4)).live()
    for name, value in together.method.statistics.items():
        if name != "learned":
            torch.testing.assert_close(several.method.statistics[name], value, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(several.method.classifier.weight, together.method.classifier.weight)


def test_a_life_stopped_at_any_epoch_goes_on_to_the_same_bits(lives: Lives, tmp_path: Path) -> None:
    straight, stops = lives.whole(NAME), lives.stops(NAME)
    assert len(stops) == EPOCHS
    for stop in stops[1:]:
        folder = shutil.copytree(stop, tmp_path / stop.name)
        resumed = Life(lives.images, folder, new_method(NAME)).go_on()
        assert differing(state_of(straight.method), state_of(resumed.method)) == []


def test_a_life_stopped_inside_an_epoch_goes_on_to_the_same_bits(images: Images, tmp_path: Path) -> None:
    straight = Life(images, tmp_path / "straight", new_method(NAME)).live()
    life = Life(images, tmp_path / "stopped", new_method(NAME))
    asked = itertools.count()
    life.learner.stop = lambda: next(asked) >= 1
    with pytest.raises(KeyboardInterrupt):
        life.live()
    resumed = Life(images, tmp_path / "stopped", new_method(NAME)).go_on()
    assert differing(state_of(straight.method), state_of(resumed.method)) == []
    assert isinstance(resumed.journal, Journal)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_task": "all"}, "method.first_task is 'all'; expected 'frozen', 'labels' or 'rotations'"),
        ({"freeze": ("all",)}, r"method.first_task='rotations' trains the backbone, and network.freeze freezes all"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        new_method(NAME, **options)
