"""Runs on several processes: started here or by torchrun, one that writes, and resumed on another number."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from pictures import TINY

from endocil import EndocilError
from endocil.io.process import is_rank_zero
from endocil.learning.parallel import OneProcess, learning_on, one_device, started
from endocil.model.prediction_files import read_run_predictions

# Small steps, and exemplars that do not hang on a last digit.
GENTLE = {
    **TINY,
    "data": {**TINY["data"], "size": 32},
    "memory": {"per_class": 4, "select": "random"},
    "method": {"name": "icarl"},
    "train": {**TINY["train"], "learning_rate": 0.0001},
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "tiny.toml"
    path.write_text(tomli_w.dumps({**GENTLE, "run": {"threads": 1, "checkpoint_seconds": 0.0}}))
    return path


def call(*arguments: object, launcher: tuple[str, ...] = ("-m",)) -> str:
    command = [sys.executable, *launcher, "endocil", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def epochs(folder: Path) -> dict[tuple[int, int], float]:
    """(task, epoch) -> loss; each stands once."""
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text("utf-8").splitlines()]
    found = [record for record in records if record["event"] == "epoch"]
    told = {(record["task"], record["epoch"]): record["losses"]["classification"] for record in found}
    assert len(told) == len(found)
    return told


def processes(folder: Path) -> int:
    return int(json.loads((folder / "environment.json").read_text("utf-8"))["processes"])


@pytest.fixture(scope="module")
def alone(settings: Path) -> Path:
    call("run", settings, "-o", settings.parent / "alone")
    return settings.parent / "alone"


def same_results(one: Path, other: Path) -> None:
    """The same epochs, exemplars and test images. Losses are only near: in so small a network one activation that
    rounding moves across zero changes a gradient by percents (tests/test_processes.py compares steps exactly)."""
    assert epochs(other) == pytest.approx(epochs(one), rel=0.15)
    assert epochs(other)[0, 0] == pytest.approx(epochs(one)[0, 0], rel=0.01)
    for memory in sorted((one / "memory").iterdir()):
        assert memory.read_bytes() == (other / "memory" / memory.name).read_bytes()
    files = sorted((one / "predictions").iterdir())
    ours, theirs = (read_run_predictions([run / "predictions" / file.name for file in files]) for run in (one, other))
    for mine, yours in zip(ours, theirs, strict=True):
        assert (mine.images, mine.classes) == (yours.images, yours.classes)


@pytest.mark.slow
def test_two_processes_leave_one_run_with_the_results_of_one(alone: Path, settings: Path, tmp_path: Path) -> None:
    said = call("run", settings, "-o", tmp_path / "two", "--devices", 2)
    assert said.count("Acc_last") == 1  # one speaks
    assert (processes(alone), processes(tmp_path / "two")) == (1, 2)
    same_results(alone, tmp_path / "two")
    both = [{str(path.relative_to(run)) for path in run.rglob("*")} for run in (alone, tmp_path / "two")]
    assert both[0] == both[1]


@pytest.mark.slow
def test_a_run_of_one_process_goes_on_with_two_that_torchrun_has_started(
    alone: Path, settings: Path, tmp_path: Path
) -> None:
    stopped(settings, tmp_path / "run", devices=1)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    call("resume", tmp_path / "run", launcher=launcher)
    same_results(alone, tmp_path / "run")


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_with_one(alone: Path, settings: Path, tmp_path: Path) -> None:
    stopped(settings, tmp_path / "run", devices=2)
    call("resume", tmp_path / "run")
    same_results(alone, tmp_path / "run")


def stopped(settings: Path, folder: Path, devices: int) -> None:
    """A run that is killed with all its processes once it has learned its first task."""
    command = [sys.executable, "-m", "endocil", "run", str(settings), "-o", str(folder)]
    command += ["--devices", str(devices)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while '"learned"' not in _events(folder) and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    (folder / "metrics.json").unlink(missing_ok=True)  # on a starved machine it may have ended before the kill


@pytest.mark.slow
def test_when_one_process_is_killed_the_other_says_so_and_the_run_can_go_on(settings: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "endocil", "run", str(settings), "-o", str(tmp_path / "run")]
    command += ["--devices", "2", "--set", "train.epochs=400"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "checkpoint.safetensors").exists():  # which follows the record of the first epoch
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (other,) = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(other), signal.SIGKILL)
    _, said = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "Traceback" not in said
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def _events(folder: Path) -> str:
    path = folder / "events.jsonl"
    return path.read_text("utf-8") if path.exists() else ""


def test_the_number_of_processes_is_as_asked_for_or_as_a_launcher_has_started_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert started(2, 3) == ("", 2, 3)
    with pytest.raises(EndocilError, match="0 devices on 1 machines"):
        started(0, 1)
    for name, value in {"TORCHELASTIC_RUN_ID": "a", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert started(1, 1) == started(4, 2) == ("torchrun", 4, 2)
    with pytest.raises(EndocilError, match="torchrun has started 4 processes on each of 2"):
        started(3, 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(EndocilError, match="LOCAL_WORLD_SIZE is 'many'"):
        started(1, 1)


def test_slurm_tells_its_tasks_and_an_interactive_shell_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"):
        monkeypatch.setenv(name, "0")
    for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.setenv(name, "16")
    # a batch script without srun has one process, whatever the job may have
    assert started(2, 1) == ("", 2, 1)
    assert one_device("cpu").world_size == 1
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "16")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    assert started(1, 1) == started(8, 2) == ("Slurm", 8, 2)
    with pytest.raises(EndocilError, match="Slurm has started 8 processes on each of 2"):
        started(16, 1)
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "3")
    with pytest.raises(EndocilError, match="16 processes on 3 machines; start as many on each"):
        started(1, 1)


def test_a_task_of_slurm_leads_its_own_processes_and_of_many_tasks_the_first_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("LOCAL_RANK", "1")  # a process that was started by --devices in a job of one task
    assert not is_rank_zero()
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert is_rank_zero()
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert not is_rank_zero()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "the environment has no MASTER_ADDR, MASTER_PORT, NODE_RANK; set"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500"}, "the environment has no NODE_RANK; set"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "abc", "NODE_RANK": "0"}, "MASTER_PORT is 'abc'"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "29500", "NODE_RANK": "2"}, "NODE_RANK is '2'; expected .* 0 to 1"),
    ],
)
def test_machines_that_could_not_find_each_other_are_refused(
    given: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EndocilError, match=told), learning_on("cpu", 1, 2):
        pass


def test_fabric_chooses_the_device_where_torch_sees_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(one_device("cpu"), OneProcess)
    for seen in (False, True):
        monkeypatch.setattr("torch.accelerator.is_available", lambda seen=seen: seen)
        assert isinstance(one_device("auto"), OneProcess) is not seen


def test_an_accelerator_without_its_package_and_a_compiler_that_fails_are_told() -> None:
    with pytest.raises(EndocilError, match=r"run\.accelerator 'tpu' cannot be used"), learning_on("tpu"):
        pass
    broken = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    with pytest.raises(EndocilError, match=r"train\.compile does not work here: no C"), learning_on("cpu"):
        raise broken("no C++ compiler\nand a long story")


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "NODE_RANK"])
def test_the_first_process_leads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert is_rank_zero()
    monkeypatch.setenv(name, "0")
    assert is_rank_zero()
    monkeypatch.setenv(name, "1")
    assert not is_rank_zero()


IMPORTED = """
import sys
from endocil import Model, run
Model.create(size=32)
run({"data": {"name": "synthetic", "images": 60, "classes": 3, "size": 16}, "scenario": {"increments": [2, 1]},
     "network": {"width": 8, "freeze": ["all"]}, "method": {"name": "simplecil"}, "run": {"threads": 1}}, sys.argv[1])
print({"torch._dynamo", "lightning_fabric"} & set(sys.modules))
"""


@pytest.mark.slow
def test_one_process_that_trains_nothing_imports_neither_the_compiler_of_torch_nor_fabric(tmp_path: Path) -> None:
    """Which take longer than a frozen model needs to learn a class."""
    typed = [sys.executable, "-c", IMPORTED, str(tmp_path / "run")]
    done = subprocess.run(
        typed, capture_output=True, text=True, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.stdout == "set()\n"
