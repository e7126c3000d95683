"""Synthetic endoscopy: the same pictures everywhere, a long tail, real devices and patients, no easy problem."""

import hashlib
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler

from endocil.data.table import UnreadableImageError
from endocil.datasets.synthetic import (
    CLASSES,
    DEVICES,
    IMAGES_PER_PATIENT,
    SyntheticReader,
    contact_sheet,
    load,
    long_tailed_counts,
    render,
    write_folder,
)
from endocil.datasets.synthetic.classes import FINDINGS
from endocil.datasets.synthetic.scene import draw_device
from endocil.errors import EndocilError

SOME = [("polyp", 0), ("stool", 17), ("z-line", 5)]


def digest(images: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(image.tobytes() for image in images)).hexdigest()


def visible(image: np.ndarray) -> np.ndarray:
    """The middle of a picture, which no device's frame covers, as numbers from 0 to 1."""
    edge = len(image) // 6
    return image[edge:-edge, edge:-edge].reshape(-1, 3) / 255.0


def test_the_same_image_has_the_same_bytes_in_any_order() -> None:
    forwards = {key: render(3, *key, 48) for key in SOME}
    backwards = {key: render(3, *key, 48) for key in reversed(SOME)}
    for key in SOME:
        np.testing.assert_array_equal(forwards[key], backwards[key])


