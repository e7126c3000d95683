"""What can be predicted: files, folders, lists, pictures in memory and tables, read as the run read its own."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from endocil.data.decode import decode
from endocil.data.inputs import Inputs, inputs_of
from endocil.data.readers import read_many
from endocil.errors import EndocilError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    top = tmp_path / "images"
    for name in ("a.png", "deep/er/b.jpg", "deep/c.bmp"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(top / name)
    (top / "notes.txt").write_text("no image")
    (top / ".hidden.png").write_bytes(b"x")
    return top


def pixels(inputs: Inputs, size: int = 16) -> np.ndarray:
    found, unreadable = read_many(inputs.reader, inputs.ids, size)
    assert unreadable == []
    return found


def test_a_folder_is_read_at_any_depth_and_names_are_paths_in_it(folder: Path) -> None:
    found = inputs_of(folder, crop_frame=False)
    assert sorted(found.names) == ["a.png", "deep/c.bmp", "deep/er/b.jpg"]
    for name, picture in zip(found.names, pixels(found), strict=True):
        assert np.array_equal(picture, decode((folder / name).read_bytes(), 16))
    assert {path.name for path in found.files} == {"a.png", "b.jpg", "c.bmp"}


@pytest.mark.parametrize("header", ["path", "Image", "file name;label", "label\tfilename"])
def test_a_list_names_files_from_its_own_folder(folder: Path, header: str) -> None:
    mark = ";" if ";" in header else "\t" if "\t" in header else ","
    header = header.replace("file name", "file_name")
    place = next(i for i, name in enumerate(header.split(mark)) if name != "label")
    lines = [header]
    for name in ("deep/c.bmp", str(folder / "a.png"), "deep/c.bmp"):
        fields = [name, "x"] if place == 0 else ["x", name]
        lines.append(mark.join(fields[: len(header.split(mark))]))
    (folder / "list.csv").write_text("\n".join(lines))
    found = inputs_of(folder / "list.csv", crop_frame=False)
    assert found.names == ("deep/c.bmp", str(folder / "a.png"))
    assert len(pixels(found)) == 2
    assert folder / "list.csv" in found.files


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("label\nx", "none is known as the path .*renaming it"),
        ("path,label\na.png", "line 2"),
        ("", "none is known as the path"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(folder: Path, text: str, reason: str) -> None:
    (folder / "list.csv").write_text(text)
    with pytest.raises(EndocilError, match=reason):
        inputs_of(folder / "list.csv", crop_frame=False)


def test_paths_pictures_and_arrays_may_be_mixed(folder: Path) -> None:
    array = np.asarray(Image.open(folder / "a.png"))
    found = inputs_of([folder / "a.png", Image.open(folder / "a.png"), array], crop_frame=False)
    assert found.names == (str(folder / "a.png"), "1", "2")
    one, two, three = pixels(found)
    assert np.array_equal(one, two)
    assert np.array_equal(one, three)


def test_a_picture_that_lies_on_its_side_is_turned(tmp_path: Path) -> None:
    turned = Image.new("RGB", (60, 30))
    turned.paste((255, 255, 255), (0, 0, 30, 30))
    notes = turned.getexif()
    notes[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=notes)
    file, picture = pixels(inputs_of([tmp_path / "turned.png", Image.open(tmp_path / "turned.png")], crop_frame=False))
    assert file[:6].mean() > 200 > file[-6:].mean()
    assert np.array_equal(file, picture)


def test_the_black_frame_is_cut_away_where_the_run_did_it(tmp_path: Path) -> None:
    framed = np.zeros((200, 300, 3), np.uint8)
    framed[40:160, 60:240] = 180
    Image.fromarray(framed).save(tmp_path / "framed.png")
    plain, cut = (pixels(inputs_of(tmp_path / "framed.png", crop_frame=crop))[0] for crop in (False, True))
    assert plain[0, 0].max() == 0
    assert cut.min() == 180
    assert np.array_equal(pixels(inputs_of([framed], crop_frame=True))[0], cut)


@pytest.mark.parametrize("thing", [3, np.zeros((4, 4)), np.zeros((4, 4, 3)), np.zeros((4, 4, 4), np.uint8), None])
def test_other_things_are_refused_by_their_number(thing: object) -> None:
    with pytest.raises(EndocilError, match=r"image 0 is .*; expected a path"):
        inputs_of([thing], crop_frame=False)


def test_places_without_images_are_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(EndocilError, match="holds no image"):
        inputs_of(tmp_path / "empty", crop_frame=False)
    with pytest.raises(EndocilError, match="does not exist"):
        inputs_of(tmp_path / "nothing.png", crop_frame=False)
    with pytest.raises(EndocilError, match="a folder among several"):
        inputs_of([folder, folder / "a.png"], crop_frame=False)


def test_every_frame_of_a_dicom_file_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    from damaged import dicoms

    for i, data in enumerate(dicoms().values()):
        (tmp_path / f"{i}.dcm").write_bytes(data)
    (tmp_path / "broken.dcm").write_bytes(b"no dicom")
    found = inputs_of(tmp_path, crop_frame=False)
    assert getattr(found.reader, "in_processes", False)
    assert "broken.dcm" in found.names
    assert any(name.endswith("#2") for name in found.names)
    assert {path.name for path in found.files} == {path.name for path in tmp_path.iterdir()}
    read, unreadable = read_many(found.reader, found.ids, 16)
    names = dict(zip(found.ids, found.names, strict=True))
    assert "broken.dcm" in {names[image_id] for image_id, _ in unreadable}
    assert len(unreadable) < len(read)


def test_without_pydicom_dicom_files_are_unreadable_and_others_are_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydicom.pixels", None)
    (folder / "d.dcm").write_bytes(b"x" * 200)
    found = inputs_of(folder, crop_frame=False)
    _, unreadable = read_many(found.reader, found.ids, 16)
    assert len(unreadable) == 1
    assert "endocil[dicom]" in unreadable[0][1]
