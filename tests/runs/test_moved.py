"""A run goes on where its images are, wherever that is now: they are known by their pixels, not by their path."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import endocil
from pictures import TINY, run_files
from PIL import Image

from endocil.errors import EndocilError
from endocil.runs.run import resume, run
from endocil.settings.settings import load_settings


class StoppedError(Exception):
    pass


def stop(record: dict[str, Any]) -> None:
    if record["event"] == "task" and record["task"] == 1:
        raise StoppedError


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a run of them that was stopped, and the same run to the end; both named their images relatively."""
    folder = tmp_path_factory.mktemp("project")
    random = np.random.default_rng(0)
    for label in range(3):
        (folder / "images" / f"class-{label}").mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(60 * label, 60 * label + 100, (20, 20, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"class-{label}" / f"{number}.png")
    settings = {**TINY, "data": {"name": "folder", "root": "images", "size": 16}, "scenario": {"increments": [2, 1]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(settings, "runs/whole")
        with pytest.raises(StoppedError):
            run(settings, "runs/stopped", show=stop)
    return folder


def test_a_run_with_a_relative_root_is_resumed_from_any_working_folder_and_together_with_its_images(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(project, tmp_path / "elsewhere")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    resume(moved / "runs" / "stopped")
    assert run_files(moved / "runs" / "stopped") == run_files(project / "runs" / "whole")
    assert load_settings(moved / "runs" / "stopped" / "settings.toml").data.options["root"] == "images"


def test_a_run_whose_images_were_moved_is_told_where_they_are(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(project / "runs" / "stopped", tmp_path / "run")
    shutil.copytree(project / "images", tmp_path / "disk" / "pictures")
    lost = endocil("resume", folder)
    assert lost.returncode == 1
    assert "images" in lost.stderr
    refused = endocil("resume", folder, "--set", "train.epochs=9")
    assert refused.returncode == 1
    assert "it decides the result" in refused.stderr
    done = endocil("resume", folder, "--set", "data.root=disk/pictures")
    assert done.returncode == 0, done.stderr
    assert run_files(folder) == run_files(project / "runs" / "whole")
    assert load_settings(folder / "settings.toml").data.options["root"] == "disk/pictures"
    packed = endocil("bundle", folder, "-o", tmp_path / "model.endocil")  # which needs the images no more
    assert packed.returncode == 0, packed.stderr


def test_images_of_the_same_names_with_other_pixels_are_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(project / "runs" / "stopped", tmp_path / "run")
    images = shutil.copytree(project / "images", tmp_path / "images")
    Image.new("RGB", (20, 20)).save(images / "class-1" / "3.png")
    with pytest.raises(EndocilError, match=r"have the names of those of the run in .*, but other pixels"):
        resume(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("settings.toml", r"settings\.toml was changed .*train\.epochs was 2, is 3"),
        ("checkpoint.safetensors", "cannot be read"),
        ("predictions/task-0.csv", "not as the run has written it"),
    ],
)
def test_what_does_not_fit_the_checkpoint_is_told_before_the_images_are_looked_for(
    damage: str, words: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no images are
    folder = shutil.copytree(project / "runs" / "stopped", tmp_path / "run")
    whole = (folder / damage).read_bytes()
    (folder / damage).write_bytes(whole.replace(b"epochs = 2", b"epochs = 3") if "toml" in damage else whole[:-9])
    with pytest.raises(EndocilError, match=words):
        resume(folder)
