"""`endocil init`: what it sees in a folder, and settings that `endocil check` accepts."""

from pathlib import Path

import numpy as np
import pytest
from commands import endocil
from PIL import Image

from endocil.errors import EndocilError
from endocil.runs.init import choose, look_at, settings_text
from endocil.settings.settings import load_settings


def write(root: Path, names: list[str], *, size: tuple[int, int] = (40, 30), seed: int = 0) -> Path:
    """Images that have nothing in common."""
    random = np.random.default_rng(seed)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(path)
    return root


def numbered(pattern: str, classes: tuple[str, ...] = ("polyp", "ulcer"), groups: int = 4, each: int = 3) -> list[str]:
    return [
        pattern.format(c=c, g=f"{c[0]}{g}", i=f"{i:03d}") for c in classes for g in range(groups) for i in range(each)
    ]


@pytest.mark.parametrize("pattern", ["{c}/patient{g}_{i}.png", "{c}/{g}/{i}.png", "{c}/video-{g}-frame{i}.png"])
def test_groups_are_seen_in_file_and_folder_names(tmp_path: Path, pattern: str) -> None:
    look = look_at(write(tmp_path / "images", numbered(pattern)))
    assert look.grouping is not None
    assert look.grouping[2] == 8
    text = settings_text(tmp_path / "images", look, choose(look, minutes=10, pretrained=False))
    assert 'split_by = "group"' in text


@pytest.mark.parametrize("pattern", ["{c}/{c}_{g}{i}.png", "{c}/{g}{i}.png"])
def test_names_without_groups_give_none(tmp_path: Path, pattern: str) -> None:
    look = look_at(write(tmp_path / "images", numbered(pattern)))
    assert look.grouping is None


def test_near_duplicates_stay_on_one_side(tmp_path: Path) -> None:
    root = write(tmp_path / "images", numbered("{c}/{g}{i}.png"))
    with Image.open(root / "polyp" / "p0000.png") as image:
        image.save(root / "polyp" / "again.png")
    look = look_at(root)
    assert (look.near, look.near_groups) == (2, 1)
    assert 'groups = "near-duplicates"' in settings_text(root, look, choose(look, minutes=10, pretrained=False))


def test_sizes_classes_and_unreadable_files_are_told_and_the_settings_hold(tmp_path: Path) -> None:
    root = write(tmp_path / "images", numbered("a/b/{c}/{g}{i}.png"))
    (root / "a" / "b" / "polyp" / "broken.png").write_bytes(b"no image")
    done = endocil("init", root, "-o", tmp_path / "mine.toml")
    assert done.returncode == 0, done.stderr
    assert "25 images in 2 classes: polyp 13, ulcer 12" in done.stdout
    assert "sizes: 40 x 30 (24)" in done.stdout
    assert "unreadable: 1 files" in done.stdout
    settings = load_settings(tmp_path / "mine.toml")
    assert settings.data.skip_unreadable
    assert settings.data.options["class_from"] == "leaf"
    assert settings.scenario.validation > 0
    assert settings.method.name == "multistage"
    assert settings.network.weights == "imagenet"
    checked = endocil("check", tmp_path / "mine.toml")
    assert checked.returncode == 0, checked.stderr
    again = endocil("init", root, "-o", tmp_path / "mine.toml")
    assert "--force" in again.stderr


def test_less_time_means_smaller_images_or_fewer_epochs(tmp_path: Path) -> None:
    look = look_at(write(tmp_path / "images", numbered("{c}/{g}{i}.png"), size=(320, 240)))
    assert choose(look, minutes=1000).size == 224
    assert choose(look, minutes=1e-9).size == 64
    long, short = (choose(look, minutes=minutes, pretrained=False).epochs for minutes in (1000, 1e-9))
    assert (long, short) == (60, 5)


def test_the_milestones_follow_the_epochs(tmp_path: Path) -> None:
    root = write(tmp_path / "images", numbered("{c}/{g}_{i}.png"))
    look = look_at(root)
    file = tmp_path / "mine.toml"
    file.write_text(settings_text(root, look, choose(look, minutes=1000, pretrained=False)), "utf-8")
    assert [load_settings(file, [f"train.epochs={n}"]).train.milestones for n in (5, 50)] == [(0.5, 0.8)] * 2


def test_a_folder_without_classes_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(EndocilError, match="no folders; expected one folder of images for each class"):
        look_at(write(tmp_path / "flat", ["1.png", "2.png"]))
    with pytest.raises(EndocilError, match="does not exist"):
        look_at(tmp_path / "nowhere")
