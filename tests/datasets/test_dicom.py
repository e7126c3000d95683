"""Every frame of a DICOM file is an image, shown as the file says, and nothing else of the file gets out."""

import inspect
import io
import logging
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, JPEGBaseline8Bit, JPEGLSLossless, RLELossless, generate_uid

from endocil.data import dicom as images_dicom
from endocil.data.cache import load_images
from endocil.data.dicom import DicomReader
from endocil.data.readers import Renamed
from endocil.data.resize import Cropped, cropped
from endocil.data.table import UnreadableImageError
from endocil.datasets import csv as table_file
from endocil.datasets import dicom
from endocil.datasets.dicom import load
from endocil.errors import EndocilError

NAME, NUMBER, BORN = "Secret^Somebody", "PAT-884213", "19610713"
RAMP = np.arange(16, dtype=np.uint8).reshape(4, 4) * 17  # 0 to 255


def write(path: Path, pixels: np.ndarray, kind: str = "MONOCHROME2", **elements: Any) -> Path:
    """A DICOM file of these pixels, (H, W), (H, W, 3) or (frames, H, W), with a patient in it."""
    colour = pixels.ndim == 3 and pixels.shape[-1] == 3
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = elements.pop("syntax", ExplicitVRLittleEndian)
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.77.1.1", generate_uid()
    data.PatientName, data.PatientID, data.PatientBirthDate = NAME, NUMBER, BORN
    data.Manufacturer = "Scope & Sons"
    data.SamplesPerPixel = 3 if colour else 1
    data.PhotometricInterpretation = kind
    data.Rows, data.Columns = pixels.shape[:2] if colour or pixels.ndim == 2 else pixels.shape[1:]
    data.BitsAllocated = data.BitsStored = pixels.dtype.itemsize * 8
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    if colour:
        data.PlanarConfiguration = 0
    elif pixels.ndim == 3:
        data.NumberOfFrames = len(pixels)
    data.PixelData = pixels.tobytes()
    data["PixelData"].VR = "OW" if pixels.dtype.itemsize > 1 else "OB"
    for name, value in elements.items():
        setattr(data, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def shown(path: Path, frame: str = "", **options: Any) -> np.ndarray:
    return np.asarray(DicomReader(path.parent, **options).whole(path.name + frame))


def gray(path: Path, **options: Any) -> list[int]:
    pixels = shown(path, **options)
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0].ravel().tolist()


def test_gray_is_shown_as_it_is_and_monochrome1_inverted(tmp_path: Path) -> None:
    assert gray(write(tmp_path / "a.dcm", RAMP)) == RAMP.ravel().tolist()
    assert gray(write(tmp_path / "b.dcm", RAMP, "MONOCHROME1")) == (255 - RAMP).ravel().tolist()


def test_twelve_and_sixteen_bits_are_scaled_by_the_bits_stored(tmp_path: Path) -> None:
    wide = np.array([[0, 2048], [4095, 1024]], np.uint16)
    assert gray(write(tmp_path / "12.dcm", wide, BitsStored=12, HighBit=11)) == [0, 128, 255, 64]
    assert gray(write(tmp_path / "16.dcm", wide * 16)) == [0, 128, 255, 64]
    signed = np.array([[-32768, 0], [32767, -16384]], np.int16)
    assert gray(write(tmp_path / "signed.dcm", signed)) == [0, 128, 255, 64]


def test_the_window_of_the_file_counts_after_its_rescale_unless_the_full_range_is_asked_for(tmp_path: Path) -> None:
    values = np.array([[0, 100], [150, 200]], np.uint16)
    window: dict[str, Any] = {
        "WindowCenter": [1300.5, 7],
        "WindowWidth": [201, 9],
        "RescaleSlope": 2,
        "RescaleIntercept": 1000,
    }
    path = write(tmp_path / "a.dcm", values, **window)
    assert gray(path) == [0, 0, 128, 255]
    assert gray(path, window="full") == [0, 0, 1, 1]
    exact = write(tmp_path / "b.dcm", values, WindowCenter=100, WindowWidth=200, VOILUTFunction="LINEAR_EXACT")
    assert gray(exact) == [0, 128, 191, 255]
    bent = write(tmp_path / "c.dcm", values, WindowCenter=100, WindowWidth=200, VOILUTFunction="SIGMOID")
    assert gray(bent) == [30, 128, 186, 225]


