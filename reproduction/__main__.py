"""`python -m reproduction`: the paper's numbers and claims beside the ledger's."""

import argparse
from functools import partial
from pathlib import Path

from endocil.io.files import write_atomically
from endocil.reports.ledger import read_ledger, uses_method_defaults
from endocil.runs.records import completed
from endocil.settings.settings import load_settings
from reproduction.page import results_page
from reproduction.paper import paper, places


def page(ledger: Path) -> str:
    """The ledger's results beside the paper's numbers and claims, as Markdown."""
    entries = read_ledger(ledger, complete=completed)
    ablation = partial(uses_method_defaults, components=True)
    presets = {data: completed(load_settings(data)) for data in paper()["data"]}
    return results_page(places(entries, uses_method_defaults, ablation, presets))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description=__doc__)
    parser.add_argument("--ledger", type=Path, default=Path("docs/results"), help="Folder of the ledger.")
    parser.add_argument("-o", "--output", type=Path, help="Write into this file; standard output otherwise.")
    options = parser.parse_args()
    text = page(options.ledger)
    if options.output is None:
        print(text, end="")
    else:
        write_atomically(options.output, text)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
