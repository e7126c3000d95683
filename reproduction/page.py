"""The page of the reproduction: what was run at which scale, the paper's claims, its numbers beside ours, and ranks."""

from collections import Counter
from collections.abc import Callable, Sequence

from endocil.io.text_tables import Cell, Column, Table, listed
from endocil.methods import method_title
from endocil.reports.ledger_tables import ledger_table
from reproduction.claims import FAILS, HOLDS, OPEN, Finding, claims, finding
from reproduction.ladder import buffers_text, ladder_text
from reproduction.paper import Json, Place, buffer_of, paper
from reproduction.tables import Places, classes_table, components_table, main_table, rank_lines, splits

BESIDE_THE_PAPER = """\
Ours is the mean ± sample standard deviation over seeds. The paper's number is one run of unknown seed and split, so a
difference is *within noise* when one more run of ours could give it: within the 95 % prediction interval over our
seeds, widened by the sampling of two sets of test images. One seed shows no spread and is not judged.
docs/reproduce-the-paper.md has the formula. Runs at another scale are listed apart and compared with nothing of the
paper."""
JUDGED = """\
A claim *holds* when the 95 % t interval of the difference over the seeds that both sides share lies on its side, for
every comparison it makes; it *does not hold* when one lies clearly on the other side (widened for the number of
comparisons); otherwise it is *undecided*. A claim about some method holds when the interval of one method does,
widened for the number of methods it is chosen from, and does not hold when none of the paper's methods is missing and
all are clearly on the other side. A difference above 0 is in favour of the claim; ± is half of its interval."""
NOT_RUN = "not run"


