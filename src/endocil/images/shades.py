"""Stored values of a DICOM image into 8 bits, as PS3.3 C.11 has it, or by the full range of the bits stored.

Gray values go through the file's modality table (or its rescale), then through its first VOI table, or else its first
window; a file with none of the last two is shown by its full range. pydicom's own functions are not used for the
tables: they look up 8-bit entries by 8-bit numbers, which is wrong for tables of more than 256 entries.
"""

from typing import Any, Literal

import numpy as np

Window = Literal["file", "full"]
GRAY = ("MONOCHROME1", "MONOCHROME2")
ELEMENTS = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth", "VOILUTFunction")
TABLES = ("ModalityLUTSequence", "VOILUTSequence")


def to_rgb(values: np.ndarray, header: Any, window: Window) -> np.ndarray:
    """(H, W) or (H, W, 3) stored values as (H, W, 3) uint8."""
    kind = header.PhotometricInterpretation
    by_file = window == "file" and kind in GRAY and any(header.get(name) for name in (*ELEMENTS, *TABLES))
    if values.dtype == np.uint8 and int(header.BitsStored) == 8 and not by_file:
        shown = 255 - values if kind == "MONOCHROME1" else values  # they are what is shown
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
    """As _full_range, by what the file says; may go beyond 0 and 1."""
    slope, intercept = _first(header.get("RescaleSlope")), _first(header.get("RescaleIntercept"))
    share = _full_range(values, header)
    if header.get("ModalityLUTSequence"):
        real, share = _looked_up(values, header.ModalityLUTSequence[0], header)
    else:
        real = values * np.float32(1 if slope is None else slope) + np.float32(intercept or 0)
        share = 1 - share if slope is not None and slope < 0 else share
    if header.get("VOILUTSequence"):
        return _looked_up(np.rint(real), header.VOILUTSequence[0], header)[1]
    centre, width = (_first(header.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or not width or width <= 0:
        return share
    return _windowed(real, centre, width, str(header.get("VOILUTFunction") or "LINEAR"))


def _looked_up(values: np.ndarray, item: Any, header: Any) -> tuple[np.ndarray, np.ndarray]:
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


def _windowed(real: np.ndarray, centre: float, width: float, function: str) -> np.ndarray:
    """PS3.3 C.11.2.1.2 and C.11.2.1.3."""
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp((-4 * (real - centre) / width).clip(-80, 80))))
    if function == "LINEAR_EXACT":
        return np.asarray((real - centre) / width + 0.5)
    return np.asarray((real - (centre - 0.5)) / max(width - 1, 1e-6) + 0.5)


def _first(value: Any) -> float | None:
    """Of several windows the first counts."""
    if value is None or value == "":
        return None
    return float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value)
