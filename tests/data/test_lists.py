"""One reader of image lists: run, learn, predict and compare accept the same columns and refuse the same ones."""

from pathlib import Path

import pytest
import tomli_w
from commands import endocil
from pictures import make_images
from PIL import Image

from endocil.data.inputs import folder_or_list, inputs_of
from endocil.data.lists import ROLES, Row, read_groups, read_list
from endocil.datasets import load_table
from endocil.errors import DataError
from endocil.io.files import read_csv, write_csv

CLASSES = ("class-00", "class-01", "class-02")


def write_list(file: Path, path_column: str, classes: tuple[str, ...]) -> Path:
    """The images of three classes beside the list, with columns spelled as people spell them."""
    images = make_images([10] * len(CLASSES))
    rows = []
    for i, name in enumerate(images.table.ids):
        (file.parent / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.pixels[i].numpy()).save(file.parent / name)
        part = "Testing" if i % 10 > 7 else "val" if i % 10 == 7 else "TRAIN"
        if name.split("/")[0] in classes:
            rows.append((name.replace("/", "\\"), name.split("/")[0], images.table.groups[i], part))
    write_csv(file, (path_column, "Class Name", "patient-ID", "Split"), rows)
    return file


def test_run_learn_predict_and_compare_read_the_same_list(tmp_path: Path) -> None:
    first = write_list(tmp_path / "first.csv", "file-name", CLASSES[:2])
    more = write_list(tmp_path / "more.csv", "File Name", CLASSES[2:])
    settings = {
        "data": {"name": "csv", "file": str(first), "size": 32},
        "scenario": {"increments": [2], "split_by": "given"},
        "network": {"width": 8},
        "memory": {"per_class": 3},
        "method": {"name": "icarl"},
        "train": {"epochs": 1, "milestones": [], "batch_size": 8},
        "run": {"threads": 1, "accelerator": "cpu"},
    }
    (tmp_path / "settings.toml").write_text(tomli_w.dumps(settings))
    for arguments in (
        ("run", "settings.toml", "-o", "one"),
        ("bundle", "one", "-o", "one.endocil"),
        ("learn", "one.endocil", more, "-o", "two.endocil"),
        ("predict", "two.endocil", more, "-o", "predictions.csv"),
        ("compare", "one.endocil", "one.endocil", first, "-o", "gate.html"),
    ):
        done = endocil(*arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
    predicted = [row["image"] for row in read_csv(tmp_path / "predictions.csv")]
    assert predicted == [row.path for row in read_list(more)]


@pytest.mark.parametrize("column", [*ROLES["path"], "file-name", "IMAGE_PATH", " File "])
def test_every_spelling_of_the_path_is_known_with_and_without_labels(tmp_path: Path, column: str) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    file = tmp_path / "list.tsv"
    file.write_text(f"{column}\tlabel\na.png\tpolyp\n")
    assert load_table("csv", {"file": str(file)}).ids == ("a.png",)  # run
    data = folder_or_list(file, "new")  # learn and compare
    assert load_table(data.pop("name"), data).ids == ("a.png",)
    assert inputs_of(file, crop_frame=False).names == ("a.png",)  # predict
    file.write_text(f"{column}\na.png\n")
    assert inputs_of(file, crop_frame=False).names == ("a.png",)
    with pytest.raises(DataError, match="none is known as the label"):
        load_table("csv", {"file": str(file)})


def test_a_list_with_two_columns_for_the_path_is_refused_by_all(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_text("file,image,label\na.png,b.png,polyp\n")
    for read in (lambda: load_table("csv", {"file": str(file)}), lambda: inputs_of(file, crop_frame=False)):
        with pytest.raises(DataError, match="2 columns that may be the path: file, image"):
            read()


def test_what_is_only_predicted_needs_no_sound_labels(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_text("path,label,split,task,patient,video\na.png,,holdout,first,p,v\n")
    assert read_list(file, roles=("path",), required=("path",)) == [Row("a.png")]
    assert inputs_of(file, crop_frame=False).names == ("a.png",)


def test_a_frame_in_a_list_chooses_that_frame_of_a_dicom_file(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    file = tmp_path / "list.csv"
    file.write_text("path,frame\nfilm.dcm,3\nstill.jpg,7\n")
    assert inputs_of(file, crop_frame=False).names == ("film.dcm#3", "still.jpg")


def test_names_of_files_that_are_no_unicode_come_back_as_they_are(tmp_path: Path) -> None:
    name = b"caf\xe9.png".decode(errors="surrogateescape")
    write_csv(tmp_path / "groups.csv", ("Path", "Patient"), [(f"./{name}", name)])
    assert read_groups(tmp_path / "groups.csv", "data.groups", [name]) == (name,)
