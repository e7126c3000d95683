"""The model from Python: several calls are the tasks of a run, and what is given wrongly is said plainly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from files import settings, write_pictures
from life import differing
from lives import all_of
from PIL import Image

from endocil import EndocilError, Model
from endocil.data.inputs import ImageInputs
from endocil.io.files import read_csv
from endocil.model.file import read_model_file
from endocil.runs.run import run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def given(pictures: Path, *classes: str) -> tuple[list[Path], list[str]]:
    """The training images of these classes, in the order of the list."""
    rows = [row for row in read_csv(pictures / "list.csv") if row["label"] in classes]
    return (
        [pictures / row["path"] for row in rows if row["split"] == "train"],
        [row["label"] for row in rows if row["split"] == "train"],
    )


def own_settings(method: str = "icarl") -> dict[str, Any]:
    values = settings(Path("unused.csv"), [2, 1], method)
    return {**values, "data": {"name": "synthetic", "size": 32}}


@pytest.mark.parametrize("kind", ["paths", "arrays", "pictures"])
def test_several_calls_are_the_tasks_of_a_run_bit_for_bit(kind: str, pictures: Path, tmp_path: Path) -> None:
    kinds: dict[str, Callable[[list[Path]], ImageInputs]] = {
        "paths": list,
        "arrays": lambda paths: np.stack([np.asarray(Image.open(path)) for path in paths]),
        "pictures": lambda paths: [Image.open(path) for path in paths],
    }
    learner = Model.create(own_settings())
    for classes in (("class-00", "class-01"), ("class-02",), ("class-03", "class-04")):
        images, labels = given(pictures, *classes)
        learner.learn(kinds[kind](images), labels, train="all")
    run(settings(pictures / "list.csv", [2, 1, 2]), tmp_path / "run")
    expected, found = read_model_file(tmp_path / "run"), learner.file()
    assert differing(all_of(found), all_of(expected)) == []
    assert torch.equal(found.exemplars.pixels, expected.exemplars.pixels)
    assert learner.classes == expected.classes


def test_it_predicts_saves_loads_and_learns_on(pictures: Path, tmp_path: Path) -> None:
    learner = Model.create(own_settings(), name="mine")
    images, labels = given(pictures, "class-00", "class-01")
    learner.learn(images, labels, groups=[f"p{i % 3}" for i in range(len(images))], licence="CC0")
    predictions = learner.predict(images)
    assert predictions.probabilities.shape == (len(images), 2)
    np.testing.assert_allclose(predictions.probabilities.sum(axis=1), 1.0, rtol=1e-6)
    best = [names[0][0] for names in predictions.top(1)]
    assert [learner.classes[i] for i in predictions.predicted().tolist()] == best
    digest = learner.save(tmp_path / "one.endocil")
    again = Model.load(tmp_path / "one.endocil", changes=["train.epochs=3"])
    assert [names[0][0] for names in again.predict(images).top(1)] == best
    again.learn(*given(pictures, "class-02"))
    again.save(tmp_path / "two.endocil")
    content = read_model_file(tmp_path / "two.endocil")
    assert content.manifest.history[-1].parent == digest
    assert content.manifest.settings["train"]["epochs"] == 3
    assert {origin.licence for origin in content.exemplars.provenance if origin.task == 0} == {"CC0"}
    assert Model.load(tmp_path / "two.endocil").classes == ("class-00", "class-01", "class-02")


def test_labels_groups_and_sources_may_be_arrays_of_texts(pictures: Path, tmp_path: Path) -> None:
    images, labels = given(pictures, "class-00", "class-01")
    groups = np.array([f"p{i % 3}" for i in range(len(images))])
    sources = np.array(["a", "b"] * (len(images) // 2), dtype=object)
    values = own_settings()
    values["scenario"]["validation"] = 0.3
    learner = Model.create(values).learn(images, np.array(labels), groups=groups, sources=sources)
    learner.save(tmp_path / "one.endocil")
    content = read_model_file(tmp_path / "one.endocil")
    told = {origin.image: (origin.group, origin.source) for origin in content.exemplars.provenance}
    for i, path in enumerate(images):
        if path.name in told:
            assert told[path.name] == (f"p{i % 3}", "ab"[i % 2])
    assert {path.name for path in images} >= set(told)
    assert len(told) == 6
    assert len(content.held_out)


def test_what_is_given_wrongly_is_refused_plainly(pictures: Path, tmp_path: Path) -> None:
    learner = Model.create(own_settings())
    stack = np.zeros((4, 32, 32, 3), np.uint8)
    names = ["a", "a", "b", "b"]
    numbers: Any = [1, 1, 2, 2]
    wrong: tuple[tuple[Any, Any, str], ...] = (
        (stack.astype(np.float32), names, r"images are float32 of shape \(4, 32, 32, 3\); expected uint8"),
        (stack[..., :1], names, r"images are uint8 of shape \(4, 32, 32, 1\)"),
        (stack, names[:3], "4 images, but 3 labels"),
        (stack, numbers, "labels are the names of classes"),
        (stack, ["a"] * 4, "a single class cannot be learned first"),
        ([], [], "there are no images to learn from"),
        ([stack[0], "nowhere.png"], ["a", "b"], "nowhere.png cannot be read"),
        ([stack[0], 7], ["a", "b"], "image 1 is int"),
        (str(pictures), names, "expected a sequence"),
    )
    for images, labels, told in wrong:
        with pytest.raises(EndocilError, match=told):
            learner.learn(images, labels)
    with pytest.raises(EndocilError, match="4 images, but 1 groups"):
        learner.learn(stack, names, groups=["p"])
    with pytest.raises(EndocilError, match="groups are names of patients or videos: a text for each image, but 1"):
        learner.learn(stack, names, groups=numbers)
    with pytest.raises(EndocilError, match="sources are names of devices or centres: a text for each image"):
        learner.learn(stack, names, sources=np.array([1.0, 1.0, 2.0, 2.0]))
    with pytest.raises(EndocilError, match=r"a group has the character U\+000A"):
        learner.learn(stack, names, groups=["p\n", "p", "p", "p"])
    with pytest.raises(EndocilError, match=r"--consent has the character U\+001B"):
        learner.learn(stack, names, consent="\x1b")
    with pytest.raises(EndocilError, match="has learned nothing yet"):
        learner.predict(list(stack))
    with pytest.raises(EndocilError, match="has learned nothing yet"):
        learner.save(tmp_path / "none.endocil")
    assert learner.classes == ()


def test_a_step_that_is_interrupted_leaves_the_model_as_it_was(pictures: Path) -> None:
    model = Model.create(own_settings()).learn(*given(pictures, "class-00", "class-01"))
    before = model.file()

    def interrupt(record: dict[str, Any]) -> None:
        if record["event"] == "epoch":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.learn(*given(pictures, "class-02"), show=interrupt)
    assert differing(all_of(model.file()), all_of(before)) == []
    assert model.classes == ("class-00", "class-01")
    assert torch.equal(model.exemplars.pixels, before.exemplars.pixels)
    model.learn(*given(pictures, "class-02"))
    assert list(model.classes) == ["class-00", "class-01", "class-02"]
