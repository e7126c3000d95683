"""Progress of counted work in plain lines."""

import io
import time

import pytest
from rich.console import Console

from endocil.io.terminal import plain_progress


def test_work_that_lasts_is_shown_and_work_that_is_done_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cached data set the first report is the last one, however long Python took to get there."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    screen = io.StringIO()
    progress = plain_progress(Console(file=screen, width=120), "reading the data")
    now = 10.0
    progress(1, 1)
    assert screen.getvalue() == ""
    progress(5, 2000)
    assert screen.getvalue() == "  reading the data: 5 of 2,000 (0%)\n"
    progress(6, 2000)  # not again within seconds
    assert screen.getvalue().count("\n") == 1
