"""The scripts that measure the source tree and trace a command, on trees and commands made for the purpose."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

TREE = {
    "__init__.py": '"""A package."""\n',
    "errors.py": "class OneError(ValueError):\n    pass\n",
    "training.py": "from endocil.runs import run\nfrom endocil.errors import OneError\n\nx = 1\n",
    "runs/__init__.py": "",
    "runs/run.py": "def walk(a: int, b, *rest: int) -> None:\n    from endocil import training\n",
    "runs/page.py": '"""Passes on."""\n\nfrom ..errors import OneError\n\n__all__ = ["OneError"]\n',
    "serve/__init__.py": '"""Nothing to pass on."""\n',
    "serve/page.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from . import again\n\n\n"
    "def page() -> str: ...\n",
    "serve/again.py": "import endocil.serve.page\n\n\nclass Again:\n    def one(self, a) -> int: ...\n",
}


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import house

    return house


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "src" / "endocil" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_figures_of_a_small_tree_are_those_counted_by_hand(house: ModuleType, checkout: Path) -> None:
    figures = {name: text for name, (text, _) in house.measure(checkout).items()}
    assert figures == {
        "modules at the top level": "3",
        "subpackages": "2",
        "files": "9",
        "lines": str(sum(len(text.splitlines()) for text in TREE.values())),
        "files of more than 400 lines": "0",
        "file names that occur twice or more": "1",
        "files with one importer": "4",  # training, runs.run, serve.again, serve.page
        "modules that only pass on": "1",
        "file names ending in -ing or -ed": "1",
        "import cycles at import time": "0",
        "import cycles, lazy imports included": "2",
        "type hints": "71.4%",  # 5 of 7: not b of walk, not a of one
    }


def test_what_is_counted_can_be_named(house: ModuleType, checkout: Path) -> None:
    measured = house.measure(checkout)
    assert measured["modules that only pass on"][1] == ["runs/page.py"]
    assert measured["file names that occur twice or more"][1] == ["page.py"]
    assert measured["files with one importer"][1] == [
        "endocil.runs.run",
        "endocil.serve.again",
        "endocil.serve.page",
        "endocil.training",
    ]
    assert measured["import cycles, lazy imports included"][1] == [
        "endocil.runs.run -> endocil.training",
        "endocil.serve.again -> endocil.serve.page",
    ]


def test_cycles_are_found_in_long_chains_and_only_there(house: ModuleType) -> None:
    ring = {str(n): frozenset({str((n + 1) % 5000)}) for n in range(5000)}
    assert [len(cycle) for cycle in house.cycles(ring)] == [5000]
    tree = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset("d"), "d": frozenset[str]()}
    assert house.cycles(tree) == []


def test_two_checkouts_stand_beside_each_other_and_another_folder_is_refused(checkout: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "house.py"), str(checkout), str(checkout / "src"), "--list"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"| figure                               | {checkout} | {checkout / 'src'} |" in shown
    assert "\nmodules that only pass on:\n  runs/page.py\n" in shown
    other = subprocess.run([*command[:2], str(BENCHMARKS)], capture_output=True, text=True)
    assert other.returncode == 1
    assert "has no package endocil" in other.stderr


def test_a_trace_lists_functions_in_the_order_of_their_first_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from trace_command import Trace, outside

    folder = tmp_path / "walked"
    (folder / "io").mkdir(parents=True)
    (folder / "io" / "files.py").write_text("def read():\n    return [len(x) for x in ('a',)]\n")
    (folder / "steps.py").write_text(
        "from walked.io.files import read\n\n\ndef at_import():\n    pass\n\n\nat_import()\n\n\n"
        "class Step:\n    def go(self):\n        return read(), read()\n\n\ndef main():\n    Step().go()\n    read()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    trace = Trace(folder)

    def command() -> None:
        importlib.import_module("walked.steps").main()

    trace.run(command)
    assert trace.functions == [("steps.py", "main"), ("steps.py", "Step.go"), ("io/files.py", "read")]
    assert trace.count("read") == 3
    assert outside(trace.files) == ["steps.py"]
    assert sys.getprofile() is None


def test_a_walk_lists_what_subpackages_call_in_each_other_with_what_it_says_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from trace_command import LEAST, Trace, walk

    folder = tmp_path / "strolled"
    for name in ("runs", "model", "io"):
        (folder / name).mkdir(parents=True)
    many = "\n".join(f"def helper_{n}():\n    pass\n" for n in range(LEAST))
    calls = "".join(f"    helper_{n}()\n" for n in range(LEAST))
    (folder / "io" / "files.py").write_text(f"{many}\ndef read():\n{calls}")
    (folder / "model" / "model.py").write_text(
        f'{many}\ndef few():\n    helper_0()\n\ndef learn():\n    """Learn a task.\n\n    More."""\n{calls}'
    )
    (folder / "runs" / "run.py").write_text(
        "from strolled.io.files import read\nfrom strolled.model.model import few, learn\n\n"
        "def run():\n    learn()\n    few()\n    read()\n    _own()\n\ndef _own():\n    learn()\n"
    )
    (folder / "main.py").write_text("from strolled.runs.run import run\n\ndef main():\n    run()\n")
    monkeypatch.syspath_prepend(tmp_path)
    trace = Trace(folder)

    def command() -> None:
        from strolled.main import main  # type: ignore[import-not-found]

        main()

    trace.run(command)
    assert walk(trace).splitlines() == ["- `runs/run.py` `run`", "  - `model/model.py` `learn`: Learn a task."]


def test_a_command_is_traced_and_its_status_kept(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "trace_command.py"), "--files", "--"]
    done = subprocess.run([*command, "score", str(tmp_path / "none")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "endocil: " in done.stderr
    assert done.stdout.splitlines()[0] == "   1  cli/main.py"
    assert "\n0 calls of load_settings\n" in done.stdout
