"""FOSTER: its two phases against plain loops, what each leaves alone, and its options."""

from pathlib import Path
from typing import Any

import pytest
import torch
from life import Life, differing, new_method, state_of
from present import present
from torch import Tensor

from endocil import EndocilError, class_balanced_weights, distillation
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, ImageSet
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.learning.parallel import OneProcess
from endocil.learning.training import fit
from endocil.methods import method_options
from endocil.methods.base import Phase, Schedule, TaskData
from endocil.methods.foster import FOSTER, balanced_distillation
from endocil.networks import GrowingClassifier

WIDTH = 64  # features of the tests' backbone
COUNTS = [5, 5, 5, 4, 13, 9]  # exemplars of four old classes, one smaller than the quota; images of two new ones
LABELS = [0, 5, 3, 4]


def data_of(images: Images, task: Task, quota: int = 5) -> TaskData:
    labels = images.table.labels
    rows = [torch.nonzero(torch.from_numpy(labels == label)).flatten() for label in range(task.n_seen)]
    old = torch.cat([torch.empty(0, dtype=torch.int64), *(mine[:quota] for mine in rows[task.old])])
    return TaskData(ImageSet.of(images, torch.cat(rows[task.new])), ImageSet.of(images, old, from_memory=True))


def grown(images: Images, *sizes: int, **options: Any) -> tuple[FOSTER, Task, TaskData]:
    """A method that is ready to learn the last task, and what it would learn from."""
    method, n_old = new_method("foster", epochs=1, **options), 0
    for index, n_new in enumerate(sizes):
        task = Task(index, n_old, n_new)
        method.grow(task)
        n_old += n_new
    return method.eval(), task, data_of(images, task)


def phase_and_batch(images: Images, name: str, **options: Any) -> tuple[FOSTER, Phase, Batch]:
    """In float64, four old classes and two new ones."""
    method, task, data = grown(images, 4, 2, **options)
    method.double()
    phases = {phase.name: phase for phase in method.phases(task, data)}
    pictures = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(3)).double()
    labels, known = torch.tensor(LABELS), torch.tensor(LABELS) < 4
    return method, phases[name], Batch(pictures, labels, known, labels, known)


def balanced(beta: float) -> Tensor:
    alpha = [(1 - beta) / (1 - beta**n) for n in COUNTS]
    return torch.tensor([6 * a / sum(alpha) for a in alpha], dtype=torch.float64)


def soft_cross_entropy(target: Tensor, logits: Tensor) -> float:
    """-sum_i target_i log softmax(logits)_i of one image, number by number."""
    shares = logits.exp() / logits.exp().sum()
    return -sum(float(q) * float(p.log()) for q, p in zip(target, shares, strict=True))


def softened(logits: Tensor, temperature: float = 2.0) -> Tensor:
    raised = (logits / temperature).exp()
    return raised / raised.sum()


def test_boosting_equals_a_plain_loop_of_its_three_losses(images: Images) -> None:
    method, boosting, batch = phase_and_batch(images, "boost", distil=0.5)
    with torch.no_grad():
        losses = boosting.objective(batch).losses
        teacher = present(method.teacher)
        old, new = teacher.old[0](batch.images), teacher.new_backbone(batch.images)
        logits = teacher.classifier(torch.cat([old, new], dim=1))
        told, expanded = teacher.old[1](old), teacher.expansion(new)
    for n, label in enumerate(LABELS):
        truth = torch.eye(6)[label]
        divided = soft_cross_entropy(truth, logits[n] / balanced(0.96))
        assert float(losses["classification"][n]) == pytest.approx(divided, rel=1e-10)
        assert float(losses["expansion"][n]) == pytest.approx(soft_cross_entropy(truth, expanded[n]), rel=1e-10)
        held = 0.5 * soft_cross_entropy(softened(told[n]), logits[n, :4] / 2.0)
        assert float(losses["distillation"][n]) == pytest.approx(held, rel=1e-10)


def test_the_logits_are_divided_by_the_weights_so_their_gradient_is_too(images: Images) -> None:
    _, boosting, batch = phase_and_batch(images, "boost")
    outcome = boosting.objective(batch)
    (gradient,) = torch.autograd.grad(outcome.losses["classification"].sum(), present(outcome.logits))
    weights = balanced(0.96)
    for n, label in enumerate(LABELS):
        shares = softened(present(outcome.logits)[n].detach() / weights, 1.0)
        assert torch.allclose(gradient[n], (shares - torch.eye(6)[label]) / weights, atol=1e-12)


