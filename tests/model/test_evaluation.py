"""Both heads from one pass, against plain loops."""

from pathlib import Path

import numpy as np
import pytest
import torch
from life import Lives
from present import present

from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.learning.features import class_means, mean_distances, outputs_of
from endocil.model.predictions import predict


def test_class_means_are_normalised_means_of_normalised_features() -> None:
    features, labels = torch.randn(7, 5), torch.tensor([0, 1, 0, 1, 1, 0, 2])
    found = class_means(features, labels, 3)
    for label in range(3):
        rows = [row / np.linalg.norm(row) for row in features[labels == label].numpy()]
        mean = np.mean(rows, axis=0)
        assert found[label].numpy() == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)


def test_distances_are_squared_and_of_unit_features() -> None:
    features = torch.randn(4, 5)
    means = torch.nn.functional.normalize(torch.randn(3, 5))
    found = mean_distances(features, means)
    for i in range(4):
        x = features[i] / features[i].norm()
        for j in range(3):
            assert float(found[i, j]) == pytest.approx(float(((x - means[j]) ** 2).sum()), abs=1e-5)


def test_the_size_of_the_batches_does_not_matter(images: Images, lives: Lives, tmp_path: Path) -> None:
    life = lives.after("icarl", 1, tmp_path)
    test = ImageSet.of(images, life.scenario.rows("test", slice(0, 2)))
    one, many = outputs_of(life.method, test, 1), outputs_of(life.method, test, 100)
    assert torch.allclose(one.features, many.features, rtol=1e-4, atol=1e-3)  # features of hundreds
    assert torch.allclose(one.logits, many.logits, atol=1e-3)


def test_predictions_carry_both_heads_names_and_sources(images: Images, lives: Lives, tmp_path: Path) -> None:
    life = lives.after("icarl", 2, tmp_path)
    classes = images.table.classes[:3]
    test = ImageSet.of(images, life.scenario.rows("test", slice(0, 3)))
    found = predict(life.method, test, 4, classes=classes)
    assert found.scores.shape == present(found.distances).shape == (len(test), 3)
    assert found.images == tuple(images.table.ids[row] for row in test.rows.tolist())
    assert found.classes == classes
    assert set(found.sources) == {"gastroscope", "capsule"}


def test_a_method_without_memory_has_one_head(images: Images, lives: Lives, tmp_path: Path) -> None:
    life = lives.after("finetune", 1, tmp_path)
    test = ImageSet.of(images, life.scenario.rows("test", slice(0, 2)))
    assert predict(life.method, test, 4, classes=images.table.classes[:2]).distances is None


def test_no_images_give_empty_outputs(images: Images, lives: Lives, tmp_path: Path) -> None:
    life = lives.after("icarl", 1, tmp_path)
    found = outputs_of(life.method, ImageSet.of(images, torch.empty(0, dtype=torch.int64)), 4)
    assert found.features.shape == (0, 64)
    assert found.logits.shape == (0, 2)
