"""Metrics against scikit-learn, against examples worked by hand, and against the paper's own tables."""

import json
import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present
from sklearn import metrics as referee

from endocil.errors import EndocilError
from endocil.metrics.metrics import (
    METRICS,
    TABLE_METRICS,
    accuracy,
    af_printed,
    average_forgetting,
    balanced_accuracy,
    confusion,
    forgetting_max,
    macro_f1,
    per_class,
    per_source,
    summarise,
    task_accuracy,
    task_sizes,
)
from endocil.model.predictions import HEADS, Head, Predictions

Labels = Sequence[int] | np.ndarray


def from_names(
    labels: Labels,
    predicted: Labels,
    classes: Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    nearest: Labels | None = None,
) -> Predictions:
    """Predictions whose softmax head says `predicted` and whose nearest-mean head says `nearest`."""
    one_hot = np.eye(len(classes), dtype=np.float32)
    return Predictions(
        images=tuple(map(str, range(len(labels)))),
        labels=np.asarray(labels, dtype=np.int64),
        classes=tuple(classes),
        scores=one_hot[np.asarray(predicted, dtype=np.int64)],
        distances=None if nearest is None else 1 - one_hot[np.asarray(nearest, dtype=np.int64)],
        sources=tuple(sources) if sources is not None else ("",) * len(labels),
    )


