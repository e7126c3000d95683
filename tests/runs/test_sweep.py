"""`endocil sweep`: runs in processes of their own, failures that harm nobody, and interruptions that cost nothing."""

import fcntl
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w
from commands import command, endocil, start
from rich.console import Console
from small import SMALL, results, runs_in, write_sweep

from endocil import EndocilError, run
from endocil.cli.sweep import write_report
from endocil.data.scenario import Task
from endocil.io.files import locked
from endocil.methods.finetune import Finetune
from endocil.runs.folder import RunFolder
from endocil.runs.sweep.executors import (
    Job,
    Outcome,
    _check_address,
    _check_resources,
    _command,
    run_job,
    without_launcher,
)
from endocil.runs.sweep.plan import plan, read_sweep
from endocil.runs.sweep.runner import (
    Execution,
    ProgressDisplay,
    RunProgress,
    SweepFolder,
    check_runs,
    check_started_once,
)

# what a batch script sees of a job with four tasks: a run that took it at its word would wait for three others
IN_A_SLURM_JOB = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NNODES": "1",
    "SLURM_JOB_ID": "1",
}
EPOCHS = 60  # of each task: enough that a run is never at its end before a starved machine lets the test look at it

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and locks of POSIX")


def alone(folder: Path, name: str, **changes: Any) -> dict[str, bytes]:
    """The same experiment without a sweep, under the name that the sweep gave it."""
    run({**SMALL, **changes}, folder / name)
    return {key: value for key, value in results(folder).items() if key.startswith(name)}


def test_failed_runs_are_tried_again_and_reported_the_others_finish_and_are_not_repeated(tmp_path: Path) -> None:
    wrong = {"name": "icarl", "distil": 1e39}  # the second task's loss is infinite: no check can know that
    file = write_sweep(tmp_path, vary={"method": ["icarl", wrong, "finetune"], "memory.per_class": [4]})
    folder, ledger = tmp_path / "out", tmp_path / "ledger"
    status, said, errors = endocil("sweep", file, "-o", folder, "--ledger", ledger, "--workers", "2")
    assert status == 1
    assert errors.strip() == "endocil: 1 run failed; the same command tries them again"
    (told,) = [line for line in said.splitlines() if line.startswith("failed: ")]
    assert "-icarl-distil-" in told
    log = Path(told.rpartition("log: ")[2])
    assert log.read_text().count("-- attempt") == 2
    assert "Traceback" not in log.read_text()
    assert len(runs_in(folder)) == 3
    assert len(list(ledger.glob("*.json"))) == 2
    assert (folder / "report.html").stat().st_size > 1000
    (icarl,) = [path.parent for path in folder.glob("*-icarl-per_class-4-*/metrics.json")]
    assert alone(tmp_path / "alone", icarl.name, method={"name": "icarl"}).items() <= results(folder).items()

    _, listed, _ = endocil("sweep", file, "-o", folder, "--dry-run")
    assert [line.rpartition(": ")[2] for line in listed.splitlines()] == [
        "finished",
        "unfinished",
        "finished",
        "3 runs",
    ]
    before = results(folder)
    status, said, _ = endocil("sweep", file, "-o", folder, "--retries", "0")
    assert status == 1
    assert "3 runs, 2 of them finished before" in said
    assert log.read_text().count("-- attempt") == 3
    assert results(folder) == before
    _, kept, _ = endocil("sweep", file, "-o", tmp_path / "elsewhere", "--ledger", ledger, "--dry-run")
    assert kept.count("in the ledger") == 2


def test_what_cannot_work_is_told_for_all_runs_before_the_first_begins(tmp_path: Path) -> None:
    elsewhere = {**SMALL, "data": {"name": "folder", "root": "$NOT_SET_ANYWHERE", "size": 16}}
    write_sweep(tmp_path)
    (tmp_path / "other.toml").write_text(tomli_w.dumps(elsewhere))
    wrong = {"name": "icarl", "distil": -1.0}
    few = {"vary": {"memory": [{"total": 2}, {"total": 20}], "method": ["icarl", "endocil"]}}
    file = write_sweep(
        tmp_path,
        settings=["tiny.toml", "other.toml"],
        vary={"seed": [0, 1], "method": ["finetune", wrong]},
        also=[{"settings": "tiny.toml", **few}],
    )
    status, said, errors = endocil("sweep", file, "-o", tmp_path / "out")
    assert status == 1
    first, *found = said.splitlines()
    assert first == "checking 12 runs before the first begins: 8 settings, not counting seeds, on 2 data sets"
    assert len(found) == 3
    root, total, distil = sorted(found)  # data.root, memory.total, method.distil
    assert distil.startswith("cannot run: method.distil is -1.0; expected a number of 0 or more")
    assert "(4 runs of tiny, other, such as tiny-icarl-distil-1.0-seed0-" in distil
    assert "memory.total is 2, less than one image for each of" in total
    assert "(2 runs of tiny, such as tiny-icarl-total-2-seed0-" in total
    assert "the environment variable NOT_SET_ANYWHERE is not set" in root
    assert "(4 runs of other, such as other-" in root
    assert errors.strip() == "endocil: 8 of 12 runs would fail, so none was started; see above"
    assert not (tmp_path / "out").exists()


