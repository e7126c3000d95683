"""The house as it is meant: imports go up the page, components import torch alone, names are as announced."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import endocil
from endocil.methods import METHODS

SOURCE = Path(endocil.__file__).parent

# The page of docs/architecture.md, top to bottom; a file imports only from blocks above it or from its own.
BLOCKS = [
    ["errors", "notice", "randomness", "opening", "files", "locking", "registry", "usage"],
    ["overrides", "milestones", "settings", "presets"],
    ["_mmd", "_greedy", "selection", "losses", "gradients"],
    ["images", "datasets", "splitting", "scenario", "audit"],
    [
        "networks",
        "methods",
        "memory",
        "predictions",
        "processes",
        "evaluation",
        "precision",
        "numerics",
        "epoch_log",
        "training",
        "journal",
        "checkpoint",
        "first_task",
        "remembering",
        "learner",
    ],
    ["metrics", "statistics", "report", "figures"],
    [
        "assembly",
        "devices",
        "estimate",
        "preflight",
        "environment",
        "recorded",
        "run_folder",
        "run_learner",
        "tracking",
        "experiment",
        "bundle",
        "release",
        "export",
        "serve",
        "display",
        "watching",
        "publishing",
        "sweep",
        "commands",
        "cli",
        "__main__",
    ],
]
LEVEL = {name: level for level, names in enumerate(BLOCKS) for name in names}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Every module that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def test_every_file_stands_on_the_page() -> None:
    assert {room(path) for path in FILES} == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_up_the_page_only(path: Path) -> None:
    rooms = {name.split(".")[1] for name in imported(path) if name.startswith("endocil.")}
    below = {name for name in rooms if LEVEL.get(name, -1) > LEVEL[room(path)]}
    assert below == set()


COMPONENTS = ["selection", "losses", "gradients"]
LOADED = """
import importlib, sys, torch
old = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(f"endocil.{name}")
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
    assert f"endocil.{name}" in loaded[name]
    packages = {module.split(".")[0] for module in loaded[name]} - set(sys.stdlib_module_names)
    assert packages <= {"endocil", "torch"}


def test_importing_endocil_imports_nothing_heavy() -> None:
    code = "import sys, endocil; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy", "pydantic", "lightning_fabric"} & set(loaded)


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert endocil.__all__ == sorted(endocil.__all__)
    assert all(getattr(endocil, name) is not None for name in endocil.__all__)
    assert set(endocil.__all__) <= set(dir(endocil))
    with pytest.raises(AttributeError, match="endocil has no 'nothing'"):
        _ = endocil.nothing


def test_names_for_type_checkers_are_the_names_at_run_time() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))
    announced = {
        alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert announced - {None} == set(endocil.__all__)


def test_nothing_asks_which_method_it_is() -> None:
    for path in FILES:
        if room(path) == "methods" or room(path) == "commands":
            continue
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Constant)
        }
        assert not strings & (METHODS.keys() - {"endocil"}), path  # the package's own name is elsewhere too


def test_the_version_is_one() -> None:
    project = (SOURCE.parents[1] / "pyproject.toml").read_text("utf-8")
    assert f'version = "{endocil.__version__}"' in project
