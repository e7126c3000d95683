"""A run that was stopped and went on is the run that was not, bit for bit."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tomli_w
from commands import command
from commands import endocil as type_here
from life import ALL_METHODS, EPOCHS, Life, Lives, differing, new_method, state_of
from pictures import TINY, run_files

import endocil
from endocil import EndocilError
from endocil.io.files import write_atomically
from endocil.learning.checkpoint import FILE, load_checkpoint


class StoppedError(Exception):
    pass


def stop_after(n_events: int, kind: str = "epoch"):
    left = itertools.count(n_events - 1, -1)

    def show(record: dict) -> None:
        if record["event"] == kind and next(left) == 0:
            raise StoppedError

    return show


def events(folder: Path) -> list[dict]:
    lines = (folder / "events.jsonl").read_text("utf-8").splitlines()
    untimed = [json.loads(line) for line in lines]
    for record in untimed:
        for key in ("seconds", "images_per_second", "peak_megabytes"):
            record.pop(key, None)
    return untimed


@pytest.mark.parametrize("name", ALL_METHODS)
def test_a_life_stopped_at_any_epoch_of_any_phase_goes_on_to_the_same_bits(
    name: str, lives: Lives, tmp_path: Path
) -> None:
    """Each goes on to what lies there at the next stop, and the last to the end: so all of them go on to the end."""
    straight, stops = lives.whole(name), lives.stops(name)
    assert len(stops) == sum(record["event"] == "epoch" for record in events(straight.folder))
    assert len(stops) >= EPOCHS * len(straight.scenario.tasks)
    assert all(
        (stop / FILE).exists() for stop in stops[1:]
    )  # the first epoch was not over: the run starts again
    for n, stop in enumerate(stops[1:-1], start=1):
        every_epoch = itertools.count(0, 100).__next__
        folder = shutil.copytree(stop, tmp_path / stop.name)
        resumed = Life(lives.images, folder, new_method(name), clock=every_epoch)
        resumed.journal.show = stop_after(2)  # the epoch that was not saved, and the next one
        with pytest.raises(StoppedError):
            resumed.go_on()
        assert events(folder) == events(stops[n + 1])
        assert (folder / FILE).read_bytes() == (stops[n + 1] / FILE).read_bytes()
    last = shutil.copytree(stops[-1], tmp_path / "last")
    resumed = Life(lives.images, last, new_method(name)).go_on()
    assert differing(state_of(straight.method), state_of(resumed.method)) == []
    assert events(resumed.folder) == events(straight.folder)
    if straight.memory is not None:
        assert resumed.memory.records() == straight.memory.records()


def test_what_a_stopped_life_leaves_is_what_lies_there_when_it_is_stopped(
    lives: Lives, tmp_path: Path
) -> None:
    """So a copy of the folder of a life that lives on stands for a life that was stopped."""
    for n, stop in enumerate(lives.stops("bic"), start=1):
        clock = itertools.count(0, 100).__next__
        stopped = Life(lives.images, tmp_path / str(n), new_method("bic"), clock=clock)
        stopped.journal.show = stop_after(n)
        with pytest.raises(StoppedError):
            stopped.live()
        assert sorted(path.name for path in stopped.folder.iterdir()) == sorted(
            path.name for path in stop.iterdir()
        )
        assert events(stopped.folder) == events(stop)
        if (stop / FILE).exists():
            assert (stopped.folder / FILE).read_bytes() == (stop / FILE).read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    endocil.run(TINY, folder)
    return folder


@pytest.mark.parametrize("kind", ["plan", "task", "epoch", "selection"])
def test_a_run_stopped_between_any_two_events_resumes_to_the_same_files(
    kind: str, tmp_path: Path, uninterrupted: Path
) -> None:
    with pytest.raises(StoppedError):
        endocil.run(TINY, tmp_path / "run", show=stop_after(1))
    for n in range(1, 30):
        try:
            endocil.resume(tmp_path / "run", show=stop_after(n, kind))
        except StoppedError:
            continue
        break
    assert run_files(tmp_path / "run") == run_files(uninterrupted)


def test_a_run_killed_at_random_moments_resumes_to_the_same_files(
    tmp_path: Path, uninterrupted: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(tomli_w.dumps({**TINY, "run": {"threads": 1, "checkpoint_seconds": 0.0}}))
    folder, moments = tmp_path / "run", random.Random(0)
    typed: tuple[object, ...] = ("run", settings, "-o", folder)
    for _ in range(3):
        process = subprocess.Popen(command(*typed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while (
            not (folder / "settings.toml").exists() and time.monotonic() < deadline and process.poll() is None
        ):
            time.sleep(0.02)
        time.sleep(moments.uniform(0.05, 1.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if (folder / "settings.toml").exists():
            typed = ("resume", folder)
    finished = type_here(*typed)
    assert finished.returncode == 0, finished.stderr
    assert run_files(folder) == run_files(uninterrupted)
    assert not list(folder.rglob("*.tmp"))


def test_a_checkpoint_that_could_not_be_written_leaves_the_one_before(
    lives: Lives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = lives.after("icarl", 1, tmp_path)
    before = (tmp_path / FILE).read_bytes()

    def full(path: Path, data: bytes) -> None:
        def no_space(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", no_space)
        write_atomically(path, data)

    monkeypatch.setattr("endocil.learning.checkpoint.write_atomically", full)
    with pytest.raises(EndocilError, match="No space left"):
        life.step(life.scenario.tasks[1])
    assert (tmp_path / FILE).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        FILE,
        "events.jsonl",
        "exemplars-1.safetensors",
    ]


def test_a_damaged_or_foreign_checkpoint_is_refused_in_one_line(lives: Lives, tmp_path: Path) -> None:
    lives.after("icarl", 1, tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EndocilError, match="cannot be read"):
        load_checkpoint(tmp_path)
    (tmp_path / FILE).write_bytes(whole.replace(b'\\"format\\": 2', b'\\"format\\": 9'))
    with pytest.raises(EndocilError, match="has format 9; this version of endocil reads 2"):
        load_checkpoint(tmp_path)


def test_resume_refuses_a_folder_that_is_no_run_and_images_that_are_not_the_runs(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match="is not a run"):
        endocil.resume(tmp_path)
    with pytest.raises(StoppedError):
        endocil.run(TINY, tmp_path / "run", show=stop_after(1))
    split = tmp_path / "run" / "split.csv"
    split.write_text("\n".join(split.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(EndocilError, match=r"the images at data\.root are not those of the run"):
        endocil.resume(tmp_path / "run")


def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    def resume_too(record: dict) -> None:
        if record["event"] == "epoch":
            endocil.resume(tmp_path / "run")

    with pytest.raises(EndocilError, match="another process is working on the run"):
        endocil.run(TINY, tmp_path / "run", show=resume_too)


def test_a_checkpoint_of_other_settings_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        endocil.run(
            {**TINY, "run": {"threads": 1, "checkpoint_seconds": 0}}, tmp_path / "run", show=stop_after(2)
        )
    settings = tmp_path / "run" / "settings.toml"
    settings.write_text(settings.read_text().replace("width = 8", "width = 16"))
    with pytest.raises(EndocilError, match="does not fit"):
        endocil.resume(tmp_path / "run")


def test_a_finished_run_is_returned_as_it_is(uninterrupted: Path) -> None:
    before = run_files(uninterrupted)
    assert endocil.resume(uninterrupted).metrics == json.loads((uninterrupted / "metrics.json").read_text())
    assert run_files(uninterrupted) == before


def test_a_page_that_was_not_written_is_written_by_the_command_resume(uninterrupted: Path) -> None:
    (uninterrupted / "report.html").unlink(missing_ok=True)
    assert type_here("resume", uninterrupted).returncode == 0
    assert (uninterrupted / "report.html").stat().st_size > 1000
