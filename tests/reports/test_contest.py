"""Who is ahead, in words: as the verdicts say, and nothing stronger."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reports.conftest import CLASSES, TASK_SIZES, _predictions

from endocil.metrics.metrics import summarise
from endocil.model.predictions import write_predictions
from endocil.reports.comparisons import Versus
from endocil.reports.ranking import Contest, contest, elsewhere, examined_or_none, told, told_apart
from endocil.reports.sections import sources
from endocil.runs.experiments import Group, groups
from endocil.runs.records import read_run

MakeRun = Callable[..., Path]
Verdict = tuple[str, str, float, float]  # method, metric, the method minus the best, adjusted p


def _contest(*verdicts: Verdict) -> Contest:
    found = tuple(
        Versus(Group(name, ()), metric, "softmax", difference, (-9.0, 9.0), 0.5, False, adjusted)
        for name, metric, difference, adjusted in verdicts
    )
    nothing: Any = None
    return Contest(nothing, Group("best", ()), found)


def test_those_inside_noise_are_not_called_beaten() -> None:
    found = _contest(
        ("far", "acc_last", -30.0, 0.001),
        ("near", "acc_last", -1.0, 0.9),
        ("edge", "acc_last", -5.0, 0.05),
        ("near", "af", -8.0, 0.001),
    )
    assert told_apart(found) == [
        "In accuracy after the last task, best is ahead by more than noise of far. It cannot be told apart from near "
        "and edge. Better than best by more than noise in another column: near (AF)."
    ]


def test_where_all_is_noise_nobody_is_called_beaten() -> None:
    found = _contest(("one", "acc_last", -1.0, 0.4), ("other", "acc_last", -9.0, 0.2))
    assert told_apart(found) == [
        "In accuracy after the last task, best is ahead by more than noise of none of the others."
    ]


def _lead(interval: tuple[float, float], adjusted: float, make_run: MakeRun, make_metrics: Any) -> str:
    """What is said of endocil at 60 % and icarl at 57.2 %, compared in sixty ways."""
    runs = []
    for method, value in (("icarl", 57.2), ("endocil", 60.0)):
        made = make_metrics(method)
        made["softmax"]["acc_last"] = value
        runs.append(read_run(make_run(method, metrics=made)))
    one = Versus(Group("icarl", ()), "acc_last", "softmax", -2.8, interval, 0.02, False, adjusted)
    rest = [Versus(Group("icarl", ()), "af", "softmax", 0.0, (-1.0, 1.0), 1.0, False, 1.0)] * 59
    nothing: Any = None
    said = told(groups(runs), Contest(nothing, Group("endocil", ()), (one, *rest)))
    return next(sentence for sentence in said if "points ahead" in sentence).replace(
        "\N{NO-BREAK SPACE}", " "
    )


def test_an_interval_without_0_and_a_verdict_of_noise_do_not_contradict_each_other(
    make_run: MakeRun, make_metrics: Callable[..., dict[str, Any]]
) -> None:
    lead = "endocil is 2.8 points ahead of icarl"
    assert _lead((-5.3, -0.2), 0.64, make_run, make_metrics) == (
        f"{lead}, which is inside noise after correction for 60 comparisons: p = 0.64 (95 % interval of the paired "
        f"difference of this pair alone: 0.2 to 5.3)."
    )
    assert _lead((-5.3, 0.2), 0.64, make_run, make_metrics) == (
        f"{lead}, which is inside noise (95 % interval of the paired difference: -0.2 to 5.3)."
    )
    assert _lead((-5.3, -0.2), 0.01, make_run, make_metrics) == (
        f"{lead} (95 % interval of the paired difference: 0.2 to 5.3)."
    )


def test_two_methods_are_told_apart_column_by_column() -> None:
    found = _contest(
        ("other", "acc_last", -2.0, 0.4),
        ("other", "f1_last", -4.0, 0.01),
        ("other", "acc_avg", 3.0, 0.01),
        ("other", "af", 12.0, 0.001),  # forgets more
    )
    assert told_apart(found) == []
    assert elsewhere(found) == (
        "In F1_last and AF best is better than other by more than noise. In Acc_avg other is better than best by more "
        "than noise."
    )
    assert elsewhere(_contest(("other", "acc_last", -2.0, 0.4), ("other", "af", 1.0, 0.4))) == ""


def _run(make_run: MakeRun, method: str) -> Path:
    sizes = (len(CLASSES),) if method == "joint" else TASK_SIZES
    stored = [_predictions(method, 0, CLASSES, sizes, t) for t in range(len(sizes))]
    folder = make_run(method, metrics=summarise(stored))
    for t, predictions in enumerate(stored):
        write_predictions(folder / "predictions" / f"task-{t}.csv", predictions)
    return folder


def test_the_best_is_compared_with_all_that_learn_task_by_task_in_every_column(make_run: MakeRun) -> None:
    folders = [_run(make_run, method) for method in ("finetune", "icarl", "endocil", "joint")]
    found = contest(examined_or_none([read_run(folder) for folder in folders]))
    assert found is not None
    assert found.best.label == "endocil"
    assert [one.group.label for one in found.of("acc_last")] == ["icarl", "finetune"]  # the nearest first
    assert len(found.found) == 2 * 5
    assert found.of("acc_last")[1].verdict == "worse"


def test_source_by_source_the_upper_bound_is_not_called_the_best(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, method)) for method in ("icarl", "endocil", "joint")]
    examined = examined_or_none(runs)
    assert examined is not None
    shown = sources(examined.groups, examined, ("", "", None))
    assert shown is not None
    rows = shown["table"].rows  # a row for each method, a column for each of two sources
    assert [row.cells[0].text for row in rows] == ["icarl", "endocil", "joint"]
    assert [len(row.cells) for row in rows] == [3, 3, 3]
    assert sum(cell.best for row in rows for cell in row.cells) == 2
    assert [row.kind for row in rows] == ["", "", "apart"]


@pytest.mark.parametrize("methods", [("icarl",), ("icarl", "joint")])
def test_one_learner_has_no_contest(make_run: MakeRun, methods: tuple[str, ...]) -> None:
    assert contest(examined_or_none([read_run(_run(make_run, method)) for method in methods])) is None


def test_without_predictions_nothing_is_claimed(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, "icarl")), read_run(make_run("endocil"))]
    assert examined_or_none(runs) is None
    assert contest(None) is None
