"""Two versions on the same images: figures worked by hand, and as scikit-learn and scipy have them."""

import numpy as np
import pytest
import torch
from present import present
from scipy import stats
from sklearn.metrics import f1_score, recall_score

from endocil.errors import EndocilError
from endocil.metrics.intervals import Change, Resampled, Share
from endocil.metrics.statistics import calibration_measure, errors_by_chance, observed, reliability
from endocil.model.calibration import calibration_error
from endocil.release.compare import Comparison, compare
from endocil.release.versions import VersionPredictions, Versions, align

OLD, NEW = ("a", "b"), ("a", "b", "c")


def value(figure: Share | Change | Resampled | None) -> float:
    assert figure is not None
    return figure.value


def _predictions(
    classes: tuple[str, ...], predicted_names: str, ood: str = "", confidence: float = 0.8
) -> VersionPredictions:
    predicted = np.array([classes.index(name) for name in predicted_names])
    flags = np.array([mark == "!" for mark in ood]) if ood else None
    return VersionPredictions(classes, predicted, np.full(len(predicted_names), confidence), flags)


def _versions(truth: str, old: str, new: str, groups: str = "", **flags: str) -> Versions:
    images = tuple(f"{i}.png" for i in range(len(truth)))
    test = (images, tuple(truth), tuple(groups) if groups else ("",) * len(truth))
    return align(
        *test, _predictions(OLD, old, flags.get("old_flags", "")), _predictions(NEW, new, flags.get("new_flags", ""))
    )


@pytest.fixture(scope="module")
def worked() -> Comparison:
    """Four images of a, four of b, three of c, which only the new version knows, and one of d, which none knows."""
    return compare(
        _versions(
            "aaaa" "bbbb" "ccc" "d",
            "aaab" "bbba" "aab" "a",
            "aaca" "bbab" "ccb" "c",
            old_flags="...." "...." "!!." "!",
            new_flags="...!" "...." "..." "!",
        ),
        resamples=200,
    )  # fmt: skip


def test_sensitivity_and_specificity_are_as_counted_by_hand(worked: Comparison) -> None:
    a, b, _ = worked.classes
    assert [(each.name, each.status, each.images) for each in worked.classes] == [
        ("a", "known", 4),
        ("b", "known", 4),
        ("c", "new", 3),
    ]
    assert (value(a.sensitivity.old), value(a.sensitivity.new), value(a.sensitivity.change)) == (75, 75, 0)
    assert (present(a.sensitivity.change).lost, present(a.sensitivity.change).gained) == (1, 1)
    assert (value(a.specificity.old), value(a.specificity.new)) == (75, 75)  # of the images of b, one is called a
    assert (value(a.specificity_all.old), value(a.specificity_all.new)) == pytest.approx((400 / 7, 600 / 7))
    assert (value(b.specificity.old), value(b.specificity.new), value(b.specificity.change)) == (75, 100, 25)


def test_a_new_class_has_no_past(worked: Comparison) -> None:
    c = worked.classes[2]
    for pair in (c.sensitivity, c.specificity, c.specificity_all):
        assert pair.old is None
        assert pair.change is None
    assert value(c.sensitivity.new) == pytest.approx(200 / 3)
    assert value(c.specificity.new) == 87.5  # one image of a is called c
    assert present(c.specificity_all.new).n == 8


def test_flips_accuracy_and_tests_are_over_the_classes_that_the_old_version_knows(worked: Comparison) -> None:
    assert (worked.positive.right, worked.negative.right, worked.negative.n) == (2, 2, 8)
    assert (value(worked.accuracy.old), value(worked.accuracy.new), value(worked.accuracy.change)) == (75, 75, 0)
    assert worked.accuracy_all.value == pytest.approx(800 / 11)
    assert worked.p_exact == 1.0
    assert worked.p_by_group is None


def test_flags_are_counted_where_they_belong(worked: Comparison) -> None:
    counts = {
        each.where: (present(each.old).right, present(each.new).right, present(each.new).n) for each in worked.flags
    }
    assert counts == {"known": (0, 1, 8), "new": (2, 0, 3), "neither": (1, 1, 1)}
    assert worked.versions.left_out == (("11.png", "d"),)
    bare = compare(_versions("aabb", "aabb", "aabb"), resamples=20)
    assert (bare.flags[0].old, bare.flags[0].new) == (None, None)


