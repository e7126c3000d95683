"""Damaged and hostile models end in predictions or in one line; nothing is run, nothing is written."""

import sys
from pathlib import Path

import pytest
from hostile import crafted, run

# what these change is never looked at: they predict as if it were not there
HARMLESS = {"data from outside", "weights from a file", "first tasks in a folder"}
ENDLESS = "pattern that never ends"  # predicts, and learning refuses to run it


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
def test_damaged_and_hostile_models_predict_or_are_refused_in_one_line(tiny_model: Path) -> None:
    n = 140
    assert n > 2 * len(crafted(tiny_model.read_bytes()))
    found = run(tiny_model, 0, n)
    assert found["failures"] == []
    assert found["good"] + found["refused"] == n
    assert "damaged" not in found["loaded"]
    loaded = {kind.removeprefix("crafted: ") for kind in found["loaded"] if kind.startswith("crafted")}
    assert loaded == {*HARMLESS, ENDLESS}
    assert found["learned"] >= len(HARMLESS)
    assert any("grouped by the pattern" in reason for reason, _ in found["not_learned"])
