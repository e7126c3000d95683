"""The reproduction ledger: what was run at which scale, the paper's claims, its numbers beside ours, and ranks."""

from collections.abc import Callable, Sequence

from endocil.reports.ledger_tables import ledger_table
from endocil.reports.tables import Cell, Column, Table
from reproduction.claims import OPEN, claims, finding
from reproduction.paper import Json, Place, paper
from reproduction.tables import Places, classes_table, components_table, main_table, rank_lines, splits

HOW = """\
Ours is the mean ± sample standard deviation over seeds. The paper's number is one run of unknown seed and split, so a
difference is *inside noise* when one more run of ours could give it: within the 95 % prediction interval over our
seeds, widened by the sampling of two sets of test images. One seed shows no spread and is not judged.
docs/statistics.md has the formula. Runs at another scale are listed apart and compared with nothing of the paper."""
JUDGED = """\
A claim *holds* when the 95 % t interval of the difference over the seeds that both sides share lies on its side, for
every comparison it makes; it *does not hold* when one lies clearly on the other side (widened for the number of
comparisons); otherwise it *cannot be said*. A claim about some method holds when the interval of one method does,
widened for the number of methods it is chosen from, and does not hold when none of the paper's methods is missing and
all are clearly on the other side. A difference above 0 is in favour of the claim; ± is half of its interval."""
NOT_RUN = "not run"


