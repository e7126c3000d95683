"""The ledger's methods side by side, as in the paper's main table: only runs of one scale, split by image.

A scale is what makes any method better: image size, network, training and the number of exemplars. What the ledger
has at several scales gives several comparisons, the one with the most experiments first.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from endocil.io.text_tables import DASH, TIE, Cell, Column, Table, listed, shown, spread
from endocil.methods import method_title
from endocil.metrics.metrics import TABLE_METRICS
from endocil.metrics.statistics import paired_t_p
from endocil.reports.comparisons import SIGNIFICANT
from endocil.reports.ledger import Entry, uses_method_defaults
from endocil.reports.ledger_tables import (
    MEMORY_SIZES,
    STEM,
    Entries,
    chosen_by_method,
    is_frozen,
    section,
    shared_budget,
    ticks,
    training_kind,
)
from endocil.reports.tables import LOWER_IS_BETTER, METHOD, SEEDS, TITLES, metric_cells
from endocil.runs.experiments import differing, format_value, groups, identity, label, split_description, split_title

HEAD = "softmax"
OF_A_SCALE = ("data.size", "network.", "train.", *MEMORY_SIZES)
OPTIONS = ("method.", "memory.", "network.stem", "train.later_factor")  # what makes a variant of a method
SHOWN = ("acc_last", "f1_last")  # of a variant
FEWEST = 2  # methods that learn task by task: fewer are no comparison


@dataclass(frozen=True)
class DataSet:
    """The experiments on one data set, with the same images and tasks."""

    title: str
    methods: tuple[Entries, ...]

    @property
    def learners(self) -> list[Entries]:
        """Those that learn task by task, the highest Acc_last first."""
        return sorted((one for one in self.methods if one.incremental), key=lambda one: -mean_of(one, "acc_last"))

    @property
    def ranked(self) -> list[Entries]:
        """Of the learners those with several seeds, if there are any: a single run may be a lucky one."""
        several = [one for one in self.learners if len(one.seeds) > 1]
        return several or self.learners

    def method(self, label: str) -> Entries | None:
        return next((one for one in self.methods if one.label == label), None)

    def best(self, metric: str) -> Entries:
        lower = metric in LOWER_IS_BETTER
        return min(self.ranked, key=lambda one: mean_of(one, metric) * (1 if lower else -1))

    def ties(self, metric: str) -> list[Entries]:
        """Those whose difference from the best is not significant over the seeds that both have, at least two."""
        best = self.best(metric)
        gaps = [(one, differences(best, one, metric)) for one in self.ranked if one is not best]
        return [one for one, own in gaps if len(own) > 1 and not significant(own)]


@dataclass(frozen=True)
class Comparison:
    """All data sets at one scale."""

    scale: str
    data_sets: tuple[DataSet, ...]

    @property
    def kind(self) -> str:
        """How the networks came to their weights; a scale has one network."""
        return training_kind(self.data_sets[0].methods[0].first.settings)

    def table(self) -> Table:
        """A row for each method, five columns for each data set; the number of seeds where it differs."""
        columns = [METHOD]
        by_method: dict[str, list[Cell]] = {label: [] for label in self._labels()}
        ties = set[tuple[int, int]]()
        for data in self.data_sets:
            numbers = {len(one.seeds) for one in data.methods}
            if len(numbers) > 1:
                columns.append(Column(f"{data.title} seeds", "Seeds", True, group=data.title))
            heads = [_column(data.title, metric) for metric in TABLE_METRICS]
            tied = {metric: {one.label for one in data.ties(metric)} for metric in TABLE_METRICS}
            for row, (name, cells) in enumerate(by_method.items()):
                own = data.method(name)
                cells += [] if len(numbers) == 1 else [None if own is None else len(own.seeds)]
                ties |= {(row, len(columns) + j) for j, metric in enumerate(TABLE_METRICS) if name in tied[metric]}
                values: tuple[Cell, ...] = (None,) * len(heads) if own is None else metric_cells(own, HEAD)
                is_ranked = own in data.ranked or own not in data.learners
                cells += values if is_ranked else map(shown, values)  # a text is not ranked
            columns += heads
        rows = tuple((label, *cells) for label, cells in by_method.items())
        upper = {one.label for data in self.data_sets for one in data.methods if not one.incremental}
        rankings = tuple(None if label in upper else "" for label in by_method)
        return Table(self.scale, tuple(columns), rows, rankings, ties=frozenset(ties))

    def _labels(self) -> list[str]:
        """Methods without exemplars first, upper bounds last, as in the tables of the ledger."""
        every = [one for data in self.data_sets for one in data.methods]
        keys = {one.label: (not one.incremental, bool(one.first.exemplars), one.label.lower()) for one in every}
        return sorted(keys, key=keys.__getitem__)

    def seeds(self) -> str:
        """How many seeds each data set has, where all its methods have as many: "3 seeds on A; 5 seeds on B"; and where
        all data sets have as many, "3 seeds"."""
        by_number: dict[int, list[str]] = {}
        for data in self.data_sets:
            numbers = {len(one.seeds) for one in data.methods}
            if len(numbers) == 1:
                by_number.setdefault(numbers.pop(), []).append(data.title)
        words = {n: "1 seed" if n == 1 else f"{n} seeds" for n in by_number}
        if [len(names) for names in by_number.values()] == [len(self.data_sets)]:
            return "".join(words.values())
        return "; ".join(f"{words[n]} on {', '.join(names)}" for n, names in by_number.items())


def variants_table(entries: Sequence[Entry]) -> Table:
    """What an option changes: each experiment from scratch that differs from the same method with its default options
    in options of the method or of exemplar selection, the stem or the rate of later tasks, over the seeds that both
    have. The components of the ablation have a table of their own."""
    columns = (METHOD, SEEDS, *(Column(name, TITLES[name], True) for name in SHOWN))
    columns += tuple(Column(f"{name} difference", f"Difference in {TITLES[name]}", True) for name in SHOWN)
    columns += (Column("p", f"p ({TITLES[SHOWN[0]]})", True),)
    rows, sections = list[tuple[Cell, ...]](), list[str]()
    learned = [one for one in groups(entries, section) if one.incremental and not is_frozen(one.first.settings)]
    defaults = [one for one in learned if _is_usual(one.first.settings)]
    pairs = [(one, usual, keys) for one in learned for usual in defaults if (keys := _varied(one, usual))]
    for one, usual, keys in sorted(pairs, key=lambda pair: (section(pair[1].first.settings), pair[0].label)):
        gaps = {name: differences(one, usual, name) for name in SHOWN}
        if n := len(gaps[SHOWN[0]]):
            p = paired_t_p(gaps[SHOWN[0]])
            means = (f"{round(statistics.fmean(own), 2) + 0.0:+.2f}" for own in gaps.values())
            own = (spread(entry.metrics[HEAD][name] for entry in one.results) for name in SHOWN)
            rows.append((label(one.first.settings, keys), n, *own, *means, f"{p:.2g}" if n > 1 else None))
            sections.append(section(usual.first.settings))
    return Table("Variants of methods, in percent", columns, tuple(rows), (), tuple(sections))


def _varied(one: Entries, usual: Entries) -> set[str]:
    """The options in which an experiment differs from the usual one; none where it differs in anything else."""
    both = [{**identity(group.first.settings), "seed": None} for group in (one, usual)]
    keys = differing(both)
    options = {key for key in keys if key.startswith(OPTIONS) and key not in (*MEMORY_SIZES, "method.name")}
    return keys if keys == options and ticks(one) == ticks(usual) else set()


def _is_usual(settings: Mapping[str, Any]) -> bool:
    usual = label(settings) == method_title(settings["method"]["name"]) and uses_method_defaults(settings)
    return usual and settings.get("network", {}).get("stem", STEM) == STEM


def _column(data: str, metric: str) -> Column:
    best = "min" if metric in LOWER_IS_BETTER else "max"
    return Column(f"{data} {metric}", TITLES[metric], True, best, data)


def mean_of(group: Entries, metric: str = "acc_last") -> float:
    value = spread(entry.metrics[HEAD][metric] for entry in group.results)
    return float("nan") if value is None else value.mean


def differences(one: Entries, other: Entries, metric: str = "acc_last") -> list[float]:
    """The first minus the second for each seed that both have."""
    by_seed = {entry.settings["seed"]: entry.metrics[HEAD][metric] for entry in other.results}
    shared = [entry for entry in one.results if entry.settings["seed"] in by_seed]
    return [entry.metrics[HEAD][metric] - by_seed[entry.settings["seed"]] for entry in shared]


def significant(differences: Sequence[float]) -> bool:
    """By the paired t test; one seed is never enough."""
    return paired_t_p(differences) < SIGNIFICANT


def comparisons(entries: Sequence[Entry], *, by_image: bool = True) -> list[Comparison]:
    """Of these runs (with the default options of their methods) those split by image, scale by scale; or those split
    otherwise."""
    by_scale: dict[str, list[Entry]] = {}
    for entry in entries:
        if (split_description(entry.settings) == "by image") == by_image:
            own = chosen_by_method(entry.settings)
            values = identity(entry.settings).items()
            scale = {key: value for key, value in values if key.startswith(OF_A_SCALE) and key not in own}
            by_scale.setdefault(_key(scale), []).append(entry)
    tables = [one for members in by_scale.values() for one in _in_tables(_title(members), members)]
    return sorted(tables, key=lambda one: (-sum(len(data.methods) for data in one.data_sets), one.scale))


def _in_tables(scale: str, entries: Sequence[Entry]) -> list[Comparison]:
    """One table for the data sets with most of the methods; a table of its own for each on which few were run."""
    data_sets = _data_sets(entries)
    most = max((len(data.methods) for data in data_sets), default=0)
    full = tuple(data for data in data_sets if 2 * len(data.methods) >= most)
    few = [Comparison(scale, (data,)) for data in data_sets if data not in full]
    return [*([Comparison(scale, full)] if full else []), *few]


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _title(entries: Sequence[Entry]) -> str:
    """What the runs share. The number of exemplars is named where a method keeps any, and learning rates where they
    differ between methods."""
    settings = entries[0].settings
    memory = settings.get("memory", {})
    exemplars = f"{memory['total']} exemplars in all" if memory.get("total") else None
    exemplars = exemplars or f"{memory['per_class']} exemplars per class"
    rates = sorted({float(rate) for entry in entries if (rate := entry.settings.get("train", {}).get("learning_rate"))})
    parts = [shared_budget(settings)]
    parts += [f"learning rates {listed([f'{rate:g}' for rate in rates])} by method"] if len(rates) > 1 else []
    return ", ".join([*parts, *([exemplars] if any(entry.exemplars for entry in entries) else [])])


def _data_sets(entries: Sequence[Entry]) -> tuple[DataSet, ...]:
    """By title. Two variants of one data set, such as with and without a class, are named by their difference."""
    variants: dict[str, list[Entry]] = {}
    for entry in entries:
        variants.setdefault(_key(_images(entry.settings)), []).append(entry)
    by_title: dict[str, list[list[Entry]]] = {}
    for members in variants.values():
        by_title.setdefault(split_title(members[0].settings), []).append(members)
    data_sets = []
    for title, namesakes in sorted(by_title.items()):
        settings = [_images(members[0].settings) for members in namesakes]
        keys = sorted(differing(settings))
        for members, own in zip(namesakes, settings, strict=True):
            suffix = ", ".join(f"{key.partition('.')[2]}={format_value(own.get(key)) or 'none'}" for key in keys)
            data = DataSet(f"{title} ({suffix})" if suffix else title, tuple(groups(members)))
            data_sets += [data] if len(data.learners) >= FEWEST else []
    return tuple(data_sets)


def _images(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What determines images and tasks."""
    own = ("seed", "method.", "memory.", *OF_A_SCALE)
    return {key: value for key, value in identity(settings).items() if not key.startswith(own)}


def side_by_side_text(compared: Sequence[Comparison]) -> str:
    """Every comparison as Markdown, those from scratch, fine-tuned and frozen together, and what the marks mean."""
    if not compared:
        return f"The ledger has no data set with {FEWEST} methods, split by image.\n"
    parts = []
    kinds = [one.kind for one in compared]
    for one in sorted(compared, key=lambda one: kinds.index(one.kind)):
        seeds = f" ({one.seeds()})" if one.seeds() else ""
        parts.append(f"**{one.kind}: {one.scale}{seeds}**\n\n{one.table().markdown()}")
    return "\n".join(parts) + (
        f"\nMean ± sample standard deviation over seeds, in percent, softmax head. Bold is the best mean of a column, "
        f"underlined the second. {TIE} means that the difference from the best is not significant (paired t test over "
        f"the seeds that both have, p ≥ {SIGNIFICANT}, not corrected for the number of methods). A single run is not "
        f"ranked beside methods with several seeds. JointTrain learns all classes at once and is not ranked. {DASH} "
        f"means not run, or not defined for one task.\n"
    )