def results_page(places: Sequence[Place]) -> str:
    """The whole page as Markdown."""
    ours: dict[str, list[Place]] = {}
    for place in places:
        if not place.deviations:
            ours.setdefault(place.data, []).append(place)
    parts = [
        "# The paper beside the ledger",
        f"Written by `python -m reproduction`. The paper: {paper()['source']} {paper()['inferred']}",
        "## In short",
        _in_short(ours, places),
        "## What was run",
        _what_was_run(places),
        BESIDE_THE_PAPER,
        "## The paper's claims",
        JUDGED,
        *_claims(places),
        "## The ladder of scale",
        ladder_text(places),
        "## More exemplars",
        buffers_text(places),
        *_tables(ours),
        "## The paper's figures",
        "They show no numbers to compare. `endocil figures RUN...` draws them from run folders, not from the ledger.",
        "## Ranks over data sets",
        *rank_lines(ours),
        *_at_another_scale(places),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _tables(ours: Places) -> list[str]:
    """The paper's tables with our numbers at its scale; what was not run in one line."""
    where = "`reproduction/data/paper.json` has all of the paper's numbers."
    if not ours:
        return ["## Tables 1 to 4 of the paper", f"Nothing was run at the paper's scale: no rows to compare. {where}"]
    absent = [_headed(data, None) for data in paper()["data"] if data not in ours]
    not_run = [f"Not run: all rows of {listed(absent)}."] if absent else []
    return [
        "## Table 1 of the paper: the data",
        splits(ours),
        "## Table 2 of the paper: all methods",
        f"Of the rows that were run at the paper's scale: the paper's number, then ours. {where}",
        *(
            f"### {_headed(data, place)}\n\n{main_table(data, place)}"
            for data in paper()["data"]
            for place in ours.get(data, [])
        ),
        *not_run,
        "## Table 3 of the paper: the components",
        *_each("ablation", ours, components_table),
        "## Table 4 of the paper: accuracy of each class",
        f"On {paper()['data'][paper()['per_class']['data']]['name']} after the last task, without MDBR and CFG.",
        *_each("per_class", ours, classes_table),
    ]


def _headed(data: str, place: Place | None) -> str:
    """The data set as the paper calls it, and what distinguishes one of several places of it."""
    return f"{paper()['data'][data]['name']}{place.suffix if place else ''}"


def _each(which: str, ours: Places, table: Callable[[Place | None], str]) -> list[str]:
    """A table of the paper for every place where we have its data set."""
    data = paper()[which]["data"]
    members = ours.get(data, [])
    if len(members) < 2:
        return [table(members[0] if members else None)]
    return [f"{_headed(data, place)}:\n\n{table(place)}" for place in members]


def _in_short(ours: Places, places: Sequence[Place]) -> str:
    """What may be believed, first: each claim with its verdicts."""
    n = len(paper()["data"])
    if ours:
        were = "was" if len(ours) == 1 else "were"
        scale = f"{len(ours)} of the paper's {n} data sets {were} run at its scale."
    else:
        scale = (
            f"Nothing was run at the paper's scale on any of its {n} data sets: no number of the paper is reproduced "
            f"or refuted here. Runs at another scale show how the methods compare there, and no more."
        )
    return f"{scale}\n\n{verdicts_text(places)}\n{claims_text(places)}"


def verdicts_text(places: Sequence[Place]) -> str:
    """Which claims hold or do not hold, in words and with the data; the numbers of those that cannot be decided."""
    usual = _usual_budget(places)
    told: dict[str, list[str]] = {HOLDS: [], FAILS: []}
    numbers: dict[str, list[str]] = {OPEN: [], NOT_RUN: []}
    for number, claim in enumerate(claims(), 1):
        where: dict[str, list[str]] = {}
        for place in _judging(claim, places):
            name = place.named_beside(usual) if place.deviations else place.name
            where.setdefault(finding(claim, place).verdict, []).append(name)
        others = "; undecided elsewhere" if OPEN in where else ""
        for verdict in told.keys() & where.keys():
            told[verdict].append(f"{claim['says'].removesuffix('.')} ({number}; {listed(where[verdict])}{others})")
        if not told.keys() & where.keys():
            numbers[OPEN if where else NOT_RUN].append(str(number))
    scale = "" if usual == "none" else f", at {usual} where no other scale is named"
    lines = [
        f"- **{verdict.capitalize()}**: {'; '.join(sorted(texts)) or 'none'}.\n" for verdict, texts in told.items()
    ]
    lines += [
        f"- **{verdict.capitalize()}**{reason}: {listed(which)}.\n"
        for (verdict, which), reason in zip(numbers.items(), (" wherever they were run", ""), strict=True)
        if which
    ]
    return f"The paper's {len(claims())} claims, by number{scale}:\n\n{''.join(lines)}"


def claims_text(places: Sequence[Place]) -> str:
    """The claims one by one with the verdict of each place, its scale and its seeds."""
    usual = _usual_budget(places)
    columns = [
        Column("number", "", True),
        Column("claim", "The paper's claim"),
        Column("here", "At the paper's scale"),
        Column("elsewhere", f"At another scale, {usual} where no other is named (no reproduction)"),
    ]
    rows = [[i, claim["says"], *_verdicts(claim, places, usual)] for i, claim in enumerate(claims(), 1)]
    if all(place.deviations for place in places):
        for cells in (columns, *rows):
            del cells[2]  # nothing was run at the paper's scale
    return Table("", tuple(columns), tuple(map(tuple, rows))).markdown()


def _usual_budget(places: Sequence[Place]) -> str:
    """That of most of the places where claims were judged at another scale than the paper's."""
    budgets = [place.budget for claim in claims() for place in _elsewhere(claim, places)]
    return Counter(budgets).most_common(1)[0][0] if budgets else "none"


def _verdicts(claim: Json, places: Sequence[Place], usual: str) -> tuple[str, str]:
    here = [place for place in places if not place.deviations and place.data in claim["data"]]
    verdicts = [f"{_headed(place.data, place)}: {_with_seeds(finding(claim, place))}" for place in here]
    absent = len(set(claim["data"]) - {place.data for place in here})
    verdicts += [NOT_RUN if not here else f"{absent} {NOT_RUN}"] if absent else []
    others: dict[str, dict[str, list[str]]] = {usual: {}}
    for place in _elsewhere(claim, places):
        result = finding(claim, place)
        seeds = f", {result.seeds}" if result.seeds else ""
        by_verdict = others.setdefault(place.budget, {})
        by_verdict.setdefault(result.verdict, []).append(f"{place.named_beside(place.budget)}{seeds}")
    told = []  # each scale once: some have long names
    for scale, by_verdict in others.items():
        texts = [f"{verdict[:1].upper()}{verdict[1:]}: {'; '.join(names)}" for verdict, names in by_verdict.items()]
        named = f"At {scale}: " if scale != usual else ""
        told += [named + ". ".join(texts)] if texts else []
    return "; ".join(verdicts), ". ".join(told) or NOT_RUN


def _with_seeds(result: Finding) -> str:
    if not result.run:
        return NOT_RUN
    return f"{result.verdict} ({result.seeds})" if result.seeds else result.verdict


def _judging(claim: Json, places: Sequence[Place]) -> list[Place]:
    """Where a claim can be judged, at whatever scale."""
    here = [place for place in places if not place.deviations and place.data in claim["data"]]
    return [place for place in here if finding(claim, place).run] + _elsewhere(claim, places)


def _elsewhere(claim: Json, places: Sequence[Place]) -> list[Place]:
    """Runs of the claim's data sets, or of a part of them, at another scale, and any other data for a claim that is not
    about one data set."""
    others = [place for place in places if place.deviations]
    others = [place for place in others if claim.get("elsewhere") or {place.data, place.part_of} & {*claim["data"]}]
    return [place for place in others if finding(claim, place).run]


def _at_another_scale(places: Sequence[Place]) -> list[str]:
    others = [place for place in places if place.deviations]
    experiments = [one for place in others for one in (*place.methods, *place.ablation)]
    entries = {entry.file: entry for one in experiments for entry in one.results}
    if not entries:
        return []
    table = ledger_table(list(entries.values())).markdown()
    return ["## Runs at another scale", f"Nothing here reproduces a number of the paper.\n\n{table}"]


def _what_was_run(places: Sequence[Place]) -> str:
    columns = [Column("data", "Data"), Column("description", "Tasks and training"), Column("methods", "Methods", True)]
    columns += [Column("ablation", "Ablation rows", True), Column("scale", "Scale")]
    rows = tuple(map(_run_row, places))
    run = {place.data for place in places if not place.deviations}
    absent = [facts["name"] for data, facts in paper()["data"].items() if data not in run]
    not_run = f"Not run at the paper's scale: {', '.join(absent)}." if absent else ""
    parts = [Table("", tuple(columns), rows).markdown(), "\n".join(map(_by_seeds, places)), not_run]
    return "\n\n".join(part.strip() for part in parts)


def _by_seeds(place: Place) -> str:
    """Which methods were run with how many seeds, and which of the paper's methods were not."""
    by_number: dict[int, list[str]] = {}
    buffers = {label: {buffer_of(one.first) for one in place.methods if one.label == label} for label in _labels(place)}
    for one in place.methods:
        with_buffer = f" ({buffer_of(one.first)} exemplars per class)" if len(buffers[one.label]) > 1 else ""
        by_number.setdefault(len(one.seeds), []).append(one.label + with_buffer)
    parts = [
        f"{n} {'seed' if n == 1 else 'seeds'}: {', '.join(sorted(by_number[n], key=str.lower))}"
        for n in sorted(by_number)[::-1]
    ]
    rows = sorted({len(one.seeds) for one in place.ablation})
    parts += [f"ablation rows: {' or '.join(map(str, rows))} {'seed' if rows == [1] else 'seeds'}"] if rows else []
    absent = paper()["methods"].keys() - {one.first.settings["method"]["name"] for one in place.methods}
    if len(absent) == len(paper()["methods"]):
        parts.append("none of the paper's methods")
    elif absent:
        parts.append(f"{NOT_RUN}: {', '.join(map(method_title, sorted(absent)))}")
    return f"- {place.name}: {'; '.join(parts)}."


def _labels(place: Place) -> set[str]:
    return {one.label for one in place.methods}


def _run_row(place: Place) -> tuple[Cell, ...]:
    scale = f"another: {'; '.join(place.deviations)}" if place.deviations else "the paper's"
    return (place.name, place.described(), len(place.methods), len(place.ablation), scale)


def _claims(places: Sequence[Place]) -> list[str]:
    """Each claim that was judged somewhere; the others in one line."""
    numbered = list(enumerate(claims(), 1))
    parts = [_claim(i, claim, places) for i, claim in numbered if _judging(claim, places)]
    absent = [str(i) for i, claim in numbered if not _judging(claim, places)]
    return parts + (
        [f"Not run at any scale: {'claim' if len(absent) == 1 else 'claims'} {listed(absent)}."] if absent else []
    )


def _claim(number: int, claim: Json, places: Sequence[Place]) -> str:
    lines = [f"### {number}. {claim['says']}", "", f"In the paper: {claim['paper']}.", ""]
    lines += [
        f"- {_headed(data, one)}, at the paper's scale: {_judged(claim, one)}."
        for data in claim["data"]
        for one in places
        if one.data == data and not one.deviations
    ]
    lines += [
        f"- {place.name}, at another scale (no reproduction): {_judged(claim, place)}."
        for place in _elsewhere(claim, places)
    ]
    return "\n".join(lines)


def _judged(claim: Json, place: Place) -> str:
    result = finding(claim, place)
    return f"**{result.verdict}**: {result.reason}"
