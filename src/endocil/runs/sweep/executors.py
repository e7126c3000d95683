"""The runs of a sweep, each in a process of its own: started or resumed, retried, and isolated from the others.

They are run on this machine, several at a time, or on a Ray cluster."""

import logging
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError, ResourceError
from endocil.io.files import LOCK_FILE, locked, private
from endocil.runs.folder import RunFolder
from endocil.runs.sweep.plan import PlannedRun
from endocil.settings.settings import load_settings

WORKER_DEATHS = 3  # times that a run is given another Ray worker
CONNECT_SECONDS = 5.0
CLIENT_PORT = 10001  # of ray:// addresses without a port

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


def run_job(job: Job, retries: int, is_stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """Run to the end, from the last checkpoint where there is one; a failed run is tried again."""
    began, status = time.monotonic(), None
    try:
        if not job.settings.is_file():
            error = f"{job.settings} cannot be seen on {platform.node()}: the folder must be shared by all machines"
        else:
            for attempt in range(1 + retries):
                if is_stopped() or status == 0:
                    break
                status = _attempt(job, attempt, is_stopped)
            finished = status == 0 and RunFolder(job.folder).finished()
            error = "" if finished else _last_error(job.log, status)
    except OSError as problem:  # a full disk, a log that cannot be written: the other runs continue
        error = f"it could not be run on {platform.node()}: {problem}"
    return Outcome(job, time.monotonic() - began, error)


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """A run is a single process, however the sweep or the Ray worker was started: with a launcher's variables it would
    wait for other processes."""
    return {
        name: value
        for name, value in environment.items()
        if name not in LAUNCHER_NAMES and not name.startswith(LAUNCHER_PREFIXES)
    }


def _attempt(job: Job, attempt: int, is_stopped: Callable[[], bool]) -> int:
    """The exit status of the run's process, which is stopped when `is_stopped` says so."""
    if (job.folder / LOCK_FILE).exists():  # a run whose worker was killed may still be stopping
        with suppress(ResourceError), locked(job.folder, "", patience=30.0):
            pass
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "ab", opener=private) as log:
        log.write(f"-- attempt {attempt + 1}\n".encode())
        log.flush()
        process = subprocess.Popen(
            # -P: the working folder holds the settings, not Python's modules
            [sys.executable, "-P", "-m", "endocil.cli.sweep_run", *_command(job)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.working_directory,
            env={**without_launcher(os.environ), **job.environment},
            start_new_session=True,  # Ctrl-C in the terminal reaches the sweep alone, which then stops its runs
        )
        try:
            while process.poll() is None and not is_stopped():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            assert process.stdin is not None
            process.stdin.close()  # which tells the run to stop (cli/sweep_run.py)
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return process.returncode


def _command(job: Job) -> list[str]:
    if (job.folder / "settings.toml").exists():
        return ["resume", str(job.folder), *(["--trust"] if _names_same_code(job) else [])]
    return ["run", str(job.settings), "-o", str(job.folder)]


def _names_same_code(job: Job) -> bool:
    """Whether a resumed run names code from outside, and none but that of the sweep's own settings."""
    try:
        files = (job.settings, job.folder / "settings.toml")
        planned, recorded = (load_settings(file).outside_code() for file in files)
    except EndocilError:  # the run itself will say why
        return False
    return bool(recorded) and recorded.items() <= planned.items()


def _last_error(log: Path, status: int | None) -> str:
    """The last line in the log of a run that failed, or how its process ended."""
    if status is None:
        return "stopped before it began"
    if status < 0:
        return f"its process was killed by signal {-status}"
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("endocil: ") if lines else f"ended with status {status}"


# --- several runs


def default_workers(runs: Sequence[PlannedRun]) -> int:
    """As many runs as have cores of their own; one where there is a GPU, which they would have to share."""
    import torch

    if torch.cuda.is_available():
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max((one.settings.run.threads or 1 for one in runs), default=1)
    return max(1, cores // threads)


def run_locally(jobs: Sequence[Job], workers: int, retries: int) -> Generator[Outcome | None, None, None]:
    """Outcomes as they come, and None from time to time. Closing the iterator stops the runs."""
    stop = threading.Event()
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(run_job, job, retries, stop.is_set) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
                yield None
        finally:
            stop.set()
            for one in waiting:
                one.cancel()


def run_on_ray(
    jobs: Sequence[Job], address: str, cpus: float, gpus: float, retries: int, workers: int | None
) -> Generator[Outcome | None, None, None]:
    """As `run_locally`; each run takes so many CPUs and GPUs of the cluster, of a GPU also a fraction."""
    ray = _connect(address)
    try:
        _check_resources(ray, cpus, gpus)
        task = ray.remote(run_job).options(num_cpus=cpus, num_gpus=gpus, max_retries=WORKER_DEATHS)
        waiting = deque(jobs)
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and len(running) < (workers or len(jobs)):
                job = waiting.popleft()
                running[task.remote(job, retries)] = job
            done, _ = ray.wait(list(running), timeout=0.5)
            for one in done:
                job = running.pop(one)
                try:
                    outcome = ray.get(one)
                except ray.exceptions.RayError as error:
                    reason = str(error).splitlines()[0]
                    outcome = Outcome(job, 0.0, f"its Ray worker died {1 + WORKER_DEATHS} times: {reason}")
                yield outcome
            yield None
    finally:
        ray.shutdown()  # its workers end, and with them the runs (cli/sweep_run.py)


def _connect(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone
    try:
        import ray
    except ImportError as error:
        raise ResourceError("--ray needs the package ray: pip install 'endocil[ray]'") from error
    # without an address Ray joins the cluster of this variable, or one that runs on this machine, or else starts one
    _check_address(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    options: Any = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=None if address == "auto" else address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ResourceError(f"--ray {address}: {str(error).splitlines()[0]}") from error
    return ray


def _check_address(address: str) -> None:
    """Fail at once where nothing listens: Ray itself would try for minutes."""
    scheme, _, location = address.rpartition("://")
    host, _, port = location.rpartition(":")
    if scheme == "ray" and not port.isdigit():
        host, port = location, str(CLIENT_PORT)
    if not host and (scheme == "ray" or port.isdigit()):
        raise ResourceError(f"--ray {address}: the address names no machine; give HOST:PORT, ray://HOST or auto")
    if not host or not port.isdigit():
        return  # a word such as auto or local
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"--ray {address}: no response ({error}); is Ray running, and is this its address?"
        ) from error


def _check_resources(ray: Any, cpus: float, gpus: float) -> None:
    """A run that fits on no machine would wait for ever: it cannot be spread over several."""
    machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    sizes = sorted({(one.get("CPU", 0.0), one.get("GPU", 0.0)) for one in machines})
    if not any(n_cpus >= cpus and n_gpus >= gpus for n_cpus, n_gpus in sizes):
        available = ", ".join(f"{n_cpus:g} CPUs and {n_gpus:g} GPUs" for n_cpus, n_gpus in sizes)
        raise ResourceError(
            f"a run with --cpus-per-run {cpus:g} and --gpus-per-run {gpus:g} fits on no machine "
            f"of the cluster (machines with {available}); ask for less"
        )
