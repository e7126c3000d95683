"""One run of a sweep in a process of its own: started or resumed, tried again, and never able to harm the others."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from endocil.io.locks import lock
from endocil.runs.folder import RunFolder

# written before settings.toml, which makes a folder a run
FILES_BEFORE_START = ("split.csv", "leaks.json", "data.json", "environment.json")

# the variables by which torchrun and Slurm number the processes that they start
LAUNCHER_PREFIXES = ("SLURM_", "TORCHELASTIC_")
LAUNCHER_NAMES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
)


@dataclass(frozen=True)
class Job:
    """The input of a worker, which may be on another machine with the same file system."""

    name: str
    folder: Path  # of the run
    settings: Path
    log: Path
    working_directory: Path  # relative paths in the settings start here
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that the settings name


@dataclass(frozen=True)
class Outcome:
    job: Job
    seconds: float
    error: str = ""  # empty: finished


def work(job: Job, retries: int, stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """Run to the end, from the last checkpoint where there is one; a failed run is tried again."""
    began = time.monotonic()
    try:
        error = _run_with_retries(job, retries, stopped)
    except OSError as problem:  # a full disk, a log that cannot be written: the other runs go on
        error = f"it could not be run on {platform.node()}: {problem}"
    return Outcome(job, time.monotonic() - began, error)


def _run_with_retries(job: Job, retries: int, stopped: Callable[[], bool]) -> str:
    """Returns why the run is not finished; empty where it is."""
    if not job.settings.is_file():
        return (
            f"{job.settings} cannot be seen on {platform.node()}: the folder must be shared by all machines"
        )
    status = None
    for attempt in range(1 + retries):
        if stopped() or status == 0:
            break
        status = _attempt(job, attempt, stopped)
    finished = status == 0 and RunFolder(job.folder).finished()
    return "" if finished else _last_error(job.log, status)


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """A run is a single process, however the sweep or the Ray worker was started: with a launcher's variables it would
    wait for other processes."""
    return {
        name: value
        for name, value in environment.items()
        if name not in LAUNCHER_NAMES and not name.startswith(LAUNCHER_PREFIXES)
    }


def _attempt(job: Job, attempt: int, stopped: Callable[[], bool]) -> int:
    _wait_until_free(job.folder)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        log.write(f"-- attempt {attempt + 1}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "endocil.cli.sweep_child", *_command(job)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.working_directory,
            env={**without_launcher(os.environ), **job.environment},
            start_new_session=True,  # Ctrl-C in the terminal comes to the sweep alone, which then ends its runs
        )
        try:
            while process.poll() is None and not stopped():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            _stop(process)
        return process.returncode


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Closing its input tells a run to stop (cli/sweep_child.py)."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(job: Job) -> list[str]:
    if (job.folder / "settings.toml").exists():
        return ["resume", str(job.folder)]
    for (
        name
    ) in FILES_BEFORE_START:  # a run that was killed before it began leaves a folder that `run` would refuse
        (job.folder / name).unlink(missing_ok=True)
    for path in job.folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
    return ["run", str(job.settings), "-o", str(job.folder)]


def _wait_until_free(folder: Path, seconds: float = 30.0) -> None:
    """A run whose worker was killed may still be stopping."""
    lock_file, deadline = folder / ".lock", time.monotonic() + seconds
    if not lock_file.exists():
        return
    with lock_file.open("ab") as file:
        while lock(file, wait=False) == "taken" and time.monotonic() < deadline:
            time.sleep(0.1)


def _last_error(log: Path, status: int | None) -> str:
    """The last line of a run that failed: its own error, or how its process ended."""
    if status is None:
        return "stopped before it began"
    if status < 0:
        return f"its process was killed by signal {-status}"
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("endocil: ") if lines else f"ended with status {status}"
