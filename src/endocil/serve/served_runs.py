"""Finished runs in a folder, each by an id: a path written by a client is never opened."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endocil.errors import SettingsError
from endocil.html.markup import asset, policy_hash
from endocil.io.files import parse_json, parse_toml, read_whole
from endocil.methods import method_title
from endocil.serve.schemas import RunSummary, not_found

MAX_LISTED = 1000
_HEAD = 4096  # bytes of a page that contain its policy
_HASHES = re.compile(rb"(script|style)-src '(sha256-[A-Za-z0-9+/]{43}=)'")


@dataclass(frozen=True)
class Runs:
    folder: Path | None

    def __post_init__(self) -> None:
        if self.folder is not None and not self.folder.is_dir():
            raise SettingsError(f"--runs: there is no folder {self.folder}")

    def by_id(self) -> dict[str, Path]:
        """Folders with a finished run, at most two levels below the folder."""
        runs: dict[str, Path] = {}
        if self.folder is None:
            return runs
        for pattern in ("metrics.json", "*/metrics.json", "*/*/metrics.json"):
            for file in sorted(self.folder.glob(pattern)):
                if self._is_inside(file):
                    name = file.parent.relative_to(self.folder).as_posix()
                    id = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
                    runs[id] = file.parent
        return runs

    def summaries(self) -> tuple[list[RunSummary], int]:
        """At most MAX_LISTED runs, and how many more there are."""
        runs = self.by_id()
        summaries = [self._summary(id, run) for id, run in list(runs.items())[:MAX_LISTED]]
        return [summary for summary in summaries if summary is not None], max(0, len(runs) - MAX_LISTED)

    def report(self, id: str) -> tuple[bytes, str]:
        """The report page of a run, and the content security policy to send with it."""
        run = self.by_id().get(id)
        if run is None or not self._is_inside(run / "report.html"):
            raise not_found("report")
        try:
            page = read_whole(run / "report.html")
        except OSError as error:
            raise not_found("report") from error
        return page, policy_of(page)

    def _is_inside(self, file: Path) -> bool:
        """A link could lead out of the folder."""
        assert self.folder is not None
        try:
            return file.resolve().is_relative_to(self.folder.resolve()) and file.is_file()
        except (OSError, RuntimeError):  # not permitted, or a link to itself
            return False

    def _summary(self, id: str, run: Path) -> RunSummary | None:
        """None for a folder that is not a run of this version."""
        assert self.folder is not None
        if not self._is_inside(run / "settings.toml"):
            return None
        try:
            metrics: dict[str, Any] = parse_json(read_whole(run / "metrics.json"))
            settings = parse_toml(read_whole(run / "settings.toml").decode())
            name = run.relative_to(self.folder)
            return RunSummary(
                id=id,
                name=(self.folder.resolve().name if name == Path() else name.as_posix()),
                method=method_title(str(settings.get("method", {}).get("name", "endocil"))),
                classes=len(metrics["classes"]),
                tasks=len(metrics["task_sizes"]),
                accuracy=metrics["softmax"]["acc_last"],
                report=f"/api/v1/runs/{id}/report" if self._is_inside(run / "report.html") else None,
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None


def policy_of(page: bytes) -> str:
    """A sandbox in which the page belongs to no site and loads nothing.

    The only script that may run is the one this version writes into reports, byte for byte; a page could name the hash
    of any other. Styles may be the page's own, as they reach nothing."""
    hashes = _HASHES.findall(page[:_HEAD])
    styles = " ".join(f"'{value.decode()}'" for kind, value in hashes if kind == b"style") or "'none'"
    has_script = (b"script", script_hash().encode()) in hashes
    script, sandbox = (f"'{script_hash()}'", "sandbox allow-scripts") if has_script else ("'none'", "sandbox")
    return (
        f"{sandbox}; default-src 'none'; script-src {script}; style-src {styles}; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'"
    )


def script_hash() -> str:
    """Of the script that this version writes into reports."""
    return policy_hash(asset("endocil.reports", "page.js"))
