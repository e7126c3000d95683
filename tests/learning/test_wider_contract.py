"""What a phase can ask for beside images and a loss: replay batches, views, a second gradient, a hook after each step,
values prepared from data, tensors kept with exemplars."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, Lives, new_method
from own.sam import Ascent
from pictures import make_images
from torch import Tensor, nn
from torch.nn import functional

from endocil.components.gradients import CalibratedGradient, GradientRule
from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, ImageSet, Replay, cut, join_rows, training_batches
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import EndocilError, SettingsError
from endocil.learning.first_task import refuse_more_than_the_network
from endocil.learning.memory import ExemplarMemory, build_selector
from endocil.learning.optimizers import optimizer_of
from endocil.learning.training import fit, refuse_unfit, step
from endocil.methods.base import Phase, Schedule, TaskData
from endocil.methods.finetune import Finetune
from endocil.networks import CosineClassifier, GrowingClassifier

CPU = torch.device("cpu")


def sets(new: int = 9, counts: Sequence[int] = (6, 2, 3)) -> tuple[ImageSet, ImageSet]:
    """New images of class 3 and exemplars of classes 0 to 2, each of which keeps its number."""
    images = make_images([*counts, new], size=8)
    n = sum(counts)
    exemplars = ImageSet.of(images, torch.arange(n), from_memory=True)
    numbers = {"number": torch.arange(n, dtype=torch.float64)[:, None] + 1}
    return ImageSet.of(images, torch.arange(n, n + new)), replace(exemplars, kept=numbers)


def batches(**how: Any) -> list[Batch]:
    new, exemplars = sets()
    share = how.pop("share", (0, 1))
    replay = (Replay(exemplars, 4), Replay(exemplars, 2, balanced=True))
    return list(training_batches(new, 4, Augmentation(), 0, (1, 0), CPU, share, replay=replay, **how))


# --- replay batches


def test_each_batch_of_new_images_has_its_replay_batches_and_every_new_image_comes_once() -> None:
    new, exemplars = sets()
    found = batches()
    assert [Counter(batch.streams.tolist()) for batch in found] == [{0: 4, 1: 4, 2: 2}, {0: 5, 1: 4, 2: 2}]
    rows = torch.cat([batch.rows[batch.streams == 0] for batch in found])
    assert sorted(rows.tolist()) == list(range(len(new)))
    for batch in found:
        assert torch.equal(batch.from_memory, batch.streams > 0)
        assert torch.equal(batch.labels[batch.streams > 0], exemplars.labels[batch.rows[batch.streams > 0]])
        drawn = batch.rows[batch.streams == 1].tolist()
        assert len(set(drawn)) == 4
    assert found[0].rows[found[0].streams == 1].tolist() != found[1].rows[found[1].streams == 1].tolist()


def test_what_was_kept_with_an_exemplar_comes_back_with_it_and_new_images_have_zeros() -> None:
    for batch in batches():
        expected = torch.where(batch.streams > 0, batch.rows + 1, 0).double()
        assert torch.equal(batch.kept["number"][:, 0], expected)
        part = batch.part(slice(3, 7))
        assert torch.equal(part.kept["number"], batch.kept["number"][3:7])
        assert torch.equal(part.rows, batch.rows[3:7])
        assert torch.equal(part.streams, batch.streams[3:7])


def test_a_balanced_replay_batch_has_as_many_of_each_class_or_one_more() -> None:
    _, exemplars = sets(counts=(9, 9, 2))
    for n in (3, 4, 6):
        drawn = Replay(exemplars, n, balanced=True).draw(generator(0, n))
        counts = torch.bincount(exemplars.labels[drawn], minlength=3)
        assert int(counts.max() - counts.min()) <= 1
    every = Replay(exemplars, 50, balanced=True)
    assert len(every) == 20 == len(set(every.draw(generator(0)).tolist()))


def test_with_stream_weights_a_mean_over_the_batch_is_the_sum_of_the_means_of_its_streams() -> None:
    for batch in batches():
        values = torch.rand(len(batch), generator=generator(0))
        means = [values[batch.streams == stream].mean() for stream in range(3)]
        torch.testing.assert_close((batch.stream_weights() * values).mean(), torch.stack(means).sum())


def test_shares_of_several_processes_are_the_batch_of_one() -> None:
    for whole, *shares in zip(batches(), *(batches(share=(i, 3)) for i in range(3)), strict=True):
        assert torch.equal(torch.cat([share.images for share in shares]), whole.images)
        for name in ("rows", "streams", "labels", "from_memory"):
            assert torch.equal(torch.cat([getattr(share, name) for share in shares]), getattr(whole, name))
        weights = torch.cat([share.stream_weights() for share in shares])
        assert torch.equal(weights, whole.stream_weights())


def test_without_exemplars_there_is_nothing_beside_the_new_images() -> None:
    new, exemplars = sets()
    nothing = Replay(exemplars.take(torch.arange(0)), 4)
    plain = list(training_batches(new, 4, None, 0, (0,), CPU))
    beside = list(training_batches(new, 4, None, 0, (0,), CPU, replay=(nothing,)))
    assert all(torch.equal(a.images, b.images) for a, b in zip(plain, beside, strict=True))


# --- views


def test_views_are_the_same_images_augmented_otherwise_and_the_first_is_as_without_them() -> None:
    (one, *_), (two, *_) = batches(), batches(views=3)
    assert len(two.views) == 3
    assert torch.equal(one.images, two.views[0])
    assert not torch.equal(two.views[0], two.views[1])
    assert not torch.equal(two.views[1], two.views[2])
    (again, *_) = batches(views=3)
    assert all(torch.equal(a, b) for a, b in zip(two.views, again.views, strict=True))
    halves = [batches(views=3, share=(i, 2))[0] for i in range(2)]
    assert torch.equal(torch.cat([half.views[2] for half in halves]), two.views[2])


# --- what cannot go together


def test_what_a_phase_asks_for_and_settings_cannot_give_is_refused_in_one_line() -> None:
    new, exemplars = sets()
    phase = Phase("train", new, (), Schedule(epochs=1), lambda batch: Outcome({}))
    whole = replace(phase, whole_batches=True)
    with pytest.raises(SettingsError, match=r"cannot be divided by 2 processes; use one process and train\.acc"):
        refuse_unfit(whole, processes=2)
    with pytest.raises(SettingsError, match=r"cannot be divided by train\.accumulate 4"):
        refuse_unfit(whole, accumulate=4)
    with pytest.raises(SettingsError, match=r"has 2 views of each image, which train\.mixup cannot mix"):
        refuse_unfit(replace(phase, views=2), mixup=1.0)
    with pytest.raises(SettingsError, match=r"has replay batches, which train\.mixup cannot mix"):
        refuse_unfit(replace(phase, replay=(Replay(exemplars, 2),)), mixup=1.0)
    with pytest.raises(SettingsError, match="2 views of images that are not augmented"):
        refuse_unfit(replace(phase, views=2, augmented=False))
    refuse_unfit(phase, processes=2, accumulate=4, mixup=1.0)


def test_a_phase_with_replay_or_a_hook_cannot_be_shared() -> None:
    new, exemplars = sets()
    method = new_method("finetune")
    phase = Phase("train", new, (), Schedule(epochs=1), lambda batch: Outcome({}), first_task_name="alike")
    refuse_more_than_the_network(method, phase)
    for more in (
        {"replay": (Replay(exemplars, 2),)},
        {"after_step": lambda: None},
        {"also_changes": (method.backbone,)},
    ):
        with pytest.raises(EndocilError, match=r"leave Phase\.first_task_name empty"):
            refuse_more_than_the_network(method, replace(phase, **more))


# --- a second gradient, and a hook after each step


class Line(nn.Module):
    """y = w x, with a statistic that every pass moves."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return x @ self.weight


