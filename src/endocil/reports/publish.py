"""endocil publish: tables, figures, page and an index of finished runs in one folder, complete or absent.

A folder that was published before is replaced, any other is left alone."""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endocil.errors import SettingsError
from endocil.io.files import filling_folder, parse_json, temporary_beside, write_atomically, write_json
from endocil.io.text_tables import Column, Table, markdown_text
from endocil.model.predictions import HEADS
from endocil.reports.averages import Runs
from endocil.reports.comparisons import (
    ComparableRuns,
    comparable_runs,
    find_experiment,
    interval_note,
    interval_table,
    source_table,
    versus,
    versus_note,
    versus_table,
)
from endocil.reports.latex import latex
from endocil.reports.page import write_page
from endocil.reports.ranking import describe_runs
from endocil.reports.tables import class_table
from endocil.runs.experiments import digest, groups
from endocil.runs.records import RunRecord

OLD = ".old"  # of a folder that is being replaced
WRITER, RECORD = "endocil publish", "publish.json"
VERSIONS = ("endocil", "commit", "python", "torch")
METRICS = ("acc_last", "acc_avg")  # that are compared, as by endocil versus
FORMATS, DPI = ("png", "pdf"), 200
PRIVATE = "images of patients; 'endocil figures --only gallery' draws it"


@dataclass(frozen=True)
class Piece:
    """A part of the folder: its files by their names in it, and why some are missing."""

    title: str
    files: tuple[str, ...]
    missing: str = ""


def publish(
    records: Sequence[RunRecord],
    output: Path,
    *,
    against: str | None = None,
    figures: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Piece]:
    """Write the folder. `against`: the experiment that others are compared with; else that of the first run."""
    put_back(output)
    refuse_foreign(output)
    compared = comparable_runs(records)  # refuses runs on different images
    baseline = find_experiment(compared, against, records[0].name)
    with replacing_folder(output) as folder:
        pieces = [*_tables(records, folder), _versus(compared, baseline, folder)]
        tell("tables are written")
        if figures:
            pieces += _figures(records, folder, tell)
            tell("figures are drawn")
        write_page(records, folder / "report.html", title=f"endocil: {len(records)} runs")
        pieces.append(Piece("One page about all runs, which opens offline", ("report.html",)))
        write_atomically(folder / "index.md", index(records, pieces), public=True)
        record = {"written_by": WRITER, "runs": [identity_of(run) for run in records], "files": sorted(_files(folder))}
        write_json(folder / RECORD, record, public=True)  # by it the folder is known again
    return pieces


def _tables(records: Sequence[RunRecord], folder: Path) -> list[Piece]:
    pieces = []
    for head in HEADS:
        if all(run.metrics.get(head) is None for run in records):
            continue
        compared = comparable_runs(records, head)
        note = interval_note(compared)
        end = "" if head == "softmax" else f"-{head.replace('_', '-')}"
        pieces.append(_table(interval_table(compared), note, folder, f"results{end}"))
        if any(compared.test_set.sources):
            pieces.append(_table(source_table(compared), note, folder, f"sources{end}"))
        seeds = "± is the sample standard deviation over the seeds."
        pieces.append(_table(class_table(compared.groups, head), seeds, folder, f"classes{end}"))
    if not any("tables/sources" in piece.files[0] for piece in pieces):
        why = "the images of these runs do not say which source they come from"
        pieces.append(Piece("Accuracy for each source", (), why))
    return pieces


def _versus(compared: ComparableRuns, baseline: Runs, folder: Path) -> Piece:
    differences = versus(compared, baseline, METRICS)
    if not differences:
        return Piece("Paired differences", (), "there is no other experiment to compare with")
    note = versus_note(compared, differences, baseline)
    return _table(versus_table(differences, baseline), note, folder, "versus")


def _table(table: Table, note: str, folder: Path, name: str) -> Piece:
    texts = {
        "md": f"{markdown_text(table.caption)}.\n\n{table.markdown()}\n{markdown_text(note)}\n",
        "tex": latex(table, label=f"tab:{name}", note=note),
        "csv": table.csv(),
    }
    for form, text in texts.items():
        write_atomically(folder / "tables" / f"{name}.{form}", text, public=True)
    return Piece(table.caption, tuple(f"tables/{name}.{form}" for form in texts))


