"""Capsule Vision: sources and videos from the paths, three parts, a test set labelled by a table of its own."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import layouts
import pytest

from endocil.datasets.public import capsule_vision
from endocil.datasets.public.capsule_vision import load, read_xlsx
from endocil.errors import DataError

TRAINED = tuple(sorted(layouts.CAPSULE_VISION))
TESTED = tuple(f"test/{name}" for name in sorted(layouts.CAPSULE_TEST))
SOURCES = ("KID", "KVASIR", "SEE-AI", "KVASIR", "KID", "AIIMS", "KVASIR", "SEE-AI")
GROUPS = ("", layouts.VIDEO_A, "", layouts.VIDEO_B, "", "", layouts.VIDEO_A, "")


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("level", ["", "Dataset", "Dataset/training", "Dataset/training/Normal"])
def test_parts_sources_videos_and_frames_come_from_the_paths(tmp_path: Path, level: str, inline: bool) -> None:
    table = load(root=str(layouts.write_capsule_vision(tmp_path / "data", inline=inline) / level))
    assert table.ids == TRAINED
    assert [table.classes[label] for label in table.labels] == [image.split("/")[1] for image in TRAINED]
    assert table.parts == ("train",) * 6 + ("validation",) * 2
    assert table.sources == SOURCES
    assert table.groups == GROUPS
    assert table.frames == (-1, 893, -1, 17, -1, -1, 894, -1)
    assert "None of the 4,385 images of its test part is there." in table.notes
    assert "1 file names occur more than once (image00042.jpg): an image is known by its path." in table.notes
    assert not any("table" in note for note in table.notes)  # which agree with the folders


def test_without_the_level_of_sources_the_tables_tell_them(tmp_path: Path) -> None:
    table = load(root=str(layouts.write_capsule_vision(tmp_path, sources=False)))
    assert table.ids[0] == "training/Angioectasia/angioectasia-P0-1.jpg"
    assert dict(zip((image.split("/")[-1] for image in table.ids[:6]), table.sources, strict=False)) == dict(
        zip((image.split("/")[-1] for image in TRAINED[:6]), SOURCES, strict=False)
    )


@pytest.mark.parametrize("how", ["in one folder", "by options", "as archives"])
def test_the_labelled_test_set_is_the_third_part(tmp_path: Path, how: str) -> None:
    root = layouts.write_capsule_vision(tmp_path / "root")
    if how == "in one folder":
        layouts.write_capsule_test(root)
        layouts.write_capsule_labels(root / "test_data.xlsx")
        options: dict[str, Any] = {}
    else:
        test = layouts.write_capsule_test(tmp_path / "elsewhere")
        labels = layouts.write_capsule_labels(tmp_path / "labels/test_data.xlsx")
        options = {"test": str(test), "test_labels": str(labels)}
    if how == "as archives":
        root = layouts.zip_folder(root, tmp_path / "48018562.zip")
        options["test"] = str(layouts.zip_folder(test, tmp_path / "49717386.zip"))
    table = load(root=str(root), **options)
    assert table.ids == tuple(sorted((*TRAINED, *TESTED)))
    assert table.parts == ("test",) * 2 + ("train",) * 6 + ("validation",) * 2
    assert [table.classes[label] for label in table.labels[:2]] == ["Bleeding", "Foreign Body"]
    assert any(note.startswith("1 images in no class folder were left out: ") for note in table.notes)


def test_a_test_set_without_labels_is_left_out_with_the_way_out(tmp_path: Path) -> None:
    table = load(root=str(layouts.write_capsule_test(layouts.write_capsule_vision(tmp_path))))
    assert table.ids == TRAINED
    assert "Without test_data.xlsx (data.test_labels) images of the test set have no class." in table.notes


def test_tables_and_folders_that_do_not_agree_are_said(tmp_path: Path) -> None:
    root = layouts.write_capsule_vision(tmp_path)
    (root / "Dataset/training/Normal/KID/normal-1.jpg").rename(root / "Dataset/training/Worms/normal-1.jpg")
    rows: list[tuple[str | int, ...]] = [
        ("image_path", "Dataset", "Polyp", "Erosion"),
        ("validation\\Polyp\\SEE-AI\\image00042.jpg", "SEE-AI", 0, 1),
    ]
    layouts.write_xlsx(root / "Dataset/validation/validation_data.xlsx", rows)
    notes = load(root=str(root)).notes
    assert "1 images of the tables beside the images are not there." in notes
    assert (
        "1 images have another class in the table than by their folder: validation/Polyp/SEE-AI/image00042.jpg."
        in notes
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("path", "class"), ("a", "b")], "has no columns image_path and class_label"),
        ([("image_path", "class_label"), ("a.jpg", "spleen")], "'spleen' is not a class of Capsule Vision"),
        (
            [("image_path", "class_label"), ("a.jpg", "Polyp"), ("b/a.jpg", "Ulcer")],
            "labels a.jpg as Polyp and as Ulcer",
        ),
    ],
)
def test_a_table_that_labels_no_test_set_is_refused(tmp_path: Path, rows: list[tuple[str, ...]], message: str) -> None:
    root = layouts.write_capsule_vision(tmp_path / "root")
    labels = layouts.write_xlsx(tmp_path / "labels.xlsx", rows)
    with pytest.raises(DataError, match=message):
        load(root=str(root), test_labels=str(labels))


def test_of_a_workbook_the_first_sheet_is_read_and_empty_cells_are_empty(tmp_path: Path) -> None:
    rows: list[tuple[str | int, ...]] = [("a", "b", "c & <d>"), ("training\\x", 7, "é"), ("", "", "last")]
    path = layouts.write_xlsx(tmp_path / "table.xlsx", rows)
    assert read_xlsx(path) == [{"a": "training\\x", "b": "7", "c & <d>": "é"}, {"a": "", "b": "", "c & <d>": "last"}]


def sheet(rows: str) -> str:
    return f"<worksheet {layouts.SPACE}><sheetData>{rows}</sheetData></worksheet>"


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><worksheet><sheetData/></worksheet>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "declares a document type"),
        ("<worksheet><row>", "cannot be read as an .xlsx table: no element found"),
        (sheet('<row><c r="A1" t="s"><v>7</v></c></row>'), "list index out of range"),
        (sheet('<row><c r="ZZZZ1"><v>7</v></c></row>'), "'ZZZZ' is not a valid column name"),
        (sheet('<row><c r="A1" t="s"><v>x</v></c></row>'), "invalid literal"),
        (sheet('<row r="9999999999"><c r="A1"><v>1</v></c></row>'), "more than 1,000 cells"),
        (sheet('<row r="1"><c r="ZZZ1"><v>7</v></c></row>'), "more than 1,000 cells"),
        (sheet("<row>" + "<c><v>7</v></c>" * 1001 + "</row>"), "more than 1,000 cells"),
        (sheet(" " * 100_000), "is larger than 100,000 bytes"),
        (sheet(""), "the first sheet is empty"),
        (None, "There is no item named"),
    ],
)
def test_a_damaged_or_hostile_workbook_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    monkeypatch.setattr(capsule_vision, "MAX_CELLS", 1000)
    monkeypatch.setattr(capsule_vision, "MAX_BYTES", 100_000)
    parts = layouts.xlsx_parts([text]) if text else {"other.xml": "<w/>"}
    path = layouts.zip_files(tmp_path / "t.xlsx", {name: part.encode() for name, part in parts.items()})
    with pytest.raises(DataError, match=message) as caught:
        read_xlsx(path)
    assert "\n" not in str(caught.value)


def test_a_workbook_cut_anywhere_or_changed_ends_in_one_line_or_in_rows(tmp_path: Path) -> None:
    whole = layouts.write_xlsx(tmp_path / "whole.xlsx", [("a", "b"), ("x", 1), ("y", 2)]).read_bytes()
    path = tmp_path / "t.xlsx"
    for i in range(0, len(whole), 19):
        for data in (whole[:i], whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :]):
            path.write_bytes(data)
            with suppress(DataError):  # any other error fails the test
                assert isinstance(read_xlsx(path), list)
