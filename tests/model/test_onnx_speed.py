"""The benchmark of onnxruntime against torch measures what it says."""

from pathlib import Path
from types import ModuleType

import pytest
from untrained import write_untrained

pytest.importorskip("onnxruntime")


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import onnx_speed

    return onnx_speed


def test_ratios_are_of_images_per_second_without_the_first_round(speed: ModuleType) -> None:
    now = [0.0]

    def takes(*durations: float) -> object:
        left = list(durations)

        def turn() -> None:
            now[0] += left.pop(0)

        return turn

    found = speed.ratios(takes(100, 2, 4), takes(50, 1, 1), 2, clock=lambda: now[0])
    assert found == [0.5, 0.25]


def test_a_model_is_measured(speed: ModuleType, tmp_path: Path) -> None:
    models = {"finetune": write_untrained(tmp_path / "model.endocil", "finetune")}
    (row,) = speed.rows(models, [2], 2, tmp_path)
    _, name, batch, ratio, _, difference, _ = (cell.strip() for cell in row.split("|"))
    assert (name, batch) == ("finetune", "2")
    assert float(ratio) > 0
    assert float(difference) <= 1e-4
