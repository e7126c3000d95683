"""Tables as LaTeX: well formed, nothing unescaped, the best in bold and the second underlined."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from endocil.io.text_tables import Column, Spread, Table
from endocil.reports.latex import escaped, latex

TABLE = Table(
    "Results of 50 % & more_of #1 {a}~b^c\\d",
    (
        Column("method", "Method"),
        Column("tick", "MDBR"),
        Column("seeds", "Seeds", True),
        Column("acc_last", "Acc_last", True, "max"),
        Column("af", "AF", True, "min"),
    ),
    (
        ("endocil (select=mean)", "✓", 3, Spread(70.5, 1.25, (68.04, 72.96)), Spread(20.0, 1.0, (18, 22))),
        ("a_b & 50 %", "\N{EN DASH}", 3, Spread(71.0, 0.5, (69.0, 73.0)), Spread(-1.5, 0.2, (-3, 0))),
        ("<x|y>", "✓", 1, Spread(60.0), Spread(30.0)),
        ("joint", "\N{EN DASH}", 1, Spread(80.0), None),
    ),
    ("", "", "", None),
)


def _body(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.endswith(r" \\")]


def test_environments_are_balanced_and_every_line_has_as_many_cells_as_columns() -> None:
    text = latex(TABLE, label="tab:mine")
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert opened == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == opened[::-1]
    assert r"\begin{tabular}{llrrr}" in text
    assert {len(re.findall(r"(?<!\\)&", line)) for line in _body(text)} == {4}
    assert len(_body(text)) == 1 + 4 + 2  # head, rows, and the intervals of two of them
    unescaped = text.replace(r"\{", "").replace(r"\}", "")
    assert unescaped.count("{") == unescaped.count("}")
    assert text.count("$") % 2 == 0
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert r"\label{tab:mine}" in text


def test_the_best_is_bold_the_second_underlined_and_upper_bounds_neither() -> None:
    text = latex(TABLE)
    assert r"$\mathbf{71.00} \pm 0.50$" in text
    assert r"$\underline{70.50} \pm 1.25$" in text
    assert r"$\mathbf{-1.50} \pm 0.20$" in text  # the least forgotten
    assert r"$\underline{20.00} \pm 1.00$" in text
    assert "$80.00$ & --" in text
    assert r"{\scriptsize $[68.0, 73.0]$}" in text
    assert r"Acc$_{\mathrm{last}}$ $\uparrow$" in text
    assert r"AF $\downarrow$" in text


def test_of_two_methods_the_second_is_not_underlined() -> None:
    two = Table("t", TABLE.columns, TABLE.rows[:2])
    assert "underline" not in latex(two)
    assert r"Best in \textbf{bold}." in latex(two)


def test_a_metric_named_in_a_cell_has_its_index_and_a_name_that_looks_alike_has_not() -> None:
    named = Table("t", (Column("metric", "Metric"), Column("method", "Method")), (("Acc_last", "my_method"),))
    assert r"Acc$_{\mathrm{last}}$ & my\_method \\" in latex(named)


def test_a_caption_of_ones_own_takes_the_place_of_the_tables() -> None:
    text = latex(TABLE, caption="Ours & theirs", label="tab:mine", note="a note")
    assert r"\caption{Ours \& theirs}" in text
    assert "a note" not in text


def test_sections_have_a_line_over_all_columns() -> None:
    sections = Table(TABLE.caption, TABLE.columns, TABLE.rows, TABLE.rankings, ("A_1", "A_1", "B", "B"))
    lines = latex(sections).splitlines()
    place = lines.index(r"\multicolumn{5}{l}{\textit{A\_1}} \\")
    assert lines[place - 1] == r"\midrule"
    assert r"\multicolumn{5}{l}{\textit{B}} \\" in lines[place:]


def test_no_character_means_anything_to_latex() -> None:
    assert escaped("a_b & 50 % #1 {x} $5 ~ ^ \\ <") == (
        r"a\_b \& 50 \% \#1 \{x\} \$5 \textasciitilde{} \textasciicircum{} \textbackslash{} \textless{}"
    )


def test_what_turns_text_is_written_out() -> None:
    assert escaped("po\u202elyp") == r"po\textbackslash{}u202elyp"


def test_it_compiles(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        if os.environ.get("ENDOCIL_NEEDS_LATEX"):
            pytest.fail("pdflatex is not installed, and ENDOCIL_NEEDS_LATEX is set")
        pytest.skip("pdflatex is not installed: the LaTeX tables were checked for form, not compiled")
    document = "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\usepackage{booktabs,amssymb}",
            r"\begin{document}",
            latex(TABLE, note="± is the deviation; 95 % of <all> a_b."),
            r"\end{document}",
        ]
    )
    (tmp_path / "tables.tex").write_text(document, "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "tables.pdf").stat().st_size > 0
