"""Runs that learn, that were stopped and that are finished, seen from outside."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pictures import TINY
from rich.console import Console
from typer.testing import CliRunner

import endocil
from endocil.cli import runs
from endocil.cli.main import _application
from endocil.cli.runs import run_panel, sweep_table
from endocil.errors import EndocilError, FileFormatError
from endocil.learning.events import read_events
from endocil.runs.folder import RunFolder
from endocil.runs.follow import FolderFollower, RunFollower, Snapshot


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and one that was stopped in its second task."""
    folder = tmp_path_factory.mktemp("runs")
    endocil.run(TINY, folder / "finished")

    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and record["task"] == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        endocil.run(TINY, folder / "stopped", show=stop)
    return folder


def said(*words: object) -> str:
    done = CliRunner().invoke(_application(), ["watch", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def terminal(file: io.StringIO) -> Console:
    return Console(width=200, force_terminal=True, no_color=True, file=file, legacy_windows=False)


def on_a_terminal(shown: Any) -> str:
    text = io.StringIO()
    terminal(text).print(shown)
    return text.getvalue()


def test_a_line_that_is_half_written_waits_and_a_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    file, lines = (tmp_path / "events.jsonl", [json.dumps({"event": "end", "task": n}) + "\n" for n in range(3)])
    assert read_events(file) == []
    file.write_text(lines[0] + lines[1][:9])
    assert [event["task"] for event in read_events(file)] == [0]
    file.write_text(lines[0] + lines[1])
    assert [event["task"] for event in read_events(file)] == [0, 1]
    other = tmp_path / "new"
    other.write_text(lines[0] + lines[2])  # as long as the file before
    other.replace(file)
    assert [event["task"] for event in read_events(file)] == [0, 2]
    with pytest.raises(FileFormatError, match="cannot read"):
        read_events(tmp_path / "none", finished=True)
    for damaged in ("{\n", "[]\n"):
        file.write_text(lines[0] + damaged)
        with pytest.raises(FileFormatError, match=r"events\.jsonl, line 2 is not"):
            read_events(file)


def test_a_run_is_followed_while_it_learns(tmp_path: Path) -> None:
    views: list[Snapshot] = []

    def look(record: dict[str, Any]) -> None:
        if record["event"] in ("task", "epoch", "learned"):
            views.append(RunFollower(tmp_path / "run").snapshot())

    found = endocil.run(TINY, tmp_path / "run", show=look)
    assert {view.status for view in views} == {"running"}
    shares = [view.state.share for view in views]
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(1.0)
    after = RunFollower(tmp_path / "run").snapshot()
    assert after.status == "finished"
    assert list(after.accuracies) == found.metrics["softmax"]["acc"]
    counts = [len(view.accuracies) for view in views]
    assert counts == sorted(counts)
    assert counts[-1] == len(after.accuracies) - 1  # the last task was learned, but not yet evaluated


def test_a_finished_run_is_shown_with_its_accuracies(sweep: Path) -> None:
    metrics = json.loads((sweep / "finished" / "metrics.json").read_text())
    text = said(sweep / "finished")
    assert "finished: finished" in text
    for value in metrics["softmax"]["acc"]:
        assert f"accuracy {value:.2f} %" in text
    assert "left" not in text
    drawn = on_a_terminal(run_panel(RunFollower(sweep / "finished").snapshot()))
    assert f"{metrics['softmax']['acc'][-1]:.2f} %" in drawn


def test_a_stopped_run_says_how_to_go_on(sweep: Path) -> None:
    text = said(sweep / "stopped")
    assert f"no process is working on it; continue with 'endocil resume {sweep / 'stopped'}'" in text
    assert "of training left" in text
    assert "task 2/3 train " in text
    assert "continue with 'endocil resume " in on_a_terminal(run_panel(RunFollower(sweep / "stopped").snapshot()))


def test_a_folder_of_runs_is_shown_run_by_run(sweep: Path) -> None:
    lines = said(sweep).splitlines()
    assert lines[0].startswith("finished  finished  task ")
    assert lines[1].startswith("stopped  stopped  task 2/3 train ")
    assert lines[2] == "1 finished, 1 stopped"
    drawn = on_a_terminal(sweep_table(FolderFollower(sweep).snapshots()))
    assert "1 finished, 1 stopped" in drawn


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match="neither a run nor a folder with runs"):
        FolderFollower(tmp_path)


@pytest.fixture
def working(sweep: Path) -> Iterator[Path]:
    """The stopped run, with somebody who works on it."""
    with RunFolder(sweep / "stopped").locked():
        yield sweep / "stopped"


def test_lines_follow_a_run_until_ctrl_c_which_is_quiet(working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([0.0, 0.0])

    def interrupted(seconds: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    lines = said(working).splitlines()
    assert lines[0].startswith("task 1: ")
    assert len(lines) == len(set(lines))  # nothing is said twice
    assert not any("Abort" in line or "no process" in line for line in lines)


def test_once_shows_a_run_at_work_and_ends(working: Path) -> None:
    assert ": running" in said(working, "--once").splitlines()[0]


def test_a_terminal_shows_the_picture_until_nobody_works_on_the_run(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    screen, lock = terminal(output), RunFolder(sweep / "stopped").locked()
    monkeypatch.setattr(runs, "console", lambda: screen)
    monkeypatch.setattr(time, "sleep", lambda seconds: lock.__exit__(None, None, None))
    lock.__enter__()
    said(sweep / "stopped")
    text = output.getvalue()
    assert text.index("running") < text.index("no process is working on it")
