"""endocil methods and score."""

import re
from pathlib import Path
from typing import Annotated

import typer

from endocil.commands.common import console


def methods() -> None:
    """List the methods with their options and defaults."""
    from rich.table import Table

    from endocil.methods import METHODS, method_options

    table = Table("method", "what it does", "exemplars by", "options under [method]")
    for name, method in sorted(METHODS.items()):
        options = "\n".join(f"{key} = {value}" for key, value in sorted(method_options(name).items()))
        summary = (method.__doc__ or "").split("\n\n")[0]
        table.add_row(name, summary, method.selects if method.replay else "keeps none", options)
    console().print(table)


def _in_order(files: list[Path]) -> list[Path]:
    """task-0, task-1, ... by number (a shell puts 10 before 2), others as given; a run's folder means its files."""
    found = [
        file for one in files for file in ([*one.glob("predictions/task-*.csv")] if one.is_dir() else [one])
    ]
    if not all(re.fullmatch(r"task-\d+", file.stem) for file in found):
        return found
    return sorted(found, key=lambda file: int(file.stem.removeprefix("task-")))


def score(
    files: Annotated[
        list[Path], typer.Argument(help="A run's folder, or predictions CSV files, one per task, in order.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print all metrics as JSON.")] = False,
) -> None:
    """Compute the metrics of predictions, of this or any other toolbox."""
    import json

    from endocil.metrics import METRICS, TABLE_METRICS, summarise
    from endocil.predictions import read_run_predictions

    summary = summarise(read_run_predictions(_in_order(files)))
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    for head in ("softmax", "nearest_mean"):
        if summary[head] is None:
            continue
        print(f"{head} head")
        for name in TABLE_METRICS:
            value = summary[head][name]
            print(f"  {name:10} {'-' if value is None else f'{value:6.2f}'}   {METRICS[name]}")
