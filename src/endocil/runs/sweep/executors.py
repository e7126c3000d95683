"""The runs of a sweep on this machine, several at a time."""

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from endocil.errors import EndocilError
from endocil.runs.sweep.plan import Planned
from endocil.runs.sweep.worker import Job, Outcome, work


def default_workers(runs: Sequence[Planned]) -> int:
    """As many runs as have cores of their own; one where there is a GPU, which they would have to share."""
    import torch

    if torch.cuda.is_available():
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max((one.settings.run.threads or 1 for one in runs), default=1)
    return max(1, cores // threads)


def on_this_machine(jobs: Sequence[Job], workers: int, retries: int) -> Generator[Outcome | None, None, None]:
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


# The runs of a sweep on Ray: the same worker as on this machine, wherever there is room for it.

DEATHS = 3  # of its Ray worker that a run survives
ANSWER = 5.0  # seconds that a cluster has to answer in
CLIENT_PORT = 10001  # that of ray:// addresses without one


@dataclass(frozen=True)
class Room:
    """What a run takes of the cluster; several runs share a GPU where each takes a part of one."""

    cpus: float = 1.0
    gpus: float = 0.0


def on_ray(
    jobs: Sequence[Job], address: str, room: Room, retries: int, workers: int | None = None
) -> Generator[Outcome | None, None, None]:
    """Outcomes as they come, and None from time to time. Closing the iterator stops the runs."""
    ray = _connected(address)
    try:
        _refuse_too_much(ray, room)
        task = ray.remote(work).options(num_cpus=room.cpus, num_gpus=room.gpus, max_retries=DEATHS)
        left = deque(jobs)
        running: dict[Any, Job] = {}
        while left or running:
            while left and len(running) < (workers or len(jobs)):
                job = left.popleft()
                running[task.remote(job, retries)] = job
            done, _ = ray.wait(list(running), timeout=0.5)
            for one in done:
                yield _outcome(ray, one, running.pop(one))
            yield None
    finally:
        ray.shutdown()  # its workers end, and with them the runs (child.py)


def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise EndocilError("--ray needs the package ray: pip install 'endocil[ray]'") from error
    # without an address Ray joins the cluster of this variable, or one that runs on this machine, or else starts one
    _refuse_silent(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    quiet: Any = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        ray.init(address=None if address == "auto" else address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise EndocilError(f"--ray {address}: {str(error).splitlines()[0]}") from error
    return ray


def _refuse_silent(address: str) -> None:
    """Ray itself tries for minutes to reach an address where nobody listens."""
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if scheme == "ray" and not port.isdigit():
        host, port = place, str(CLIENT_PORT)
    if not host and (scheme == "ray" or port.isdigit()):
        raise EndocilError(f"--ray {address}: it names no machine; give HOST:PORT, ray://HOST or auto")
    if not host or not port.isdigit():
        return  # a word such as auto or local
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise EndocilError(
            f"--ray {address}: nobody answers there ({error}); is Ray running, and is this its address?"
        ) from error


def _refuse_too_much(ray: Any, room: Room) -> None:
    """A run that fits on no machine would wait for ever: it cannot be spread over several."""
    machines = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    sizes = sorted({(one.get("CPU", 0.0), one.get("GPU", 0.0)) for one in machines})
    if not any(cpus >= room.cpus and gpus >= room.gpus for cpus, gpus in sizes):
        there = ", ".join(f"{cpus:g} CPUs and {gpus:g} GPUs" for cpus, gpus in sizes)
        raise EndocilError(
            f"a run with --cpus-per-run {room.cpus:g} and --gpus-per-run {room.gpus:g} fits on no machine of the "
            f"cluster (machines with {there}); ask for less"
        )


def _outcome(ray: Any, done: Any, job: Job) -> Outcome:
    try:
        found: Outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        return Outcome(job, 0.0, f"its Ray worker died {1 + DEATHS} times: {str(error).splitlines()[0]}")
    return found
