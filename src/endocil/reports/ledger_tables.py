"""Tables from the ledger, data set by data set: all experiments, both heads with their costs, the ablation, the factors
of weight alignment, and leaks from train to test."""

import json
import statistics
from collections.abc import Sequence

from endocil.data.leaks import RATES
from endocil.io.text_tables import DASH, Cell, Column, Table, listed, spread
from endocil.methods import ALIGNING, BASELINE, COMPARED, OWN_METHOD, method_title
from endocil.metrics.statistics import paired_t_p
from endocil.reports.ledger import Entry
from endocil.reports.side_by_side import DataSet, comparisons, differences, significant
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

Entries = Group[Entry]


def section(settings: Json) -> str:
    """The data set with its split, and what all rows below it share."""
    return ": ".join(filter(None, [split_title(settings), shared_budget(settings)]))


def shared_budget(settings: Json) -> str:
    """Image size, network and epochs; a frozen network is named, and its epochs are those of a head at most."""
    values = flatten(settings)
    shared = [("data.size", "{} px"), ("network.width", "width {}"), ("train.epochs", "{} epochs per task")]
    if is_frozen(settings):
        weights = f" ({values['network.weights']})" if values.get("network.weights") else ""
        shared[1:] = [("network.backbone", "frozen {}" + weights)]
    return ", ".join(text.format(values[key]) for key, text in shared if key in values)


def is_frozen(settings: Json) -> bool:
    """Whether nothing of the backbone learns."""
    return list(settings.get("network", {}).get("freeze") or ()) == ["all"]


def ledger_table(entries: Sequence[Entry]) -> Table:
    """Every experiment, mean ± sample standard deviation over its seeds."""
    experiments = _ordered(entries)
    columns = (METHOD, Column("tasks", "Tasks", True), EXEMPLARS, SEEDS, *metric_columns())
    rows: list[tuple[Cell, ...]] = []
    for group in experiments:
        tasks = len(group.first.metrics["task_sizes"])
        rows.append((group.label, tasks, _exemplars(group.first), len(group.seeds), *metric_cells(group)))
    caption = "Runs in the ledger, in percent"
    return Table(caption, columns, tuple(rows), _rankings(experiments), _sections(experiments))


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
        *(Column(name, text[:1].upper() + text[1:], True) for name, text in RATES.items()),
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
        labels |= {id(group): label(group.first.settings, others) for group in members}
    return labels


# --- the results in plain sentences: what ends highest on each data set, and what of it is noise


OWN, BASE = method_title(OWN_METHOD), method_title(BASELINE)


def summary(entries: Sequence[Entry]) -> str:
    """Of the scale with the most experiments: each data set split by image, then those split otherwise."""
    found = comparisons(entries)
    if not found:
        return "Nothing was run yet.\n"
    sentences = [_data_set(data) for one in found if one.scale == found[0].scale for data in one.data_sets]
    sentences += [
        f"**{data.title}**: {_against_base(data)}."
        for other in comparisons(entries, by_image=False)
        if other.scale == found[0].scale
        for data in other.data_sets
        if _against_base(data)
    ]
    return "".join(f"- {sentence}\n" for sentence in sentences)


def overview(entries: Sequence[Entry]) -> str:
    """The summary in a few sentences: data sets with all of the paper's methods, then what frozen features add."""
    found = comparisons(entries)
    whole = [data for data in found[0].data_sets if _run_of_compared(data) == len(COMPARED)] if found else []
    if not whole:
        return "No data set has all methods yet.\n"
    best = {data.title: data.best("acc_last") for data in whole}
    highest = listed([f"{one.label} on {title} ({_mean(one):.1f} %)" for title, one in best.items()])
    tied = [data.title for data in whole if OWN in (best[data.title].label, *(t.label for t in data.ties("acc_last")))]
    gaps = {
        data.title: differences(own, base)
        for data in whole
        if (own := data.method(OWN)) and (base := data.method(BASE))
    }
    means, clear = [statistics.fmean(own) for own in gaps.values()], sum(map(significant, gaps.values()))
    sides = {word for word, side in (("above", 1), ("below", -1)) if any(side * mean > 0 for mean in means)}
    sentences = [
        f"**Trained from scratch** ({found[0].scale}): the highest accuracy after the last task is that of {highest}.",
        f"{OWN} is the highest, or within noise of it, on {len(tied)} of {len(whole)} data sets. On average it ends "
        f"{min(map(abs, means)):.1f} to {max(map(abs, means)):.1f} points {' or '.join(sorted(sides))} {BASE} "
        f"(significant on {clear} of {len(gaps)}).",
    ]
    frozen = [
        (data.title, top)
        for other in found
        for data in other.data_sets
        if is_frozen((top := data.best("acc_last")).first.settings)
    ]
    if frozen:
        texts = [
            f"{top.label} {_mean(top):.1f} % on {title}"
            + (f" ({_mean(best[title]):.1f} % from scratch)" if title in best else "")
            for title, top in frozen
        ]
        sentences.append(
            f"**Frozen features of a network trained on ImageNet**, with a classifier in closed form: {listed(texts)}. "
            f"That takes one pass over the images instead of training, and keeps sums in place of patients' images."
        )
    return "".join(f"- {sentence}\n" for sentence in sentences)