def test_the_second_gradient_is_taken_where_the_rule_leads_and_the_step_from_where_the_weights_were(
    lives: Lives,
) -> None:
    line, new = Line(), sets()[0]
    x, y = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64), torch.tensor([0.5, 2.0], dtype=torch.float64)
    taken = []

    def objective(batch: Batch) -> Outcome:
        return Outcome({"squares": (line(x) - y).square()})

    def gradient(weight: Tensor) -> Tensor:
        """Of the mean of both squares, by hand."""
        return torch.stack([2.0 * (row @ weight - target) * row for row, target in zip(x, y, strict=True)]).mean(dim=0)

    schedule = Schedule(epochs=1, learning_rate=0.1, momentum=0.0, weight_decay=0.0)
    phase = Phase("line", new, (line,), schedule, objective, Ascent(0.3), after_step=lambda: taken.append(1))
    before = line.weight.detach().clone()
    first = gradient(before)
    expected = before - 0.1 * gradient(before + 0.3 * first / first.norm())
    batch = next(iter(training_batches(new.take(torch.arange(2)), 2, None, 0, (0,), CPU)))
    step(phase, batch, optimizer_of(phase), lives.whole("finetune").fabric)
    torch.testing.assert_close(line.weight.detach(), expected)
    assert int(line.passes) == 1  # that of the second pass is put back
    assert taken == [1]


def test_after_step_runs_once_for_each_step_also_when_a_batch_goes_in_pieces(lives: Lives, tmp_path: Path) -> None:
    life = lives.after("finetune", 1, tmp_path)
    task = life.scenario.tasks[1]
    life.method.grow(task)
    (phase,) = life.method.phases(task, life.data(task))
    steps: list[int] = []
    schedule = replace(phase.schedule, epochs=1, batch_size=4)
    counted = replace(phase, after_step=lambda: steps.append(1), schedule=schedule)
    places: dict[str, Any] = {"fabric": life.fabric, "augmentation": Augmentation(), "seed": 0, "key": (0,)}
    list(fit(counted, life.method, logged_head=life.method.classifier, accumulate=2, **places))
    assert len(steps) == len(cut(phase.images.rows, 4)) > 1


# --- values prepared from data