def test_compression_equals_a_plain_loop_and_its_gradient_is_student_minus_target(images: Images) -> None:
    method, compressing, batch = phase_and_batch(images, "compress")
    outcome = compressing.objective(batch)
    losses, logits = outcome.losses["distillation"], present(outcome.logits).detach()
    (gradient,) = torch.autograd.grad(losses.sum(), present(outcome.logits))
    with torch.no_grad():
        teacher = present(method.teacher)
        told = teacher.classifier(teacher.features(batch.images))
    for n in range(len(LABELS)):
        target = balanced(0.97) * softened(told[n])
        target = target / target.sum()
        assert losses[n].item() == pytest.approx(soft_cross_entropy(target, logits[n] / 2.0), rel=1e-10)
        assert torch.allclose(gradient[n], (softened(logits[n]) - target) / 2.0, atol=1e-12)


def test_even_counts_make_it_plain_distillation_and_any_counts_a_target_that_adds_up_to_one() -> None:
    logits, teacher_logits = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    even, uneven = (class_balanced_weights(torch.tensor(n), 0.97) for n in ([40] * 6, COUNTS))
    assert torch.allclose(even, torch.ones(6).double())
    assert torch.allclose(
        balanced_distillation(logits, teacher_logits, even, 2.0), distillation(logits, teacher_logits, 2.0)
    )
    assert uneven.sum().item() == pytest.approx(6.0)
    flat = balanced_distillation(torch.zeros(5, 6).double(), teacher_logits, uneven, 2.0)
    assert torch.allclose(flat, torch.full((5,), 6.0).double().log())  # log C times the sum of the target


def test_boosting_leaves_the_old_network_and_compression_the_teacher_bit_for_bit(images: Images) -> None:
    method, task, data = grown(images, 2, 1)
    options: dict[str, Any] = {"fabric": OneProcess(), "seed": 0, "key": (0,)}
    changed, before = [], state_of(method)
    for phase in method.phases(task, data):
        list(fit(phase, method, augmentation=Augmentation(), logged_head=method.classifier, **options))
        changed.append(differing(before, state_of(method)))
        before = state_of(method)
    learning = ("teacher.new_backbone.", "teacher.classifier.", "teacher.expansion.")
    assert all(name.startswith(learning) for name in changed[0])
    assert all(name.startswith(("backbone.", "classifier.")) for name in changed[1])
    assert min(map(len, changed)) > 100


def test_teacher_has_two_backbones_and_student_one_in_every_later_task(images: Images) -> None:
    pictures = torch.randn(3, 3, 32, 32)
    for sizes in ((2,), (2, 1), (2, 1, 3)):
        method, task, _ = grown(images, *sizes)
        assert method.embed(pictures).shape == (3, WIDTH * min(2, len(sizes)))
        student = method.backbone(pictures)
        assert student.shape == (3, WIDTH)
        assert method(pictures).shape == method.classifier(student).shape == (3, task.n_seen)


def test_teacher_and_student_of_a_task_start_from_the_student_before(images: Images) -> None:
    method, _, _ = grown(images, 2, 1)
    with torch.no_grad():
        for parameter in (*method.backbone.parameters(), *method.classifier.parameters()):
            parameter.add_(0.01)  # the student has learned, apart from its teacher
    before = state_of(method)
    method.grow(Task(2, 3, 3))
    after = state_of(method)
    for name in (name for name in before if name.startswith("backbone.")):
        for copy in (name, f"teacher.old.0.{name[9:]}", f"teacher.new_backbone.{name[9:]}"):
            assert torch.equal(after[copy], before[name]), copy
    for copy in ("classifier.weight", "teacher.old.1.weight", "teacher.classifier.weight"):
        assert torch.equal(after[copy][:3, :WIDTH], before["classifier.weight"]), copy
        assert torch.equal(after[copy.replace("weight", "bias")][:3], before["classifier.bias"])
    assert after["teacher.expansion.weight"].shape == (6, WIDTH)


@pytest.mark.parametrize("evaluate", ["teacher", "student"])
def test_prediction_touches_the_predictors_and_nothing_else(images: Images, evaluate: str) -> None:
    for sizes in ((2,), (2, 1), (2, 1, 3)):
        method, _, _ = grown(images, *sizes, evaluate=evaluate)
        method.requires_grad_(True)(torch.randn(2, 3, 32, 32)).sum().backward()
        touched = {parameter for parameter in method.parameters() if parameter.grad is not None}
        assert touched == {parameter for module in method.predictors for parameter in module.parameters()}


def test_which_network_is_evaluated_changes_neither_training_nor_the_choice_of_exemplars(
    images: Images, tmp_path: Path
) -> None:
    teacher, student = (
        Life(images, tmp_path / name, new_method("foster", epochs=1, evaluate=name)).live(2)
        for name in ("teacher", "student")
    )
    assert differing(state_of(teacher.method), state_of(student.method)) == ["statistics/class_means"]
    assert teacher.memory.records() == student.memory.records()
    assert teacher.method.statistics["class_means"].shape == (3, 2 * WIDTH)
    assert student.method.statistics["class_means"].shape == (3, WIDTH)


