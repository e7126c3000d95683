"""Intervals of shares and changes: as scipy and the definition have them, and honest where images are few."""

import math
from collections.abc import Hashable

import numpy as np
import pytest
from scipy import optimize, stats

from endocil.metrics.intervals import Change, Distance, Share, effective_number, tango, wilson
from endocil.metrics.statistics import percentile_interval
from endocil.release.compare import ResampledMeasures
from endocil.release.versions import VersionPredictions, align

NOTHING = np.full(3, np.nan)  # resamples that tell nothing


@pytest.mark.parametrize(("right", "n", "level"), [(0, 10, 0.95), (10, 10, 0.95), (3, 40, 0.9), (77, 90, 0.99)])
def test_the_interval_of_a_share_is_wilsons(right: int, n: int, level: float) -> None:
    expected = stats.binomtest(right, n).proportion_ci(level, method="wilson")
    assert wilson(right / n, n, level) == pytest.approx((expected.low, expected.high), abs=1e-12)


def _score(gained: int, lost: int, n: int, difference: float) -> float:
    """By its definition: the likeliest shares with this difference are looked for, not solved for."""

    def unlikely(q: float) -> float:
        p = q + difference  # gained, lost, the rest
        return -float(stats.multinomial.logpmf([gained, lost, n - gained - lost], n, [p, q, max(0.0, 1 - p - q)]))

    low, high = max(0.0, -difference) + 1e-9, (1 - difference) / 2 - 1e-9
    q = optimize.minimize_scalar(unlikely, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x
    return (gained - lost - n * difference) / math.sqrt(n * (2 * q + difference * (1 - difference)))


@pytest.mark.parametrize(("gained", "lost", "n"), [(2, 12, 50), (5, 5, 200), (0, 1, 30), (9, 3, 25), (1, 20, 40)])
def test_at_the_ends_of_the_interval_of_a_change_the_score_test_is_at_its_limit(gained: int, lost: int, n: int) -> None:
    low, high = tango(gained / n, lost / n, n)
    assert low < (gained - lost) / n < high
    assert _score(gained, lost, n, low) == pytest.approx(1.96, abs=2e-3)
    assert _score(gained, lost, n, high) == pytest.approx(-1.96, abs=2e-3)


@pytest.mark.parametrize("n", [1, 10, 500])
def test_where_nothing_changed_the_interval_is_as_wide_as_few_images_make_it(n: int) -> None:
    z2 = stats.norm.ppf(0.975) ** 2
    assert tango(0.0, 0.0, n) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-9)
    unchanged = Change(0, 0, n, float(n), np.zeros(100))  # the bootstrap sees no chance of a loss at all
    assert unchanged.interval() == pytest.approx((-100 * z2 / (n + z2), 100 * z2 / (n + z2)))


def test_gains_and_losses_are_mirrored_and_ends_stay_inside() -> None:
    assert tango(0.3, 0.1, 20) == pytest.approx(tuple(-end for end in reversed(tango(0.1, 0.3, 20))))
    assert tango(1.0, 0.0, 5)[1] == 1.0
    assert tango(0.0, 1.0, 5)[0] == -1.0


def test_an_interval_reaches_as_far_as_the_farther_of_bootstrap_and_score() -> None:
    low, high = (100 * end for end in wilson(0.5, 10))
    assert Share(5, 10, 10.0, NOTHING).interval() == pytest.approx((low, high))
    assert Share(5, 10, 10.0, np.linspace(0, 100, 1001)).interval() == pytest.approx((2.5, 97.5))
    assert Share(0, 0, 0.0, NOTHING).interval() == (0.0, 100.0)
    assert Change(0, 0, 0, 0.0, NOTHING).interval() == (-100.0, 100.0)


def test_images_of_groups_count_for_fewer() -> None:
    counted = np.ones(12, dtype=bool)
    assert effective_number(np.arange(12), counted) == 12
    assert effective_number(np.repeat(np.arange(4), 3), counted) == 4
    assert effective_number(np.array([0] * 9 + [1, 2, 3]), counted) == pytest.approx(144 / 84)
    assert effective_number(np.arange(12), ~counted) == 0


def test_the_images_needed_are_enough_and_one_less_is_not() -> None:
    change = Change(2, 2, 50, 50.0, NOTHING)
    needed = change.needed(5.0)
    assert needed is not None
    assert -100 * tango(0.04, 0.04, needed)[0] <= 5.0 < -100 * tango(0.04, 0.04, needed - 1)[0]
    assert Change(2, 2, 50, 25.0, NOTHING).needed(5.0) in (2 * needed - 1, 2 * needed)  # two images in each group
    assert Change(10, 2, 50, 50.0, NOTHING).needed(5.0) is None  # more than 5 points are lost: none would show it
    assert Change(0, 0, 50, 50.0, NOTHING).needed(5.0) == 73
    share = Share(45, 50, 50.0, NOTHING)
    enough = share.needed(80.0)
    assert enough is not None
    assert 100 * wilson(0.9, enough)[0] >= 80 > 100 * wilson(0.9, enough - 1)[0]
    assert Share(2, 50, 50.0, NOTHING).needed(10.0) is not None
    assert share.needed(90.0) is None


