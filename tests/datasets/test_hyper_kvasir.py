"""Hyper-Kvasir is found wherever it lies, with the names of its folders, whatever its lists call the classes."""

from pathlib import Path

import layouts
import pytest

from endocil.data.cache import load_images
from endocil.data.table import ImageTable
from endocil.datasets import load_table
from endocil.datasets.public.class_folders import hyper_kvasir as load
from endocil.errors import EndocilError


def same(table: ImageTable) -> None:
    assert table.ids == layouts.HYPER_KVASIR_IDS
    assert [table.classes[label] for label in table.labels] == [name.split("/")[0] for name in table.ids]
    assert table.classes == tuple(sorted({name.split("/")[0] for name in layouts.HYPER_KVASIR_IDS}))
    assert set(table.groups) == set(table.sources) == {""}


INSIDE = [
    "",
    "labeled-images",
    "labeled-images/lower-gi-tract",
    "labeled-images/upper-gi-tract/anatomical-landmarks/z-line",
]


@pytest.mark.parametrize("level", INSIDE)
def test_the_table_does_not_depend_on_how_high_root_is(tmp_path: Path, level: str) -> None:
    table = load(root=str(layouts.write_hyper_kvasir(tmp_path / "data") / level))
    same(table)
    assert any("is a folder inside the data set" in note for note in table.notes) == (level.count("/") > 0)


def test_the_archive_is_as_good_as_the_folder(tmp_path: Path) -> None:
    archive = layouts.zip_folder(
        layouts.write_hyper_kvasir(tmp_path / "data"), tmp_path / "hyper-kvasir-labeled-images.zip"
    )
    table = load(root=str(archive))
    same(table)
    assert "4 files that are no images were left out: 1 .txt, 3 hidden." in table.notes
    assert load_images(table, 16).pixels.shape == (12, 16, 16, 3)
    same(load(root=str(archive)))  # from the cache
    told: list[tuple[int, int]] = []
    again = archive.rename(tmp_path / f"again-{archive.name}")
    load_table("hyper-kvasir", {"root": str(again)}, lambda *done: told.append(done))
    assert told[-1] == (again.stat().st_size,) * 2  # an extraction tells how far it is
    with pytest.raises(EndocilError, match="unknown data key 'progress'; known: root, splits"):
        load_table("hyper-kvasir", {"root": str(again), "progress": "yes"})
    again.rename(archive)
    (tmp_path / "beside").mkdir()
    archive.rename(tmp_path / "beside" / archive.name)
    same(load(root=str(tmp_path / "beside")))  # the folder that it was downloaded to


def test_what_is_missing_and_left_out_is_said(tmp_path: Path) -> None:
    layouts.write(layouts.write_hyper_kvasir(tmp_path), ["labeled-images/my-own/x.jpg", "labeled-images/hello.jpg"])
    notes = load(root=str(tmp_path)).notes
    assert notes == (
        "23 classes have fewer images than published: barretts 0 of 41, barretts-short-segment 1 of 53, "
        "bbps-0-1 1 of 646, bbps-2-3 0 of 1148, cecum 2 of 1009, ....",
        "3 files that are no images were left out: 1 .txt, 2 hidden.",
        "2 images in no class folder were left out: labeled-images, labeled-images/my-own.",
    )


@pytest.mark.parametrize("beside", [True, False])
def test_the_official_folds_are_matched_through_other_class_names(tmp_path: Path, beside: bool) -> None:
    layouts.write_hyper_kvasir(tmp_path / "data")
    place = tmp_path / ("data/official_splits" if beside else "elsewhere") / "5_fold_split.csv"
    layouts.write_csv(place, layouts.FIVE_FOLD)
    table = load(root=str(tmp_path / "data"), splits=None if beside else str(place))
    same(table)
    assert table.parts == ("0", "2", "0", "4", "1", "2", "1", "3", "0", "3", "1", "4")
    assert "12 of 12 images are in the official split of 5_fold_split.csv." in table.notes
    assert "1 images of the official split are not there." in table.notes


def test_of_two_official_splits_the_user_chooses(tmp_path: Path) -> None:
    layouts.write_hyper_kvasir(tmp_path)
    for k in (2, 5):
        layouts.write_csv(tmp_path / f"official_splits/{k}_fold_split.csv", layouts.FIVE_FOLD)
    table = load(root=str(tmp_path))
    assert set(table.parts) == {""}
    assert any("2_fold_split.csv and 5_fold_split.csv" in note for note in table.notes)
    with pytest.raises(EndocilError, match=r"holds 2_fold_split.csv and 5_fold_split.csv; give one of the files"):
        load(root=str(tmp_path), splits=str(tmp_path / "official_splits"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["name,class", "a,b"], "has no column class-name, file-name, split-index"),
        (["file-name;class-name;split-index", "a.jpg;spleen;0"], "'spleen' is not a class of Hyper-Kvasir"),
        (["file-name;class-name;split-index", "a.jpg;polyp"], "line 2: expected the fields file-name,class-name"),
        (
            ["file-name;class-name;split-index", "a.jpg;polyp;0", "a.jpg;polyps;1"],
            "polyps/a is in part 0 and in part 1",
        ),
    ],
)
def test_a_list_that_is_no_split_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    layouts.write_hyper_kvasir(tmp_path)
    splits = layouts.write_csv(tmp_path / "mine.csv", lines)
    with pytest.raises(EndocilError, match=message):
        load(root=str(tmp_path), splits=str(splits))


def test_a_folder_without_any_class_is_refused_with_the_way_out(tmp_path: Path) -> None:
    layouts.write(tmp_path, ["spleen/1.jpg", "some.zip"])
    with pytest.raises(EndocilError, match=r"no class folder of Hyper-Kvasir.*archives: .*some\.zip.*data where hyper"):
        load(root=str(tmp_path))
    with pytest.raises(EndocilError, match=r"does not exist; give the folder or the archive of Hyper-Kvasir"):
        load(root=str(tmp_path / "nowhere"))


def test_two_copies_of_a_class_are_refused_with_both_places(tmp_path: Path) -> None:
    layouts.write_hyper_kvasir(tmp_path / "one")
    layouts.write(tmp_path, ["kvasir-capsule/Pylorus/x_1.jpg"])  # another data set beside it
    with pytest.raises(EndocilError, match=r"'pylorus' occurs twice .*: one/.*/pylorus and kvasir-capsule/Pylorus;"):
        load(root=str(tmp_path))
