"""Findings and leak rates equal counting by loops."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import prints_of, table_of

from endocil.audit import findings
from endocil.data.leaks import DEFINITIONS, leak_rate
from endocil.data.near_duplicates import NearDuplicates
from endocil.data.scenario import build_scenario

PARTS = ("train", "validation", "test")


def near_of(n: int, pairs: list[tuple[int, int]]) -> NearDuplicates:
    left, right = np.array(pairs or np.zeros((0, 2)), np.int64).T
    score = np.linspace(1.0, 0.8, len(pairs)).astype(np.float32)
    first = np.arange(n)
    return NearDuplicates(left, right, score, first, len(pairs))


def test_leak_rates_of_a_hand_made_table() -> None:
    table = table_of(
        [0] * 8, groups=["v1", "v1", "v1", "v1", "v2", "v2", "", ""], frames=[10, 11, 13, 40, 11, 90, 3, 4]
    )
    part = np.array(["train", "test", "test", "test", "test", "validation", "train", "test"])
    digests = np.array(["a", "b", "c", "d", "a", "e", "f", "g"])
    found = leak_rate(table, part, digests=digests, near=near_of(8, [(0, 1), (2, 3), (5, 7)]))
    assert found == {
        "test_images": 5,
        "exact_in_train": 1 / 5,  # image 4 has the pixels of image 0
        "near_in_train": 2 / 5,  # image 1, and image 4 as an exact copy; 2-3 and 5-7 do not reach train
        "group_in_train": 3 / 5,  # v1; v2 has no training image, and no group is no group
        "frame_1_in_train": 1 / 5,  # frame 11 beside frame 10
        "frame_2_in_train": 1 / 5,  # 13 is three away
    }
    assert found.keys() == DEFINITIONS.keys()


def test_what_the_data_does_not_tell_is_not_a_number() -> None:
    found = leak_rate(table_of([0, 0]), np.array(["train", "test"]))
    assert found == {"test_images": 1, **dict.fromkeys(list(DEFINITIONS)[1:])}
    no_frames = leak_rate(table_of([0, 0], groups=["v", "v"]), np.array(["train", "test"]))
    assert (no_frames["group_in_train"], no_frames["frame_1_in_train"]) == (1.0, None)
    no_test = leak_rate(table_of([0], groups=["v"]), np.array(["train"]))
    assert no_test["group_in_train"] == 0.0


Row = tuple[str, str, int, str, int]  # part, group, frame, digest, label
rows = st.lists(
    st.tuples(
        st.sampled_from(PARTS),
        st.sampled_from(["", "v1", "v2", "v3"]),
        st.integers(-1, 6),
        st.sampled_from("abcdefgh"),
        st.integers(0, 2),
    ),
    min_size=2,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(rows=rows, data=st.data())
def test_rates_and_findings_equal_counting_by_loops(rows: list[Row], data: st.DataObject) -> None:
    n = len(rows)
    index = st.integers(0, n - 1)
    drawn = data.draw(st.sets(st.tuples(index, index), max_size=20))
    pairs = sorted((a, b) for a, b in drawn if a < b)
    part = np.array([row[0] for row in rows])
    table = table_of([row[4] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
    digests, near = np.array([row[3] for row in rows]), near_of(n, pairs)
    found = leak_rate(table, part, digests=digests, near=near)
    test = [i for i in range(n) if rows[i][0] == "test"]
    train = [i for i in range(n) if rows[i][0] == "train"]

    def frames(i: int, j: int, distance: int) -> bool:
        known = rows[i][1] == rows[j][1] != "" and min(rows[i][2], rows[j][2]) >= 0
        return known and abs(rows[i][2] - rows[j][2]) <= distance

    def exact(i: int, j: int) -> bool:
        return rows[i][3] == rows[j][3]

    rules: dict[str, Callable[[int, int], bool]] = {
        "exact_in_train": exact,
        "near_in_train": lambda i, j: exact(i, j) or (min(i, j), max(i, j)) in pairs,
        "group_in_train": lambda i, j: rows[i][1] == rows[j][1] != "",
        "frame_1_in_train": lambda i, j: frames(i, j, 1),
        "frame_2_in_train": lambda i, j: frames(i, j, 2),
    }
    for name, rule in rules.items():
        if found[name] is not None:
            count = sum(any(rule(i, j) for j in train) for i in test)
            assert found[name] == pytest.approx(count / len(test) if test else 0.0)
    sides = [{rows[a][0], rows[b][0]} == {"train", "test"} for a, b in pairs]
    assert findings.across_split(part, near).tolist() == sides
    assert findings.across_classes(table, near).tolist() == [rows[a][4] != rows[b][4] for a, b in pairs]
    both = {rows[i][1] for i in train} & {rows[i][1] for i in test} - {""}
    assert {group for group, _, _ in findings.groups_across_split(table, part)} == both


def test_exact_duplicates_and_label_conflicts() -> None:
    table = table_of([0, 0, 1, 1, 0, 1])
    sets = findings.rows_with_equal(np.array(["a", "b", "a", "b", "b", ""]))
    assert sets == [(1, 3, 4), (0, 2)]
    assert findings.label_conflicts(table, sets) == sets
    assert findings.label_conflicts(table_of([0, 0, 1, 0, 0, 1]), sets) == [(0, 2)]


def test_pairs_come_the_strongest_first_and_groups_the_largest_first() -> None:
    near = near_of(6, [(3, 4), (0, 1), (1, 2)])
    table = table_of([0] * 6)
    pairs = findings.strongest_pairs(table, near, np.array([True, False, True]))
    assert [pair["images"] for pair in pairs] == [[table.ids[3], table.ids[4]], [table.ids[1], table.ids[2]]]
    grouped = replace(near, first=np.array([0, 0, 0, 3, 3, 5]))
    assert findings.rows_with_equal(grouped.first) == [(0, 1, 2), (3, 4)]


def test_sizes_and_colours_by_source() -> None:
    pixels = np.zeros((4, 64, 64, 3), np.uint8)
    pixels[0], pixels[1], pixels[2] = (200, 100, 40), (100, 100, 40), (60, 60, 60)
    prints = prints_of([f"{i:04d}.png" for i in range(4)], pixels)
    prints.sizes[3] = 0
    table = table_of([0, 0, 0, 0], sources=["scope", "scope", "", "capsule"])
    assert findings.sizes(prints) == [("64 x 64", 3), ("unknown", 1)]
    found = {entry["source"]: entry for entry in findings.colours_by_source(table, prints)}
    assert list(found) == ["capsule", "scope", "unknown"]
    assert (found["scope"]["images"], found["scope"]["red"], found["scope"]["blue"]) == (2, 150, 40)
    assert found["scope"]["brightness_deviation"] == pytest.approx(0.299 * 50, rel=1e-4)
    assert (found["capsule"]["brightness"], found["capsule"]["view"]) == (0, 0)


def test_counts_by_class_name_task_and_part() -> None:
    table = table_of([0] * 10 + [1] * 5)
    assert findings.counts_by_class(table, None) == [
        {"class": "class-0", "images": 10},
        {"class": "class-1", "images": 5},
    ]
    counts = findings.counts_by_class(table, build_scenario(table, tasks=2))
    assert counts[0] == {"class": "class-0", "task": 0, "images": 10, "train": 8, "validation": 0, "test": 2}
    assert counts[1] == {"class": "class-1", "task": 1, "images": 5, "train": 4, "validation": 0, "test": 1}