def test_a_distance_that_chance_could_have_made_may_be_nought() -> None:
    drawn = np.linspace(6, 10, 101)
    far = Distance(7.0, 100, drawn, np.linspace(0, 5, 101))
    near = Distance(7.0, 100, drawn, np.linspace(0, 9, 101))
    assert far.interval() == pytest.approx((14 - 9.9, 14 - 6.1))
    assert near.interval() == pytest.approx((0.0, 14 - 6.1))


def _change(lost: np.ndarray, gained: np.ndarray, groups: tuple[str, ...], seed: int) -> Change:
    """Of one class, from images that are lost or gained and others that both get right."""
    n = len(lost)
    test = (tuple(map(str, range(n))), ("a",) * n, groups)
    sure = np.full(n, 0.9)
    old = VersionPredictions(("a", "b"), gained.astype(np.int64), sure, None)
    new = VersionPredictions(("a", "b"), lost.astype(np.int64), sure, None)
    versions = align(*test, old, new)
    both = {"old": versions.old, "new": versions.new}
    shares: dict[Hashable, tuple[np.ndarray, np.ndarray]] = {
        ("accuracy", name): (version.correct, versions.every) for name, version in both.items()
    }
    pair = ResampledMeasures(versions, "f1", 200, shares).share_pair("accuracy")
    assert pair.change is not None
    return pair.change


@pytest.mark.parametrize(("n", "limit", "gains"), [(40, 10.0, 0.0), (120, 10.0, 0.05), (300, 5.0, 0.02)])
def test_a_loss_at_the_limit_is_rarely_shown_to_be_less_or_to_be_more(n: int, limit: float, gains: float) -> None:
    """The two errors of a rule, each 2.5 % by its interval of 95 %; the bootstrap alone errs more often."""
    random = np.random.default_rng(n)
    harmless, harmful, by_bootstrap = [], [], []
    for simulation in range(300):
        drawn = random.random(n)
        lost, gained = drawn < limit / 100 + gains, drawn > 1 - gains
        change = _change(lost, gained, ("",) * n, simulation)
        low, high = change.interval()
        harmless.append(-low <= limit)
        harmful.append(-high > limit)
        by_bootstrap.append(-percentile_interval(change.drawn)[0] <= limit)
    assert 0.01 < np.mean(harmless) < 0.045
    assert np.mean(harmful) < 0.045
    assert np.mean(by_bootstrap) > np.mean(harmless)


@pytest.mark.parametrize(
    ("n", "limit", "gains"), [(40, 10, 0.0), (75, 5, 0.0), (100, 5, 0.01), (120, 10, 0.05), (300, 5, 0.02)]
)
def test_over_all_outcomes_the_score_interval_errs_about_as_often_as_it_says(n: int, limit: int, gains: float) -> None:
    """Each outcome with its probability, where the true loss is the limit: no chance of a lucky seed."""
    truth = [limit / 100 + gains, gains, 1 - limit / 100 - 2 * gains]
    harmless = harmful = 0.0
    for gained in range(stats.binom.ppf(1 - 1e-5, n, gains).astype(int) + 1):
        for lost in range(stats.binom.ppf(1 - 1e-5, n, truth[0]).astype(int) + 1):
            low, high = tango(gained / n, lost / n, n)
            chance = stats.multinomial.pmf([lost, gained, n - lost - gained], n, truth)
            harmless += chance * (-100 * low <= limit)
            harmful += chance * (-100 * high > limit)
    assert 0.01 < harmless < 0.03
    assert 0.01 < harmful < 0.04


def test_groups_that_are_lost_whole_do_not_show_more_than_they_are() -> None:
    random = np.random.default_rng(0)
    groups = tuple(f"patient {i // 8}" for i in range(320))
    by_group, by_image = [], []
    for simulation in range(150):
        lost = np.repeat(random.random(40) < 0.1, 8)
        nobody = np.zeros(320, dtype=bool)
        by_group.append(-_change(lost, nobody, groups, simulation).interval()[0] <= 10)
        by_image.append(-_change(lost, nobody, ("",) * 320, simulation).interval()[0] <= 10)
    assert np.mean(by_group) < 0.045
    assert np.mean(by_image) > 0.1