def table(entries: np.ndarray, lowest: int, bits: int, stored: Any = None) -> Any:
    """A modality or VOI table as a sequence of one item."""
    item = Dataset()
    item.LUTDescriptor = [len(entries) % 2**16, lowest, bits]
    item.LUTData = entries.astype(stored or np.uint16).tobytes()
    item["LUTDescriptor"].VR, item["LUTData"].VR = "SS" if lowest < 0 else "US", "OW"
    return Sequence([item])


def test_the_tables_of_the_file_are_looked_up_before_its_window(tmp_path: Path) -> None:
    values = np.array([[0, 100], [2000, 4095]], np.uint16)
    bits: dict[str, Any] = {"BitsStored": 12, "HighBit": 11}
    inverse = np.arange(4096)[::-1]
    voi = {"VOILUTSequence": table(inverse, 0, 12), "WindowCenter": 1, "WindowWidth": 1, **bits}
    assert gray(write(tmp_path / "voi.dcm", values, **voi)) == [255, 249, 130, 0]
    assert gray(tmp_path / "voi.dcm", window="full") == [0, 6, 125, 255]
    # 8-bit entries for more than 256 values, also two to a word
    shades = np.arange(4096) // 16
    for name, stored in (("wide", np.uint16), ("narrow", np.uint8)):
        sequence = table(shades, 0, 8, stored)
        path = write(tmp_path / f"{name}.dcm", values, VOILUTSequence=sequence, **bits)
        assert gray(path) == [0, 6, 125, 255]
    # values beside a table take its first and its last entry
    short = table(np.array([10, 20, 30]) * 257, 99, 16)
    assert gray(write(tmp_path / "short.dcm", values, VOILUTSequence=short, **bits)) == [10, 20, 30, 30]


def test_a_modality_table_comes_before_window_and_voi_table(tmp_path: Path) -> None:
    values = np.array([[0, 1], [2, 3]], np.uint16)
    modality = table(np.array([0, 1000, 2000, 65535]), 0, 16)
    alone = write(tmp_path / "a.dcm", values, ModalityLUTSequence=modality)
    assert gray(alone) == [0, 4, 8, 255]
    windowed = write(tmp_path / "b.dcm", values, ModalityLUTSequence=modality, WindowCenter=1000.5, WindowWidth=2001)
    assert gray(windowed) == [0, 128, 255, 255]
    voi = table(np.array([0, 100, 200]), 999, 8)
    both = write(tmp_path / "c.dcm", values, ModalityLUTSequence=modality, VOILUTSequence=voi)
    assert gray(both) == [0, 100, 200, 200]
    below = table(np.array([0, 255]), -1000, 8)
    shifted = write(tmp_path / "d.dcm", values, RescaleSlope=1, RescaleIntercept=-1000, VOILUTSequence=below)
    assert gray(shifted) == [0, 255, 255, 255]
    turned = write(tmp_path / "e.dcm", RAMP, RescaleSlope=-1, RescaleIntercept=255)
    assert gray(turned) == (255 - RAMP).ravel().tolist()


COLOURS = np.array([[[200, 30, 90], [10, 220, 40]], [[0, 0, 0], [255, 255, 255]]], np.uint8)


def test_colours_are_the_same_in_either_planar_configuration(tmp_path: Path) -> None:
    assert shown(write(tmp_path / "a.dcm", COLOURS, "RGB")).tolist() == COLOURS.tolist()
    planes = COLOURS.transpose(2, 0, 1).tobytes()
    path = write(tmp_path / "b.dcm", COLOURS, "RGB", PlanarConfiguration=1, PixelData=planes)
    assert shown(path).tolist() == COLOURS.tolist()
    deep = write(tmp_path / "c.dcm", COLOURS.astype(np.uint16) * 257, "RGB")
    assert shown(deep).tolist() == COLOURS.tolist()


def test_ybr_becomes_rgb(tmp_path: Path) -> None:
    ybr = np.asarray(Image.fromarray(COLOURS).convert("YCbCr"))
    assert np.abs(shown(write(tmp_path / "a.dcm", ybr, "YBR_FULL")).astype(int) - COLOURS).max() <= 2
    flat = np.asarray(Image.new("RGB", (2, 2), (200, 30, 90)).convert("YCbCr"))
    halved = np.stack([flat[..., 0].ravel()[[0, 1]], flat[0, 0, 1:]]).tobytes() * 2  # Y Y Cb Cr for two pixels
    path = write(tmp_path / "b.dcm", flat, "YBR_FULL_422", PixelData=halved)
    assert np.abs(shown(path).astype(int) - [200, 30, 90]).max() <= 2


