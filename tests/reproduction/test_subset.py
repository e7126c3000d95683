"""The subset of Hyper-Kvasir: the committed list, and rebuilding from a download."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from endocil.datasets.folder import load
from endocil.errors import EndocilError
from endocil.io.files import read_csv
from reproduction.subset import convert, main, quarter_means, read_list, rebuild

LIST = Path(__file__).parents[2] / "experiments" / "hyper-kvasir-part.csv"
PATHS = ("lower-gi-tract/findings/polyps/a.jpg", "upper-gi-tract/landmarks/z-line/b.jpg")
BOX = (0.0, 86.5, 38.25, 128.0)


def original(seed: int) -> Image.Image:
    """Smooth colours, wider than high, with a green picture in the corner of the middle square."""
    small = np.random.default_rng(seed).integers(60, 200, (8, 10, 3), np.uint8)
    image = Image.fromarray(small).resize((622, 530), Image.Resampling.BICUBIC)
    image.paste((0, 255, 0), (46, 360, 46 + 158, 530))
    return image


def thumbnail(image: Image.Image) -> str:
    return bytes(quarter_means(image).round().astype(np.uint8)).hex()


@pytest.fixture
def download(tmp_path: Path) -> Path:
    root = tmp_path / "hyper-kvasir"
    for seed, path in enumerate(PATHS):
        (root / "labeled-images" / path).parent.mkdir(parents=True)
        original(seed).save(root / "labeled-images" / path, quality=95)
    (root / "segmented-images" / "masks").mkdir(parents=True)
    Image.new("RGB", (50, 50)).save(root / "segmented-images" / "masks" / "a.jpg")
    return root


@pytest.fixture
def list_file(tmp_path: Path) -> Path:
    lines = ["path,group,box,thumbnail"]
    for seed, path in enumerate(PATHS):
        lines.append(f"{path},{seed + 7},0 86.5 38.25 128,{thumbnail(convert(original(seed), BOX))}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "list.csv"


@pytest.mark.parametrize("level", ["", "labeled-images", "labeled-images/lower-gi-tract/findings", ".."])
def test_the_subset_is_rebuilt_from_any_level_of_the_download(
    tmp_path: Path, download: Path, list_file: Path, level: str
) -> None:
    calls: list[tuple[int, int]] = []
    report = rebuild(list_file, download / level, tmp_path / "out", lambda *call: calls.append(call))
    assert (report.written, report.agree, report.differ, report.missing) == (2, 2, (), ())
    assert calls == [(1, 2), (2, 2)]
    table = load(root=str(tmp_path / "out"), class_from="leaf", groups=str(tmp_path / "out" / "groups.csv"))
    assert table.ids == PATHS
    assert table.groups == ("7", "8")
    with Image.open(tmp_path / "out" / "labeled-images" / PATHS[0]) as image:
        assert image.size == (128, 128)


def test_the_box_is_black_and_no_green_is_left(tmp_path: Path, download: Path, list_file: Path) -> None:
    rebuild(list_file, download, tmp_path / "out")
    with Image.open(tmp_path / "out" / "labeled-images" / PATHS[0]) as image:
        pixels = np.asarray(image).astype(int)
    assert pixels[90:, :35].max() < 15
    greenness = pixels[..., 1] - pixels[..., [0, 2]].max(axis=2)
    assert greenness[84:, :40].max() < 60


def test_the_middle_square_is_taken() -> None:
    wide = Image.new("RGB", (300, 100), (255, 0, 0))
    wide.paste((0, 0, 200), (100, 0, 200, 100))
    assert (np.asarray(convert(wide, ())) == [0, 0, 200]).all()
    assert (np.asarray(convert(wide.rotate(90, expand=True), ())) == [0, 0, 200]).all()


def test_an_image_with_other_colours_is_reported(tmp_path: Path, download: Path, list_file: Path) -> None:
    Image.new("RGB", (600, 500), (250, 250, 250)).save(download / "labeled-images" / PATHS[1])
    report = rebuild(list_file, download, tmp_path / "out")
    assert report.differ == (PATHS[1],)
    assert report.agree == 1
    assert "1 differ by more than 4 of 255" in str(report)


def test_missing_and_damaged_images_are_reported_and_have_no_group(
    tmp_path: Path, download: Path, list_file: Path
) -> None:
    (download / "labeled-images" / PATHS[0]).write_bytes(b"damaged")
    report = rebuild(list_file, download, tmp_path / "out")
    assert report.written == 1
    assert report.missing[0].startswith(f"{PATHS[0]}: not readable")
    assert [row["path"] for row in read_csv(tmp_path / "out" / "groups.csv")] == [PATHS[1]]
    os.remove(download / "labeled-images" / PATHS[0])
    assert rebuild(list_file, download, tmp_path / "again").missing == (f"{PATHS[0]}: not found",)


def test_a_crash_leaves_no_folder(
    tmp_path: Path, download: Path, list_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(Image.Image, "save", no_space)
    with pytest.raises(EndocilError, match=r"cannot write .*out: No space left on device"):
        rebuild(list_file, download, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == before


def test_a_target_that_is_not_empty_is_refused_and_an_empty_one_is_used(
    tmp_path: Path, download: Path, list_file: Path
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    assert rebuild(list_file, download, target).written == 2
    with pytest.raises(EndocilError, match="exists and is not empty"):
        rebuild(list_file, download, target)


def test_a_folder_that_is_no_download_is_refused(tmp_path: Path, list_file: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(EndocilError, match="no folder lower-gi-tract or upper-gi-tract in or around"):
        rebuild(list_file, tmp_path / "empty", tmp_path / "out")
    with pytest.raises(EndocilError, match="is not a folder"):
        rebuild(list_file, tmp_path / "none", tmp_path / "out")
    (tmp_path / "empty" / "lower-gi-tract").mkdir()
    with pytest.raises(EndocilError, match="none of the 2 images"):
        rebuild(list_file, tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("line", ["a.jpg,1,0 1 2," + "0" * 24, "a.jpg,1,,00", "a.jpg,1,0 1 2 x," + "0" * 24])
def test_a_line_of_the_list_that_makes_no_sense_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "list.csv").write_text(f"path,group,box,thumbnail\n{line}\n")
    with pytest.raises(EndocilError, match="line 2"):
        read_list(tmp_path / "list.csv")


def test_the_committed_list_is_the_subset_of_5003_images_in_22_classes() -> None:
    entries = read_list(LIST)
    assert LIST.stat().st_size < 1_000_000
    assert len({entry.path for entry in entries}) == len(entries) == 5003
    counts: dict[str, int] = {}
    for entry in entries:
        name = entry.path.split("/")[-2]
        counts[name] = counts.get(name, 0) + 1
    assert len(counts) == 22
    assert sum(count >= 100 for count in counts.values()) == 14
    stool = {entry.group for entry in entries if "/impacted-stool/" in entry.path}
    assert (counts["impacted-stool"], len(stool)) == (131, 34)


def test_the_boxes_of_the_list_lie_at_the_bottom_left() -> None:
    boxes = np.array([entry.box for entry in read_list(LIST) if entry.box])
    assert 2000 < len(boxes) < 2600
    assert (boxes[:, 0] == 0).all()
    assert (boxes[:, 1] > 60).all()
    assert (boxes[:, 3] > 120).all()
    assert (boxes[:, 3] <= 128).all()
    assert (boxes[:, 2] > 10).all()
    assert np.median(boxes, axis=0) == pytest.approx([0, 86.5, 39, 128], abs=2)


def test_the_command_says_whether_the_subset_is_complete(
    tmp_path: Path, download: Path, list_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(list_file), str(download), "-o"]
    assert main([*words, str(tmp_path / "whole")]) is None
    assert "2 images written" in capsys.readouterr().out
    assert "exists and is not empty" in (main([*words, str(tmp_path / "whole")]) or "")
    (download / "labeled-images" / PATHS[0]).unlink()
    assert "is not complete" in (main([*words, str(tmp_path / "part")]) or "")
