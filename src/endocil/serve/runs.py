"""Finished runs below a folder, each by an id of its own: no path that a client writes is ever opened."""

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError
from endocil.html.markup import policy_hash
from endocil.io.files import read_whole
from endocil.serve.limits import unknown
from endocil.serve.messages import RunSummary

MOST = 1000
_HEAD = 4096  # bytes of a page that name its script and style
_NAMED = re.compile(rb"(script|style)-src '(sha256-[A-Za-z0-9+/]{43}=)'")


@dataclass(frozen=True)
class Runs:
    folder: Path | None

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise EndocilError(f"--runs: there is no folder {self.folder}")

    def found(self) -> dict[str, Path]:
        """The folder itself, its folders and theirs, where they hold a finished run."""
        if self.folder is None:
            return {}
        files = [
            file
            for depth in ("metrics.json", "*/metrics.json", "*/*/metrics.json")
            for file in sorted(self.folder.glob(depth))
        ]
        inside = [file.parent for file in files if self._is_inside(file)]
        return {_id_of(run.relative_to(self.folder)): run for run in inside}

    def summaries(self) -> tuple[list[RunSummary], int]:
        """As many runs as one answer names, and how many more were found."""
        found = self.found()
        told = [self._summary(id, run) for id, run in list(found.items())[:MOST]]
        return [one for one in told if one is not None], max(0, len(found) - MOST)

    def report(self, id: str) -> tuple[bytes, str]:
        """The page of a run, and the policy that it is shown under."""
        run = self.found().get(id)
        if run is None or not self._is_inside(run / "report.html"):
            raise unknown("report")
        try:
            page = read_whole(run / "report.html")
        except OSError as error:
            raise unknown("report") from error
        return page, policy_of(page)

    def _is_inside(self, file: Path) -> bool:
        """A link could lead anywhere."""
        assert self.folder is not None
        try:
            return file.resolve().is_relative_to(self.folder.resolve()) and file.is_file()
        except (OSError, RuntimeError):  # not to be looked into, or a link to itself
            return False

    def _summary(self, id: str, run: Path) -> RunSummary | None:
        """None for a folder that is no run of this version."""
        assert self.folder is not None
        if not self._is_inside(run / "settings.toml"):
            return None
        try:
            metrics: dict[str, Any] = json.loads(read_whole(run / "metrics.json"))
            settings = tomllib.loads(read_whole(run / "settings.toml").decode())
            name = run.relative_to(self.folder)
            return RunSummary(
                id=id,
                name=(self.folder.resolve().name if name == Path() else name.as_posix()),
                method=str(settings.get("method", {}).get("name", "endocil")),
                classes=len(metrics["classes"]),
                tasks=len(metrics["task_sizes"]),
                accuracy=metrics["softmax"]["acc_last"],
                report=f"/api/v1/runs/{id}/report" if self._is_inside(run / "report.html") else None,
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None


def policy_of(page: bytes) -> str:
    """As if the page were of no site at all, with nothing loaded from anywhere.

    A script runs only where it is this version's own, byte for byte: a page may name any other, but nobody here has
    read that one. Styles may be the page's own, as they reach nothing."""
    named = _NAMED.findall(page[:_HEAD])
    styles = " ".join(f"'{one.decode()}'" for kind, one in named if kind == b"style")
    scripted = (b"script", script_hash().encode()) in named
    none = "'none'"
    script = f"'{script_hash()}'" if scripted else none
    return (
        f"sandbox{' allow-scripts' if scripted else ''}; default-src 'none'; script-src {script}; "
        f"style-src {styles or none}; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'"
    )


@cache
def script_hash() -> str:
    """Of the script that this version writes into reports."""
    return policy_hash(resources.files("endocil.reports").joinpath("assets", "page.js").read_text("utf-8"))


def _id_of(name: Path) -> str:
    return hashlib.sha256(name.as_posix().encode(errors="surrogateescape")).hexdigest()[:16]