def test_a_palette_gives_its_colours(tmp_path: Path) -> None:
    index = np.array([[0, 1], [2, 3]], np.uint8)
    tables: dict[str, Any] = {}
    for number, colour in enumerate(("Red", "Green", "Blue")):
        tables[f"{colour}PaletteColorLookupTableDescriptor"] = [4, 0, 16]
        levels = COLOURS.reshape(4, 3)[:, number].astype(np.uint16) * 257
        tables[f"{colour}PaletteColorLookupTableData"] = levels.tobytes()
    path = write(tmp_path / "a.dcm", index, "PALETTE COLOR", **tables)
    assert shown(path).tolist() == COLOURS.tolist()


def test_compressed_pixels_are_read_where_pydicom_can_and_refused_with_the_name_where_not(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 30, 90)).save(buffer, "JPEG", quality=95)
    sixteen = np.zeros((16, 16, 3), np.uint8)
    data = encapsulate([buffer.getvalue()])
    path = write(tmp_path / "j.dcm", sixteen, "YBR_FULL_422", syntax=JPEGBaseline8Bit, PixelData=data)
    assert np.abs(shown(path).astype(int) - [200, 30, 90]).max() <= 4
    plain = write(tmp_path / "r.dcm", RAMP)
    packed = pydicom.dcmread(plain)
    packed.compress(RLELossless)
    packed.save_as(plain)
    assert gray(plain) == RAMP.ravel().tolist()
    path = write(tmp_path / "l.dcm", RAMP, syntax=JPEGLSLossless, PixelData=encapsulate([b"none"]))
    with pytest.raises(UnreadableImageError, match="no decoder for JPEG-LS Lossless"):
        shown(path)


def test_each_frame_is_an_image_of_the_group_of_its_file(tmp_path: Path) -> None:
    film = np.stack([np.full((4, 4), 50 * n, np.uint8) for n in range(1, 4)])
    write(tmp_path / "polyp/film.dcm", film)
    write(tmp_path / "ulcer/day/one", RAMP)
    (tmp_path / "ulcer/notes.txt").write_text("no image")
    (tmp_path / "ulcer/README").write_text("no image either")
    write(tmp_path / "DICOMDIR", RAMP)
    write(tmp_path / "stray.dcm", RAMP)
    table = load(root=str(tmp_path))
    assert table.ids == ("polyp/film.dcm#1", "polyp/film.dcm#2", "polyp/film.dcm#3", "ulcer/day/one")
    assert [table.classes[label] for label in table.labels] == ["polyp"] * 3 + ["ulcer"]
    assert table.groups == ("polyp/film.dcm",) * 3 + ("ulcer/day/one",)
    assert table.frames == (1, 2, 3, -1)
    assert [int(table.reader.read(name, 2)[0, 0, 0]) for name in table.ids[:3]] == [50, 100, 150]
    assert table.notes == (
        "3 files that are no DICOM files were left out: 1 .txt, 2 without ending.",
        "1 DICOM files in no class folder were left out.",
    )
    assert load(root=str(tmp_path), class_from="leaf").classes == ("day", "polyp")


def test_a_list_names_files_or_single_frames(tmp_path: Path) -> None:
    film = np.stack([np.full((4, 4), 50 * n, np.uint8) for n in range(1, 4)])
    write(tmp_path / "film.dcm", film)
    write(tmp_path / "one.dcm", RAMP)
    (tmp_path / "list.csv").write_text(
        "path;label;frame;patient;split\nfilm.dcm;ulcer;3;p1;test\nfilm.dcm;polyp;1;p1;test\none.dcm;polyp;;;train\n"
    )
    table = load(file=str(tmp_path / "list.csv"))
    assert table.ids == ("film.dcm#1", "film.dcm#3", "one.dcm")
    assert table.groups == ("p1", "p1", "one.dcm")
    assert table.parts == ("test", "test", "train")
    assert [table.classes[label] for label in table.labels] == ["polyp", "ulcer", "polyp"]


