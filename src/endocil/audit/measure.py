"""What is kept of a picture: its detail, a digest of its pixels, its colour and its brightness.

All views through an endoscope are alike in the large: round, brighter in the middle, black around. So pictures
are compared by their detail alone: gray values less the mean of their surroundings, both taken from the view
only, smoothed a little. Black frames and boxes have none. Detail is divided by three times its own deviation
and cut off there, so that neither brightness, contrast nor a few reflections of the lamp decide.
"""

import hashlib

import numpy as np

READ = 64  # pixels are read at this width and height
DETAIL = 32  # width and height of the detail
DARK = 20  # gray values up to this, of 255, are not part of the view
_REACH = 6  # surroundings: this many pixels of the detail to each side
_FLAT = 0.5  # gray levels; a smaller deviation is the noise of an empty picture, which has no detail
_GRAY = np.array([299, 587, 114])  # thousandths of red, green and blue in a gray value (ITU-R BT.601)


def gray_values(pixels: np.ndarray) -> np.ndarray:
    """(B, H, W, 3) uint8 -> (B, H, W) from 0 to 255."""
    return np.asarray((pixels.astype(np.int32) @ _GRAY) / 1000.0)


def detail(gray: np.ndarray) -> np.ndarray:
    """(B, 64, 64) gray values -> (B, 32, 32) int8; all 0 where a picture has no detail."""
    n = len(gray)
    small = gray.reshape(n, DETAIL, READ // DETAIL, DETAIL, READ // DETAIL).mean((2, 4))  # (B, 32, 32)
    seen = small > DARK
    around = _sums_around(small * seen) / np.maximum(_sums_around(seen), 1)
    rest = _smoothed(np.where(seen, small - around, 0.0))
    deviation = np.sqrt((rest**2).mean((1, 2), keepdims=True))  # (B, 1, 1)
    scaled = np.where(deviation > _FLAT, rest / np.maximum(3 * deviation, _FLAT), 0.0)
    return np.asarray(np.rint(127 * scaled.clip(-1, 1)).astype(np.int8))


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Each pixel with its neighbours, by 1, 2, 1: a shift by half a pixel and noise change little then."""
    wide = np.pad(values, ((0, 0), (1, 1), (1, 1)))
    rows = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
    return np.asarray((rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 4)


def _sums_around(values: np.ndarray) -> np.ndarray:
    """Sums over the square of _REACH pixels to each side, as far as the picture goes."""
    side = 2 * _REACH + 1
    padded = np.pad(values.astype(np.float64), ((0, 0), (_REACH + 1, _REACH), (_REACH + 1, _REACH)))
    total = padded.cumsum(1).cumsum(2)
    return np.asarray(
        total[:, side:, side:] - total[:, :-side, side:] - total[:, side:, :-side] + total[:, :-side, :-side]
    )


def colour(pixels: np.ndarray, gray: np.ndarray) -> np.ndarray:
    """(B, 5): mean red, green, blue and gray of the view, and the share of the picture that is view."""
    seen = gray > DARK  # (B, H, W)
    n_seen = seen.sum((1, 2))  # (B,)
    sums = np.einsum("bhwc,bhw->bc", pixels, seen, dtype=np.float64)
    brightness = (gray * seen).sum((1, 2))
    means = np.column_stack([sums, brightness]) / np.maximum(n_seen, 1)[:, None]
    return np.column_stack([means, seen.mean((1, 2))])


def digest(pixels: np.ndarray, width: int, height: int) -> str:
    """Of pixels that were read small, and the size of the picture: pictures that differ in it are not the same."""
    text = hashlib.blake2b(f"{width} x {height}\n".encode(), digest_size=16)
    text.update(np.ascontiguousarray(pixels).tobytes())
    return text.hexdigest()
