"""A stopped run of somebody else: whatever its checkpoint holds under a right checksum, a resume says one line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pictures import TINY
from torch import Tensor

import endocil
from endocil import EndocilError
from endocil.learning.checkpoint import FILE, read_tensors, write_tensors


class StoppedError(Exception):
    pass


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "task" and record["task"] == 1:
            raise StoppedError

    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(StoppedError):
        endocil.run(TINY, folder, show=stop)
    return folder


def without_task(header: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in header.items() if name != "task"}


@pytest.mark.parametrize(
    "change",
    [
        without_task,
        lambda header: {**header, "task": "a"},
        lambda header: {**header, "task": -1},
        lambda header: {**header, "events": "many"},
        lambda header: {**header, "events": -3},
        lambda header: {**header, "exemplars": 5},
        lambda header: {**header, "exemplars": "../exemplars-1.safetensors"},
        lambda header: {**header, "exemplars": None},
        lambda header: {**header, "optimizer": [1]},
        lambda header: {**header, "settings": [1]},
        lambda header: {**header, "settings": {"train": {"epochs": 2, "milestones": 0.5}}},
        lambda header: {**header, "settings": {"train": {"epochs": 2, "warmup": "x"}}},
        lambda header: {**header, "results": {"predictions/task-0.csv": 3}},
    ],
)
def test_a_checkpoint_of_wrong_types_is_one_line(
    change: Callable[[dict[str, Any]], dict[str, Any]], stopped: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    header, tensors = read_tensors(folder / FILE, "")
    write_tensors(folder / FILE, change(header), tensors)
    with pytest.raises(EndocilError, match="checkpoint"):
        endocil.resume(folder)


@pytest.mark.parametrize(
    ("provenance", "pixels"),
    [
        (lambda rows: 5, lambda pixels: pixels),
        (lambda rows: rows[:2], lambda pixels: pixels),
        (lambda rows: [{"image": "a"}], lambda pixels: pixels[:1]),
        (lambda rows: [{**row, "order": "first"} for row in rows], lambda pixels: pixels),
        (lambda rows: [{**row, "class_name": "unknown"} for row in rows], lambda pixels: pixels),
        (lambda rows: rows, lambda pixels: pixels.float()),
        (lambda rows: rows, lambda pixels: pixels[..., :2].contiguous()),
        (lambda rows: rows, lambda pixels: pixels[:, :4, :4].contiguous()),
    ],
)
def test_exemplars_of_wrong_types_are_one_line(
    provenance: Callable[[Any], Any], pixels: Callable[[Tensor], Tensor], stopped: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    (path,) = folder.glob("exemplars-*.safetensors")
    header, tensors = read_tensors(path, "")
    tensors["pixels"] = pixels(tensors["pixels"])
    write_tensors(path, {"provenance": provenance(header["provenance"])}, tensors)
    with pytest.raises(EndocilError, match="start the run again in a new folder"):
        endocil.resume(folder)


def without_rows(tensor: Tensor) -> Tensor:
    return tensor[: len(tensor) // 2].clone()


@pytest.mark.parametrize(
    ("method", "statistic", "change"),
    [
        ("ewc", "fisher/backbone.layer1.0.conv1.weight", None),
        ("ewc", "fisher/backbone.layer1.0.conv1.weight", without_rows),
        ("ewc", "anchor/classifier.weight", lambda tensor: tensor.flatten()),
        ("ewc", "anchor/classifier.weight", lambda tensor: tensor[0, 0].clone()),
        ("analytic", "counts", lambda tensor: tensor.float()),
        ("analytic", "sums", lambda tensor: tensor.flatten()),
        ("analytic", "products", lambda tensor: -100.0 * tensor),
    ],
)
def test_statistics_of_a_wrong_size_are_one_line(
    method: str, statistic: str, change: Callable[[Tensor], Tensor] | None, tmp_path: Path
) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "task" and record["task"] == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        endocil.run({**TINY, "method": {"name": method}}, tmp_path / "run", show=stop)
    header, tensors = read_tensors(tmp_path / "run" / FILE, "")
    tensor = tensors.pop(f"statistics/{statistic}")
    write_tensors(
        tmp_path / "run" / FILE,
        header,
        tensors | ({} if change is None else {f"statistics/{statistic}": change(tensor)}),
    )
    with pytest.raises(EndocilError, match=r"the file was changed|have no solution"):
        endocil.resume(tmp_path / "run")
