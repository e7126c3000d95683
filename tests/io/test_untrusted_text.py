"""Names from files are shown as what they are: on terminals, on pages and in Markdown they do nothing."""

from pathlib import Path

import pytest
from jinja2 import Environment
from markdown_it import MarkdownIt
from rich.console import Console

from endocil.html import markup
from endocil.io.terminal import Display, printable
from endocil.io.text_tables import Column, Table, markdown_text

TURNED = "polyp \u202egpj.exe\u202c \u2066x\u2069\u200f"
STEERING = "\x1b]0;owned\x07\x1b[2Jpolyp\x9b"
LINKS = (
    "[click](javascript:alert)",
    "![x](https://evil.example/x.png)",
    "<https://evil.example>",
    "https://evil.example/a_b",
    "www.evil.example",
    "<img src=x onerror=alert(1)>",
    "&lt;b&gt;",
    "a | b",
    "**bold** _em_ `code` ~~gone~~",
    "polyp\n\n# heading",
)


def test_what_turns_or_steers_text_is_written_out_on_a_terminal() -> None:
    assert printable(TURNED) == r"polyp \u202egpj.exe\u202c \u2066x\u2069\u200f"
    assert printable(STEERING) == r"\x1b]0;owned\x07\x1b[2Jpolyp\x9b"
    console = Console(record=True, width=200)
    with Display(console, "run") as display:
        display({"event": "remarks", "remarks": [TURNED, STEERING]})
    shown = console.export_text()
    assert "\u202e" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("name", LINKS)
def test_a_name_in_a_markdown_table_is_neither_html_nor_a_link(name: str) -> None:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    table = Table("", (Column("a", "a"), Column("b", name)), ((name, 1),))
    html = reader.render(table.markdown())
    for forbidden in ("<a ", "<img", "<strong", "<em", "<code", "<s>", "<h1", "onerror=alert(1)>"):
        assert forbidden not in html
    assert html.count("<td") == 2
    for address in ("https://", "www."):  # which GitHub makes links of where they stand alone
        assert address not in markdown_text(name)


@pytest.mark.parametrize(
    "name", ["# heading", "> quote", "- item", "+ item", "## x", "1. item", "2) item", "---", "==="]
)
def test_a_name_at_the_begin_of_a_line_of_markdown_is_text(name: str) -> None:
    assert MarkdownIt("commonmark").render(markdown_text(name)) == f"<p>{name.replace('>', '&gt;')}</p>\n"


def test_names_that_are_not_links_are_left_alone() -> None:
    for name in ("normal_z-line", "EndoCIL (loss=cross_entropy)", "Barrett's 10:30", "esophagitis a/b"):
        assert markdown_text(name) == name


def test_what_turns_or_steers_text_is_written_out_on_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment: Environment = markup.environment("endocil.reports")
    page = environment.from_string("<p>{{ name }}</p><script>{{ data | tojson }}</script>")
    html = page.render(name=TURNED + STEERING, data=markup._shown({"classes": [TURNED]}))
    assert r"\u202egpj" in html.partition("</p>")[0]
    assert not {"\u202e", "\u2066", "\x1b", "\x9b"} & set(html)
    assert r"\\u202egpj" in html  # a text of JSON in which the character is written out, not escaped


@pytest.mark.parametrize("shown", ["{{ name }}", "{{ name | subscripted }}", "{{ name | code }}"])
def test_what_turns_text_is_written_out_where_a_filter_makes_markup_of_it_too(shown: str) -> None:
    """As in the cells of the tables of every page."""
    html = markup.environment("endocil.reports").from_string(shown).render(name=TURNED + STEERING)
    assert r"\u202egpj" in html
    assert not {"\u202e", "\u2066", "\x1b", "\x9b"} & set(html)
