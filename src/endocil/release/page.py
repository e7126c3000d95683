"""The comparison of two versions as one HTML page: opens offline, asks nothing from outside, runs no script."""

from importlib import resources
from typing import Any

from endocil.audit.markup import Picture, section
from endocil.notice import NOTICE
from endocil.release import sections as sections
from endocil.release import tables as tables
from endocil.report.markup import escaped, policy_hash

Record = dict[str, Any]


def gate_page(record: Record, picture: Picture | None = None) -> str:
    """The page of a record (`gate_record.record`); without `picture` there are names and numbers alone."""
    parts = [
        ("rules", "The rules", sections.rules(record)),
        ("classes", "Class by class", tables.classes(record)),
        ("overall", "All images", tables.overall(record)),
        ("lost", "Negative flips: right before, wrong now", sections.flips(record, "negative", picture)),
        ("won", "Positive flips: wrong before, right now", sections.flips(record, "positive", picture)),
        ("calibration", "Is confidence true?", tables.calibration(record)),
        ("flags", "Flagged as unlike anything learned", sections.flags(record)),
        ("left-out", "Images left out", sections.left_out(record)),
        ("method", "How the numbers are made", sections.method(record)),
    ]
    there = [(name, title, body) for name, title, body in parts if body]
    links = "".join(
        f'<li><a href="#{name}">{escaped(title.partition(":")[0])}</a></li>' for name, title, _ in there
    )
    title = f"{record['new']['file']} in place of {record['old']['file']}?"
    style = _asset("endocil.report", "page.css") + _asset("endocil.release", "gate.css")
    policy = f"default-src 'none'; style-src '{policy_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)}</title><style>{style}</style></head><body>"
        f'<a class="skip" href="#main">Skip to the rules</a><header><h1>{escaped(title)}</h1>'
        f"{sections.opening(record)}"
        f'<p class="warning">{NOTICE}</p>'
        f'<nav aria-label="On this page"><ul>{links}</ul></nav></header><main id="main" tabindex="-1">'
        f"{''.join(section(*part) for part in there)}</main>"
        f"<footer><p>Written by endocil. {NOTICE}</p></footer></body></html>\n"
    )


def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath("assets", name).read_text("utf-8")
