"""endocil methods and score."""

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


def score(
    files: Annotated[list[Path], typer.Argument(help="Predictions CSV files, one per task, in order.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print all metrics as JSON.")] = False,
) -> None:
    """Compute the metrics of predictions, of this or any other toolbox."""
    import json

    from endocil.metrics import METRICS, TABLE_METRICS, summarise
    from endocil.predictions import read_run_predictions

    summary = summarise(read_run_predictions(files))
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
