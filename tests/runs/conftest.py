"""Sweeps whose runs need no processes of their own."""

import threading
from collections.abc import Callable

import pytest

from endocil import run
from endocil.runs.sweep.worker import Job


@pytest.fixture
def _runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a sweep in this process, one after another: for tests of what becomes of their results."""
    alone = threading.Lock()

    def attempt(job: Job, number: int, stopped: Callable[[], bool]) -> int:
        with alone:
            run(job.settings, job.folder)
        return 0

    monkeypatch.setattr("endocil.runs.sweep.worker._attempt", attempt)