class Prepared(Finetune):
    """Counts how often it is prepared, in a buffer that is saved."""

    times: Tensor

    def __init__(self, backbone: nn.Module, **inherited: Any) -> None:
        super().__init__(backbone, **inherited)
        self.register_buffer("times", torch.tensor(0))

    def prepare(self, task: Task, data: TaskData) -> None:
        assert data.features is not None
        assert data.features(data.new).shape == (len(data.new), self.classifier.in_features)
        self.times += 1


def test_a_method_is_prepared_once_a_task_also_when_it_is_resumed(images: Images, tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and (record["task"], record["epoch"]) == (1, 1):
            raise StoppedError

    name = f"{__name__}:Prepared"
    life = Life(images, tmp_path, new_method(name), clock=iter(range(0, 9999, 100)).__next__)
    life.journal.show = stop
    with pytest.raises(StoppedError):
        life.live()
    resumed = Life(images, tmp_path, new_method(name)).go_on()
    assert int(resumed.method.times) == 3


# --- tensors kept with exemplars


def test_rows_of_other_widths_are_padded_with_zeros() -> None:
    joined = join_rows({"a": torch.ones(1, 2)}, 1, {"a": torch.ones(2, 3), "b": torch.tensor([7, 8])}, 2)
    assert joined["a"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    assert joined["b"].tolist() == [0, 7, 8]
    with pytest.raises(EndocilError, match="'a' was kept with 1 dimensions, and now with 2"):
        join_rows({"a": torch.ones(1)}, 1, {"a": torch.ones(1, 1)}, 1)


def test_old_exemplars_keep_their_tensors_and_new_ones_get_theirs_whatever_the_order() -> None:
    images = make_images([5, 4], size=8)
    memory = ExemplarMemory(per_class=3, select=build_selector("random", {}), size=8)
    names = images.table.classes
    memory.keep(
        ImageSet.of(images, torch.arange(5)), torch.tensor([4, 0, 2]), names, task=0, tensors={"n": row(4, 0, 2)}
    )
    both = ImageSet.of(images, torch.arange(5, 9)) + memory.images()  # 4 new images, then 3 exemplars
    memory.keep(both, torch.tensor([6, 2, 4, 0]), names, task=1, tensors={"n": row(20, 10)})
    assert memory.exemplars.tensors["n"].tolist() == [2, 20, 4, 10]
    assert memory.images().kept["n"].tolist() == [2, 20, 4, 10]


def row(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


class WrongRows(Finetune):
    replay = True

    def exemplar_tensors(self, task: Task, features: Tensor, logits: Tensor) -> Mapping[str, Tensor]:
        return {"logits": logits[:-1]}


def test_too_few_rows_for_the_exemplars_are_refused(images: Images, tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"WrongRows\.exemplar_tensors gives 'logits' of shape .* expected one row"):
        Life(images, tmp_path, new_method(f"{__name__}:WrongRows")).live(1)


# --- heads


def test_scores_of_the_cosine_head_depend_on_directions_alone() -> None:
    head = CosineClassifier(5, proxies=3)
    head.grow(2, generator(0))
    head.grow(1, generator(1))
    features = torch.randn(4, 5, generator=generator(2))
    scores = head(features)
    assert scores.shape == (4, 3)
    torch.testing.assert_close(head(7.0 * features), scores)
    with torch.no_grad():
        head.tasks[0].weight.mul_(3.0)  # type: ignore[operator]
    torch.testing.assert_close(head(features), scores)
    by_hand = []
    for row_of_head in head.weight.detach().view(3, 3, 5):
        cosines = torch.stack([functional.cosine_similarity(features[0], proxy, dim=0) for proxy in row_of_head])
        by_hand.append(sum(float(share * cosine) for share, cosine in zip(cosines.softmax(0), cosines, strict=True)))
    torch.testing.assert_close(scores[0].detach(), torch.tensor(by_hand))


def test_norms_of_classes_are_those_of_their_rows_and_old_rows_without_a_gradient_count_as_0() -> None:
    linear, cosine = GrowingClassifier(4), CosineClassifier(4, proxies=2)
    for head in (linear, cosine):
        head.grow(2, generator(0))
        head.grow(1, generator(1))
        norms = head.class_norms()
        assert norms is not None
        torch.testing.assert_close(norms, head.weight.detach().view(3, -1).norm(dim=1))
        assert head.class_norms(gradient=True) is None
    cosine.tasks[0].requires_grad_(False)
    cosine(torch.randn(3, 4, generator=generator(2))).square().sum().backward()
    gradients = cosine.class_norms(gradient=True)
    assert gradients is not None
    assert gradients[:2].tolist() == [0, 0]
    assert float(gradients[2]) > 0


def test_gradients_calibrated_for_a_linear_classifier_refuse_another_head() -> None:
    head = CosineClassifier(4)
    head.grow(2, generator(0))
    with pytest.raises(ValueError, match="are those of a linear classifier, not of CosineClassifier"):
        CalibratedGradient(head, torch.ones(2))  # type: ignore[arg-type]
    assert not GradientRule.second_pass
