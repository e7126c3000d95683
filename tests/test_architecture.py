"""The architecture as intended: every file in a subpackage, components import torch alone, names are as announced."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import endocil
from endocil.methods import METHODS

SOURCE = Path(endocil.__file__).parent

FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def subpackage(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_file_stands_in_a_subpackage_of_the_contract() -> None:
    """`make check` proves by import-linter that a subpackage imports only from those above it."""
    contract = (SOURCE.parents[1] / ".importlinter").read_text("utf-8")
    subpackages = [line.strip().removeprefix("endocil.") for line in contract.splitlines() if "    endocil." in line]
    assert {subpackage(path) for path in FILES} == set(subpackages)
    assert sum(path.parent == SOURCE for path in SOURCE.glob("*.py")) <= 4


COMPONENTS = ["selection", "losses", "gradients"]
LOADED = """
import importlib, sys, torch
old = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(f"endocil.components.{name}")
    print(*(set(sys.modules) - old))
    for module in set(sys.modules) - old:
        del sys.modules[module]
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """The modules that each component loads, in a process that has torch alone; it forgets them after each."""
    command = [sys.executable, "-c", LOADED, *COMPONENTS]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return dict(zip(COMPONENTS, map(str.split, told), strict=True))


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_imports_torch_and_no_other_package(name: str, loaded: dict[str, list[str]]) -> None:
    assert f"endocil.components.{name}" in loaded[name]
    packages = {module.split(".")[0] for module in loaded[name]} - set(sys.stdlib_module_names)
    assert packages <= {"endocil", "torch"}


def test_importing_endocil_imports_nothing_heavy() -> None:
    code = "import sys, endocil; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pydantic", "lightning_fabric"} & set(loaded)


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert endocil.__all__ == sorted(endocil.__all__)
    assert all(getattr(endocil, name) is not None for name in endocil.__all__)
    assert set(endocil.__all__) <= set(dir(endocil))
    with pytest.raises(AttributeError, match="endocil has no 'nothing'"):
        _ = endocil.nothing


def test_names_for_type_checkers_are_the_names_at_run_time() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    announced = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert announced - {None} == set(endocil.__all__)


def test_nothing_asks_which_method_it_is() -> None:
    for path in FILES:
        if subpackage(path) == "methods" or subpackage(path) == "cli":
            continue
        strings = {
            node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)
        }
        assert not strings & (METHODS.keys() - {"endocil"}), path  # the package's own name is elsewhere too


def test_the_version_is_one() -> None:
    project = (SOURCE.parents[1] / "pyproject.toml").read_text("utf-8")
    assert f'version = "{endocil.__version__}"' in project
