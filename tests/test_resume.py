"""A run that was stopped and went on is the run that was not, bit for bit."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from commands import command
from commands import endocil as type_here
from life import EPOCHS, FROZEN, POOLED, TRAINED, Life, Lives, differing, new_method, state_of
from pictures import TINY, run_files
from safetensors.torch import save

import endocil
from endocil import EndocilError
from endocil.io.files import write_atomically, write_json
from endocil.learning.checkpoint import FILE, Position, load_checkpoint, write_tensors
from endocil.runs.folder import RunFolder


class StoppedError(Exception):
    pass


def stop_after(n_events: int, kind: str = "epoch") -> Callable[[dict[str, Any]], None]:
    left = itertools.count(n_events - 1, -1)

    def show(record: dict[str, Any]) -> None:
        if record["event"] == kind and next(left) == 0:
            raise StoppedError

    return show


def events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text("utf-8").splitlines()
    untimed = [json.loads(line) for line in lines if line]
    for record in untimed:
        for key in ("seconds", "images_per_second", "peak_megabytes"):
            record.pop(key, None)
    return untimed


@pytest.mark.parametrize("name", FROZEN)
def test_a_life_without_epochs_stopped_before_any_task_goes_on_to_the_same_bits(
    name: str, lives: Lives, tmp_path: Path
) -> None:
    straight = lives.whole(name)
    for done in range(1, len(straight.scenario.tasks)):
        resumed = Life(lives.images, lives.copied(name, done, tmp_path / str(done)), new_method(name)).go_on()
        assert differing(state_of(straight.method), state_of(resumed.method)) == []
        assert events(resumed.folder) == events(straight.folder)


@pytest.mark.parametrize("name", TRAINED)
def test_a_life_stopped_at_any_epoch_of_any_phase_goes_on_to_the_same_bits(
    name: str, lives: Lives, tmp_path: Path
) -> None:
    """Each goes on to what lies there at the next stop, and the last to the end: so all of them go on to the end."""
    straight, stops = lives.whole(name), lives.stops(name)
    assert len(stops) == sum(record["event"] == "epoch" for record in events(straight.folder))
    assert len(stops) >= EPOCHS * len(straight.scenario.tasks)
    assert all((stop / FILE).exists() for stop in stops[1:])  # the first epoch was not over: the run starts again
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


@pytest.mark.parametrize(("name", "step"), [("endocil", 2), ("foster", 12), ("bic", 21), ("ewc", 9), ("dgr", 15)])
def test_a_life_told_to_stop_in_the_middle_of_an_epoch_loses_no_step(
    name: str, step: int, lives: Lives, tmp_path: Path
) -> None:
    straight, steps = lives.whole(name), itertools.count(1)
    stopped = Life(lives.images, tmp_path, new_method(name), stop=lambda: next(steps) >= step)
    with pytest.raises(KeyboardInterrupt):
        stopped.live()
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint is not None  # at once, long before the first thirty seconds
    if name == "endocil":
        assert checkpoint.position == Position(0, 0, 0, 2)
    resumed = Life(lives.images, tmp_path, new_method(name)).go_on()
    assert differing(state_of(straight.method), state_of(resumed.method)) == []
    assert events(resumed.folder) == events(straight.folder)


@pytest.mark.parametrize(
    ("name", "step", "options"), [("endocil", 12, {}), ("ewc", 9, {"fisher": "pycil"})], ids=["endocil", "ewc"]
)
def test_dropout_draws_the_same_in_a_life_that_goes_on(
    name: str, step: int, options: dict[str, Any], lives: Lives, tmp_path: Path
) -> None:
    """A new process begins with another state of torch's own generator, and leaves it alone."""

    def method() -> Any:
        return new_method(name, network="small_networks:Dropping", **options)

    straight = Life(lives.images, tmp_path / "straight", method()).live()
    steps = itertools.count(1)
    with pytest.raises(KeyboardInterrupt):
        Life(lives.images, tmp_path / "stopped", method(), stop=lambda: next(steps) >= step).live()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    resumed = Life(lives.images, tmp_path / "stopped", method()).go_on()
    assert torch.equal(torch.get_rng_state(), before)
    assert differing(state_of(straight.method), state_of(resumed.method)) == []
    assert events(resumed.folder) == events(straight.folder)
    without = Life(lives.images, tmp_path / "without", new_method(name, network=POOLED, **options)).live()
    assert differing(state_of(straight.method), state_of(without.method))


