"""Tables of results: what a row says, and its forms."""

import csv
import io
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from present import present

from endocil.io.text_tables import DASH, Column, Spread, Table, spread
from endocil.reports.tables import comparison
from endocil.runs.records import read_run

MakeRun = Callable[..., Path]
COLUMNS = (Column("method", "Method"), Column("acc", "Acc", True, "max"), Column("af", "AF", True, "min"))


def test_one_seed_has_a_mean_and_no_deviation() -> None:
    assert spread([70.0]) == Spread(70.0, None)
    assert str(Spread(70.0)) == "70.00"


def test_several_seeds_have_the_sample_standard_deviation() -> None:
    value = present(spread([70.0, 72.0, 77.0]))
    assert (value.mean, value.interval) == (73.0, None)
    assert value.deviation == pytest.approx(statistics.stdev([70.0, 72.0, 77.0]))
    assert str(value) == "73.00 ± 3.61"


def test_a_value_missing_in_one_seed_leaves_no_mean() -> None:
    assert spread([70.0, None]) is None
    assert spread([70.0, float("nan")]) is None
    assert spread([]) is None


def test_a_tiny_negative_mean_is_not_shown_as_minus_zero() -> None:
    assert str(Spread(-0.001)) == "0.00"


def test_comparison_has_one_row_per_experiment_and_the_five_metrics(make_run: MakeRun) -> None:
    runs = [read_run(make_run(method, seed)) for method in ("joint", "finetune", "endocil") for seed in (0, 1)]
    table = comparison(runs)
    assert [column.title for column in table.columns] == [
        "Method", "Seeds", "Acc_last", "F1_last", "Acc_avg", "F1_avg", "AF",
    ]  # fmt: skip
    assert [row[:2] for row in table.rows] == [("Finetune", 2), ("EndoCIL", 2), ("JointTrain", 2)]
    values = [run.metrics["softmax"]["acc_last"] for run in runs if run.settings["method"]["name"] == "endocil"]
    assert table.rows[1][2] == spread(values)


def test_one_task_has_no_average_over_tasks_and_no_forgetting(make_run: MakeRun) -> None:
    row = comparison([read_run(make_run("joint"))]).rows[0]
    assert isinstance(row[2], Spread)
    assert isinstance(row[3], Spread)
    assert row[4:] == (None, None, None)


def test_the_nearest_mean_head_has_a_row_for_each_method_that_has_it(make_run: MakeRun) -> None:
    runs = [read_run(make_run(method)) for method in ("finetune", "icarl", "endocil", "joint")]
    table = comparison(runs, "nearest_mean")
    assert [row[0] for row in table.rows] == ["iCaRL", "EndoCIL"]
    nearest = runs[1].metrics["nearest_mean"]["acc_last"]
    assert nearest != runs[1].metrics["softmax"]["acc_last"]
    assert table.rows[0][2] == Spread(nearest)


def test_the_best_is_the_highest_accuracy_and_the_lowest_forgetting() -> None:
    rows = (("a", Spread(50.0), Spread(30.0)), ("b", Spread(60.0), Spread(40.0)))
    assert Table("", COLUMNS, rows).marked() == {(1, 1), (0, 2)}


def test_values_equal_as_printed_are_equally_good() -> None:
    rows = (("a", Spread(60.001), None), ("b", Spread(60.002), None))
    assert Table("", COLUMNS, rows).marked() == {(0, 1), (1, 1)}


def test_an_upper_bound_takes_no_part_and_one_row_alone_wins_nothing() -> None:
    rows = (("a", Spread(50.0), Spread(30.0)), ("joint", Spread(90.0), None))
    assert Table("", COLUMNS, rows, ("", None)).marked() == set()


def test_rows_are_ranked_within_their_ranking_only() -> None:
    rows = tuple((name, Spread(value), None) for name, value in (("a", 1.0), ("b", 2.0), ("c", 9.0), ("d", 8.0)))
    assert Table("", COLUMNS, rows, ("x", "x", "y", "y")).marked() == {(1, 1), (2, 1)}


