"""From a model back to the method: every method predicts as it did, and nothing else is built from a file."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import MANIFEST, PLANTED, changed, in_manifest, members_of, signed
from life import ALL_METHODS, SMALLER, Life, new_method
from packed import restored
from pictures import make_images
from present import present

import endocil
from endocil.data.augment import IMAGENET
from endocil.data.batches import ImageSet
from endocil.data.decode import RULES
from endocil.errors import EndocilError
from endocil.learning.features import outputs_of
from endocil.learning.memory import no_images
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.manifest import LearnedClass, Manifest, Preprocessing, Step
from endocil.model.model import Model
from endocil.model.predictions import predict
from endocil.model.restore import model_settings

NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "foster": ({}, {"evaluate": "student"}, {"oofc": "az"}),
    "memo": ({"train_base": False},),
    "ranpac": ({"projected": 40},),
}
CASES = [(name, options) for name in ALL_METHODS for options in OPTIONS.get(name, ({},))]


def content_of(life: Life, name: str, options: dict[str, Any]) -> ModelFile:
    """The model file of a life that is no run."""
    table, tasks = life.images.table, life.scenario.tasks
    classes = [
        LearnedClass(name=table.classes[label], task=task.index, images=1)
        for task in tasks
        for label in range(task.n_old, task.n_seen)
    ]
    manifest = Manifest(
        name=name,
        settings={
            "data": {"name": "folder", "root": "gone", "size": 32},
            "network": {"width": 8},
            "method": {"name": name, **options},
        },
        classes=tuple(classes),
        increments=tuple(task.n_new for task in tasks),
        preprocessing=Preprocessing(size=32, crop_frame=False, mean=IMAGENET.mean, deviation=IMAGENET.std, rules=RULES),
        calibration=None,
        metrics=None,
        environment={},
        history=(Step(made="now", by="run", endocil=endocil.__version__, parent=None),),
        learns=not life.method.replay,
    )
    none = no_images(32)
    return ModelFile(manifest, life.method.state_dict(), life.method.statistics, none, none)


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value) if value else "")
def test_a_loaded_model_predicts_as_the_method_did(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    images = make_images([6, 5, 4])
    life = Life(images, tmp_path / "life", new_method(name, epochs=1, **options), increments=(2, 1)).live()
    shown = ImageSet.of(images, torch.arange(len(images.table)))
    before = predict(life.method, shown, 7, classes=images.table.classes)
    write_model_file(tmp_path / "model.endocil", content_of(life, name, SMALLER.get(name, {}) | options))
    model = Model.load(tmp_path / "model.endocil")
    after = model.predict(list(images.pixels.numpy()), batch=4)
    np.testing.assert_allclose(after.scores, before.scores, **NEAR)
    assert (after.mean_probabilities is not None) == life.method.replay
    if before.distances is not None:
        expected = torch.softmax(-torch.from_numpy(before.distances).double(), dim=1).float()
        np.testing.assert_allclose(present(after.mean_probabilities), expected, **NEAR)
    # the same operation on the same layout: bit for bit, as learning on needs it
    features = [outputs_of(method, shown, 15).features for method in (life.method, model.method)]
    assert torch.equal(*features)
    for one, other in zip(life.method.parameters(), model.method.parameters(), strict=True):
        assert one.stride() == other.stride()
        assert one.requires_grad == other.requires_grad


def test_a_restored_method_owns_its_values(tiny_content: ModelFile) -> None:
    method = restored(tiny_content)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.zero_()
    assert any(bool(value.any()) for value in tiny_content.state.values())
    assert "class_means" in method.statistics
    method.statistics["class_means"].zero_()
    assert bool(tiny_content.statistics["class_means"].any())


@pytest.fixture
def with_setting(tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    def write(*keys: str, to: object) -> Path:
        path = tmp_path / "changed.endocil"
        change = in_manifest("settings", *keys, to=to)
        path.write_bytes(signed(changed(members_of(tiny_model.read_bytes()), MANIFEST, change)))
        return path

    return write


@pytest.mark.parametrize(
    "keys",
    [("method", "name"), ("network", "backbone"), ("memory", "select"), ("train", "optimizer"), ("train", "augment")],
)
def test_code_from_outside_is_refused_without_trust(with_setting: Callable[..., Path], keys: tuple[str, ...]) -> None:
    named = f"{PLANTED}:Thing"
    path = with_setting(*keys, to=[{"name": named}] if keys == ("train", "augment") else named)
    with pytest.raises(EndocilError, match=r"code from outside the package; it is run only with --trust"):
        Model.load(path)
    with pytest.raises(EndocilError, match="cannot be imported"):
        Model.load(path, trust=True)


def test_a_built_in_network_with_another_normalisation_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    path, change = tmp_path / "changed.endocil", in_manifest("preprocessing", "mean", to=[0.5, 0.5, 0.5])
    path.write_bytes(signed(changed(members_of(tiny_model.read_bytes()), MANIFEST, change)))
    with pytest.raises(EndocilError, match="images were normalised by"):
        Model.load(path)


def test_a_trusted_model_may_bring_its_own_method(with_setting: Callable[..., Path], tiny_model: Path) -> None:
    path = with_setting("method", "name", to="endocil.methods.icarl:ICaRL")
    picture = torch.full((20, 20, 3), 90, dtype=torch.uint8).numpy()
    logits = [model.predict([picture]).scores for model in (Model.load(path, trust=True), Model.load(tiny_model))]
    np.testing.assert_allclose(logits[0], logits[1], **NEAR)


def test_data_and_first_weights_are_never_looked_for(with_setting: Callable[..., Path]) -> None:
    for keys, value in (
        (("data", "name"), f"{PLANTED}:load"),
        (("data", "root"), "/nowhere"),
        (("network", "weights"), "/nowhere/resnet18.pth"),
    ):
        content = read_model_file(with_setting(*keys, to=value))
        assert restored(content).classifier.out_features == 5
        assert model_settings(content).network.weights is None


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("network", "width"), 8 * 10**12, "do not fit its settings"),
        (("network", "width"), 256, "of shape .*, expected"),
        (("network", "backbone"), "resnet34", "layer1.2.* is missing"),
        (("method", "name"), "finetune", "unknown method key|not part of the network"),
        (("method", "name"), "nothing", "unknown method.name 'nothing'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_memory_is_taken(
    with_setting: Callable[..., Path], keys: tuple[str, ...], value: object, reason: str
) -> None:
    with pytest.raises(EndocilError, match=reason) as refused:
        Model.load(with_setting(*keys, to=value))
    assert "\n" not in str(refused.value)


def test_many_tasks_are_refused_as_soon_as_they_need_more_tensors_than_there_are(tiny_content: ModelFile) -> None:
    said = tiny_content.manifest.model_dump()
    said["settings"]["method"] = {"name": "der"}
    said["increments"] = [2, 2, 1, *[0] * 900]
    with pytest.raises(EndocilError, match=r"branches.* is missing|auxiliary.* is missing"):
        restored(replace(tiny_content, manifest=Manifest.model_validate(said)))


def test_class_means_of_another_length_are_refused(tiny_content: ModelFile) -> None:
    means = {"class_means": torch.zeros(5, 3)}
    with pytest.raises(EndocilError, match="do not fit"):
        restored(replace(tiny_content, statistics=means))


@pytest.mark.parametrize(
    ("backbone", "method"),
    [
        ("resnet18", "endocil"),
        ("resnet50", "multistage"),
        ("efficientnet-lite0", "multistage"),
        ("efficientnet-lite0", "ranpac"),
    ],
)
def test_a_network_is_built_without_memory_and_without_torchs_compiler(backbone: str, method: str) -> None:
    settings = {"network": {"backbone": backbone}, "method": {"name": method}}
    code = (
        "import sys\n"
        "from endocil.data.scenario import Task\n"
        "from endocil.learning.build import build_learning\n"
        "from endocil.model.restore import without_memory\n"
        "from endocil.settings.settings import load_settings\n"
        "def shapes():\n"
        f"    method, _ = build_learning(load_settings({settings}))\n"
        "    method.grow(Task(0, 0, 3))\n"
        "    return {name: (value.shape, value.dtype) for name, value in method.state_dict().items()}\n"
        "with without_memory():\n"
        "    found = shapes()\n"
        "sys.exit('torch._dynamo' in sys.modules or found != shapes())\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