def test_what_a_stopped_life_leaves_is_what_lies_there_when_it_is_stopped(lives: Lives, tmp_path: Path) -> None:
    """So a copy of the folder of a life that lives on stands for a life that was stopped."""
    for n, stop in enumerate(lives.stops("bic"), start=1):
        clock = itertools.count(0, 100).__next__
        stopped = Life(lives.images, tmp_path / str(n), new_method("bic"), clock=clock)
        stopped.journal.show = stop_after(n)
        with pytest.raises(StoppedError):
            stopped.live()
        assert sorted(path.name for path in stopped.folder.iterdir()) == sorted(path.name for path in stop.iterdir())
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


def test_a_run_killed_at_random_moments_resumes_to_the_same_files(tmp_path: Path, uninterrupted: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(tomli_w.dumps({**TINY, "run": {"threads": 1, "checkpoint_seconds": 0.0}}))
    folder, moments = tmp_path / "run", random.Random(0)
    typed: tuple[object, ...] = ("run", settings, "-o", folder)
    for _ in range(3):
        process = subprocess.Popen(command(*typed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (folder / "settings.toml").exists() and time.monotonic() < deadline and process.poll() is None:
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

    def full(path: Path, *parts: bytes) -> None:
        def no_space(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", no_space)
        write_atomically(path, *parts)

    monkeypatch.setattr("endocil.learning.checkpoint.write_atomically", full)
    with pytest.raises(EndocilError, match="No space left"):
        life.step(life.scenario.tasks[1])
    assert (tmp_path / FILE).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, "events.jsonl", "exemplars-1.safetensors"]


def test_a_damaged_or_foreign_checkpoint_is_refused_in_one_line(lives: Lives, tmp_path: Path) -> None:
    lives.after("icarl", 1, tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EndocilError, match="cannot be read"):
        load_checkpoint(tmp_path)
    write_tensors(tmp_path / FILE, {"format": 9}, {})
    with pytest.raises(EndocilError, match="has format 9; this version of endocil reads 5"):
        load_checkpoint(tmp_path)
    write_atomically(tmp_path / FILE, save({}, metadata={"endocil": '{"format": 2}'}))
    with pytest.raises(EndocilError, match="it has no checksum: another version of endocil wrote it"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", [FILE, "exemplars-1.safetensors"])
def test_every_flipped_bit_of_a_checkpoint_is_found(name: str, lives: Lives, tmp_path: Path) -> None:
    lives.after("icarl", 1, tmp_path)
    whole = (tmp_path / name).read_bytes()
    assert load_checkpoint(tmp_path) is not None
    places = random.Random(0)
    for place in (*range(0, 1200, 61), *(places.randrange(len(whole)) for _ in range(40)), len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << places.randrange(8)
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(EndocilError, match="start the run again in a new folder"):
            load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 0", "seed = 1", "seed was 0, is 1"),
        ("epochs = 2", "epochs = 3", r"train\.epochs was 2, is 3"),
        ("per_class = 4", "per_class = 5", r"memory\.per_class was 4, is 5"),
    ],
)
def test_settings_that_were_edited_are_refused_by_their_names(old: str, new: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        endocil.run(TINY, tmp_path / "run", show=stop_after(1, "learned"))
    file = tmp_path / "run" / "settings.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(
        EndocilError, match=rf"settings\.toml was changed .*{words}.*; put the old values back, or start"
    ):
        endocil.resume(tmp_path / "run")
    file.write_text(text.replace("checkpoint_seconds = 30.0", "checkpoint_seconds = 60.0"))  # decides nothing
    assert endocil.resume(tmp_path / "run").metrics["softmax"]["acc"]


def test_of_two_runs_into_one_folder_the_second_changes_nothing(tmp_path: Path) -> None:
    """The folder was empty when the second one looked, as it is when both are started at once."""
    folder, texts = tmp_path / "run", list[str]()

    def second(record: dict[str, Any]) -> None:
        if record["event"] == "task" and not texts:
            before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RunFolder, "refuse_used", lambda self: None)
                with pytest.raises(EndocilError, match="another process is working on the run"):
                    endocil.run({**TINY, "seed": 5}, folder)
            texts.append((folder / "settings.toml").read_text())
            assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before

    endocil.run(TINY, folder, show=second)
    assert "seed = 0" in texts[0]
    with pytest.raises(EndocilError, match="holds a finished run"):
        endocil.run({**TINY, "seed": 5}, folder)


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
    def resume_too(record: dict[str, Any]) -> None:
        if record["event"] == "epoch":
            endocil.resume(tmp_path / "run")

    with pytest.raises(EndocilError, match="another process is working on the run"):
        endocil.run(TINY, tmp_path / "run", show=resume_too)


def test_a_checkpoint_of_other_settings_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        endocil.run({**TINY, "run": {"threads": 1, "checkpoint_seconds": 0}}, tmp_path / "run", show=stop_after(2))
    settings = tmp_path / "run" / "settings.toml"
    settings.write_text(settings.read_text().replace("width = 8", "width = 16"))
    with pytest.raises(EndocilError, match=r"network\.width was 8, is 16"):
        endocil.resume(tmp_path / "run")


def test_the_checkpoint_is_removed_only_after_model_and_metrics_are_written(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def stop(path: Path, value: object) -> None:
        if path.name == "metrics.json":
            raise StoppedError
        write_json(path, value)

    with monkeypatch.context() as patch:
        patch.setattr("endocil.runs.run.write_json", stop)
        with pytest.raises(StoppedError):
            endocil.run(TINY, folder)
    assert (folder / "model.endocil").exists()
    assert (folder / FILE).exists()
    endocil.resume(folder)
    assert not (folder / FILE).exists()
    assert not list(folder.glob("exemplars-*"))
    assert run_files(folder) == run_files(uninterrupted)


def test_a_finished_run_is_returned_as_it_is(uninterrupted: Path) -> None:
    before = run_files(uninterrupted)
    assert endocil.resume(uninterrupted).metrics == json.loads((uninterrupted / "metrics.json").read_text())
    assert run_files(uninterrupted) == before


def test_a_page_that_was_not_written_is_written_by_the_command_resume(uninterrupted: Path) -> None:
    (uninterrupted / "report.html").unlink(missing_ok=True)
    assert type_here("resume", uninterrupted).returncode == 0
    assert (uninterrupted / "report.html").stat().st_size > 1000


@pytest.mark.parametrize("damage", [b'{"event": "epo', b"[]", b'{"event": "epoch", "images": "many"}', b"\xff\xfe"])
def test_a_damaged_line_of_the_record_does_not_stop_a_sound_checkpoint(
    damage: bytes, tmp_path: Path, uninterrupted: Path
) -> None:
    folder, remarks = tmp_path / "run", list[str]()
    with pytest.raises(StoppedError):
        endocil.run(TINY, folder, show=stop_after(2, "learned"))
    lines = (folder / "events.jsonl").read_bytes().split(b"\n")
    lines[1] = damage
    (folder / "events.jsonl").write_bytes(b"\n".join(lines))
    stop = stop_after(1, "task")

    def told_and_stopped(record: dict[str, Any]) -> None:
        remarks.extend(record.get("remarks", ()))
        stop(record)

    with pytest.raises(StoppedError):  # once more, before another checkpoint
        endocil.resume(folder, show=told_and_stopped)
    endocil.resume(folder)
    assert run_files(folder) == run_files(uninterrupted)
    assert any("left out of the record" in remark and "line 2" in remark for remark in remarks)
    assert len(events(folder)) == len(events(uninterrupted)) - 1
    assert type_here("table", folder).returncode == 0


@pytest.mark.parametrize("name", ["predictions/task-0.csv", "memory/task-0.csv"])
def test_lists_of_a_task_before_the_stop_that_were_changed_are_refused(name: str, tmp_path: Path) -> None:
    """The metrics are computed from them at the end."""
    folder = tmp_path / "run"
    with pytest.raises(StoppedError):
        endocil.run(TINY, folder, show=stop_after(1, "task"))
    with pytest.raises(StoppedError):
        endocil.resume(folder, show=stop_after(2, "task"))
    whole = (folder / name).read_bytes()
    places = random.Random(0)
    for place in (places.randrange(len(whole)) for _ in range(5)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (folder / name).write_bytes(damaged)
        with pytest.raises(EndocilError, match=rf"{name} is not as the run has written it.*restore it, or start"):
            endocil.resume(folder)
    (folder / name).unlink()
    with pytest.raises(EndocilError, match="changed, damaged or removed"):
        endocil.resume(folder)
    (folder / name).write_bytes(whole)
    endocil.resume(folder)
