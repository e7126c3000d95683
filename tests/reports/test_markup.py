"""The HTML library: templates escape every value, refuse a missing one, and a page names its own style and script."""

import base64
import hashlib
import re
from typing import Any

import pytest
from jinja2 import UndefinedError

from endocil.html.markup import asset, code, number, policy_hash, render_page, subscripted

DASH = "\N{EN DASH}"
AUDIT: dict[str, Any] = {
    "title": "<b>",
    "disclaimer": "",
    "lines": [],
    "record": {"notes": ['<i>"', "not UTF-8: \udcff"], "rule": "", "near": {"groups": 0}},
    "leaks": None,
    "split_pairs": None,
    "conflicts": None,
    "class_pairs": {"text": "", "pairs": []},
    "group_table": None,
    "groups": [],
    "exact": None,
    "counts": {"caption": "", "kind": "", "view": "", "when": "", "head": [], "rows": []},
    "sources": [],
    "files": None,
}


def test_values_are_escaped_by_the_template_and_odd_bytes_can_be_written() -> None:
    text = render_page("endocil.audit", **AUDIT)
    assert "<b>" not in text
    assert "&lt;i&gt;&#34;" in text
    assert r"not UTF-8: \udc" in text


def test_a_value_that_is_missing_is_an_error_and_not_a_gap() -> None:
    with pytest.raises(UndefinedError, match="'lines' is undefined"):
        render_page("endocil.audit", **{key: value for key, value in AUDIT.items() if key != "lines"})
    with pytest.raises(UndefinedError, match="no attribute 'notes'"):
        render_page("endocil.audit", **AUDIT | {"record": {"rule": "", "near": {"groups": 0}}})


def test_a_page_without_a_script_allows_none() -> None:
    text = render_page("endocil.audit", **AUDIT)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in text
    assert policy_hash(style) == f"sha256-{digest}"
    assert "script-src" not in text


def test_style_and_script_cannot_end_their_element() -> None:
    for package, name in (("html", "style.css"), ("reports", "page.css"), ("reports", "page.js")):
        assert asset(f"endocil.{package}", name)
        assert "</" not in asset(f"endocil.{package}", name)
    assert asset("endocil.audit", "page.js") == ""


def test_names_of_metrics_have_their_end_below_the_line_and_other_texts_stay() -> None:
    assert subscripted("<Acc_last> of my_class") == "&lt;Acc<sub>last</sub>&gt; of my_class"
    assert code("as `af` <") == "as <code>af</code> &lt;"


def test_no_number_is_a_dash_and_nothing_has_no_minus() -> None:
    assert [number(None), number(float("nan")), number(-0.001), number(1234.56)] == [DASH, DASH, "0.0", "1,234.6"]
