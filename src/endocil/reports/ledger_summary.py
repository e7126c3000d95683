"""The ledger's results in plain sentences: what ends highest on each data set, and what of it is noise."""

import statistics
from collections.abc import Sequence

from endocil.io.text_tables import listed
from endocil.methods import ALIGNING, BASELINE, COMPARED, OWN_METHOD, method_title
from endocil.metrics.statistics import paired_t_p
from endocil.reports.ledger import Entry
from endocil.reports.ledger_tables import ALIGNMENT, Entries, alignment_table, is_frozen, section
from endocil.reports.side_by_side import DataSet, comparisons, differences, significant
from endocil.runs.experiments import groups

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
    best, untested = data.best("acc_last"), data.untested("acc_last")
    ties = [one for one in data.ties("acc_last") if one not in untested]
    n_run = _run_of_compared(data)
    part = f" ({n_run} of {len(COMPARED)} methods so far)" if n_run < len(COMPARED) else ""
    noise = (
        [f"{listed([one.label for one in ties])} {'is' if len(ties) == 1 else 'are'} within noise of it"]
        if ties
        else []
    )
    if not ties and len(data.learners) > 1 + len(untested):
        noise = [f"all others{' with several seeds' if untested else ''} are significantly lower"]
    if untested:
        noise += [f"too few seeds of {listed([one.label for one in untested])} to tell noise"]
    parts = [
        f"**{data.title}**{part}: {best.label} has the highest accuracy after the last task ({_mean(best):.1f} %)",
        *noise,
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
