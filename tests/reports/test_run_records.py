"""What is read back from a run folder, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from endocil.errors import EndocilError
from endocil.runs.records import read_run, read_runs

MakeRun = Callable[..., Path]


def test_a_finished_run_is_read_whole(make_run: MakeRun) -> None:
    record = read_run(make_run("endocil", seed=3))
    assert record.name == "01-endocil"
    assert record.settings["seed"] == 3
    assert record.environment["torch"] == "2.9.0"
    assert record.metrics["task_sizes"] == [4, 3, 3, 2, 2]
    assert len(record.events_of("epoch")) == 5 * 6
    assert len(record.events_of("selection")) == 14
    assert record.images["barretts"] == {"test": 20, "train": 80}
    assert len(record.exemplars) == 14 * 30


def test_a_method_without_memory_has_no_exemplars(make_run: MakeRun) -> None:
    assert read_run(make_run("finetune")).exemplars == ()


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"there is no run folder .*nothing"):
        read_run(tmp_path / "nothing")


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"is not a run: it has no settings\.toml"):
        read_run(tmp_path)


def test_the_folder_of_a_sweep_stands_for_its_runs(make_run: MakeRun) -> None:
    one, other = make_run("finetune"), make_run("icarl")
    sweep = one.parent
    for name in ("logs", "first-tasks"):  # what else a sweep keeps
        (sweep / name).mkdir()
    (sweep / "report.html").touch()
    assert [run.name for run in read_runs([sweep])] == [one.name, other.name]
    assert [run.folder for run in read_runs([other, sweep])] == [other, one, other]
    (other / "metrics.json").unlink()
    with pytest.raises(EndocilError, match=f"not finished; finish it with `endocil resume {other}`"):
        read_runs([sweep])


def test_a_run_without_metrics_is_refused_with_the_way_to_finish_it(make_run: MakeRun) -> None:
    folder = make_run("icarl")
    (folder / "metrics.json").unlink()
    with pytest.raises(EndocilError, match=f"not finished; finish it with `endocil resume {folder}`"):
        read_run(folder)


def test_metrics_of_fewer_tasks_than_the_run_has_are_not_finished(make_run: MakeRun) -> None:
    folder = make_run("icarl")
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["softmax"]["acc"].pop()
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(EndocilError, match="endocil resume"):
        read_run(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("settings.toml", "seed = ", "is not TOML"),
        ("environment.json", "{", "is not JSON"),
        ("environment.json", "[]", "expected a JSON object, got list"),
        ("metrics.json", "{}", "lacks 'softmax'"),
        ("events.jsonl", '{"event": "end"}\n{"ev', "line 2 is not JSON"),
    ],
)
def test_a_damaged_file_is_named(make_run: MakeRun, file: str, content: str, message: str) -> None:
    folder = make_run("icarl")
    (folder / file).write_text(content)
    with pytest.raises(EndocilError, match=message) as caught:
        read_run(folder)
    assert file in str(caught.value)


def test_a_missing_file_is_named(make_run: MakeRun) -> None:
    folder = make_run("icarl")
    (folder / "events.jsonl").unlink()
    with pytest.raises(EndocilError, match=r"cannot read .*events\.jsonl"):
        read_run(folder)
