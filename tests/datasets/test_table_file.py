"""A list of images in a text file becomes the table it describes, or is refused by the line that is wrong."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from endocil.data.cache import load_images
from endocil.data.resize import cropped
from endocil.datasets.csv import load
from endocil.errors import EndocilError
from endocil.registry import check_options


def image(path: Path, colour: int = 90) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 10), (colour, colour, colour)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, name in enumerate(["a/1.png", "a/2.png", "b/1.png", "b/deep/2.png"]):
        image(tmp_path / "images" / name, 50 * (number + 1))
    return tmp_path / "images"


def listing(root: Path, text: str, encoding: str = "utf-8") -> str:
    path = root / "list.csv"
    path.write_bytes(text.encode(encoding))
    return str(path)


FULL = """path,label,group,source,split,task,frame
b/deep/2.png,ulcer,p2,capsule,test,1,7
a/1.png,polyp,p1,gastroscope,train,0,3
a/2.png,polyp,p1,gastroscope,Validation,0,
"""


def test_every_column_reaches_the_table(root: Path) -> None:
    table = load(file=listing(root, FULL))
    assert table.ids == ("a/1.png", "a/2.png", "b/deep/2.png")
    assert [table.classes[label] for label in table.labels] == ["polyp", "polyp", "ulcer"]
    assert table.groups == ("p1", "p1", "p2")
    assert table.sources == ("gastroscope", "gastroscope", "capsule")
    assert table.parts == ("train", "validation", "test")
    assert table.arrivals == (0, 0, 1)
    assert table.frames == (3, -1, 7)
    assert table.notes == ()
    assert table.reader.read("b/deep/2.png", 4)[0, 0].tolist() == [200, 200, 200]


def test_the_order_of_the_lines_does_not_matter(root: Path) -> None:
    header, *lines = FULL.strip().split("\n")
    there, back = (load(file=listing(root, "\n".join([header, *chosen]))) for chosen in (lines, lines[::-1]))
    assert there.ids == back.ids
    assert there.digest(8) == back.digest(8)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_marks_and_line_ends_are_recognised(root: Path, mark: str, encoding: str, end: str) -> None:
    lines = [["File Name", "Finding", "Patient_ID"], ["a\\1.png", '"Barrett, läng; mild\t"', "7"], [], []]
    table = load(file=listing(root, end.join(mark.join(line) for line in lines), encoding))
    assert table.ids == ("a/1.png",)
    assert table.classes == ("Barrett, läng; mild",)
    assert table.groups == ("7",)


def test_root_is_where_the_paths_start(root: Path, tmp_path: Path) -> None:
    file = listing(tmp_path, "image,class\n.\\1.png,polyp\ndeep/../1.png,polyp\n")
    table = load(file=file, root=str(root / "b"))
    assert table.ids == ("1.png",)
    assert table.notes == ("1 lines that repeat an image with the same label were left out.",)


@pytest.mark.parametrize(
    "text",
    [
        'path,"kind\nof"\na.png,x\n',
        'path,label,split\na.png,x,"tr\nain"\n',
        'path,label\n"/a\n.png",x\n',
        'path,label\n"../a\n.png",x\n',
    ],
)
def test_a_refusal_is_one_line_whatever_the_file_holds(text: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(EndocilError) as refusal:
        load(file=str(tmp_path / "list.csv"))
    assert "\n" not in str(refusal.value)
    assert "\\n" in str(refusal.value)


def test_columns_of_any_name_can_be_chosen(root: Path) -> None:
    file = listing(root, "bild;befund;patient;video\na/1.png;polyp;p;v\n")
    with pytest.raises(EndocilError, match=r"bild, befund, patient, video; none is known as the path .*path_column"):
        load(file=file)
    with pytest.raises(EndocilError, match=r"2 columns that may be the group: patient, video; .*group_column"):
        load(file=file, path_column="bild", label_column="befund")
    with pytest.raises(EndocilError, match=r"data\.group_column is 'Video', which is not a column"):
        load(file=file, path_column="bild", label_column="befund", group_column="Video")
    assert load(file=file, path_column="bild", label_column="befund", group_column="video").groups == ("v",)


def test_the_first_name_of_a_role_wins(root: Path) -> None:
    assert load(file=listing(root, "image,path,label\nX,a/1.png,polyp\n")).ids == ("a/1.png",)


def test_missing_files_are_counted_in_one_error_before_any_is_decoded(root: Path) -> None:
    lines = "".join(f"none/{number}.png,polyp\n" for number in range(7))
    with pytest.raises(EndocilError) as error:
        load(file=listing(root, f"path,label\na/1.png,polyp\n{lines}none/0.png,polyp\n"))
    assert "7 of 8 files" in str(error.value)
    assert "none/4.png, ...; give the folder" in str(error.value)
    assert "none/5.png" not in str(error.value)


DOUBLE = "path,label,group\na/1.png,polyp,p\na/1.png,ulcer,p\na/2.png,polyp,q\n"


def test_an_image_with_two_labels_is_refused_or_kept_as_two(root: Path, tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"1 images two labels, first a/1\.png: 'polyp' and 'ulcer'; .*keep"):
        load(file=listing(root, DOUBLE))
    table = load(file=listing(root, DOUBLE), double_labels="keep")
    assert table.ids == ("polyp:a/1.png", "ulcer:a/1.png", "a/2.png")
    assert table.labels.tolist() == [0, 1, 0]
    assert table.notes == ("Images with more than one label, which are an image of each of the classes: 1.",)
    for shown in (table, cropped(table)):
        pixels = load_images(shown, 4, folder=tmp_path / "cache").pixels
        assert pixels[:, 0, 0, 0].tolist() == [50, 50, 100]
    before = table.digest(4)
    image(root / "a/1.png", 200)
    assert table.digest(4) != before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns none"),
        ("path,label\n", "lists no images"),
        ("path,label\na/1.png\n", "line 2: 1 fields; expected 2"),
        ("path,label\n\na/1.png,polyp,x\n", "line 3: 3 fields"),
        ("path,label\na/1.png, \n", "line 2: the label is empty"),
        ("path,label\n,polyp\n", "line 2: the path is empty"),
        ("path,label,split\na/1.png,polyp,holdout\n", "the split is 'holdout'; expected train"),
        ("path,label,task\na/1.png,polyp,first\n", "the task is 'first'; expected a whole number"),
        ("path,label,frame\na/1.png,polyp,-3\n", "the frame is '-3'"),
        ("path,label,task\na/1.png,polyp,0\na/2.png,polyp,\n", "a task to some images of the class 'polyp' alone"),
        ("path,label,group\na/1.png,polyp,p\na/1.png,polyp,q\n", "lists a/1.png twice as 'polyp'"),
        ("path,label\n../secret.png,polyp\n", "'../secret.png' leaves the folder"),
        ("path,label\na/../../secret.png,polyp\n", "leaves the folder"),
        ("path,label\n..\\secret.png,polyp\n", "leaves the folder"),
        ("path,label\n..,polyp\n", "leaves the folder"),
        ("path,label\n/etc/passwd,polyp\n", "absolute path; .*absolute_paths"),
        ("path,label\nC:\\x.png,polyp\n", "absolute path"),
        ("path,label\n\\\\server\\share\\x.png,polyp\n", "absolute path"),
        ("path,label\na\0b,polyp\n", "not UTF-8 text"),
        (f"path,label,frame\na/1.png,polyp,{'9' * 5000}\n", "line 2: the frame is '9{40}...'; .*at most 9 digits"),
        (f"path,label,task\na/1.png,polyp,{'1' * 5000}\n", "line 2: the task is '1{40}...'"),
        (f"path,label,fold\na/1.png,polyp,{'1' * 5000}\n", "line 2: the fold is '1{40}...'"),
        (f"path,label\na/1.png,{'x' * 200_000}\n", "line 2: field larger than field limit"),
    ],
)
def test_a_list_that_cannot_be_trusted_is_refused(root: Path, text: str, words: str) -> None:
    with pytest.raises(EndocilError, match=words):
        load(file=listing(root, text))


def test_a_list_in_another_encoding_is_refused_by_its_line(root: Path) -> None:
    text = "path,label\na/1.png,cecum\na/2.png,pólyp\n"
    with pytest.raises(EndocilError, match=r"list\.csv, line 3: is not UTF-8 text; save the file as UTF-8"):
        load(file=listing(root, text, "cp1252"))
    with pytest.raises(EndocilError, match="not UTF-8 text"):
        load(file=listing(root, text, "utf-16"))
    assert load(file=listing(root, text)).classes == ("cecum", "pólyp")


def test_the_mark_is_found_behind_empty_lines(root: Path) -> None:
    assert load(file=listing(root, "\n\npath;label\na/1.png;polyp\n")).ids == ("a/1.png",)
    with pytest.raises(EndocilError, match="line 4: 1 fields; expected 2 as in line 3"):
        load(file=listing(root, "\n\npath;label\na/1.png\n"))


@pytest.mark.skipif(os.name == "nt", reason="no pipes in folders there")
def test_a_pipe_is_neither_a_list_nor_an_image(root: Path) -> None:
    os.mkfifo(root / "a/pipe.png")
    with pytest.raises(EndocilError, match=r"1 of 1 files that .* are not in .*: a/pipe\.png"):
        load(file=listing(root, "path,label\na/pipe.png,polyp\n"))
    os.mkfifo(root / "pipe.csv")
    with pytest.raises(EndocilError, match="not a file"):
        load(file=str(root / "pipe.csv"))


def test_absolute_paths_count_where_they_are_allowed(root: Path, tmp_path: Path) -> None:
    file = listing(tmp_path, f"path,label\n{root / 'a/1.png'},polyp\nimages/a/2.png,polyp\n")
    with pytest.raises(EndocilError, match="absolute path"):
        load(file=file)
    table = load(file=file, absolute_paths=True)
    assert table.ids == (f"{root.as_posix()}/a/1.png", "images/a/2.png")
    assert [int(table.reader.read(name, 2)[0, 0, 0]) for name in table.ids] == [50, 100]


def test_a_list_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match=r"data\.file: cannot read .*none\.csv: No such file"):
        load(file=str(tmp_path / "none.csv"))


def test_folds_are_numbers_as_text(root: Path) -> None:
    table = load(file=listing(root, "path,label,fold\na/1.png,polyp,0\na/2.png,polyp,01\nb/1.png,polyp,\n"))
    assert table.parts == ("0", "1", "")


def test_options_of_another_kind_are_refused_by_the_registry() -> None:
    with pytest.raises(EndocilError, match=r"data\.double_labels"):
        check_options("data", load, {"file": "x", "double_labels": "maybe"})
    with pytest.raises(EndocilError, match=r"data\.file is not set"):
        check_options("data", load, {})


def test_the_labels_are_numbers_of_sorted_classes(root: Path) -> None:
    table = load(file=listing(root, "path,label\na/1.png,z\na/2.png,b\n"))
    assert table.classes == ("b", "z")
    np.testing.assert_array_equal(table.labels, [1, 0])
