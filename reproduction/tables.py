"""Who comes first over all data sets: the paper's methods by its numbers, and by ours at its scale."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from endocil.metrics.statistics import friedman, ranks, t_quantile
from endocil.reports.ledger_tables import TICK, Entries
from endocil.reports.tables import LOWER_IS_BETTER, Cell, Column, Table, metric_columns, spread
from endocil.runs.experiments import DASH, written
from reproduction.paper import Place, Row, ablation_rows, main_rows, paper


def rank_lines(ours: Mapping[str, Sequence[Place]]) -> list[str]:
    """Of the methods with a memory, by accuracy after the last task."""
    buffers = sorted({row.buffer for row in main_rows() if row.buffer})
    theirs = [_rank_line(f"The paper, {b} per class", _paper_scores(b)) for b in buffers]
    counted = {data: max(there, key=lambda place: len(place.methods)) for data, there in ours.items()}
    own = [_rank_line(f"Ours, {b} per class", _our_scores(counted, b)) for b in buffers]
    told = (
        "Average rank in Acc_last, 1 the best, of the methods with a memory. Friedman's test: are all alike?"
    )
    if any(len(there) > 1 for there in ours.values()):
        where = ", ".join(place.name for place in counted.values())
        told += f" Of a data set with several places of ours the one with the most methods counts: {where}."
    return [told, "\n".join(f"- {line}" for line in theirs + own)]


def _paper_scores(buffer: int) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {}
    for row in main_rows():
        if row.buffer == buffer:
            scores.setdefault(row.method, []).append(float(row.values["acc_last"] or 0.0))
    return scores


def _our_scores(ours: Mapping[str, Place], buffer: int) -> dict[str, list[float]]:
    """Of the methods that were run on every data set that was run at all with this buffer."""
    scores: dict[str, list[float]] = {}
    for method in _paper_scores(buffer):
        found = [place.method(method, buffer) for place in ours.values()]
        means = [
            statistics.fmean(e.metrics["softmax"]["acc_last"] for e in one.results) for one in found if one
        ]
        if len(means) == len(ours):
            scores[method] = means
    return scores


def _rank_line(who: str, scores: dict[str, list[float]]) -> str:
    table = np.array(list(scores.values())).T  # (data sets, methods)
    if table.ndim < 2 or min(table.shape) < 2:
        return f"{who}: not run on two data sets."
    mean = ranks(table).mean(axis=0)
    order = np.argsort(mean, kind="stable")
    names = [paper()["methods"][name]["name"] for name in scores]
    statistic, p = friedman(table)
    told = ", ".join(f"{names[i]} {mean[i]:.2f}" for i in order)
    return f"{who}, {len(table)} data sets: {told}. Friedman {statistic:.1f}, p {p:.2g}."


# The paper's tables with our numbers beside them, and what a difference between the two is worth.

NORMAL = 1.96  # standard errors of a 95 % interval
BESIDE = "; "  # between the paper's number and ours
VERDICTS = ("inside noise", "better", "worse", "one seed")
Places = Mapping[str, Sequence[Place]]  # data set -> where it was run at the paper's scale


def splits(ours: Places) -> str:
    """Table 1: what the paper's runs are made of, and whether ours at its scale exist."""
    rows = []
    for data, facts in paper()["data"].items():
        sizes = facts["increments"]
        told = [
            f"{len(place.methods)} methods, {len(place.ablation)} ablation rows{place.apart}"
            for place in ours.get(data, [])
        ]
        images = f"{facts['test_images']:,}"
        rows.append((facts["name"], sum(sizes), written(sizes), images, "; ".join(told) or "not run"))
    columns = (
        Column("data", "Data"),
        Column("classes", "Classes", True),
        Column("increments", "Classes of each task"),
        Column("test_images", "Test images", True),
        Column("ours", "Ours at this scale"),
    )
    return Table("", columns, tuple(rows)).markdown()


def main_table(data: str, place: Place | None) -> str:
    """Table 2, one data set."""
    names, cells = paper()["methods"], []
    for row in main_rows():
        if row.data == data:
            ours = place.method(row.method, row.buffer) if place else None
            cells.append((row.buffer, names[row.method]["name"], *_beside(row, ours)))
    heads = (Column("buffer", "Buffer", True), Column("method", "Method"))
    return _numbers(heads, cells)