def test_data_is_read_once_and_a_method_built_once_for_all_seeds_and_memories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from endocil.runs.sweep import runner as checking

    counted: Counter[str] = Counter()

    def counting(name: str) -> None:
        actual = getattr(checking, name)

        def counts(*arguments: object, **named: Any) -> object:
            counted[name] += 1
            return actual(*arguments, **named)

        monkeypatch.setattr(checking, name, counts)

    counting("images_and_scenario")
    counting("assemble")
    file = write_sweep(
        tmp_path, vary={"seed": [0, 1, 2], "memory.per_class": [3, 4, 5], "method": ["icarl", "bic", "finetune"]}
    )
    runs = plan(read_sweep(file), tmp_path)
    assert len(runs) == 3 * (3 + 3 + 1)
    assert checking.find_problems(runs, lambda one: one.settings) == {}
    assert counted == {"images_and_scenario": 1, "assemble": 3}
    seeded = plan(read_sweep(file), tmp_path, ["scenario.order=seeded"])
    assert checking.find_problems(seeded, lambda one: one.settings) == {}
    assert counted["images_and_scenario"] == 1 + 3  # other classes come first with another seed


@pytest.mark.usefixtures("_runs_here")
def test_what_is_finished_is_not_checked_again_and_gets_the_page_that_a_kill_has_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = write_sweep(tmp_path, set={"train.epochs": 2, "method.name": "finetune"}), tmp_path / "out"
    assert endocil("sweep", file, "-o", folder)[0] == 0
    (page,) = folder.glob("*/report.html")
    page.unlink()  # as if the run's process had been killed when its results were written
    monkeypatch.delattr("endocil.runs.parts.images_and_scenario")
    status, said, _ = endocil("sweep", file, "-o", folder)
    assert status == 0
    assert "checking" not in said
    assert page.exists()


@pytest.mark.parametrize("ray", [None, "auto"])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"run": {"accelerator": "tpu"}}, "run.accelerator 'tpu' cannot be used here"),
        (
            {"network": {"backbone": "small_networks:WrongIn16Bits"}, "train": {"epochs": 1, "precision": "bf16"}},
            "train.precision 'bf16' gives wrong numbers here",
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused_unless_ray_runs_it_elsewhere(
    changes: dict[str, Any], told: str, ray: str | None, tmp_path: Path
) -> None:
    file = write_sweep(tmp_path)
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps({**SMALL, **changes}))
    folder, runs = SweepFolder(tmp_path / "out"), plan(read_sweep(file), tmp_path)
    output = io.StringIO()
    screen = Console(file=output, width=200)
    if ray is None:
        with pytest.raises(EndocilError, match="1 of 1 runs would fail, so none was started"):
            check_runs(folder, runs, Execution(ray=ray), screen)
        assert told in output.getvalue()
    else:
        check_runs(folder, runs, Execution(ray=ray), screen)
    assert not folder.path.exists()


class TooLarge(Finetune):
    """Says beforehand that it cannot learn on this machine."""

    def problems(self, n_classes: int) -> list[str]:
        return [f"{n_classes} classes do not fit into the memory"]

    def grow(self, task: Task) -> None:
        raise MemoryError


def test_what_a_method_says_of_itself_is_refused_before_it_grows(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, vary={"method": ["finetune", "test_sweep:TooLarge"]})
    status, said, errors = endocil("sweep", file, "-o", tmp_path / "out")
    assert status == 1
    assert "cannot run: 5 classes do not fit into the memory (run tiny-TooLarge-seed0-" in said
    assert errors.strip() == "endocil: 1 of 2 runs would fail, so none was started; see above"
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    file = write_sweep(tmp_path)
    status, _, errors = endocil("sweep", file, "-o", file)
    assert status == 1
    assert "sweep.toml is a file; choose another folder with -o" in errors


def stopped(folder: Path) -> bool:
    """No process works on any of the runs."""
    for lock in folder.glob("*/.lock"):
        with lock.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
    return True


