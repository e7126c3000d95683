"""The benchmarks of models run: what they measure is not tested, only that they measure it."""

from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_prediction_and_the_bare_loop_say_the_same_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import predict

    found = predict.rows(images=9, rounds=2, width=8, size=32)
    assert [what for what, _ in found] == ["network", "files"]
    assert all(len(ratios) == 2 and min(ratios) > 0 for _, ratios in found)


def test_auroc_is_the_share_of_pairs_in_the_right_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import out_of_distribution

    assert out_of_distribution.auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == 3.5 / 4
    assert out_of_distribution.auroc(torch.tensor([1.0]), torch.tensor([0.0])) == 0.0
