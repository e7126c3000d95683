"""Finished runs below a folder, each by an id of its own: no path that a client writes is ever opened."""

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError
from endocil.opening import read_whole
from endocil.serve.messages import RunSummary
from endocil.serve.refusals import unknown

MOST = 1000
_HASH = re.compile(rb"(?:script|style)-src '(sha256-[A-Za-z0-9+/]{43}=)'")


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
        inside = [file.parent for file in files if self._is_inside(file)][:MOST]
        return {_id_of(run.relative_to(self.folder)): run for run in inside}

    def summaries(self) -> list[RunSummary]:
        told = [self._summary(id, run) for id, run in self.found().items()]
        return [one for one in told if one is not None]

    def report(self, id: str) -> tuple[bytes, str]:
        """The page of a run, and the policy that lets it run its own script and nothing else.

        A page is shown as if it were of no site at all: it reaches neither this server nor any other."""
        run = self.found().get(id)
        file = run / "report.html" if run else None
        if file is None or not file.is_file() or not self._is_inside(file):
            raise unknown("report")
        try:
            page = read_whole(file)
        except OSError as error:
            raise unknown("report") from error
        own = dict.fromkeys(found.decode() for found in _HASH.findall(page[:4096]))
        allowed = " ".join(f"'{one}'" for one in own) or "'none'"
        policy = (
            f"sandbox allow-scripts; default-src 'none'; script-src {allowed}; style-src {allowed}; "
            f"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return page, policy

    def _is_inside(self, file: Path) -> bool:
        """A link could lead anywhere."""
        assert self.folder is not None
        return file.resolve().is_relative_to(self.folder.resolve())

    def _summary(self, id: str, run: Path) -> RunSummary | None:
        """None for a folder that is no run of this version."""
        assert self.folder is not None
        try:
            metrics: dict[str, Any] = json.loads(read_whole(run / "metrics.json"))
            settings = tomllib.loads(read_whole(run / "settings.toml").decode())
            name = run.relative_to(self.folder)
            report = run / "report.html"
            return RunSummary(
                id=id,
                name=(self.folder.resolve().name if name == Path() else name.as_posix()),
                method=str(settings.get("method", {}).get("name", "endocil")),
                classes=len(metrics["classes"]),
                tasks=len(metrics["task_sizes"]),
                accuracy=metrics["softmax"]["acc_last"],
                report=f"/api/v1/runs/{id}/report" if report.is_file() and self._is_inside(report) else None,
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None


def _id_of(name: Path) -> str:
    return hashlib.sha256(name.as_posix().encode(errors="surrogateescape")).hexdigest()[:16]
