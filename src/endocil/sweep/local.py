"""The runs of a sweep on this machine, several at a time."""

import os
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from endocil.sweep.plan import Planned
from endocil.sweep.worker import Job, Outcome, work


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