def at_random(seed: int, n: int = 300, c: int = 7, absent: tuple[int, ...] = ()) -> Predictions:
    """Classes in `absent` have no test images; both heads say different things."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([i for i in range(c) if i not in absent], size=n)
    wrong = rng.integers(c, size=(2, n))
    softmax, nearest = np.where(rng.random((2, n)) < [[0.6], [0.4]], labels, wrong)
    sources = rng.choice(["", "capsule", "colonoscope"], size=n).tolist()
    return from_names(labels, softmax, [f"class {i}" for i in range(c)], sources=sources, nearest=nearest)


def run_of(counts_correct: Sequence[Sequence[int]], counts: Sequence[int], sizes: Sequence[int]) -> list[Predictions]:
    """A run whose model after task t gets counts_correct[t][i] of the counts[i] images of class i right."""
    run = []
    for t, correct in enumerate(counts_correct):
        c = sum(sizes[: t + 1])
        labels = np.repeat(np.arange(c), counts[:c])
        right = np.concatenate([np.arange(counts[i]) < correct[i] for i in range(c)])
        run.append(from_names(labels, np.where(right, labels, (labels + 1) % c), [f"{i:02}" for i in range(c)]))
    return run


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("seed", "absent"), [(0, ()), (1, ()), (2, (3,)), (3, (0, 6))])
def test_every_figure_of_one_task_equals_scikit_learn(seed: int, absent: tuple[int, ...], head: Head) -> None:
    p = at_random(seed, absent=absent)
    truth, said, labels = p.labels, p.predicted(head), list(range(7))
    assert accuracy(p, head) == pytest.approx(100 * referee.accuracy_score(truth, said))
    f1 = referee.f1_score(truth, said, labels=labels, average="macro", zero_division=0)
    assert macro_f1(p, head) == pytest.approx(100 * f1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of predicted classes without images
        assert balanced_accuracy(p, head) == pytest.approx(100 * referee.balanced_accuracy_score(truth, said))
    assert np.array_equal(confusion(p, head), referee.confusion_matrix(truth, said, labels=labels))
    precision, recall, f1, images = referee.precision_recall_fscore_support(truth, said, labels=labels, zero_division=0)
    figures = list(per_class(p, head).values())
    assert [each["precision"] for each in figures] == pytest.approx(100 * precision)
    assert [each["f1"] for each in figures] == pytest.approx(100 * f1)
    assert [each["images"] for each in figures] == images.tolist()
    expected = [None if i in absent else pytest.approx(100 * recall[i]) for i in labels]
    assert [each["recall"] for each in figures] == expected


@pytest.mark.parametrize("head", HEADS)
def test_the_figures_of_a_source_are_those_of_its_images_alone(head: Head) -> None:
    p = at_random(4, absent=(2,))
    found = per_source(p, head)
    assert list(found) == ["", "capsule", "colonoscope"]
    for source, figures in found.items():
        rows = np.array(p.sources) == source
        truth, said = p.labels[rows], p.predicted(head)[rows]
        occur = np.unique(truth)
        assert figures["images"] == rows.sum()
        assert figures["accuracy"] == pytest.approx(100 * referee.accuracy_score(truth, said))
        for name in ("recall", "precision", "f1"):
            score = getattr(referee, f"{name}_score")
            mean = score(truth, said, labels=occur, average="macro", zero_division=0)
            assert figures[name] == pytest.approx(100 * mean)
        recalls = referee.recall_score(truth, said, labels=range(7), average=None, zero_division=np.nan)
        expected = [None if np.isnan(value) else pytest.approx(100 * value) for value in recalls]
        assert [each["recall"] for each in figures["per_class"].values()] == expected


def test_without_known_sources_there_are_no_figures_per_source() -> None:
    assert per_source(from_names([0, 1], [0, 1], "ab"), "softmax") == {}


def test_a_class_never_predicted_and_never_there_counts_as_zero_in_macro_f1() -> None:
    p = from_names([0, 1], [0, 1], "abc")
    assert macro_f1(p, "softmax") == pytest.approx(200 / 3)
    assert balanced_accuracy(p, "softmax") == 100


def test_task_accuracy_counts_the_images_of_the_task_among_all_seen_classes() -> None:
    #                 task 0: classes a, b        task 1: class c
    first = from_names([0, 0, 0, 1], [0, 0, 0, 1], "ab")
    second = from_names([0, 0, 0, 1, 2, 2], [0, 2, 2, 1, 2, 2], "abc")
    a = task_accuracy([first, second], "softmax")
    assert a[0, 0] == 100
    assert np.isnan(a[0, 1])
    assert a[1].tolist() == [50, 100]  # 2 of 4 images, though the recalls of a and b are 1/3 and 1
    assert task_sizes([first, second]) == [2, 1]


nan = math.nan
WORKED = np.array([[90, nan, nan], [70, 80, nan], [75, 50, 95]])


def test_forgetting_worked_by_hand() -> None:
    assert average_forgetting(WORKED) == (90 - 75 + 80 - 50) / 2
    assert af_printed(WORKED) == pytest.approx((90 - 75 + 80 - 50 + 0) / 3)
    assert forgetting_max(WORKED) == (90 - 75 + 80 - 50) / 2


def test_a_task_that_gained_lowers_af_and_max_forgetting_is_taken_from_its_best_moment() -> None:
    a = np.array([[60, nan, nan], [85, 70, nan], [80, 75, 90]])
    assert average_forgetting(a) == ((60 - 80) + (70 - 75)) / 2  # negative: not clamped
    assert forgetting_max(a) == ((85 - 80) + (75 - 75)) / 2


matrices = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.floats(0, 100), min_size=n * n, max_size=n * n).map(
        lambda values: np.where(np.tri(n, dtype=bool), np.reshape(values, (n, n)), nan)
    )
)


@given(matrices)
def test_the_three_kinds_of_forgetting_keep_their_relations(a: np.ndarray) -> None:
    af, printed, most = average_forgetting(a), af_printed(a), forgetting_max(a)
    n = len(a)  # T + 1
    assert af == pytest.approx(printed * n / (n - 1))
    terms = [a[s, s] - a[-1, s] for s in range(n)]
    assert terms[-1] == 0  # so the printed formula is the mean over all tasks
    assert printed == pytest.approx(np.mean(terms), abs=1e-9)
    assert most >= max(af, 0) - 1e-9


@given(st.floats(0, 100), st.integers(1, 6))
def test_a_constant_matrix_forgets_nothing(value: float, n: int) -> None:
    a = np.where(np.tri(n, dtype=bool), value, nan)
    for forgetting in (average_forgetting(a), af_printed(a), forgetting_max(a)):
        assert forgetting == 0 if n > 1 else math.isnan(forgetting)


@given(st.integers(0, 10), st.integers(1, 5))
def test_acc_avg_of_a_run_that_always_gets_the_same_share_right_is_that_share(correct: int, n: int) -> None:
    run = run_of([[correct] * (n + 1)] * n, [10] * (n + 1), [2, *[1] * (n - 1)])
    head = summarise(run)["softmax"]
    assert head["acc"] == [10 * correct] * n
    assert head["acc_avg"] == head["acc_last"] == 10 * correct
    assert head["af"] == (None if n == 1 else 0)


@given(st.integers(0, 2**32 - 1), st.permutations(range(40)))
def test_the_order_of_the_images_changes_nothing(seed: int, order: list[int]) -> None:
    p = at_random(seed, n=40, c=4)
    q = Predictions(
        images=tuple(p.images[i] for i in order),
        labels=p.labels[order],
        classes=p.classes,
        scores=p.scores[order],
        distances=present(p.distances)[order],
        sources=tuple(p.sources[i] for i in order),
    )
    assert summarise([p]) == summarise([q])


@given(st.integers(0, 2**32 - 1))
def test_every_figure_lies_between_0_and_100_and_accuracy_is_the_weighted_mean_recall(seed: int) -> None:
    p = at_random(seed, n=60, c=5)
    head = summarise([p])["nearest_mean"]
    for name in ("acc_last", "f1_last", "acc_avg", "f1_avg", "balanced_last"):
        assert 0 <= head[name] <= 100
    weighted = sum((each["recall"] or 0) * each["images"] for each in head["per_class"].values()) / 60
    assert head["acc_last"] == pytest.approx(weighted)
    assert sum(map(sum, head["confusion"])) == 60


def test_the_summary_holds_both_heads_is_json_and_each_of_its_metrics_is_explained() -> None:
    run = [at_random(seed, c=c) for seed, c in enumerate((3, 5, 7))]
    summary = summarise(run)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["classes"] == [f"class {i}" for i in range(7)]
    assert (summary["task_sizes"], summary["test_images"]) == ([3, 2, 2], [300, 300, 300])
    for name in HEADS:
        head = summary[name]
        assert set(head) == set(METRICS)
        a = task_accuracy(run, name)
        assert head["acc"] == [accuracy(p, name) for p in run]
        assert head["acc_avg"] == pytest.approx(np.mean(head["acc"]))
        assert head["f1_avg"] == pytest.approx(np.mean([macro_f1(p, name) for p in run]))
        assert (head["acc_last"], head["f1_last"]) == (head["acc"][-1], head["f1"][-1])
        assert (head["af"], head["af_printed"]) == (average_forgetting(a), af_printed(a))
        assert head["forgetting_max"] == forgetting_max(a)
        assert head["task_accuracy"][0] == [pytest.approx(a[0, 0]), None, None]
        assert head["acc"][0] == head["task_accuracy"][0][0]
        assert head["confusion"] == head["confusions"][-1] == confusion(run[-1], name).tolist()
        assert [len(recalls) for recalls in head["per_class_over_tasks"]] == [3, 5, 7]
        assert head["per_class_over_tasks"][-1]["class 6"] == head["per_class"]["class 6"]["recall"]
    assert set(TABLE_METRICS) < set(METRICS)


def test_what_is_undefined_is_none() -> None:
    summary = summarise([from_names([0, 0], [0, 1], "ab")])
    head = summary["softmax"]
    assert summary["nearest_mean"] is None
    assert (head["af"], head["af_printed"], head["forgetting_max"]) == (None, None, None)
    assert head["per_class"]["b"] == {"recall": None, "precision": 0, "f1": 0, "images": 0}
    json.dumps(summary, allow_nan=False)


def test_one_task_without_distances_leaves_out_the_nearest_mean_head() -> None:
    with_both = from_names([0, 1], [0, 1], "ab", nearest=[0, 1])
    without = from_names([0, 1, 2], [0, 1, 2], "abc")
    assert summarise([with_both, without])["nearest_mean"] is None


@pytest.mark.parametrize("second", ["a", "bac", "cd"])
def test_tasks_that_lose_a_class_are_refused(second: str) -> None:
    run = [from_names([0, 0], [0, 0], classes) for classes in ("ab", second)]
    with pytest.raises(EndocilError, match=r"expected the classes \('a', 'b'\) and new ones after them"):
        summarise(run)
    with pytest.raises(EndocilError, match="no predictions given"):
        summarise([])


# What the paper's numbers say of its own definitions: Hyper-Kvasir's classes in alphabetical order

IMAGES = [646, 1148, 1009, 1002, 989, 403, 260, 131, 1028, 999, 391, 764, 201, 443, 133, 932]
TEST_IMAGES = [n - 4 * n // 5 for n in IMAGES]
SIZES = [4, 3, 3, 3, 3]
ICARL_30 = [83.85, 75.22, 80.69, 59.20, 62.63, 1.23, 36.54, 100, 87.86, 89, 74.68, 88.89, 2.44, 62.92, 66.67, 98.93]
ENDOCIL_40 = [86.15, 83.04, 94.55, 44.28, 82.83, 23.46, 55.77, 96.3, 95.63, 88, 87.34, 91.5, 24.39, 52.81, 40.74, 97.33]


def last_task(percent: Sequence[float]) -> list[Predictions]:
    correct = [round(share * n / 100) for share, n in zip(percent, TEST_IMAGES, strict=True)]
    return run_of([correct] * 5, TEST_IMAGES, SIZES)


@pytest.mark.parametrize(
    ("percent", "correct", "acc", "balanced"), [(ICARL_30, 1549, 73.66, 66.92), (ENDOCIL_40, 1653, 78.60, 71.51)]
)
def test_the_papers_recalls_are_fractions_of_the_test_images_and_add_up_to_its_accuracy(
    percent: list[float], correct: int, acc: float, balanced: float
) -> None:
    last = last_task(percent)[-1]
    assert len(last.images) == sum(TEST_IMAGES) == 2103
    assert np.trace(confusion(last, "softmax")) == correct
    assert round(accuracy(last, "softmax"), 2) == acc
    assert round(balanced_accuracy(last, "softmax"), 2) == balanced
    recalls = [round(each["recall"], 2) for each in per_class(last, "softmax").values()]
    assert recalls == percent


@pytest.mark.parametrize(
    ("percent", "af", "by_t", "by_t_plus_1"), [(ICARL_30, 23.95, 93.5, 99.5), (ENDOCIL_40, 16.55, 94.8, 98.9)]
)
def test_the_papers_forgetting_is_credible_over_t_and_not_as_printed(
    percent: list[float], af: float, by_t: float, by_t_plus_1: float
) -> None:
    """How accurate the first four tasks must have been when just learnt, under either reading."""
    a = task_accuracy(last_task(percent), "softmax")
    if percent is ICARL_30:
        assert a[-1].round(2).tolist() == [73.92, 43.50, 89.15, 71.79, 85.48]
    for just_learnt, reading in ((by_t, average_forgetting), (by_t_plus_1, af_printed)):
        np.fill_diagonal(a[:4, :4], just_learnt)
        assert reading(a) == pytest.approx(af, abs=0.06)


def test_a_task_of_known_classes_alone_has_no_accuracy_of_its_own_and_is_not_counted_as_forgotten() -> None:
    run = [
        from_names([0, 0, 1, 1], [0, 0, 1, 1], "ab"),  # 100 % of a and b
        from_names([0, 0, 1, 1], [0, 1, 1, 1], "ab"),  # the same classes again: 75 %
        from_names([0, 0, 1, 1, 2], [0, 1, 0, 1, 2], "abc"),  # a and b 50 %, c 100 %
    ]
    assert task_sizes(run) == [2, 0, 1]
    head = summarise(run)["softmax"]
    assert head["task_accuracy"] == [[100, None, None], [75, None, None], [50, None, 100]]
    assert (head["af"], head["af_printed"], head["forgetting_max"]) == (50, 25, 50)
    assert head["acc"] == [100, 75, 60]
