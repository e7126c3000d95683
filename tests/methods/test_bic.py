"""BiC: two phases, of which the second learns two numbers."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, differing, new_method, state_of
from pictures import make_images
from torch import Tensor
from torch.nn import functional

from endocil import EndocilError
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.learning.training import fit
from endocil.methods import method_options
from endocil.methods.base import Phase, Schedule, TaskData
from endocil.methods.bic import Correction, Corrections


def batch_of(images: Tensor, labels: list[int]) -> Batch:
    known = torch.zeros(len(labels), dtype=torch.bool)
    return Batch(images, torch.tensor(labels), known, torch.tensor(labels), known)


def train(life: Life, phase: Phase, index: int) -> None:
    options: dict[str, Any] = {"fabric": life.fabric, "augmentation": Augmentation(), "seed": 0, "key": (1, index)}
    list(fit(phase, life.method, **options, logged_head=life.method.classifier))


def task_of(counts: list[int], exemplars: list[int]) -> tuple[Task, TaskData]:
    """A second task: all images of the new classes, and so many exemplars of each old class."""
    images = make_images(counts, size=8)
    starts = [sum(counts[:label]) for label in range(len(counts))]
    old = [row for start, n in zip(starts, exemplars, strict=False) for row in range(start, start + n)]
    new = torch.arange(starts[len(exemplars)], sum(counts))
    task = Task(1, len(exemplars), len(counts) - len(exemplars))
    memory = ImageSet.of(images, torch.tensor(old).long(), from_memory=True)
    return task, TaskData(ImageSet.of(images, new), memory)


def divided(counts: list[int], exemplars: list[int], **options: Any) -> tuple[Any, ...]:
    method, (task, data) = new_method("bic", **options), task_of(counts, exemplars)
    method.grow(Task(0, 0, task.n_old))
    method.grow(task)
    return method.phases(task, data), method.notes(task, data), task


def test_the_first_phase_leaves_the_correction_alone_and_the_second_changes_two_numbers(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("bic", epochs=1)).live(1)
    life.method.grow(task := life.scenario.tasks[1])
    first, second = life.method.phases(task, life.data(task))
    train(life, first, 0)
    before = state_of(life.method)
    assert (float(before["corrections.1.alpha"]), float(before["corrections.1.beta"])) == (1.0, 0.0)
    for some in (second.images.take(torch.tensor([0])), second.images):  # a batch of one image will do
        train(life, replace(second, images=some), 1)
        changed = differing(before, state_of(life.method))
        assert "corrections.1.alpha" in changed  # at least by weight decay, however sure the network is
        assert {*changed} <= {"corrections.1.alpha", "corrections.1.beta"}


def test_corrections_of_earlier_tasks_never_change_and_the_first_tasks_is_none(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("bic", epochs=1)).live(2)
    before, pictures = state_of(life.method), torch.randn(3, 3, 32, 32)
    logits = life.method(pictures)
    life.step(life.scenario.tasks[2])
    after = state_of(life.method)
    earlier = [name for name in before if name.startswith("corrections.")]
    assert len(earlier) == 4
    assert differing({k: before[k] for k in earlier}, {k: after[k] for k in earlier}) == []
    assert (float(after["corrections.0.alpha"]), float(after["corrections.0.beta"])) == (1.0, 0.0)
    assert float(after["corrections.2.alpha"]) != 1.0
    # the teacher is the network before the task, its corrections included
    assert torch.allclose(life.method.teacher(pictures), logits, atol=1e-5)


def test_without_a_bias_learned_the_logits_are_those_of_the_plain_classifier() -> None:
    method, features = new_method("bic"), torch.randn(5, 64)
    for task in (Task(0, 0, 2), Task(1, 2, 1), Task(2, 3, 3)):
        method.grow(task)
    assert torch.equal(method.classify(features), method.classifier(features))


def test_corrections_equal_a_plain_loop_over_uneven_tasks() -> None:
    corrections, sizes = Corrections([Correction(2), Correction(1), Correction(3)]).double(), (2, 1, 3)
    logits, column = torch.randn(4, 6, dtype=torch.float64), 0
    expected = torch.empty_like(logits)
    for correction, size in zip(corrections, sizes, strict=True):
        alpha, beta = (torch.nn.init.normal_(value).item() for value in correction.parameters())
        for i in range(column, column + size):
            expected[:, i] = alpha * logits[:, i] + beta
        column += size
    assert torch.allclose(corrections(logits), expected, rtol=0, atol=1e-14)


def test_the_phases_share_no_image_and_the_second_has_as_many_of_each_class() -> None:
    (first, second), notes, task = divided([40, 35, 25, 12], [30, 30])
    assert len({*first.images.rows.tolist(), *second.images.rows.tolist()}) == 85 + 12 == 30 + 30 + 25 + 12
    assert second.images.counts(task.n_seen).tolist() == [3, 3, 3, 3]
    assert first.images.counts(task.n_seen).tolist() == [27, 27, 22, 9]
    assert (first.name, second.name, notes) == ("train", "correct", [])
    assert (first.augmented, second.augmented) == (True, False)


@pytest.mark.parametrize(
    ("exemplars", "smallest_new", "share", "expected"),
    [
        (30, 25, 0.1, 3),
        (40, 25, 0.1, 4),
        (50, 25, 0.1, 5),
        (5, 25, 0.1, 1),
        (30, 3, 0.1, 1),
        (30, 4, 0.1, 2),
        (30, 25, 0.5, 12),
    ],
)
def test_a_share_of_a_classs_exemplars_is_held_out_at_least_one_and_at_most_half_of_the_smallest_class(
    exemplars: int, smallest_new: int, share: float, expected: int
) -> None:
    (_, second), _, task = divided([60, 60, smallest_new, 55], [exemplars] * 2, held_out=share)
    assert second.images.counts(task.n_seen).tolist() == [expected] * 4


@pytest.mark.parametrize(("exemplars", "new"), [([5, 1], 9), ([5, 5], 1), ([5, 0], 9)])
def test_where_a_class_has_fewer_than_two_images_the_second_phase_is_left_out_and_the_log_says_so(
    exemplars: list[int], new: int
) -> None:
    phases, notes, _ = divided([9, 9, new], exemplars)
    assert [phase.name for phase in phases] == ["train"]
    assert len(phases[0].images) == sum(exemplars) + new
    assert "the bias is not corrected in this task" in notes[0]


def prepared(**options: Any) -> tuple[Any, ...]:
    """A method in float64 in its third task, every older correction something, and a batch of every class."""
    torch.manual_seed(0)
    method, tasks = new_method("bic", **options), (Task(0, 0, 2), Task(1, 2, 1), Task(2, 3, 2))
    for task in tasks:
        method.grow(task)
        for value in method.corrections[-1].parameters():
            torch.nn.init.normal_(value, 1.0, 0.3)
    method.double().eval()
    images = functional.interpolate(torch.randn(6, 3, 8, 8, dtype=torch.float64), 32)
    _, data = task_of([9, 9, 9, 9, 9], [4, 4, 4])
    return method, method.phases(tasks[2], data), batch_of(images, [0, 1, 2, 3, 4, 3])


def test_the_first_loss_equals_a_plain_loop_over_corrected_logits() -> None:
    method, (phase, _), batch = prepared(temperature=3.0)
    losses = {name: loss.tolist() for name, loss in phase.objective(batch).losses.items()}
    logits, teacher_logits = method(batch.images).tolist(), method.teacher(batch.images).tolist()
    for n, label in enumerate(batch.labels.tolist()):
        total = math.log(sum(math.exp(z) for z in logits[n])) - logits[n][label]
        student = [z / 3.0 for z in logits[n][:3]]
        teacher = [math.exp(z / 3.0) for z in teacher_logits[n]]
        log_sum = math.log(sum(math.exp(z) for z in student))
        kept = -sum(p / sum(teacher) * (z - log_sum) for p, z in zip(teacher, student, strict=True))
        assert losses["classification"][n] == pytest.approx(2 / 5 * total, abs=1e-10)
        assert losses["distillation"][n] == pytest.approx(3 / 5 * kept, abs=1e-10)


def test_the_gradient_of_the_second_phase_is_that_of_softmax_on_corrected_logits() -> None:
    method, (_, phase), batch = prepared()
    phase.objective(batch).losses["cross_entropy"].mean().backward()
    plain = method.classifier(method.embed(batch.images)).detach()
    logits = method.corrections(plain).detach()
    by_alpha = by_beta = 0.0
    for n, label in enumerate(batch.labels.tolist()):
        for i in (3, 4):  # the classes of the third task
            error = float(logits[n, i].exp() / logits[n].exp().sum()) - (i == label)
            by_alpha, by_beta = by_alpha + error * float(plain[n, i]) / 6, by_beta + error / 6
    gradients = [float(value.grad) for value in method.corrections[-1].parameters()]
    assert gradients == pytest.approx([by_alpha, by_beta], abs=1e-12)


def test_the_second_stage_of_pycil_takes_softmax_twice_on_augmented_images() -> None:
    method, (_, phase), batch = prepared(second_stage="pycil")
    shares = functional.softmax(method(batch.images), dim=1).tolist()
    pairs = zip(shares, batch.labels.tolist(), strict=True)
    expected = [math.log(sum(math.exp(p) for p in row)) - row[label] for row, label in pairs]
    assert phase.augmented
    assert phase.objective(batch).losses["cross_entropy"].tolist() == pytest.approx(expected, abs=1e-12)


def test_images_of_known_classes_are_held_out_like_others_and_all_images_may_become_exemplars(
    images: Images, tmp_path: Path
) -> None:
    life = Life(images, tmp_path, new_method("bic", epochs=1)).live(1)
    task = life.scenario.tasks[1]
    new = life.new_images(task) + ImageSet.of(images, life.scenario.rows("test", slice(0, 1)))
    data = TaskData(new, life.data(life.scenario.tasks[0]).exemplars)
    life.learner.learn(task, new, life.images.table.classes)
    first, second = life.method.phases(task, data)
    assert len(set(second.images.counts(task.n_seen).tolist())) == 1
    assert sorted((first.images + second.images).rows.tolist()) == sorted(data.all.rows.tolist())
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    chosen = {event["class"]: event["of"] for event in events if event.get("of") and event["task"] == 1}
    assert chosen == {"class-00": 3 + 4, "class-02": 9}  # new images and old exemplars; all new images


def test_the_first_task_has_one_phase_all_its_images_and_no_note() -> None:
    method, (_, data) = new_method("bic"), task_of([9, 1], [])
    method.grow(task := Task(0, 0, 2))
    (phase,) = method.phases(task, data)
    assert (len(phase.images), method.teacher, method.notes(task, data)) == (10, None, [])


def test_a_batch_without_exemplars_has_the_losses_of_its_images_in_any_other_batch() -> None:
    _, (phase, _), batch = prepared()
    whole, part = (phase.objective(b).losses for b in (batch, batch_of(batch.images[3:], [3, 4, 3])))
    assert all(torch.allclose(whole[name][3:], part[name], atol=1e-10) for name in whole)


def test_only_what_predicts_is_counted_as_predictor() -> None:
    method, _, batch = prepared()
    method.requires_grad_(True)(batch.images).square().sum().backward()
    touched = {name for name, value in method.named_parameters() if value.grad is not None}
    counted = {value for module in method.predictors for value in module.parameters()}
    assert touched == {name for name, value in method.named_parameters() if value in counted}
    assert {name.split(".")[0] for name in touched} == {"backbone", "classifier", "corrections"}


def test_the_authors_schedule_is_pycils_in_every_task_and_both_phases() -> None:
    # epochs, learning rate, milestones, decay, momentum, weight decay, batch size
    schedule = Schedule(170, 0.1, (60, 100, 140), 0.1, 0.9, 2e-4, 128, cosine=False)
    method = new_method("bic", native_schedule=True)
    assert [method.schedule(task) for task in (Task(0, 0, 4), Task(1, 4, 3))] == [schedule, schedule]
    (first, second), _, _ = divided([9, 9, 9], [3, 3], native_schedule=True)
    assert first.schedule == second.schedule == schedule


def test_options_have_pycils_defaults_and_wrong_values_are_refused() -> None:
    own = {"temperature": 2.0, "held_out": 0.1, "second_stage": "logits"}
    assert method_options("bic") == own | {"native_schedule": False}
    for share in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(EndocilError, match=r"method\.held_out is .*; expected a share between 0 and 1"):
            new_method("bic", held_out=share)
    with pytest.raises(EndocilError, match=r"method\.temperature is 0\.0; expected a number above 0"):
        new_method("bic", temperature=0.0)
    with pytest.raises(EndocilError, match=r"method\.second_stage: input should be 'logits' or 'pycil'"):
        new_method("bic", second_stage="softmax")
