"""Grids, smooth random fields and blur: what every part of a synthetic image is made from.

All geometry is in relative coordinates (-1 to 1 across the image) and every random lattice has a size of its
own, so an image of 64 and one of 256 pixels show the same picture.
"""

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Field = npt.NDArray[Any]  # float32, of which numpy's annotations lose track in mixed expressions


def random_source(*key: int | str) -> np.random.Generator:
    """Random numbers of this key alone; the same key always gives the same numbers."""
    name = "/".join(str(part) for part in key)
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


@lru_cache(maxsize=8)
def grid(size: int) -> tuple[Field, Field]:
    """Columns x and rows y of the pixel centres, from -1 to 1."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    x, y = np.meshgrid(line, line)
    x.setflags(write=False)  # shared by all images of this size
    y.setflags(write=False)
    return x, y


@lru_cache(maxsize=64)
def _spline(cells: int, size: int) -> Field:
    """Cubic B-spline weights (size, cells + 3), averaged over each pixel so that fine lattices do not alias."""
    taps = 4
    where = (np.arange(size * taps) + 0.5) / (size * taps) * cells
    distance = np.abs(where[:, None] - (np.arange(cells + 3)[None, :] - 1.0))
    inner = 2.0 / 3.0 - distance**2 + distance**3 / 2.0
    outer = np.clip(2.0 - distance, 0.0, None) ** 3 / 6.0
    weights = np.where(distance < 1.0, inner, outer)
    averaged: Field = weights.reshape(size, taps, cells + 3).mean(axis=1).astype(np.float32)
    return averaged


def noise(random: np.random.Generator, size: int, cells: int) -> Field:
    """A smooth random field with about `cells` bumps across, mean 0 and spread about 1."""
    lattice = random.standard_normal((cells + 3, cells + 3), dtype=np.float32)
    weights = _spline(cells, size)
    field: Field = weights @ lattice @ weights.T
    return field * np.float32(2.2)  # a cubic B-spline keeps about 1/2.2 of white noise's spread


def rough_noise(random: np.random.Generator, size: int, cells: int, octaves: int) -> Field:
    """Several octaves of noise, each half as strong and twice as fine as the one before."""
    field = noise(random, size, cells)
    for octave in range(1, octaves):
        field += noise(random, size, cells << octave) * np.float32(0.5**octave)
    return field


def around(random: np.random.Generator, angle: Field, harmonics: int) -> Field:
    """A random periodic function of the angle (-pi to pi), mean 0 and spread about 1."""
    at = np.linspace(-np.pi, np.pi, 129)
    orders = np.arange(1, harmonics + 1)
    waves = np.cos(orders[:, None] * at[None, :] + random.uniform(0.0, 2.0 * np.pi, harmonics)[:, None])
    table = (random.standard_normal(harmonics) @ waves) * np.sqrt(2.0 / harmonics)
    values: Field = np.interp(angle, at, table).astype(np.float32)
    return values


@lru_cache(maxsize=256)
def _blur_matrix(size: int, step: int) -> Field:
    sigma = step / 400.0 * size  # step 1 is a sigma of 1/400 of the image's width
    at = np.arange(size)
    weights: Field = np.exp(-0.5 * ((at[:, None] - at[None, :]) / max(sigma, 1e-3)) ** 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)


def blur(image: Field, down: float, across: float) -> Field:
    """Gaussian blur of an image (size, size, 3); the two sigmas are in relative widths of the image."""
    size = image.shape[0]
    rows = _blur_matrix(size, round(down * 400))
    columns = _blur_matrix(size, round(across * 400))
    planes = rows @ image.transpose(2, 0, 1) @ columns.T  # (3, size, size)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


def smoothstep(field: Field, low: float, high: float) -> Field:
    """0 below `low`, 1 above `high`, an S-curve between; `low` may be the greater one."""
    part: Field = np.clip((field - np.float32(low)) * np.float32(1.0 / (high - low)), 0.0, 1.0)
    curve: Field = part * part * (np.float32(3.0) - np.float32(2.0) * part)
    return curve
