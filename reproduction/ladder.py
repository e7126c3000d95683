"""Does the order of the methods move towards the paper's as the scale grows, and what do more exemplars change?

Only runs split by image, of the paper's methods with their default options, are compared; never across two scales.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
from scipy import stats

from endocil.io.text_tables import Cell, Column, Table, listed, spread
from endocil.methods import BASELINE, OWN_METHOD, method_title
from endocil.metrics.statistics import LEVEL
from endocil.reports.ledger_tables import SCRATCH, STEM, Entries, shared_budget, training_kind
from endocil.reports.side_by_side import differences, mean_of, significant
from endocil.reports.tables import METHOD, SEEDS, TITLES
from endocil.runs.experiments import groups, split_description, split_title
from reproduction.claims import Gap
from reproduction.paper import Place, main_rows, paper

BUFFER = 30  # exemplars per class of the paper's first comparison
FEWEST = 3  # methods whose order is compared
MOST_EXACT = 7  # methods: of more, not every order is tried
MARK = "≈"
OWN, BASE = method_title(OWN_METHOD), method_title(BASELINE)
PAPER = "The paper"
METRICS = ("acc_last", "acc_avg")  # of the table of buffers
NOTE = (
    "Methods with exemplars; Acc_last in percent, mean over the seeds. "
    f"{MARK} stands between neighbours whose difference is not significant "
    "(paired t test over the seeds that both have; one seed shows nothing). The rank correlation is Spearman's, of a "
    "row's means with the paper's numbers; p is the probability of one as far from 0 by chance. It takes the means as "
    "exact, and the paper's order is that of single runs.\n"
)


@dataclass(frozen=True)
class Rung:
    """The paper's methods with a memory on one data set at one scale, by title. Those without one end far below the
    others everywhere, so that with them any two orders would be alike."""

    place: Place
    methods: Mapping[str, Entries]

    @property
    def kind(self) -> str:
        return training_kind(self.place.first.settings)

    def only(self, titles: Sequence[str]) -> "Rung":
        return Rung(self.place, {title: one for title, one in self.methods.items() if title in titles})

    def order(self) -> str:
        """Highest first: "FOSTER 53.9 ≈ EndoCIL 51.7 > iCaRL 47.0"."""
        ranked = sorted(self.methods, key=lambda title: -mean_of(self.methods[title]))
        text = ""
        for title, before in zip(ranked, [None, *ranked], strict=False):
            if before is not None:
                gaps = differences(self.methods[before], self.methods[title])
                text += " > " if len(gaps) > 1 and significant(gaps) else f" {MARK} "
            text += f"{title} {mean_of(self.methods[title]):.1f}"
        return text

    def seeds(self) -> str:
        numbers = sorted({len(one.seeds) for one in self.methods.values()})
        return " or ".join(map(str, numbers))

    def gap(self) -> Gap | None:
        """The project's method minus the baseline."""
        own, base = self.methods.get(OWN), self.methods.get(BASE)
        shared = differences(own, base) if own and base else []
        return Gap("", tuple(shared)) if shared else None

    def correlation(self, theirs: Mapping[str, float]) -> float | None:
        """With the paper's order, over the methods that both have."""
        titles = [title for title in self.methods if title in theirs]
        if len(titles) < FEWEST:
            return None
        rho = stats.spearmanr([mean_of(self.methods[title]) for title in titles], [theirs[title] for title in titles])
        return None if math.isnan(rho.statistic) else float(rho.statistic)


def ladder_text(places: Sequence[Place]) -> str:
    """A table for each data set with a row for each scale, and in words what happens to the order from scratch."""
    parts = []
    for title, rungs in _rungs(places).items():
        theirs = _paper_scores(_papers_data(rungs[0].place), BUFFER)
        shared = _shared(rungs)
        columns = (
            Column("kind", "Network"),
            Column("scale", "Scale"),
            SEEDS,
            Column("order", "Order by Acc_last"),
            Column("gap", f"{OWN} minus {BASE}", True),
            Column("rho", "Rank correlation with the paper", True),
            Column("all", "The same over all methods with exemplars", True),
        )
        rows = [_row(rung, shared, theirs) for rung in rungs]
        rows.append(_papers_row(rungs[0].place, {name: value for name, value in theirs.items() if name in shared}))
        told = _movement([rung.only(shared) for rung in rungs if rung.kind == SCRATCH], theirs)
        parts.append(f"**{title}**, {BUFFER} exemplars per class\n\n{told}{Table('', columns, tuple(rows)).markdown()}")
    return "\n".join([*parts, NOTE]) if parts else f"No data set has {FEWEST} of the paper's methods.\n"


