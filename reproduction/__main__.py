"""`python -m reproduction`: the paper's numbers and claims beside the ledger's."""

import argparse
from functools import partial
from pathlib import Path

from endocil.io.files import write_atomically
from endocil.reports.ledger import insert_texts, read_ledger, uses_method_defaults
from endocil.runs.records import completed
from endocil.settings.settings import load_settings
from reproduction.ladder import buffers_text, ladder_text
from reproduction.page import claims_text, results_page, verdicts_text
from reproduction.paper import Place, paper, places


def ledger_places(ledger: Path) -> list[Place]:
    """The ledger's runs, by what they must share to be compared."""
    entries = read_ledger(ledger, complete=completed)
    ablation = partial(uses_method_defaults, components=True)
    presets = {data: completed(load_settings(data)) for data in paper()["data"]}
    return places(entries, uses_method_defaults, ablation, presets)


def page(ledger: Path) -> str:
    """The ledger's results beside the paper's numbers and claims, as Markdown."""
    return results_page(ledger_places(ledger))


def texts(ledger: Path) -> dict[str, str]:
    """What documents say of the paper's claims, scale and buffers, by the name in their markers."""
    found = ledger_places(ledger)
    return {
        "verdicts": verdicts_text(found),
        "claims": claims_text(found),
        "ladder": ladder_text(found),
        "buffers": buffers_text(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    parser.add_argument("--ledger", type=Path, default=Path("docs/results"), help="Folder of the ledger.")
    parser.add_argument("-o", "--output", type=Path, help="Write into this file; standard output otherwise.")
    parser.add_argument("--insert", type=Path, help="Also write the claims between the markers of this Markdown file.")
    options = parser.parse_args()
    text = page(options.ledger)
    if options.output is None:
        print(text, end="")
    else:
        write_atomically(options.output, text)
        print(f"wrote {options.output}")
    if options.insert is not None:
        insert_texts(options.insert, texts(options.ledger), kind="paper")


if __name__ == "__main__":
    main()
