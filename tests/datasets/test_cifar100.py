"""CIFAR-100 from made files of the binary version: the official layout, its pixels, its presets, and damaged files."""

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import endocil as command

import endocil
from endocil import load_settings
from endocil.data.splits import TEST, TRAIN
from endocil.datasets import load_table
from endocil.datasets.public import cifar100
from endocil.datasets.public.facts import PUBLIC
from endocil.errors import DataError, EndocilError
from endocil.runs.parts import scenario_of, with_kept_classes

TRAINING, TESTS = 2, 1  # images of each class


def records(per_class: int, seed: int) -> bytes:
    """All classes in turn: superclass, class, and noise."""
    labels = np.tile(np.arange(100, dtype=np.uint8), per_class)
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.concatenate([(labels // 5)[:, None], labels[:, None], pixels], axis=1).tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    (place / "train.bin").write_bytes(records(TRAINING, 0))
    (place / "test.bin").write_bytes(records(TESTS, 1))
    (place / "fine_label_names.txt").write_text("apple\n")
    return place


def packed(folder: Path) -> Path:
    archive = folder.parent / "cifar-100-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, folder.name)
    return archive


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts of as many images as there are in the made files."""
    counts = {"train": dict.fromkeys(cifar100.CLASSES, TRAINING), "test": dict.fromkeys(cifar100.CLASSES, TESTS)}
    monkeypatch.setitem(PUBLIC, "cifar100", replace(PUBLIC["cifar100"], counts=counts))


def test_the_archive_and_its_folder_give_the_same_images_with_their_parts(folder: Path) -> None:
    from_folder = load_table("cifar100", {"root": str(folder.parent)})
    from_archive = load_table("cifar100", {"root": str(packed(folder))})
    for table in (from_folder, from_archive):
        assert len(table) == 300
        assert table.classes == cifar100.CLASSES
        assert table.parts.count("test") == 100
        one = table.ids.index("test/00042")
        assert table.classes[table.labels[one]] == "leopard"
        raw = np.frombuffer(records(TESTS, 1), np.uint8).reshape(-1, 3074)[42, 2:].reshape(3, 32, 32)
        assert np.array_equal(table.reader.read("test/00042", 32), raw.transpose(1, 2, 0))
        assert table.reader.read("test/00042", 16).shape == (16, 16, 3)


def test_the_presets_are_b0_10_and_b50_10_in_the_order_of_seed_1993(folder: Path) -> None:
    table = load_table("cifar100", {"root": str(folder)})
    order = np.random.RandomState(1993).permutation(100).tolist()
    for preset, sizes in (("cifar100-b0-10", [10] * 10), ("cifar100-b50-10", [50, *[10] * 5])):
        settings = load_settings(preset)
        kept = with_kept_classes(table, settings)
        scenario = scenario_of(kept, settings)
        assert [task.n_new for task in scenario.tasks] == sizes
        assert kept.classes == tuple(cifar100.CLASSES[i] for i in order)
        assert (scenario.counts(TRAIN).sum(), scenario.counts(TEST).sum()) == (200, 100)
        assert (settings.network.backbone, settings.memory.total, settings.data.size) == ("resnet32", 2000, 32)


def test_a_preset_runs_from_the_archive(folder: Path, tmp_path: Path) -> None:
    changes = ["data.root=" + str(packed(folder)), "train.epochs=1", "train.milestones=[]", "network.width=8"]
    settings = load_settings("cifar100-b50-10", [*changes, "method.name=icarl", "memory.total=100", "run.threads=1"])
    metrics = endocil.run(settings, tmp_path / "run").metrics
    assert metrics["task_sizes"] == [50, 10, 10, 10, 10, 10]
    assert metrics["test_images"][-1] == 100


@pytest.mark.usefixtures("small")
def test_a_check_compares_the_archive_and_the_folder_with_the_published_counts(folder: Path) -> None:
    for root in (packed(folder), folder):
        done = command("data", "check", "cifar100", root)
        assert done.returncode == 0, done.stderr
        assert "complete, 300 images" in done.stdout
    (folder / "test.bin").write_bytes(records(TESTS, 1)[: -3 * cifar100.RECORD])
    done = command("data", "check", "cifar100", folder)
    assert done.returncode == 1
    assert "3 of 200 classes differ" in done.stderr


def test_damaged_and_foreign_files_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    def refused(match: str) -> None:
        with pytest.raises(DataError, match=match) as error:
            load_table("cifar100", {"root": str(folder)})
        assert "\n" not in str(error.value)

    whole = (folder / "test.bin").read_bytes()
    (folder / "test.bin").write_bytes(whole[:-1])
    refused("307,399 bytes; expected records of 3,074 bytes")
    (folder / "test.bin").write_bytes(b"\0\xc8" + whole[2:])
    refused("record 0 is of class 200; expected 0 to 99")
    (folder / "test.bin").unlink()
    for name in ("meta", "train"):
        (folder / name).write_bytes(b"pickle")
    refused("holds no file test.bin.* pickles and is not read, get cifar-100-binary.tar.gz")
    os.mkfifo(folder / "test.bin")
    refused("a pipe, a socket or a device")
    with pytest.raises(EndocilError, match="is not there; expected cifar-100-binary"):
        load_table("cifar100", {"root": str(tmp_path / "nowhere")})
    with pytest.raises(EndocilError, match="no such image"):
        cifar100.RecordReader({}).read("train/00000", 32)


def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-100-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        entry = tarfile.TarInfo("../train.bin")
        entry.size = 3
        file.addfile(entry, io.BytesIO(b"abc"))
    with pytest.raises(DataError, match="leads out of the folder"):
        load_table("cifar100", {"root": str(archive)})
