"""The paper's claims one by one, judged by the runs of the ledger.

The ledger keeps no predictions, so differences are judged over the seeds that both experiments share: mean and 95 %
t interval of the differences. `endocil versus` on run folders judges by test images, too.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scipy import stats

from endocil.methods import method_title
from endocil.metrics.statistics import LEVEL
from endocil.reports.ledger import Entry
from endocil.reports.ledger_tables import Entries
from endocil.reports.tables import LOWER_IS_BETTER, TITLES
from reproduction.paper import Json, Place, component_names, paper

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
METRIC_TITLES = {**TITLES, "balanced_last": "Balanced accuracy after the last task"}
Value = Callable[[Entry], float]


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """t with P(-t < T < t) = level."""
    return float(stats.t.ppf((1 + level) / 2, freedom))


@dataclass(frozen=True)
class Gap:
    """How much one experiment is better than another, over the seeds they share; above 0 it is better."""

    title: str
    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    def half(self, level: float = LEVEL) -> float:
        """Half of the t interval; infinite for one seed."""
        n = len(self.differences)
        if n < 2:
            return math.inf
        return t_quantile(n - 1, level) * statistics.stdev(self.differences) / math.sqrt(n)

    def text(self, level: float = LEVEL) -> str:
        n = len(self.differences)
        spread = "one seed" if n == 1 else f"± {self.half(level):.1f} over {n} seeds"
        return f"{self.title} {round(self.mean, 1) + 0.0:+.1f} ({spread})"


@dataclass(frozen=True)
class Finding:
    """A claim judged by the runs of one place of the ledger."""

    verdict: str
    reason: str
    run: bool = True
    seeds: str = ""  # how many, in words; several numbers where comparisons differ in it


def claims() -> Sequence[Json]:
    stored: Sequence[Json] = paper()["claims"]
    return stored


def finding(claim: Json, place: Place) -> Finding:
    """Holds when every part of the claim is clear over the seeds; does not when a part is clearly otherwise."""
    check = {"leads": _leads, "ahead": _ahead, "behind_some": _behind_some, "components": _components}
    return check[claim["kind"]](claim, place)


def _gap(title: str, one: Entries, other: Entries, value: Value, lower: bool = False) -> Gap | None:
    by_seed = {entry.settings["seed"]: value(entry) for entry in other.results}
    shared = [(value(entry), by_seed[s]) for entry in one.results if (s := entry.settings["seed"]) in by_seed]
    differences = tuple(b - a if lower else a - b for a, b in shared)
    return Gap(title, differences) if differences else None


def _values(claim: Json, place: Place) -> list[tuple[str, Value, bool]]:
    """The numbers of a claim: metrics, or the accuracy after some tasks, counted from 1."""
    if "metrics" in claim:
        return [(METRIC_TITLES[m], _metric(m), m in LOWER_IS_BETTER) for m in claim["metrics"]]
    known = max(len(one.first.metrics["task_sizes"]) for one in place.methods)
    tasks = range(1, known + 1) if claim["tasks"] == "all" else claim["tasks"]
    return [(f"after task {t}", _after(t), False) for t in tasks if t <= known]


def _metric(name: str) -> Value:
    return lambda entry: float(entry.metrics["softmax"][name])


def _after(task: int) -> Value:
    return lambda entry: float(entry.metrics["softmax"]["acc"][task - 1])


def _leads(claim: Json, place: Place) -> Finding:
    own = place.method(claim["method"], claim["buffer"])
    rivals = place.rivals(claim["method"], claim["buffer"])
    if own is None or not rivals:
        return _not_run(claim, own is None)
    missing = _missing(place, claim)
    gaps = _known(
        _gap(f"{title} against {rival.label}", own, rival, value, lower)
        for title, value, lower in _values(claim, place)
        for rival in rivals
    )
    return _all_ahead(gaps, missing)


def _ahead(claim: Json, place: Place) -> Finding:
    one, other = (place.method(claim[key], claim["buffer"]) for key in ("method", "than"))
    if one is None or other is None:
        return _not_run(claim, one is None)
    return _all_ahead(_known(_gap(title, one, other, v, low) for title, v, low in _values(claim, place)))


def _behind_some(claim: Json, place: Place) -> Finding:
    own = place.method(claim["method"], claim["buffer"])
    rivals = place.rivals(claim["method"], claim["buffer"])
    if own is None or not rivals:
        return _not_run(claim, own is None)
    parts = [
        _known(_gap(f"{title} {rival.label} against it", rival, own, value, lower) for rival in rivals)
        for title, value, lower in _values(claim, place)
    ]
    return _one_ahead([part for part in parts if part], len(rivals), _missing(place, claim))


def _one_ahead(parts: Sequence[Sequence[Gap]], rivals: int, missing: Sequence[str]) -> Finding:
    """In each part some gap must be clear. It is chosen from all rivals, so its interval is widened for their number.
    The claim does not hold where, in one part, all rivals were run and every one is clearly below."""
    if not parts:
        return Finding(OPEN, "no seed is shared")
    strict, against = 1 - (1 - LEVEL) / rivals, 1 - (1 - LEVEL) / len(parts)
    best = [max(gaps, key=lambda gap: (gap.mean - gap.half(strict), gap.mean)) for gaps in parts]
    reason = "; ".join(gap.text(strict) for gap in best)
    reason += f" (± widened for the best of {rivals})" if rivals > 1 else ""
    reason += f"; not run: {', '.join(missing)}" if missing else ""
    seeds = _seeds(best)
    if all(gap.mean > gap.half(strict) for gap in best):
        return Finding(HOLDS, reason, seeds=seeds)
    whole = [gaps for gaps in parts if len(gaps) == rivals and not missing]
    failed = any(all(gap.mean < -gap.half(against) for gap in gaps) for gaps in whole)
    return Finding(FAILS if failed else OPEN, reason, seeds=seeds)


def _components(claim: Json, place: Place) -> Finding:
    gaps: list[Gap | None] = []
    for on, off in claim["pairs"]:
        one, other = (place.components(tuple(ticks), claim["buffer"]) for ticks in (on, off))
        if one is None or other is None:
            return Finding(OPEN, f"not run: {component_names(tuple(on if one is None else off))}", run=False)
        pair = f"{component_names(tuple(on))} against {component_names(tuple(off))}"
        gaps += [_gap(f"{title}, {pair}", one, other, v, low) for title, v, low in _values(claim, place)]
    return _all_ahead(_known(gaps))


def _known(gaps: Iterable[Gap | None]) -> list[Gap]:
    return [gap for gap in gaps if gap is not None]


def _not_run(claim: Json, own: bool) -> Finding:
    missing = method_title(claim["method"]) if own else "the methods it is compared with"
    return Finding(OPEN, f"not run: {missing}", run=False)


def _missing(place: Place, claim: Json) -> list[str]:
    """Methods of the paper's table that this place lacks; a lead over the others alone proves nothing."""
    run = {one.label for one in (*place.methods, *place.rivals(claim["method"], claim["buffer"]))}
    needed = [row[1] for row in paper()["results"] if row[2] in (claim["buffer"], None) and row[5] is not None]
    return sorted({method_title(name) for name in needed} - run - {method_title(claim["method"])})