def _rungs(places: Sequence[Place]) -> dict[str, list[Rung]]:
    """By data set: the scales at which methods were run, those from scratch first, small ones first."""
    found: dict[str, list[Rung]] = {}
    for place in places:
        if _is_step(place):
            titles = {method_title(row.method): row.method for row in main_rows() if row.buffer == BUFFER}
            own = {title: one for title, name in titles.items() if (one := place.method(name, BUFFER))}
            if len(own) > 1:
                found.setdefault(split_title(place.first.settings), []).append(Rung(place, own))
    widest = {title: max(len(rung.methods) for rung in rungs) for title, rungs in found.items()}
    return {title: sorted(rungs, key=_size) for title, rungs in found.items() if widest[title] >= FEWEST}


def _is_step(place: Place) -> bool:
    """Of the paper's data, split by image. From scratch, another stem or rate of later tasks is a variant, no scale."""
    settings = place.first.settings
    usual = settings.get("network", {}).get("stem", STEM) == STEM
    usual = usual and settings.get("train", {}).get("later_factor", 1.0) == 1.0
    by_image = split_description(settings) == "by image"
    return by_image and _papers_data(place) is not None and (usual or training_kind(settings) != SCRATCH)


def _size(rung: Rung) -> tuple[Any, ...]:
    settings = rung.place.first.settings
    network, epochs = settings.get("network", {}), settings.get("train", {}).get("epochs") or 0
    return rung.kind != SCRATCH, network.get("width") or 0, settings["data"].get("size") or 0, epochs, rung.place.name


def _shared(rungs: Sequence[Rung]) -> list[str]:
    """The methods whose order can be followed: those of every scale on which enough of them were run."""
    sets = [set(rung.methods) for rung in rungs if len(rung.methods) >= FEWEST]
    common = set.intersection(*sets)
    return sorted(common if len(common) >= FEWEST else set.union(*sets))


def _row(rung: Rung, shared: Sequence[str], theirs: Mapping[str, float]) -> tuple[Cell, ...]:
    own = rung.only(shared)
    gap, n = own.gap(), len(rung.methods)
    whole = f"{_told(rung.correlation(theirs), n)}, {n} methods" if n > len(own.methods) else None
    return (
        rung.kind,
        shared_budget(rung.place.first.settings),
        own.seeds(),
        own.order(),
        gap.text().strip() if gap else None,
        _told(own.correlation(theirs), len(own.methods)),
        whole,
    )


def _papers_row(place: Place, theirs: Mapping[str, float]) -> tuple[Cell, ...]:
    order = ", ".join(f"{title} {theirs[title]:.2f}" for title in sorted(theirs, key=lambda title: -theirs[title]))
    gap = f"{theirs[OWN] - theirs[BASE]:+.1f}" if {OWN, BASE} <= theirs.keys() else None
    name = paper()["data"][_papers_data(place)]["name"]
    return SCRATCH, f"{PAPER}, {name}: 256 px, width 64, 100 epochs per task", "1", order, gap, None, None


def _told(rho: float | None, n: int) -> str | None:
    return None if rho is None else f"{rho + 0.0:.2f} (p = {chance(rho, n):.2g})"


def chance(rho: float, n: int) -> float:
    """How often a random order of n methods has a rank correlation at least as far from 0."""
    if n <= MOST_EXACT:
        return float(np.mean(np.abs(_correlations(n)) >= abs(rho) - 1e-9))
    if abs(rho) >= 1:
        return 0.0
    t = abs(rho) * math.sqrt((n - 2) / (1 - rho**2))
    return float(2 * stats.t.sf(t, n - 2))


@cache
def _correlations(n: int) -> np.ndarray:
    """Of every order of n methods with one of them."""
    orders = np.array(list(permutations(range(n))), dtype=np.float64)  # (n!, n)
    return np.asarray(1 - 6 * ((orders - np.arange(n)) ** 2).sum(axis=1) / (n * (n**2 - 1)))


def _movement(rungs: Sequence[Rung], theirs: Mapping[str, float]) -> str:
    """What happens from the smallest to the largest scale that has enough methods; empty where there are not two."""
    known = [(rung, rho) for rung in rungs if (rho := rung.correlation(theirs)) is not None]
    if len(known) < 2:
        return ""
    (_, before), (last, after) = known[0], known[-1]
    n, moved = len(last.methods), after - before
    way = (
        "moves towards the paper's"
        if moved > 0
        else "moves away from the paper's"
        if moved < 0
        else "comes no nearer to the paper's"
    )
    scales = "; ".join(f"{rho + 0.0:.2f} at {shared_budget(rung.place.first.settings)}" for rung, rho in known)
    if n > MOST_EXACT:
        beyond = ""
    elif chance(1.0, n) >= 1 - LEVEL:
        beyond = f", but with {n} methods none can be told from chance"
    else:
        least = min(abs(r) for r in _correlations(n) if chance(r, n) < 1 - LEVEL)
        beyond = f", but with {n} methods only one of {least:.2f} or more can be told from chance"
    order = f"the order of {listed(sorted(last.methods, key=str.lower))} {way}"
    return f"From scratch, as the scale grows, {order} (rank correlation {scales}){beyond}.\n\n"


