"""Intervals and tests agree with scipy and with cases worked by hand, and cover as they should."""

import math
import time

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from endocil.metrics.statistics import (
    Resampling,
    accuracy_measure,
    bootstrap_p,
    combined,
    critical_difference,
    friedman,
    holm,
    macro_f1_measure,
    mcnemar_p,
    mean_over_seeds,
    observed,
    paired_t_p,
    percentile_interval,
    ranks,
)


def _all(n: int) -> np.ndarray:
    return np.ones(n, dtype=bool)


def test_measures_of_the_images_as_they_are_equal_sklearn() -> None:
    random = np.random.default_rng(0)
    labels, predicted = random.integers(0, 5, 200), random.integers(0, 5, 200)
    counted = labels < 4
    accuracy = accuracy_measure(labels == predicted, counted)
    f1 = macro_f1_measure(labels, predicted, 5, _all(200))
    assert observed(accuracy) == pytest.approx(100 * np.mean((labels == predicted)[counted]))
    assert observed(f1) == pytest.approx(100 * f1_score(labels, predicted, average="macro"))
    both = combined([(0.5, accuracy), (-2.0, f1)])
    assert observed(both) == pytest.approx(0.5 * observed(accuracy) - 2 * observed(f1))


def test_a_resample_is_the_measure_of_the_images_that_were_drawn() -> None:
    random = np.random.default_rng(1)
    labels, predicted = random.integers(0, 3, 40), random.integers(0, 3, 40)
    units = np.repeat(np.arange(10), 4)
    resampling = Resampling(units, resamples=20, seed=3)
    values = resampling.values([macro_f1_measure(labels, predicted, 3, _all(40))])[:, 0]
    counts = np.concatenate(list(resampling._draws(10))).astype(int)
    assert counts.sum(axis=1).tolist() == [10] * 20
    for count, value in zip(counts, values, strict=True):
        rows = np.repeat(np.arange(40), count[units])
        expected = f1_score(labels[rows], predicted[rows], labels=[0, 1, 2], average="macro", zero_division=0)
        assert value == pytest.approx(100 * expected)


def test_strata_keep_their_numbers_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    strata = np.array([0] * 7 + [1] * 3)
    resampling = Resampling(np.arange(10), strata, resamples=50)
    [drawn] = list(resampling._draws(10))
    assert set(drawn[:, :7].sum(axis=1)) == {7.0}
    assert set(drawn[:, 7:].sum(axis=1)) == {3.0}
    plain = Resampling(np.arange(10), resamples=50)
    [whole] = list(plain._draws(10))
    monkeypatch.setattr("endocil.metrics.statistics.BLOCK", 70)
    assert np.array_equal(np.concatenate(list(plain._draws(10))), whole)


def test_the_interval_of_an_accuracy_is_near_the_binomial_one() -> None:
    right = np.arange(400) < 300
    values = Resampling(np.arange(400), resamples=5000).values([accuracy_measure(right, _all(400))])[:, 0]
    low, high = percentile_interval(values)
    error = 100 * np.sqrt(0.75 * 0.25 / 400)
    assert (low, high) == pytest.approx((75 - 1.96 * error, 75 + 1.96 * error), abs=0.4)


def test_two_thousand_resamples_of_a_thousand_images_are_quick() -> None:
    labels = np.arange(1000) % 14
    measures = [accuracy_measure(labels > 3, _all(1000)), macro_f1_measure(labels, labels, 14, _all(1000))]
    start = time.perf_counter()
    Resampling(np.arange(1000)).values(measures)
    assert time.perf_counter() - start < 5  # a tenth of a second; a busy machine is forgiven


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    covered = []
    for simulation in range(300):
        right = random.random(200) < 0.8
        resampling = Resampling(np.arange(200), resamples=400, seed=simulation)
        low, high = percentile_interval(resampling.values([accuracy_measure(right, _all(200))])[:, 0])
        covered.append(low <= 80 <= high)
    assert 0.92 <= np.mean(covered) <= 0.98


def test_of_images_in_groups_only_the_interval_by_group_covers() -> None:
    random = np.random.default_rng(6)
    units = np.repeat(np.arange(60), 8)
    by_image, by_group = list[bool](), list[bool]()
    for simulation in range(300):
        ease = random.beta(1.5, 0.5, 60)  # of a group's images; 75 % on average
        measure = [accuracy_measure(random.random(480) < ease[units], _all(480))]
        for drawn, covered in ((np.arange(480), by_image), (units, by_group)):
            values = Resampling(drawn, resamples=400, seed=simulation).values(measure)[:, 0]
            low, high = percentile_interval(values)
            covered.append(low <= 75 <= high)
    assert np.mean(by_image) < 0.8
    assert 0.91 <= np.mean(by_group) <= 0.98


def test_a_paired_difference_without_effect_is_rarely_called_one() -> None:
    random = np.random.default_rng(7)
    called = []
    for simulation in range(300):
        hard = random.random(150)
        one, other = (accuracy_measure(random.random(150) < 0.4 + 0.5 * hard, _all(150)) for _ in range(2))
        values = Resampling(np.arange(150), resamples=400, seed=simulation).values([one, other])
        called.append(bootstrap_p(values[:, 0] - values[:, 1]) < 0.05)
    assert 0.02 <= np.mean(called) <= 0.08


