"""Kept classes, splits, orders and tasks; the paper's test sizes from its class counts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import NoReader

from endocil import EndocilError, ImageTable
from endocil.data.scenario import Task, build_scenario, keep_classes
from endocil.data.splits import TEST, TRAIN, VALIDATION, Folds, by_image

# images per kept class, in alphabetical order of the class names
PAPER = {
    "hyper-kvasir": (
        [646, 1148, 1009, 1002, 989, 403, 260, 131, 1028, 999, 391, 764, 201, 443, 133, 932],
        (4, 3, 3, 3, 3),
        2103,
    ),
    "gastrovision": (
        [1266, 171, 113, 820, 139, 205, 141, 246, 107, 330, 200, 140, 1467, 969, 393, 846],
        (4, 3, 3, 3, 3),
        1517,
    ),
    "kvasir-capsule": ([866, 446, 506, 159, 776, 4189, 592, 1529, 2906, 854], (2, 2, 2, 2, 2), 2570),
    "capsule-vision": ([1688, 1527, 3898, 1005, 1180, 1294, 1673, 1130, 253], (3, 2, 2, 2), 2732),
}


def table_of(counts: dict[str, int]) -> ImageTable:
    names = tuple(counts)
    labels = np.repeat(np.arange(len(names)), list(counts.values()))
    ids = tuple(f"{name}/{i:05d}" for name, n in counts.items() for i in range(n))
    blank = ("",) * len(ids)
    return ImageTable(ids, labels, names, NoReader(), blank, blank)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_class_counts_give_its_test_sizes(name: str) -> None:
    counts, increments, n_test = PAPER[name]
    table = table_of({f"c{i:02d}": n for i, n in enumerate(counts)})
    scenario = build_scenario(table, increments=increments)
    assert scenario.counts(TEST).sum() == n_test
    assert [task.n_new for task in scenario.tasks] == list(increments)


def test_sixteen_classes_in_five_tasks_are_four_and_four_times_three() -> None:
    scenario = build_scenario(table_of({f"c{i:02d}": 5 for i in range(16)}), tasks=5)
    assert [task.n_new for task in scenario.tasks] == [4, 3, 3, 3, 3]


def test_a_task_knows_its_ranges() -> None:
    task = Task(2, 7, 3)
    assert (task.old, task.new, task.seen, task.n_seen) == (slice(0, 7), slice(7, 10), slice(0, 10), 10)


@given(st.lists(st.integers(2, 60), min_size=2, max_size=6), st.floats(0, 0.4), st.integers(0, 5))
def test_every_image_is_in_one_part_and_no_class_loses_one(sizes: list[int], validation: float, seed: int) -> None:
    table = table_of({f"c{i}": n for i, n in enumerate(sizes)})
    split = by_image(table, validation=validation, folds=Folds(), seed=seed)
    scenario = build_scenario(table, tasks=1, split=split)
    parts = {part: scenario.counts(part) for part in (TRAIN, VALIDATION, TEST)}
    assert np.sum([*parts.values()], axis=0).tolist() == sizes
    assert parts[TEST].tolist() == [n - 4 * n // 5 for n in sizes]
    learned = [4 * n // 5 for n in sizes]
    held = [max(int(n * validation), 1) if validation and n > 1 else 0 for n in learned]
    assert parts[VALIDATION].tolist() == held


def test_the_split_of_a_class_does_not_depend_on_the_other_classes() -> None:
    alone = build_scenario(table_of({"b": 30}), tasks=1)
    beside = build_scenario(table_of({"a": 12, "b": 30}), tasks=2)
    assert alone.part.tolist() == beside.part[12:].tolist()


def test_another_split_seed_gives_another_split() -> None:
    table = table_of({"a": 40, "b": 40})
    assert (
        build_scenario(table, tasks=1).part.tolist()
        != by_image(table, validation=0.0, folds=Folds(), seed=0).part.tolist()
    )


def test_rows_are_those_of_the_part_and_the_classes() -> None:
    scenario = build_scenario(table_of({"a": 10, "b": 10, "c": 10}), tasks=3)
    rows = scenario.rows(TRAIN, scenario.tasks[1].new)
    assert len(rows) == 8
    assert set(scenario.table.labels[rows].tolist()) == {1}


def test_joined_is_one_task_with_the_same_images_and_split() -> None:
    scenario = build_scenario(table_of({"a": 10, "b": 10, "c": 10}), tasks=3)
    joined = scenario.joined()
    assert joined.tasks == (Task(0, 0, 3),)
    assert joined.part is scenario.part


def test_small_and_left_out_classes_go_and_the_rest_is_alphabetical() -> None:
    table = table_of({"polyp": 120, "cecum": 99, "angiectasia": 200, "normal": 500})
    kept = keep_classes(table, minimum=100, leave_out=["normal"])
    assert kept.classes == ("angiectasia", "polyp")
    assert kept.counts().tolist() == [200, 120]


def test_a_given_order_is_kept_and_a_seeded_one_depends_on_the_seed_alone() -> None:
    table = table_of(dict.fromkeys("abcdefgh", 5))
    assert keep_classes(table, order=list("hgfedcba")).classes == tuple("hgfedcba")
    first = keep_classes(table, order="seeded", seed=1).classes
    assert first == keep_classes(table, order="seeded", seed=1).classes
    assert first != keep_classes(table, order="seeded", seed=2).classes
    assert sorted(first) == list("abcdefgh")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum": 1000}, "no class is left: the largest has 9 images"),
        ({"leave_out": ["nothing"]}, "leave_out names the class 'nothing', but the data has: a, b"),
        ({"order": ["a"]}, "scenario.order leaves out b"),
        ({"order": ["a", "b", "a"]}, "names a class twice"),
        ({"order": ["a", "x"]}, "order names the class 'x'"),
        ({"order": "random"}, "expected 'alphabetical', 'seeded' or a list"),
    ],
)
def test_impossible_classes_are_refused_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EndocilError, match=message):
        keep_classes(table_of({"a": 9, "b": 6}), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"increments": [2, 2]}, r"\[2, 2\] add up to 4, but 3 classes are kept"),
        ({"increments": [3, 0]}, "add up to 3, but 3 classes"),
        ({"tasks": 4}, "scenario.tasks is 4, but 3 classes are kept; expected 1 to 3"),
        ({"tasks": 2, "increments": [2, 1]}, "both set"),
    ],
)
def test_impossible_tasks_are_refused_with_the_way_out(options: dict[str, Any], message: str) -> None:
    table = table_of({"a": 9, "b": 6, "c": 7})
    with pytest.raises(EndocilError, match=message):
        build_scenario(table, **options)


def test_a_class_too_small_to_split_is_named() -> None:
    with pytest.raises(EndocilError, match="class 'b' has 1 images: too few"):
        build_scenario(table_of({"a": 9, "b": 1}), tasks=1)
