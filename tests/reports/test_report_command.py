"""endocil report: one file from runs, with pictures only where they are wanted."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pictures import TINY
from typer.testing import CliRunner

from endocil.cli.main import _application
from endocil.errors import EndocilError
from endocil.runs import run as experiment

MakeRun = Callable[..., Path]


def _report(*words: object) -> str:
    done = CliRunner().invoke(_application(), ["report", "--force", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, so that its exemplars can be looked up among its images."""
    folder = tmp_path_factory.mktemp("runs") / "learned"
    experiment.run({**TINY, "method": {"name": "endocil"}}, folder)
    return folder


def test_a_page_is_written_and_its_place_told(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(method) for method in ("finetune", "icarl", "endocil", "joint")]
    page = tmp_path / "report.html"
    assert f"page: {page} (" in _report(*runs, "-o", page)
    assert "<h1>endocil: 4 runs</h1>" in page.read_text("utf-8")
    _report(runs[0], "-o", page, "--title", "Mine & yours")
    assert "<h1>Mine &amp; yours</h1>" in page.read_text("utf-8")


def test_reports_tables_and_the_ledger_take_the_folder_of_a_sweep(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(method) for method in ("finetune", "icarl")]
    sweep, page = runs[0].parent, tmp_path / "report.html"
    _report(sweep, "-o", page)
    assert "<h1>endocil: 01-finetune, 02-icarl</h1>" in page.read_text("utf-8")
    added = CliRunner().invoke(_application(), ["ledger", "add", str(sweep), "--ledger", str(tmp_path / "ledger")])
    assert added.exit_code == 0, added.output
    assert len(list((tmp_path / "ledger").glob("*.json"))) == 2


def test_pictures_are_shown_where_the_run_or_the_command_says_so(learned: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    _report(learned, "-o", page)
    assert "<img" not in page.read_text("utf-8")  # run.gallery is false

    _report(learned, "-o", page, "--gallery")
    shown = page.read_text("utf-8")
    exemplars = shown[shown.index('id="gallery"') : shown.index('id="definitions"')]
    assert exemplars.count("<img") == 5 * 4  # classes, and memory.per_class of each
    assert 'id="mistakes"' in shown
    first = (learned / "memory" / "task-2.csv").read_text("utf-8").splitlines()[1].split(",")[0]
    assert first in shown
    _report(learned, "-o", page, "--gallery", "--no-names")
    unnamed = page.read_text("utf-8")
    assert unnamed.count("<img") == shown.count("<img")
    assert first not in page.read_text("utf-8")

    settings = learned / "settings.toml"
    as_it_was = settings.read_text("utf-8")
    try:
        settings.write_text(as_it_was.replace("gallery = false", "gallery = true"), "utf-8")
        _report(learned, "-o", page)
        assert "<img" in page.read_text("utf-8")
        _report(learned, "-o", page, "--no-gallery")
        assert "<img" not in page.read_text("utf-8")
    finally:
        settings.write_text(as_it_was, "utf-8")


def test_images_that_are_gone_are_told_and_stop_only_who_asked_for_them(make_run: MakeRun, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run = make_run("endocil", run__gallery=True)
    assert f"no exemplars of {run.name}: " in _report(run, "-o", page)
    assert "<img" not in page.read_text("utf-8")
    with pytest.raises(EndocilError):
        _report(run, "-o", page, "--gallery")


def test_a_folder_cannot_be_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match="is a folder; name a file with -o"):
        _report(make_run("endocil"), "-o", tmp_path)
