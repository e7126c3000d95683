"""Stored values of a DICOM image into 8 bits, by its window or by the full range of the bits stored."""

from typing import Any, Literal

import numpy as np

Window = Literal["file", "full"]
GRAY = ("MONOCHROME1", "MONOCHROME2")


def to_rgb(values: np.ndarray, header: Any, window: Window) -> np.ndarray:
    """(H, W) or (H, W, 3) stored values as (H, W, 3) uint8."""
    kind = header.PhotometricInterpretation
    share = _share(values, header, window if kind in GRAY else "full")
    if kind == "MONOCHROME1":
        share = 1 - share
    shown = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
    return np.repeat(shown[..., None], 3, axis=2) if shown.ndim == 2 else shown


def _share(values: np.ndarray, header: Any, window: Window) -> np.ndarray:
    """From 0 (black) to 1 (white), as MONOCHROME2 has it; may go beyond both."""
    centre, width = (_first(header.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if window == "full" or centre is None or not width or width <= 0:
        bits = int(header.BitsStored)
        lowest = -(2 ** (bits - 1)) if header.get("PixelRepresentation") else 0
        return np.asarray((values.astype(np.float32) - lowest) / (2**bits - 1))
    slope, intercept = _first(header.get("RescaleSlope")), _first(header.get("RescaleIntercept"))
    real = values * np.float32(1 if slope is None else slope) + np.float32(intercept or 0)
    function = str(header.get("VOILUTFunction") or "LINEAR")
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
