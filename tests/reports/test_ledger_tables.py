"""Tables of the ledger and their places in documents."""

import json
import statistics
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from endocil.cli.ledger import plot
from endocil.errors import EndocilError
from endocil.io.text_tables import DASH, Column, Spread, Table
from endocil.reports.figures.ledger_plot import ledger_figure, write_ledger_plot
from endocil.reports.ledger import add_to_ledger, insert_texts, read_ledger
from endocil.reports.ledger_tables import ablation_table, costs_table, ledger_table

MakeRun = Callable[..., Path]
TABLE = Table("", (Column("method", "Method"), Column("acc", "Acc", True, "max")), (("icarl", Spread(50.0)),))
TEXTS = {"one": TABLE.markdown(), "two": "endocil\n"}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_the_ledger_table_groups_over_seeds(make_run: MakeRun, ledger: Path) -> None:
    for method in ("joint", "icarl", "finetune"):
        for seed in (0, 1):
            add_to_ledger(make_run(method, seed), ledger)
    table = ledger_table(read_ledger(ledger))
    assert [row[:4] for row in table.rows] == [
        ("Finetune", 5, None, 2),
        ("iCaRL", 5, "30", 2),
        ("JointTrain", 1, None, 2),
    ]
    assert set(table.sections) == {"test-kvasir: 64 px, width 16, 6 epochs per task"}
    values = [entry.metrics["softmax"]["acc_last"] for entry in read_ledger(ledger) if "-icarl-" in entry.file.name]
    assert table.rows[1][4] == Spread(statistics.fmean(values), statistics.stdev(values))
    assert table.rows[2][6:] == (None, None, None)


def test_the_ledger_table_goes_data_set_by_data_set(make_run: MakeRun, ledger: Path) -> None:
    add_to_ledger(make_run("icarl"), ledger)
    add_to_ledger(make_run("icarl", data__root="/images/other"), ledger)
    add_to_ledger(make_run("icarl", data__name="synthetic", data__root="synthetic"), ledger)
    add_to_ledger(make_run("icarl", scenario__split_by="group"), ledger)
    table = ledger_table(read_ledger(ledger))
    assert [name.partition(":")[0] for name in table.sections] == [
        "other",
        "synthetic endoscopy",
        "test-kvasir",
        "test-kvasir, split by group",
    ]
    assert table.markdown().count("test-kvasir, split by group") == 1


def test_the_costs_table_has_both_heads_and_what_was_measured(make_run: MakeRun, ledger: Path) -> None:
    for method in ("finetune", "icarl"):
        add_to_ledger(make_run(method), ledger)
    unmeasured = add_to_ledger(make_run("icarl", 1), ledger)  # an entry of a version that did not measure memory
    stored = json.loads(unmeasured.read_text())
    unmeasured.write_text(json.dumps({**stored, "peak_megabytes": None, "seconds_per_epoch": 9.0}))
    rows = costs_table(read_ledger(ledger)).rows
    assert [row[:3] for row in rows] == [
        ("Finetune", "softmax", 1),
        ("iCaRL", "softmax", 1),
        ("iCaRL", "nearest mean", 1),
    ]
    assert rows[0][-4:] == ("11,184,720", Spread(1.5), "0.8", "704")  # 5 tasks of 6 epochs of 1.5 s
    assert rows[1][-4:] == rows[0][-4:]
    assert rows[2][-4:] == (None,) * 4
    (entry,) = [one for one in read_ledger(ledger) if one.exemplars and one.settings["seed"] == 0]
    assert rows[2][7] == Spread(entry.metrics["nearest_mean"]["af"])


def test_a_best_value_is_marked_only_among_experiments_with_the_same_seeds(make_run: MakeRun, ledger: Path) -> None:
    for method, seeds in {"icarl": (0, 1), "endocil": (0,)}.items():
        for seed in seeds:
            add_to_ledger(make_run(method, seed), ledger)
    assert ledger_table(read_ledger(ledger)).marked() == set()
    add_to_ledger(make_run("endocil", 1), ledger)
    assert ledger_table(read_ledger(ledger)).marked()


def test_entries_of_before_and_after_a_new_option_are_one_experiment(make_run: MakeRun, ledger: Path) -> None:
    def complete(settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**settings, "method": {"sooner": False, **settings["method"]}}

    add_to_ledger(make_run("icarl", 0), ledger)
    add_to_ledger(make_run("icarl", 1, method__sooner=False), ledger)
    assert [row[3] for row in ledger_table(read_ledger(ledger, complete=complete)).rows] == [2]


def test_only_runs_with_the_same_images_training_and_buffer_are_ranked(make_run: MakeRun, ledger: Path) -> None:
    for n in (30, 50):
        for method in ("icarl", "endocil"):
            add_to_ledger(make_run(method, memory__per_class=n), ledger)
    table = ledger_table(read_ledger(ledger))
    best = {(table.rows[i][0], table.rows[i][2]) for i, j in table.marked() if j == 4}
    assert best == {("EndoCIL", "30"), ("EndoCIL", "50")}  # a column has the number, so the label does not repeat it


def test_a_total_budget_is_shown_as_such(make_run: MakeRun, ledger: Path) -> None:
    folder = make_run("icarl", memory__total=420)
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text().replace("per_class = 30\n", ""))
    add_to_ledger(folder, ledger)
    assert ledger_table(read_ledger(ledger)).rows[0][2] == "420 in all"


