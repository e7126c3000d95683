"""The parts of the page of a comparison, from its record."""

from typing import Any

from endocil.audit.markup import Picture, name_line, paragraph, sheet
from endocil.release.limits import QUANTITIES
from endocil.release.tables import share_of
from endocil.report.markup import NUMERIC, details, escaped, head_row, plain_table, scrolling
from endocil.report.names import DASH

Record = dict[str, Any]
SHOWN = 60  # flips of one kind with their pictures; all are in the CSV file
FOLDED = 12  # checks that hold; more are folded away below those that fail
LINES = 100  # of a list
WHERE = {
    "known": "classes the old version knows",
    "new": "classes new in the new version",
    "neither": "classes neither knows (left out elsewhere)",
}


def opening(record: Record) -> str:
    """The verdict, and what was compared."""
    kind = {"pass": "pass", "refused": "refused"}.get(record["verdict"], "")
    test, old, new = record["test"], record["old"], record["new"]
    groups = f" in {test['groups']:,} groups" if test["groups"] else ""
    made = "was made from the old one" if record["new_made_from_old"] else "was not made from the old one"
    head = record["head"].replace("_", "-")
    facts = (
        f"{test['compared']:,} test images{groups} of {test['name']}, {test['of_classes_the_old_version_knows']:,} of "
        f"them of classes that the old version knows; {head} head. The old version knows {old['classes']} classes, "
        f"the new one {new['classes']}; the new version {made}."
    )
    prints = " ".join(
        f"{which}: <code>{escaped(each['digest'][:16])}</code> of {escaped(each['made'][:10])}."
        for which, each in (("Old", old), ("New", new))
    )
    notes = "".join(
        paragraph(f"The {which} version is {note}.", "warning")
        for which, each in (("old", old), ("new", new))
        for note in each["notes"]
    )
    return (
        f'<p class="verdict {kind}">{escaped(record["line"])}</p><p class="lead">{escaped(facts)}</p>'
        f'<p class="facts">{prints}</p>{notes}'
    )


def rules(record: Record) -> str:
    """The checks, failed ones first."""
    if not record["checks"]:
        return paragraph("No rules were given (--rules): this page reports, and nothing is refused.")
    passed = [check for check in record["checks"] if check["passed"]]
    failed = [check for check in record["checks"] if not check["passed"]]
    if not failed or len(passed) <= FOLDED:
        return _table([*failed, *passed])
    return _table(failed) + details(f"{len(passed)} checks hold", _table(passed))


def _table(checks: list[Record]) -> str:
    rows = []
    for check in checks:
        mark = "pass" if check["passed"] else "fail"
        sign = "✓ holds" if check["passed"] else "✗ fails"
        rows.append(
            f'<tr><td class="mark-{mark}">{sign}</td><th scope="row">{escaped(_about(check))}</th>'
            f"<td{NUMERIC}>{_limit(check)}</td>"
            f'<td class="words">{escaped(check["said"])}</td><td>{_refuse(check)}</td></tr>'
        )
    caption = "In brackets: the interval that the limit is held against. A loss below 0 is a gain"
    head = head_row(["", "what", "limit", "measured", "rule"], numeric_from=99)
    whole = f'<table class="rules"><caption>{caption}</caption>{head}<tbody>{"".join(rows)}</tbody></table>'
    return scrolling(whole, "The rules")


def _about(check: Record) -> str:
    what = QUANTITIES[check["key"]]
    return f"{check['about']}: {what}" if check["about"] else what[0].upper() + what[1:]


def _limit(check: Record) -> str:
    return f"{'≥' if check['key'].startswith('smallest') else '≤'}&nbsp;{check['limit']:g}"


def _refuse(check: Record) -> str:
    kind = f": {check['refuse']}, {100 * check['level']:.4g}&nbsp;%" if check["refuse"] else ""
    return f"<code>[{escaped(check['section'])}]</code>{kind.replace('_', ' ')}"


def flips(record: Record, kind: str, picture: Picture | None) -> str:
    own = [flip for flip in record["flips"] if flip["kind"] == kind]
    if not own:
        return paragraph("None.")
    text = (
        paragraph(f"The first {SHOWN} of {len(own):,}; all are in the CSV file (--csv).")
        if len(own) > SHOWN
        else ""
    )
    return text + sheet(_flip(flip, picture) for flip in own[:SHOWN])


def _flip(flip: Record, picture: Picture | None) -> str:
    shown = picture(flip["image"]) if picture else ""
    group = f"<br>group {escaped(flip['group'])}" if flip["group"] else ""
    said = "".join(
        f"<br>{which}: {escaped(flip[which])}, {100 * flip[f'{which}_probability']:.0f}&nbsp;%"
        for which in ("old", "new")
    )
    return f"{shown}<strong>{escaped(flip['class_name'])}</strong>{said}{group}{name_line(flip['image'])}"


def flags(record: Record) -> str:
    rows = [
        (WHERE[each["images_of_classes"]], *(share_of(each[w]) if each[w] else DASH for w in ("old", "new")))
        for each in record["flags"]
    ]
    caption = (
        "Share of images flagged, with 95 % intervals; a dash: the version is not calibrated and has no flag"
    )
    return plain_table(caption, ("images of", "old", "new"), rows)


def left_out(record: Record) -> str:
    lists = (
        ("unknown_classes", "of a class that neither version knows", "class"),
        ("unreadable", "not readable", "reason"),
        (
            "inside_a_bundle",
            "found inside a bundle, as exemplar or held-out image, and so no test",
            "version",
        ),
    )
    return "".join(
        details(
            f"{_images(len(found))} {what}",
            plain_table(
                f"{_images(len(found))}{f'; the first {LINES}' if len(found) > LINES else ''}",
                ("image", key),
                [(each["image"], each[key]) for each in found[:LINES]],
                numeric_from=99,
            ),
        )
        for name, what, key in lists
        if (found := record[name])
    )


def _images(n: int) -> str:
    return f"{n:,} image{'' if n == 1 else 's'}"


def method(record: Record) -> str:
    words = (
        "Sensitivity of a class: the share of its images that are called so. Specificity: the share of the images of "
        "other classes that are not called so. A class that the old version does not know has no sensitivity there. "
        "A class that the new version has dropped is always missed by it."
    )
    rule = (
        "A rule that refuses unless shown harmless wants the whole interval on the good side of its limit; one that "
        "refuses if shown harmful wants the whole interval on the bad side. An interval of 95 % lies wholly on the "
        "wrong side of the truth in at most about 2.5 % of all test sets."
    )
    return "".join(map(paragraph, (words, rule, record["method"])))
