"""Tables that the program writes into README and docs, between markers, so that they stay what was measured.

<!-- ledger:NAME -->
the table
<!-- /ledger -->
"""

import re
from collections.abc import Mapping
from pathlib import Path

from endocil.errors import EndocilError
from endocil.files import write_atomically
from endocil.report.tables import Table

PLACE = re.compile(r"<!-- ledger:([\w-]+) -->(.*?)<!-- /ledger -->", re.DOTALL)
OPENING = re.compile(r"<!-- ledger:([\w-]+) -->")


def insert_tables(file: Path, tables: Mapping[str, Table], *, check: bool = False) -> bool:
    """Put each table in its place in the file and tell whether the file changed.

    With `check` the file stays as it is, and the answer tells whether it would change."""
    file = Path(file)
    before = _read(file)
    _refuse_bad_places(file, before, tables)
    after = PLACE.sub(lambda found: _filled(found[1], tables[found[1]]), before)
    if after != before and not check:
        write_atomically(file, after)
    return after != before


def _filled(name: str, table: Table) -> str:
    return f"<!-- ledger:{name} -->\n\n{table.markdown()}\n<!-- /ledger -->"


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")  # as bytes, because reading text would change line ends
    except (OSError, UnicodeDecodeError) as error:
        raise EndocilError(f"cannot read {file}: {error}") from error


def _refuse_bad_places(file: Path, text: str, tables: Mapping[str, Table]) -> None:
    opened = OPENING.findall(text)
    if not opened:
        raise EndocilError(
            f"{file} has no place for a table; write <!-- ledger:NAME --> and <!-- /ledger --> there"
        )
    for name in opened:
        if name not in tables:
            raise EndocilError(f"{file} asks for the table '{name}'; known: {', '.join(sorted(tables))}")
    if any(OPENING.search(body) for _, body in PLACE.findall(text)) or len(PLACE.findall(text)) != len(
        opened
    ):
        raise EndocilError(
            f"{file}: a <!-- ledger:NAME --> is not closed by <!-- /ledger --> before the next one"
        )