def components_table(place: Place | None) -> str:
    """Table 3."""
    cells = []
    for row in ablation_rows():
        ours = place.components(row.components, row.buffer or 0) if place else None
        cells.append((*(TICK if on else DASH for on in row.components), *_beside(row, ours)))
    return _numbers(tuple(Column(name.lower(), name) for name in paper()["ablation"]["components"]), cells)


def classes_table(place: Place | None) -> str:
    """Table 4: a row for each class, a column for each loss."""
    stored = paper()["per_class"]
    found = [place.components(tuple(on), stored["buffer"]) if place else None for on, _ in stored["rows"]]
    cells = []
    for i, (name, tested) in enumerate(stored["classes"]):
        pairs = zip(stored["rows"], found, strict=True)
        texts = [_pair("recall", values[i], _recalls(ours, name), tested) for (_, values), ours in pairs]
        cells.append((name, tested, *texts))
    seeds = [len(ours.seeds) if ours else 0 for ours in found]
    titles = [
        f"{title}, our seeds: {n or 'not run'}" for title, n in zip(("CE", "PRCBL"), seeds, strict=True)
    ]
    columns = (
        Column("class", "Class"),
        Column("images", "Test images", True),
        *(Column(title, title, True) for title in titles),
    )
    return _counted(Table("", columns, tuple(cells)), cells)


def _recalls(ours: Entries | None, name: str) -> list[float]:
    if ours is None:
        return []
    recalls = [entry.metrics["softmax"]["per_class"].get(name, {}).get("recall") for entry in ours.results]
    return [] if None in recalls else [float(value) for value in recalls]


def _numbers(heads: tuple[Column, ...], cells: Sequence[tuple[Cell, ...]]) -> str:
    columns = (
        *heads,
        Column("seeds", "Our seeds"),
        *(Column(c.key, c.title, True) for c in metric_columns()),
    )
    return _counted(Table("", columns, tuple(cells)), cells)


def _counted(table: Table, cells: Sequence[tuple[Cell, ...]]) -> str:
    """The table after a line that says how many of its numbers we have, and what is said of them."""
    known = Counter(verdict for row in cells for cell in row if (verdict := _verdict(cell)))
    rows = sum(any(map(_verdict, row)) for row in cells)
    told = ", ".join(f"{known[verdict]} {verdict}" for verdict in VERDICTS if known[verdict])
    return f"Run: {rows} of {len(cells)} rows{f'; of their numbers {told}' if told else ''}.\n\n{table.markdown()}"


def _verdict(cell: Cell) -> str:
    """What a cell says of our number beside the paper's; empty where there is none."""
    text = cell if isinstance(cell, str) and BESIDE in cell else ""
    return next((verdict for verdict in VERDICTS if text.endswith(f"{verdict})")), "")


def _beside(row: Row, ours: Entries | None) -> tuple[Cell, ...]:
    tested, results = paper()["data"][row.data]["test_images"], ours.results if ours else ()
    texts = [
        _pair(
            name,
            theirs,
            [float(entry.metrics["softmax"][name]) for entry in results if theirs is not None],
            tested,
        )
        for name, theirs in row.values.items()
    ]
    return (str(len(ours.seeds)) if ours else "not run", *texts)


def _pair(name: str, theirs: float | None, values: Sequence[float], tested: int) -> str | None:
    if theirs is None:
        return None
    if not values:
        return f"{theirs:.2f}"
    difference = statistics.fmean(values) - theirs
    return f"{theirs:.2f}{BESIDE}{spread(values)} ({difference:+.2f}, {judged(name, theirs, values, tested)})"


def judged(name: str, theirs: float, values: Sequence[float], tested: int) -> str:
    """Could one more run of ours, on other test images, give the paper's number?"""
    n = len(values)
    if n < 2:
        return "one seed"
    share = (
        theirs / 100 if name.startswith("acc") else 0.5
    )  # of the others no more is known, or too little: widest
    images = NORMAL * 100 * math.sqrt(2 * share * (1 - share) / tested)
    seeds = t_quantile(n - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    difference = statistics.fmean(values) - theirs
    if abs(difference) <= math.hypot(images, seeds):
        return "inside noise"
    return "better" if (difference > 0) != (name in LOWER_IS_BETTER) else "worse"
