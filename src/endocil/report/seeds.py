"""Which methods the seeds tell apart: a t test of the paired differences, for every two methods.

Another seed trains another network, and few seeds know little of how much that changes. The verdicts of a contest
(contest.py) draw test images as well as seeds; here the test images are held fixed and the seeds alone decide.
"""

import itertools
from collections.abc import Sequence

from endocil.report.averages import HEAD, Runs, mean
from endocil.report.comparing import SIGNIFICANT
from endocil.report.grouping import groups
from endocil.report.runs import RunRecord
from endocil.report.wording import either, listed
from endocil.statistics import holm, paired_t_p

Pair = tuple[Runs, Runs]  # the lower mean first


def told_by_seeds(runs: Sequence[RunRecord]) -> str:
    """One line: in accuracy after the last task, which methods can be told apart and which cannot."""
    pairs = list(itertools.combinations(sorted(groups(runs), key=_accuracy), 2))
    differences = [_differences(pair) for pair in pairs]
    adjusted = holm([paired_t_p(each) for each in differences])
    apart = [pair for pair, p in zip(pairs, adjusted, strict=True) if p < SIGNIFICANT]
    alike = [pair for pair, p in zip(pairs, adjusted, strict=True) if p >= SIGNIFICANT]
    seeds = either(sorted(map(len, differences)))
    plural = "seed" if seeds == "1" else "seeds"
    test = f"paired t test, p < {SIGNIFICANT} after Holm's correction for {len(pairs)} pairs"
    return (
        f"Told apart by {seeds} {plural} in Acc_last ({test}): {_named(apart, 'below')}. "
        f"Not told apart: {_named(alike, 'from')}."
    )


def _accuracy(group: Runs) -> float:
    return mean(run.metrics[HEAD]["acc_last"] for run in group.results) or 0.0


def _differences(pair: Pair) -> list[float]:
    """Of the seeds that both have."""
    one, other = ({run.settings["seed"]: run.metrics[HEAD]["acc_last"] for run in g.results} for g in pair)
    return [other[seed] - one[seed] for seed in sorted(one.keys() & other.keys())]


def _named(pairs: Sequence[Pair], word: str) -> str:
    """Each method once, with all that are told beside it."""
    by_first = itertools.groupby(pairs, key=lambda pair: pair[0].label)
    told = [f"{first} {word} {listed([other.label for _, other in those])}" for first, those in by_first]
    return "; ".join(told) or "none"
