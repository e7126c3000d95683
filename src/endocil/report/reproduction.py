"""The reproduction ledger: what was run at which scale, the paper's claims, its numbers beside ours, and ranks."""

import math
import statistics
from collections.abc import Sequence

import numpy as np

from endocil.report.claims import OPEN, claims, finding
from endocil.report.ledger_tables import TICK, Entries, ledger_table
from endocil.report.names import DASH
from endocil.report.paper import Json, Place, Row, ablation_rows, main_rows, paper
from endocil.report.tables import LOWER_IS_BETTER, Cell, Column, Table, metric_columns, spread
from endocil.statistics import friedman, ranks, t_quantile

NORMAL = 1.96  # standard errors of a 95 % interval
HOW = """\
Ours is the mean ± sample standard deviation over seeds. The paper's number is one run of unknown seed and split, so a
difference is *inside noise* when one more run of ours could give it: within the 95 % prediction interval over our
seeds, widened by the sampling of two sets of test images. One seed shows no spread and is not judged.
docs/statistics.md has the formula. Runs at another scale are listed apart and compared with nothing of the paper."""
JUDGED = """\
A claim *holds* when the 95 % t interval of the difference over the seeds that both sides share lies on its side, for
every comparison it makes; it *does not hold* when one lies clearly on the other side (widened for the number of
comparisons); otherwise it *cannot be said*. A difference above 0 is in favour of the
claim; ± is half of its interval."""


