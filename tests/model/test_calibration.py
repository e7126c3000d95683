"""Temperatures and thresholds do what they promise; errors are measured on images they were not fitted on."""

import math
from dataclasses import replace

import pytest
import torch
from packed import restored
from torch.nn import functional

from endocil.model.calibration import (
    _fitted,
    calibrate,
    calibration_error,
    cross_fitted,
    fit_temperature,
    folds_of,
    least_images,
    probabilities,
    threshold_of,
    why_uncalibrated,
    why_unimproved,
)
from endocil.model.file import ModelFile
from endocil.model.manifest import Calibration
from endocil.model.model import Model


def drawn(n: int, fitted: float, seed: int = 0, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are `fitted` times as large as the truth, and labels drawn from the truth."""
    random = torch.Generator().manual_seed(seed)
    true = 2 * torch.randn(n, classes, generator=random, dtype=torch.float64)
    labels = torch.multinomial(functional.softmax(true, dim=1), 1, generator=random)[:, 0]
    return fitted * true, labels


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> float:
    """Negative log-likelihood where one label in n + 1 is a blind guess, written out."""
    told = functional.log_softmax(logits / temperature, dim=1)
    guess = 1 / (len(labels) + 1)
    return float(-((1 - guess) * told.gather(1, labels[:, None])[:, 0] + guess * told.mean(dim=1)).mean())


@pytest.mark.parametrize("fitted", [0.2, 1.0, 7.0])
def test_the_temperature_is_the_best_of_a_fine_grid(fitted: float) -> None:
    logits, labels = drawn(300, fitted)
    grid = torch.logspace(-3, 3, 4001, dtype=torch.float64).tolist()
    best = min(grid, key=lambda temperature: smoothed_loss(logits, labels, temperature))
    found = fit_temperature(logits, labels)
    assert abs(math.log(found / best)) < math.log(grid[1] / grid[0])
    assert smoothed_loss(logits, labels, found) <= smoothed_loss(logits, labels, best) + 1e-12


def test_the_temperature_finds_back_what_made_the_logits_too_large() -> None:
    logits, labels = drawn(20_000, 5.0)
    assert fit_temperature(logits, labels) == pytest.approx(5.0, rel=0.05)


def test_images_that_are_all_right_do_not_make_probabilities_of_one() -> None:
    logits = 3.0 * torch.eye(4).repeat(5, 1)
    labels = torch.arange(4).repeat(5)
    told = probabilities(logits, fit_temperature(logits, labels))
    assert 0.9 < float(told.max()) < 0.999


def test_images_that_tell_nothing_end_in_even_probabilities() -> None:
    logits = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(3, (400,), generator=torch.Generator().manual_seed(2))
    wrong = (logits.argmax(dim=1) + 1) % 3
    assert float(probabilities(logits, fit_temperature(logits, wrong)).max()) < 0.34
    assert fit_temperature(logits, labels) > 1


def test_calibration_error_by_hand() -> None:
    told = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.3, 0.7]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 0])
    # bins of 0.6, 0.7 and 0.9: |1 - 0.6| / 4 + |0 - 0.7| / 4 + |1 - 1.8| / 4
    assert calibration_error(told, labels) == pytest.approx((0.4 + 0.7 + 0.8) / 4)
    assert calibration_error(torch.eye(2, dtype=torch.float64), torch.tensor([0, 1])) == 0


def test_no_image_is_calibrated_by_itself() -> None:
    logits, labels = drawn(60, 3.0)
    folds = folds_of([str(i) for i in range(60)])
    before = cross_fitted(logits, labels, folds)
    mine = folds == folds[0]
    other = labels.clone()
    other[mine] = (labels[mine] + 1) % 4
    assert torch.equal(cross_fitted(logits, other, folds)[mine], before[mine])
    assert not torch.equal(cross_fitted(logits, other, folds)[~mine], before[~mine])


def test_the_cross_fitted_error_is_no_better_than_the_one_fitted_on_itself() -> None:
    fair, flattering = 0.0, 0.0
    for seed in range(40):
        logits, labels = drawn(25, 4.0, seed)
        folds = folds_of([str(i) for i in range(25)])
        fair += calibration_error(cross_fitted(logits, labels, folds), labels)
        flattering += calibration_error(probabilities(logits, fit_temperature(logits, labels)), labels)
    assert fair > flattering


def test_folds_keep_groups_whole_and_are_even() -> None:
    groups = [f"patient {i % 13}" for i in range(100)]
    folds = folds_of(groups)
    assert len({(group, int(fold)) for group, fold in zip(groups, folds, strict=True)}) == 13
    sizes = torch.bincount(folds)
    assert len(sizes) == 5
    assert int(sizes.max() - sizes.min()) <= 8
    assert torch.equal(folds, folds_of(groups))


def test_the_threshold_flags_new_images_at_the_promised_rate_or_less() -> None:
    random = torch.Generator().manual_seed(0)
    flagged = []
    for _ in range(2000):
        scores = torch.randn(41, generator=random)
        threshold = threshold_of(scores[:40], 0.1)
        assert threshold is not None
        flagged.append(float(scores[40] > threshold))
    assert 0.07 < sum(flagged) / 2000 < 0.12  # 4 / 41 = 0.0976 by counting ranks


@pytest.mark.parametrize(("rate", "least"), [(0.05, 19), (0.1, 9), (0.01, 99), (0.3, 3), (0.5, 1), (0.9, 1)])
def test_fewer_images_than_a_rate_needs_set_no_threshold(rate: float, least: int) -> None:
    assert least_images(rate) == least
    assert threshold_of(torch.arange(float(least)), rate) is not None
    assert threshold_of(torch.arange(float(least - 1)), rate) is None


def test_too_few_images_for_the_rate_turn_the_flag_off_and_say_so(tiny_content: ModelFile) -> None:
    n = len(tiny_content.held_out)
    method, spread = restored(tiny_content), tiny_content.spread
    found = calibrate(method, tiny_content.held_out, tiny_content.classes, spread, rate=0.5 / n)
    assert found is not None
    assert found.ood_threshold is None
    manifest = tiny_content.manifest.model_copy(update={"calibration": found})
    model = Model.from_file(replace(tiny_content, manifest=manifest))
    said = model.predict(list(tiny_content.held_out.pixels.numpy()))
    assert said.out_of_distribution is None
    assert said.calibrated
    rate, least = f"{50 / n:g} %", 2 * n - 1
    expected = f"{n} held-out images are too few for a threshold that flags {rate}; at least {least} are needed"
    assert any(note.startswith(expected) for note in model.notes)


def test_a_class_without_held_out_images_leaves_a_model_uncalibrated(tiny_content: ModelFile) -> None:
    origins, name = tiny_content.held_out.provenance, tiny_content.classes[1]
    rest = tiny_content.held_out.take([i for i, origin in enumerate(origins) if origin.class_name != name])
    assert len(rest) > 10
    assert calibrate(restored(tiny_content), rest, tiny_content.classes, {}) is None
    assert why_uncalibrated(rest, tiny_content.classes) == f"no held-out images of {name}"


def test_a_models_calibration_is_that_of_its_held_out_images(tiny_content: ModelFile) -> None:
    found = calibrate(restored(tiny_content), tiny_content.held_out, tiny_content.classes, tiny_content.spread)
    told = tiny_content.manifest.calibration
    assert found is not None
    assert told is not None
    assert found.images == told.images == len(tiny_content.held_out)
    assert found.temperature == pytest.approx(told.temperature, rel=1e-2)
    assert found.error == pytest.approx(told.error, abs=1e-2)
    assert told.error < told.error_before
    assert found.ood_threshold == pytest.approx(told.ood_threshold, rel=1e-3)


def test_one_patient_alone_cannot_calibrate(tiny_content: ModelFile) -> None:
    one = tiny_content.held_out.take([0])
    assert calibrate(restored(tiny_content), one, tiny_content.classes, {}) is None


def test_where_fitted_temperatures_are_worse_on_other_images_the_temperature_stays_one() -> None:
    worse = 0
    for seed in range(12):  # few images of logits that are right as they are
        logits, labels = drawn(24, 1.0, seed)
        temperature, before, after = _fitted(logits, labels, folds_of([str(i) for i in range(24)]))
        assert temperature == (1.0 if after > before else fit_temperature(logits, labels))
        worse += after > before
    assert worse
    logits, labels = drawn(2000, 6.0)
    assert _fitted(logits, labels, folds_of([str(i) for i in range(2000)]))[0] == pytest.approx(6.0, rel=0.2)


def test_a_model_says_that_its_temperature_stayed_one(tiny_content: ModelFile) -> None:
    fitted = Calibration(
        images=50, temperature=1.0, error_before=0.084, error=0.116, folds=5, ood_threshold=1.0, ood_rate=0.05
    )
    manifest = tiny_content.manifest.model_copy(update={"calibration": fitted})
    model = Model.from_file(replace(tiny_content, manifest=manifest))
    assert why_unimproved(fitted) in model.notes
    assert "0.084 before, 0.116 after): it stays 1" in why_unimproved(fitted)
    assert not model.predict(list(model.exemplars.pixels.numpy()[:1])).calibrated
