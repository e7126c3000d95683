"""Several processes that learn together: equal to one, in every method."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from life import FROZEN, TRAINED

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """How far each method is from one process after three steps of two, by batch norm's mode."""
    folder, port = tmp_path_factory.mktemp("together"), free_port()
    commands = [[sys.executable, str(HERE / "together.py"), str(rank), "2", port, str(folder)] for rank in (0, 1)]
    running = [
        subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    distances: dict[str, float] = json.loads((folder / "apart.json").read_text("utf-8"))
    return distances


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", TRAINED)
def test_three_steps_of_two_processes_with_an_uneven_batch_are_those_of_one(
    apart: dict[str, float], name: str, mode: str
) -> None:
    assert apart[f"{name} {mode}"] < 2e-4


@pytest.mark.parametrize("name", ["endocil", "dgr"])
def test_adamw_with_clipped_gradients_steps_alike_in_two_processes(apart: dict[str, float], name: str) -> None:
    assert apart[f"{name} adamw"] < 2e-4


@pytest.mark.parametrize("name", FROZEN)
def test_sums_over_images_that_two_processes_share_are_those_of_one(apart: dict[str, float], name: str) -> None:
    assert apart[f"{name} sums"] == 0.0


def test_batch_norm_of_shares_is_that_of_the_whole_batch(apart: dict[str, float]) -> None:
    assert apart["batch norm"] < 1e-12
    assert apart["batch norm, one without images"] < 1e-12


def test_the_fisher_of_whole_batches_is_that_of_one_process(apart: dict[str, float]) -> None:
    assert apart["fisher"] == 0.0


def test_processes_make_as_many_pieces_and_stay_equal(apart: dict[str, float]) -> None:
    assert apart["pieces"] == 0.0


def ended(case: str) -> tuple[list[str], list[int], float]:
    """What two processes said on standard error, their exit statuses, and the seconds from the failure to the end."""
    port, script = free_port(), str(HERE / "failing_rank.py")
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), port, case],
            cwd=HERE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
    took = time.time() - max(float(output.split()[-1]) for output, _ in said)
    return [errors for _, errors in said], [process.returncode for process in running], took


@pytest.mark.parametrize("case", ["0", "1", "alone"])
def test_an_error_on_one_process_ends_the_others_within_seconds_with_its_message(case: str) -> None:
    """Also where they are busy, and what one does alone is no error of this package."""
    said, statuses, took = ended(case)
    message = "the disk of process 0 is full" if case == "alone" else f"process {case} cannot go on: no space left"
    assert all(message in text for text in said), said
    assert statuses == [1, 1]
    assert took < 30  # six seconds on a free machine


def test_a_killed_process_ends_the_one_that_waits_for_it_within_seconds() -> None:
    said, statuses, took = ended("killed")
    assert "another process of this run has ended" in said[0], said
    assert statuses == [1, -signal.SIGKILL]
    assert took < 30
