"""Kvasir-Capsule: videos are groups, frames in two classes are kept in both, classes come in archives of their own."""

from pathlib import Path

import layouts
import pytest

from endocil.data.table import ImageTable
from endocil.datasets.public.class_folders import kvasir_capsule as load


def same(table: ImageTable) -> None:
    assert table.ids == layouts.KVASIR_CAPSULE_IDS
    assert [table.classes[label] for label in table.labels] == [name.split("/")[0] for name in table.ids]
    names = [image.split("/")[1].removesuffix(".jpg").split("_") for image in table.ids]
    assert table.groups == tuple(video for video, _ in names)
    assert table.frames == tuple(int(frame) for _, frame in names)
    assert f"1 frames are in two classes, and kept in both: {layouts.VIDEO_A}_1125.jpg." in table.notes


@pytest.mark.parametrize("odd_case", [True, False])
@pytest.mark.parametrize("level", ["", "labelled_images"])
def test_folders_in_any_case_give_the_published_names(tmp_path: Path, level: str, odd_case: bool) -> None:
    same(load(root=str(layouts.write_kvasir_capsule(tmp_path, odd_case=odd_case) / level)))


@pytest.mark.parametrize("flat", [True, False])
def test_one_archive_for_each_class_is_opened_alone_and_inside_a_zip(tmp_path: Path, flat: bool) -> None:
    folder = layouts.pack_kvasir_capsule(tmp_path / "archives", flat=flat)
    same(load(root=str(folder)))
    same(load(root=str(layouts.zip_folder(folder, tmp_path / "labelled_images.zip"))))


def test_an_archive_of_a_class_that_has_a_folder_is_left_alone(tmp_path: Path) -> None:
    layouts.write_kvasir_capsule(tmp_path)
    (tmp_path / "erosion.tar.gz").write_bytes(b"not even an archive")
    same(load(root=str(tmp_path)))


def test_the_two_official_lists_are_folds_and_other_class_names_are_known(tmp_path: Path) -> None:
    layouts.write_kvasir_capsule(tmp_path / "data")
    splits = layouts.write_kvasir_capsule_split(tmp_path / "official_splits")
    table = load(root=str(tmp_path / "data"), splits=str(splits))
    same(table)
    assert table.parts == ("", "0", "0", "", "1", "1", "0", "1", "0", "1", "1", "1", "1")
    assert "11 of 13 images are in the official split of split_0.csv, split_1.csv." in table.notes


def test_a_name_without_a_frame_has_no_group(tmp_path: Path) -> None:
    table = load(root=str(layouts.write(tmp_path, ["Polyp/strange.png", "Ulcer/v_3.png"])))
    assert table.groups == ("", "v")
    assert table.frames == (-1, 3)
