"""The ONNX file answers as torch does, says what it is, and is written whole or not at all."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from life import ALL_METHODS
from pictures import make_images
from present import present
from untrained import CLASSES, untrained, write_untrained

from endocil.errors import EndocilError
from endocil.model import DISCLAIMER
from endocil.model import onnx as exporting
from endocil.model.file import read_model_file, write_model_file
from endocil.model.model import Model
from endocil.model.onnx import export

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def session_of(path: Path) -> Any:
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_method_answers_as_its_model_does(method: str, tmp_path: Path) -> None:
    model = write_untrained(tmp_path / "model.endocil", method)
    made = export(model, tmp_path / "model.onnx")
    assert made.difference <= 1e-4
    assert not made.generated
    pixels = make_images([3, 4], size=32, seed=5).pixels  # others than those that the export compares on
    expected = Model.load(model).predict(list(pixels.numpy()))
    names = list(made.outputs)
    for rows in (slice(0, 1), slice(0, 7)):  # any batch
        told = dict(zip(names, session_of(made.path).run(names, {"pixels": pixels[rows].numpy()}), strict=True))
        np.testing.assert_allclose(told["logits"], expected.scores[rows], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(told["probabilities"], expected.probabilities[rows], rtol=1e-4, atol=1e-4)
        assert told["features"].shape[0] == len(pixels[rows])
        if "ood_score" in told:
            np.testing.assert_allclose(told["ood_score"], present(expected.ood_score)[rows], rtol=1e-4, atol=1e-4)
    assert ("mean_distances" in names) == (expected.mean_probabilities is not None) == ("ood_score" in names)


def test_the_file_says_what_whoever_runs_it_has_to_know(tmp_path: Path) -> None:
    model = write_untrained(tmp_path / "model.endocil")
    made = export(model, tmp_path / "model.onnx")
    said = session_of(made.path).get_modelmeta().custom_metadata_map
    assert said["notice"] == DISCLAIMER == "Research software, not for clinical use."
    assert tuple(json.loads(said["classes"])) == CLASSES
    assert said["model"] == read_model_file(model).digest
    preprocessing, calibration = json.loads(said["preprocessing"]), json.loads(said["calibration"])
    assert (preprocessing["size"], preprocessing["mean"]) == (32, [0.485, 0.456, 0.406])
    assert calibration["temperature"] == 1.7
    assert calibration["ood_score"] == "the output ood_score; out of distribution where it is above ood_threshold"
    assert calibration["mean_probabilities"] == "softmax of -mean_distances / mean_temperature"
    (given,) = session_of(made.path).get_inputs()
    assert (given.name, given.type, given.shape[1:]) == ("pixels", "tensor(uint8)", [32, 32, 3])
    assert isinstance(given.shape[0], str)
    onnx.checker.check_model(onnx.load(made.path), full_check=True)


def test_without_pictures_and_calibration_it_is_compared_on_drawn_ones(tmp_path: Path) -> None:
    model = write_untrained(tmp_path / "model.endocil", pictures=False, calibrated=False)
    made = export(model, tmp_path / "model.onnx")
    assert (made.generated, made.pictures) == (True, exporting.COMPARED)
    said = session_of(made.path).get_modelmeta().custom_metadata_map
    assert json.loads(said["calibration"]) is None


def test_a_file_that_differs_from_torch_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = write_untrained(tmp_path / "model.endocil"), tmp_path / "model.onnx"
    path.write_bytes(b"the old one")
    right = exporting.expected_of

    def slightly_other(*args: Any) -> dict[str, torch.Tensor]:
        told = right(*args)
        return {**told, "probabilities": told["probabilities"] + 3e-4}

    monkeypatch.setattr(exporting, "expected_of", slightly_other)
    with pytest.raises(EndocilError, match=r"differ in probabilities by 0\.0003, more than 0\.0001"):
        export(model, path, force=True)
    assert path.read_bytes() == b"the old one"
    assert sorted(tmp_path.iterdir()) == [model, path]


def test_not_a_number_differs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_untrained(tmp_path / "model.endocil")
    right = exporting.expected_of

    def broken(*args: Any) -> dict[str, torch.Tensor]:
        told = right(*args)
        return {**told, "logits": torch.full_like(told["logits"], float("nan"))}

    monkeypatch.setattr(exporting, "expected_of", broken)
    with pytest.raises(EndocilError, match="differ in logits"):
        export(model, tmp_path / "model.onnx")


def test_a_missing_package_is_named_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EndocilError, match=r"onnxruntime; install it by: pip install 'endocil\[onnx\]'"):
        export(tmp_path / "model.endocil", tmp_path / "model.onnx")


def test_code_from_outside_is_run_with_trust_only(tmp_path: Path) -> None:
    content = untrained()
    settings = {**content.manifest.settings, "method": {"name": "os:system"}}
    manifest = content.manifest.model_copy(update={"settings": settings})
    path = tmp_path / "model.endocil"
    write_model_file(path, type(content)(manifest, *list(vars(content).values())[1:]))
    with pytest.raises(EndocilError, match="only with --trust"):
        export(path, tmp_path / "model.onnx")


def test_the_command_says_little_and_what_counts(tmp_path: Path) -> None:
    write_untrained(tmp_path / "model.endocil", "finetune")
    done = subprocess.run(
        [sys.executable, "-m", "endocil", "export", "model.endocil", "-o", "model.onnx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first == "wrote model.onnx: logits, probabilities, features"
    assert second.startswith("agrees with torch on 15 images of the model: largest difference ")
    assert second.endswith(" (allowed: 1e-04, and 1e-04 of the value)")  # a large value may differ by more than 1e-4
    assert third == DISCLAIMER
    assert np.isfinite(
        session_of(tmp_path / "model.onnx").run(["logits"], {"pixels": np.zeros((1, 32, 32, 3), np.uint8)})[0]
    ).all()


def test_a_name_that_is_no_text_is_told_escaped(tmp_path: Path) -> None:
    model = write_untrained(tmp_path / "model.endocil", "finetune", name="b\udcffd")
    made = export(model, tmp_path / "model.onnx")
    assert session_of(made.path).get_modelmeta().custom_metadata_map["name"] == "b\\udcffd"


def test_a_model_without_a_threshold_flags_nothing(tmp_path: Path) -> None:
    content = untrained()
    fitted = present(content.manifest.calibration).model_copy(update={"ood_threshold": None})
    manifest = content.manifest.model_copy(update={"calibration": fitted})
    write_model_file(tmp_path / "model.endocil", replace(content, manifest=manifest))
    made = export(tmp_path / "model.endocil", tmp_path / "model.onnx")
    said = json.loads(session_of(made.path).get_modelmeta().custom_metadata_map["calibration"])
    assert said["ood_threshold"] is None
    assert said["ood_score"] == "the output ood_score"


@pytest.mark.parametrize(("method", "words"), [("icarl", "square root of the smallest"), ("lwf", "minus the largest")])
def test_without_a_spread_the_words_tell_how_the_score_is_made(tmp_path: Path, method: str, words: str) -> None:
    write_model_file(tmp_path / "model.endocil", replace(untrained(method), spread={}))
    made = export(tmp_path / "model.endocil", tmp_path / "model.onnx")
    assert "ood_score" not in made.outputs
    said = json.loads(session_of(made.path).get_modelmeta().custom_metadata_map["calibration"])
    assert said["ood_score"].startswith(words)


@pytest.mark.parametrize("how", ["the same name", "another name", "a link", "a hard link"])
def test_the_model_is_never_written_over(tmp_path: Path, how: str) -> None:
    model = write_untrained(tmp_path / "model.endocil", "finetune")
    before, path = model.read_bytes(), tmp_path / "model.onnx"
    if how == "a link":
        path.symlink_to(model)
    elif how == "a hard link":
        os.link(model, path)
    else:
        path = model if how == "the same name" else tmp_path / "." / tmp_path.name / ".." / "model.endocil"
        (tmp_path / tmp_path.name).mkdir()
    with pytest.raises(EndocilError, match="is the model that is exported; choose another file with -o"):
        export(model, path)
    assert model.read_bytes() == before


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    model = write_untrained(tmp_path / "model.endocil", "finetune")
    with pytest.raises(EndocilError, match="is a folder; expected the name of an ONNX file"):
        export(model, tmp_path)


def test_models_of_these_tests_hold_nothing_that_could_be_left_out_unseen() -> None:
    """Batch norm and BiC's corrections begin as the identity, which no comparison would miss."""
    for name, value in untrained("bic").state.items():
        if value.is_floating_point():
            assert not any(torch.equal(value, torch.full_like(value, plain)) for plain in (0.0, 1.0)), name
            assert "running_var" not in name or value.min() > 0
