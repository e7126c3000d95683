"""Tables from the ledger: every experiment, both heads with their costs, and the ablation of the components."""

import json
from collections import Counter
from collections.abc import Sequence

from endocil.reports.ledger import Entry
from endocil.reports.tables import Cell, Column, Table, metric_cells, metric_columns, spread
from endocil.runs.experiments import DASH, Group, flat, groups, identity, label, split_label, varying

# The paper's name of a component, its setting, and the values for "with" and "without" it.
ABLATION = (
    ("MDBR", "memory.select", "mmd", "mean"),
    ("PRCBL", "method.loss", "prior_regularized", "cross_entropy"),
    ("CFG", "method.gradients", "calibrated", "plain"),
)
TICK = "✓"

Entries = Group[Entry]


def ledger_table(entries: Sequence[Entry]) -> Table:
    """Every experiment, data set by data set, mean ± sample standard deviation over its seeds."""
    found = sorted(groups(entries, split_label), key=_order)
    columns = (
        Column("data", "Data"),
        Column("method", "Method"),
        Column("tasks", "Tasks", True),
        Column("buffer", "Buffer", True),
        Column("seeds", "Seeds", True),
        *metric_columns(),
    )
    return Table("Runs in the ledger, in percent", columns, tuple(map(_ledger_row, found)), _contests(found))


def _order(group: Entries) -> tuple[str, bool, int, str]:
    entry = group.first
    return (split_label(entry.settings), not group.incremental, entry.exemplars, group.label)


def _ledger_row(group: Entries) -> tuple[Cell, ...]:
    entry = group.first
    tasks = len(entry.metrics["task_sizes"])
    return (
        split_label(entry.settings),
        group.label,
        tasks,
        _buffer(entry),
        len(group.seeds),
        *metric_cells(group),
    )


def _buffer(entry: Entry) -> str | None:
    """Exemplars per class or in all; a method without a memory has none."""
    memory = entry.settings.get("memory", {})
    if not entry.exemplars:
        return None
    return (
        f"{memory['total']} in all" if memory.get("total") else str(memory.get("per_class", entry.exemplars))
    )


def _contests(found: Sequence[Entries]) -> tuple[str | None, ...]:
    """A best value is marked only among experiments with the same seeds: a single run may be a lucky one."""
    keys = [_contest(group) for group in found]
    seeds = {key: {group.seeds for one, group in zip(keys, found, strict=True) if one == key} for key in keys}
    return tuple(key if len(seeds[key]) == 1 else None for key in keys)


def _contest(group: Entries) -> str | None:
    """Who may be compared: same images, tasks, training and buffer, whatever the method and components."""
    if not group.incremental:
        return None
    values = identity(group.first.settings)
    return json.dumps({key: values[key] for key in sorted(values) if not _is_own(key)}, default=str)


def _is_own(key: str) -> bool:
    """What a method brings along: its components and options, but not the size of the memory it was given."""
    sizes = ("memory.per_class", "memory.total")
    return key == "seed" or (key.startswith(("method.", "memory.")) and key not in sizes)


HEADS = {"softmax": "softmax", "nearest_mean": "nearest mean"}


def costs_table(entries: Sequence[Entry]) -> Table:
    """Both heads, and what each costs: parameters that predict, time and memory of training.

    Of the runs that measured it, all others apart: so every row is the mean of the same runs."""
    measured = [entry for entry in entries if entry.peak_megabytes is not None]
    found = sorted(groups(measured, split_label), key=_order)
    lines = [(group, head) for group in found for head in HEADS if group.first.metrics.get(head) is not None]
    columns = (
        Column("data", "Data"),
        Column("method", "Method"),
        Column("head", "Head"),
        Column("seeds", "Seeds", True),
        *metric_columns(),
        Column("parameters", "Parameters", True),
        Column("seconds_per_epoch", "s / epoch", True),
        Column("minutes", "Minutes", True),
        Column("peak_megabytes", "Peak MB", True),
    )
    rows = tuple(_costs_row(group, head) for group, head in lines)
    fair = dict(zip(map(id, found), _contests(found), strict=True))
    contests = tuple(fair[id(group)] and f"{head} {fair[id(group)]}" for group, head in lines)
    return Table("Both heads of the runs in the ledger, in percent, and their costs", columns, rows, contests)


def _costs_row(group: Entries, head: str) -> tuple[Cell, ...]:
    name = (split_label(group.first.settings), group.label, HEADS[head], len(group.seeds))
    costs = _costs(group) if head == "softmax" else (None,) * 4
    return (*name, *metric_cells(group, head), *costs)


def _costs(group: Entries) -> tuple[Cell, ...]:
    measured = group.results
    megabytes = sum(entry.peak_megabytes or 0.0 for entry in measured) / len(measured)
    return (
        f"{measured[0].parameters:,}",
        spread(entry.seconds_per_epoch for entry in measured),
        f"{sum(entry.seconds or 0.0 for entry in measured) / len(measured) / 60:.1f}",
        f"{megabytes:,.0f}",
    )


def ablation_table(entries: Sequence[Entry]) -> Table:
    """With and without each of the three components: the runs whose settings name all three, and that differ
    in them alone from another."""
    named = [group for group in groups(entries) if None not in ticks(group)]
    rows_of = Counter(map(_without_components, named))
    found = [group for group in named if rows_of[_without_components(group)] > 1]
    shared = _labels_without_components(found)
    found.sort(key=lambda group: (shared[group.label], _buffer(group.first) or "", ticks(group)))
    rows = tuple(_ablation_row(group, shared[group.label]) for group in found)
    columns = (
        *(Column(name.lower(), name) for name, *_ in ABLATION),
        Column("method", "Method"),
        Column("buffer", "Buffer", True),
        Column("seeds", "Seeds", True),
        *metric_columns(),
    )
    return Table("Ablation of the three components, in percent", columns, rows, _contests(found))


def ticks(group: Entries) -> tuple[bool | None, ...]:
    """True with the component, False without it, None where the run has neither."""
    settings = flat(group.first.settings)
    return tuple({on: True, off: False}.get(settings.get(key, "")) for _, key, on, off in ABLATION)


def _without_components(group: Entries) -> str:
    """All settings that may not differ within an ablation; options come and go with the components."""
    own = ("seed", "method.loss", "method.gradients")
    values = identity(group.first.settings)
    sizes = ("memory.per_class", "memory.total")
    kept = {k: v for k, v in values.items() if k not in own and (not k.startswith("memory.") or k in sizes)}
    return json.dumps(kept, sort_keys=True, default=str)


def _labels_without_components(found: list[Entries]) -> dict[str, str]:
    """The columns with the ticks tell the components; the label tells what differs besides."""
    components = {key for _, key, *_ in ABLATION}
    others = varying([identity(group.first.settings) for group in found]) - components - {"seed"}
    return {group.label: label(group.first.settings, others) for group in found}


def _ablation_row(group: Entries, name: str) -> tuple[Cell, ...]:
    marks = (TICK if tick else DASH for tick in ticks(group))
    return (*marks, name, _buffer(group.first), len(group.seeds), *metric_cells(group))
