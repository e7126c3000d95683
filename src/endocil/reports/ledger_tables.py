"""Tables from the ledger, data set by data set: all experiments, both heads with their costs, and the ablation."""

import json
from collections import Counter
from collections.abc import Sequence

from endocil.io.tables import DASH, Cell, Column, Table, spread
from endocil.reports.ledger import Entry
from endocil.reports.tables import metric_cells, metric_columns
from endocil.runs.experiments import (
    Group,
    budget,
    data_title,
    flat,
    groups,
    identity,
    label,
    split_title,
    varying,
)
from endocil.runs.records import Json

# The paper's name of a component, its setting, and the values for "with" and "without" it.
ABLATION = (
    ("MDBR", "memory.select", "mmd", "mean"),
    ("PRCBL", "method.loss", "prior_regularized", "cross_entropy"),
    ("CFG", "method.gradients", "calibrated", "plain"),
)
HEADS = {"softmax": "softmax", "nearest_mean": "nearest mean"}
TICK = "✓"

Entries = Group[Entry]


def section(settings: Json) -> str:
    """The data set with its split, and what all rows below it share."""
    return ": ".join(filter(None, [split_title(settings), shared_budget(settings)]))


def shared_budget(settings: Json) -> str:
    """Image size, network width and epochs."""
    values = flat(settings)
    shared = (("data.size", "{} px"), ("network.width", "width {}"), ("train.epochs", "{} epochs per task"))
    return ", ".join(text.format(values[key]) for key, text in shared if key in values)


def ledger_table(entries: Sequence[Entry]) -> Table:
    """Every experiment, mean ± sample standard deviation over its seeds."""
    experiments = _ordered(entries)
    columns = (
        Column("method", "Method"),
        Column("tasks", "Tasks", True),
        Column("exemplars", "Exemplars per class", True),
        Column("seeds", "Seeds", True),
        *metric_columns(),
    )
    rows = tuple(
        (
            group.label,
            len(group.first.metrics["task_sizes"]),
            _exemplars(group.first),
            len(group.seeds),
            *metric_cells(group),
        )
        for group in experiments
    )
    caption = "Runs in the ledger, in percent"
    return Table(caption, columns, rows, _rankings(experiments), _sections(experiments))


def _ordered(entries: Sequence[Entry]) -> list[Entries]:
    """By data set; upper bounds last, methods without exemplars first."""
    return sorted(
        groups(entries, section),
        key=lambda one: (*_section_order(one), not one.incremental, one.first.exemplars, one.label.lower()),
    )


def _section_order(group: Entries) -> tuple[str, bool, str]:
    """By data set, split by image first."""
    settings = group.first.settings
    return data_title(settings), data_title(settings) != split_title(settings), section(settings)


def _sections(experiments: Sequence[Entries]) -> tuple[str, ...]:
    return tuple(section(group.first.settings) for group in experiments)


def _exemplars(entry: Entry) -> str | None:
    """Exemplars per class, or in all; none of a method that keeps none."""
    return str(budget(entry)["exemplars"]) if entry.exemplars else None


def _rankings(experiments: Sequence[Entries]) -> tuple[str | None, ...]:
    """A best value is marked only among experiments with the same seeds: a single run may be a lucky one."""
    keys = [_ranking(group) for group in experiments]
    pairs = list(zip(keys, experiments, strict=True))
    seeds = {key: {group.seeds for other, group in pairs if other == key} for key in keys}
    return tuple(key if len(seeds[key]) == 1 else None for key in keys)


def _ranking(group: Entries) -> str | None:
    """What experiments must share to be ranked: images, tasks, training and exemplars, not method and components."""
    if not group.incremental:
        return None
    values = identity(group.first.settings)
    return json.dumps({key: values[key] for key in sorted(values) if not _is_own(key)}, default=str)


def _is_own(key: str) -> bool:
    """Whether a setting belongs to the method: its components and options, but not the number of exemplars."""
    sizes = ("memory.per_class", "memory.total")
    return key == "seed" or (key.startswith(("method.", "memory.")) and key not in sizes)


def costs_table(entries: Sequence[Entry]) -> Table:
    """Both heads, and what each costs: parameters used in prediction, time and memory of training.

    Only runs that measured their memory: so every row is the mean of the same runs."""
    experiments = _ordered([entry for entry in entries if entry.peak_megabytes is not None])
    rankings = dict(zip(map(id, experiments), _rankings(experiments), strict=True))
    lines = [
        (group, head) for group in experiments for head in HEADS if group.first.metrics.get(head) is not None
    ]
    columns = (
        Column("method", "Method"),
        Column("head", "Head"),
        Column("seeds", "Seeds", True),
        *metric_columns(),
        Column("parameters", "Parameters", True),
        Column("seconds_per_epoch", "s / epoch", True),
        Column("minutes", "Minutes", True),
        Column("peak_megabytes", "Peak MB", True),
    )
    rows = tuple(
        (
            group.label,
            HEADS[head],
            len(group.seeds),
            *metric_cells(group, head),
            *(_costs(group.results) if head == "softmax" else (None,) * 4),
        )
        for group, head in lines
    )
    return Table(
        "Both heads of the runs in the ledger, in percent, and their costs",
        columns,
        rows,
        tuple(rankings[id(group)] and f"{head} {rankings[id(group)]}" for group, head in lines),
        _sections([group for group, _ in lines]),
    )


def _costs(results: Sequence[Entry]) -> tuple[Cell, ...]:
    n = len(results)
    return (
        f"{results[0].parameters:,}",
        spread(entry.seconds_per_epoch for entry in results),
        f"{sum(entry.seconds or 0.0 for entry in results) / n / 60:.1f}",
        f"{sum(entry.peak_megabytes or 0.0 for entry in results) / n:,.0f}",
    )


def ablation_table(entries: Sequence[Entry]) -> Table:
    """With and without each of the three components: the runs whose settings name all three, and that differ
    in them alone from another."""
    named = [group for group in groups(entries, section) if None not in ticks(group)]
    rows_of = Counter(map(_without_components, named))
    ablated = [group for group in named if rows_of[_without_components(group)] > 1]
    labels = _labels_without_components(ablated)

    def order(group: Entries) -> tuple[object, ...]:
        first = group.first
        return *_section_order(group), labels[id(group)], _exemplars(first) or "", ticks(group)

    ablated.sort(key=order)
    columns = (
        *(Column(name.lower(), name) for name, *_ in ABLATION),
        Column("method", "Method"),
        Column("exemplars", "Exemplars per class", True),
        Column("seeds", "Seeds", True),
        *metric_columns(),
    )
    rows = tuple(
        (
            *(TICK if tick else DASH for tick in ticks(group)),
            labels[id(group)],
            _exemplars(group.first),
            len(group.seeds),
            *metric_cells(group),
        )
        for group in ablated
    )
    caption = "Ablation of the three components, in percent"
    return Table(caption, columns, rows, _rankings(ablated), _sections(ablated))


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


def _labels_without_components(ablated: Sequence[Entries]) -> dict[int, str]:
    """By the identity of a group: the ticks show the components, so the label shows what differs besides them."""
    labels: dict[int, str] = {}
    for name in set(_sections(ablated)):
        members = [group for group in ablated if section(group.first.settings) == name]
        components = {key for _, key, *_ in ABLATION}
        others = varying([identity(group.first.settings) for group in members]) - components - {"seed"}
        labels |= {id(group): label(group.first.settings, others) for group in members}
    return labels
