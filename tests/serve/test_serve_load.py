"""The benchmark of a server under load, at its smallest: it counts every answer and compares it."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_small_load_with_exchanges_and_a_restart_loses_nothing() -> None:
    sizes = [
        "--predictions",
        "300",
        "--clients",
        "6",
        "--swaps",
        "2",
        "--restarts",
        "1",
        "--size",
        "32",
        "--width",
        "8",
    ]
    command = [sys.executable, str(BENCHMARKS / "serve_load.py"), *sizes, "--bare-seconds", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    rows = dict(line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:])
    assert (rows["answered"], rows["lost"]) == ("300", "0")
    assert 1 <= int(rows["exchanges of the model"]) <= 2  # a fast machine is done before the last
    assert rows["other than the model says, by more than 1e-4"] == "0"
    assert sum(int(n) for n in rows["answered by the first and by the second model"].split(" and ")) == 300
    assert rows["exit status after each SIGTERM"] == "0, 0"
    assert float(rows["throughput / bare loop"]) > 0
