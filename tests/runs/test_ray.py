"""A sweep on Ray, with a run and a Ray worker killed: every run finishes, with the results of a local sweep."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import endocil, start
from small import results, runs_in, write_sweep

pytest.importorskip("ray", reason="the package ray is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks processes up in /proc"),
]


def run_processes(folder: Path) -> dict[int, int]:
    """The processes of the sweep's runs and their parents, which are Ray workers."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            typed = (process / "cmdline").read_bytes().decode().split("\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended
            continue
        if "endocil.cli.sweep_run" in typed and any(one.startswith(str(folder)) for one in typed):
            found[int(process.name)] = parent
    return found


def kill_a_run_and_a_worker(sweep: subprocess.Popen[str], folder: Path, deadline: float) -> None:
    """Each as soon as a further run is in the middle of its training."""
    killed = 0
    while killed < 2:
        assert sweep.poll() is None, sweep.communicate()[0]
        assert time.monotonic() < deadline
        begun = [path for path in folder.glob("*/events.jsonl") if '"epoch"' in path.read_text()]
        there = run_processes(folder)
        if len(begun) > killed and there:
            process, worker = sorted(there.items())[0]
            os.kill((process, worker)[killed], signal.SIGKILL)
            killed += 1
            while process in run_processes(folder):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        time.sleep(0.02)


def end_with_ray(sweep: subprocess.Popen[str]) -> None:
    """As by Ctrl-C, which ends the runs and Ray; then whatever is left of them."""
    if sweep.poll() is None:
        sweep.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            sweep.communicate(timeout=20)
    with suppress(ProcessLookupError):
        os.killpg(sweep.pid, signal.SIGKILL)
    sweep.wait()


@pytest.mark.timeout(600)  # some twenty processes, on a machine that may be busy
def test_a_ray_sweep_survives_a_killed_run_and_a_killed_worker_with_the_results_of_a_local_one(tmp_path: Path) -> None:
    methods = ["icarl", "endocil"]
    file = write_sweep(
        tmp_path, set={"train.epochs": 5, "run.checkpoint_seconds": 0.0}, vary={"method": methods, "seed": [0, 1]}
    )
    folder = tmp_path / "on-ray"
    typed = ("sweep", file, "-o", folder, "--ray", "auto", "--workers", "2", "--retries", "1")
    # a session of its own: Ray's processes are in the sweep's group, and end with it
    sweep = start(*typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + 450
        kill_a_run_and_a_worker(sweep, folder, deadline)
        said, _ = sweep.communicate(timeout=max(1.0, deadline - time.monotonic()))
    finally:
        end_with_ray(sweep)
    assert sweep.returncode == 0, said
    assert "starting Ray, or joining it" in said
    assert "4 finished, 0 left" in said
    attempts = "".join(path.read_text() for path in (folder / "logs").glob("*.log")).count("-- attempt")
    assert attempts >= 4 + 2, "nothing was started again"
    assert run_processes(folder) == {}

    local = endocil("sweep", file, "-o", tmp_path / "local", "--workers", "2")
    assert local[0] == 0, local
    assert len(runs_in(folder)) == 4
    assert results(folder) == results(tmp_path / "local")
    assert len(results(folder)) == 4 * (1 + 3 + 3)

    # in the same test, because a second one at the same time would join this one's Ray
    status, _, errors = endocil("sweep", file, "-o", tmp_path / "gpus", "--ray", "auto", "--gpus-per-run", "99")
    assert status == 1
    assert "--gpus-per-run 99 fits on no machine of the cluster" in errors.splitlines()[-1]
