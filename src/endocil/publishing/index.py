"""The index of a published folder: what is in it, what is not, and which runs it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from endocil.report import RunRecord, Table
from endocil.report.grouping import digest, groups
from endocil.report.sentences import what_was_run
from endocil.report.tables import Column

VERSIONS = ("endocil", "commit", "python", "torch")


@dataclass(frozen=True)
class Piece:
    """A part of the folder: its files by their names in it, and what it lacks."""

    what: str
    files: tuple[str, ...]
    missing: str = ""


def identity_of(run: RunRecord) -> dict[str, Any]:
    """What tells a run: its settings that determine the result as eight digits, seed and versions."""
    versions = {name: run.environment.get(name) for name in VERSIONS}
    return {"run": run.name, "seed": run.settings["seed"], "settings": digest(run.settings), **versions}


def index(records: Sequence[RunRecord], pieces: Sequence[Piece]) -> str:
    experiments = sorted(groups(records), key=lambda group: not group.incremental)
    there = [f"- {piece.what}: {_links(piece.files)}" for piece in pieces if piece.files]
    absent = [f"- {piece.what}: {piece.missing}" for piece in pieces if piece.missing]
    parts = [
        "# Results",
        f"Written by `endocil publish`. {what_was_run(experiments)}",
        "## What is here",
        "\n".join(there),
        *(["## What is not here", "\n".join(absent)] if absent else []),
        "## The runs",
        "`settings` is a digest of all settings that determine the result, as the ledger's files have it.",
        _runs(records),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _links(files: Sequence[str]) -> str:
    return ", ".join(f"[{file.rpartition('/')[2]}]({file})" for file in files)


def _runs(records: Sequence[RunRecord]) -> str:
    label_of = {id(run): group.label for group in groups(records) for run in group.results}
    rows = []
    for run in records:
        known = {key: None if value is None else str(value) for key, value in identity_of(run).items()}
        name, *others = known.values()
        rows.append((name, label_of.get(id(run), "counted once, under the same settings"), *others))
    columns = [Column("run", "run"), Column("experiment", "experiment"), Column("seed", "seed", True)]
    columns += [Column(name, name) for name in ("settings", *VERSIONS)]
    return Table("", tuple(columns), tuple(rows)).markdown()
