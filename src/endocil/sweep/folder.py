"""The folder of a sweep: a folder for each run, their settings and logs, the first tasks they share, and the pages."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from endocil.errors import EndocilError
from endocil.files import write_atomically
from endocil.locking import lock
from endocil.report import RunRecord, read_run, write_page
from endocil.run_folder import RunFolder
from endocil.settings import Settings, load_settings
from endocil.sweep.plan import Planned, override, tables
from endocil.sweep.worker import Job


@dataclass(frozen=True)
class SweepFolder:
    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One sweep at a time works here, where the system can lock files: two would begin the same runs."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("ab") as file:
            if lock(file, wait=False) == "taken":
                raise EndocilError(
                    f"another sweep is working in {self.path}; let it finish, or choose another folder with -o"
                )
            yield

    def run(self, planned: Planned) -> RunFolder:
        """A run is known by its digest: it keeps its folder when the sweep file changes and names others."""
        there = [*sorted(self.path.glob(f"*-{planned.digest}")), self.path / planned.name]
        return RunFolder(there[0])

    def state(self, planned: Planned) -> str:
        run = self.run(planned)
        if run.finished():
            return "finished"
        return "unfinished" if (run.path / "settings.toml").exists() else "new"

    def settings(self, planned: Planned, *, share: bool) -> Settings:
        """As the run gets them: `share` its first task with others of this sweep, unless they say where."""
        settings = planned.settings
        if not share or settings.run.first_tasks is not None:
            return settings
        place = str(self.path.resolve() / "first-tasks")
        return load_settings(settings, [override("run.first_tasks", place)])

    def refuse_file(self) -> None:
        if self.path.is_file():
            raise EndocilError(f"{self.path} is a file; choose another folder with -o")

    def job(self, planned: Planned, *, share: bool) -> Job:
        """Write what a worker needs. Paths are whole, so that they mean the same on every machine."""
        whole = self.path.resolve()
        text, file = self.settings(planned, share=share).to_toml(), whole / "logs" / f"{planned.name}.toml"
        write_atomically(file, text)
        return Job(
            name=planned.name,
            folder=whole / self.run(planned).path.name,
            settings=file,
            log=file.with_suffix(".log"),
            here=Path.cwd(),
            environment=_variables(text),
        )

    def records(self, runs: Sequence[Planned]) -> dict[str, list[RunRecord]]:
        """The finished runs by the table in which they belong, which has the same name when others are finished."""
        found: dict[str, list[RunRecord]] = {}
        table_of = tables(runs)
        for one in runs:
            if self.run(one).finished():
                found.setdefault(table_of[one.digest], []).append(read_run(self.run(one).path))
        return found

    def write_page(self, source: str, records: Sequence[RunRecord], *, alone: bool) -> str:
        """One page for each data set; returns where it is, or why there is none."""
        page = self.path / ("report.html" if alone else f"report-{source}.html")
        try:
            write_page(records, page, title=f"endocil sweep {self.path.resolve().name}: {source}")
        except EndocilError as error:  # what varies may be the classes or the split
            return f"no page for {source}: {error}"
        return f"page: {page}"


def _variables(settings: str) -> dict[str, str]:
    """The variables of the environment that settings name, and where decoded images are kept: a worker on another
    machine must know them too."""
    names = {*re.findall(r"\$\{?(\w+)", settings), "ENDOCIL_CACHE"}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}