def alignment_text(entries: Sequence[Entry]) -> str:
    """How methods with weight alignment end against iCaRL, their factors, and which entries have none."""
    aligning = [entry for entry in entries if entry.settings["method"]["name"] in ALIGNING]
    lines = [
        f"- {data.title}: {'; '.join(gaps)}.\n"
        for data in (comparisons(entries)[0].data_sets if aligning and comparisons(entries) else ())
        if (gaps := _aligned_against_base(data))
    ]
    parts = [f"Acc_last against {BASE}, mean over the seeds that both have:\n\n{''.join(lines)}"] if lines else []
    table = alignment_table(aligning)
    parts += [table.markdown()] if table.rows else []
    unrecorded: dict[str, list[str]] = {}
    for group in groups([entry for entry in aligning if ALIGNMENT not in entry.measured], section):
        unrecorded.setdefault(section(group.first.settings), []).append(group.label)
    missing = [f"{listed(sorted(names))} on {where}" for where, names in sorted(unrecorded.items())]
    parts += [f"Factors not recorded: {'; '.join(missing)}.\n"] if missing else []
    return "\n".join(parts) or "Nothing was run yet.\n"


def _aligned_against_base(data: DataSet) -> list[str]:
    base = data.method(BASE)
    texts = []
    for title in map(method_title, ALIGNING):
        own = data.method(title)
        if own and base and (gaps := differences(own, base)):
            texts.append(f"{title} {statistics.fmean(gaps):+.1f} ({_evidence(gaps)})")
    return texts


def _data_set(data: DataSet) -> str:
    best, ties = data.best("acc_last"), data.ties("acc_last")
    n_run = _run_of_compared(data)
    part = f" ({n_run} of {len(COMPARED)} methods so far)" if n_run < len(COMPARED) else ""
    noise = f"{listed([one.label for one in ties])} {'is' if len(ties) == 1 else 'are'} within noise of it"
    parts = [
        f"**{data.title}**{part}: {best.label} has the highest accuracy after the last task ({_mean(best):.1f} %)",
        noise if ties else "all others are significantly lower",
        *filter(None, [_below(data, best), _against_base(data)]),
    ]
    return "; ".join(parts) + "."


def _run_of_compared(data: DataSet) -> int:
    """How many of the paper's methods that learn task by task were run."""
    run = {one.label for one in data.methods}
    return sum(method_title(name) in run for name in COMPARED)


def _mean(group: Entries, metric: str = "acc_last") -> float:
    return statistics.fmean(entry.metrics["softmax"][metric] for entry in group.results)


def _below(data: DataSet, best: Entries) -> str:
    own = data.method(OWN)
    if own is None or own is best or not (gaps := differences(best, own)):
        return ""
    return f"{OWN} ({_mean(own):.1f} %) ends {statistics.fmean(gaps):.1f} points below {best.label} ({_evidence(gaps)})"


def _against_base(data: DataSet) -> str:
    own, base = data.method(OWN), data.method(BASE)
    gaps = sorted(differences(own, base)) if own and base else []
    if not gaps:
        return ""
    if gaps[0] > 0 or gaps[-1] < 0:
        low, high = sorted(abs(gap) for gap in (gaps[0], gaps[-1]))
        points = f"{low:.1f} to {high:.1f}" if len(gaps) > 1 else f"{low:.1f}"
        side = "above" if gaps[0] > 0 else "below"
        each = "each of " if len(gaps) > 1 else ""
        return f"{OWN} ends {points} points {side} {BASE} with {each}{_seeds(gaps)} ({_evidence(gaps, seeds=False)})"
    mean = statistics.fmean(gaps)
    side = "above" if mean > 0 else "below"
    return f"{OWN} ends {abs(mean):.1f} points {side} {BASE} on average, but not with every seed ({_evidence(gaps)})"


def _seeds(gaps: Sequence[float]) -> str:
    return f"{len(gaps)} seeds" if len(gaps) > 1 else "one seed"


def _evidence(gaps: Sequence[float], *, seeds: bool = True) -> str:
    """What a difference is worth by the paired t test."""
    over = f" over {_seeds(gaps)}" if seeds else ""
    if len(gaps) < 2:
        return "one seed shows nothing about noise"
    word = "significant" if significant(gaps) else "not significant"
    return f"{word}{over}, p = {paired_t_p(gaps):.2g}"