def test_a_frame_that_a_file_does_not_have_is_refused_also_of_a_single_one(tmp_path: Path) -> None:
    write(tmp_path / "one.dcm", RAMP)
    (tmp_path / "list.csv").write_text("path,label,frame\none.dcm,polyp,7\n")
    seventh = load(file=str(tmp_path / "list.csv"))
    with pytest.raises(UnreadableImageError, match="it has no frame 7"):
        seventh.reader.read(seventh.ids[0], 4)
    (tmp_path / "list.csv").write_text("path,label,frame\none.dcm,polyp,1\n")
    assert load(file=str(tmp_path / "list.csv")).ids == ("one.dcm",)


def test_columns_of_a_list_can_be_named_as_in_csv(tmp_path: Path) -> None:
    write(tmp_path / "one.dcm", RAMP)
    (tmp_path / "list.csv").write_text("bild;befund\none.dcm;polyp\n")
    with pytest.raises(EndocilError, match=r"choose one by --set data\.path_column=NAME"):
        load(file=str(tmp_path / "list.csv"))
    found = load(file=str(tmp_path / "list.csv"), path_column="bild", label_column="befund")
    assert found.ids == ("one.dcm",)
    of_csv = {name for name in inspect.signature(table_file.load).parameters if name.endswith("_column")}
    assert of_csv <= inspect.signature(load).parameters.keys()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_folders_are_read_as_those_of_pictures(tmp_path: Path) -> None:
    write(tmp_path / "root/upper/polyp/a.dcm", RAMP)
    write(tmp_path / "elsewhere/b.dcm", RAMP)
    (tmp_path / "root/upper/ulcer").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "root/upper/polyp/pipe")
    os.mkfifo(tmp_path / "root/upper/polyp/pipe.dcm")
    found = load(root=str(tmp_path / "root"), class_from="leaf")
    assert found.ids == ("polyp/a.dcm", "polyp/pipe.dcm", "ulcer/b.dcm")
    assert found.reader.read("ulcer/b.dcm", 4).shape == (4, 4, 3)
    with pytest.raises(UnreadableImageError, match="not a file"):
        found.reader.read("polyp/pipe.dcm", 4)
    write(tmp_path / "root/lower/polyp/c.dcm", RAMP)
    with pytest.raises(EndocilError, match="'polyp' occurs twice"):
        load(root=str(tmp_path / "root"), class_from="leaf")


def test_readers_around_a_dicom_reader_ask_for_processes_too_and_tell_sizes(tmp_path: Path) -> None:
    write(tmp_path / "one.dcm", RAMP.reshape(2, 8))
    (tmp_path / "list.csv").write_text("path,label\none.dcm,polyp\none.dcm,ulcer\n")
    double = load(file=str(tmp_path / "list.csv"), double_labels="keep")
    for reader in (double.reader, cropped(double).reader):
        assert isinstance(reader, Renamed | Cropped)
        assert reader.in_processes
        assert reader.dimensions("ulcer:one.dcm") == (8, 2)
        assert pickle.loads(pickle.dumps(reader)) == reader


