"""The results of a run as a model file states them: metrics and recalls of the test images, with intervals."""

import math
from typing import Any

import numpy as np

from endocil.metrics.statistics import LEVEL, Bools, Measure, Resampling, observed, percentile_interval
from endocil.model.predictions import HEADS, Head
from endocil.runs.paired_predictions import read_paired_predictions
from endocil.runs.records import RunRecord

SHOWN = ("acc_last", "f1_last", "acc_avg", "f1_avg", "af")
RESAMPLES = 2000


def results_of(run: RunRecord) -> dict[str, Any]:
    """By head: the metrics of the tables and the recall of each class, in percent, each with its interval."""
    heads = [head for head in HEADS if run.metrics[head] is not None]
    return {
        "part": run.settings["run"].get("evaluate", "test"),
        "images": run.metrics["test_images"][-1],
        "level": LEVEL,
        "resamples": RESAMPLES,
        "heads": {head: _of_head(run, head) for head in heads},
    }


def _of_head(run: RunRecord, head: Head) -> dict[str, Any]:
    (paired,) = read_paired_predictions([run], head)
    tested = paired.test_set
    shown = SHOWN if len(run.metrics["task_sizes"]) > 1 else SHOWN[:-1]  # one task cannot forget
    numbers: dict[str, Any] = {
        metric: _with_interval(paired.measure(metric), tested.resampling(metric, RESAMPLES))
        for metric in shown
    }
    by_class = tested.resampling("f1_last", RESAMPLES)
    numbers["recall"] = {
        name: _recall(paired.accuracy_on(tested.labels == label), by_class, tested.labels == label)
        for label, name in enumerate(tested.classes)
    }
    return numbers


def _with_interval(measure: Measure, resampling: Resampling) -> dict[str, float | None]:
    value = observed(measure)
    if math.isnan(value):  # a class without test images
        return {"value": None, "low": None, "high": None}
    low, high = percentile_interval(resampling.values([measure])[:, 0])
    return {"value": value, "low": low, "high": high}


def _recall(measure: Measure, resampling: Resampling, counted: Bools) -> dict[str, float | None]:
    """Where all or none of a class's images are right, resamples say nothing: the exact binomial bound does."""
    found = _with_interval(measure, resampling)
    if found["value"] in (0.0, 100.0):
        units = len(np.unique(resampling.units[counted]))
        unseen = 100.0 * (1.0 - ((1.0 - LEVEL) / 2) ** (1.0 / units))
        low, high = (0.0, unseen) if found["value"] == 0.0 else (100.0 - unseen, 100.0)
        return {**found, "low": low, "high": high}
    return found