def test_the_ablation_has_eight_rows_with_ticks(make_run: MakeRun, ledger: Path) -> None:
    add_to_ledger(make_run("icarl"), ledger)  # has no exchangeable loss: no row of the ablation
    for select, loss, gradients in product(
        ("mean", "mmd"), ("cross_entropy", "prior_regularized"), ("plain", "calibrated")
    ):
        for seed in (0, 1, 2):
            changes = {"memory__select": select, "method__loss": loss, "method__gradients": gradients}
            add_to_ledger(make_run("endocil", seed, **changes), ledger)
    table = ablation_table(read_ledger(ledger))
    assert [column.title for column in table.columns[:6]] == [
        "MDBR",
        "PRCBL",
        "CFG",
        "Method",
        "Exemplars per class",
        "Seeds",
    ]
    assert [row[:3] for row in table.rows] == list(product((DASH, "✓"), repeat=3))
    assert {row[3:6] for row in table.rows} == {("EndoCIL", "30", 3)}


def test_other_selectors_are_no_row_of_the_ablation(make_run: MakeRun, ledger: Path) -> None:
    folder = make_run("endocil")
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text().replace('"mmd"', '"random"'))
    add_to_ledger(folder, ledger)
    assert ablation_table(read_ledger(ledger)).rows == ()


def test_ablations_that_differ_in_something_else_stay_apart(make_run: MakeRun, ledger: Path) -> None:
    for beta in (0.96, 0.99):
        for gradients in ("plain", "calibrated"):
            add_to_ledger(make_run("endocil", method__beta=beta, method__gradients=gradients), ledger)
    rows = ablation_table(read_ledger(ledger)).rows
    assert [(row[2], row[3]) for row in rows] == [
        (DASH, "EndoCIL (beta=0.96)"),
        ("✓", "EndoCIL (beta=0.96)"),
        (DASH, "EndoCIL (beta=0.99)"),
        ("✓", "EndoCIL (beta=0.99)"),
    ]


def _document(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "README.md"
    file.write_bytes(text.encode())
    return file


def test_tables_are_inserted_between_their_markers_and_nowhere_else(tmp_path: Path) -> None:
    file = _document(tmp_path, "# Ä\r\n<!-- ledger:one -->old<!-- /ledger -->\r\nend <!-- a comment -->\n")
    assert insert_texts(file, TEXTS) is True
    assert file.read_bytes().decode() == (
        "# Ä\r\n<!-- ledger:one -->\n\n| Method | Acc |\n|:---|---:|\n| icarl | 50.00 |\n\n<!-- /ledger -->\r\n"
        "end <!-- a comment -->\n"
    )


def test_inserting_again_changes_nothing(tmp_path: Path) -> None:
    file = _document(tmp_path, "<!-- ledger:one --><!-- /ledger -->\n<!-- ledger:two --><!-- /ledger -->\n")
    insert_texts(file, TEXTS)
    before = file.read_bytes()
    assert insert_texts(file, TEXTS) is False
    assert file.read_bytes() == before


def test_check_tells_of_an_outdated_table_and_leaves_the_file(tmp_path: Path) -> None:
    file = _document(tmp_path, "<!-- ledger:one -->\nold\n<!-- /ledger -->\n")
    before = file.read_bytes()
    assert insert_texts(file, TEXTS, check=True) is True
    assert file.read_bytes() == before
    insert_texts(file, TEXTS)
    assert insert_texts(file, TEXTS, check=True) is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "has no place for a table"),
        ("<!-- ledger:three --><!-- /ledger -->", "asks for the table 'three'; known: one, two"),
        ("<!-- ledger:one -->", "is not closed"),
        ("<!-- ledger:one --><!-- ledger:two --><!-- /ledger -->", "is not closed"),
    ],
)
def test_a_document_with_wrong_markers_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = _document(tmp_path, text)
    with pytest.raises(EndocilError, match=message):
        insert_texts(file, TEXTS)
    assert file.read_text() == text


def test_a_missing_document_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"cannot read .*gone\.md"):
        insert_texts(tmp_path / "gone.md", TEXTS)


def test_the_plot_has_a_panel_for_each_data_set_and_the_same_bytes_each_time(
    make_run: MakeRun, ledger: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        for method in ("finetune", "icarl", "joint"):
            add_to_ledger(make_run(method, seed), ledger)
        add_to_ledger(make_run("icarl", seed, data__root="/images/other"), ledger)  # a data set of one method
    entries = read_ledger(ledger)
    (axis,) = ledger_figure(entries).axes
    assert axis.get_title() == "test-kvasir"
    shown = [label.get_text() for label in axis.get_yticklabels()]
    assert shown[0].startswith("Trained from scratch (")
    assert sorted(shown[1:]) == ["Finetune", "JointTrain (all classes at once)", "iCaRL"]
    values = [entry.metrics["softmax"]["acc_last"] for entry in entries if "finetune" in entry.file.name]
    bars = axis.containers[shown.index("Finetune") - 1]  # the heading has none
    assert isinstance(bars, ErrorbarContainer)
    assert np.asarray(bars.lines[0].get_xdata()).tolist() == pytest.approx([statistics.fmean(values)])
    for suffix in (".svg", ".png"):
        files = [tmp_path / f"{name}{suffix}" for name in ("one", "other")]
        for file in files:
            write_ledger_plot(entries, file)
        assert files[0].read_bytes() == files[1].read_bytes()
        assert 1_000 < files[0].stat().st_size < 200_000
    with pytest.raises(EndocilError, match=r"expected a name that ends in \.svg, \.png, \.pdf"):
        plot(tmp_path / "plot.txt", ledger)
