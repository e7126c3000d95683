"""What events say: pure functions on hand-made events."""

from typing import Any

import pytest

from endocil.cli.runs import event_lines
from endocil.runs.follow import State, TaskSize, state_of

SIZES = (TaskSize(2, 100), TaskSize(1, 40), TaskSize(1, 60))


def task(index: int, classes: list[str], new: int, exemplars: int, epochs: int = 4, **more: Any) -> dict[str, Any]:
    phases = [{"name": "train", "epochs": epochs, "images": new + exemplars}]
    about = {"new": new, "exemplars": exemplars, "phases": phases, "notes": []}
    return {"event": "task", "task": index, "classes": classes, **about, **more}


def epoch(index: int, number: int, images: int, epochs: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "event": "epoch", "task": index, "phase": "train", "epoch": number, "epochs": epochs, "learning_rate": 0.1,
        "losses": {"classification": 1.0 / (number + 1)}, "images": images, "seconds": 2.0, **more,
    }  # fmt: skip


def kept(index: int, name: str, n: int = 10) -> dict[str, Any]:
    return {"event": "selection", "task": index, "class": name, "kept": n, "of": 50, "mmd2": None, "bound": None}


def learned(index: int) -> dict[str, Any]:
    return {"event": "learned", "task": index, "parameters": 7, "peak_megabytes": 1.0}


FIRST = [task(0, ["a", "b"], 100, 0), *(epoch(0, n, 100) for n in range(4)), kept(0, "a"), kept(0, "b"), learned(0)]


def test_before_the_first_event_nothing_is_known_but_the_number_of_tasks() -> None:
    assert state_of([], SIZES) == State(3)


def test_the_first_task_counts_the_tasks_to_come_without_exemplars() -> None:
    state = state_of(FIRST[:3], SIZES)
    assert (state.phase, state.epoch, state.epochs) == ("train", 2, 4)
    assert state.losses == {"classification": 0.5}
    assert state.share == pytest.approx(200 / 800)  # four epochs of 100 + 40 + 60 images
    assert state.left == pytest.approx(600 * 4.0 / 200)
    assert state.seconds_per_epoch == 2.0


def test_later_tasks_are_counted_with_the_exemplars_that_are_kept() -> None:
    state = state_of(FIRST, SIZES)
    assert state.tasks[0].learned
    assert state.tasks[0].kept == 20
    # 40 new and 2 x 10 exemplars, then 60 new and 3 x 10 exemplars
    assert state.share == pytest.approx(400 / (400 + 4 * 60 + 4 * 90))
    second = state_of([*FIRST, task(1, ["c"], 40, 20)], SIZES)
    assert second.share == pytest.approx(state.share)
    assert (second.phase, second.losses, len(second.tasks)) == ("", {}, 2)


def test_time_of_a_shared_first_task_was_spent_by_another_run() -> None:
    shared = [dict(event, shared=True, seconds=900.0) if event["event"] == "epoch" else event for event in FIRST]
    assert state_of(shared, SIZES).left is None
    assert state_of(shared, SIZES).seconds_per_epoch is None
    events = [*shared, task(1, ["c"], 40, 20), epoch(1, 0, 60)]
    assert state_of(events, SIZES).left == pytest.approx((3 * 60 + 4 * 90) * 2.0 / 60)


def test_a_finished_life_has_nothing_left() -> None:
    events = [
        *FIRST,
        *(task(1, ["c"], 40, 20), *(epoch(1, n, 60) for n in range(4)), kept(1, "c"), learned(1)),
        *(task(2, ["d"], 60, 30), *(epoch(2, n, 90) for n in range(4)), kept(2, "d"), learned(2)),
    ]
    state = state_of(events, SIZES)
    assert (state.share, state.left) == (1.0, 0.0)


def test_lines_of_the_log_only_grow() -> None:
    events = [*FIRST, task(1, ["c"], 40, 20, 8), *(epoch(1, n, 60, 8) for n in range(8)), learned(1)]
    whole = event_lines(events, [90.0, 80.0])
    assert whole[:2] == ["task 1: a, b", "  task 1 train 1/4: classification 1.000; learning rate 0.1"]
    assert "  task 1 learned: accuracy 90.00 %" in whole
    assert sum("task 1 train" in line for line in whole) == 4  # of eight epochs
    for n in range(len(events)):
        known = [90.0] if learned(0) in events[:n] else []
        so_far = event_lines(events[:n], known)
        assert so_far == whole[: len(so_far)]