def _all_ahead(gaps: Sequence[Gap], missing: Sequence[str] = ()) -> Finding:
    """One clear gap refutes a claim of many, so its interval is widened for their number (Bonferroni)."""
    if not gaps:
        return Finding(OPEN, "no seed is shared")
    strict = 1 - (1 - LEVEL) / len(gaps)
    clear = [gap for gap in gaps if gap.mean > gap.half()]
    against = [gap for gap in gaps if gap.mean < -gap.half(strict)]
    closest = sorted(gaps, key=lambda gap: gap.mean)
    reason = "; ".join(gap.text() for gap in closest[:3])
    if len(gaps) > 3:
        reason = (
            f"clearly so in {len(clear)} of {len(gaps)} comparisons, clearly not in {len(against)}; "
            f"the smallest differences: {reason}"
        )
    if against:
        return Finding(FAILS, reason, seeds=_seeds(gaps))
    if missing:
        return Finding(OPEN, f"{reason}; not run: {', '.join(missing)}", seeds=_seeds(gaps))
    return Finding(HOLDS if len(clear) == len(gaps) else OPEN, reason, seeds=_seeds(gaps))


def _seeds(gaps: Sequence[Gap]) -> str:
    numbers = sorted({len(gap.differences) for gap in gaps})
    return f"{' or '.join(map(str, numbers))} {'seed' if numbers == [1] else 'seeds'}"
