"""What the methods learn stays the same whatever is rebuilt around them (digests.py)."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from digests import FILE, digests_of, float64, life_of
from life import ALL_METHODS, differing, state_of


@pytest.mark.parametrize("name", ALL_METHODS)
def test_predictions_memory_and_metrics_are_those_that_were_written_down(name: str, tmp_path: Path) -> None:
    assert digests_of(name, tmp_path) == json.loads(FILE.read_text("utf-8"))[name]


def test_every_method_has_its_digests() -> None:
    assert sorted(json.loads(FILE.read_text("utf-8"))) == ALL_METHODS


def test_a_life_in_float64_is_in_float64_from_end_to_end_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and record["task"] == 1:
            raise StoppedError

    with float64():
        straight = life_of("endocil", tmp_path / "straight").live()
        stopped = life_of("endocil", tmp_path / "run", clock=itertools.count(0, 100).__next__)
        stopped.journal.show = stop
        with pytest.raises(StoppedError):
            stopped.live()
        resumed = life_of("endocil", tmp_path / "run").go_on()
    state = state_of(straight.method)
    assert {str(value.dtype) for value in state.values()} <= {"torch.float64", "torch.int64", "torch.float32"}
    assert state["backbone.conv1.weight"].dtype == state["classifier.weight"].dtype
    assert differing(state, state_of(resumed.method)) == []
