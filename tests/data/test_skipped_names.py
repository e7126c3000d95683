"""The names of unreadable images in the cache: a damaged one would let a black image in and leave a sound one out."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from endocil.data.cache import load_images
from endocil.data.table import ImageTable, UnreadableImageError

SIZE = 8


class Colours:
    """Image "7" is the colour 7; image "3" cannot be read, image `last` ends the build."""

    def __init__(self, last: str = "") -> None:
        self.last, self.reads = last, list[str]()

    def read(self, image_id: str, size: int) -> np.ndarray:
        self.reads.append(image_id)
        if image_id == self.last:
            raise RuntimeError("killed")
        if image_id == "3":
            raise UnreadableImageError("damaged")
        return np.full((size, size, 3), int(image_id), np.uint8)

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "colours"


def table_of(reader: Colours) -> ImageTable:
    n = 100
    return ImageTable(tuple(map(str, range(n))), np.arange(n) % 2, ("a", "b"), reader, ("",) * n, ("",) * n)


@pytest.mark.parametrize(("old", "new"), [('"3"', '"7"'), ('"3"', '"s"'), ('"names"', '"namec"')])
def test_a_damaged_name_of_an_unreadable_image_is_found(tmp_path: Path, old: str, new: str) -> None:
    load_images(table_of(Colours()), SIZE, folder=tmp_path, skip_unreadable=True)
    (facts,) = tmp_path.glob("*.json")
    sound = facts.read_text()
    assert old in sound
    facts.write_text(sound.replace(old, new))
    reader = Colours()
    images = load_images(table_of(reader), SIZE, folder=tmp_path, skip_unreadable=True)
    assert images.skipped == (("3", "damaged"),)
    assert len(reader.reads) == 100
    assert facts.read_text() == sound


def test_a_damaged_name_in_an_unfinished_build_is_found(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        load_images(table_of(Colours(last="70")), SIZE, folder=tmp_path, workers=1, skip_unreadable=True)
    (lines,) = tmp_path.glob(".*.jsonl")
    lines.write_text(lines.read_text().replace('"3"', '"7"'))
    images = load_images(table_of(Colours()), SIZE, folder=tmp_path, skip_unreadable=True)
    assert images.skipped == (("3", "damaged"),)


def test_an_unreadable_image_that_is_no_longer_named_is_found(tmp_path: Path) -> None:
    """Without its name, a black image would be learned."""
    load_images(table_of(Colours()), SIZE, folder=tmp_path / "a", skip_unreadable=True)
    with pytest.raises(RuntimeError):
        load_images(table_of(Colours(last="70")), SIZE, folder=tmp_path / "b", workers=1, skip_unreadable=True)
    (facts,), (lines,) = (tmp_path / "a").glob("*.json"), (tmp_path / "b").glob(".*.jsonl")
    content = json.loads(facts.read_text())
    facts.write_text(json.dumps({**content, "unreadable": []}))
    first, *others = lines.read_text().splitlines()
    lines.write_text("\n".join([json.dumps({**json.loads(first), "unreadable": []}), *others, ""]))
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert load_images(table_of(Colours()), SIZE, folder=folder, skip_unreadable=True).skipped == (
            ("3", "damaged"),
        )


@pytest.mark.parametrize("images", [10**12, -1, 0, 10**30, 1.5, None])
def test_a_wrong_number_of_images_in_an_unfinished_build_is_read_again(tmp_path: Path, images: object) -> None:
    with pytest.raises(RuntimeError):
        load_images(table_of(Colours(last="70")), SIZE, folder=tmp_path, workers=1, skip_unreadable=True)
    (lines,) = tmp_path.glob(".*.jsonl")
    first, *others = lines.read_text().splitlines()
    lines.write_text("\n".join([json.dumps({**json.loads(first), "images": images}), *others, ""]))
    reader = Colours()
    load_images(table_of(reader), SIZE, folder=tmp_path, skip_unreadable=True)
    assert len(reader.reads) == 100


@pytest.mark.parametrize("images", [float("inf"), float("nan"), -1, 10**30, None])
def test_a_wrong_number_of_images_in_a_finished_cache_is_read_again(tmp_path: Path, images: object) -> None:
    load_images(table_of(Colours()), SIZE, folder=tmp_path, skip_unreadable=True)
    (facts,) = tmp_path.glob("*.json")
    content = json.loads(facts.read_text())
    content["chunks"][0][0] = images
    facts.write_text(json.dumps(content))
    assert load_images(table_of(Colours()), SIZE, folder=tmp_path, skip_unreadable=True).skipped == (("3", "damaged"),)