def test_the_header_of_a_file_is_read_once_for_all_its_frames_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = np.stack([np.full((4, 4), 50 * n, np.uint8) for n in range(1, 4)])
    path = write(tmp_path / "film.dcm", film)
    read, calls = images_dicom.read_header, list[Path]()

    def counted(path: Path) -> Dataset:
        calls.append(path)
        header: Dataset = read(path)
        return header

    monkeypatch.setattr(images_dicom, "read_header", counted)
    reader = DicomReader(tmp_path)
    for number in range(1, 4):
        assert (reader.read(f"film.dcm#{number}", 4) == 50 * number).all()
    assert len(calls) == 1
    write(path, film[:, :2] + 1)
    assert (reader.read("film.dcm#1", 4) == 51).all()
    assert len(calls) == 2


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_no_element_but_those_asked_for_gets_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    root = tmp_path / "images"
    whole = write(root / "polyp/a.dcm", RAMP, WindowCenter=314, WindowWidth=200).read_bytes()
    write(root / "polyp/b.dcm", RAMP, syntax=JPEGLSLossless, PixelData=encapsulate([b"none"]))
    (root / "polyp/c.dcm").write_bytes(whole[:-10])
    (root / "polyp/d.dcm").write_bytes(whole[: len(whole) // 2])
    (root / "polyp/e.dcm").write_bytes(whole.replace(b"MONOCHROME2 ", NAME[:12].encode()))
    (root / "polyp/f.dcm").write_bytes(whole.replace(b"314.0 ", NAME[:6].encode()))
    syntax = ExplicitVRLittleEndian.encode() + b"\0"
    assert syntax in whole
    (root / "polyp/g.dcm").write_bytes(whole.replace(syntax, NAME.ljust(len(syntax)).encode()))
    table = load(root=str(root), group_by="PatientID", source_tag="Manufacturer")
    with pytest.raises(EndocilError) as error:
        load_images(table, 8, folder=tmp_path / "cache")
    images = load_images(table, 8, folder=tmp_path / "cache", skip_unreadable=True)
    assert images.table.ids == ("polyp/a.dcm",)
    assert images.table.sources == ("Scope & Sons",)
    assert len(images.table.groups[0]) == 16
    said: list[str | bytes] = [
        repr(table),
        repr(images),
        str(error.value),
        pickle.dumps(table),
        everything_in(tmp_path / "cache"),
    ]
    said += [caplog.text, *capfd.readouterr(), table.digest(8)]
    for secret in (NAME, NAME[:12], NUMBER, BORN):
        for text in said:
            assert secret.encode() not in (text if isinstance(text, bytes) else text.encode())
    assert NAME[:6] not in str(error.value)


def test_groups_by_an_element_are_those_of_its_values(tmp_path: Path) -> None:
    for name, patient in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "")):
        write(tmp_path / f"x/{name}.dcm", RAMP, PatientID=patient)
    table = load(root=str(tmp_path), group_by="PatientID")
    assert table.groups[0] == table.groups[1] != table.groups[2]
    assert table.groups[3] == ""
    assert table.notes == ("Images without PatientID, which belong to no group: 1.",)
    with pytest.raises(EndocilError, match=r"data\.group_by is 'Patient', which is not a DICOM keyword"):
        load(root=str(tmp_path), group_by="Patient")


@pytest.mark.parametrize(
    ("elements", "reason"),
    [
        ({"Rows": 60000, "Columns": 60000}, "60000 x 60000 pixels; at most"),
        ({"Rows": 0}, "it has no image"),
        ({"PhotometricInterpretation": "HSV"}, "none of MONOCHROME1"),
        ({"Rows": 400}, "pydicom cannot decode its pixels"),
    ],
)
def test_a_file_that_cannot_be_shown_has_a_reason(tmp_path: Path, elements: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnreadableImageError, match=reason):
        shown(write(tmp_path / "a.dcm", RAMP, **elements))


def test_frames_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x/a.dcm", RAMP, NumberOfFrames=2_000_000_000)
    assert load(root=str(tmp_path)).ids == ("x/a.dcm",)
    with pytest.raises(UnreadableImageError, match="claims 2000000000 frames"):
        shown(path)
    with pytest.raises(UnreadableImageError, match="no frame 9"):
        shown(write(tmp_path / "b.dcm", RAMP), "#9")
    with pytest.raises(UnreadableImageError, match="No such file"):
        DicomReader(tmp_path).read("none.dcm", 8)
    (tmp_path / "text.dcm").write_text("nothing " * 40)
    with pytest.raises(UnreadableImageError, match="not a DICOM file"):
        DicomReader(tmp_path).read("text.dcm", 8)


def test_frames_are_cropped_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    framed = np.zeros((90, 90), np.uint8)
    framed[20:70, 10:80] = 200
    write(tmp_path / "x/a.dcm", framed)
    table = cropped(load(root=str(tmp_path)))
    assert (table.reader.read("x/a.dcm", 8) == 200).all()
    before = table.digest(8)
    write(tmp_path / "x/a.dcm", framed[:80])
    assert table.digest(8) != before


def test_what_is_not_given_or_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EndocilError, match=r"data\.root and data\.file are not set"):
        load()
    with pytest.raises(EndocilError, match="has no folders; expected one folder of DICOM files per class"):
        load(root=str(tmp_path))
    with pytest.raises(EndocilError, match="does not exist"):
        load(root=str(tmp_path / "none"))
    write(tmp_path / "x/a.dcm", RAMP)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.setitem(sys.modules, "pydicom.pixels", None)
    with pytest.raises(EndocilError, match=r"pip install 'endocil\[dicom\]'"):
        dicom.load(root=str(tmp_path))
