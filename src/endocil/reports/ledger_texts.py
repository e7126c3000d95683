"""The ledger in words: what ends highest on each data set and what of it is noise; and all its texts by name."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from endocil.io.text_tables import listed
from endocil.methods import ALIGNING, BASELINE, COMPARED, OWN_METHOD, PROJECTS_OWN, method_title
from endocil.metrics.statistics import paired_t_p
from endocil.reports.ledger import Entry, read_ledger, uses_method_defaults
from endocil.reports.ledger_tables import (
    ALIGNMENT,
    FINE_TUNED,
    SCRATCH,
    Entries,
    ablation_table,
    alignment_table,
    costs_table,
    is_frozen,
    leaks_table,
    ledger_table,
    section,
)
from endocil.reports.ranks_over_data import ranks_text
from endocil.reports.side_by_side import (
    Comparison,
    DataSet,
    comparisons,
    differences,
    mean_of,
    side_by_side_text,
    significant,
    variants_table,
)
from endocil.runs.experiments import data_title, groups
from endocil.runs.records import completed

OWN, BASE, PAPERS = method_title(OWN_METHOD), method_title(BASELINE), frozenset(map(method_title, COMPARED))


def ledger_texts(folder: Path) -> dict[str, str]:
    """The ledger's tables and sentences by name, as Markdown."""
    entries = read_ledger(folder, complete=completed)
    defaults = [entry for entry in entries if uses_method_defaults(entry.settings)]
    side_by_side = comparisons(defaults)
    return {
        "runs": ledger_table(entries).markdown(),
        "methods": ledger_table(defaults).markdown(),
        "costs": costs_table(defaults).markdown(),
        "ablation": ablation_table(entries).markdown(),
        "paper": side_by_side_text(side_by_side),
        "ranks": ranks_text(side_by_side[0] if side_by_side else None, "images/ranks.svg"),
        "variants": variants_table(entries).markdown(),
        "alignment": alignment_text(defaults),
        "leaks": leaks_table(entries).markdown(),
        "summary": summary(defaults),
        "overview": overview(defaults),
    }


def summary(entries: Sequence[Entry]) -> str:
    """Of the scale with the most experiments: each data set split by image, then those split otherwise."""
    compared = comparisons(entries)
    if not compared:
        return "Nothing was run yet.\n"
    sentences = [_data_set(data) for one in compared if one.scale == compared[0].scale for data in one.data_sets]
    sentences += [
        f"**{data.title}**: {_against_base(data)}."
        for other in comparisons(entries, by_image=False)
        if other.scale == compared[0].scale
        for data in other.data_sets
        if _against_base(data)
    ]
    return "".join(f"- {sentence}\n" for sentence in sentences)


def overview(entries: Sequence[Entry]) -> str:
    """The summary in a few sentences: data sets with all of the paper's methods from scratch, then what fine-tuning and
    frozen features add. Beside a result stands how much of its test images the training part has seen."""
    compared = comparisons(entries)
    scratch = next((one for one in compared if one.kind == SCRATCH), None)
    whole = [data for data in scratch.data_sets if _run_of_compared(data) == len(COMPARED)] if scratch else []
    if scratch is None or not whole:
        return "No data set has all methods yet.\n"
    best = {data.title: data.best("acc_last") for data in whole}
    highest = _by_label(
        (one.label, "; ".join([_percent(one), *_seen(data)]), data.title) for data, one in _bests(whole)
    )
    papers = [_papers(data) for data in whole]
    ends = _by_label((one.label, _percent(one), data.title) for data, one in _bests(papers))
    tied = [data for data in papers if OWN in (data.best("acc_last").label, *(t.label for t in data.ties("acc_last")))]
    sentences = [
        f"**Trained from scratch** ({scratch.scale}): after the last task {highest}.",
        f"Of the paper's {len(COMPARED)} methods {ends}. {OWN} is highest, or within noise of the highest, on "
        f"{len(tied)} of the {len(whole)} data sets on which all were run{_over_base(whole)}.",
        *(_fine_tuned(one, best) for one in compared if one.kind == FINE_TUNED),
    ]
    frozen: dict[str, list[str]] = {}
    for other in compared:
        for data, top in _bests(other.data_sets):
            if is_frozen(top.first.settings):
                notes = [*_seen(data), *_by_group(entries, other.scale, data), *_from_scratch(best, data)]
                text = f"{_percent(top)} on {data.title}" + (f" ({'; '.join(notes)})" if notes else "")
                frozen.setdefault(top.label, []).append(text)
    if frozen:
        origins = {method_title(PROJECTS_OWN): ", a method of this project,"}
        results = [f"{label}{origins.get(label, '')} ends at {listed(texts)}" for label, texts in frozen.items()]
        sentences.append(
            f"**Frozen features of a network trained on ImageNet**, with a classifier in closed form: "
            f"{'; '.join(results)}. That takes one pass over the images instead of training, and keeps sums in place "
            f"of patients' images."
        )
    return "".join(f"- {sentence}\n" for sentence in sentences)


