"""Small pictures, small runs, and what must be the same of two runs: shared by the tests of every room."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from endocil.data.cache import Images
from endocil.data.table import ImageTable
from endocil.model.file import read_archive


class NoReader:
    """Stands where the pixels are given already."""

    def read(self, image_id: str, size: int) -> np.ndarray:
        raise AssertionError("the pixels are in memory")

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "in memory"


def make_images(counts: Sequence[int], size: int = 32, seed: int = 0) -> Images:
    """A colour and a stripe pattern for each class, with noise: learnable in a few steps."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    colours = np.random.default_rng(99).uniform(40, 215, (len(counts), 3))
    pixels = np.empty((len(labels), size, size, 3), np.uint8)
    for i, label in enumerate(labels):
        stripes = 25 * np.sin(np.arange(size) * (label + 1) / 3.0)[:, None, None]
        picture = colours[label] + stripes + random.normal(0, 25, (size, size, 3))
        pixels[i] = picture.clip(0, 255).astype(np.uint8)
    table = ImageTable(
        ids=tuple(f"class-{label:02d}/{i:04d}.png" for i, label in enumerate(labels)),
        labels=labels,
        classes=tuple(f"class-{label:02d}" for label in range(len(counts))),
        reader=NoReader(),
        groups=tuple(f"patient-{i // 3}" for i in range(len(labels))),
        sources=tuple(("gastroscope", "capsule")[i % 2] for i in range(len(labels))),
    )
    return Images(table, torch.from_numpy(pixels), torch.arange(len(labels)), ())


TINY: dict[str, Any] = {
    "data": {"name": "synthetic", "images": 120, "classes": 5, "size": 16, "imbalance": 3.0},
    "scenario": {"increments": [2, 2, 1]},
    "network": {"width": 8},
    "memory": {"per_class": 4},
    "train": {"epochs": 2, "milestones": [1], "batch_size": 16},
    "run": {"threads": 1},
}


def run_files(folder: Path) -> dict[str, bytes]:
    """What a run leaves behind that must be the same however it was interrupted."""
    kept = [*sorted(folder.glob("predictions/*.csv")), *sorted(folder.glob("memory/*.csv"))]
    kept += [folder / name for name in ("metrics.json", "split.csv")]
    model = read_archive(folder / "model.endocil")[0]
    del model["manifest.json"]  # it names the folder
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept} | model
