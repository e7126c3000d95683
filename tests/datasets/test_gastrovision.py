"""GastroVision is known by class and name, also from a zip inside a zip."""

from pathlib import Path

import layouts
import pytest

from endocil.data.table import ImageTable
from endocil.datasets.public.class_folders import gastrovision as load
from endocil.errors import EndocilError

PARTS = ("train", "test", "validation", "train", "validation", "train", "test", "")


def same(table: ImageTable) -> None:
    assert table.ids == layouts.GASTROVISION_IDS
    assert [table.classes[label] for label in table.labels] == [name.split("/")[0] for name in table.ids]


@pytest.mark.parametrize("level", ["", "Gastrovision", "Gastrovision/Ulcer"])
def test_the_folder_one_above_and_one_below_give_the_same_table(tmp_path: Path, level: str) -> None:
    table = load(root=str(layouts.write_gastrovision(tmp_path / "data") / level))
    same(table)
    assert set(table.parts) == {""}
    assert "1 file names occur in several classes (100H0003.jpg): an image is known by class and name." in table.notes


def test_a_zip_inside_a_zip_of_the_same_name_is_opened(tmp_path: Path) -> None:
    inner = layouts.zip_folder(layouts.write_gastrovision(tmp_path / "data"), tmp_path / "inner/Gastrovision.zip")
    outer = layouts.zip_folder(inner.parent, tmp_path / "download/Gastrovision.zip")
    table = load(root=str(outer))
    same(table)
    assert "5 files that are no images were left out: 5 hidden." in table.notes
    same(load(root=str(outer.parent)))  # the folder of the download
    same(load(root=str(inner.parent)))  # the outer zip extracted by hand


@pytest.mark.parametrize("beside", [True, False])
def test_the_official_split_is_matched_by_class_and_name(tmp_path: Path, beside: bool) -> None:
    layouts.write_gastrovision(tmp_path / "data")
    folder = layouts.write_gastrovision_split(tmp_path / ("data/Split" if beside else "repository/Split"))
    table = load(root=str(tmp_path / "data"), splits=None if beside else str(folder))
    assert table.parts == PARTS
    assert "7 of 8 images are in the official split of test.csv, train.csv, validate.csv." in table.notes


def test_the_authors_layout_by_parts_gives_the_same_ids_and_parts(tmp_path: Path) -> None:
    folders = {"train": "train", "validation": "val", "test": "test"}
    for image, part in zip(layouts.GASTROVISION_IDS, PARTS, strict=True):
        layouts.write(tmp_path, [f"GastroVision/{folders[part]}/{image}"] if part else [])
    table = load(root=str(tmp_path))
    assert table.ids == layouts.GASTROVISION_IDS[:-1]
    assert table.parts == PARTS[:-1]
    layouts.write(tmp_path, ["GastroVision/test/Colon polyps/ba615bcd.jpg"])
    with pytest.raises(EndocilError, match=r"Colon polyps/ba615bcd\.jpg occurs twice"):
        load(root=str(tmp_path))


def test_a_single_list_of_unknown_part_is_refused(tmp_path: Path) -> None:
    layouts.write_gastrovision(tmp_path)
    splits = layouts.write_csv(tmp_path / "mine.csv", ["Filename,Class"])
    with pytest.raises(EndocilError, match="holds no official split; expected files named"):
        load(root=str(tmp_path), splits=str(splits))


def test_other_lists_of_the_same_name_beside_the_images_are_no_split(tmp_path: Path) -> None:
    layouts.write_csv(layouts.write_gastrovision(tmp_path) / "train.csv", ["loss,epoch", "1,2"])
    assert set(load(root=str(tmp_path)).parts) == {""}