def reproduction(places: Sequence[Place]) -> str:
    """The whole page as Markdown."""
    ours = {place.data: place for place in places if not place.unlike}
    parts = [
        "# The paper beside the ledger",
        f"Written by `endocil ledger paper`. The paper: {paper()['source']} {paper()['inferred']}",
        HOW,
        "## What was run",
        _what_was_run(places),
        "## The paper's claims",
        JUDGED,
        *(_claim(i, claim, places) for i, claim in enumerate(claims(), 1)),
        "## Table 2 of the paper",
        "The paper's number, then ours where it was run at the paper's scale.",
        *(_main(data, ours.get(data)) for data in paper()["data"]),
        "## Table 3 of the paper: the components",
        _ablation(ours.get(paper()["ablation"]["data"])),
        "## Ranks over data sets",
        *_ranks(ours),
        *_at_another_scale(places),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _at_another_scale(places: Sequence[Place]) -> list[str]:
    others = [place for place in places if place.unlike]
    experiments = [one for place in others for one in (*place.methods, *place.ablation)]
    entries = {entry.file: entry for one in experiments for entry in one.results}
    if not entries:
        return []
    table = ledger_table(list(entries.values())).markdown()
    return ["## Runs at another scale", f"Nothing here reproduces a number of the paper.\n\n{table}"]


def _what_was_run(places: Sequence[Place]) -> str:
    columns = [Column("data", "Data"), Column("what", "What"), Column("methods", "Methods", True)]
    columns += [Column("ablation", "Ablation rows", True), Column("seeds", "Seeds"), Column("scale", "Scale")]
    rows = tuple(map(_run_row, places))
    there = {place.data for place in places if not place.unlike}
    absent = [facts["name"] for data, facts in paper()["data"].items() if data not in there]
    not_run = f"Not run at the paper's scale: {', '.join(absent)}." if absent else ""
    return f"{Table('', tuple(columns), rows).markdown()}\n{not_run}"


def _run_row(place: Place) -> tuple[Cell, ...]:
    seeds = sorted({len(one.seeds) for one in (*place.methods, *place.ablation)})
    told = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    scale = f"another: {'; '.join(place.unlike)}" if place.unlike else "the paper's"
    return (place.name, place.described(), len(place.methods), len(place.ablation), told, scale)


def _claim(number: int, claim: Json, places: Sequence[Place]) -> str:
    lines = [f"### {number}. {claim['says']}", "", f"In the paper: {claim['paper']}.", ""]
    for data in claim["data"]:
        place = next((one for one in places if one.data == data and not one.unlike), None)
        name = paper()["data"][data]["name"]
        found = f"**{OPEN}**: not run" if place is None else _found(claim, place)
        lines.append(f"- {name}, at the paper's scale: {found}.")
    if claim.get("elsewhere"):
        others = [place for place in places if place.unlike and finding(claim, place).run]
        lines += [
            f"- {place.name}, at another scale (no reproduction): {_found(claim, place)}." for place in others
        ]
    return "\n".join(lines)


def _found(claim: Json, place: Place) -> str:
    found = finding(claim, place)
    return f"**{found.verdict}**: {found.why}"


def _main(data: str, place: Place | None) -> str:
    rows = [row for row in main_rows() if row.data == data]
    names = paper()["methods"]
    cells = []
    for row in rows:
        ours = place.method(row.method, row.buffer) if place else None
        cells.append((row.buffer, names[row.method]["name"], *_beside(row, ours)))
    heads = (Column("buffer", "Buffer", True), Column("method", "Method"))
    return f"### {paper()['data'][data]['name']}\n\n{_numbers(heads, cells)}"


def _ablation(place: Place | None) -> str:
    cells = []
    for row in ablation_rows():
        ours = place.components(row.components, row.buffer or 0) if place else None
        cells.append((*(TICK if on else DASH for on in row.components), *_beside(row, ours)))
    return _numbers(tuple(Column(name.lower(), name) for name in paper()["ablation"]["components"]), cells)


def _numbers(heads: tuple[Column, ...], cells: Sequence[tuple[Cell, ...]]) -> str:
    columns = (
        *heads,
        Column("seeds", "Our seeds"),
        *(Column(c.key, c.title, True) for c in metric_columns()),
    )
    return Table("", columns, tuple(cells)).markdown()


def _beside(row: Row, ours: Entries | None) -> tuple[Cell, ...]:
    tested = paper()["data"][row.data]["test_images"]
    texts = [_pair(name, value, ours, tested) for name, value in row.values.items()]
    return (str(len(ours.seeds)) if ours else "not run", *texts)


def _pair(name: str, theirs: float | None, ours: Entries | None, tested: int) -> str | None:
    if theirs is None:
        return None
    if ours is None:
        return f"{theirs:.2f}"
    values = [float(entry.metrics["softmax"][name]) for entry in ours.results]
    difference = statistics.fmean(values) - theirs
    return f"{theirs:.2f}; {spread(values)} ({difference:+.2f}, {judged(name, theirs, values, tested)})"


def judged(name: str, theirs: float, values: Sequence[float], tested: int) -> str:
    """Could one more run of ours, on other test images, give the paper's number?"""
    n = len(values)
    if n < 2:
        return "one seed"
    share = theirs / 100 if name.startswith("acc") else 0.5  # of F1 and AF no more is known: the widest
    images = NORMAL * 100 * math.sqrt(2 * share * (1 - share) / tested)
    seeds = t_quantile(n - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    difference = statistics.fmean(values) - theirs
    if abs(difference) <= math.hypot(images, seeds):
        return "inside noise"
    return "better" if (difference > 0) != (name in LOWER_IS_BETTER) else "worse"


def _ranks(ours: dict[str, Place]) -> list[str]:
    """Of the methods with a memory, by accuracy after the last task."""
    buffers = sorted({row.buffer for row in main_rows() if row.buffer})
    theirs = [_rank_line(f"The paper, {b} per class", _paper_scores(b)) for b in buffers]
    own = [_rank_line(f"Ours, {b} per class", _our_scores(ours, b)) for b in buffers]
    told = (
        "Average rank in Acc_last, 1 the best, of the methods with a memory. Friedman's test: are all alike?"
    )
    return [told, "\n".join(f"- {line}" for line in theirs + own)]


def _paper_scores(buffer: int) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {}
    for row in main_rows():
        if row.buffer == buffer:
            scores.setdefault(row.method, []).append(float(row.values["acc_last"] or 0.0))
    return scores


def _our_scores(ours: dict[str, Place], buffer: int) -> dict[str, list[float]]:
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
