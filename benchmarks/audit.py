"""How fast does the audit find near duplicates, and does it find the right ones?

    python benchmarks/audit.py [--images 50000] [--files 1000]

Pair search: a scene is a random crop of one of 2,000 drawn pictures of synthetic endoscopy, turned or mirrored. Two
fifths of the images are copies of scenes, two of each: noise, blur, brightness by a factor from 0.8 to 1.2, a shift of
up to 2 of 64 pixels. So all pairs are known; crops that happen to show the same count against the precision.

Fingerprints: JPEG files of 720 x 576, written first.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from endocil.data import fingerprints as measure
from endocil.data.cache import load_images
from endocil.data.fingerprints import Fingerprints, fingerprints
from endocil.data.near_duplicates import NearDuplicates, near_duplicates
from endocil.datasets import synthetic
from endocil.datasets.folder import load
from endocil.learning.parallel import peak_megabytes

COPIES = 2
PICTURES = 2000


def drawn(n: int, size: int) -> np.ndarray:
    """(n, size, size, 3) pictures, kept in the image cache."""
    return load_images(synthetic.load(images=n, imbalance=1.0), size).pixels.numpy()


def scenes(pictures: np.ndarray, numbers: range, random: np.random.Generator) -> np.ndarray:
    """(n, 64, 64, 3) crops of half to three quarters of the pictures in turn, turned or mirrored at random."""
    made = np.empty((len(numbers), measure.READ, measure.READ, 3), np.uint8)
    for number, scene in zip(numbers, made, strict=True):
        side = int(random.integers(measure.READ, 3 * measure.READ // 2 + 1))
        top, left = random.integers(0, 2 * measure.READ - side + 1, size=2)
        lines = np.arange(measure.READ) * side // measure.READ
        crop = pictures[number % len(pictures)][top + lines][:, left + lines]
        scene[:] = np.rot90(crop[:, :: random.choice((-1, 1))], int(random.integers(4)))
    return made


def copies(originals: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Each picture with its own brightness and shift; every second one blurred; all with noise."""
    changed = originals.astype(np.float32)
    changed[::2] = (changed[::2] + np.roll(changed[::2], 1, 1) + np.roll(changed[::2], 1, 2)) / 3
    for picture in changed:
        y, x = random.integers(-2, 3, size=2)
        picture[:] = np.roll(picture, (y, x), (0, 1)) * random.uniform(0.8, 1.2)
    return changed + random.normal(0, 5, changed.shape)


def planted(n: int, random: np.random.Generator) -> tuple[Fingerprints, np.ndarray]:
    """Fingerprints of n images in a random order, and the scene of each."""
    pictures = drawn(PICTURES, 2 * measure.READ)
    n_copied = n // 5
    n_scenes = n - COPIES * n_copied
    details = np.empty((n, measure.DETAIL, measure.DETAIL), np.int8)
    scene = np.concatenate([np.arange(n_scenes), np.tile(np.arange(n_copied), COPIES)])
    for start in range(0, n_scenes, 1000):
        stop = min(start + 1000, n_scenes)
        made = scenes(pictures, range(start, stop), random)
        details[start:stop] = _detail(made)
        wanted = max(0, min(stop, n_copied) - start)
        for copy in range(COPIES if wanted else 0):
            place = n_scenes + copy * n_copied + start
            details[place : place + wanted] = _detail(copies(made[:wanted], random))
    order = random.permutation(n)
    ids = tuple(f"{i:06d}" for i in range(n))
    none = np.zeros((n, 5), np.float32)
    digests = np.array(ids)  # no two images are the very same
    return Fingerprints(ids, digests, details[order], none, none[:, :2].astype(np.int32), ()), scene[order]


def _detail(pixels: np.ndarray) -> np.ndarray:
    return measure.detail(measure.gray_values(pixels.clip(0, 255).astype(np.uint8)))


def measure_search(n: int) -> None:
    prints, scene = planted(n, np.random.default_rng(0))
    began, used = time.perf_counter(), time.process_time()
    near = near_duplicates(prints)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    true = scene[near.left] == scene[near.right]
    alike = scene[near.left] % PICTURES == scene[near.right] % PICTURES  # crops of one drawn picture
    n_true = sum(int(size * (size - 1) // 2) for size in np.bincount(scene))
    print(f"{n:,} images, {n * (n - 1) // 2:,} pairs, {n_true:,} of them planted")
    print(f"searched in {seconds:.0f} s, {used:.0f} s of processor time; {len(true):,} pairs found")
    print(f"recall {100 * true.sum() / n_true:.2f} %, precision {100 * true.mean():.2f} %")
    print(f"not planted: {(alike & ~true).sum():,} of one drawn picture, {(~alike).sum():,} of two")
    print(f"groups: {_groups(near, scene)}; at most {peak_megabytes(torch.device('cpu')):,.0f} MB of memory")


def _groups(near: NearDuplicates, scene: np.ndarray) -> str:
    """Scenes that are one group and nothing else, of those that have copies."""
    together = np.unique(np.column_stack([scene, near.first]), axis=0)
    whole = np.bincount(together[:, 0]) == 1  # all of the scene in one group
    alone = np.bincount(together[:, 1], minlength=len(scene))[together[:, 0]] == 1
    pure = np.ones(len(whole), bool)
    pure[together[~alone, 0]] = False
    copied = np.bincount(scene) > 1
    return f"{100 * (whole & pure)[copied].mean():.2f} % of the copied scenes are exactly one group"


def measure_fingerprints(n: int) -> None:
    pictures = drawn(50, 576)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "data", "all")
        root.mkdir(parents=True)
        for i in range(n):
            noise = random.integers(0, 12, (576, 576, 1), dtype=np.uint8)
            picture = Image.fromarray(np.minimum(pictures[i % 50], 243) + noise)
            picture.resize((720, 576)).save(root / f"{i:06d}.jpg", quality=90)
        table = load(root=str(root.parent))
        for what in ("measured", "read from the cache"):
            began = time.perf_counter()
            fingerprints(table, folder=Path(folder, "cache"))
            seconds = (time.perf_counter() - began) * 1000 / n
            print(f"fingerprints of 1,000 JPEG files of 720 x 576 {what} in {seconds:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--files", type=int, default=1000)
    arguments = parser.parse_args()
    measure_fingerprints(arguments.files)
    measure_search(arguments.images)


if __name__ == "__main__":
    main()
