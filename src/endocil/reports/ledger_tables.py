"""Tables from the ledger, data set by data set: all experiments, both heads with their costs, the ablation, the factors
of weight alignment, and leaks from train to test."""

import json
from collections.abc import Callable, Sequence

from endocil.data.leaks import RATES
from endocil.io.text_tables import DASH, Cell, Column, Table, spread
from endocil.learning.memory import SELECTORS
from endocil.registry import options_of
from endocil.reports.ledger import Entry
from endocil.reports.tables import METHOD, SEEDS, metric_cells, metric_columns
from endocil.runs.experiments import Group, budget, data_title, flatten, groups, identity, label, split_title, varying
from endocil.runs.records import Json

# The paper's name of a component, its setting, and the values for "with" and "without" it.
ABLATION = (
    ("MDBR", "memory.select", "mmd", "mean"),
    ("PRCBL", "method.loss", "prior_regularized", "cross_entropy"),
    ("CFG", "method.gradients", "calibrated", "plain"),
)
HEADS = {"softmax": "softmax", "nearest_mean": "nearest mean"}
TICK = "✓"
ALIGNMENT = "alignment"  # the factor's name in what a method measures
MEMORY_SIZES = ("memory.per_class", "memory.total")
EXEMPLARS = Column("exemplars", "Exemplars per class", True)
STEM = "7x7"  # the usual one, which need not be named
SCRATCH, FINE_TUNED, FROZEN = "Trained from scratch", "Fine-tuned", "Frozen features"

Entries = Group[Entry]


def section(settings: Json) -> str:
    """The data set with its split, and what all rows below it share."""
    return ": ".join(filter(None, [split_title(settings), shared_budget(settings)]))


def shared_budget(settings: Json) -> str:
    """Image size, network and epochs, and what is unusual of stem and learning rate. A network that starts from weights
    is named; where it is frozen, epochs are those of a head at most and left out."""
    values = flatten(settings)
    factor = values.get("train.later_factor", 1.0)
    parts = [f"{values['data.size']} px" if "data.size" in values else "", *_network(settings)]
    if not is_frozen(settings):
        parts += [f"{values['train.epochs']} epochs per task" if "train.epochs" in values else ""]
        parts += [f"later tasks at {factor:g} of the learning rate" if factor != 1.0 else ""]
    return ", ".join(filter(None, parts))


def _network(settings: Json) -> list[str]:
    own = settings.get("network", {})
    width, stem, frozen = own.get("width"), own.get("stem") or STEM, list(own.get("freeze") or ())
    name = str(own.get("backbone", ""))
    weights = f" ({own['weights']})" if own.get("weights") else ""
    if is_frozen(settings):
        return [f"frozen {name}{weights}"] if name else []
    named = f"fine-tuned {name}{weights}" if weights else name if width is None else ""
    stages = f"{frozen[0]} to {frozen[-1]} frozen" if len(frozen) > 1 else f"{frozen[0]} frozen" if frozen else ""
    return [named, f"width {width}" if width else "", f"stem {stem}" if stem != STEM else "", stages]


def is_frozen(settings: Json) -> bool:
    """Whether nothing of the backbone learns."""
    return list(settings.get("network", {}).get("freeze") or ()) == ["all"]


def training_kind(settings: Json) -> str:
    """How the network came to its weights, in words."""
    weights = settings.get("network", {}).get("weights")
    if is_frozen(settings):
        return "Frozen ImageNet features" if weights == "imagenet" else FROZEN
    return FINE_TUNED if weights else SCRATCH


def chosen_by_method(settings: Json) -> tuple[str, ...]:
    """Keys that may differ between methods side by side: a network that starts from weights is trained by each method
    at the learning rate that suits it."""
    return ("train.learning_rate",) if training_kind(settings) == FINE_TUNED else ()


def ledger_table(entries: Sequence[Entry]) -> Table:
    """Every experiment, mean ± sample standard deviation over its seeds."""
    experiments = _ordered(entries, _section_and_memory)
    columns = (METHOD, Column("tasks", "Tasks", True), EXEMPLARS, SEEDS, *metric_columns())
    rows: list[tuple[Cell, ...]] = []
    for group in experiments:
        tasks = len(group.first.metrics["task_sizes"])
        rows.append((group.label, tasks, _exemplars(group.first), len(group.seeds), *metric_cells(group)))
    caption = "Runs in the ledger, in percent"
    return Table(caption, columns, tuple(rows), _rankings(experiments), _sections(experiments))


def _ordered(entries: Sequence[Entry], shown: Callable[[Json], str] = section) -> list[Entries]:
    """By data set; upper bounds last, methods without exemplars first. `shown`: what a label need not repeat."""
    return sorted(
        groups(entries, shown),
        key=lambda one: (*_section_order(one), not one.incremental, one.first.exemplars, one.label.lower()),
    )


def _section_and_memory(settings: Json) -> str:
    """Of tables with a column for the number of exemplars."""
    values = flatten(settings)
    return f"{section(settings)} {[values.get(key) for key in MEMORY_SIZES]}"


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
    """Experiments are ranked that share images, tasks, training and number of exemplars, whatever their method. A best
    value is marked only among experiments with the same seeds: a single run may be a lucky one."""
    keys = [_shared_settings(group, "method.") if group.incremental else None for group in experiments]
    pairs = list(zip(keys, experiments, strict=True))
    seeds = {key: {group.seeds for other, group in pairs if other == key} for key in keys}
    return tuple(key if len(seeds[key]) == 1 else None for key in keys)


