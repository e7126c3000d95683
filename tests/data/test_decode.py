"""Files of every kind become square RGB pixels, or are refused with a reason."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from endocil.data import decode as decoding
from endocil.data.decode import FileReader, decode, decode_whole
from endocil.data.table import UnreadableImageError
from endocil.errors import EndocilError
from endocil.io import files as opening


def picture(width: int = 60, height: int = 40) -> Image.Image:
    """Smooth colours that are different in every corner."""
    y, x = np.mgrid[:height, :width]
    channels = (x * 255 / width, y * 255 / height, 255 - x * 120 / width - y * 120 / height)
    return Image.fromarray(np.stack(channels, 2).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def expected(size: int, image: Image.Image | None = None) -> np.ndarray:
    return np.asarray((image or picture()).resize((size, size), Image.Resampling.BILINEAR)).astype(int)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_files_are_exactly_the_antialiased_picture(kind: str) -> None:
    pixels = decode(encoded(picture(), kind), 16)
    assert pixels.shape == (16, 16, 3)
    assert pixels.dtype == np.uint8
    assert (pixels == expected(16)).all()


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {"quality": 95}), ("WEBP", {"quality": 95})])
def test_lossy_files_are_close_to_the_picture(kind: str, options: dict[str, int]) -> None:
    assert np.abs(decode(encoded(picture(), kind, **options), 16) - expected(16)).max() <= 6


@pytest.mark.parametrize("size", [8, 16, 33, 64])
def test_a_jpeg_decoded_at_a_part_of_its_size_shows_the_same_picture(size: int) -> None:
    large = picture(531, 1043)  # divides by none of 2, 4, 8
    difference = np.abs(decode(encoded(large, "JPEG", quality=95), size) - expected(size, large))
    assert difference.max() <= 5
    assert difference.mean() < 1


def test_a_gray_jpeg_and_a_gray_png_become_three_equal_channels() -> None:
    for kind in ("JPEG", "PNG"):
        pixels = decode(encoded(picture().convert("L"), kind), 16)
        assert (pixels[..., 0] == pixels[..., 1]).all()
        assert (pixels[..., 0] == pixels[..., 2]).all()


def test_a_palette_image_is_read_by_its_colours() -> None:
    flat = Image.new("RGB", (20, 20), (200, 30, 90))
    assert (decode(encoded(flat.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), 8) == [200, 30, 90]).all()


def test_a_cmyk_jpeg_is_read_by_its_colours() -> None:
    flat = Image.new("RGB", (20, 20), (200, 30, 90))
    assert np.abs(decode(encoded(flat.convert("CMYK"), "JPEG"), 8).astype(int) - [200, 30, 90]).max() <= 4


def test_transparent_parts_are_black() -> None:
    half = Image.new("RGBA", (16, 16), (200, 100, 50, 255))
    half.paste((200, 100, 50, 0), (0, 0, 8, 16))
    pixels = decode(encoded(half, "PNG"), 16)
    assert (pixels[:, :8] == 0).all()
    assert (pixels[:, 8:] == [200, 100, 50]).all()


def test_sixteen_bit_gray_is_scaled_by_the_full_range() -> None:
    deep = Image.fromarray(np.array([[0, 257 * 100], [257 * 200, 65535]], np.uint16))
    for kind in ("PNG", "TIFF"):
        assert decode(encoded(deep, kind), 2)[..., 0].tolist() == [[0, 100], [200, 255]]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array([[0, 100], [200, 255]], np.int32), [0, 100, 200, 255]),
        (np.array([[0, 257 * 100], [257, 65535]], np.int32), [0, 100, 1, 255]),
        (np.array([[0, 0.5], [0.25, 1]], np.float32), [0, 128, 64, 255]),
        (np.array([[0, 100.4], [200, 255]], np.float32), [0, 100, 200, 255]),
        (np.array([[0, 257 * 100], [257, 65535]], np.float32), [0, 100, 1, 255]),
    ],
)
def test_gray_of_32_bits_and_floats_are_scaled_by_a_stated_rule(values: np.ndarray, shown: list[int]) -> None:
    assert decode(encoded(Image.fromarray(values), "TIFF"), 2)[..., 0].ravel().tolist() == shown


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.full((2, 2), -1, np.int32), "gray values from -1 to -1; .*8 or 16 bits"),
        (np.full((2, 2), 65536, np.int32), "gray values from 65536 to 65536"),
        (np.full((2, 2), 70000.5, np.float32), "gray values from 70000.5"),
        (np.full((2, 2), np.nan, np.float32), "gray values from nan"),
    ],
)
def test_pixels_without_a_known_range_are_refused_with_their_values(values: np.ndarray, reason: str) -> None:
    with pytest.raises(UnreadableImageError, match=reason):
        decode(encoded(Image.fromarray(values), "TIFF"), 2)


@pytest.mark.skipif(os.name == "nt", reason="no pipes in folders there")
def test_a_pipe_a_device_and_a_file_without_end_are_unreadable_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "large.jpg").write_bytes(bytes(2000))
    monkeypatch.setattr(opening, "LARGEST", 1000)
    reader = FileReader(tmp_path)
    for name, reason in (("pipe", "not a file"), ("zero", "not a file"), ("large", "2,000 bytes; at most 1,000")):
        with pytest.raises(UnreadableImageError, match=reason):
            reader.read(f"{name}.jpg", 8)
    for name in ("pipe", "zero"):
        with pytest.raises(UnreadableImageError, match="not a file"):
            reader.dimensions(f"{name}.jpg")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 2, 3, 6, 8])
def test_the_camera_s_orientation_is_honoured_once(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        6: lambda a: np.rot90(a, -1),
        8: lambda a: np.rot90(a),
    }
    pixels = decode(encoded(picture(), kind, exif=exif), 16)
    assert np.abs(pixels - turned[orientation](expected(16))).max() <= 12


def test_damaged_notes_of_the_camera_do_not_matter() -> None:
    data = encoded(picture(), "JPEG", exif=b"Exif\x00\x00garbage that is no TIFF header")
    assert np.abs(decode(data, 16) - expected(16)).max() <= 12


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"no image at all", "not a BMP, JPEG"),
        (b"\xff\xd8\xff\xe0", "not a BMP, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "not a BMP, JPEG"),
    ],
)
def test_what_is_no_image_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImageError, match=reason):
        decode(data, 8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP"])
def test_a_truncated_file_is_refused(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    data = encoded(noise, kind)
    with pytest.raises(UnreadableImageError):
        decode(data[: len(data) * 2 // 3], 8)


def test_a_file_that_claims_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(), "PNG")
    monkeypatch.setattr(decoding, "MAX_PIXELS", 60 * 40 - 1)
    with pytest.raises(UnreadableImageError, match="60 x 40 pixels; at most 2,399"):
        decode(data, 8)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60 * 40 // 2 - 1)
    with pytest.raises(UnreadableImageError, match="decompression bomb"):
        decode(data, 8)


def test_the_fingerprint_changes_when_a_file_does(tmp_path: Path) -> None:
    reader, path = FileReader(tmp_path), tmp_path / "a.png"
    prints = [reader.fingerprint(["a.png"])]
    path.write_bytes(encoded(picture(), "PNG"))
    prints.append(reader.fingerprint(["a.png"]))
    os.utime(path, ns=(1, 1))
    prints.append(reader.fingerprint(["a.png"]))
    path.write_bytes(encoded(picture(30, 30), "PNG"))
    os.utime(path, ns=(1, 1))
    prints.append(reader.fingerprint(["a.png"]))
    assert len(set(prints)) == 4
    assert reader.fingerprint(["a.png"]) == prints[-1]


def test_a_missing_file_is_unreadable_but_a_failing_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnreadableImageError, match="No such file"):
        FileReader(tmp_path).read("none.jpg", 8)

    (tmp_path / "a.jpg").write_bytes(b"there")

    def failing(_: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(EndocilError, match=r"cannot read .*a\.jpg: Input/output error") as error:
        FileReader(tmp_path).read("a.jpg", 8)
    assert not isinstance(error.value, UnreadableImageError)


@pytest.mark.parametrize(("width", "height"), [(720, 576), (1920, 1080), (331, 257)])
@pytest.mark.parametrize("size", [64, 128, 256])
def test_a_large_jpeg_differs_little_from_the_one_that_pillow_decodes_whole(width: int, height: int, size: int) -> None:
    noise = np.random.default_rng(0).normal(0, 6, (height, width, 1))
    data = encoded(
        Image.fromarray((np.asarray(picture(width, height)) + noise).clip(0, 255).astype(np.uint8)), "JPEG", quality=90
    )
    plain = expected(size, Image.open(io.BytesIO(data)).convert("RGB"))
    difference = np.abs(decode(data, size) - plain)
    assert difference.mean() < 1.5
    assert np.percentile(difference, 99) <= 6


def test_a_small_jpeg_is_exactly_what_pillow_gives() -> None:
    data = encoded(picture(128, 128), "JPEG", quality=90)
    assert (decode(data, 64) == expected(64, Image.open(io.BytesIO(data)))).all()


def test_a_large_gray_or_turned_jpeg_takes_the_same_way() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    large = picture(600, 400)
    gray = decode(encoded(large.convert("L"), "JPEG", quality=95), 32)
    assert np.abs(gray - expected(32, large.convert("L").convert("RGB"))).max() <= 4
    turned = decode(encoded(large, "JPEG", quality=95, exif=exif), 32)
    assert np.abs(turned - np.rot90(expected(32, large), -1)).max() <= 8


def test_of_several_pages_or_an_animation_the_first_counts() -> None:
    pages = [Image.new("RGB", (16, 16), (colour, 20, 30)) for colour in (200, 90, 10)]
    for kind, options in (("TIFF", {}), ("PNG", {}), ("WEBP", {"lossless": True})):
        data = encoded(pages[0], kind, save_all=True, append_images=pages[1:], **options)
        assert (decode(data, 4) == [200, 20, 30]).all(), kind


def test_sixteen_bit_colour_keeps_the_upper_eight_bits() -> None:
    rows = (b"\0" + (np.array([200, 30, 90] * 4) * 257).astype(">u2").tobytes()) * 4

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert (decode(data, 4) == [200, 30, 90]).all()


def test_a_whole_image_is_rgb_upright_and_in_its_own_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a.png").write_bytes(encoded(picture(), "PNG", exif=exif))
    whole = FileReader(tmp_path).whole("a.png")
    assert whole.size == (40, 60)
    assert (np.asarray(whole) == np.rot90(np.asarray(picture()), -1)).all()
    with pytest.raises(UnreadableImageError, match="No such file"):
        FileReader(tmp_path).whole("b.png")
    with pytest.raises(UnreadableImageError, match="truncated"):
        decode_whole(encoded(picture(), "PNG")[:-40])
