"""The table of images: what it checks and how rows and classes are taken."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from endocil.data.table import ImageTable
from endocil.errors import EndocilError


@dataclass(frozen=True)
class Reader:
    stamp: str = "first"

    def read(self, image_id: str, size: int) -> np.ndarray:
        return np.zeros((size, size, 3), np.uint8)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return self.stamp


def make(labels: Sequence[int] = (0, 2, 1, 2)) -> ImageTable:
    n = len(labels)
    return ImageTable(
        ids=tuple(f"{i}.jpg" for i in range(n)),
        labels=np.array(labels),
        classes=("cecum", "polyp", "z-line"),
        reader=Reader(),
        groups=tuple(f"g{i}" for i in range(n)),
        sources=tuple(f"s{i}" for i in range(n)),
    )


def test_counts_include_classes_without_images() -> None:
    assert make().counts().tolist() == [1, 1, 2]
    assert make([0]).counts().tolist() == [1, 0, 0]


def test_taken_rows_keep_their_order_their_columns_and_all_classes() -> None:
    taken = make().take([3, 0])
    assert taken.ids == ("3.jpg", "0.jpg")
    assert taken.labels.tolist() == [2, 0]
    assert taken.groups == ("g3", "g0")
    assert taken.sources == ("s3", "s0")
    assert taken.classes == make().classes


def test_a_mask_takes_the_rows_it_marks_and_nothing_takes_none() -> None:
    assert make().take(np.array([False, True, False, True])).ids == ("1.jpg", "3.jpg")
    assert make().take([]).ids == ()


def test_kept_classes_are_numbered_in_the_order_given() -> None:
    kept = make().keep_classes(["z-line", "cecum"])
    assert kept.classes == ("z-line", "cecum")
    assert kept.ids == ("0.jpg", "1.jpg", "3.jpg")
    assert kept.labels.tolist() == [1, 0, 0]


def test_an_unknown_class_is_refused_with_the_known_ones() -> None:
    with pytest.raises(EndocilError, match=r"unknown classes pylorus; known: cecum, polyp, z-line"):
        make().keep_classes(["cecum", "pylorus"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": ("a", "a", "b", "c")}, "image id 'a' occurs more than once"),
        ({"classes": ("x", "y", "x")}, "class 'x' occurs more than once"),
        ({"groups": ("g",)}, "4 ids, but 1 groups"),
        ({"sources": ("s",) * 5}, "4 ids, but 5 sources"),
        ({"labels": np.array([0, 1])}, "4 ids, but 2 labels"),
        ({"labels": np.zeros((4, 1))}, "shape"),
        ({"labels": np.array([0, 1, 2, 3])}, "'3.jpg' has label 3"),
        ({"labels": np.array([0, -1, 2, 1])}, "'1.jpg' has label -1"),
    ],
)
def test_a_table_that_does_not_fit_together_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EndocilError, match=message):
        replace(make(), **change)


def test_the_table_does_not_change_with_the_array_it_was_made_from() -> None:
    labels = np.array([0, 1])
    table = replace(make().take([0, 1]), labels=labels)
    labels[:] = 2
    assert table.labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        table.labels[0] = 1


def test_the_digest_changes_with_ids_files_and_size_but_not_with_labels() -> None:
    table = make()
    same = replace(table, labels=np.zeros(4))
    others = [replace(table, reader=Reader("changed")), table.take([1, 0, 2, 3]), table.take([0, 1, 2])]
    assert same.digest(64) == table.digest(64)
    assert len({table.digest(64), table.digest(65), *(other.digest(64) for other in others)}) == 5


def test_the_table_and_the_readers_do_not_import_torch() -> None:
    code = "import sys; import endocil.data.decode, endocil.data.readers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
