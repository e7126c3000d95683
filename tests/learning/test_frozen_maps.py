"""Maps of frozen stages, computed once for each image: the same training, where nothing speaks against it."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from digests import float64
from life import Life, differing, new_method, state_of
from own.supcon import SupCon
from torch import Tensor, nn

from endocil.data.augment import Augmentation, Operation
from endocil.data.cache import Images
from endocil.errors import EndocilError
from endocil.learning import frozen_maps, training
from endocil.learning.checkpoint import Position, load_checkpoint
from endocil.learning.features import FeatureStore
from endocil.learning.first_task import FirstTasks, digest_of
from endocil.learning.frozen_maps import Inputs
from endocil.methods.base import Phase, Task, TaskData

FROZEN = ("stem", "layer1", "layer2")
MIRRORS = Augmentation(brightness=0.0)


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The stages behind which each phase began, phase by phase."""
    stages: list[tuple[str, ...]] = []

    def told(*given: Any, **named: Any) -> Inputs:
        inputs = frozen_maps.inputs_of(*given, **named)
        stages.append(tuple(inputs.stages))
        return inputs

    monkeypatch.setattr(training, "inputs_of", told)
    return stages


def new_life(
    method: Any,
    images: Images,
    folder: Path,
    *,
    augmentation: Augmentation = MIRRORS,
    double: bool = False,
    freeze: tuple[str, ...] = FROZEN,
    **how: Any,
) -> Life:
    """Small steps: what rounding does to one would grow."""
    own = new_method(method, rate=0.01, freeze=freeze) if isinstance(method, str) else method
    if double:
        own.double()
        for module in own.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_pre_hook(_in_its_precision)
    life = Life(images, folder, own, **how)
    life.learner.augmentation = augmentation
    return life


def _in_its_precision(layer: nn.Conv2d, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0].to(layer.weight.dtype),)


def on_images(life: Life, monkeypatch: pytest.MonkeyPatch) -> Life:
    with monkeypatch.context() as patch:
        patch.setattr(frozen_maps, "LIMIT", 0)
        return life.live()


def apart(one: Life, other: Life) -> float:
    first, second = (life.method.state_dict() for life in (one, other))
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


METHODS = ["bic", "der", "derpp", "dgr", "endocil", "er_ace", "ewc", "finetune", "foster", "icarl"]
METHODS += ["joint", "lucir", "lwf", "memo", "wa"]