def _figures(records: Sequence[RunRecord], folder: Path, tell: Callable[[str], None]) -> list[Piece]:
    """Without the gallery of exemplars: they are images of patients, and this folder is made to be shown."""
    from endocil.reports.figures.kinds import GALLERY, NAMES, draw_all
    from endocil.reports.figures.material import Material

    pieces = []
    for drawn in draw_all(Material(records, None, tell), folder / "figures", NAMES, FORMATS, DPI):
        files = tuple(file.relative_to(folder).as_posix() for file in drawn.files)
        why = PRIVATE if drawn.kind.name == GALLERY else drawn.reason
        pieces.append(Piece(f"Figure {drawn.kind.name}: {drawn.kind.shows}", files, why))
    return pieces


def identity_of(run: RunRecord) -> dict[str, Any]:
    """A run's name and seed, the digest of the settings that determine its result, and versions."""
    versions = {name: run.environment.get(name) for name in VERSIONS}
    return {"run": run.name, "seed": run.settings["seed"], "settings": digest(run.settings), **versions}


INDEX = """\
# Results

Written by `endocil publish`. {summary}

## Files

{files}
{missing}
## Runs

`settings` is a digest of all settings that determine the result, as the ledger's files have it.

{runs}"""


def index(records: Sequence[RunRecord], pieces: Sequence[Piece]) -> str:
    experiments = sorted(groups(records), key=lambda group: not group.incremental)
    files, missing = [], []
    for piece in pieces:
        if piece.files:
            links = ", ".join(f"[{file.rpartition('/')[2]}]({file})" for file in piece.files)
            files.append(f"- {markdown_text(piece.title)}: {links}")
        if piece.missing:
            missing.append(f"- {markdown_text(piece.title)}: {markdown_text(piece.missing)}")
    labels = {id(run): group.label for group in experiments for run in group.results}
    rows = []
    for run in records:
        name, *others = (None if value is None else str(value) for value in identity_of(run).values())
        rows.append((name, labels.get(id(run), "counted once, under the same settings"), *others))
    columns = [Column(name, name, name == "seed") for name in ("run", "experiment", "seed", "settings", *VERSIONS)]
    return INDEX.format(
        summary=markdown_text(describe_runs(experiments)),
        files="\n".join(files),
        missing="\n## Not included\n\n" + "\n".join(missing) + "\n" if missing else "",
        runs=Table("", tuple(columns), tuple(rows)).markdown(),
    )


def refuse_foreign(folder: Path) -> None:
    """Nothing is ever removed that was not published."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is a file; choose a folder with -o")
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        record = parse_json((folder / RECORD).read_text("utf-8"))
        published = set(record["files"]) if record["written_by"] == WRITER else None
    except (OSError, ValueError, KeyError, TypeError):
        published = None
    if published is None:
        raise SettingsError(f"{folder} is not empty and was not written by '{WRITER}'; choose another folder with -o")
    if others := sorted(_files(folder) - published - {RECORD}):
        raise SettingsError(
            f"{folder} holds files that '{WRITER}' did not write ({', '.join(others[:3])}); "
            f"move them, or choose another folder with -o"
        )


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `folder` when the block ends well, or is removed.

    No system exchanges two folders at once: the old one is put aside first, from where `put_back` takes it."""
    old = temporary_beside(folder).with_suffix(OLD)
    try:
        with filling_folder(folder, public=True) as new:
            yield new
            if folder.exists():
                folder.rename(old)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)  # the new one could not take its place
        shutil.rmtree(old, ignore_errors=True)


def put_back(folder: Path) -> None:
    """A process that was killed between two renames has left the old folder aside, and none in its place."""
    form = re.compile(re.escape(f".{folder.name[:100]}.") + rf"[0-9a-f]{{32}}\{OLD}")
    for old in [path for path in folder.parent.glob(f".*{OLD}") if form.fullmatch(path.name)]:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(folder)


def _files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if not file.is_dir()}
