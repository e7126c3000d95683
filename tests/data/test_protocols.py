"""Protocols of the literature: B50-inc10, few-shot, long-tailed, and classes that come back in later tasks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pictures import NoReader

from endocil import EndocilError, ImageTable, Settings, load_settings
from endocil.data.scenario import Scenario, build_scenario, increments_of
from endocil.data.splits import TEST, TRAIN, UNUSED
from endocil.runs.parts import scenario_of, with_kept_classes


def table_of(counts: dict[str, int], **columns: Any) -> ImageTable:
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    ids = tuple(f"{name}/{i:05d}" for name, n in counts.items() for i in range(n))
    return ImageTable(ids, labels, tuple(counts), NoReader(), **columns)


def settings_of(**scenario: Any) -> Settings:
    return load_settings({"scenario": scenario, "data": {"name": "synthetic"}})


def scenario(table: ImageTable, **chosen: Any) -> Scenario:
    settings = settings_of(**chosen)
    return scenario_of(with_kept_classes(table, settings), settings)


EVEN = table_of(dict.fromkeys("abcdef", 100))


@pytest.mark.parametrize(
    ("n", "first", "increment", "expected"),
    [
        (100, 50, 10, [50, 10, 10, 10, 10, 10]),  # B50-inc10
        (100, None, 10, [10] * 10),  # B0-inc10
        (16, 4, 5, [4, 5, 5, 2]),  # the last takes what is left
        (5, 5, 2, [5]),
    ],
)
def test_first_and_increment_are_those_of_the_literature(
    n: int, first: int | None, increment: int, expected: list[int]
) -> None:
    assert increments_of(n, first=first, increment=increment) == expected
    cut = build_scenario(table_of({f"c{i:03d}": 5 for i in range(n)}), first=first, increment=increment)
    assert [task.n_new for task in cut.tasks] == expected


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"first": 3}, "scenario.first is set, but scenario.increment is not"),
        ({"first": 7, "increment": 1}, "scenario.first is 7, but 6 classes are kept"),
        ({"tasks": 2, "increment": 3}, "scenario.tasks and scenario.first and increment are both set"),
        ({"tasks": 2, "order_seed": 3}, "order_seed is set, but scenario.order is not 'seeded'"),
        ({"tasks": 2, "imbalance_order": "ordered"}, "imbalance_order is set, but scenario.imbalance is not"),
        ({"tasks": 1, "shots": 5}, "there is one task"),
        ({"tasks": 1, "blurry": 0.1}, "there is one task"),
        ({"tasks": "source"}, "600 of 600 images have none"),
    ],
)
def test_what_would_do_nothing_or_cannot_work_is_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(EndocilError, match=message):
        scenario(EVEN, **chosen)


def test_of_three_ways_to_cut_tasks_the_one_given_last_counts() -> None:
    chosen = load_settings("smoke", ["scenario.first=3", "scenario.increment=1"]).scenario
    assert (chosen.tasks, chosen.first, chosen.increment) == (None, 3, 1)
    chosen = load_settings("smoke", ["scenario.increment=2", "scenario.increments=[2,4]"]).scenario
    assert (chosen.tasks, chosen.increment, chosen.increments) == (None, None, (2, 4))


def test_the_order_of_classes_has_a_seed_of_its_own() -> None:
    def order(seed: int, **chosen: Any) -> tuple[str, ...]:
        settings = settings_of(order="seeded", **chosen).model_copy(update={"seed": seed})
        return with_kept_classes(EVEN, settings).classes

    assert order(0, order_seed=7) == order(1, order_seed=7) == order(7)
    assert order(0) != order(1)


def test_few_shot_keeps_all_images_of_the_first_task_and_a_few_of_later_classes() -> None:
    whole, few = scenario(EVEN, tasks=3), scenario(EVEN, tasks=3, shots=5)
    assert few.counts(TRAIN).tolist() == [80, 80, 5, 5, 5, 5]
    assert few.counts(UNUSED).tolist() == [0, 0, 75, 75, 75, 75]
    assert ((few.part == TEST) == (whole.part == TEST)).all()
    assert "300 training images are not used: scenario.shots = 5" in few.notes
    assert (few.part == scenario(EVEN, tasks=3, shots=5).part).all()
    other = scenario(EVEN, tasks=3, shots=5, split_seed=1)
    assert (few.part != other.part).any()


def test_a_long_tail_falls_by_the_factor_of_the_literature() -> None:
    """Cui et al.: n_k = n * factor^(-k / (C - 1)); 80 images and factor 10 over six classes."""
    expected = [80, 50, 31, 20, 12, 8]
    ordered = scenario(EVEN, tasks=3, imbalance=10, imbalance_order="ordered")
    assert ordered.counts(TRAIN).tolist() == expected
    shuffled = scenario(EVEN, tasks=3, imbalance=10).counts(TRAIN).tolist()
    assert sorted(shuffled, reverse=True) == expected
    assert shuffled != expected
    assert ordered.counts(TEST).tolist() == [20] * 6


def test_a_small_class_of_a_long_tail_keeps_what_it_has() -> None:
    uneven = table_of({"a": 100, "b": 10, "c": 100})
    assert scenario(uneven, tasks=3, imbalance=4, imbalance_order="ordered").counts(TRAIN).tolist() == [80, 8, 20]


def test_a_blurry_scenario_brings_a_share_of_each_class_later() -> None:
    cut = scenario(EVEN, tasks=3, blurry=0.25)
    assert cut.arriving_counts(TRAIN) == [[60, 60], [10, 10, 60, 60], [10, 10, 20, 20, 80, 80]]
    assert cut.counts(TRAIN).tolist() == [80] * 6  # none is lost
    rows = [set(cut.arriving(TRAIN, task).tolist()) for task in cut.tasks]
    assert len(set.union(*rows)) == sum(map(len, rows)) == 480
    assert cut.joined().arriving_counts(TRAIN) == [[80] * 6]


def test_images_of_a_list_may_come_back_in_a_later_task() -> None:
    arrivals = [0] * 100 + [3] * 100 + [0] * 60 + [3] * 40 + [5] * 100
    table = table_of(dict.fromkeys("bcad", 100), arrivals=tuple(arrivals))
    cut = scenario(table, tasks="given")
    assert cut.table.classes == ("a", "b", "c", "d")
    assert [task.n_new for task in cut.tasks] == [2, 1, 1]
    coming = cut.arriving_counts(TRAIN)
    assert coming[0][0] + coming[1][0] == 80
    assert coming[1][0] > 0
    assert coming[2] == [0, 0, 0, 80]
    assert any("come in a later task than their class: a" in note for note in cut.notes)
    once = replace(table, arrivals=tuple([0] * 100 + [3] * 100 + [0] * 100 + [5] * 100))
    assert scenario(once, tasks="given").arrivals is None


def test_each_source_can_be_a_task() -> None:
    sources = (["rome"] * 50 + ["oslo"] * 50) * 2 + ["rome"] * 100
    cut = scenario(table_of(dict.fromkeys("abc", 100), sources=tuple(sources)), tasks="source")
    assert [task.n_new for task in cut.tasks] == [2, 1]  # oslo has a and b, rome all three
    coming = cut.arriving_counts(TRAIN)
    assert coming[1][2] == 80
    assert all(n > 0 for n in coming[1])