def test_figures_of_many_images_equal_sklearn_and_scipy() -> None:
    random = np.random.default_rng(0)
    truth, old, new = (random.choice(list("ab"), 300) for _ in range(3))
    new[random.random(300) < 0.1] = "c"
    found = compare(_versions("".join(truth), "".join(old), "".join(new)), resamples=50)
    for each in found.classes[:2]:
        for pair, label in ((each.sensitivity, each.name), (each.specificity, None)):
            for share, answers in ((pair.old, old), (pair.new, new)):
                is_it, said = truth == each.name, answers == each.name
                expected = recall_score(is_it, said, pos_label=label is not None)
                assert value(share) == pytest.approx(100 * expected)
    for number, answers in ((found.macro_f1.old, old), (found.macro_f1.new, new)):
        expected = f1_score(truth, answers, labels=["a", "b"], average="macro")
        assert value(number) == pytest.approx(100 * expected)
    lost, gained = found.negative.right, found.positive.right
    assert found.p_exact == pytest.approx(stats.binomtest(lost, lost + gained).pvalue)
    low, high = present(found.macro_f1.change).interval()
    assert low < value(found.macro_f1.change) < high


def test_a_class_that_was_dropped_is_always_missed() -> None:
    test = (tuple("1234"), tuple("aabb"), ("",) * 4)
    versions = align(*test, _predictions(("a", "b"), "aabb"), _predictions(("a",), "aaaa"))
    b = compare(versions, resamples=20).classes[1]
    assert b.status == "dropped"
    assert (value(b.sensitivity.new), value(b.sensitivity.change)) == (0, -100)


def test_classes_are_matched_by_name_whatever_their_order() -> None:
    test = (tuple("1234"), tuple("aabb"), ("",) * 4)
    versions = align(*test, _predictions(("a", "b"), "abbb"), _predictions(("c", "b", "a"), "aacb"))
    assert versions.classes == ("a", "b", "c")
    assert versions.old.correct.tolist() == [True, False, True, True]
    assert versions.new.correct.tolist() == [True, True, False, True]


def test_images_of_a_group_are_drawn_together() -> None:
    truth, old = "a" * 40, "a" * 40
    new = ("a" * 4 + "b" * 4) * 5  # whole groups are lost
    by_image = compare(_versions(truth, old, new), resamples=400)
    by_group = compare(_versions(truth, old, new, groups="".join(c * 4 for c in "qwertyuiop")), resamples=400)
    (low, high), (wide_low, wide_high) = (
        present(each.classes[0].sensitivity.change).interval() for each in (by_image, by_group)
    )
    assert wide_low < low - 5
    assert wide_high > high + 5
    assert by_group.p_by_group is not None
    assert by_group.classes[0].groups == 10


def test_test_images_of_which_the_old_version_knows_nothing_are_refused() -> None:
    for truth in ("ccc", "ddd"):
        with pytest.raises(EndocilError, match="none of these is known to the old version, which knows a, b"):
            _versions(truth, "aaa", "ccc")


def test_the_calibration_error_is_that_of_the_model() -> None:
    random = np.random.default_rng(2)
    probabilities = random.dirichlet([1, 1, 1], 500)
    labels = random.integers(0, 3, 500)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    mine = observed(calibration_measure(confidence, right, np.ones(500, dtype=bool)))
    assert mine == pytest.approx(
        100 * calibration_error(torch.from_numpy(probabilities), torch.from_numpy(labels)), rel=1e-4
    )
    bins = reliability(confidence, right)
    assert sum(each.images for each in bins) == 500
    assert mine == pytest.approx(sum(each.images * abs(each.right - each.confidence) for each in bins) / 500, rel=1e-4)


def test_a_calibration_error_by_hand() -> None:
    confidence, right = np.array([0.9, 0.9, 0.5, 1.0]), np.array([True, False, True, True])
    counted = np.array([True, True, True, False])
    assert observed(calibration_measure(confidence, right, counted)) == pytest.approx(100 * (0.8 + 0.5) / 3, rel=1e-6)


def test_confidence_that_is_true_is_not_called_wrong() -> None:
    """Its observed error is far from 0, and still its interval reaches down there."""
    random = np.random.default_rng(3)
    reached = []
    for _ in range(40):
        confidence = random.uniform(0.5, 1, 100)
        labels = ["a" if hit else "b" for hit in random.random(100) < confidence]
        said = VersionPredictions(OLD, np.zeros(100, dtype=np.int64), confidence, None)
        test = (tuple(map(str, range(100))), tuple(labels), ("",) * 100)
        error = present(compare(align(*test, said, said), resamples=100).calibration.new)
        reached.append(error.interval()[0] == 0)
        assert error.value > 2
    assert np.mean(reached) > 0.85
    assert errors_by_chance(np.full(1000, 0.5), 500).mean() == pytest.approx(100 * np.sqrt(0.5 / np.pi / 1000), rel=0.1)
