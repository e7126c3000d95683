"""The first sheet of an .xlsx file as rows of text: a zip of XML, read without trusting it.

No document type and no entities, limited sizes, nothing but the cells' values. One row per line of the sheet,
as a dictionary by the first line.
"""

import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.parsers import expat

from endocil.errors import EndocilError
from endocil.io.files import refuse_special

MAX_BYTES = 256 * 2**20  # of one part, unpacked: twenty times the largest table of the public data sets
MAX_CELLS = 20_000_000
MAX_COLUMNS = 16_384  # the format's own limit

_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    expat.ExpatError,
    struct.error,
    EOFError,
    LookupError,
    RuntimeError,
)


class _RefusedError(ValueError):
    """The reason why a sheet is not read."""


def read_xlsx(path: Path) -> list[dict[str, str]]:
    """The lines below the first of the first sheet; cells that are not there are empty."""
    try:
        refuse_special(path)
        with zipfile.ZipFile(path) as file:
            strings = _strings(file)
            lines = _lines(file, _first_sheet(file), strings)
    except (*_DAMAGED, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EndocilError(f"{path} cannot be read as an .xlsx table: {reason}; save it again") from error
    except OSError as error:
        raise EndocilError(f"cannot read {path}: {error.strerror or error}") from error
    if not lines:
        raise EndocilError(f"{path}: the first sheet is empty; expected a line of column names")
    header = [lines[0].get(column, "") for column in range(max(lines[0]) + 1)]
    return [
        {name: line.get(column, "") for column, name in enumerate(header) if name}
        for line in lines[1:]
        if line
    ]


def _parse(file: zipfile.ZipFile, name: str, **handlers: Callable[..., None]) -> None:
    """Stream one part through expat; `start`, `end` and `text` are called as the elements go by."""
    if file.getinfo(name).file_size > MAX_BYTES:
        raise _RefusedError(f"{name} is larger than {MAX_BYTES:,} bytes")
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.StartElementHandler = lambda tag, given: handlers["start"](tag.rpartition("}")[2], given)
    parser.EndElementHandler = lambda tag: handlers["end"](tag.rpartition("}")[2])
    parser.CharacterDataHandler = handlers["text"]
    with file.open(name) as part:
        parser.ParseFile(part)


def _refuse_doctype(*_: object) -> None:
    raise _RefusedError("it declares a document type, which no table does")


def _first_sheet(file: zipfile.ZipFile) -> str:
    """The part with the first sheet, as the workbook tells; sheet1.xml where it does not."""
    sheets: list[Mapping[str, str]] = []
    links: dict[str, str] = {}

    def start(tag: str, given: Mapping[str, str]) -> None:
        if tag == "sheet":
            sheets.append({key.rpartition("}")[2]: value for key, value in given.items()})
        elif tag == "Relationship":
            links[given.get("Id", "")] = given.get("Target", "")

    for part in ("xl/workbook.xml", "xl/_rels/workbook.xml.rels"):
        if part in file.namelist():
            _parse(file, part, start=start, end=_nothing, text=_nothing)
    target = links.get(sheets[0].get("id", ""), "") if sheets else ""
    name = target.lstrip("/") if target.startswith("/") else f"xl/{target}"
    return name if target and name in file.namelist() else "xl/worksheets/sheet1.xml"


def _strings(file: zipfile.ZipFile) -> list[str]:
    """Texts that cells refer to by their number; runs of one text in several formats are put together."""
    found: list[list[str]] = []
    depth = {"t": 0, "rPh": 0}  # rPh: how to pronounce it, not what it says

    def start(tag: str, _: Mapping[str, str]) -> None:
        if tag == "si":
            found.append([])
        if tag in depth:
            depth[tag] += 1

    def end(tag: str) -> None:
        if tag in depth:
            depth[tag] -= 1

    def text(data: str) -> None:
        if depth["t"] and not depth["rPh"] and found:
            found[-1].append(data)

    if "xl/sharedStrings.xml" in file.namelist():
        _parse(file, "xl/sharedStrings.xml", start=start, end=end, text=text)
    return ["".join(pieces) for pieces in found]


class _Cells:
    """Collects the cells of a sheet, line by line."""

    def __init__(self, strings: list[str]) -> None:
        self.strings = strings
        self.lines: list[dict[int, str]] = []
        self.column = -1
        self.kind = ""
        self.text: list[str] | None = None
        self.n_cells = 0

    def start(self, tag: str, given: Mapping[str, str]) -> None:
        if tag == "row":
            self.lines.append({})
            self.column = -1
        elif tag == "c":
            self.column = _column(given["r"]) if "r" in given else self.column + 1
            self.kind = given.get("t", "n")
            self.n_cells += 1
            if self.n_cells > MAX_CELLS:
                raise _RefusedError(f"more than {MAX_CELLS:,} cells")
        elif tag in ("v", "t"):
            self.text = []

    def data(self, data: str) -> None:
        if self.text is not None:
            self.text.append(data)

    def end(self, tag: str) -> None:
        if tag in ("v", "t") and self.text is not None and self.lines:
            value = "".join(self.text)
            value = self.strings[int(value)] if self.kind == "s" else value
            line = self.lines[-1]
            line[self.column] = line.get(self.column, "") + value  # inline strings come in pieces
            self.text = None


def _lines(file: zipfile.ZipFile, sheet: str, strings: list[str]) -> list[dict[int, str]]:
    cells = _Cells(strings)
    _parse(file, sheet, start=cells.start, end=cells.end, text=cells.data)
    return [line for line in cells.lines if line]


def _column(reference: str) -> int:
    """0 for A7, 26 for AA7."""
    letters = re.match(r"[A-Z]{1,3}", reference)
    number = 0
    for letter in letters[0] if letters else "":
        number = number * 26 + ord(letter) - 64
    if not 1 <= number <= MAX_COLUMNS:
        raise _RefusedError(f"a cell is called {reference[:20]!r}")
    return number - 1


def _nothing(*_: object) -> None:
    """For what a part holds beside the elements asked for."""
