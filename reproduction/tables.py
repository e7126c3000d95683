"""The paper's tables with our numbers beside them, what a difference is worth, and ranks over data sets."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from endocil.io.text_tables import DASH, Cell, Column, Table, spread
from endocil.metrics.statistics import friedman, ranks
from endocil.reports.ledger_tables import TICK, Entries
from endocil.reports.tables import LOWER_IS_BETTER, metric_columns
from endocil.runs.experiments import format_value
from reproduction.claims import t_quantile
from reproduction.paper import Place, Row, ablation_rows, component_names, main_rows, paper

NORMAL = 1.96  # standard errors of a 95 % interval
NOT_RUN = "not run"
BESIDE = "; "  # between the paper's number and ours
VERDICTS = ("within noise", "better", "worse", "one seed")
Places = Mapping[str, Sequence[Place]]  # data set -> where it was run at the paper's scale


def splits(ours: Places) -> str:
    """Table 1: what the paper's runs are made of, and whether ours at its scale exist."""
    rows = []
    for data, facts in paper()["data"].items():
        sizes = facts["increments"]
        run = [
            f"{len(place.methods)} methods, {len(place.ablation)} ablation rows{place.suffix}"
            for place in ours.get(data, [])
        ]
        images = f"{facts['test_images']:,}"
        rows.append((facts["name"], sum(sizes), format_value(sizes), images, "; ".join(run) or NOT_RUN))
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
    cells: list[tuple[Cell, ...]] = []
    absent: dict[str, list[str]] = {}
    for row in main_rows():
        if row.data == data:
            name = paper()["methods"][row.method]["name"]
            if ours := place.method(row.method, row.buffer) if place else None:
                cells.append((row.buffer, name, *_beside(row, ours)))
            else:
                buffer = f"{row.buffer} exemplars per class" if row.buffer else "without exemplars"
                absent.setdefault(buffer, []).append(name)
    heads = (Column("buffer", "Exemplars per class", True), Column("method", "Method"))
    missing = "; ".join(f"{buffer}: {', '.join(names)}" for buffer, names in absent.items())
    return _numbers(heads, cells, missing, sum(map(len, absent.values())))


def components_table(place: Place | None) -> str:
    """Table 3."""
    cells: list[tuple[Cell, ...]] = []
    absent = []
    for row in ablation_rows():
        if ours := place.components(row.components, row.buffer or 0) if place else None:
            cells.append((*(TICK if on else DASH for on in row.components), *_beside(row, ours)))
        else:
            absent.append(component_names(row.components))
    heads = tuple(Column(name.lower(), name) for name in paper()["ablation"]["components"])
    return _numbers(heads, cells, ", ".join(absent), len(absent))


def classes_table(place: Place | None) -> str:
    """Table 4: a row for each class, a column for each loss."""
    stored = paper()["per_class"]
    experiments = [place.components(tuple(on), stored["buffer"]) if place else None for on, _ in stored["rows"]]
    if not any(experiments):
        return f"Not run: all {len(stored['classes'])} rows."
    cells: list[tuple[Cell, ...]] = []
    for i, (name, tested) in enumerate(stored["classes"]):
        pairs = zip(stored["rows"], experiments, strict=True)
        texts = [_pair("recall", values[i], _recalls(ours, name), tested) for (_, values), ours in pairs]
        cells.append((name, tested, *texts))
    seeds = [len(ours.seeds) if ours else 0 for ours in experiments]
    titles = [f"{title}, our seeds: {n or NOT_RUN}" for title, n in zip(("CE", "PRCBL"), seeds, strict=True)]
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


def _numbers(heads: tuple[Column, ...], cells: Sequence[tuple[Cell, ...]], missing: str, n_missing: int) -> str:
    """The rows that were run as a table, the others in one line."""
    if not cells:
        return f"Not run: all {n_missing} rows."
    columns = (*heads, Column("seeds", "Our seeds", True), *(Column(c.key, c.title, True) for c in metric_columns()))
    table = _counted(Table("", columns, tuple(cells)), cells, n_missing)
    return f"{table}\nNot run: {missing}." if missing else table