def test_markdown_escapes_names_and_marks_the_best() -> None:
    rows = (("a|b <i>", Spread(50.0, 1.25), None), ("c", Spread(40.0, 2.0), None))
    assert Table("", COLUMNS, rows).markdown().splitlines() == [
        "| Method | Acc | AF |",
        "|:---|---:|---:|",
        f"| a\\|b \\<i> | **50.00 ± 1.25** | {DASH} |",
        f"| c | 40.00 ± 2.00 | {DASH} |",
    ]


def test_text_is_aligned_with_and_without_a_star() -> None:
    rows = (("long name", Spread(50.0), None), ("c", Spread(4.5), None))
    assert Table("", COLUMNS, rows).text().splitlines() == [
        "Method       Acc   AF",
        "---------  ------  --",
        f"long name  50.00*   {DASH}",
        f"c           4.50    {DASH}",
    ]


def test_csv_has_unrounded_numbers_with_their_deviation(make_run: MakeRun) -> None:
    runs = [read_run(make_run("icarl", seed)) for seed in (0, 1)]
    (row,) = csv.DictReader(io.StringIO(comparison(runs).csv()))
    values = [run.metrics["softmax"]["af"] for run in runs]
    assert float(row["af"]) == statistics.fmean(values)
    assert float(row["af_sd"]) == statistics.stdev(values)
    assert row["method"] == "iCaRL"
    assert row["seeds"] == "2"


def test_sections_are_named_once_above_their_rows() -> None:
    rows = tuple((name, Spread(value), None) for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0)))
    table = Table("", COLUMNS, rows, ("x", "x", "y"), ("One", "One", "Two"))
    assert table.markdown().splitlines() == [
        "**One**", "", "| Method | Acc | AF |", "|:---|---:|---:|", f"| a | 1.00 | {DASH} |",
        f"| b | **2.00** | {DASH} |", "", "**Two**", "", "| Method | Acc | AF |", "|:---|---:|---:|",
        f"| c | 3.00 | {DASH} |",
    ]  # fmt: skip
    assert [line for line in table.text().splitlines() if line in ("One", "Two")] == ["One", "Two"]
    assert [row["section"] for row in csv.DictReader(io.StringIO(table.csv()))] == ["One", "One", "Two"]


def test_budgets_that_differ_are_columns_and_are_not_ranked_unless_asked_to(make_run: MakeRun) -> None:
    runs = [
        read_run(make_run("finetune", train__epochs=4, memory__per_class=5)),  # keeps no exemplars: 5 means nothing
        read_run(make_run("icarl", train__epochs=4)),
        read_run(make_run("endocil", train__epochs=8)),
        read_run(make_run("joint", train__epochs=8)),
    ]
    table = comparison(runs)
    assert [column.title for column in table.columns[:4]] == ["Method", "Seeds", "Epochs", "Acc_last"]
    assert [row[2] for row in table.rows] == [4, 4, 8, 8]
    assert "differ in their budget (epochs), so only rows with the same budget are ranked" in table.caption
    assert {i for i, _ in table.marked()} <= {0, 1}  # EndoCIL is alone with eight epochs
    anyway = comparison(runs, rank_anyway=True)
    assert (2, 3) in anyway.marked()
    assert "differ in their budget (epochs), ranked all the same" in anyway.caption
    assert "budget" not in comparison(runs[:2]).caption


@pytest.mark.parametrize(
    ("change", "title"),
    [({"data__size": 32}, "Pixels"), ({"network__width": 8}, "Width"), ({"memory__per_class": 50}, "Exemplars")],
)
def test_every_item_of_the_budget_is_compared(make_run: MakeRun, change: dict[str, int], title: str) -> None:
    table = comparison([read_run(make_run("icarl")), read_run(make_run("endocil", **change))])
    assert table.columns[2].title == title
    assert table.marked() == set()
