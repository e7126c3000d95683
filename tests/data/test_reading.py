"""Threads, processes and one after the other read the same images."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from readers import IDS, PythonReader, ThreadReader

from endocil.data.readers import Renamed, read_in_chunks
from endocil.data.table import Reader
from endocil.errors import EndocilError


def read_all(reader: Reader, workers: int) -> tuple[np.ndarray, list[tuple[str, str]]]:
    chunks = list(read_in_chunks(reader, IDS, 4, workers))
    return np.concatenate([pixels for pixels, _ in chunks]), [bad for _, failed in chunks for bad in failed]


def process_numbers(pixels: np.ndarray) -> set[int]:
    readable = np.delete(pixels, 5, axis=0)
    return {int.from_bytes(bytes(first), "little") for first in readable[:, 0, 0]}


@pytest.mark.parametrize(("reader", "workers"), [(ThreadReader(), 1), (ThreadReader(), 4), (PythonReader(), 2)])
def test_every_way_of_reading_gives_all_images_in_order(reader: PythonReader, workers: int) -> None:
    pixels, unreadable = read_all(reader, workers)
    expected = [0 if image_id == "5" else int(image_id) % 256 for image_id in IDS]
    assert pixels[:, 1, 1, 0].tolist() == expected
    assert unreadable == [("5", "five is unreadable")]


def test_only_a_reader_that_asks_for_it_is_read_in_processes() -> None:
    assert process_numbers(read_all(ThreadReader(), 2)[0]) == {os.getpid() % 2**24}
    others = process_numbers(read_all(PythonReader(), 2)[0])
    assert len(others) == 2
    assert os.getpid() % 2**24 not in others
    assert process_numbers(read_all(PythonReader(), 1)[0]) == {os.getpid() % 2**24}


def test_an_error_in_a_process_arrives_as_it_is() -> None:
    with pytest.raises(EndocilError, match="a reader's own error"):
        read_all(PythonReader("exception"), 2)


def test_a_process_that_dies_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(EndocilError, match="ended with code 3"):
        read_all(PythonReader("exit"), 2)


def test_a_process_leaves_a_signal_to_stop_to_its_parent() -> None:
    """Slurm sends it to every process of a job; the run says how to go on, not that a reader has ended."""
    assert read_all(PythonReader("told to stop"), 2)[1] == [("5", "five is unreadable")]


SCRIPT = """
from readers import PythonReader, IDS
from endocil.data.readers import read_in_chunks
print("the script runs")
chunks = list(read_in_chunks(PythonReader(), IDS, 4, 2))
assert sum(len(pixels) for pixels, _ in chunks) == 300
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the script runs") == 1


def test_a_reader_of_the_users_script_stays_in_threads_also_inside_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = Renamed(PythonReader(), {})
    pixels, _ = read_all(outer, 2)
    assert os.getpid() % 2**24 not in process_numbers(pixels)
    monkeypatch.setattr(PythonReader, "__module__", "__main__")
    pixels, _ = read_all(outer, 2)
    assert process_numbers(pixels) == {os.getpid() % 2**24}
