"""A picture of any mode as 8-bit RGB, by rules that do not depend on what else is in the picture.

Transparent parts lie on black. Gray with 16 bits is scaled by the full range of 16 bits. Gray with 32 bits and floats
do not tell their range, so the largest value decides: whole numbers up to 255 are 8 bits and up to 65535 are 16 bits;
floats up to 1 are shares, up to 255 are 8 bits and up to 65535 are 16 bits. Other values are refused.
"""

import numpy as np
from PIL import Image


def to_rgb(image: Image.Image) -> Image.Image:
    """Raises ValueError with the reason where the range of the values is not known."""
    image.load()
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, (0, 0, 0, 255)), over).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(values: np.ndarray) -> np.ndarray:
    """(H, W) gray values of more than 8 bits, or floats, as uint8."""
    lowest, highest = values.min(), values.max()
    if not (lowest >= 0 and highest <= 65535):  # not a number is neither
        raise ValueError(
            f"gray values from {lowest} to {highest}; save it with 8 or 16 bits, values from 0 to 255 or 65535"
        )
    if values.dtype.kind == "f":
        scale = 255.0 if highest <= 1 else 1.0 if highest <= 255 else 1 / 257
        return np.asarray(np.rint(values.astype(np.float64) * scale).astype(np.uint8))
    if values.dtype.itemsize > 2 and highest <= 255:
        return values.astype(np.uint8)
    return np.asarray((values.astype(np.uint32) // 257).astype(np.uint8))
