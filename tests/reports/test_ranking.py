"""Which method is ahead, in words: as the verdicts say, and nothing stronger."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import CLASSES, TASK_SIZES, _predictions

from endocil.metrics.metrics import summarise
from endocil.model.prediction_files import write_predictions
from endocil.reports.comparisons import Versus, comparable_or_none
from endocil.reports.ranking import Ranking, findings, other_metrics, ranking, significant_leads
from endocil.reports.sections import sources
from endocil.runs.experiments import Group, groups
from endocil.runs.records import read_run

MakeRun = Callable[..., Path]
Verdict = tuple[str, str, float, float]  # method, metric, the method minus the best, adjusted p


def _ranking(*verdicts: Verdict) -> Ranking:
    found = tuple(
        Versus(Group(name, ()), metric, "softmax", difference, (-9.0, 9.0), 0.5, False, adjusted)
        for name, metric, difference, adjusted in verdicts
    )
    nothing: Any = None
    return Ranking(nothing, Group("best", ()), found)


def test_those_without_a_significant_difference_are_not_called_beaten() -> None:
    found = _ranking(
        ("far", "acc_last", -30.0, 0.001),
        ("near", "acc_last", -1.0, 0.9),
        ("edge", "acc_last", -5.0, 0.05),
        ("near", "af", -8.0, 0.001),
    )
    assert significant_leads(found) == (
        "After the last task, best is significantly more accurate than far. Its lead over near and edge is not "
        "significant. Significantly better than best in another metric: near (AF)."
    )


def test_where_nothing_is_significant_nobody_is_called_beaten() -> None:
    found = _ranking(("one", "acc_last", -1.0, 0.4), ("other", "acc_last", -9.0, 0.2))
    assert significant_leads(found) == ("The lead of best in accuracy over the other methods is not significant.")


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
    sentences = findings(groups(runs), Ranking(nothing, Group("endocil", ()), (one, *rest)))
    return next(sentence for sentence in sentences if "points ahead" in sentence).replace("\N{NO-BREAK SPACE}", " ")


def test_an_interval_without_0_and_a_verdict_of_no_significance_do_not_contradict_each_other(
    make_run: MakeRun, make_metrics: Callable[..., dict[str, Any]]
) -> None:
    lead = "EndoCIL is 2.8 points ahead of iCaRL"
    assert _lead((-5.3, -0.2), 0.64, make_run, make_metrics) == (
        f"{lead}, which is not significant after correction for 60 comparisons: p = 0.64 (95 % interval of the paired "
        f"difference of this pair alone: 0.2 to 5.3)."
    )
    assert _lead((-5.3, 0.2), 0.64, make_run, make_metrics) == (
        f"{lead}, which is not significant (95 % interval of the paired difference: -0.2 to 5.3)."
    )
    assert _lead((-5.3, -0.2), 0.01, make_run, make_metrics) == (
        f"{lead} (95 % interval of the paired difference: 0.2 to 5.3)."
    )


def test_two_methods_are_told_apart_column_by_column() -> None:
    found = _ranking(
        ("other", "acc_last", -2.0, 0.4),
        ("other", "f1_last", -4.0, 0.01),
        ("other", "acc_avg", 3.0, 0.01),
        ("other", "af", 12.0, 0.001),  # forgets more
    )
    assert significant_leads(found) == ""
    assert other_metrics(found) == (
        "best is significantly better than other in F1_last and AF. other is significantly better than best in Acc_avg."
    )
    assert other_metrics(_ranking(("other", "acc_last", -2.0, 0.4), ("other", "af", 1.0, 0.4))) == ""


def _run(make_run: MakeRun, method: str, **changes: Any) -> Path:
    sizes = (len(CLASSES),) if method == "joint" else TASK_SIZES
    stored = [_predictions(method, 0, CLASSES, sizes, t) for t in range(len(sizes))]
    folder = make_run(method, metrics=summarise(stored), **changes)
    for t, predictions in enumerate(stored):
        write_predictions(folder / "predictions" / f"task-{t}.csv", predictions)
    return folder


def test_the_best_is_compared_with_all_that_learn_task_by_task_in_every_column(make_run: MakeRun) -> None:
    folders = [_run(make_run, method) for method in ("finetune", "icarl", "endocil", "joint")]
    found = ranking(comparable_or_none([read_run(folder) for folder in folders]))
    assert found is not None
    assert found.best.label == "EndoCIL"
    assert [one.group.label for one in found.of("acc_last")] == ["iCaRL", "Finetune"]  # the nearest first
    assert len(found.differences) == 2 * 5
    assert found.of("acc_last")[1].verdict == "worse"


def test_source_by_source_the_upper_bound_is_not_called_the_best(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, method)) for method in ("icarl", "endocil", "joint")]
    examined = comparable_or_none(runs)
    assert examined is not None
    shown = sources(examined.groups, examined, ("", "", None))
    assert shown is not None
    rows = shown["table"].rows  # a row for each method, a column for each of two sources
    assert [row.cells[0].text for row in rows] == ["iCaRL", "EndoCIL", "JointTrain"]
    assert [len(row.cells) for row in rows] == [3, 3, 3]
    assert sum(cell.best for row in rows for cell in row.cells) == 2
    assert [row.kind for row in rows] == ["", "", "apart"]


@pytest.mark.parametrize("methods", [("icarl",), ("icarl", "joint")])
def test_one_learner_has_no_ranking(make_run: MakeRun, methods: tuple[str, ...]) -> None:
    assert ranking(comparable_or_none([read_run(_run(make_run, method)) for method in methods])) is None


def test_without_predictions_nothing_is_claimed(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, "icarl")), read_run(make_run("endocil"))]
    assert comparable_or_none(runs) is None
    assert ranking(None) is None


def test_runs_with_different_budgets_are_not_ranked(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, "icarl", train__epochs=4)), read_run(_run(make_run, "endocil", train__epochs=8))]
    assert ranking(comparable_or_none(runs)) is None
    sentences = findings(groups(runs), None)
    assert "The runs differ in their budget (epochs), so the methods are not ranked." in sentences
    assert not any("ahead" in sentence for sentence in sentences)
