"""Image folders become a table, or are refused with one clear line."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from endocil.data.cache import load_images
from endocil.datasets.folder import load, load_any
from endocil.errors import EndocilError

ClassFrom = Literal["first", "leaf"]
HYPER_KVASIR = (
    "lower-gi-tract/anatomical-landmarks/cecum/b.jpg",
    "lower-gi-tract/anatomical-landmarks/cecum/a.jpg",
    "lower-gi-tract/pathological-findings/polyps/c.jpg",
    "upper-gi-tract/anatomical-landmarks/z-line/d.jpg",
)


def make(root: Path, paths: Sequence[str]) -> str:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"not looked at")
    return str(root)


def test_the_first_folder_is_the_class_at_any_depth(tmp_path: Path) -> None:
    root = make(tmp_path, ["polyp/2.jpg", "polyp/day-1/a/1.PNG", "cecum/3.tiff", "Zline/4.jpeg"])
    table = load(root=root)
    assert table.classes == ("Zline", "cecum", "polyp")
    assert table.ids == ("Zline/4.jpeg", "cecum/3.tiff", "polyp/2.jpg", "polyp/day-1/a/1.PNG")
    assert table.labels.tolist() == [0, 1, 2, 2]
    assert table.groups == table.sources == ("",) * 4
    assert table.notes == ()


def test_the_leaf_folder_is_the_class_and_ids_do_not_depend_on_how_high_root_is(tmp_path: Path) -> None:
    make(tmp_path / "data/hyper-kvasir/labeled-images", HYPER_KVASIR)
    tables = [
        load(root=str(tmp_path / level), class_from="leaf")
        for level in ("", "data", "data/hyper-kvasir", "data/hyper-kvasir/labeled-images")
    ]
    for table in tables:
        assert table.ids == tuple(sorted(HYPER_KVASIR))
        assert table.classes == ("cecum", "polyps", "z-line")
        assert table.labels.tolist() == [0, 0, 1, 2]
    assert len({table.digest(64) for table in tables}) == 1


def test_a_single_leaf_keeps_its_folder_in_the_ids(tmp_path: Path) -> None:
    table = load(root=make(tmp_path, ["a/b/polyp/1.jpg"]), class_from="leaf")
    assert table.ids == ("polyp/1.jpg",)
    assert table.classes == ("polyp",)


def test_the_table_s_images_can_be_read(tmp_path: Path) -> None:
    for name, colour in (("a/x/1.png", 10), ("b/2.png", 20)):
        (tmp_path / "top" / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((9, 7, 3), colour, np.uint8)).save(tmp_path / "top" / name)
    rules: list[tuple[ClassFrom, Path]] = [("first", tmp_path / "top"), ("leaf", tmp_path)]
    for class_from, root in rules:
        images = load_images(load(root=str(root), class_from=class_from), 4)
        assert images.pixels[:, 0, 0, 0].tolist() == [10, 20]


def test_files_that_are_no_images_are_left_out_and_counted(tmp_path: Path) -> None:
    files = ["a/1.jpg", "a/note.txt", "a/.hidden.jpg", "a/README", "table.csv", "b/2.jpg", "b/x.TXT", "stray.jpg"]
    table = load(root=make(tmp_path, [*files, ".git/3.jpg", "__MACOSX/a/._1.jpg"]))
    assert table.ids == ("a/1.jpg", "b/2.jpg")
    assert table.notes == (
        "5 files that are no images were left out: 1 .csv, 2 .txt, 1 hidden, 1 without ending.",
        "1 images in no class folder were left out.",
    )


def test_home_and_variables_in_root_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, ["images/a/1.jpg"])
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MY_IMAGES", str(tmp_path / "images"))
    for root in ("~/images", "$MY_IMAGES", "${MY_IMAGES}/../images"):
        assert load(root=root).ids == ("a/1.jpg",)


@pytest.mark.parametrize("root", ["$NO_SUCH_VARIABLE/x", "${NO_SUCH_VARIABLE}"])
def test_a_variable_that_is_not_set_is_named(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    with pytest.raises(EndocilError, match="environment variable NO_SUCH_VARIABLE is not set"):
        load(root=root)


def test_a_missing_root_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"none' does not exist; .*--set data.root=FOLDER"):
        load(root=str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(EndocilError, match=r"file' is not a folder"):
        load(root=str(tmp_path / "file"))


@pytest.mark.parametrize("class_from", ["first", "leaf"])
def test_a_root_without_class_folders_is_refused(tmp_path: Path, class_from: ClassFrom) -> None:
    make(tmp_path, ["1.jpg", "2.jpg"])
    with pytest.raises(EndocilError, match="one folder of images per class"):
        load(root=str(tmp_path), class_from=class_from)


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    make(tmp_path, ["polyp/1.jpg", "ulcer/notes.txt"])
    (tmp_path / "cecum" / "empty below").mkdir(parents=True)
    with pytest.raises(EndocilError, match=r"no image in 2 class folder\(s\) of .*: cecum, ulcer; .*remove"):
        load(root=str(tmp_path))


def test_an_empty_leaf_is_named_unless_it_lies_outside_the_classes(tmp_path: Path) -> None:
    make(tmp_path / "labeled-images", HYPER_KVASIR)
    (tmp_path / "logs").mkdir()
    assert len(load(root=str(tmp_path), class_from="leaf")) == 4
    (tmp_path / "labeled-images/lower-gi-tract/ileum").mkdir()
    with pytest.raises(EndocilError, match=r"no image in 1 class folder\(s\).*: labeled-images/lower-gi-tract/ileum;"):
        load(root=str(tmp_path), class_from="leaf")


def test_a_leaf_name_under_two_parents_is_refused_with_both(tmp_path: Path) -> None:
    root = make(tmp_path, ["lower/polyp/1.jpg", "upper/polyp/2.jpg"])
    with pytest.raises(EndocilError, match=r"'polyp' occurs twice .*: lower/polyp and upper/polyp; rename"):
        load(root=root, class_from="leaf")
    assert load(root=root).classes == ("lower", "upper")


def test_an_unknown_class_rule_is_refused(tmp_path: Path) -> None:
    unknown: Any = "last"
    with pytest.raises(EndocilError, match="expected 'first' or 'leaf'"):
        load(root=str(tmp_path), class_from=unknown)


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", ["1.jpg"])
    root = Path(make(tmp_path / "root", ["a/2.jpg"]))
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "up").symlink_to(root)
    assert load(root=str(root)).ids == ("a/2.jpg", "b/1.jpg")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_between_folders_do_not_multiply_images_nor_take_them_away(tmp_path: Path) -> None:
    root = Path(make(tmp_path / "loop", ["polyp/1.jpg", "polyp/2.jpg", "ulcer/3.jpg"]))
    (root / "polyp" / "u").symlink_to("../ulcer")
    (root / "ulcer" / "p").symlink_to("../polyp")
    (root / "a copy").symlink_to("ulcer")
    (root / "ulcer" / "out").symlink_to(tmp_path)
    table = load(root=str(root))
    assert table.ids == ("polyp/1.jpg", "polyp/2.jpg", "ulcer/3.jpg")
    assert table.classes == ("polyp", "ulcer")
    assert table.notes == ("4 links to folders that are there already were left out, first a copy.",)
    assert load(root=str(root), class_from="leaf").ids == table.ids


@pytest.mark.parametrize(
    ("paths", "classes"),
    [
        (["1.jpg", "2.jpg"], ("own",)),
        (["data/polyp/1.jpg", "data/ulcer/2.jpg"], ("polyp", "ulcer")),
        (["data/polyp/1.jpg", "data/empty/x.txt"], ("polyp",)),
        (["data/a/polyp/1.jpg", "data/b/polyp/2.jpg"], ("data",)),  # leaves would be one class
        (["train/polyp/1.jpg", "test/polyp/2.jpg", "3.jpg"], ("test", "train")),
    ],
)
def test_any_folder_of_images_can_be_looked_at(tmp_path: Path, paths: list[str], classes: tuple[str, ...]) -> None:
    root = make(tmp_path / "own", paths)
    assert load_any(root=root).classes == classes


GROUPS = "path,group\n" + "".join(f"{path},{i // 2}\n" for i, path in enumerate(HYPER_KVASIR))


@pytest.mark.parametrize("level", ["", "labeled-images"])
@pytest.mark.parametrize("prefix", ["", "labeled-images/", "./"])
def test_groups_are_matched_from_root_or_from_the_class_folders(tmp_path: Path, level: str, prefix: str) -> None:
    make(tmp_path / "labeled-images", HYPER_KVASIR)
    lines = [f"{prefix}{line}" for line in GROUPS.splitlines()[1:]]
    (tmp_path / "groups.csv").write_text("\n".join(["path,group", *lines]))
    arguments: dict[str, Any] = {
        "root": str(tmp_path / level),
        "class_from": "leaf",
        "groups": str(tmp_path / "groups.csv"),
    }
    if level and prefix == "labeled-images/":
        with pytest.raises(EndocilError, match="has no line for 4 of 4 images"):
            load(**arguments)
        return
    assert load(**arguments).groups == ("0", "0", "1", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,colour\na,1\n", "has the columns image, colour; none is known as the group"),
        ("path,group\n", "lists no images"),
        (GROUPS.rsplit("\n", 2)[0], "has no line for 1 of 4 images, first upper-gi-tract/.*/z-line/d.jpg"),
        (GROUPS + f"{HYPER_KVASIR[0]},7\n", "cecum/b.jpg into two groups: 0, 7"),
    ],
)
def test_groups_that_do_not_match_are_refused(tmp_path: Path, text: str, message: str) -> None:
    root = make(tmp_path / "images", HYPER_KVASIR)
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(EndocilError, match=message):
        load(root=root, class_from="leaf", groups=str(tmp_path / "groups.csv"))


def test_a_missing_groups_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"cannot read .*groups\.csv"):
        load(root=make(tmp_path, ["a/1.jpg"]), groups=str(tmp_path / "groups.csv"))
