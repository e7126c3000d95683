"""constraints.txt pins everything that `pip install -e '.[dev]'` installs, at the versions installed here."""

import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HOME = Path(__file__).parents[1]


def pinned(text: str) -> dict[str, str]:
    """Name to version; a line that is no exact pin is an error."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (only,) = requirement.specifier
            assert only.operator == "==", f"{line} is no exact pin"
            assert not Version(only.version).local, f"{line} names one build"
            found[canonicalize_name(requirement.name)] = only.version
    return found


def listed(project: dict[str, Any], extra: str) -> list[str]:
    """Requirements of the project with this extra, its own extras written out."""
    found = list(project["dependencies"])
    for text in project["optional-dependencies"][extra]:
        own = Requirement(text).extras if Requirement(text).name == project["name"] else ()
        found += [other for name in own for other in listed(project, name)] if own else [text]
    return found


def needed_by(requirements: list[str]) -> set[str]:
    """Names of the distributions that these requirements install here, and those that they require in turn."""
    waiting = [(Requirement(text), frozenset[str]()) for text in requirements]
    met: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, extras = waiting.pop()
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, wanted) not in met:
            met.add((name, wanted))
            waiting += [(Requirement(text), wanted) for text in distribution(name).requires or ()]
    return {name for name, _ in met}


def faults(needed: set[str], pins: dict[str, str]) -> list[str]:
    installed = {name: distribution(name).version for name in needed}
    missing = [f"{name}=={installed[name]} is not pinned" for name in sorted(needed - pins.keys())]
    other = [
        f"{name} is pinned at {pins[name]}, installed is {installed[name]}"
        for name in sorted(needed & pins.keys())
        if Version(Version(installed[name]).public) != Version(pins[name])
    ]
    return missing + other


def test_everything_that_dev_installs_is_pinned_at_the_version_installed() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    needed = needed_by(listed(project, "dev"))
    assert {"torch", "numba", "markupsafe"} <= needed  # listed, required by one listed, and by one of those
    found = faults(needed, pinned((HOME / "constraints.txt").read_text("utf-8")))
    assert not found, "\n".join(found)


def test_what_is_not_pinned_or_pinned_at_another_version_is_named() -> None:
    assert faults({"pytest"}, {}) == [f"pytest=={distribution('pytest').version} is not pinned"]
    assert "numpy is pinned at 1.0, installed is" in faults({"numpy"}, pinned("# old\nnumpy==1.0"))[0]
    with pytest.raises(AssertionError, match="numpy>=2 is no exact pin"):
        pinned("numpy>=2")
