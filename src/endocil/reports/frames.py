"""Results of runs as pandas frames, for notebooks and statistics of one's own (extra `pandas`)."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from endocil.errors import ResourceError, SettingsError
from endocil.model.predictions import HEADS
from endocil.runs.experiments import budget, data_title, groups
from endocil.runs.records import RunRecord, read_runs

if TYPE_CHECKING:
    import pandas

Per = Literal["run", "task", "class"]
SCALARS = ("acc_last", "f1_last", "acc_avg", "f1_avg", "af", "af_printed", "forgetting_max", "balanced_last")


def results_frame(runs: Iterable[str | Path], *, per: Per = "run") -> "pandas.DataFrame":
    """A row for each run and head; `per`: "task" or "class" for a row for each of them, too. Numbers are percent.

    Columns `experiment`, `method`, `data`, `seed`, `head` and the budget come first. Runs that differ in the seed alone
    have the same `experiment`: `results_frame(runs).groupby(["experiment", "head"]).acc_last.agg(["mean", "std"])`."""
    try:
        import pandas
    except ImportError as error:
        raise ResourceError("results_frame needs the package pandas: pip install 'endocil[pandas]'") from error
    measured = {"run": _of_run, "task": _of_tasks, "class": _of_classes}.get(per)
    if measured is None:
        raise SettingsError(f"per is {per!r}; expected 'run', 'task' or 'class'")
    records = read_runs(map(Path, runs))
    labels = {id(run): group.label for group in groups(records) for run in group.results}
    rows = [
        {**_about(run, labels.get(id(run))), "head": head, **values}
        for run in records
        for head in HEADS
        if run.metrics.get(head) is not None
        for values in measured(run.metrics, run.metrics[head])
    ]
    return pandas.DataFrame(rows)


def _about(run: RunRecord, label: str | None) -> dict[str, Any]:
    """`label`: None for a seed that is there twice, which counts once elsewhere."""
    return {
        "run": run.name,
        "experiment": label or "repeated",
        "method": run.settings["method"]["name"],
        "data": data_title(run.settings),
        "seed": run.settings["seed"],
        **budget(run),
    }


def _of_run(metrics: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {name: head.get(name) for name in SCALARS} | {"test_images": sum(map(sum, head["confusion"]))}


def _of_tasks(metrics: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    seen = 0
    for task, (size, acc, f1) in enumerate(zip(metrics["task_sizes"], head["acc"], head["f1"], strict=True)):
        seen += size
        yield {"task": task, "classes": seen, "acc": acc, "f1": f1}


def _of_classes(metrics: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rates = ("recall", "precision", "f1", "images")
    for name in metrics["classes"]:
        yield {"class": name, **{rate: head["per_class"][name][rate] for rate in rates}}
