"""A table as LaTeX with booktabs, as papers print them: best in bold, second best underlined, ± in math mode.

The document needs \\usepackage{booktabs}, and amssymb where a table has ticks.
"""

from endocil.io.terminal import printable
from endocil.io.text_tables import DASH, Cell, Column, Spread, Table, shown, within
from endocil.reports.tables import TITLES

SPECIAL = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "✓": r"\checkmark{}",
        "\N{MINUS SIGN}": "$-$",
        DASH: "--",
        "\N{NO-BREAK SPACE}": "~",
    }
)
ARROWS = {"max": r"$\uparrow$", "min": r"$\downarrow$"}


def latex(table: Table, *, caption: str | None = None, label: str = "tab:results", note: str = "") -> str:
    """The whole table environment. `caption` takes the place of the table's own, which `note` ends."""
    best, second = table.marked(), table.marked(place=2)
    legend = r"Best in \textbf{bold}" if best else ""
    legend += r", second \underline{underlined}" if second else ""
    parts = [escaped(table.caption) + ".", f"{legend}." if legend else "", escaped(note)]
    caption = " ".join(filter(None, parts)) if caption is None else escaped(caption)
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in table.columns)}}}",
        r"\toprule",
        _line([_head(column) for column in table.columns]),
        r"\midrule",
    ]
    for number, (section, rows) in enumerate(table.by_section()):
        if section:
            lines += [r"\midrule"] if number else []
            lines.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{escaped(section)}}}}} \\")
        for i in rows:
            row = table.rows[i]
            lines.append(_line([_cell(cell, (i, j) in best, (i, j) in second) for j, cell in enumerate(row)]))
            if any(map(within, row)):
                lines.append(_line([_below(cell) for cell in row]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def escaped(text: str) -> str:
    """Text with LaTeX's special characters escaped, and those that turn the direction of text written out."""
    return printable(text).translate(SPECIAL)


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _head(column: Column) -> str:
    """The title, with an arrow to the better side."""
    title = _title(column.title)
    return f"{title} {ARROWS[column.best]}" if column.best else title


def _title(text: str) -> str:
    """Acc_last as the paper prints it, with an index."""
    name, _, index = text.partition("_")
    return rf"{name}$_{{\mathrm{{{index}}}}}$" if index and text in TITLES.values() else escaped(text)


def _cell(cell: Cell, best: bool, second: bool) -> str:
    if not isinstance(cell, Spread):
        return _title(shown(cell))
    mean, _, deviation = str(cell).partition(" ± ")
    mark = rf"\mathbf{{{mean}}}" if best else rf"\underline{{{mean}}}" if second else mean
    return f"${mark} \\pm {deviation}$" if deviation else f"${mark}$"


def _below(cell: Cell) -> str:
    return rf"{{\scriptsize ${text}$}}" if (text := within(cell)) else ""