def test_with_az_new_classes_never_see_the_old_backbone(images: Images, tmp_path: Path) -> None:
    method = new_method("foster", epochs=1, oofc="az", align_teacher=True)
    weight = Life(images, tmp_path, method).live(2).method.teacher.classifier.weight
    assert not weight[2:, :WIDTH].any()
    assert weight[2:, WIDTH:].all()
    assert weight[:2].all()


def test_aligned_rows_are_as_long_as_said_and_the_student_learns_from_aligned_logits(images: Images) -> None:
    options: dict[str, Any] = {"align_teacher": True, "align_student": True, "align_value": 1.5}
    method, compressing, batch = phase_and_batch(images, "compress", **options)
    teacher = present(method.teacher)
    with torch.no_grad():
        teacher.classifier.bias.normal_()
    before, during = state_of(method), compressing.objective(batch)
    method.consolidate(Task(1, 4, 2), data_of(images, Task(1, 4, 2)))
    for name, measured in (("teacher.classifier", "teacher_alignment"), ("classifier", "student_alignment")):
        classifier = method.get_submodule(name)
        assert isinstance(classifier, GrowingClassifier)
        factor = classifier.weight[4:] / before[f"{name}.weight"][4:]
        assert method.measurements[measured] == pytest.approx(factor.mean().item())
        lengths = classifier.weight.norm(dim=1)
        assert (lengths[4:].mean() / lengths[:4].mean()).item() == pytest.approx(1.5 ** (4 / 2))
        assert torch.equal(classifier.weight[:4], before[f"{name}.weight"][:4])
        assert torch.equal(classifier.bias, before[f"{name}.bias"])
    told = teacher.classifier(teacher.features(batch.images))
    loss = balanced_distillation(present(during.logits), told, balanced(0.97), 2.0)
    assert torch.allclose(during.losses["distillation"], loss, atol=1e-12)


def test_images_of_known_classes_are_learned_and_counted(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("foster", epochs=1)).live(1)
    task, kept = life.scenario.tasks[1], set(life.kept_rows()[0].tolist())
    known = [row for row in life.scenario.rows("train", slice(0, 1)).tolist() if row not in kept]
    life.learner.learn(
        task, life.new_images(task) + ImageSet.of(images, torch.tensor(known)), life.images.table.classes
    )
    assert life.method(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    assert [len(life.kept_rows()[label]) for label in range(3)] == [4, 4, 4]


def test_one_new_image_without_an_exemplar_is_enough_for_a_batch(images: Images) -> None:
    method, task, data = grown(images, 2, 1)
    label, new = torch.tensor([2]), torch.tensor([False])
    batch = Batch(torch.randn(1, 3, 32, 32), label, new, label, new)
    for phase in method.phases(task, data):
        for loss in phase.objective(batch).losses.values():
            assert loss.shape == (1,)
            assert bool(loss.isfinite())


def test_the_native_schedule_is_pycils_and_compression_never_decays_weights(images: Images) -> None:
    found = []
    for sizes in ((2,), (2, 1)):
        method, task, data = grown(images, *sizes, native_schedule=True)
        found += [phase.schedule for phase in method.phases(task, data)]
    cosine: dict[str, Any] = {"cosine": True, "learning_rate": 0.1, "batch_size": 128}
    assert found == [
        Schedule(epochs=200, weight_decay=5e-4, **cosine),
        Schedule(epochs=170, weight_decay=5e-4, **cosine),
        Schedule(epochs=130, weight_decay=0.0, **cosine),
    ]
    method, task, data = grown(images, 2, 1)
    plans = [(phase.name, phase.schedule.epochs, phase.schedule.weight_decay) for phase in method.phases(task, data)]
    assert plans == [("boost", 1, 2e-4), ("compress", 1, 0.0)]


def test_defaults_are_pycils_and_wrong_values_are_refused_by_name() -> None:
    pycil = {"beta1": 0.96, "beta2": 0.97, "temperature": 2.0, "distil": 1.0, "oofc": "ft", "align_value": 1.0}
    off = dict.fromkeys(("align_teacher", "align_student", "native_schedule"), False)
    assert method_options("foster") == {"evaluate": "teacher", **pycil, **off}
    backbone = new_method("foster").backbone
    wrong: dict[str, Any] = {
        "evaluate": "both",
        "oofc": "none",
        "temperature": 0.0,
        "beta1": 1.0,
        "beta2": -0.1,
        "align_value": 0.0,
    }
    for option, value in wrong.items():
        with pytest.raises(EndocilError, match=rf"method\.{option} is '?{value}'?; "):
            FOSTER(backbone, **{option: value})
    with pytest.raises(EndocilError, match=r"method\.oofc: input should be 'ft' or 'az', got 'none'"):
        new_method("foster", oofc="none")