def _counted(table: Table, cells: Sequence[tuple[Cell, ...]], n_missing: int = 0) -> str:
    """The table after a line that counts the rows that were run, and the verdicts on their numbers."""
    known = Counter(verdict for row in cells for cell in row if (verdict := _verdict(cell)))
    verdicts = ", ".join(f"{known[verdict]} {verdict}" for verdict in VERDICTS if known[verdict])
    numbers = f"; of their numbers {verdicts}" if verdicts else ""
    return f"Run: {len(cells)} of {len(cells) + n_missing} rows{numbers}.\n\n{table.markdown()}"


def _verdict(cell: Cell) -> str:
    """The verdict on our number in a cell; empty where there is none."""
    text = cell if isinstance(cell, str) and BESIDE in cell else ""
    return next((verdict for verdict in VERDICTS if text.endswith(f"{verdict})")), "")


def _beside(row: Row, ours: Entries) -> tuple[Cell, ...]:
    tested = paper()["data"][row.data]["test_images"]
    texts = [
        _pair(name, theirs, [float(entry.metrics["softmax"][name]) for entry in ours.results], tested)
        if theirs is not None
        else None
        for name, theirs in row.values.items()
    ]
    return (len(ours.seeds), *texts)


def _pair(name: str, theirs: float, values: Sequence[float], tested: int) -> str:
    if not values:
        return f"{theirs:.2f}"
    difference = statistics.fmean(values) - theirs
    return f"{theirs:.2f}{BESIDE}{spread(values)} ({difference:+.2f}, {judged(name, theirs, values, tested)})"


def judged(name: str, theirs: float, values: Sequence[float], tested: int) -> str:
    """Could one more run of ours, on other test images, give the paper's number?"""
    n = len(values)
    if n < 2:
        return "one seed"
    share = theirs / 100 if name.startswith("acc") else 0.5  # of the others no more is known, or too little: widest
    images = NORMAL * 100 * math.sqrt(2 * share * (1 - share) / tested)
    seeds = t_quantile(n - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    difference = statistics.fmean(values) - theirs
    if abs(difference) <= math.hypot(images, seeds):
        return "within noise"
    return "better" if (difference > 0) != (name in LOWER_IS_BETTER) else "worse"


def rank_lines(ours: Mapping[str, Sequence[Place]]) -> list[str]:
    """Of the methods with a memory, by accuracy after the last task."""
    buffers = sorted({row.buffer for row in main_rows() if row.buffer})
    lines = [_rank_line(f"The paper, {b} per class", _paper_scores(b)) for b in buffers]
    counted = {data: max(members, key=lambda place: len(place.methods)) for data, members in ours.items()}
    own = {b: _rank_line(f"Ours, {b} per class", _our_scores(counted, b)) for b in buffers}
    lines += [line for line in own.values() if line]
    if absent := [str(b) for b, line in own.items() if not line]:
        lines.append(f"Ours, {', '.join(absent)} per class: not run on two data sets.")
    text = (
        "Average rank in Acc_last (1 is the best) of the methods with a memory, and Friedman's test of the hypothesis "
        "that all methods rank equally."
    )
    if any(len(members) > 1 for members in ours.values()):
        names = ", ".join(place.name for place in counted.values())
        text += f" Where we have several places for a data set, the one with the most methods counts: {names}."
    return [text, "\n".join(f"- {line}" for line in filter(None, lines))]


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
        experiments = [place.method(method, buffer) for place in ours.values()]
        means = [
            statistics.fmean(entry.metrics["softmax"]["acc_last"] for entry in one.results)
            for one in experiments
            if one
        ]
        if len(means) == len(ours):
            scores[method] = means
    return scores


def _rank_line(title: str, scores: dict[str, list[float]]) -> str:
    """Empty where there are no two methods on two data sets."""
    table = np.array(list(scores.values())).T  # (data sets, methods)
    if table.ndim < 2 or min(table.shape) < 2:
        return ""
    mean = ranks(table).mean(axis=0)
    order = np.argsort(mean, kind="stable")
    names = [paper()["methods"][name]["name"] for name in scores]
    statistic, p = friedman(table)
    ranked = ", ".join(f"{names[i]} {mean[i]:.2f}" for i in order)
    return f"{title}, {len(table)} data sets: {ranked}. Friedman {statistic:.1f}, p {p:.2g}."
