"""Predictions of a bundle are the run's own; what cannot be read is listed; reasons and flags are what they say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from endocil.errors import EndocilError
from endocil.learning.features import MOST_PIXELS, batch_of, look
from endocil.model.file import ModelFile
from endocil.model.model import Model
from endocil.model.out_of_distribution import ood_scores
from endocil.model.predictions import read_predictions
from endocil.runs.build import images_and_scenario
from endocil.runs.folder import RunFolder

NEAR = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Model:
    return Model.load(tiny_bundle)


def pictures(n: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8) for i in range(n)]


def test_a_bundle_says_of_the_test_images_what_the_run_said(bundle: Model, tiny_run: Path) -> None:
    images, _ = images_and_scenario(RunFolder(tiny_run).settings())
    said = read_predictions(tiny_run / "predictions" / "task-2.csv")
    row_of = {name: row for row, name in enumerate(images.table.ids)}
    tested = images.table.take([row_of[name] for name in said.images])
    found = bundle.predict(tested, batch=5)
    assert found.images == said.images
    assert found.classes == said.classes
    torch.testing.assert_close(found.logits, torch.from_numpy(said.scores), **NEAR)
    heat = bundle.manifest.calibration
    assert heat is not None
    assert said.distances is not None
    assert heat.mean_temperature is not None
    expected = torch.softmax(-torch.from_numpy(said.distances).double() / heat.mean_temperature, dim=1)
    torch.testing.assert_close(found.mean_probabilities, expected.float(), **NEAR)
    seen = look(bundle.method, images.gather(torch.tensor([row_of[name] for name in said.images])))
    torch.testing.assert_close(found.ood_score, ood_scores(seen, bundle.spread), **NEAR)


def test_the_batch_changes_nothing_and_order_stays(bundle: Model) -> None:
    shown = pictures(75)
    found = [bundle.predict(shown, batch=batch) for batch in (1, 32, 50, 64, 200)]
    assert found[0].images == tuple(str(i) for i in range(75))
    for other in found[1:]:
        assert other.images == found[0].images
        torch.testing.assert_close(other.logits, found[0].logits, **NEAR)


def test_probabilities_are_the_logits_by_the_temperature(bundle: Model) -> None:
    found = bundle.predict(pictures(4))
    heat = bundle.manifest.calibration
    assert heat is not None
    assert found.calibrated
    torch.testing.assert_close(
        found.probabilities, torch.softmax(found.logits / heat.temperature, dim=1), **NEAR
    )
    assert torch.equal(found.predicted, found.logits.argmax(dim=1))
    for row, best in enumerate(found.top(2)):
        assert best[0][0] == found.classes[int(found.predicted[row])]
        assert best[0][1] >= best[1][1]
    assert len(found.top()[0]) == 3


def test_unlike_is_what_lies_beyond_the_threshold(bundle: Model) -> None:
    found = bundle.predict(pictures(40))
    heat = bundle.manifest.calibration
    assert heat is not None
    assert found.out_of_distribution is not None
    assert found.out_of_distribution.tolist() == [
        score > heat.ood_threshold for score in found.ood_score.tolist()
    ]
    known = bundle.predict(list(bundle.held_out.pixels.numpy()))
    assert known.out_of_distribution is not None
    assert int(known.out_of_distribution.sum()) <= 0.05 * len(known) + 1


def test_an_exemplar_is_its_own_nearest_reason(bundle: Model) -> None:
    kept = bundle.exemplars
    found = bundle.predict(list(kept.pixels.numpy()), reasons=2)
    assert len(found.nearest) == len(kept)
    for row, (near, how_near) in enumerate(zip(found.nearest, found.nearest_distances, strict=True)):
        assert row in near
        assert how_near[0] < 1e-2
        assert how_near[0] <= how_near[1]
    assert bundle.predict(pictures(1)).nearest == ()
    assert len(bundle.predict(pictures(1), reasons=10**6).nearest[0]) == len(kept)


def test_unreadable_images_are_listed_and_the_others_predicted(bundle: Model, tmp_path: Path) -> None:
    for i, picture in enumerate(pictures(70)):
        Image.fromarray(picture).save(tmp_path / f"{i:03d}.png")
    (tmp_path / "005.png").write_bytes(b"no picture")
    (tmp_path / "066.png").write_bytes((tmp_path / "067.png").read_bytes()[:60])
    told: list[tuple[int, int]] = []
    found = bundle.predict(tmp_path, batch=16, progress=lambda done, of: told.append((done, of)))
    assert [name for name, _ in found.unreadable] == ["005.png", "066.png"]
    assert found.images == tuple(f"{i:03d}.png" for i in range(70) if i not in (5, 66))
    alone = bundle.predict(tmp_path / "068.png")
    torch.testing.assert_close(alone.logits[0], found.logits[found.images.index("068.png")], **NEAR)
    assert told[-1] == (70, 70)


def test_where_nothing_can_be_read_that_is_an_error(bundle: Model, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(EndocilError, match="none of the 1 images can be read"):
        bundle.predict(tmp_path)
    with pytest.raises(EndocilError, match="no images to predict"):
        bundle.predict([])


def test_a_bundle_without_calibration_says_so(tiny_content: ModelFile, bundle: Model) -> None:
    manifest = tiny_content.manifest.model_copy(update={"calibration": None})
    plain = Model.from_file(replace(tiny_content, manifest=manifest))
    found = plain.predict(pictures(2))
    assert found.out_of_distribution is None
    assert not found.calibrated
    torch.testing.assert_close(found.probabilities, torch.softmax(found.logits, dim=1), **NEAR)
    assert any("not calibrated" in note for note in plain.notes)
    assert bundle.notes == ()


@pytest.mark.parametrize("option", ["top", "batch", "reasons"])
def test_numbers_that_cannot_be_are_refused(bundle: Model, option: str) -> None:
    with pytest.raises(EndocilError, match=f"{option} is -1"):
        bundle.predict(pictures(1), **{option: -1})


def test_large_pictures_come_in_smaller_batches() -> None:
    assert batch_of(64, 256) == 64
    assert batch_of(64, 512) == 16
    assert batch_of(64, 10_000) == 1
    assert batch_of(10**6, 16) == MOST_PIXELS // 256


def test_its_name_is_the_digest_of_its_file(bundle: Model, tiny_bundle: Path) -> None:
    assert tiny_bundle.read_bytes().endswith(bundle.digest.encode())
    assert bundle.classes == tuple(learned.name for learned in bundle.manifest.classes)
