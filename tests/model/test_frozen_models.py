"""Models of frozen methods: more images of known classes, a patient subtracted, what is refused."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import endocil
from files import CLASSES, settings, write_pictures
from life import FROZEN

from endocil import EndocilError
from endocil.io.files import write_csv
from endocil.learning import features as features_module
from endocil.methods import METHODS
from endocil.methods.frozen import FrozenMethod
from endocil.model.file import ModelFile, read_model_file
from endocil.model.model import Model
from endocil.release.learn import learn
from endocil.runs.run import run

OPTIONS = {"simplecil": {}, "ranpac": {"projected": 30}, "analytic": {"ratio": 0.1}, "multistage": {"random": 30}}
PATIENT = "patient-1"  # images 3 to 5 of the first class: all are train


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def chosen(name: str, listing: Path) -> dict[str, Any]:
    values = settings(listing, (2, 3), name)
    values["method"].update(OPTIONS[name])
    return values


def without(listing: Path, patient: str) -> Path:
    """A list of the others' images, and one of the patient's."""
    with listing.open(newline="") as file:
        header, *rows = csv.reader(file)
    write_csv(listing.with_name("others.csv"), header, [row for row in rows if row[2] != patient])
    write_csv(listing.with_name("patient.csv"), header, [row for row in rows if row[2] == patient])
    return listing.with_name("others.csv")


def close(one: ModelFile, other: ModelFile, *, less: str = "") -> None:
    """Sums to 1e-10, and the weights that come from them as near as float32 is."""
    assert one.statistics.keys() == other.statistics.keys()
    for name in one.statistics.keys() - {"learned", less}:
        torch.testing.assert_close(one.statistics[name], other.statistics[name], rtol=1e-10, atol=1e-10)
    assert sorted(one.statistics["learned"].tolist()) == sorted(other.statistics["learned"].tolist())
    for name in one.state:
        torch.testing.assert_close(one.state[name], other.state[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FROZEN)
def test_a_subtracted_patient_was_never_seen(name: str, pictures: Path, tmp_path: Path) -> None:
    whole = run(chosen(name, pictures / "list.csv"), tmp_path / "whole").folder
    never = run(chosen(name, without(pictures / "list.csv", PATIENT)), tmp_path / "never").folder
    for given, asked in (("list.csv", ("--group", PATIENT)), ("patient.csv", ())):
        output = tmp_path / f"{given}.endocil"
        done = endocil("forget", whole, *asked, "--images", pictures / given, "-o", output)
        assert done.returncode == 0, done.stderr
        assert "3 learned images subtracted" in done.stdout
        assert "subtracted: 3 learned images (3 of class-00); the classifier is as if they had never" in done.stdout
        assert ("still depends on them: the penalty" in done.stdout) == (name == "ranpac")  # others: set
        found, expected = read_model_file(output), read_model_file(never)
        if name == "ranpac":  # its penalty was chosen with them
            assert set(found.statistics) == set(expected.statistics)
            for key in ("gram", "moments", "counts"):
                torch.testing.assert_close(found.statistics[key], expected.statistics[key], rtol=1e-10, atol=1e-10)
        else:
            close(found, expected)
        assert found.manifest.classes == expected.manifest.classes
        assert (found.manifest.history[-1].by, found.manifest.history[-1].removed["learned"]) == ("forget", 3)
        assert PATIENT not in found.manifest.model_dump_json()


def test_what_was_not_learned_or_would_leave_nothing_is_refused(pictures: Path, tmp_path: Path) -> None:
    whole = run(chosen("simplecil", pictures / "list.csv"), tmp_path / "whole").folder
    without(pictures / "list.csv", PATIENT)
    less = tmp_path / "less.endocil"
    first = endocil("forget", whole, "--images", pictures / "patient.csv", "-o", less)
    assert first.returncode == 0, first.stderr

    def refused(*typed: object) -> str:
        done = endocil("forget", *typed, "-o", tmp_path / "never.endocil")
        assert done.returncode == 1
        return str(done.stderr)

    assert "none of the 3 images was learned by this model" in refused(less, "--images", pictures / "patient.csv")
    assert "none of the given images has the group 'p'" in refused(
        whole, "--group", "p", "--images", pictures / "list.csv"
    )
    assert "no learned image would be left of class-00" in refused(whole, "--images", pictures / "first-1.csv")
    emptied = tmp_path / "emptied.endocil"
    done = endocil("forget", whole, "--images", pictures / "first-1.csv", "--allow-empty", "-o", emptied)
    assert done.returncode == 0, done.stderr
    assert "3 of the given images were not learned by this model" in done.stdout  # test and validation
    assert "removed 0 exemplars and 1 held-out images" in done.stdout
    assert not read_model_file(emptied).state["classifier.weight"][0].any()
    trained = run(settings(pictures / "list.csv", (2, 3), "finetune"), tmp_path / "trained").folder
    assert "Finetune does not learn by sums" in refused(trained, "--images", pictures / "patient.csv")


def test_learning_into_a_frozen_model_shows_each_image_to_the_network_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDOCIL_CACHE", str(tmp_path / "cache"))
    shown, embed_each = list[int](), features_module.embed_each

    def counted(method: Any, images: Any) -> torch.Tensor:
        shown.append(len(images))
        return embed_each(method, images)

    paths = [pictures / CLASSES[number // 10] / f"{number:04d}.png" for number in range(50)]
    labels = [path.parent.name for path in paths]
    values = {key: value for key, value in chosen("multistage", pictures).items() if key not in ("data", "scenario")}
    model = Model.create(values | {"data": {"size": 32}}).learn(paths[:40], labels[:40], validation=0.2)
    model.save(tmp_path / "before.endocil")
    write_csv(
        pictures / "new.csv", ("path", "label"), [(str(path.relative_to(pictures)), CLASSES[4]) for path in paths[40:]]
    )
    monkeypatch.setattr(features_module, "embed_each", counted)
    learned = []
    for place, features in enumerate(("false", "true", "true")):
        shown.clear()
        output = tmp_path / f"{place}.endocil"
        after = learn(
            tmp_path / "before.endocil",
            pictures / "new.csv",
            output,
            validation=0.2,
            changes=[f"run.features={features}"],
        )
        learned.append((sum(shown), read_model_file(output)))
    held_out = len(after.held_out)
    assert held_out > len(model.held_out) > 0
    thrice, once, never = (n for n, _ in learned)
    assert (thrice - once, once - never) == (2 * held_out, 10 - 2 + held_out)
    for _, other in learned[1:]:
        assert all(torch.equal(other.state[name], value) for name, value in learned[0][1].state.items())
        assert other.manifest.calibration == learned[0][1].manifest.calibration


@pytest.mark.parametrize("name", FROZEN)
def test_more_images_of_known_classes_alone_are_learned(name: str, pictures: Path, tmp_path: Path) -> None:
    """By `Model.learn`, by the command, and saved in between: as if all had come at once."""
    paths = [
        pictures / one / f"{number:04d}.png" for number in range(50) for one in CLASSES[number // 10 : number // 10 + 1]
    ]
    labels = [path.parent.name for path in paths]
    some = [place for place in range(50) if place % 10 < 6]
    rest = [place for place in range(50) if place % 10 >= 6]
    values = {key: value for key, value in chosen(name, pictures).items() if key not in ("data", "scenario")}
    values["data"] = {"size": 32}
    model = Model.create(values).learn([paths[i] for i in some], [labels[i] for i in some], validation=0.0)
    model.save(tmp_path / "some.endocil")
    model.learn([paths[i] for i in rest], [labels[i] for i in rest], validation=0.0)
    assert [task.n_new for task in model.tasks] == [5, 0]
    assert [one.images for one in model.manifest.classes] == [10] * 5
    listed = [(str(paths[i].relative_to(pictures)), labels[i]) for i in rest]
    write_csv(pictures / "rest.csv", ("path", "label"), listed)
    typed = learn(tmp_path / "some.endocil", pictures / "rest.csv", tmp_path / "all.endocil", validation=0.0)
    close(read_model_file(tmp_path / "all.endocil"), model.file())
    once = Model.create(values)
    once.learn([paths[i] for i in (*some, *rest)], [labels[i] for i in (*some, *rest)], validation=0.0)
    if name == "ranpac":
        once.method.statistics["penalty"] = model.method.statistics["penalty"]
        assert isinstance(once.method, FrozenMethod)
        once.method.solve()
    close(typed.file(), once.file())
    assert model.predict([str(path) for path in paths[:3]]).probabilities.shape == (3, 5)
    assert Model.load(tmp_path / "all.endocil").tasks[-1].n_new == 0


def test_a_method_that_says_it_needs_new_classes_is_believed(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["finetune"], "learns_known_classes", False)
    paths = [pictures / name / f"{10 * label + i:04d}.png" for label, name in enumerate(CLASSES[:2]) for i in range(6)]
    values = settings(pictures, (2,), "finetune")
    model = Model.create(
        {"data": {"size": 32}, "train": values["train"], "method": {"name": "finetune"}, "network": {"width": 8}}
    )
    model.learn(paths, [path.parent.name for path in paths])
    with pytest.raises(EndocilError, match="all new images are of known classes"):
        model.learn(paths[:3], [path.parent.name for path in paths[:3]])


def test_a_projection_too_large_for_the_memory_is_refused_before_anything_is_learned(
    pictures: Path, tmp_path: Path
) -> None:
    values = chosen("ranpac", pictures / "list.csv")
    values["method"]["projected"] = 10_000_000
    with pytest.raises(
        EndocilError, match=r"RanPAC need 4,000,000.0 GB of memory.*method.projected \(it is 10,000,000\)"
    ):
        run(values, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