def _shared_settings(group: Entries, *own: str) -> str:
    """All settings that determine the result, but the seed, exemplar selection and those that begin with `own`."""
    values = identity(group.first.settings)
    free = ("seed", "memory.", *own)
    kept = {key: value for key, value in values.items() if key in MEMORY_SIZES or not key.startswith(free)}
    return json.dumps(kept, sort_keys=True, default=str)


def costs_table(entries: Sequence[Entry]) -> Table:
    """Both heads, and what each costs: parameters used in prediction, time and memory of training.

    Only runs that measured their memory: so every row is the mean of the same runs."""
    experiments = _ordered([entry for entry in entries if entry.peak_megabytes is not None])
    costs = {
        "parameters": "Parameters",
        "seconds_per_epoch": "s / epoch",
        "minutes": "Minutes",
        "peak_megabytes": "Peak MB",
    }
    cost_columns = (Column(key, title, True) for key, title in costs.items())
    columns = (METHOD, Column("head", "Head"), SEEDS, *metric_columns(), *cost_columns)
    rows: list[tuple[Cell, ...]] = []
    rankings: list[str | None] = []
    sections: list[str] = []
    for group, ranking in zip(experiments, _rankings(experiments), strict=True):
        for head, title in HEADS.items():
            if group.first.metrics.get(head) is not None:
                cells = _costs(group.results) if head == "softmax" else (None,) * len(costs)
                rows.append((group.label, title, len(group.seeds), *metric_cells(group, head), *cells))
                rankings.append(ranking and f"{head} {ranking}")
                sections.append(section(group.first.settings))
    caption = "Both heads of the runs in the ledger, in percent, and their costs"
    return Table(caption, columns, tuple(rows), tuple(rankings), tuple(sections))


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
    others = [_shared_settings(group, "method.loss", "method.gradients") for group in named]
    ablated = [group for group, other in zip(named, others, strict=True) if others.count(other) > 1]
    labels = _labels_without_components(ablated)

    def order(group: Entries) -> tuple[object, ...]:
        first = group.first
        return *_section_order(group), labels[id(group)], _exemplars(first) or "", ticks(group)

    ablated.sort(key=order)
    components = (Column(name.lower(), name) for name, *_ in ABLATION)
    columns = (*components, METHOD, EXEMPLARS, SEEDS, *metric_columns())
    rows: list[tuple[Cell, ...]] = []
    for group in ablated:
        marks = (TICK if tick else DASH for tick in ticks(group))
        first = (*marks, labels[id(group)], _exemplars(group.first), len(group.seeds))
        rows.append((*first, *metric_cells(group)))
    caption = "Ablation of the three components, in percent"
    return Table(caption, columns, tuple(rows), _rankings(ablated), _sections(ablated))


def alignment_table(entries: Sequence[Entry]) -> Table:
    """The factor by which weight alignment multiplies the new classes' rows, after each task but the first."""
    recorded = [entry for entry in entries if ALIGNMENT in entry.measured]
    tasks = max((len(entry.measured[ALIGNMENT]) for entry in recorded), default=1)
    by_task = (Column(f"task_{t}", f"Task {t}", True) for t in range(2, tasks + 1))
    experiments = _ordered(recorded)
    rows: list[tuple[Cell, ...]] = []
    for group in experiments:
        factors = [entry.measured[ALIGNMENT] for entry in group.results]
        cells = (spread(own[t] for own in factors) if t < len(factors[0]) else None for t in range(1, tasks))
        rows.append((group.label, len(group.seeds), *cells))
    columns = (METHOD, SEEDS, *by_task)
    return Table("Factors of weight alignment", columns, tuple(rows), (), _sections(experiments))


def leaks_table(entries: Sequence[Entry]) -> Table:
    """The share of the test images that the training part has seen, for each data set and split."""
    splits: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        splits.setdefault((split_title(entry.settings), entry.metrics["test_images"][-1]), []).append(entry)
    columns = (
        Column("data", "Data"),
        Column("test_images", "Test images", True),
        *(Column(name, f"{text[:1].upper()}{text[1:]} in training", True) for name, text in RATES.items()),
    )
    rows: list[tuple[Cell, ...]] = []
    for (title, n), members in sorted(splits.items()):
        recorded = next((entry.leaks for entry in members if entry.leaks), None)
        rates = [None if recorded is None else recorded.get(name) for name in RATES]
        missing = "not recorded" if recorded is None else None
        rows.append((title, f"{n:,}", *(missing if rate is None else f"{100 * rate:.1f} %" for rate in rates)))
    return Table("Test images that the training part has seen", columns, tuple(rows))


def ticks(group: Entries) -> tuple[bool | None, ...]:
    """True with the component, False without it, None where the run has neither."""
    settings = flatten(group.first.settings)
    return tuple({on: True, off: False}.get(settings.get(key, "")) for _, key, on, off in ABLATION)


def _labels_without_components(ablated: Sequence[Entries]) -> dict[int, str]:
    """By the identity of a group: the ticks show the components, so the label shows what differs besides them."""
    labels: dict[int, str] = {}
    for name in set(_sections(ablated)):
        members = [group for group in ablated if section(group.first.settings) == name]
        components = {key for _, key, *_ in ABLATION}
        others = varying([identity(group.first.settings) for group in members]) - components - {"seed"}
        for group in members:
            values, defaults = identity(group.first.settings), _selector_defaults(group.first.settings)
            shown = {key for key in others if values.get(key) != defaults.get(key, DASH)}
            labels[id(group)] = label(group.first.settings, shown)
    return labels


def _selector_defaults(settings: Json) -> Json:
    """Options that go with the selector, which the ticks show, need no word where they have their defaults."""
    selector = SELECTORS.get(settings.get("memory", {}).get("select", ""))
    return {} if selector is None else {f"memory.{key}": value for key, value in options_of(selector).items()}
