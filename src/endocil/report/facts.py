"""What the numbers of the page rest on: definitions, images, settings, environment."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from endocil.audit.leaks import RATES
from endocil.metrics import METRICS
from endocil.report.grouping import differing, flat
from endocil.report.markup import details, escaped, plain_table, subscripted
from endocil.report.names import portable, written
from endocil.report.runs import RunRecord
from endocil.report.tables import TITLES


def definitions() -> str:
    """Every metric, also those of the files."""
    items = "".join(
        f"<dt>{subscripted(TITLES[name]) if name in TITLES else escaped(name)}</dt><dd>{_code(told)}</dd>"
        for name, told in METRICS.items()
    )
    return f'<dl class="terms">{items}</dl>'


def _code(text: str) -> str:
    """`af` as a name of the files."""
    return re.sub(r"`(\w+)`", r"<code>\1</code>", escaped(text))


def leaks(runs: Sequence[RunRecord]) -> str:
    """What of the test part the training part knows: the results hold for images as new as these."""
    rows = {
        (RATES[name], f"{100 * rate:.1f} %")
        for run in runs
        for name, rate in run.leaks.items()
        if name in RATES and rate is not None
    }
    notes = dict.fromkeys(note for run in runs for note in run.notes)
    told = f"<ul>{''.join(f'<li>{escaped(note)}</li>' for note in notes)}</ul>" if notes else ""
    if not rows:
        return told
    order = list(RATES.values())
    table = plain_table(
        "Share of the test images with something like them in the training part",
        ["In the training part there is", "Of the test images"],
        [list(row) for row in sorted(rows, key=lambda row: (order.index(row[0]), row[1]))],
    )
    note = (
        "<p>A split by image puts near duplicates and neighbouring frames on both sides; accuracy on new patients "
        "is lower then. A split by group (scenario.split_by) keeps them together.</p>"
    )
    return table + note + told


def settings_and_environment(runs: Sequence[RunRecord]) -> str:
    """Nobody's folders: absolute paths are shown by their last name."""
    names = [run.name for run in runs]
    settings = _facts("Settings", names, [flat(portable(run.settings)) for run in runs])
    environment = _facts("Environment", names, [flat(portable(run.environment)) for run in runs])
    return settings + environment


def _facts(title: str, names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> str:
    """What all runs share once, then of each run what it has not in common with all the others."""
    unlike = differing(facts)
    keys = list(dict.fromkeys(key for each in facts for key in each))
    shared = [[key, written(facts[0].get(key))] for key in keys if key not in unlike]
    other = [
        [name, _listed(each, [key for key in keys if key in unlike])]
        for name, each in zip(names, facts, strict=True)
    ]
    of = "of this run" if len(facts) == 1 else "shared by all runs"
    body = plain_table(f"{title} {of}", ["Name", "Value"], shared, numeric_from=2) if shared else ""
    if unlike:
        body += plain_table(f"{title} that differ", ["Run", title], other, numeric_from=2)
    return details(title, body)


def _listed(facts: Mapping[str, Any], keys: Sequence[str]) -> str:
    """A list and not a column for each key: thirteen methods have some thirty keys of their own."""
    return "; ".join(f"{key} = {written(facts[key])}" for key in keys if key in facts)
