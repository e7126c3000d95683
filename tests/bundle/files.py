"""Small pictures as files with a list of them, and runs on that list."""

import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
import tomli_w
from pictures import make_images
from PIL import Image

from endocil.cli import main
from endocil.files import write_csv

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


def settings(listing: Path, increments: Sequence[int], method: str = "icarl", **run: object) -> dict:
    return {
        "data": {"name": "csv", "file": str(listing), "size": 32},
        "scenario": {"increments": list(increments), "split_by": "given"},
        "network": {"width": 8},
        "memory": {"per_class": 3},
        "method": {"name": method},
        "train": {"epochs": 2, "milestones": [1], "batch_size": 8},
        "run": {"threads": 1, "accelerator": "cpu", **run},
    }


def write_settings(path: Path, values: dict) -> Path:
    path.write_text(tomli_w.dumps(values))
    return path


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "endocil", *map(str, arguments)]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def endocil(*arguments: str | Path, cwd: Path | None = None) -> Done:
    """The command in this process: starting one for each takes longer than what it does."""
    out, err = StringIO(), StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
    ):
        patch.setattr(sys, "argv", ["endocil", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())