def reproduction(places: Sequence[Place]) -> str:
    """The whole page as Markdown."""
    ours: dict[str, list[Place]] = {}
    for place in places:
        if not place.unlike:
            ours.setdefault(place.data, []).append(place)
    parts = [
        "# The paper beside the ledger",
        f"Written by `python -m reproduction`. The paper: {paper()['source']} {paper()['inferred']}",
        "## In short",
        _in_short(ours, places),
        "## What was run",
        _what_was_run(places),
        HOW,
        "## The paper's claims",
        JUDGED,
        *(_claim(i, claim, places) for i, claim in enumerate(claims(), 1)),
        "## Table 1 of the paper: the data",
        splits(ours),
        "## Table 2 of the paper: all methods",
        "The paper's number, then ours where it was run at the paper's scale.",
        *(
            f"### {_headed(data, place)}\n\n{main_table(data, place)}"
            for data in paper()["data"]
            for place in ours.get(data, [None])
        ),
        "## Table 3 of the paper: the components",
        *_each("ablation", ours, components_table),
        "## Table 4 of the paper: accuracy of each class",
        f"On {paper()['data'][paper()['per_class']['data']]['name']} after the last task, without MDBR and CFG.",
        *_each("per_class", ours, classes_table),
        "## The paper's figures",
        "They show no numbers to compare. `endocil figures RUN...` draws them from run folders, not from the ledger.",
        "## Ranks over data sets",
        *rank_lines(ours),
        *_at_another_scale(places),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _headed(data: str, place: Place | None) -> str:
    """The data set as the paper calls it, and what tells one of several places of it apart."""
    return f"{paper()['data'][data]['name']}{place.apart if place else ''}"


def _each(which: str, ours: Places, table: Callable[[Place | None], str]) -> list[str]:
    """A table of the paper for every place where we have its data set."""
    data = paper()[which]["data"]
    there = ours.get(data, [])
    if len(there) < 2:
        return [table(there[0] if there else None)]
    return [f"{_headed(data, place)}:\n\n{table(place)}" for place in there]


def _in_short(ours: Places, places: Sequence[Place]) -> str:
    """What may be believed, first: each claim with its verdicts."""
    n = len(paper()["data"])
    scale = (
        f"Of the paper's {n} data sets {len(ours)} were run at its scale."
        if ours
        else f"Nothing was run at the paper's scale, on none of its {n} data sets: no number of the paper is "
        f"reproduced here, and none is refuted. What was run at another scale shows how the methods compare "
        f"there, no more."
    )
    columns = (
        Column("number", "", True),
        Column("claim", "The paper's claim"),
        Column("here", "At the paper's scale"),
        Column("elsewhere", "At another scale, which reproduces nothing"),
    )
    rows = tuple((i, claim["says"], *_verdicts(claim, places)) for i, claim in enumerate(claims(), 1))
    return f"{scale}\n\n{Table('', columns, rows).markdown()}"


def _verdicts(claim: Json, places: Sequence[Place]) -> tuple[str, str]:
    here = [place for place in places if not place.unlike and place.data in claim["data"]]
    told = [f"{_headed(place.data, place)}: {finding(claim, place).verdict}" for place in here]
    absent = len(set(claim["data"]) - {place.data for place in here})
    told += [NOT_RUN if not here else f"{absent} {NOT_RUN}"] if absent else []
    others = [f"{place.name}: {finding(claim, place).verdict}" for place in _elsewhere(claim, places)]
    return "; ".join(told), "; ".join(others) or ("not asked" if not claim.get("elsewhere") else NOT_RUN)


def _elsewhere(claim: Json, places: Sequence[Place]) -> list[Place]:
    """Where a claim that is not about one data set alone can be looked at, too."""
    if not claim.get("elsewhere"):
        return []
    return [place for place in places if place.unlike and finding(claim, place).run]


def _at_another_scale(places: Sequence[Place]) -> list[str]:
    others = [place for place in places if place.unlike]
    experiments = [one for place in others for one in (*place.methods, *place.ablation)]
    entries = {entry.file: entry for one in experiments for entry in one.results}
    if not entries:
        return []
    table = ledger_table(list(entries.values())).markdown()
    return ["## Runs at another scale", f"Nothing here reproduces a number of the paper.\n\n{table}"]


def _what_was_run(places: Sequence[Place]) -> str:
    columns = [Column("data", "Data"), Column("what", "What"), Column("methods", "Methods", True)]
    columns += [Column("ablation", "Ablation rows", True), Column("scale", "Scale")]
    rows = tuple(map(_run_row, places))
    there = {place.data for place in places if not place.unlike}
    absent = [facts["name"] for data, facts in paper()["data"].items() if data not in there]
    not_run = f"Not run at the paper's scale: {', '.join(absent)}." if absent else ""
    parts = [Table("", tuple(columns), rows).markdown(), "\n".join(map(_by_seeds, places)), not_run]
    return "\n\n".join(part.strip() for part in parts)


def _by_seeds(place: Place) -> str:
    """Who was run with how many seeds, and which of the paper's methods was not."""
    by_number: dict[int, list[str]] = {}
    for one in place.methods:
        by_number.setdefault(len(one.seeds), []).append(one.label)
    told = [
        f"{n} {'seed' if n == 1 else 'seeds'}: {', '.join(sorted(by_number[n]))}"
        for n in sorted(by_number)[::-1]
    ]
    rows = sorted({len(one.seeds) for one in place.ablation})
    told += [f"ablation rows: {' or '.join(map(str, rows))} seeds"] if rows else []
    absent = sorted(
        paper()["methods"].keys() - {one.first.settings["method"]["name"] for one in place.methods}
    )
    told += [f"{NOT_RUN}: {', '.join(absent)}"] if absent else []
    return f"- {place.name}: {'; '.join(told)}."


def _run_row(place: Place) -> tuple[Cell, ...]:
    scale = f"another: {'; '.join(place.unlike)}" if place.unlike else "the paper's"
    return (place.name, place.described(), len(place.methods), len(place.ablation), scale)


def _claim(number: int, claim: Json, places: Sequence[Place]) -> str:
    lines = [f"### {number}. {claim['says']}", "", f"In the paper: {claim['paper']}.", ""]
    for data in claim["data"]:
        there: list[Place | None] = [one for one in places if one.data == data and not one.unlike]
        for place in there or [None]:
            found = f"**{OPEN}**: {NOT_RUN}" if place is None else _found(claim, place)
            lines.append(f"- {_headed(data, place)}, at the paper's scale: {found}.")
    lines += [
        f"- {place.name}, at another scale (no reproduction): {_found(claim, place)}."
        for place in _elsewhere(claim, places)
    ]
    return "\n".join(lines)


def _found(claim: Json, place: Place) -> str:
    found = finding(claim, place)
    return f"**{found.verdict}**: {found.why}"
