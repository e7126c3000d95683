"""Data sets that lie in folders of the same name: their results are never mixed, and none is lost."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from commands import endocil
from PIL import Image
from small import SMALL, runs_in

from endocil import EndocilError
from endocil.cli.ledger import add
from endocil.runs.sweep.plan import plan, read_sweep
from endocil.runs.sweep.runner import SweepFolder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")


def write_images(root: Path, seed: int) -> None:
    """The same names, classes and counts for every seed; noise, so that even the files' sizes are the same."""
    random = np.random.default_rng(seed)
    for name in ("cecum", "polyp", "ulcer"):
        (root / name).mkdir(parents=True)
        for i in range(8):
            Image.fromarray(random.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(root / name / f"{i}.png")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """x/mine.toml on x/images, and y/mine.toml on y/images."""
    for seed, name in enumerate("xy"):
        write_images(tmp_path / name / "images", seed)
        write_settings(tmp_path / name)
    return tmp_path


def write_settings(folder: Path) -> None:
    settings = {
        **SMALL,
        "data": {"name": "folder", "root": str(folder / "images"), "size": 16},
        "scenario": {"increments": [2, 1]},
        "method": {"name": "finetune"},
        "train": {"epochs": 1, "milestones": [], "batch_size": 16},
    }
    (folder / "mine.toml").write_text(tomli_w.dumps(settings))


def write_sweep(file: Path, **content: Any) -> Path:
    file.write_text(tomli_w.dumps(content))
    return file


@pytest.mark.usefixtures("_runs_here")
def test_every_run_is_in_one_row_of_the_table_of_its_own_images(here: Path) -> None:
    blocks = [{"settings": "x/mine.toml"}, {"settings": "y/mine.toml", "vary": {"seed": [0, 1]}}]
    file, folder = write_sweep(here / "both.toml", settings="x/mine.toml", also=blocks), here / "out"
    status, said, errors = endocil("sweep", file, "-o", folder, "--workers", "1")
    assert status == 0, errors
    found = SweepFolder(folder).records(plan(read_sweep(file), here))
    told = {
        name: [(one.settings["data"]["root"], one.settings["seed"]) for one in runs] for name, runs in found.items()
    }
    x, y = (str(here / name / "images") for name in "xy")
    assert told == {"x-mine": [(x, 0)], "y-mine": [(y, 0), (y, 1)]}
    assert {"x-mine", "y-mine"} <= set(said.splitlines())
    assert {path.name for path in folder.glob("report*.html")} == {"report-x-mine.html", "report-y-mine.html"}


@pytest.mark.usefixtures("_runs_here")
def test_a_ledger_takes_copies_of_images_for_the_same_and_refuses_others_of_their_name(here: Path) -> None:
    sweeps = {name: write_sweep(here / f"{name}.toml", settings=f"{name}/mine.toml") for name in "xyz"}
    ledger = here / "ledger"
    assert endocil("sweep", sweeps["x"], "-o", here / "first", "--ledger", ledger)[0] == 0
    (entry,) = ledger.glob("*.json")
    before = entry.read_text()

    status, _, errors = endocil("sweep", sweeps["y"], "-o", here / "second", "--ledger", ledger)
    assert status == 1
    for words in (str(entry), str(here / "y" / "images"), "on other images", "choose another ledger"):
        assert words in errors
    assert endocil("sweep", sweeps["y"], "-o", here / "second")[0] == 0
    (run,) = runs_in(here / "second")
    with pytest.raises(EndocilError, match="on other images"):
        add([here / "second" / run], ledger)

    shutil.copytree(here / "x" / "images", here / "z" / "images")
    write_settings(here / "z")
    assert "in the ledger" in endocil("sweep", sweeps["z"], "--ledger", ledger, "--dry-run")[1]
    assert entry.read_text() == before

    old = {key: value for key, value in json.loads(before).items() if key != "content"}
    entry.write_text(json.dumps(old))
    assert "in the ledger" in endocil("sweep", sweeps["y"], "--ledger", ledger, "--dry-run")[1]
    assert json.loads(entry.read_text()) == old


def test_a_run_whose_images_are_gone_or_others_now_has_no_digest_of_them_in_the_ledger(here: Path) -> None:
    assert endocil("run", here / "x" / "mine.toml", "-o", here / "run")[0] == 0
    (here / "x" / "images" / "polyp" / "0.png").rename(here / "x" / "images" / "polyp" / "new.png")
    add([here / "run"], here / "others")
    shutil.rmtree(here / "x" / "images")
    add([here / "run"], here / "gone")
    for entry in (*here.glob("others/*.json"), *here.glob("gone/*.json")):
        assert "content" not in json.loads(entry.read_text())
    assert len([*here.glob("others/*.json"), *here.glob("gone/*.json")]) == 2


def test_two_data_sets_that_would_be_one_entry_of_a_ledger_are_refused_before_any_run(here: Path) -> None:
    file = write_sweep(here / "both.toml", settings=["x/mine.toml", "y/mine.toml"])
    status, _, errors = endocil("sweep", file, "-o", here / "out", "--ledger", here / "ledger")
    assert status == 1
    for words in ("would be one entry of", str(here / "x" / "images"), str(here / "y" / "images"), "without --ledger"):
        assert words in errors
    assert not (here / "out").exists()
    assert not (here / "ledger").exists()