def test_another_process_draws_the_same_bytes() -> None:
    code = (
        "import hashlib; from endocil.datasets.synthetic import render; "
        f"print(hashlib.sha256(b''.join(render(3, f, i, 48).tobytes() for f, i in {SOME!r})).hexdigest())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == digest([render(3, *key, 48) for key in SOME])


def test_seed_class_and_index_each_change_the_image() -> None:
    same = render(0, "polyp", 0, 48)
    for other in (render(1, "polyp", 0, 48), render(0, "ulcer", 0, 48), render(0, "polyp", 1, 48)):
        assert np.abs(visible(same) - visible(other)).mean() > 0.02


@pytest.mark.parametrize("finding", CLASSES)
def test_every_class_shows_the_same_picture_at_every_size(finding: str) -> None:
    images = {size: render(0, finding, 2, size) for size in (32, 64, 128)}
    for size, image in images.items():
        assert image.shape == (size, size, 3)
        assert image.dtype == np.uint8
        assert visible(image).std() > 0.02  # it shows something
    halved = np.asarray(Image.fromarray(images[128]).reduce(2))
    assert np.abs(visible(halved) - visible(images[64])).mean() < 0.03


def test_there_are_at_least_twelve_classes_in_alphabetical_order() -> None:
    assert len(CLASSES) >= 12
    assert list(CLASSES) == sorted(FINDINGS)


def test_every_class_is_seen_by_every_device() -> None:
    table = load()
    for label in range(len(table.classes)):
        sources = {table.sources[row] for row in np.flatnonzero(table.labels == label)}
        assert sources == set(DEVICES)


def test_devices_differ_in_colour_brightness_sharpness_and_frame() -> None:
    taken: dict[str, list[np.ndarray]] = {name: [] for name in DEVICES}
    for index in range(0, 60 * IMAGES_PER_PATIENT, IMAGES_PER_PATIENT):
        taken[draw_device(0, "normal-mucosa", index // IMAGES_PER_PATIENT)].append(
            render(0, "normal-mucosa", index, 64)
        )
    brightness, green, blue, dark = {}, {}, {}, {}
    for name, images in taken.items():
        colour = np.mean([visible(image).mean(axis=0) for image in images], axis=0)
        brightness[name], green[name], blue[name] = (colour.mean(), colour[1] / colour[0], colour[2] / colour[0])
        dark[name] = np.mean([(image.max(axis=2) < 8).mean() for image in images])
    assert brightness["gastroscope"] > max(brightness["capsule"], brightness["colonoscope"]) + 0.01
    assert green["capsule"] > max(green["colonoscope"], green["gastroscope"]) + 0.01
    assert blue["gastroscope"] > max(blue["colonoscope"], blue["capsule"]) + 0.01
    assert dark["capsule"] > 0.18 > dark["colonoscope"]  # a circle leaves 21 % of a square black
    assert DEVICES["capsule"].softness > DEVICES["gastroscope"].softness > DEVICES["colonoscope"].softness


def test_patients_are_runs_of_images_that_share_the_device() -> None:
    table = load(images=400)
    by_group: dict[str, set[str]] = {}
    for group, source in zip(table.groups, table.sources, strict=True):
        by_group.setdefault(group, set()).add(source)
    assert all(len(sources) == 1 for sources in by_group.values())
    assert table.groups[:5] == ("angiectasia-0000",) * 4 + ("angiectasia-0001",)


def test_images_of_a_patient_look_more_alike_than_those_of_two_patients() -> None:
    def tone(index: int) -> np.ndarray:
        mean: np.ndarray = visible(render(0, "normal-mucosa", index, 32)).mean(axis=0)
        return mean

    starts = range(0, 40 * IMAGES_PER_PATIENT, IMAGES_PER_PATIENT)
    within = np.mean([np.abs(tone(i) - tone(i + 1)).mean() for i in starts])
    between = np.mean([np.abs(tone(i) - tone(i + 4)).mean() for i in starts])
    assert within < 0.8 * between


def test_counts_add_up_and_fall_by_the_imbalance_along_a_fixed_order() -> None:
    table = load(images=1999, imbalance=10.0)
    counts = dict(zip(table.classes, table.counts().tolist(), strict=True))
    ordered = [counts[name] for name in FINDINGS]
    assert sum(ordered) == len(table) == 1999
    assert ordered == sorted(ordered, reverse=True)
    assert ordered[0] / ordered[-1] == pytest.approx(10.0, rel=0.05)
    assert list(table.classes) == sorted(table.classes)
    assert tuple(FINDINGS)[:3] != CLASSES[:3]


@pytest.mark.parametrize(("images", "classes", "imbalance"), [(37, 14, 1.0), (2000, 2, 100.0), (301, 6, 3.3)])
def test_counts_are_exact_for_any_request(images: int, classes: int, imbalance: float) -> None:
    counts = long_tailed_counts(images, classes, imbalance)
    assert sum(counts) == images
    assert len(counts) == classes
    assert counts == sorted(counts, reverse=True)


def test_fewer_classes_are_the_most_frequent_ones() -> None:
    table = load(images=60, classes=5)
    assert set(table.classes) == set(tuple(FINDINGS)[:5])
    assert len(table) == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"images": 20}, "too few for 14 classes"),
        ({"classes": 15}, "expected 2 to 14"),
        ({"classes": 1}, "expected 2 to 14"),
        ({"imbalance": 0.5}, "expected 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_way_out(options: dict[str, Any], words: str) -> None:
    with pytest.raises(EndocilError, match=words):
        load(**options)


def test_the_reader_survives_pickling_and_reads_what_render_draws() -> None:
    reader = pickle.loads(pickle.dumps(SyntheticReader(7)))
    np.testing.assert_array_equal(reader.read("ulcer/00012.png", 32), render(7, "ulcer", 12, 32))


def test_the_fingerprint_changes_with_the_seed_and_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ("polyp/00000.png",)
    first = SyntheticReader(0).fingerprint(ids)
    assert first == SyntheticReader(0).fingerprint(ids)
    assert first != SyntheticReader(1).fingerprint(ids)
    assert first != SyntheticReader(0).fingerprint(("polyp/00001.png",))
    monkeypatch.setattr("endocil.datasets.synthetic.RENDERER_VERSION", 10_000)
    assert first != SyntheticReader(0).fingerprint(ids)


@pytest.mark.parametrize("image_id", ["tumour/00001.png", "polyp/first.png", "polyp"])
def test_a_name_that_no_image_has_is_unreadable(image_id: str) -> None:
    with pytest.raises(UnreadableImageError, match=r"polyp/00012\.png"):
        SyntheticReader(0).read(image_id, 32)


def test_two_hundred_images_take_less_than_four_seconds_of_one_core() -> None:
    render(0, "polyp", 0, 64)  # the tables that all images share
    started = time.process_time()
    for index in range(200):
        render(0, CLASSES[index % len(CLASSES)], index, 64)
    assert time.process_time() - started < 4.0


def test_a_linear_model_on_thumbnails_stays_under_65_percent_balanced_accuracy() -> None:
    table = load(images=700)
    thumbnails = np.stack([table.reader.read(image_id, 16) for image_id in table.ids]).reshape(len(table), -1)
    rows = np.random.default_rng(0).permutation(len(table))
    train, test = rows[:500], rows[500:]
    scaler = StandardScaler().fit(thumbnails[train])
    model = LogisticRegression(C=1e-2, max_iter=60, tol=1e-2, class_weight="balanced")
    model.fit(scaler.transform(thumbnails[train]), table.labels[train])
    guesses = model.predict(scaler.transform(thumbnails[test]))
    accuracy = balanced_accuracy_score(table.labels[test], guesses)
    assert 0.2 < accuracy < 0.65  # above chance (7 %): the colours do tell something


def test_a_folder_is_written_as_the_table_says(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "images"
    write_folder(folder, seed=2, size=16, images=60, imbalance=3.0, progress=lambda *step: steps.append(step))
    table = load(seed=2, images=60, imbalance=3.0)
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert written == sorted(table.ids)
    pixels = np.asarray(Image.open(folder / table.ids[30]))
    np.testing.assert_array_equal(pixels, table.reader.read(table.ids[30], 16))
    assert steps == [(done, 60) for done in range(1, 61)]
    assert [path.name for path in folder.parent.iterdir()] == ["images"]


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "full", seed=0, size=8, images=40, imbalance=1.0)
    before = sorted((tmp_path / "full").rglob("*"))
    with pytest.raises(EndocilError, match="not empty"):
        write_folder(tmp_path / "full", seed=1, size=8, images=50, imbalance=1.0)
    assert sorted((tmp_path / "full").rglob("*")) == before
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "empty", seed=0, size=8, images=40, imbalance=1.0)
    assert len(list((tmp_path / "empty").rglob("*.png"))) == 40


def test_an_interrupted_writing_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "images", seed=0, size=8, images=40, imbalance=1.0, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(EndocilError, match="cannot write"):
        write_folder(tmp_path / "file" / "images", seed=0, size=8, images=40, imbalance=1.0)
    assert (tmp_path / "file").read_text() == "here"


def test_the_contact_sheet_has_a_row_for_every_class() -> None:
    sheet = contact_sheet(seed=0, size=24, per_class=3)
    assert sheet.mode == "RGB"
    assert sheet.height >= 24 * len(CLASSES)
    right = np.asarray(sheet)[: 24 + 3, -(24 + 3) :]  # the last image of the first row
    indices = sorted(range(0, 3 * 4, 4), key=lambda index: draw_device(0, CLASSES[0], index // 4))
    np.testing.assert_array_equal(right[3:, :24], render(0, CLASSES[0], indices[-1], 24))
