"""From a run to a model: what it holds is the run's, and nothing that it must not hold."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from packed import packed
from tiny_runs import tiny

from endocil.data.splits import TEST, VALIDATION
from endocil.datasets.synthetic import write_folder
from endocil.errors import EndocilError
from endocil.io.files import read_csv
from endocil.model.file import ModelFile, read_model_file
from endocil.runs.folder import RunFolder
from endocil.runs.parts import images_and_scenario
from endocil.runs.run import run


def test_a_model_knows_classes_tasks_and_images_of_its_run(tiny_content: ModelFile, tiny_run: Path) -> None:
    rows = read_csv(tiny_run / "split.csv")
    names = list(dict.fromkeys(row["class"] for row in sorted(rows, key=lambda row: int(row["task"]))))
    assert set(tiny_content.classes) == set(names)
    for learned in tiny_content.manifest.classes:
        mine = [row for row in rows if row["class"] == learned.name]
        assert {int(row["task"]) for row in mine} == {learned.task}
        assert sum(row["part"] == "train" for row in mine) == learned.images
    added = {name: n for step in tiny_content.manifest.history for name, n in step.added.items()}
    assert added == {learned.name: learned.images for learned in tiny_content.manifest.classes}


def test_exemplars_are_those_of_the_runs_memory_with_their_pixels(tiny_content: ModelFile, tiny_run: Path) -> None:
    records = read_csv(tiny_run / "memory" / "task-2.csv")
    kept = tiny_content.exemplars
    assert [(o.image, o.class_name, o.order, o.task) for o in kept.provenance] == [
        (row["image"], row["class"], int(row["order"]), int(row["task"])) for row in records
    ]
    images, _ = images_and_scenario(RunFolder(tiny_run).settings)
    row_of = {image: row for row, image in enumerate(images.table.ids)}
    for origin, pixels in zip(kept.provenance, kept.pixels, strict=True):
        assert np.array_equal(images.pixels[images.rows[row_of[origin.image]]], pixels)
        assert (origin.licence, origin.consent) == ("CC BY 4.0", "given")


def test_held_out_images_were_neither_trained_on_nor_tested(tiny_content: ModelFile, tiny_run: Path) -> None:
    _, scenario = images_and_scenario(RunFolder(tiny_run).settings)
    part = dict(zip(scenario.table.ids, scenario.part.tolist(), strict=True))
    assert {part[origin.image] for origin in tiny_content.held_out.provenance} == {VALIDATION}
    assert TEST in part.values()
    assert {origin.class_name for origin in tiny_content.held_out.provenance} == set(tiny_content.classes)


def test_so_many_are_held_out_at_most_and_the_same_every_time(tiny_run: Path) -> None:
    first, second = (packed(tiny_run, held_out=2) for _ in range(2))
    assert first.held_out.provenance == second.held_out.provenance
    names = [origin.class_name for origin in first.held_out.provenance]
    assert max(names.count(name) for name in names) == 2


def test_results_have_intervals_around_them(tiny_content: ModelFile, tiny_run: Path) -> None:
    found, told = tiny_content.manifest.metrics, RunFolder(tiny_run).metrics()
    assert found is not None
    assert found["part"] == "test"
    assert found["images"] == told["test_images"][-1]
    for head in ("softmax", "nearest_mean"):
        for metric in ("acc_last", "f1_last", "acc_avg", "f1_avg", "af"):
            one = found["heads"][head][metric]
            assert one["value"] == pytest.approx(told[head][metric])
            assert one["low"] <= one["value"] <= one["high"]
        for name, one in found["heads"][head]["recall"].items():
            assert one["value"] == pytest.approx(told[head]["per_class"][name]["recall"])
            assert one["low"] <= one["value"] <= one["high"]
            assert one["high"] - one["low"] > 1.0  # a handful of images never makes one sure


def test_without_exemplars_no_picture_is_inside_but_it_is_calibrated(tiny_run: Path, tmp_path: Path) -> None:
    made = packed(tiny_run, with_exemplars=False)
    made.save(tmp_path / "model.endocil")
    content = read_model_file(tmp_path / "model.endocil")
    assert len(content.exemplars) == len(content.held_out) == 0
    assert not content.manifest.learns
    assert content.manifest.calibration == packed(tiny_run).file().manifest.calibration
    assert any("cannot learn new classes" in note for note in made.limits())
    assert b".png" not in (tmp_path / "model.endocil").read_bytes()


def test_without_held_out_images_it_is_not_calibrated_and_says_so(tiny_run: Path) -> None:
    model = packed(tiny_run, held_out=0)
    assert model.file().manifest.calibration is None
    assert any("not calibrated" in note for note in model.limits())


def test_folders_of_the_machine_do_not_get_inside_and_need_not_be_there(tmp_path: Path) -> None:
    source = tmp_path / "secret-place" / "images"
    write_folder(source, images=60, size=24, seed=0, imbalance=2.0)
    settings = tiny(data={}, scenario={"increments": None, "tasks": 2, "minimum": 4})
    settings["data"] = {"name": "folder", "root": str(source), "size": 16}
    settings["method"] = {"name": "finetune"}
    run(settings, tmp_path / "run")
    shutil.rmtree(source)
    packed(tmp_path / "run").save(tmp_path / "model.endocil")
    assert b"secret-place" not in (tmp_path / "model.endocil").read_bytes()
    assert read_model_file(tmp_path / "model.endocil").manifest.settings["data"]["root"] == "images"


def test_a_folder_without_a_model_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "model.endocil").unlink()
    with pytest.raises(EndocilError, match=r"has no model\.endocil: it is not finished"):
        read_model_file(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EndocilError, match="is a folder without a model"):
        read_model_file(tmp_path / "empty")
