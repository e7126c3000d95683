"""Where the runs of a sweep are run: on this machine, several at a time, or on a Ray cluster."""

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from endocil.errors import ResourceError
from endocil.runs.sweep.plan import PlannedRun
from endocil.runs.sweep.worker import Job, Outcome, work

WORKER_DEATHS = 3  # times that a run is given another Ray worker
CONNECT_SECONDS = 5.0
CLIENT_PORT = 10001  # of ray:// addresses without a port


@dataclass(frozen=True)
class RunResources:
    """The part of the cluster that a run takes; several runs use one GPU where each takes a fraction of it."""

    cpus: float = 1.0
    gpus: float = 0.0


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
        waiting = {pool.submit(work, job, retries, stop.is_set) for job in jobs}
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
    jobs: Sequence[Job], address: str, resources: RunResources, retries: int, workers: int | None = None
) -> Generator[Outcome | None, None, None]:
    """Outcomes as they come, and None from time to time. Closing the iterator stops the runs."""
    ray = _connect(address)
    try:
        _check_resources(ray, resources)
        task = ray.remote(work).options(
            num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=WORKER_DEATHS
        )
        waiting = deque(jobs)
        running: dict[Any, Job] = {}
        while waiting or running:
            while waiting and len(running) < (workers or len(jobs)):
                job = waiting.popleft()
                running[task.remote(job, retries)] = job
            done, _ = ray.wait(list(running), timeout=0.5)
            for one in done:
                yield _outcome(ray, one, running.pop(one))
            yield None
    finally:
        ray.shutdown()  # its workers end, and with them the runs (cli/sweep_child.py)


def _connect(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
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
        raise ResourceError(f"--ray {address}: it names no machine; give HOST:PORT, ray://HOST or auto")
    if not host or not port.isdigit():
        return  # a word such as auto or local
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"--ray {address}: nobody answers there ({error}); is Ray running, and is this its address?"
        ) from error


def _check_resources(ray: Any, resources: RunResources) -> None:
    """A run that fits on no machine would wait for ever: it cannot be spread over several."""
    machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    sizes = sorted({(one.get("CPU", 0.0), one.get("GPU", 0.0)) for one in machines})
    if not any(cpus >= resources.cpus and gpus >= resources.gpus for cpus, gpus in sizes):
        available = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in sizes)
        raise ResourceError(
            f"a run with --cpus-per-run {resources.cpus:g} and --gpus-per-run {resources.gpus:g} fits on no machine "
            f"of the cluster (machines with {available}); ask for less"
        )


def _outcome(ray: Any, done: Any, job: Job) -> Outcome:
    try:
        outcome: Outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        return Outcome(
            job, 0.0, f"its Ray worker died {1 + WORKER_DEATHS} times: {str(error).splitlines()[0]}"
        )
    return outcome
