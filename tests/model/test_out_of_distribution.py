"""The score of images unlike anything learned: scikit-learn's distance, and what it sees that a plain one does not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from packed import restored
from pictures import make_images
from present import present
from sklearn.covariance import ShrunkCovariance
from sklearn.decomposition import PCA

from endocil.components.ridge import add_products, packed_length, unpacked
from endocil.errors import EndocilError
from endocil.learning.features import Outputs, outputs_of
from endocil.model.calibration import calibrate
from endocil.model.card import card_of
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.model import Model
from endocil.model.out_of_distribution import (
    CENTRE,
    MEANS,
    MOST_FEATURES,
    PRINCIPAL,
    SCALE,
    SHRINKAGE,
    WHITENING,
    ood_scores,
    spread_of,
    spread_of_features,
    vim_space,
)


def features(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 12, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-3, 1, 12)


def seen(rows: torch.Tensor) -> Outputs:
    return Outputs(rows, rows[:, :3])


def test_it_is_the_distance_of_scikit_learn_over_the_root_of_the_dimensions() -> None:
    rows, labels = features(90), torch.arange(90) % 3
    rows += labels[:, None]
    others = features(20, seed=1)
    means = torch.stack([rows[labels == label].mean(dim=0) for label in range(3)])
    referee = ShrunkCovariance(shrinkage=SHRINKAGE, assume_centered=True).fit((rows - means[labels]).double().numpy())
    squares = [referee.mahalanobis((others - mean).double().numpy()) for mean in means]
    expected = torch.from_numpy(np.stack(squares)).amin(dim=0).sqrt() / 12**0.5
    found = ood_scores(seen(others), spread_of_features(rows, labels))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_an_exemplar_lies_about_one_from_its_mean() -> None:
    rows = 40.0 * torch.randn(3000, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(3000) % 3
    rows += 1000.0 * labels[:, None]
    scores = ood_scores(seen(rows), spread_of_features(rows, labels))
    assert float(scores.square().mean()) == pytest.approx(1.0, abs=0.01)


def test_a_direction_in_which_nothing_learned_varies_counts() -> None:
    """A plain distance would call the first farther; along the last one features spread 10,000 times as wide."""
    rows, labels = features(300), torch.arange(300) % 3
    spread = spread_of_features(rows, labels)
    odd, usual = torch.zeros(1, 12), torch.zeros(1, 12)
    odd[0, 0], usual[0, -1] = 5.0, 10.0
    assert float(ood_scores(seen(odd), spread)) > 2 * float(ood_scores(seen(usual), spread))


def test_without_a_spread_the_distance_to_the_means_or_the_logits_tell() -> None:
    rows = features(4)
    distances = torch.tensor([[4.0, 9.0], [1.0, 0.0], [16.0, 25.0], [2.25, 4.0]])
    assert ood_scores(Outputs(rows, rows, distances), {}).tolist() == [2.0, 0.0, 4.0, 1.5]
    assert torch.equal(ood_scores(seen(rows), {}), -rows[:, :3].max(dim=1).values)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 1, 1]], ids=["one a class", "all the same"])
def test_exemplars_that_do_not_differ_have_no_spread(labels: list[int]) -> None:
    rows = features(4) if len(set(labels)) == 4 else features(2).repeat_interleave(2, dim=0)
    assert spread_of_features(rows, torch.tensor(labels)) == {}


def test_a_class_without_exemplars_leaves_no_spread(tiny_content: ModelFile) -> None:
    method, name = restored(tiny_content), tiny_content.classes[0]
    kept = [row for row, origin in enumerate(tiny_content.exemplars.provenance) if origin.class_name != name]
    assert spread_of(method, tiny_content.exemplars.take(kept), tiny_content.classes) == {}


def test_a_model_flags_its_images_at_the_rate_it_says_and_others_by_the_same_threshold(tiny_content: ModelFile) -> None:
    fitted = tiny_content.manifest.calibration
    assert fitted is not None
    assert fitted.ood_threshold is not None
    own = outputs_of(restored(tiny_content), tiny_content.held_out.pixels)
    beyond = ood_scores(own, tiny_content.spread) > fitted.ood_threshold
    assert float(beyond.float().mean()) <= fitted.ood_rate
    others = 255 - tiny_content.held_out.pixels
    said = Model.from_file(tiny_content).predict(list(others.numpy()))
    assert said.out_of_distribution is not None
    assert said.ood_score is not None
    assert said.out_of_distribution.tolist() == (said.ood_score > fitted.ood_threshold).tolist()


def test_the_spread_comes_back_from_the_file_and_serves_without_exemplars(
    tiny_content: ModelFile, tmp_path: Path
) -> None:
    write_model_file(tmp_path / "a.endocil", tiny_content)
    found = read_model_file(tmp_path / "a.endocil")
    assert {name: value.tolist() for name, value in found.spread.items()} == {
        name: value.tolist() for name, value in tiny_content.spread.items()
    }


def test_a_model_without_a_spread_has_the_plain_distance(tiny_content: ModelFile, tmp_path: Path) -> None:
    method = restored(tiny_content)
    fitted = calibrate(method, tiny_content.held_out, tiny_content.classes, {})
    manifest = tiny_content.manifest.model_copy(update={"calibration": fitted})
    write_model_file(tmp_path / "old.endocil", replace(tiny_content, manifest=manifest, spread={}))
    model = Model.load(tmp_path / "old.endocil")
    said = model.predict(list(tiny_content.held_out.pixels[:5].numpy()))
    own = outputs_of(method, tiny_content.held_out.pixels[:5])
    np.testing.assert_allclose(present(said.ood_score), ood_scores(own, {}), rtol=1e-4, atol=1e-4)


def test_very_many_features_have_no_spread() -> None:
    assert spread_of_features(torch.rand(4, MOST_FEATURES + 1), torch.tensor([0, 0, 1, 1])) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda spread: {MEANS: spread[MEANS]},
        lambda spread: {**spread, "more": spread[MEANS]},
        lambda spread: {**spread, WHITENING: spread[WHITENING][:-1]},
        lambda spread: {**spread, MEANS: spread[MEANS][:-1]},
        lambda spread: {**spread, MEANS: spread[MEANS].double()},
        lambda spread: {**spread, MEANS: torch.tensor(1.0)},
        lambda spread: {**spread, MEANS: spread[MEANS] * torch.inf},
        lambda spread: {MEANS: spread[MEANS][:, :-1], WHITENING: spread[WHITENING][:-1, :-1]},
    ],
    ids=["half", "more", "not square", "a class less", "double", "no matrix", "infinite", "other features"],
)
def test_a_spread_that_does_not_fit_is_refused(
    change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], tiny_content: ModelFile, tmp_path: Path
) -> None:
    wrong = replace(tiny_content, spread=change(dict(tiny_content.spread)))
    with pytest.raises(EndocilError, match=r"spread|covariance|not finite"):
        restored(written(wrong, tmp_path / "x.endocil"))


def written(content: ModelFile, path: Path) -> ModelFile:
    write_model_file(path, content)
    return read_model_file(path)


# --- ViM, for frozen backbones


def vim_of(rows: torch.Tensor, held: torch.Tensor, temperature: float = 0.5) -> dict[str, torch.Tensor]:
    products = rows.double().T @ rows.double()
    return vim_space(float(len(rows)), rows.double().sum(dim=0), products, seen(held), temperature)


def test_it_is_the_residual_outside_the_principal_space_minus_the_energy() -> None:
    rows, held, others = features(300), features(40, seed=1), features(20, seed=2)
    space = vim_of(rows, held)
    principal = PCA(n_components=6).fit(rows.double().numpy())

    def residual(own: torch.Tensor) -> np.ndarray:
        apart = own.double().numpy()
        return np.asarray(np.linalg.norm(apart - principal.inverse_transform(principal.transform(apart)), axis=1))

    scale = (held[:, :3].double() / 0.5).amax(dim=1).mean().item() / residual(held).mean()
    energy = torch.logsumexp(others[:, :3].double() / 0.5, dim=1).numpy()
    np.testing.assert_allclose(ood_scores(seen(others), space), scale * residual(others) - energy, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["simplecil", "analytic", "ranpac"])
def test_a_frozen_model_has_it_from_its_sums_alone_and_forgets_with_them(method: str, tmp_path: Path) -> None:
    options = {"projected": 32} if method == "ranpac" else {}
    values = {"data": {"size": 32}, "network": {"width": 8}, "method": {"name": method, **options}}
    model = Model.create(values)
    images = make_images([30, 30], size=32)
    labels = [images.table.classes[label] for label in images.table.labels.tolist()]
    model.learn(list(images.pixels.numpy()), labels, validation=0.4)
    assert set(model.spread) == {CENTRE, PRINCIPAL, SCALE}
    assert present(model.manifest.calibration).ood_threshold is not None
    model.save(tmp_path / "m.endocil")
    loaded = Model.load(tmp_path / "m.endocil")
    assert present(loaded.predict(list(images.pixels[:4].numpy())).ood_score).tolist() == pytest.approx(
        present(model.predict(list(images.pixels[:4].numpy())).ood_score).tolist(), abs=1e-4
    )
    assert "score: ViM" in card_of(read_model_file(tmp_path / "m.endocil")).text()
    wrong = {**model.spread, SCALE: torch.tensor([-1.0, 1.0])}
    with pytest.raises(EndocilError, match="scale is negative"):
        written(replace(model.file(), spread=wrong), tmp_path / "x.endocil")


def test_the_sums_of_all_features_are_those_of_the_images(tmp_path: Path) -> None:
    rows = torch.randn(20, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    packed = torch.zeros(packed_length(300), dtype=torch.float64)
    add_products(packed, rows)
    torch.testing.assert_close(unpacked(packed, 300), rows.T @ rows)
