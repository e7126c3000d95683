"""Frames of DICOM files as 8-bit RGB pixels, with pydicom (the extra `dicom`).

Stored values become 8 bits as PS3.3 C.11 has it, or by the full range of the bits stored. Gray values go through the
file's modality table (or its rescale), then through its first VOI table, or else its first window; a file with none of
the last two is shown by its full range. pydicom's own functions are not used for the tables: they look up 8-bit entries
by 8-bit numbers, which is wrong for tables of more than 256 entries.
"""

import io
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from endocil.data.decode import MAX_PIXELS, FolderReader, stamp
from endocil.data.table import UnreadableImageError
from endocil.errors import ResourceError
from endocil.io.files import refuse_special

RULES = "dicom rules 2"  # raise it when the pixels of the same file come out differently

Window = Literal["file", "full"]
SUFFIXES = (".dcm", ".dicom")
DEFLATED = b"1.2.840.10008.1.2.1.99"  # the transfer syntax of a file that is compressed as a whole
GRAY = ("MONOCHROME1", "MONOCHROME2")
ELEMENTS = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth", "VOILUTFunction")
TABLES = ("ModalityLUTSequence", "VOILUTSequence")

_PLUGINS = ("gdcm", "libjpeg", "openjpeg", "jpeg_ls", "rle")  # installing one makes more files readable
_KINDS = (*GRAY, "RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "PALETTE COLOR")
_SHAPE = ("Rows", "Columns", "NumberOfFrames", "PhotometricInterpretation", "PixelRepresentation", "BitsStored")
_PALETTE = tuple(
    name
    for colour in ("Red", "Green", "Blue")
    for name in (
        f"{colour}PaletteColorLookupTableDescriptor",
        f"{colour}PaletteColorLookupTableData",
        f"Segmented{colour}PaletteColorLookupTableData",
    )
)
_last = threading.local()  # the header that this thread read last


@dataclass(frozen=True)
class DicomReader(FolderReader):
    """Reads frames of the files below a folder: `path` is the first frame, `path#7` the seventh."""

    window: Window = "file"

    in_processes = True  # much of pydicom is Python

    def read(self, image_id: str, size: int) -> np.ndarray:
        return np.asarray(self.whole(image_id).resize((size, size), Image.Resampling.BILINEAR))

    def whole(self, image_id: str) -> Image.Image:
        path, frame = split_id(self.root, image_id)
        header = _header_of(path)
        _check_supported(header, frame, count_frames(path, header))
        return _decode(path, header, frame, self.window)

    def dimensions(self, image_id: str) -> tuple[int, int]:
        header = _header_of(self.path(image_id))
        return _number(header, "Columns"), _number(header, "Rows")

    def path(self, image_id: str) -> Path:
        return split_id(self.root, image_id)[0]

    def rules(self) -> str:
        """With the versions of the decoders."""
        plugins = [name for name in _PLUGINS if find_spec(name)]
        return "\0".join((RULES, self.window, pydicom().__version__, *plugins))


@dataclass(frozen=True)
class DicomFrame:
    """A frame of a DICOM file in memory, as an upload brings it; its number counts from 1 on."""

    data: bytes
    frame: int = 1

    def dimensions(self) -> tuple[int, int]:
        header = read_header(io.BytesIO(self.data))
        return _number(header, "Columns"), _number(header, "Rows")

    def decode(self) -> Image.Image:
        """RGB; raises UnreadableImageError with a reason. What the pixels claim of their size must be what the header
        claims, which a caller has compared with its limits."""
        header = read_header(io.BytesIO(self.data))
        n = frames_in(len(self.data), header)
        _check_supported(header, self.frame, n)
        _refuse_other_size(self.data, header, self.frame, n)
        return _decode(io.BytesIO(self.data), header, self.frame, "file")


def is_dicom(data: bytes) -> bool:
    return data[128:132] == b"DICM"


def frame_count(data: bytes) -> int:
    """Of a DICOM file in memory; 1 where it cannot be read: decoding its first frame tells why."""
    try:
        return frames_in(len(data), read_header(io.BytesIO(data)))
    except (UnreadableImageError, ResourceError):
        return 1


def _refuse_other_size(data: bytes, header: Any, frame: int, n: int) -> None:
    """A compressed frame has dimensions of its own, and a small one can claim to be an image that fills the memory."""
    dicom = pydicom()
    if not header.file_meta.TransferSyntaxUID.is_encapsulated:
        return
    try:
        names: Any = ["PixelData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths"]
        pixels = dicom.dcmread(io.BytesIO(data), specific_tags=names).PixelData
        packed = dicom.encaps.get_frame(pixels, frame - 1, number_of_frames=n)
        with Image.open(io.BytesIO(packed), formats=["JPEG", "JPEG2000"]) as image:
            found = image.size
    except UnidentifiedImageError:  # another compression, whose decoders go by the header
        return
    except Exception as error:
        raise UnreadableImageError(f"pydicom cannot find its frame {frame} ({type(error).__name__})") from error
    expected = _number(header, "Columns"), _number(header, "Rows")
    if found != expected:
        raise UnreadableImageError(
            f"its header claims {expected[0]} x {expected[1]} pixels, its frame {found[0]} x {found[1]}"
        )


def _decode(source: Path | io.BytesIO, header: Any, frame: int, window: Window) -> Image.Image:
    try:
        values = np.asarray(pydicom().pixels.pixel_array(source, index=frame - 1))  # YBR converted to RGB
        if header.PhotometricInterpretation == "PALETTE COLOR":
            colours = pydicom().pixels.apply_color_lut(values, header)[..., :3]
            rgb = colours if colours.dtype == np.uint8 else (colours >> 8).astype(np.uint8)
        else:
            rgb = to_rgb(values, header, window)
        return Image.fromarray(rgb)
    except Exception as error:  # damaged files make pydicom and its plugins raise almost anything
        raise UnreadableImageError(f"pydicom cannot decode its pixels ({type(error).__name__})") from error


def pydicom() -> Any:
    """The package, or an error that tells how to install it."""
    try:
        import pydicom.pixels  # its import takes a while, and few need it
    except ImportError as error:
        raise ResourceError("DICOM files need pydicom; install it by: pip install 'endocil[dicom]'") from error
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE  # its warnings quote the file
    return pydicom


def split_id(root: Path, image_id: str) -> tuple[Path, int]:
    """The file and the number of the frame, from 1 on."""
    path, mark, number = image_id.rpartition("#")
    if mark and number.isdecimal() and not os.path.exists(root / image_id):
        return root / path, int(number)
    return root / image_id, 1


def read_header(source: Path | io.BytesIO, tags: Sequence[str] = ()) -> Any:
    """The elements that describe the pixels, and those of `tags`; no other element is read."""
    dicom = pydicom()
    try:
        if isinstance(source, Path):
            refuse_special(source)
        elif DEFLATED in source.getbuffer().tobytes():  # to read it is to inflate it, to whatever size
            raise UnreadableImageError("it is deflated as a whole; store it uncompressed")
        names: Any = [*_SHAPE, *ELEMENTS, *TABLES, *_PALETTE, *tags]
        header = dicom.dcmread(source, stop_before_pixels=True, specific_tags=names)
        for name in (*_SHAPE, *ELEMENTS, *TABLES, *tags):
            header.get(name)  # values are parsed on access: a damaged one raises here
    except UnreadableImageError:
        raise
    except OSError as error:
        raise UnreadableImageError(error.strerror or "the file cannot be opened") from error
    except dicom.errors.InvalidDicomError as error:
        raise UnreadableImageError("not a DICOM file") from error
    except Exception as error:
        raise UnreadableImageError(f"pydicom cannot read its header ({type(error).__name__})") from error
    return header


def _header_of(path: Path) -> Any:
    """Frames of a file are read one after the other: its header is parsed once for them."""
    key = (str(path), stamp(str(path)))
    if getattr(_last, "key", None) != key:
        _last.header, _last.key = read_header(path), key
    return _last.header


def count_frames(path: Path, header: Any) -> int:
    """How many frames a file has; a number that the file is too small for is refused."""
    return frames_in(path.stat().st_size, header)


def frames_in(n_bytes: int, header: Any) -> int:
    n = _number(header, "NumberOfFrames") or 1
    if not 1 <= n <= max(1, n_bytes // 8):  # a compressed frame has a mark of 8 bytes
        raise UnreadableImageError(f"it claims {n} frames, which is more than its size can hold")
    return n


def _number(header: Any, name: str) -> int:
    """0 where the element is missing."""
    try:
        return int(header.get(name) or 0)
    except (TypeError, ValueError):
        raise UnreadableImageError(f"its {name} is not a whole number") from None


def _check_supported(header: Any, frame: int, n_frames: int) -> None:
    rows, columns = (_number(header, name) for name in ("Rows", "Columns"))
    kind = str(header.get("PhotometricInterpretation"))
    if not rows or not columns:
        raise UnreadableImageError("it has no image")
    if rows * columns > MAX_PIXELS:
        raise UnreadableImageError(f"{columns} x {rows} pixels; at most {MAX_PIXELS:,} are accepted")
    if kind not in _KINDS:
        raise UnreadableImageError(f"its photometric interpretation is none of {', '.join(_KINDS)}")
    if not 1 <= frame <= n_frames:
        raise UnreadableImageError(f"it has no frame {frame}")
    syntax = header.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise UnreadableImageError("it does not say how its pixels are stored (no transfer syntax)")
    try:
        known = pydicom().pixels.get_decoder(syntax).is_available and not syntax.is_deflated
    except Exception:  # not implemented, or no transfer syntax at all
        known = False
    if not known:
        standard = getattr(syntax, "name", syntax)
        name = "its private transfer syntax" if standard == syntax else standard  # a private one is not quoted
        raise UnreadableImageError(
            f"pydicom has no decoder for {name} here; decompress the file, or install a plugin of pydicom for it"
        )


def to_rgb(values: np.ndarray, header: Any, window: Window) -> np.ndarray:
    """(H, W) or (H, W, 3) stored values as (H, W, 3) uint8."""
    kind = header.PhotometricInterpretation
    by_file = window == "file" and kind in GRAY and any(header.get(name) for name in (*ELEMENTS, *TABLES))
    if values.dtype == np.uint8 and int(header.BitsStored) == 8 and not by_file:
        shown = 255 - values if kind == "MONOCHROME1" else values  # stored as they are shown
    else:
        share = _by_file(values, header) if by_file else _full_range(values, header)
        share = 1 - share if kind == "MONOCHROME1" else share
        shown = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
    return np.repeat(shown[..., None], 3, axis=2) if shown.ndim == 2 else shown


def _full_range(values: np.ndarray, header: Any) -> np.ndarray:
    """From 0 (black) to 1 (white), as MONOCHROME2 has it."""
    bits = int(header.BitsStored)
    lowest = -(2 ** (bits - 1)) if header.get("PixelRepresentation") else 0
    return np.asarray((values.astype(np.float32) - lowest) / (2**bits - 1))


def _by_file(values: np.ndarray, header: Any) -> np.ndarray:
    """As _full_range, by the file's tables and window; may go beyond 0 and 1."""
    slope, intercept = _first(header.get("RescaleSlope")), _first(header.get("RescaleIntercept"))
    share = _full_range(values, header)
    if header.get("ModalityLUTSequence"):
        real, share = _look_up(values, header.ModalityLUTSequence[0], header)
    else:
        real = values * np.float32(1 if slope is None else slope) + np.float32(intercept or 0)
        share = 1 - share if slope is not None and slope < 0 else share
    if header.get("VOILUTSequence"):
        return _look_up(np.rint(real), header.VOILUTSequence[0], header)[1]
    centre, width = (_first(header.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or not width or width <= 0:
        return share
    function = str(header.get("VOILUTFunction") or "LINEAR")  # PS3.3 C.11.2.1.2 and C.11.2.1.3
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp((-4 * (real - centre) / width).clip(-80, 80))))
    if function == "LINEAR_EXACT":
        return np.asarray((real - centre) / width + 0.5)
    return np.asarray((real - (centre - 0.5)) / max(width - 1, 1e-6) + 0.5)


def _look_up(values: np.ndarray, item: Any, header: Any) -> tuple[np.ndarray, np.ndarray]:
    """The entries of a table (PS3.3 C.11.1.1), and their shares of its greatest possible one.

    Values below the table take its first entry, values above it its last."""
    n, lowest, bits = (int(number) for number in item.LUTDescriptor)
    n = n % 2**16 or 2**16
    entries = item.LUTData
    if isinstance(entries, bytes):
        order = "<" if header.file_meta.TransferSyntaxUID.is_little_endian else ">"
        narrow = len(entries) < 2 * n  # 8-bit entries may stand two to a word
        entries = np.frombuffer(entries, np.uint8 if narrow else f"{order}u2")
    table = np.asarray(entries, np.int64)[:n]
    place = (values.astype(np.int64) - lowest).clip(0, len(table) - 1)
    return table[place], table[place] / (2**bits - 1)


def _first(value: Any) -> float | None:
    """Of several windows the first counts."""
    if value is None or value == "":
        return None
    return float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value)