def test_drawn_seeds_vary_as_the_mean_of_seeds_does() -> None:
    values = np.tile([1.0, 2.0, 6.0], (20_000, 1))
    drawn = mean_over_seeds(values)
    assert drawn.mean() == pytest.approx(3.0, abs=0.05)
    assert drawn.std() == pytest.approx(np.std([1, 2, 6], ddof=1) / np.sqrt(3), rel=0.03)
    assert np.array_equal(mean_over_seeds(values[:, :1]), values[:, 0])


def _covers(seed_spread: float, simulation: int, random: np.random.Generator) -> bool:
    """A paired difference of 5 points, 300 images, three seeds."""
    hard = 0.3 + 0.5 * random.random(300)
    chances = [hard + gain + random.normal(0, seed_spread) for gain in (0.05,) * 3 + (0.0,) * 3]
    measures = [accuracy_measure(random.random(300) < chance, _all(300)) for chance in chances]
    values = Resampling(np.arange(300), resamples=400, seed=simulation).values(measures)
    low, high = percentile_interval(mean_over_seeds(values[:, :3] - values[:, 3:]))
    return low <= 5 <= high


def test_images_and_seeds_drawn_together_cover_unless_three_seeds_vary_far_more_than_images() -> None:
    random = np.random.default_rng(8)
    alike = [_covers(0.03, simulation, random) for simulation in range(200)]
    wild = [_covers(0.15, simulation, random) for simulation in range(200)]
    assert np.mean(alike) >= 0.93
    assert np.mean(wild) < 0.93  # docs/compare.md warns of it


def test_bootstrap_p_counts_the_rarer_side() -> None:
    assert bootstrap_p(np.array([1.0] * 98 + [-1.0])) == pytest.approx(2 * 2 / 100)
    assert bootstrap_p(np.zeros(10)) == 1.0


@pytest.mark.parametrize(("only", "other_only"), [(0, 0), (5, 0), (3, 9), (10, 10), (700, 500)])
def test_mcnemar_is_the_binomial_test_of_the_images_only_one_gets_right(only: int, other_only: int) -> None:
    right = np.repeat([True, False, True, False], [only, other_only, 20, 10])
    other = np.repeat([False, True, True, False], [only, other_only, 20, 10])
    n, fewer = only + other_only, min(only, other_only)
    expected = min(1.0, 2 * sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n)
    assert mcnemar_p(right, other) == pytest.approx(expected)


def test_mcnemar_of_thousands_of_images_takes_no_minutes() -> None:
    only = np.arange(20_000) < 9_900  # all of them discordant
    began = time.process_time()
    found = mcnemar_p(only, ~only)
    assert time.process_time() - began < 5  # a fraction of a second; with each coefficient anew, minutes
    assert found == pytest.approx(stats.binomtest(9_900, 20_000).pvalue)


def test_holm_by_hand() -> None:
    # sorted 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.5 x 1; never below the one before
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_ranks_and_friedman_equal_scipy_with_ties() -> None:
    scores = np.random.default_rng(2).integers(0, 6, (5, 4)).astype(float)
    assert np.array_equal(ranks(scores), stats.rankdata(-scores, axis=1))
    statistic, p = friedman(scores)
    expected = stats.friedmanchisquare(*scores.T)
    assert (statistic, p) == pytest.approx((expected.statistic, expected.pvalue))
    assert np.isnan(friedman(np.ones((3, 4)))).all()


def test_the_critical_difference_is_that_of_printed_tables() -> None:
    """q of Nemenyi's test at 0.05 (Demšar, JMLR 7, 2006, Table 5), and his example of 4 methods on 14 data sets."""
    for n_methods, q in ((2, 1.960), (4, 2.569), (10, 3.164)):
        scale = (n_methods * (n_methods + 1) / 6) ** 0.5
        assert critical_difference(n_methods, 1) / scale == pytest.approx(q, abs=1e-3)
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3)


def test_friedmans_tail_is_that_of_printed_tables() -> None:
    # Two methods, the first better on each of four data sets: chi-squared 4 with 1 degree of freedom.
    assert friedman(np.array([[2.0, 1.0]] * 4)) == pytest.approx((4.0, 0.0455), abs=5e-5)


def test_the_paired_t_test_equals_scipy_and_few_differences_prove_nothing() -> None:
    for differences in ([3.7, 5.7, 5.3], [-1.0, 2.0], [0.4, -0.3, 0.1, 0.6, -2.0]):
        expected = stats.ttest_1samp(differences, 0.0).pvalue
        assert paired_t_p(differences) == pytest.approx(expected)
    assert paired_t_p([]) == paired_t_p([40.0]) == paired_t_p([0.0, 0.0, 0.0]) == 1.0
    assert paired_t_p([2.0, 2.0, 2.0]) == 0.0
