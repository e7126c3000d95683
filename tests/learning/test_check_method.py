"""`endocil check-method` says in words what is wrong with a method; what it says nothing of runs and resumes."""

import re
from pathlib import Path

import pytest
import torch
from life import new_method
from typer.testing import CliRunner

from endocil.cli.main import _application
from endocil.data.scenario import Task
from endocil.errors import EndocilError
from endocil.learning.checkpoint import grow
from endocil.learning.contract import contract_problems
from endocil.registry import trust

OWN = ("dark:Dark", "ema:Ema", "sam:Sam", "supcon:SupCon", "cosine:Cosine")


def problems_of(name: str) -> list[str]:
    trust([name])
    return contract_problems(name, log=lambda line: None)


@pytest.mark.parametrize("name", OWN)
def test_a_method_from_outside_of_at_most_90_lines_runs_and_resumes_to_the_same_bits(name: str) -> None:
    assert problems_of(f"own.{name}") == []
    file = Path(__file__).parents[1] / "own" / f"{name.partition(':')[0]}.py"
    assert len(file.read_text().splitlines()) <= 90


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "MovesFrozen",
            r"phase 'train' changes norm\.\w+, which is neither in Phase\.train nor in Phase\.also_changes",
        ),
        ("UndeclaredMove", r"phase 'train' changes extra\.weight, which is neither in Phase\.train nor"),
        ("DrawsInConstructor", r"the constructor draws random numbers without a name"),
        ("FailsInConstructor", r"the constructor fails: AttributeError: ResNet18 has no attribute .absent."),
        ("Unnamed", r"the objective of phase 'train' draws random numbers without a name.*batch\.uniform"),
        ("Forgets", r"no phase of the first task trains classifier\.\w+, which predicts; put its module into"),
        ("TrainsUnused", r"phase 'train' trains unused\.bias, but its losses do not depend on it"),
        ("ChangesInPhases", r"phases\(\) changes `asked`, and a resumed run calls it again; change state in grow"),
        ("ShrinksInPhases", r"phases\(\) changes `classifier\.weight`, and a resumed run calls it again"),
        ("WrongShape", r"classify gives scores of shape \(3, 1\) for 3 images in task 0; expected \(3, 2\)"),
        ("Narrow", r"classify gives scores of shape \(3, 2\) for 3 images in task 1; expected \(3, 3\)"),
        ("FailsInObjective", r"task 0: the objective of phase 'train' fails: KeyError: 'absent'"),
        ("MeanLoss", r"the loss 'classification' has shape \(8, 1\); expected \(8,\), one for each image"),
        ("Unsaved", r"a run that is stopped and resumed ends with other values of .* state that is no parameter"),
    ],
)
def test_a_wrong_method_is_told_in_one_line(name: str, words: str) -> None:
    (line,) = problems_of(f"own.wrong:{name}")
    assert "\n" not in line
    assert re.search(words, line), line


def test_layers_of_torch_start_from_the_same_values_with_the_same_seed() -> None:
    first, again, other = (new_method("own.wrong:GrowsLayers", seed=seed) for seed in (0, 0, 1))
    torch.rand(7)  # what was drawn before plays no part
    for method in (first, again, other):
        grow(method, Task(0, 0, 2), torch.device("cpu"))
    for name in ("projector.weight", "later.weight"):
        assert torch.equal(first.get_parameter(name), again.get_parameter(name))
        assert not torch.equal(first.get_parameter(name), other.get_parameter(name))
    assert problems_of("own.wrong:GrowsLayers") == []


def test_the_template_of_new_method_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, app = CliRunner().invoke, _application()
    written = run(app, ["new-method", "my_own_replay"])
    assert written.exit_code == 0, written.output
    assert "endocil check-method my_own_replay:MyOwnReplay" in written.output
    tried = run(app, ["check-method", "my_own_replay:MyOwnReplay", "--set", "method.distil=0.5"])
    assert tried.exit_code == 0, tried.exception
    assert tried.output.splitlines()[-1] == "my_own_replay:MyOwnReplay keeps the contract of a method"
    with pytest.raises(EndocilError, match="exists already"):
        run(app, ["new-method", "my_own_replay"], catch_exceptions=False)
    with pytest.raises(EndocilError, match="expected small letters"):
        run(app, ["new-method", "My-Own"], catch_exceptions=False)


def test_the_command_ends_with_the_problem() -> None:
    with pytest.raises(EndocilError, match=r"^own\.wrong:WrongShape: classify gives scores of shape"):
        CliRunner().invoke(_application(), ["check-method", "own.wrong:WrongShape"], catch_exceptions=False)
    typed = ["check-method", "icarl", "--set", "method.speed=1"]
    with pytest.raises(EndocilError, match="unknown method key 'speed'"):
        CliRunner().invoke(_application(), typed, catch_exceptions=False)
