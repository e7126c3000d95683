"""Runs to one folder: everything is there, tells where it comes from, and a failure leaves what was there before."""

import json
from pathlib import Path

import pytest
from pictures import TINY
from typer.testing import CliRunner

import endocil
from endocil.cli.main import _application
from endocil.errors import EndocilError
from endocil.io.text_tables import Spread
from endocil.reports import publish as writing
from endocil.reports.figures import kinds
from endocil.reports.publish import publish
from endocil.reports.tables import class_table
from endocil.runs.experiments import digest, groups
from endocil.runs.records import read_run

FORMS = ("csv", "md", "tex")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    asked = [("endocil", 0), ("endocil", 1), ("finetune", 0)]
    for method, seed in asked:
        endocil.run({**TINY, "seed": seed, "method": {"name": method}}, folder / f"{method}-{seed}")
    return [folder / f"{method}-{seed}" for method, seed in asked]


def command(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(_application(), ["publish", *map(str, words)])
    if isinstance(done.exception, EndocilError):
        return 1, str(done.exception)
    return done.exit_code, done.output


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_tables_figures_page_and_index_are_there_and_nothing_else(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "NAMES", ("accuracy", "gallery"))
    status, said = command(*runs, "-o", tmp_path / "out")
    assert status == 0, said
    found = set(contents(tmp_path / "out"))
    tables = ("results", "results-nearest-mean", "sources", "sources-nearest-mean", "classes", "versus")
    assert {f"tables/{name}.{form}" for name in tables for form in FORMS} <= found
    assert {"figures/accuracy.png", "figures/accuracy.pdf", "report.html", "index.md", "publish.json"} <= found
    record = json.loads((tmp_path / "out" / "publish.json").read_text())
    assert set(record["files"]) == found - {"publish.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "first exemplars of each class: images of patients; 'endocil figures --only gallery' draws it" in said


def test_the_index_names_every_file_and_every_run(runs: list[Path], tmp_path: Path) -> None:
    records = [read_run(run) for run in runs]
    publish(records, tmp_path / "out", figures=False)
    text = (tmp_path / "out" / "index.md").read_text("utf-8")
    for file in contents(tmp_path / "out").keys() - {"index.md", "publish.json"}:
        assert f"]({file})" in text
    for run in records:
        version = run.environment["torch"]
        assert f"| {run.name} |" in text
        assert f"| {run.settings['seed']} | {digest(run.settings)} | 0.1.0 |" in text
        assert f"| {version} |" in text


def test_a_table_of_classes_has_the_recalls_of_the_metrics(runs: list[Path]) -> None:
    records = [read_run(run) for run in runs]
    table = class_table(groups(records))
    metrics = [run.metrics["softmax"] for run in records]
    classes = records[0].metrics["classes"]
    assert [column.key for column in table.columns] == ["method", "seeds", *classes, "mean"]
    for j, name in enumerate(classes):
        own = [one["per_class"][name]["recall"] for one in metrics[:2]]
        cell = table.rows[0][2 + j]
        if None in own:  # no test image of so small a class
            assert cell is None
        else:
            assert isinstance(cell, Spread)
            assert cell.mean == pytest.approx(sum(own) / 2)
    last = table.rows[1][-1]
    assert isinstance(last, Spread)
    assert last.mean == pytest.approx(metrics[2]["balanced_last"])


def test_a_published_folder_is_replaced_and_others_are_left_alone(runs: list[Path], tmp_path: Path) -> None:
    out, records = tmp_path / "out", [read_run(run) for run in runs]
    publish(records, out, figures=False)
    publish(records[:1], out, figures=False)
    assert not (out / "tables" / "versus.md").exists()
    assert len(json.loads((out / "publish.json").read_text())["runs"]) == 1
    (out / "mine.txt").write_text("notes")
    before = contents(out)
    with pytest.raises(EndocilError, match=r"did not write \(mine.txt\)"):
        publish(records, out, figures=False)
    with pytest.raises(EndocilError, match="was not written by 'endocil publish'"):
        publish(records, runs[0], figures=False)
    with pytest.raises(EndocilError, match="is a file"):
        publish(records, out / "mine.txt", figures=False)
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_leaves_what_was_there_and_no_more(
    there: bool, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [read_run(run) for run in runs]
    if there:
        publish(records, tmp_path / "out", figures=False)
    before = contents(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_page", full)
    with pytest.raises(EndocilError, match="No space left on device"):
        publish(records, tmp_path / "out", figures=False)
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if there else [])


def test_runs_go_into_the_ledger_and_its_tables_into_the_readme(runs: list[Path], tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Mine\n\n<!-- ledger:runs -->\n<!-- /ledger -->\n")
    words = (*runs, "-o", tmp_path / "out", "--no-figures", "--ledger", tmp_path / "ledger", "--insert", readme)
    for _ in range(2):  # the second time adds nothing
        status, said = command(*words)
        assert status == 0, said
        assert len(list((tmp_path / "ledger").glob("*.json"))) == 3
        assert "| Finetune |" in readme.read_text("utf-8")
    assert "already in the ledger" in said


def test_what_the_ledger_would_refuse_is_refused_before_anything_is_written(runs: list[Path], tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no place\n")
    given = (*runs, "-o", tmp_path / "out", "--no-figures", "--insert", readme)
    assert command(*given) == (1, "--insert writes the tables of a ledger; give it with --ledger")
    for ledger in ("new", "there"):
        if ledger == "there":
            (tmp_path / ledger).mkdir()
        status, said = command(*given, "--ledger", tmp_path / ledger)
        assert status == 1
        assert "has no place for a table" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "there"]


def test_runs_on_other_images_are_refused(runs: list[Path], tmp_path: Path) -> None:
    other = {**TINY, "data": {**TINY["data"], "classes": 4}, "scenario": {"increments": [2, 2]}}
    endocil.run(other, tmp_path / "other")
    status, _ = command(*runs, tmp_path / "other", "-o", tmp_path / "out", "--no-figures")
    assert status == 1
    assert not (tmp_path / "out").exists()