@pytest.mark.slow
def test_an_interrupted_sweep_leaves_no_process_behind_and_the_same_command_goes_on(tmp_path: Path) -> None:
    settings = {"train.epochs": EPOCHS, "run.checkpoint_seconds": 0.0}
    file, folder = write_sweep(tmp_path, set=settings, vary={"seed": [3]}), tmp_path / "out"
    typed, deadline, seen = ("sweep", file, "-o", folder), time.monotonic() + 200, 0
    for how in (signal.SIGINT, signal.SIGKILL):
        environment = os.environ | IN_A_SLURM_JOB
        sweep = start(*typed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
        while (now := sum(path.read_text().count('"epoch"') for path in folder.glob("*/events.jsonl"))) <= seen:
            assert sweep.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        seen = now
        os.kill(sweep.pid, how)
        _, said = sweep.communicate(timeout=60)
        if how is signal.SIGINT:
            assert sweep.returncode == 130
            assert "Continue with the same command" in said
            assert "Traceback" not in said
        while not stopped(folder):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not list(folder.glob("*/metrics.json")), "the run ended before it was stopped"
    assert endocil(*typed)[0] == 0
    (name,) = runs_in(folder)
    assert results(folder) == alone(tmp_path / "alone", name, seed=3, train={**SMALL["train"], "epochs": EPOCHS})


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_the_runs_of_a_killed_sweep_in_the_background_stop_too(tmp_path: Path) -> None:
    """A shell starts what is in the background with SIGINT ignored, and so the sweep starts its runs."""
    settings = {"train.epochs": 400, "run.checkpoint_seconds": 0.0}
    file, folder = write_sweep(tmp_path, set=settings), tmp_path / "out"
    sweep = subprocess.Popen(
        command("sweep", file, "-o", folder), stdout=subprocess.DEVNULL, preexec_fn=ignore_interrupts
    )
    deadline = time.monotonic() + 120
    while not any('"epoch"' in path.read_text() for path in folder.glob("*/events.jsonl")):
        assert sweep.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    sweep.kill()
    sweep.wait()
    while not stopped(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (log,) = folder.glob("logs/*.log")
    assert "stopped; what was learned so far is kept" in log.read_text().splitlines()[-1]


def job_in(folder: Path) -> Job:
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    return Job("one", folder / "one", folder / "logs" / "one.toml", folder / "logs" / "one.log", folder)


def test_what_a_run_takes_of_a_cluster_is_refused_without_one(tmp_path: Path) -> None:
    status, _, errors = endocil("sweep", write_sweep(tmp_path), "-o", tmp_path / "out", "--gpus-per-run", "1")
    assert status == 1
    assert "are for --ray" in errors
    assert not (tmp_path / "out").exists()


def test_runs_that_cannot_stand_on_one_page_cost_the_page_alone(tmp_path: Path) -> None:
    message = write_report([], tmp_path / "report.html", "a sweep", "tiny")
    assert message.startswith("no page for tiny: ")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_a_machine_cannot_see_is_named(tmp_path: Path) -> None:
    outcome = run_job(job_in(tmp_path), 1)
    assert "the folder must be shared by all machines" in outcome.error


def test_a_run_that_was_killed_before_it_began_is_begun_again(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.folder.mkdir()
    for name in (".lock", "split.csv", "leaks.json", f".split.csv.{'0' * 32}.tmp"):
        (job.folder / name).write_text("")
    assert _command(job) == ["run", str(job.settings), "-o", str(job.folder)]
    RunFolder(job.folder).refuse_used()  # which `run` asks for
    (job.folder / "settings.toml").write_text("")
    assert _command(job) == ["resume", str(job.folder)]


def test_what_the_system_refuses_costs_a_run_and_not_the_sweep(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job.settings.write_text("")
    job.log.mkdir()  # so that it cannot be written
    outcome = run_job(job, 1)
    assert outcome.error.startswith("it could not be run on ")
    assert "one.log" in outcome.error


def test_the_variables_of_a_launcher_are_dropped_and_no_others() -> None:
    kept = {"PATH": "/bin", "RANKING": "1", "CUDA_VISIBLE_DEVICES": "0"}
    torchrun = {"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "NODE_RANK": "0"}
    torchrun |= {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}
    torchrun |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert without_launcher(kept | IN_A_SLURM_JOB | torchrun) == kept


def test_a_sweep_speaks_whatever_rank_the_environment_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    _, said, _ = endocil("sweep", write_sweep(tmp_path), "-o", tmp_path / "out", "--dry-run")
    assert said.splitlines()[-1] == "1 runs"


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}, "srun"),
        ({"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "4", "RANK": "0"}, "torchrun"),
    ],
)
def test_a_sweep_that_a_launcher_starts_several_times_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], launcher: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    status, _, errors = endocil("sweep", write_sweep(tmp_path), "-o", tmp_path / "out")
    assert status == 1
    assert f"{launcher} has started 4 processes of this sweep; start it once" in errors
    assert not (tmp_path / "out").exists()


def test_a_launcher_that_starts_a_sweep_once_is_none_of_its_business() -> None:
    check_started_once({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4", "WORLD_SIZE": "4"})


def test_two_sweeps_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with locked(folder, ""):
        status, _, errors = endocil("sweep", write_sweep(tmp_path), "-o", folder)
    assert status == 1
    assert f"another sweep is working in {folder}; let it finish" in errors
    assert [path.name for path in folder.iterdir()] == [".lock"]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_no_ray_answers_is_refused_at_once(scheme: str) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(EndocilError, match=r"--ray .*: no response"):
            _check_address(f"{scheme}127.0.0.1:{taken.getsockname()[1]}")
        taken.listen()
        _check_address(f"{scheme}127.0.0.1:{taken.getsockname()[1]}")
    _check_address("auto")


def test_a_run_must_fit_on_one_machine_of_the_cluster() -> None:
    def machine(cpus: float, gpus: float, *, alive: bool = True) -> dict[str, Any]:
        return {"Alive": alive, "Resources": {"CPU": cpus, **({"GPU": gpus} if gpus else {})}}

    machines = [machine(2, 0), machine(2, 1), machine(8, 8, alive=False)]
    cluster = SimpleNamespace(nodes=lambda: machines)
    _check_resources(cluster, 2, 1)
    for cpus, gpus in ((4, 0), (1, 2)):
        with pytest.raises(EndocilError, match=r"fits on no machine .*2 CPUs and 0 GPUs, 2 CPUs and 1 GPUs"):
            _check_resources(cluster, cpus, gpus)


def write_events(job: Job, *events: dict[str, Any]) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    rows = [f"i{i},c,{i // 6},train,," for i in range(8)]  # six images in task 0, two in task 1
    (job.folder / "split.csv").write_text("\n".join(["image,class,task,part,group,source", *rows]) + "\n")
    (job.folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def task_event(task: int, images: int) -> dict[str, Any]:
    phases = [{"name": "train", "epochs": 2, "images": images}]
    return {"event": "task", "task": task, "classes": ["c"], "new": images, "exemplars": 0, "phases": phases}


def epoch(task: int, index: int, **more: Any) -> dict[str, Any]:
    return {
        "event": "epoch",
        "task": task,
        "phase": "train",
        "epoch": index,
        "epochs": 2,
        "seconds": 3.0,
        "images": 6,
        "losses": {},
        "learning_rate": 0.1,
        **more,
    }


def test_how_far_a_run_is_comes_from_its_events(tmp_path: Path) -> None:
    job, begin, second = job_in(tmp_path), task_event(0, 6), task_event(1, 2)
    watch = RunProgress(job)
    watch.update()
    assert (watch.text, watch.share, watch.left) == ("starting", 0.0, None)
    write_events(job, begin, epoch(0, 0))
    watch.update()
    assert watch.text == "task 1/2 train 1/2"
    assert watch.share == pytest.approx(3 / 8)
    assert watch.left == pytest.approx(3.0 * (5 / 8) / (3 / 8))
    # what another run has trained is done, but says nothing of this run's speed
    shared = [epoch(0, 0, shared=True, seconds=99.0), epoch(0, 1, shared=True, seconds=99.0)]
    write_events(job, begin, *shared, second, epoch(1, 0, images=2))
    watch.update()
    assert watch.share == pytest.approx(7 / 8)
    assert watch.left == pytest.approx(3.0)
    # tasks without phases are done when they are learned
    nothing = [{**event, "phases": []} for event in (begin, second)]
    write_events(job, nothing[0], {"event": "learned", "task": 0, "parameters": 1, "peak_megabytes": 1.0}, nothing[1])
    watch.update()
    assert watch.share == pytest.approx(1 / 2)
    assert (watch.left, watch.text) == (None, "task 2/2")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_board_tells_who_runs_how_far_and_what_is_left(tmp_path: Path, terminal: bool) -> None:
    jobs = [replace(job_in(tmp_path / name), name=name) for name in ("first", "second", "third")]
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=terminal, width=120)
    with ProgressDisplay(console, jobs, 2) as board:
        for job in jobs[:2]:
            job.log.write_text("-- attempt 1\n")
            write_events(job, task_event(0, 6), epoch(0, 0))
        board.update()
        board.bars.refresh()
        assert set(board.running) == {"first", "second"}
        board.add_outcome(Outcome(jobs[0], 80.0))
        board.add_outcome(Outcome(jobs[1], 1.0, "no images"))
        # one is left, of the length of the finished one, on two workers
        assert board.seconds_left() == pytest.approx(40.0)
    shown = screen.getvalue()
    assert "first: finished in 1 min; 1 finished, 2 left" in shown
    assert "second: failed (no images); 1 finished, 1 failed, 1 left, about 40 s" in shown
    assert ("first: started" in shown) is not terminal
    assert ("task 1/2 train 1/2" in shown) is terminal