def _papers_data(place: Place) -> str | None:
    """The paper's data set, also of a part of it."""
    return place.data if place.data in paper()["data"] else place.part_of


def _paper_scores(data: str | None, buffer: int, metric: str = "acc_last") -> dict[str, float]:
    """Of the paper's methods with a memory, by title."""
    rows = [row for row in main_rows() if row.data == data and row.buffer == buffer]
    return {method_title(row.method): value for row in rows if (value := row.values[metric]) is not None}


def buffers_text(places: Sequence[Place]) -> str:
    """What more exemplars change: a row for each method that was run with several numbers of them, over the seeds
    that all of its experiments share, with the paper's numbers beside."""
    parts = []
    for place in places:
        sizes = _sizes(place)
        if len(sizes) > 1 and split_description(place.first.settings) == "by image":
            tables = [f"{TITLES[metric]}:\n\n{_buffers(place, sizes, metric)}" for metric in METRICS]
            parts.append(f"**{place.name}**\n\n{chr(10).join(tables)}")
    if not parts:
        return "No method was run with two numbers of exemplars.\n"
    return "\n".join([*parts, "Gains are paired over the seeds; ± is half of the 95 % t interval.\n"])


def _sizes(place: Place) -> list[int]:
    """Exemplars per class with which a method of the place was run that was also run with another number."""
    numbers = {size for own in _by_buffer(place).values() if len(own) > 1 for size in own}
    return sorted(numbers)


def _by_buffer(place: Place) -> dict[str, dict[int, Entries]]:
    """By title and exemplars per class."""
    found: dict[str, dict[int, Entries]] = {}
    for one in place.methods:
        size = one.first.settings["memory"].get("per_class")
        if one.first.exemplars and size:
            found.setdefault(one.label, {})[size] = one
    return found


def _buffers(place: Place, sizes: Sequence[int], metric: str) -> str:
    data = _papers_data(place)
    theirs = {size: _paper_scores(data, size, metric) for size in sizes}
    known = [size for size in sizes if any(row.data == data and row.buffer == size for row in main_rows())]
    columns = [METHOD, SEEDS, *(Column(f"ours {size}", f"{size} per class", True) for size in sizes)]
    columns += [Column("gain", f"Gain, {sizes[0]} to {sizes[-1]}", True)]
    columns += [Column(f"paper {size}", f"{PAPER}: {size}", True) for size in known]
    rows = list[tuple[Cell, ...]]()
    several = {title: own for title, own in _by_buffer(place).items() if len(own) > 1}
    for title, own in sorted(several.items(), key=lambda item: item[0].lower()):
        seeds = set.intersection(*(set(one.seeds) for one in own.values()))
        alike = {size: _with_seeds(one, seeds) for size, one in own.items()}
        cells = [spread(e.metrics["softmax"][metric] for e in alike[s].results) if s in alike else None for s in sizes]
        first, last = alike.get(sizes[0]), alike.get(sizes[-1])
        gaps = differences(last, first, metric) if first and last else []
        papers = [f"{theirs[size][title]:.2f}" if title in theirs[size] else None for size in known]
        rows.append((title, len(seeds), *cells, Gap("", tuple(gaps)).text().strip() if gaps else None, *papers))
    table = Table("", tuple(columns), tuple(rows)).markdown()
    return table + _orders(several, sizes, theirs, metric)


def _with_seeds(one: Entries, seeds: set[int]) -> Entries:
    [kept] = groups([entry for entry in one.results if entry.settings["seed"] in seeds])
    return kept


def _orders(
    several: Mapping[str, Mapping[int, Entries]],
    sizes: Sequence[int],
    theirs: Mapping[int, Mapping[str, float]],
    metric: str,
) -> str:
    """The highest with each number of exemplars, ours and the paper's."""
    texts = []
    for size in sizes:
        means = {title: statistics.fmean(e.metrics["softmax"][metric] for e in own[size].results)
                 for title, own in several.items() if size in own}  # fmt: skip
        same = {title: theirs[size][title] for title in means if title in theirs[size]}
        ours = max(means, key=lambda title: means[title])
        papers = f"; the paper: {max(same, key=lambda title: same[title])}" if same else ""
        texts.append(f"{size}: {ours}{papers}")
    return f"\nHighest mean of these methods with {'. '.join(texts)}.\n"