@pytest.mark.parametrize("name", METHODS)
def test_a_life_on_maps_is_the_life_on_images_up_to_rounding(
    name: str, images: Images, tmp_path: Path, used: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with float64():
        plain = on_images(new_life(name, images, tmp_path / "images", double=True), monkeypatch)
        without = len(used)
        mapped = new_life(name, images, tmp_path / "maps", double=True).live()
    assert used == [()] * without + [FROZEN] * without  # every phase, BiC's second and FOSTER's second too
    # an image's weight in its stream is as precise as the images, and they have 32 bits
    assert apart(plain, mapped) < (1e-6 if name in ("derpp", "er_ace") else 1e-10)
    if plain.memory is not None:
        assert plain.memory.records() == mapped.memory.records()


@pytest.mark.parametrize("change", [{"accumulate": 2}, {"augmentation": Augmentation(flip=1.0, brightness=0.0)}])
@pytest.mark.parametrize("freeze", [("stem",), ("all",)])
def test_pieces_of_batches_one_view_and_other_stages_give_the_same_too(
    change: dict[str, Any],
    freeze: tuple[str, ...],
    images: Images,
    tmp_path: Path,
    used: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with float64():
        lives = [new_life("icarl", images, tmp_path / str(i), freeze=freeze, double=True) for i in range(2)]
        for life in lives:
            for name, value in change.items():
                setattr(life.learner, name, value)
        assert apart(on_images(lives[0], monkeypatch), lives[1].live()) < 1e-10
    assert used[-1] == (("stem",) if freeze == ("stem",) else ("stem", "layer1", "layer2", "layer3"))


class SupConOnMaps(SupCon):
    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        return tuple(replace(phase, takes_maps=True) for phase in super().phases(task, data))


def test_several_views_of_an_image_are_drawn_as_without_maps(
    images: Images, tmp_path: Path, used: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "test_frozen_maps:SupConOnMaps"
    with float64():
        lives = [new_life(name, images, tmp_path / str(i), double=True) for i in range(2)]
        assert apart(on_images(lives[0], monkeypatch), lives[1].live()) < 1e-10
    assert used[3:] == [FROZEN] * 3


def test_each_view_of_an_image_passes_the_frozen_stages_once(images: Images, tmp_path: Path) -> None:
    seen = list[int]()
    for epochs, flip, views in ((5, 0.5, 2), (3, 0.0, 1), (3, 1.0, 1)):
        method = new_method("finetune", freeze=FROZEN, epochs=epochs)
        life = new_life(
            method, images, tmp_path / f"{epochs} {flip}", augmentation=Augmentation(flip=flip, brightness=0)
        )
        method.backbone.conv1.register_forward_hook(lambda layer, given, maps: seen.append(len(maps)))
        task = life.scenario.tasks[0]
        seen.clear()
        life.learner.learn(task, life.new_images(task), images.table.classes)
        assert seen == [1] * (1 + views * len(life.new_images(task)))  # and one to see how large a map is


def test_a_teacher_begins_where_the_student_does(images: Images, tmp_path: Path) -> None:
    life, seen = new_life("icarl", images, tmp_path).live(1), list[int]()
    task = life.scenario.tasks[1]
    grow = life.method.grow

    def watched(task: Task) -> None:
        grow(task)
        life.method.teacher[0].conv1.register_forward_hook(lambda layer, given, maps: seen.append(len(maps)))

    life.method.grow = watched
    life.learner.learn(task, life.new_images(task), images.table.classes)
    assert seen == []


def test_a_life_stopped_in_the_middle_of_an_epoch_goes_on_to_the_same_bits(
    images: Images, tmp_path: Path, used: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, making = frozen_maps.MapMaker._maps, list[int]()

    def counted(*given: Any, **named: Any) -> Tensor:
        making.append(1)
        try:
            return make(*given, **named)
        finally:
            making.clear()

    monkeypatch.setattr(frozen_maps.MapMaker, "_maps", counted)
    straight = new_life("foster", images, tmp_path / "straight").live()
    for at in (3, 11, 17):
        asked = itertools.count()
        stop = lambda: not making and next(asked) >= at  # noqa: B023, E731
        stopped = new_life("foster", images, tmp_path / str(at), stop=stop)
        with pytest.raises(KeyboardInterrupt):
            stopped.live()
        used.clear()
        resumed = new_life("foster", images, tmp_path / str(at)).go_on()
        assert set(used) == {FROZEN}
        assert differing(state_of(straight.method), state_of(resumed.method)) == []


def test_a_life_told_to_stop_while_maps_are_computed_goes_on_to_the_same_bits(images: Images, tmp_path: Path) -> None:
    straight = new_life("icarl", images, tmp_path / "straight").live()
    stopped = new_life("icarl", images, tmp_path / "stopped").live(1)
    asked = itertools.count()
    stopped.learner.stop = lambda: next(asked) == 5  # after five images
    task = stopped.scenario.tasks[1]
    with pytest.raises(KeyboardInterrupt):
        stopped.learner.learn(task, stopped.new_images(task), images.table.classes)
    checkpoint = load_checkpoint(stopped.folder)
    assert checkpoint is not None
    assert checkpoint.position == Position(1)
    resumed = new_life("icarl", images, tmp_path / "stopped").go_on()
    assert differing(state_of(straight.method), state_of(resumed.method)) == []


def test_a_store_gives_the_same_bits_and_serves_later_tasks_and_other_runs(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = new_life("icarl", images, tmp_path / "plain").live()
    computed, maps_of = list[int](), frozen_maps.MapMaker._maps

    def counted(self: Any, some: Any, **named: Any) -> Tensor:
        computed.append(len(some))
        return maps_of(self, some, **named)

    monkeypatch.setattr(frozen_maps.MapMaker, "_maps", counted)
    for i in range(2):
        computed.clear()
        life = new_life("icarl", images, tmp_path / str(i))
        life.learner.features = FeatureStore(tmp_path / "store")
        life.live()
        assert differing(state_of(plain.method), state_of(life.method)) == []
        new = [len(life.new_images(task)) for task in life.scenario.tasks]
        once = [[1, n, n] for n in new] if i == 0 else [[1]] * 3  # one to see how large a map is, then both views
        assert computed == [n for task in once for n in task]  # not the exemplars again
    assert len([*(tmp_path / "store").iterdir()]) == 2  # as they are, and mirrored


def test_of_a_store_only_the_maps_of_the_phase_stay_in_memory(images: Images, tmp_path: Path) -> None:
    life = new_life("finetune", images, tmp_path / "life")
    store, wanted = FeatureStore(tmp_path / "store"), life.new_images(life.scenario.tasks[0])

    def compute(some: Any) -> Tensor:
        return torch.arange(float(len(some)))[:, None]

    everything = store.rows("key", wanted, compute)
    few = FeatureStore(tmp_path / "store")
    rows = few.rows("key", wanted.take(torch.tensor([4, 2])), compute, alone=True)
    assert torch.equal(torch.stack(rows), torch.stack([everything[4], everything[2]]))
    assert len(few._rows) == 2
    assert all(row.untyped_storage().nbytes() == row.nbytes for row in rows)


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(),
        Augmentation(brightness=0, crop=True),
        Augmentation(brightness=0, operations=(Operation("vertical_flip"),)),
    ],
)
def test_images_that_look_new_in_every_epoch_pass_the_whole_network(
    augmentation: Augmentation, images: Images, tmp_path: Path, used: list[tuple[str, ...]]
) -> None:
    new_life("icarl", images, tmp_path, augmentation=augmentation).live(1)
    assert used == [()]


def test_an_unaugmented_phase_takes_maps_under_any_augmentation(
    images: Images, tmp_path: Path, used: list[tuple[str, ...]]
) -> None:
    new_life("bic", images, tmp_path, augmentation=Augmentation()).live(2)
    assert used == [(), (), FROZEN]


def test_methods_that_look_between_stages_train_on_images(
    images: Images, tmp_path: Path, used: list[tuple[str, ...]]
) -> None:
    new_life("mrfa", images, tmp_path / "mrfa").live(2)
    assert used == [FROZEN, ()]  # the first task is iCaRL's, which others may have trained
    used.clear()
    new_life("podnet", images, tmp_path / "podnet").live(2)
    assert set(used) == {()}


@pytest.mark.parametrize("freeze", [(), ("layer1",), ("layer4",)])
def test_without_a_frozen_beginning_there_are_no_maps(
    freeze: tuple[str, ...], images: Images, tmp_path: Path, used: list[tuple[str, ...]]
) -> None:
    new_life("icarl", images, tmp_path, freeze=freeze).live(1)
    assert used == [()]


def test_networks_that_differ_in_a_frozen_stage_train_on_images(
    images: Images, tmp_path: Path, used: list[tuple[str, ...]]
) -> None:
    life = new_life("icarl", images, tmp_path).live(1)
    grow = life.method.grow

    def moved(task: Task) -> None:
        grow(task)
        life.method.teacher[0].bn1.running_mean[3] += 1e-6

    life.method.grow = moved
    task = life.scenario.tasks[1]
    life.learner.learn(task, life.new_images(task), images.table.classes)
    assert used == [FROZEN, ()]


class TrainsAll(SupConOnMaps):
    """Lets frozen stages learn."""

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        return tuple(replace(phase, train=(self,)) for phase in super().phases(task, data))


def test_stages_that_learn_all_the_same_are_not_frozen(
    images: Images, tmp_path: Path, used: list[tuple[str, ...]]
) -> None:
    new_life("test_frozen_maps:TrainsAll", images, tmp_path).live(1)
    assert used == [()]


def test_what_would_not_save_work_or_memory_is_left_alone(
    images: Images, tmp_path: Path, used: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    new_life(new_method("icarl", freeze=FROZEN, epochs=1), images, tmp_path / "1").live(1)
    life = new_life("icarl", images, tmp_path / "2")
    of_one = life.method.backbone.through(FROZEN, torch.zeros(1, 3, *images.pixels.shape[1:3])).numel() * 4  # bytes
    needed = 2 * len(life.new_images(life.scenario.tasks[0])) * of_one
    monkeypatch.setattr(frozen_maps, "LIMIT", needed)
    life.live(1)
    monkeypatch.setattr(frozen_maps, "LIMIT", needed - 1)
    new_life("icarl", images, tmp_path / "3").live(1)
    assert used == [(), FROZEN, ()]


def test_maps_for_which_the_memory_is_lacking_are_refused_with_the_way_out(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else could be done: whether there is memory differs from one start of a run to the next."""
    monkeypatch.setattr(frozen_maps, "available_memory", lambda: 1000)
    with pytest.raises(EndocilError, match=r"maps of the frozen stages need 0\.0 GB .* free; .*data\.size.*freeze"):
        new_life("icarl", images, tmp_path / "1").live(1)
    monkeypatch.setattr(frozen_maps, "available_memory", lambda: None)  # the system does not say
    new_life("icarl", images, tmp_path / "2").live(1)


@pytest.mark.parametrize(("setting", "value"), [("mixup", 0.2), ("bits", "bf16"), ("compiled", True)])
def test_mixed_images_sixteen_bits_and_compiled_networks_train_on_images(
    setting: str,
    value: object,
    images: Images,
    tmp_path: Path,
    used: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "compare_with_float32", lambda *given: None)
    monkeypatch.setattr(training, "is_compiled", lambda method: setting == "compiled")
    life = new_life("icarl", images, tmp_path)
    if setting != "compiled":
        setattr(life.learner, setting, value)
    life.live(1)
    assert used == []


def test_outside_training_every_network_sees_images(images: Images, tmp_path: Path) -> None:
    life, found = new_life("icarl", images, tmp_path), list[Tensor]()
    pictures = torch.rand(2, 3, 16, 16)
    life.journal.show = lambda record: found.append(life.method.backbone(pictures))
    life.live(2)
    assert all(features.shape == (2, 64) for features in found)


def test_a_first_task_on_maps_is_shared_by_those_that_would_train_it_on_maps(images: Images, tmp_path: Path) -> None:
    def place(name: str, **changes: Any) -> str:
        life = new_life(name, images, tmp_path / "life")
        task = life.scenario.tasks[0]
        life.method.grow(task)
        phase = replace(life.method.phases(task, life.data(task))[0], **changes)
        store = FirstTasks(tmp_path / "store", digest_of(life.method.backbone.state_dict()), {})
        with store.of(life.method, phase, seed=0, augmentation=MIRRORS, log=print) as stored:
            return stored.path.stem

    assert place("icarl") == place("mrfa") == place("finetune") != place("icarl", takes_maps=False)
