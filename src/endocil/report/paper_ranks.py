"""Who comes first over all data sets: the paper's methods by its numbers, and by ours at its scale."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from endocil.report.paper import Place, main_rows, paper
from endocil.statistics import friedman, ranks


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
