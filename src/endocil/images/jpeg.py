"""Large JPEGs shrunk by libjpeg-turbo while they are decoded, then by a bilinear filter: many times as fast."""

import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image

BILINEAR = Image.Resampling.BILINEAR  # Pillow's averages over all the pixels that shrink into one


def shrink_jpeg(data: bytes, header: Image.Image, size: int) -> np.ndarray | None:
    """libjpeg-turbo decodes at 1/8, 1/4 or 1/2 where that leaves at least 9/8 of the size; that is shrunk on.

    None where Pillow has to decide: other formats, small images, CMYK, and files that libjpeg complains about."""
    if header.format not in ("JPEG", "MPO") or header.mode not in ("RGB", "L"):
        return None
    width, height = header.size
    part = next((part for part in (8, 4, 2) if 8 * min(width, height) >= 9 * size * part), 1)
    if part == 1:
        return None
    try:
        pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=-(-height // part), min_width=-(-width // part)
        )
    except ValueError:
        return None
    if width % part == 0 and height % part == 0:
        return _shrink(pixels, size)
    # sizes were rounded up: without the box, 531 pixels at 1/4 would be squeezed as if they were 532
    box = (0, 0, width / part, height / part)
    return np.asarray(Image.fromarray(pixels).resize((size, size), BILINEAR, box=box))


def _shrink(pixels: np.ndarray, size: int) -> np.ndarray:
    """Pillow's bilinear filter as torch computes it: three times as fast, some values differ by 1."""
    import torch  # here: a process that draws synthetic images would start slowly with it

    planes = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)  # (1, 3, H, W), channels last in memory
    small = torch.nn.functional.interpolate(planes, (size, size), mode="bilinear", antialias=True)
    return np.ascontiguousarray(small.permute(0, 2, 3, 1).numpy()[0])  # (size, size, 3)
