"""Who is ahead, and whether by more than noise: every method that learns task by task against the best of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from endocil.errors import EndocilError
from endocil.metrics import TABLE_METRICS
from endocil.predictions import Head
from endocil.report.answers import has_predictions
from endocil.report.averages import Runs
from endocil.report.comparing import Examined, Versus, examine, versus
from endocil.report.runs import RunRecord
from endocil.report.tables import spread


@dataclass(frozen=True, eq=False)
class Contest:
    """The others minus the best, in every metric of the tables; p is adjusted for all these comparisons."""

    examined: Examined
    best: Runs
    found: tuple[Versus, ...]

    def of(self, metric: str) -> list[Versus]:
        """The comparisons in one metric, the nearest to the best first."""
        return sorted((one for one in self.found if one.metric == metric), key=lambda one: -one.difference)


def examined_or_none(runs: Sequence[RunRecord], head: Head = "softmax") -> Examined | None:
    """None where predictions are not at hand, or are of different images, which a page may show but nobody can pair."""
    if not all(map(has_predictions, runs)):
        return None
    try:
        return examine(runs, head)
    except EndocilError:
        return None


def contest(examined: Examined | None) -> Contest | None:
    """None where nothing can be compared. A method trained on everything at once takes no part."""
    if examined is None:
        return None
    those = [i for i, group in enumerate(examined.groups) if group.incremental]
    if len(those) < 2:
        return None
    groups = tuple(examined.groups[i] for i in those)
    learners = Examined(groups, tuple(examined.answers[i] for i in those), examined.head)
    best = max(groups, key=lambda group: _accuracy(group, examined.head))
    return Contest(learners, best, tuple(versus(learners, best, TABLE_METRICS)))


def _accuracy(group: Runs, head: Head) -> float:
    known = spread(run.metrics[head]["acc_last"] for run in group.results)
    return known.mean if known else float("-inf")
