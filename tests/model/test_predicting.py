"""Predictions of a model are the run's own; what cannot be read is listed; reasons and flags are what they say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from present import present

from endocil.errors import EndocilError
from endocil.io.files import read_csv
from endocil.learning.features import MOST_PIXELS, batch_of, outputs_of
from endocil.model.file import ModelFile
from endocil.model.model import Model
from endocil.model.out_of_distribution import ood_scores
from endocil.model.prediction_files import read_predictions, write_prediction_list
from endocil.runs.folder import RunFolder
from endocil.runs.parts import images_and_scenario

NEAR: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return Model.load(tiny_model)


def pictures(n: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8) for i in range(n)]


def test_a_model_says_of_the_test_images_what_the_run_said(model: Model, tiny_run: Path) -> None:
    images, _ = images_and_scenario(RunFolder(tiny_run).settings)
    said = read_predictions(tiny_run / "predictions" / "task-2.csv")
    row_of = {name: row for row, name in enumerate(images.table.ids)}
    tested = images.table.take([row_of[name] for name in said.images])
    found = model.predict(tested, batch=5)
    assert found.images == said.images
    assert found.classes == said.classes
    np.testing.assert_allclose(found.scores, said.scores, **NEAR)
    assert found.labels.tolist() == said.labels.tolist()
    assert found.sources == said.sources
    fitted = model.manifest.calibration
    assert fitted is not None
    assert said.distances is not None
    assert fitted.mean_temperature is not None
    expected = torch.softmax(-torch.from_numpy(said.distances).double() / fitted.mean_temperature, dim=1)
    np.testing.assert_allclose(present(found.mean_probabilities), expected, **NEAR)
    outputs = outputs_of(model.method, images.gather(torch.tensor([row_of[name] for name in said.images])))
    np.testing.assert_allclose(present(found.ood_score), ood_scores(outputs, model.spread), **NEAR)


def test_the_batch_changes_nothing_and_order_stays(model: Model) -> None:
    shown = pictures(75)
    found = [model.predict(shown, batch=batch) for batch in (1, 32, 50, 64, 200)]
    assert found[0].images == tuple(str(i) for i in range(75))
    for other in found[1:]:
        assert other.images == found[0].images
        np.testing.assert_allclose(other.scores, found[0].scores, **NEAR)


def test_probabilities_are_the_logits_by_the_temperature(model: Model) -> None:
    found = model.predict(pictures(4))
    fitted = model.manifest.calibration
    assert fitted is not None
    assert found.calibrated
    logits = torch.from_numpy(found.scores)
    np.testing.assert_allclose(found.probabilities, torch.softmax(logits / fitted.temperature, dim=1), **NEAR)
    assert found.predicted().tolist() == logits.argmax(dim=1).tolist()
    for row, best in enumerate(found.top(2)):
        assert best[0][0] == found.classes[int(found.predicted()[row])]
        assert best[0][1] >= best[1][1]
    assert len(found.top()[0]) == 3


def test_out_of_distribution_is_what_lies_beyond_the_threshold(model: Model) -> None:
    found = model.predict(pictures(40))
    fitted = model.manifest.calibration
    assert fitted is not None
    assert found.out_of_distribution is not None
    scores = present(found.ood_score).tolist()
    assert found.out_of_distribution.tolist() == [score > fitted.ood_threshold for score in scores]
    known = model.predict(list(model.held_out.pixels.numpy()))
    assert known.out_of_distribution is not None
    assert int(known.out_of_distribution.sum()) <= 0.05 * len(known) + 1


def test_an_exemplar_is_its_own_nearest_reason(model: Model) -> None:
    kept = model.exemplars
    found = model.predict(list(kept.pixels.numpy()), reasons=2)
    assert len(found.nearest) == len(kept)
    for row, (near, how_near) in enumerate(zip(found.nearest, found.nearest_distances, strict=True)):
        assert row in near
        assert how_near[0] < 1e-2
        assert how_near[0] <= how_near[1]
    assert model.predict(pictures(1)).nearest == ()
    assert len(model.predict(pictures(1), reasons=10**6).nearest[0]) == len(kept)


def test_there_is_one_row_for_each_image_and_an_unreadable_one_is_marked_in_its_place(
    model: Model, tmp_path: Path
) -> None:
    for i, picture in enumerate(pictures(70)):
        Image.fromarray(picture).save(tmp_path / f"{i:03d}.png")
    (tmp_path / "005.png").write_bytes(b"no picture")
    (tmp_path / "066.png").write_bytes((tmp_path / "067.png").read_bytes()[:60])
    told: list[tuple[int, int]] = []
    found = model.predict(tmp_path, batch=16, progress=lambda done, of: told.append((done, of)))
    assert [name for name, _ in found.unreadable] == ["005.png", "066.png"]
    assert found.images == tuple(f"{i:03d}.png" for i in range(70))
    assert [i for i, error in enumerate(found.errors) if error] == [5, 66]
    assert np.flatnonzero(found.predicted() < 0).tolist() == [5, 66]
    assert np.isnan(found.scores[[5, 66]]).all()
    assert [i for i, top in enumerate(found.top()) if not top] == [5, 66]
    three = [tmp_path / name for name in ("004.png", "005.png", "006.png")]
    rows = model.predict(three, reasons=2)
    assert rows.images == tuple(map(str, three))
    assert [len(near) for near in rows.nearest] == [2, 0, 2]
    np.testing.assert_allclose(rows.scores[2], found.scores[6], **NEAR)
    write_prediction_list(tmp_path / "list.csv", rows, model.exemplars, ("4.png", "6.png"))
    listed = read_csv(tmp_path / "list.csv")
    assert [row["image"] for row in listed] == list(rows.images)
    assert [bool(row["error"]) for row in listed] == [False, True, False]
    assert [row["gradcam"] for row in listed] == ["4.png", "", "6.png"]
    alone = model.predict(tmp_path / "068.png")
    np.testing.assert_allclose(alone.scores[0], found.scores[found.images.index("068.png")], **NEAR)
    assert told[-1] == (70, 70)


def test_where_nothing_can_be_read_that_is_an_error(model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(EndocilError, match="no image can be read, of 1"):
        model.predict(tmp_path)
    with pytest.raises(EndocilError, match="no images to predict"):
        model.predict([])


def test_a_model_without_calibration_says_so(tiny_content: ModelFile, model: Model) -> None:
    manifest = tiny_content.manifest.model_copy(update={"calibration": None})
    plain = Model.from_file(replace(tiny_content, manifest=manifest))
    found = plain.predict(pictures(2))
    assert found.out_of_distribution is None
    assert not found.calibrated
    np.testing.assert_allclose(found.probabilities, torch.softmax(torch.from_numpy(found.scores), dim=1), **NEAR)
    assert any("not calibrated" in note for note in plain.notes)
    assert model.notes == ()


@pytest.mark.parametrize("option", ["top", "batch", "reasons"])
def test_numbers_that_cannot_be_are_refused(model: Model, option: str) -> None:
    wrong: dict[str, Any] = {option: -1}
    with pytest.raises(EndocilError, match=f"{option} is -1"):
        model.predict(pictures(1), **wrong)


def test_large_pictures_come_in_smaller_batches() -> None:
    assert batch_of(64, 256) == 64
    assert batch_of(64, 512) == 16
    assert batch_of(64, 10_000) == 1
    assert batch_of(10**6, 16) == MOST_PIXELS // 256


def test_its_name_is_the_digest_of_its_file(model: Model, tiny_model: Path) -> None:
    assert tiny_model.read_bytes().endswith(model.digest.encode())
    assert model.classes == tuple(learned.name for learned in model.manifest.classes)
