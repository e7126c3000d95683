"""endocil learn as it is typed: equal to the run that goes on, killed and resumed, and its refusals."""

import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import command, endocil
from files import settings, write_pictures, write_settings
from life import differing
from lives import all_of
from packed import packed
from PIL import Image

from endocil import EndocilError
from endocil.io.files import write_csv
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.model import Model
from endocil.release.learn import learn, read_new_images
from endocil.runs.run import run


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def model(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes in two tasks; read only."""
    folder = tmp_path_factory.mktemp("first")
    run(settings(pictures / "first-3.csv", [2, 1]), folder / "run")
    packed(folder / "run").save(folder / "model.endocil")
    return folder / "model.endocil"


def same(one: ModelFile, other: ModelFile) -> None:
    assert differing(all_of(one), all_of(other)) == []
    for mine, theirs in ((one.exemplars, other.exemplars), (one.held_out, other.held_out)):
        assert mine.provenance == theirs.provenance
        assert torch.equal(mine.pixels, theirs.pixels)
    for part in ("classes", "increments", "preprocessing", "calibration", "learns"):
        assert getattr(one.manifest, part) == getattr(other.manifest, part)


def test_run_model_learn_is_the_model_of_the_whole_run(pictures: Path, tmp_path: Path) -> None:
    first = write_settings(tmp_path / "first.toml", settings(pictures / "first-3.csv", [2, 1]))
    whole = write_settings(tmp_path / "whole.toml", settings(pictures / "list.csv", [2, 1, 2]))
    for steps in (
        ("run", first, "-o", "one"),
        ("bundle", "one", "-o", "one.endocil"),
        ("learn", "one.endocil", pictures / "from-3.csv", "-o", "learned.endocil", "--train", "all"),
        ("run", whole, "-o", "two"),
        ("bundle", "two", "-o", "two.endocil"),
    ):
        result = endocil(*steps, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        if steps[0] == "learn":
            assert "task 3: class-03 7+1, class-04 7+1 (to learn + held out)" in result.stdout
            assert "5 classes, 15 exemplars, 5 held-out images" in result.stdout
    same(read_model_file(tmp_path / "learned.endocil"), read_model_file(tmp_path / "two.endocil"))
    assert not (tmp_path / "learned.endocil.learning").exists()


def test_killed_and_typed_again_it_ends_in_the_same_model(model: Path, pictures: Path, tmp_path: Path) -> None:
    straight = learn(model, pictures / "from-3.csv", tmp_path / "straight.endocil").file()
    output, work = tmp_path / "killed.endocil", tmp_path / "killed.endocil.learning"
    typed = ("learn", model, pictures / "from-3.csv", "-o", output, "--set", "run.checkpoint_seconds=0")
    process = subprocess.Popen(command(*typed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 150
    while not (work / "checkpoint.safetensors").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    if not output.exists():  # else it was quicker than this test
        assert (work / "checkpoint.safetensors").exists()
        finished = endocil(*typed)
        assert finished.returncode == 0, finished.stderr
    same(read_model_file(output), straight)
    assert not work.exists()


def test_a_stopped_step_refuses_another_model_other_images_and_other_settings(
    model: Path, pictures: Path, tmp_path: Path
) -> None:
    output, new = tmp_path / "out.endocil", pictures / "from-3.csv"

    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "epoch" and record["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(model, new, output, changes=["run.checkpoint_seconds=0"], show=stop)
    work = tmp_path / "out.endocil.learning"
    assert (work / "checkpoint.safetensors").exists()
    assert not output.exists()
    with pytest.raises(EndocilError, match="has a checkpoint for other new images"):
        learn(model, pictures / "from-4.csv", output)
    with pytest.raises(EndocilError, match="has a checkpoint for other settings"):
        learn(model, new, output, changes=["train.learning_rate=0.01"])
    other = tmp_path / "other.endocil"
    content = read_model_file(model)
    write_model_file(other, replace(content, manifest=content.manifest.model_copy(update={"name": "x"})))
    with pytest.raises(EndocilError, match="has a checkpoint for other model file"):
        learn(other, new, output)
    learn(model, new, output, changes=["run.checkpoint_seconds=1"])
    assert output.exists()
    assert not work.exists()


def test_the_old_model_is_not_touched_and_an_output_is_not_written_over(
    model: Path, pictures: Path, tmp_path: Path
) -> None:
    before = model.read_bytes()
    learned = learn(model, pictures / "from-3.csv", tmp_path / "new.endocil")
    assert model.read_bytes() == before
    history = learned.manifest.history
    assert [version.by for version in history] == ["run", "run", "learn"]
    assert history[-1].added == {"class-03": 7, "class-04": 7}
    with pytest.raises(EndocilError, match=re.escape("new.endocil exists already")):
        learn(model, pictures / "from-3.csv", tmp_path / "new.endocil")
    with pytest.raises(EndocilError, match=re.escape("exists already")):
        learn(model, pictures / "from-3.csv", model)


def folder_of(pictures: Path, place: Path, *names: str, most: int | None = None) -> Path:
    for name in names:
        (place / name).mkdir(parents=True)
        for file in sorted((pictures / name).iterdir())[:most]:
            (place / name / file.name).write_bytes(file.read_bytes())
    return place


def test_a_folder_is_learned_with_the_held_out_share_that_is_asked_for(
    model: Path, pictures: Path, tmp_path: Path
) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04")
    content = learn(model, new, tmp_path / "a.endocil", validation=0.3).file()
    held = [origin for origin in content.held_out.provenance if origin.class_name == "class-04"]
    assert len(held) == 3
    assert content.manifest.classes[-1].images == 7
    trained = {origin.image for origin in content.exemplars.provenance}
    assert not trained & {origin.image for origin in held}
    assert learn(model, new, tmp_path / "b.endocil").manifest.classes[-1].images == 10


def test_a_calibration_is_of_every_class_or_there_is_none(model: Path, pictures: Path, tmp_path: Path) -> None:
    unheld = tmp_path / "unheld.endocil"
    packed(model.parent / "run", held_out=0).save(unheld)
    told: list[str] = []
    found = learn(unheld, pictures / "from-3.csv", tmp_path / "new.endocil", log=told.append)
    assert {origin.class_name for origin in found.held_out.provenance} == {"class-03", "class-04"}
    assert found.manifest.calibration is None
    lacking = "no held-out images of class-00, class-01, class-02"
    assert found.limits() == (
        f"{lacking}: probabilities are not calibrated, and no image is flagged as out of distribution",
    )
    assert any(f"the new model will not be calibrated: {lacking}" in line for line in told)


def test_a_model_without_pictures_stays_without(pictures: Path, tmp_path: Path) -> None:
    run(settings(pictures / "first-3.csv", [2, 1], "finetune"), tmp_path / "run")
    made = packed(tmp_path / "run", with_exemplars=False).file()
    assert made.manifest.calibration is not None
    write_model_file(tmp_path / "model.endocil", made)
    shown = endocil("learn", tmp_path / "model.endocil", pictures / "from-3.csv", "-o", tmp_path / "new.endocil")
    assert shown.returncode == 0, shown.stderr
    assert "note: the model is kept without images, and so without held-out images" in shown.stdout
    content = read_model_file(tmp_path / "new.endocil")
    assert (len(content.exemplars), len(content.held_out)) == (0, 0)
    assert content.manifest.calibration is None
    assert not content.manifest.keeps_images
    assert b".png" not in (tmp_path / "new.endocil").read_bytes()


def test_a_pattern_of_the_model_is_shown_but_never_run(model: Path, pictures: Path, tmp_path: Path) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04")
    for number, file in enumerate(sorted((new / "class-04").iterdir())):
        file.rename(file.with_name(f"p{number // 4}_{'a' * 40}{number}!.png"))
    content, endless = read_model_file(model), "((?:a|aa)+)$"
    scenario = {**content.manifest.settings["scenario"], "split_by": "group", "groups": endless}
    values = {**content.manifest.settings, "scenario": scenario}
    write_model_file(
        tmp_path / "model.endocil", replace(content, manifest=content.manifest.model_copy(update={"settings": values}))
    )
    typed = ("learn", tmp_path / "model.endocil", new, "-o", tmp_path / "out.endocil", "--validation", "0.3")
    refused = endocil(*typed)
    assert refused.returncode == 1
    assert f"grouped by the pattern '{endless}', and the new ones have no groups; give --groups" in refused.stderr
    assert endocil(*typed, "--groups", "(p[0-9]+)_").returncode == 0
    origins = (*(found := read_model_file(tmp_path / "out.endocil")).exemplars.provenance, *found.held_out.provenance)
    groups = {origin.group for origin in origins if origin.class_name == "class-04"}
    assert groups <= {"p0", "p1", "p2"}  # which exemplars are chosen hangs on the processor
    held = {origin.group for origin in found.held_out.provenance if origin.class_name == "class-04"}
    assert held
    assert not held & {origin.group for origin in found.exemplars.provenance}


def test_groups_are_those_that_are_asked_for(model: Path, pictures: Path, tmp_path: Path) -> None:
    content = read_model_file(model)
    new = folder_of(pictures, tmp_path / "new", "class-04")
    names = [f"class-04/{file.name}" for file in sorted((new / "class-04").iterdir())]
    listing = tmp_path / "groups.csv"
    write_csv(listing, ("path", "group"), [(name, f"g{i % 2}") for i, name in enumerate(names)])

    def groups(path: Path, wanted: str | None, rule: str = "given") -> tuple[set[str], tuple[str, ...]]:
        model = Model.from_file(content)
        scenario = model.settings.scenario.model_copy(update={"groups": rule})
        model.settings = model.settings.model_copy(update={"scenario": scenario})
        found = read_new_images(path, model, groups=wanted)
        return set(found.images.table.groups), found.notes

    assert groups(new, None)[0] == {""}
    assert groups(new, str(listing))[0] == {"g0", "g1"}
    assert groups(new, "(class)-")[0] == {"class"}
    assert groups(new, "given", "(x+)+$")[0] == {""}
    patients = groups(pictures / "from-4.csv", None, "(x+)+$")[0]
    assert all(name.startswith("patient") for name in patients)
    assert groups(pictures / "from-4.csv", "(class)-")[0] == {"class"}
    assert any("--groups FILE.csv" in note for note in groups(new, None, "mine.csv")[1])
    with pytest.raises(EndocilError, match="matches no image"):
        groups(new, "(nothing)")


def test_names_that_no_model_takes_are_refused_before_it_learns(model: Path, pictures: Path, tmp_path: Path) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04")
    (new / "class-04").rename(new / "class\x1b4")
    with pytest.raises(EndocilError, match=r"the name of a class has the character U\+001B"):
        learn(model, new, tmp_path / "out.endocil")
    assert list(tmp_path.iterdir()) == [new]


def test_a_folder_of_the_users_given_for_the_work_is_left_alone(model: Path, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / ".git").mkdir(parents=True)
    (tmp_path / "mine" / ".git" / "config").write_text("mine")
    (tmp_path / "empty").mkdir()
    listed = ("learn", model, pictures / "from-3.csv", "-o", tmp_path / "out.endocil", "--work")
    refused = endocil(*listed, tmp_path / "mine")
    assert "holds other files; choose another folder with --work" in refused.stderr
    assert (tmp_path / "mine" / ".git" / "config").read_text() == "mine"
    assert endocil(*listed, tmp_path / "empty").returncode == 0
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_new_class_of_one_image_is_refused(model: Path, pictures: Path, tmp_path: Path) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04", most=1)
    with pytest.raises(EndocilError, match="class 'class-04' has 1 image to learn from; expected at least 2"):
        learn(model, new, tmp_path / "out.endocil")
    assert list(tmp_path.iterdir()) == [new]


def test_no_images_strange_lists_and_fixed_settings_are_refused(model: Path, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for new, told in (
        (tmp_path / "empty", "expected one folder of images per class, or --class NAME for images of one class alone"),
        (tmp_path / "nowhere", "is not there; expected a folder"),
        (pictures / "class-00" / "0000.png", "expected a folder"),
    ):
        with pytest.raises(EndocilError, match=told):
            learn(model, new, tmp_path / "out.endocil")
    for change in ("network.width=16", "seed=3", "data.size=64", "method.name=wa", "scenario.tasks=2"):
        key = change.partition("=")[0]
        with pytest.raises(EndocilError, match=f"'{key}' cannot be changed in a model"):
            learn(model, pictures / "from-3.csv", tmp_path / "out.endocil", changes=[change])
    with pytest.raises(EndocilError, match=r"train\.milestones"):
        learn(model, pictures / "from-3.csv", tmp_path / "out.endocil", changes=["train.milestones=[9]"])


def test_joint_and_a_model_without_exemplars_are_refused_before_any_image_is_read(
    pictures: Path, tmp_path: Path
) -> None:
    run(settings(pictures / "first-3.csv", [2, 1], "joint"), tmp_path / "joint")
    run(settings(pictures / "first-3.csv", [2, 1]), tmp_path / "icarl")
    packed(tmp_path / "joint").save(tmp_path / "joint.endocil")
    without = packed(tmp_path / "icarl", with_exemplars=False).file()
    write_model_file(tmp_path / "without.endocil", without)
    with pytest.raises(EndocilError, match="learns all classes at once"):
        learn(tmp_path / "joint.endocil", tmp_path / "nowhere", tmp_path / "out.endocil")
    with pytest.raises(EndocilError, match="holds no exemplars"):
        learn(tmp_path / "without.endocil", tmp_path / "nowhere", tmp_path / "out.endocil")


def test_a_method_without_exemplars_learns_and_warns(pictures: Path, tmp_path: Path) -> None:
    run(settings(pictures / "first-3.csv", [2, 1], "lwf"), tmp_path / "run")
    packed(tmp_path / "run").save(tmp_path / "model.endocil")
    told: list[str] = []
    content = learn(
        tmp_path / "model.endocil", pictures / "from-3.csv", tmp_path / "out.endocil", log=told.append
    ).file()
    assert len(content.exemplars) == 0
    assert any("keeps no exemplars: it may forget old classes" in line for line in told)
    assert any(" of training (" in line for line in told)


def test_a_class_whose_name_is_near_to_a_known_one_is_asked_about(model: Path, pictures: Path, tmp_path: Path) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04")
    (new / "class-04").rename(new / "Class-01")
    told: list[str] = []
    with pytest.raises(EndocilError, match=r"is 'Class-01' the class 'class-01' .*\? .* with --new-class 'Class-01'"):
        learn(model, new, tmp_path / "out.endocil")
    with pytest.raises(EndocilError, match=r"--new-class polyp: not among the new classes, which are Class-01"):
        learn(model, new, tmp_path / "out.endocil", new_classes=["polyp"])
    assert not list(tmp_path.glob("out.endocil*"))
    learned = learn(model, new, tmp_path / "out.endocil", log=told.append, new_classes=["Class-01"])
    assert learned.classes[-1] == "Class-01"


def test_two_new_classes_whose_names_are_near_to_each_other_are_asked_about(
    model: Path, pictures: Path, tmp_path: Path
) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04")
    (new / "class-04").rename(new / "Ulcer")
    shutil.copytree(new / "Ulcer", new / "ulcers")
    with pytest.raises(
        EndocilError, match=r"is 'ulcers' the class 'Ulcer' that is new as well\? .* --new-class 'ulcers'"
    ):
        learn(model, new, tmp_path / "out.endocil")
    assert not list(tmp_path.glob("out.endocil*"))


def test_an_unreadable_new_image_is_refused_or_left_out(model: Path, pictures: Path, tmp_path: Path) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04")
    broken = sorted((new / "class-04").iterdir())[0]
    broken.write_bytes(b"no picture")
    with pytest.raises(EndocilError, match="1 of 10 images cannot be read"):
        learn(model, new, tmp_path / "out.endocil")
    changes = ["data.skip_unreadable=true"]
    content = learn(model, new, tmp_path / "out.endocil", changes=changes).file()
    assert content.manifest.classes[-1].images == 9


def test_pixels_of_another_size_are_resized_as_the_models_own(model: Path, pictures: Path, tmp_path: Path) -> None:
    new = folder_of(pictures, tmp_path / "new", "class-04")
    for file in (new / "class-04").iterdir():
        Image.open(file).resize((50, 40)).save(file)
    content = learn(model, new, tmp_path / "out.endocil").file()
    assert content.exemplars.pixels.shape[1:] == (32, 32, 3)
