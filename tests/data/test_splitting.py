"""Splits: nobody on two sides, nothing lost, the same whatever the order of the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import NoReader

from endocil import EndocilError, ImageTable
from endocil.data.splits import (
    TEST,
    TRAIN,
    VALIDATION,
    Folds,
    by_file,
    by_given,
    by_group,
    by_image,
    grouped_by_file,
    grouped_by_pattern,
)
from endocil.io.files import write_csv
from endocil.runs.parts import scenario_of
from endocil.settings.settings import load_settings

FIFTH: dict[str, Any] = {"validation": 0.0, "folds": Folds(), "seed": 1993}


def table_of(rows: list[tuple[int, str]], *, parts: tuple[str, ...] = (), arrivals: tuple[int, ...] = ()) -> ImageTable:
    """(class, group) of each image; classes are named c0, c1, ..."""
    labels = np.array([label for label, _ in rows])
    classes = tuple(f"c{i}" for i in range(labels.max() + 1))
    ids = tuple(f"c{label}/{i:04d}.jpg" for i, (label, _) in enumerate(rows))
    groups = tuple(group for _, group in rows)
    return ImageTable(ids, labels, classes, NoReader(), groups, ("",) * len(ids), parts=parts, arrivals=arrivals)


def sides(groups: tuple[str, ...], part: np.ndarray) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for group, one in zip(groups, part, strict=True):
        if group:
            found.setdefault(group, set()).add(str(one))
    return found


ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", *"abcdefghij"])), min_size=1, max_size=60).filter(
    lambda rows: any(group for _, group in rows) and {label for label, _ in rows} >= {0}
)


@given(rows=ROWS, validation=st.sampled_from([0.0, 0.2]), folds=st.sampled_from([None, 2, 5]), data=st.data())
@settings(max_examples=200, deadline=None)
def test_no_group_is_ever_on_two_sides_no_image_is_lost_and_the_order_of_files_changes_nothing(
    rows: list[tuple[int, str]], validation: float, folds: int | None, data: st.DataObject
) -> None:
    table = table_of(rows)
    fold = data.draw(st.integers(0, (folds or 1) - 1))
    how: dict[str, Any] = {"validation": validation, "folds": Folds(folds, fold), "seed": data.draw(st.integers(0, 3))}
    split = by_group(table, **how)
    assert len(split.part) == len(table)
    assert set(split.part) <= {TRAIN, VALIDATION, TEST}
    assert all(len(found) == 1 for found in sides(table.groups, split.part).values())
    for label in set(table.labels.tolist()):
        assert TRAIN in split.part[table.labels == label]  # whatever is learned has images to learn from
    order = data.draw(st.permutations(range(len(table))))
    mixed = table.take(order)
    again = by_group(mixed, **how)
    assert again.part.tolist() == split.part[list(order)].tolist()


@given(rows=ROWS)
@settings(max_examples=100, deadline=None)
def test_a_class_of_several_groups_of_its_own_is_tested_and_one_that_cannot_be_is_named(
    rows: list[tuple[int, str]],
) -> None:
    table = table_of(rows)
    split = by_group(table, **FIFTH)
    for label, name in enumerate(table.classes):
        mine = table.labels == label
        named = any(f"'{name}'" in note for note in split.notes)
        assert named == bool(mine.any() and TEST not in split.part[mine]) or not mine.any()
    alone = table_of([(label, f"{label}-{i % 3}") for i, (label, _) in enumerate(rows * 3)])
    whole = by_group(alone, **FIFTH)
    for label in set(alone.labels.tolist()):
        groups = {group for group, mine in zip(alone.groups, alone.labels == label, strict=True) if mine}
        if len(groups) > 1:
            assert {TRAIN, TEST} <= set(whole.part[alone.labels == label])


def test_a_grouped_split_is_as_stratified_as_groups_allow() -> None:
    rows = [(label, f"p{label}-{patient}") for label in range(4) for patient in range(50) for _ in range(1 + label)]
    table = table_of(rows)
    part = by_group(table, **FIFTH).part
    shares = [(part[table.labels == label] == TEST).mean() for label in range(4)]
    assert np.allclose(shares, 0.2, atol=0.01)


def test_folds_test_every_image_exactly_once() -> None:
    table = table_of([(label, f"p{i % 17}") for i in range(200) for label in [i % 3]])
    for split in (by_group, by_image):
        parts = [split(table, **{**FIFTH, "folds": Folds(5, fold)}).part for fold in range(5)]
        assert np.sum([part == TEST for part in parts], axis=0).tolist() == [1] * len(table)


def test_a_class_in_one_group_trains_and_is_named() -> None:
    table = table_of([(0, f"p{i}") for i in range(10)] + [(1, "only")] * 6)
    split = by_group(table, **FIFTH)
    assert set(split.part[table.labels == 1]) == {TRAIN}
    assert split.notes == ("class 'c1' is learned and not tested: it has one group",)


def test_a_class_that_no_fold_reaches_is_not_said_to_lie_in_one_group() -> None:
    table = table_of([(0, f"p{i}") for i in range(30)] + [(1, f"q{i}") for i in range(3)])
    found = [by_group(table, **{**FIFTH, "folds": Folds(10, fold)}).notes for fold in range(10)]
    assert ("class 'c1' is learned and not tested: none of its 3 groups is in the test part",) in found


@given(rows=ROWS, validation=st.sampled_from([0.0, 0.02, 0.3]), folds=st.sampled_from([None, 5]), data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_split_by_image_does_not_depend_on_the_order_of_files(
    rows: list[tuple[int, str]], validation: float, folds: int | None, data: st.DataObject
) -> None:
    table = table_of([(0, ""), (1, ""), (2, ""), (3, ""), *rows] * 3)
    how: dict[str, Any] = {"validation": validation, "folds": Folds(folds), "seed": 1993}
    order = data.draw(st.permutations(range(len(table))))
    assert by_image(table.take(order), **how).part.tolist() == by_image(table, **how).part[list(order)].tolist()


def test_a_share_for_validation_holds_at_least_an_image_of_each_class_or_says_so() -> None:
    many = table_of([(i % 2, f"p{i % 6}") for i in range(60)])
    for split in (by_image, by_group):
        part = split(many, **{**FIFTH, "validation": 0.02}).part
        assert all(VALIDATION in part[many.labels == label] for label in (0, 1))
    few = table_of([(0, f"p{i}") for i in range(9)] + [(1, "q0"), (1, "q1")])
    chosen = load_settings({"data": {"root": "x"}, "scenario": {"tasks": 1, "split_by": "group", "validation": 0.2}})
    assert "no validation image, as there are too few images or groups: c1" in scenario_of(few, chosen).notes


def test_validation_images_of_a_given_split_are_taken_by_whole_groups() -> None:
    parts = tuple("test" if i % 5 == 0 else "train" for i in range(100))
    table = table_of([(0, f"p{i % 10}") for i in range(100)], parts=parts)
    part = by_given(table, **{**FIFTH, "validation": 0.25}).part
    learned = {group for group, one in zip(table.groups, part, strict=True) if one == TRAIN}
    held = {group for group, one in zip(table.groups, part, strict=True) if one == VALIDATION}
    assert held
    assert not learned & held
    assert (part == TEST).tolist() == [one == "test" for one in parts]


def test_groups_may_come_from_a_file(tmp_path: Path) -> None:
    table = table_of([(0, "")] * 3)
    write_csv(tmp_path / "g.csv", ("path", "group"), [(image, "one") for image in table.ids])
    assert grouped_by_file(table, tmp_path / "g.csv") == ("one",) * 3
    write_csv(tmp_path / "less.csv", ("path", "group"), [(table.ids[0], "one")])
    with pytest.raises(EndocilError, match=r"no line for 2 of 3 images, first c0/0001\.jpg"):
        grouped_by_file(table, tmp_path / "less.csv")
    write_csv(tmp_path / "odd.csv", ("file", "colour"), [("a", "b")])
    with pytest.raises(EndocilError, match="columns file, colour; none is known as the group"):
        grouped_by_file(table, tmp_path / "odd.csv")


def test_the_groups_of_the_split_are_those_that_a_run_records() -> None:
    table = table_of([(i % 2, "") for i in range(40)])
    chosen = load_settings(
        {"data": {"root": "x"}, "scenario": {"tasks": 1, "split_by": "group", "groups": "(.)[.]jpg$"}}
    )
    assert scenario_of(table, chosen).table.groups == tuple(image[-5] for image in table.ids)


def test_names_that_are_no_valid_text_can_be_split() -> None:
    plain = table_of([(0, "")] * 10)
    odd = ImageTable(tuple(f"c0/\udcff{i}.jpg" for i in range(10)), plain.labels, ("c\udcff",), NoReader(),
                     tuple(f"\udce9{i // 2}" for i in range(10)), ("",) * 10)  # fmt: skip
    for split in (by_image, by_group):
        assert set(split(odd, **FIFTH).part) == {TRAIN, TEST}


def test_groups_may_come_from_a_pattern_on_the_file_name() -> None:
    table = table_of([(0, "")] * 4)
    table = ImageTable(("v1_1.jpg", "v1_2.jpg", "v2_1.jpg", "odd.jpg"), table.labels, ("c0",), NoReader(),
                       ("",) * 4, ("",) * 4)  # fmt: skip
    assert grouped_by_pattern(table, r"(\w+)_[0-9]+[.]jpg$") == ("v1", "v1", "v2", "")
    for pattern, message in {
        "(": "is not a regular expression",
        "v": "has 0 brackets",
        "(zz)": "matches no image",
    }.items():
        with pytest.raises(EndocilError, match=message):
            grouped_by_pattern(table, pattern)


def test_a_given_split_is_taken_as_it_is_and_folds_by_their_number() -> None:
    table = table_of([(0, "")] * 4, parts=("train", "test", "validation", "train"))
    assert by_given(table, **FIFTH).part.tolist() == ["train", "test", "validation", "train"]
    folds = table_of([(0, "")] * 4, parts=("0", "1", "1", "0"))
    assert by_given(folds, **{**FIFTH, "folds": Folds(2, 1)}).part.tolist() == ["train", "test", "test", "train"]
    with pytest.raises(EndocilError, match=r"has the folds 0, 1; set scenario\.folds = 2"):
        by_given(folds, **{**FIFTH, "folds": Folds(3, 2)})
    with pytest.raises(EndocilError, match="4 of 4 images have no part"):
        by_given(table_of([(0, "")] * 4), **FIFTH)


def test_a_recorded_split_can_be_given_back_and_another_data_sets_is_refused(tmp_path: Path) -> None:
    table = table_of([(i % 2, f"p{i % 7}") for i in range(40)])
    part = by_group(table, **FIFTH).part
    rows = [(image, table.classes[label], one) for image, label, one in zip(table.ids, table.labels, part, strict=True)]
    write_csv(tmp_path / "split.csv", ("image", "class", "part"), rows)
    assert by_file(table, tmp_path / "split.csv").part.tolist() == part.tolist()
    assert "1 images of the split file are not here" in by_file(table.take(range(39)), tmp_path / "split.csv").notes[0]
    write_csv(tmp_path / "other.csv", ("image", "class", "part"), rows[1:])
    with pytest.raises(EndocilError, match=r"has the image c0/0000\.jpg of 'c0' not at all"):
        by_file(table, tmp_path / "other.csv")


def test_tasks_may_come_with_the_data() -> None:
    table = table_of(
        [(label, "") for label in (0, 1, 2, 3) for _ in range(5)], arrivals=(1,) * 5 + (0,) * 10 + (1,) * 5
    )
    chosen = load_settings({"data": {"root": "x"}, "scenario": {"tasks": "given"}})
    from endocil.data.scenario import arrival_order

    order, sizes = arrival_order(table)
    assert (order, sizes) == (["c1", "c2", "c0", "c3"], [2, 2])
    scenario = scenario_of(table.keep_classes(order), chosen)
    assert [(task.n_old, task.n_new) for task in scenario.tasks] == [(0, 2), (2, 2)]
    with pytest.raises(EndocilError, match="does not say when 'c0' arrives"):
        arrival_order(table_of([(0, "")]))
    assert arrival_order(table_of([(0, ""), (0, "")], arrivals=(0, 1))) == (["c0"], [1, 0])  # it comes back


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"split_by": "group"}, "no image has a group"),
        ({"groups": "near-duplicates"}, "scenario.split_by is not 'group'"),
        ({"groups": "(.)_", "split_by": "given"}, "scenario.split_by is not 'group'"),
        ({"groups": "(.)_", "split": "x.csv"}, "scenario.split_by is not 'group'"),
        ({"split": "x.csv", "split_by": "group"}, "leave out split_by"),
        ({"fold": 1}, "scenario.folds is not"),
        ({"folds": 3, "fold": 3}, "expected at least 2 folds, counted from 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(scenario: dict[str, Any], message: str) -> None:
    table = table_of([(i % 2, "") for i in range(20)])
    chosen = load_settings({"data": {"root": "x"}, "scenario": {"tasks": 2, **scenario}})
    with pytest.raises(EndocilError, match=message):
        scenario_of(table, chosen)