def _bests(data_sets: Sequence[DataSet]) -> list[tuple[DataSet, Entries]]:
    return [(data, data.best("acc_last")) for data in data_sets]


def _by_label(ends: Iterable[tuple[str, str, str]]) -> str:
    """Of label, result and data set: "A is highest on X (1 %) and Y (2 %); B is highest on Z (3 %)"."""
    highest: dict[str, list[str]] = {}
    for label, result, title in ends:
        highest.setdefault(label, []).append(f"{title} ({result})")
    return "; ".join(f"{label} is highest on {listed(sets)}" for label, sets in highest.items())


def _papers(data: DataSet) -> DataSet:
    return replace(data, methods=tuple(one for one in data.methods if one.label in PAPERS))


def _over_base(data_sets: Sequence[DataSet]) -> str:
    """How the project's method ends against the baseline, a clause; empty where they share no seed."""
    pairs = [(data.method(OWN), data.method(BASE)) for data in data_sets]
    gaps = [own for one, base in pairs if one and base and (own := differences(one, base))]
    if not gaps:
        return ""
    means, clear = [statistics.fmean(own) for own in gaps], sum(map(significant, gaps))
    sides = {word for word, side in (("above", 1), ("below", -1)) if any(side * mean > 0 for mean in means)}
    low, high = (f"{end(map(abs, means)):.1f}" for end in (min, max))
    points = low if len(gaps) == 1 else f"{low} to {high}"
    side = " or ".join(sorted(sides))
    return f"; on average {OWN} ends {points} points {side} {BASE} (significant on {clear} of {len(gaps)})"


def _fine_tuned(compared: Comparison, best: Mapping[str, Entries]) -> str:
    """`best`: what ends highest from scratch."""
    ends = _by_label(
        (one.label, "; ".join([_percent(one), *_seen(data), *_from_scratch(best, data)]), data.title)
        for data, one in _bests(compared.data_sets)
    )
    learners = sorted({one.label for data in compared.data_sets for one in data.learners}, key=str.lower)
    which = f"of the methods run ({listed(learners)}) {ends}"
    return f"**Trained from pretrained weights** ({compared.scale}): {which}{_over_base(compared.data_sets)}."


def _from_scratch(best: Mapping[str, Entries], data: DataSet) -> list[str]:
    return [f"{_percent(best[data.title])} from scratch"] if data.title in best else []


def _percent(group: Entries) -> str:
    return f"{mean_of(group):.1f} %"


def _seen(data: DataSet) -> list[str]:
    """What the training part has seen of the videos or patients of the test images, where the runs know them."""
    rates = [entry.leaks.get("group_in_train") for one in data.methods for entry in one.results]
    rate = next((rate for rate in rates if rate), None)
    if rate is None:
        return []
    images = "every test image shows" if rate == 1 else f"{100 * rate:.0f} % of the test images show"
    return [f"{images} a video or patient that was trained on"]


def _by_group(entries: Sequence[Entry], scale: str, data: DataSet) -> list[str]:
    """Where the same methods end when no video or patient is on both sides."""
    name = data_title(data.methods[0].first.settings)
    ends = [
        mean_of(one)
        for other in comparisons(entries, by_image=False)
        if other.scale == scale
        for split in other.data_sets
        if data_title(split.methods[0].first.settings) == name
        for one in split.learners
        if one.first.leaks.get("group_in_train") == 0
    ]
    return [f"split by video or patient, such methods end at {min(ends):.1f} to {max(ends):.1f} %"] if ends else []


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
    best = data.best("acc_last")
    papers = _papers(data)
    n_run = _run_of_compared(data)
    part = f" ({n_run} of the paper's {len(COMPARED)} methods so far)" if n_run < len(COMPARED) else ""
    single = [one.label for one in data.learners if one not in data.ranked]
    parts = [
        f"**{data.title}**{part}: {best.label} has the highest accuracy after the last task ({_percent(best)})",
        _others(data),
        f"{listed(single)}, with one seed, {'is' if len(single) == 1 else 'are'} not ranked" if single else "",
    ]
    if best.label not in PAPERS and papers.learners:
        best = papers.best("acc_last")
        parts += [f"of the paper's methods {best.label} is highest ({_percent(best)})", _others(papers)]
    return "; ".join(filter(None, [*parts, _below(papers, best), _against_base(data)])) + "."


def _others(data: DataSet) -> str:
    """What the others are worth beside the highest."""
    if ties := [one.label for one in data.ties("acc_last")]:
        return f"{listed(ties)} {'is' if len(ties) == 1 else 'are'} within noise of it"
    return "all others are significantly lower" if len(data.best("acc_last").seeds) > 1 else ""


def _run_of_compared(data: DataSet) -> int:
    """How many of the paper's methods that learn task by task were run."""
    return len(PAPERS & {one.label for one in data.methods})


def _below(data: DataSet, best: Entries) -> str:
    own = data.method(OWN)
    if own is None or own is best or not (gaps := differences(best, own)):
        return ""
    return (
        f"{OWN} ({mean_of(own):.1f} %) ends {statistics.fmean(gaps):.1f} points below {best.label} ({_evidence(gaps)})"
    )


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
