"""Methods that must agree to the bit when what sets them apart is switched off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from life import Life, differing, new_method, state_of
from torch import Tensor, nn

from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.data.splits import TEST
from endocil.model.predictions import Predictions, predict
from endocil.networks import LastBlocks, WholeBranches, build_backbone, concatenate_features

NETWORK = ("backbone.", "classifier.")


def network_of(life: Life) -> dict[str, Tensor]:
    """Weights and batch-norm statistics of the network that predicts; no teacher, no statistics."""
    return {key: value for key, value in state_of(life.method).items() if key.startswith(NETWORK)}


def predictions_of(life: Life) -> Predictions:
    seen = slice(0, life.method.classifier.out_features)
    test = ImageSet.of(life.images, life.scenario.rows(TEST, seen))
    return predict(life.method, test, 256, classes=life.images.table.classes[seen])


def test_ewc_of_strength_0_and_lwf_of_distil_0_are_finetune_bit_for_bit(images: Images, tmp_path: Path) -> None:
    switched_off: dict[str, dict[str, Any]] = {"finetune": {}, "ewc": {"strength": 0.0}, "lwf": {"distil": 0.0}}
    plain, *others = (
        Life(images, tmp_path / name, new_method(name, epochs=1, **options)) for name, options in switched_off.items()
    )
    for task in plain.scenario.tasks:
        plain.step(task)
        assert len(network_of(plain)) > 100
        for other in others:
            other.step(task)
            assert differing(network_of(plain), network_of(other)) == []
            assert np.array_equal(predictions_of(plain).scores, predictions_of(other).scores)
    for name in ("ewc", "lwf"):  # with their defaults they are not
        lived = Life(images, tmp_path / f"whole {name}", new_method(name, epochs=1)).live()
        assert "classifier.weight" in differing(network_of(plain), network_of(lived))


def test_mrfa_of_step_0_is_icarl_bit_for_bit(images: Images, tmp_path: Path) -> None:
    icarl = Life(images, tmp_path / "icarl", new_method("icarl", epochs=1))
    mrfa = Life(images, tmp_path / "mrfa", new_method("mrfa", epochs=1, step=0.0))
    for task in icarl.scenario.tasks:
        icarl.step(task)
        mrfa.step(task)
        # all of it: network, teacher, class means
        assert differing(state_of(icarl.method), state_of(mrfa.method)) == []
        assert icarl.memory.records() == mrfa.memory.records()
        assert np.array_equal(predictions_of(icarl).scores, predictions_of(mrfa).scores)
    pushed = Life(images, tmp_path / "pushed", new_method("mrfa", epochs=1)).live()
    assert "classifier.weight" in differing(state_of(icarl.method), state_of(pushed.method))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("branches", [WholeBranches(), LastBlocks()])
def test_an_expandable_network_of_one_branch_is_the_plain_backbone_bit_for_bit(
    branches: WholeBranches | LastBlocks, training: bool
) -> None:
    pictures = torch.randn(5, 3, 32, 32).to(memory_format=torch.channels_last)

    def seen(expandable: bool) -> tuple[Tensor, dict[str, Tensor]]:
        backbone, _ = build_backbone("resnet18", seed=0, options={"width": 8})
        backbone.to(memory_format=torch.channels_last).train(training)  # type: ignore[call-overload]
        features = concatenate_features(branches.features(backbone, pictures)) if expandable else backbone(pictures)
        features.square().sum().backward()
        gradients = {f"gradient/{name}": p.grad for name, p in backbone.named_parameters()}
        assert branches.trained(backbone) == (backbone,)
        return features, {**backbone.state_dict(), **gradients}

    (plain, state), (one, other) = seen(False), seen(True)
    assert torch.equal(plain, one)
    assert differing(state, other) == []


def test_bic_with_identity_corrections_is_its_plain_head_bit_for_bit(images: Images, tmp_path: Path) -> None:
    life = Life(images, tmp_path, new_method("bic", epochs=1)).live()
    corrections: nn.ModuleList = life.method.corrections
    assert len(corrections) == 3
    features = life.method.embed(torch.randn(7, 3, 32, 32))
    plain = life.method.classifier(features)
    assert not torch.equal(life.method.classify(features), plain)
    for correction in corrections:
        nn.init.ones_(correction.get_parameter("alpha"))
        nn.init.zeros_(correction.get_parameter("beta"))
    assert torch.equal(life.method.classify(features), plain)


def test_foster_learns_and_keeps_the_same_whichever_of_its_networks_is_evaluated(
    images: Images, tmp_path: Path
) -> None:
    lives = [
        Life(images, tmp_path / evaluated, new_method("foster", epochs=1, evaluate=evaluated))
        for evaluated in ("teacher", "student")
    ]
    for task in lives[0].scenario.tasks:
        for life in lives:
            life.step(task)
        teacher, student = lives
        assert differing(teacher.method.state_dict(), student.method.state_dict()) == []
        assert teacher.memory.records() == student.memory.records()
        alike = np.array_equal(predictions_of(teacher).scores, predictions_of(student).scores)
        assert alike == (task.index == 0)  # before the second task there is one network
    assert teacher.method.statistics["class_means"].shape == (6, 128)
    assert student.method.statistics["class_means"].shape == (6, 64)
