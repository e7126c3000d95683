"""Sweep files: those that are shipped load, and what is wrong in one is named with the way out."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from commands import endocil
from small import write_sweep

from endocil import EndocilError
from endocil.runs.sweep.plan import read_sweep

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SWEEPS = [path for path in EXPERIMENTS.glob("*.toml") if "settings" in tomllib.loads(path.read_text("utf-8"))]
FORM = "give a list, or { low = .., high = .. }"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_every_shipped_sweep_file_loads(path: Path) -> None:
    sweep = read_sweep(path)
    assert sweep.blocks
    assert all(block.vary for block in sweep.blocks) or sweep.search


@pytest.mark.parametrize(
    ("searched", "words"),
    [
        ({"low": 0.1}, f".high: field required, got {{'low': 0.1}}; {FORM}"),
        ({"low": 1, "high": 0}, f": low must lie below high, and above 0 where log is true, got .*; {FORM}"),
        ({"low": 1, "high": 2, "x": 1}, ".x'; known: high, log, low"),
        ({"low": 1, "high": math.inf}, f".high: must be a finite number, got inf; {FORM}"),
        ({"low": math.nan, "high": 1}, f".low: must be a finite number, got nan; {FORM}"),
        ({"low": False, "high": 1}, f".low: must be a finite number, got False; {FORM}"),
        (0.1, f": input should be a valid list, got 0.1; {FORM}"),
        ([], " is an empty list; give at least one value"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_wrong_search_is_named_in_the_words_of_the_file(
    tmp_path: Path, searched: object, words: str, nested: bool
) -> None:
    search = {"train": {"learning_rate": searched}} if nested else {"train.learning_rate": searched}
    with pytest.raises(EndocilError) as found:
        read_sweep(write_sweep(tmp_path, search=search))
    start, _, end = words.partition(".*")
    said = str(found.value)
    assert f"search.train.learning_rate{start}" in said
    assert said.endswith(end or start)
    assert "[" not in said
    assert said.count("search.train.learning_rate") == 1, "one mistake, told once"


def test_an_unknown_key_is_named_whatever_its_letters(tmp_path: Path) -> None:
    content: dict[str, Any] = {"[vary": 1}
    with pytest.raises(EndocilError, match=r"unknown key '\[vary'; known: also, metric"):
        read_sweep(write_sweep(tmp_path, **content))


@pytest.mark.parametrize("key", [{"samples": 3}, {"metric": "softmax.af"}, {"sampling_seed": 0}])
def test_what_tuning_alone_takes_is_refused_in_a_sweep(tmp_path: Path, key: dict[str, Any]) -> None:
    name = next(iter(key))
    status, _, errors = endocil("sweep", write_sweep(tmp_path, **key), "-o", tmp_path / "out", "--dry-run")
    assert status == 1
    assert f"{name} is for 'endocil tune', and there is no [search] table" in errors
    assert f"or leave {name} out" in errors
