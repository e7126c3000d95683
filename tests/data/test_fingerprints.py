"""One pass over the images: what is measured, what is kept, and what happens to files that cannot be read."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scenes import SIZE, originals, table_of, write_folder

from endocil.data import fingerprints as module
from endocil.data.decode import FileReader
from endocil.data.fingerprints import colour, detail, fingerprints, gray_values
from endocil.data.resize import cropped
from endocil.datasets import synthetic
from endocil.datasets.folder import load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one, other = originals(2)
    pictures = {"a/1.png": one, "a/2.png": other, "b/3.bmp": one, "b/4.png": one.resize((80, 80))}
    return write_folder(tmp_path / "data", pictures)


def test_the_same_pixels_in_another_kind_of_file_have_the_same_digest_and_a_resized_copy_has_not(
    folder: Path, tmp_path: Path
) -> None:
    found = fingerprints(load(root=str(folder)), folder=tmp_path)
    assert found.ids == ("a/1.png", "a/2.png", "b/3.bmp", "b/4.png")
    assert found.digests[0] == found.digests[2]
    assert len(set(found.digests.tolist())) == 3
    assert found.sizes.tolist() == [[SIZE, SIZE]] * 3 + [[80, 80]]


def test_unreadable_files_are_listed_with_a_reason_and_have_empty_rows(folder: Path, tmp_path: Path) -> None:
    (folder / "a" / "0.png").write_bytes(b"")
    (folder / "b" / "5.jpg").write_bytes(b"no picture at all")
    whole = (folder / "a" / "1.png").read_bytes()
    (folder / "b" / "6.png").write_bytes(whole[: len(whole) // 2])
    table = load(root=str(folder))
    for found in (fingerprints(table, folder=tmp_path), fingerprints(table, folder=tmp_path)):  # measured, kept
        assert [name for name, _ in found.unreadable] == ["a/0.png", "b/5.jpg", "b/6.png"]
        assert all(reason for _, reason in found.unreadable)
        assert [table.ids[row] for row in np.flatnonzero(~found.readable)] == ["a/0.png", "b/5.jpg", "b/6.png"]
        assert not found.details[~found.readable].any()


def test_a_second_look_reads_no_image_until_a_file_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load(root=str(folder))
    seen: list[tuple[int, int]] = []
    first = fingerprints(table, folder=tmp_path, progress=lambda *done: seen.append(done))
    assert seen[-1] == (4, 4)
    with monkeypatch.context() as patch:
        patch.setattr(module, "read_in_chunks", None)
        again = fingerprints(table, folder=tmp_path)
    for name in ("digests", "details", "colours", "sizes"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    Image.new("RGB", (30, 30), "red").save(folder / "a" / "2.png")
    os.utime(folder / "a" / "2.png", ns=(1, 1))
    assert fingerprints(table, folder=tmp_path).sizes[1].tolist() == [30, 30]


def test_a_damaged_cache_is_measured_again(folder: Path, tmp_path: Path) -> None:
    table = load(root=str(folder))
    first = fingerprints(table, folder=tmp_path)
    (kept,) = tmp_path.glob("*.npz")
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 0xFF
    for damaged in (bytes(data), bytes(data[:100]), b""):
        kept.write_bytes(damaged)
        assert np.array_equal(fingerprints(table, folder=tmp_path).details, first.details)


def test_pictures_that_differ_in_one_pixel_are_no_exact_duplicates(tmp_path: Path) -> None:
    pixels = np.asarray(originals(1)[0].resize((720, 576))).copy()
    picture = Image.fromarray(pixels)
    pixels[300, 400, 1] ^= 1
    other = Image.fromarray(pixels)
    written = {"a/1.png": picture, "a/2.png": picture, "a/3.bmp": picture, "a/4.png": other}
    root = write_folder(tmp_path / "data", written)
    for table in (load(root=str(root)), cropped(load(root=str(root)))):
        one, two, three, four = fingerprints(table, folder=tmp_path).digests
        assert one == two == three != four


def test_only_candidates_are_decoded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = originals(2)
    root = write_folder(tmp_path / "data", {"a/1.png": one, "a/2.png": one, "a/3.png": other})
    whole, seen = FileReader.whole, list[str]()

    def counted(reader: FileReader, name: str) -> Image.Image:
        seen.append(name)
        return whole(reader, name)

    monkeypatch.setattr(FileReader, "whole", counted)
    fingerprints(load(root=str(root)), folder=tmp_path)
    assert sorted(seen) == ["a/1.png", "a/2.png"]


class Small:
    """Reads pictures small, from files or from nowhere."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def read(self, image_id: str, size: int) -> np.ndarray:
        return np.full((size, size, 3), 90, np.uint8)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return f"small {self.root}"

    def path(self, image_id: str) -> Path | None:
        return self.root / image_id if self.root else None


def test_without_whole_pictures_the_files_decide_and_without_files_the_small_ones(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"same")
    (tmp_path / "2").write_bytes(b"same")
    (tmp_path / "3").write_bytes(b"other")
    for root, n_different in ((tmp_path, 2), (None, 1)):
        table = replace(table_of([0, 0, 0]), ids=("1", "2", "3"), reader=Small(root))
        assert len(set(fingerprints(table, folder=tmp_path).digests.tolist())) == n_different


def test_pictures_that_are_not_files_have_no_size(tmp_path: Path) -> None:
    table = synthetic.load(images=30, classes=3)
    found = fingerprints(table, folder=tmp_path)
    assert found.readable.all()
    assert not found.sizes.any()
    assert len(set(found.digests.tolist())) == 30


def test_detail_does_not_change_with_brightness_and_is_nothing_in_black_and_in_plain_pictures() -> None:
    picture = np.asarray(originals(1)[0].resize((64, 64)))
    framed = picture.copy()
    framed[:, :16] = 0
    plain = np.full_like(picture, 130)
    darker = (0.8 * picture).astype(np.uint8)
    found = detail(gray_values(np.stack([picture, darker, framed, plain, np.zeros_like(picture)])))
    one, other = found[0].ravel().astype(float), found[1].ravel().astype(float)
    assert np.corrcoef(one, other)[0, 1] > 0.98
    assert not found[2][:, :7].any()  # smoothing reaches one pixel into the black
    assert found[2].any()
    assert not found[3:].any()


def test_colours_are_means_of_the_view_alone() -> None:
    pixels = np.zeros((1, 64, 64, 3), np.uint8)
    pixels[:, :16] = (200, 100, 50)
    red, green, blue, brightness, view = colour(pixels, gray_values(pixels))[0]
    assert (red, green, blue, view) == (200, 100, 50, 0.25)
    assert brightness == pytest.approx(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
