"""Small pictures as files with a list of them, and runs on that list."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pictures import make_images
from PIL import Image

from endocil.io.files import write_csv

HEADER = ("path", "label", "patient", "device", "split")
CLASSES = ("class-00", "class-01", "class-02", "class-03", "class-04")


def write_pictures(folder: Path) -> Path:
    """Five classes of 32 x 32 pixels, their parts and patients in list.csv."""
    images = make_images([10] * len(CLASSES))
    rows = []
    for i, name in enumerate(images.table.ids):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.pixels[i].numpy()).save(folder / name)
        part = "test" if i % 10 > 7 else "validation" if i % 10 == 7 else "train"
        rows.append((name, name.split("/")[0], images.table.groups[i], images.table.sources[i], part))
    write_csv(folder / "list.csv", HEADER, rows)
    for number, name in enumerate(CLASSES):
        write_csv(folder / f"first-{number}.csv", HEADER, [row for row in rows if row[1] < name])
        write_csv(folder / f"from-{number}.csv", HEADER, [row for row in rows if row[1] >= name])
    return folder


def settings(listing: Path, increments: Sequence[int], method: str = "icarl", **run: object) -> dict[str, Any]:
    return {
        "data": {"name": "csv", "file": str(listing), "size": 32},
        "scenario": {"increments": list(increments), "split_by": "given"},
        "network": {"width": 8},
        "memory": {"per_class": 3},
        "method": {"name": method},
        "train": {"epochs": 2, "milestones": [1], "batch_size": 8},
        "run": {"threads": 1, "accelerator": "cpu", **run},
    }


def write_settings(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(values))
    return path
