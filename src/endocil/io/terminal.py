"""The terminal: untrusted text made printable, and the progress of a run as a bar or as plain lines."""

import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from endocil.errors import DataError

CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029"  # C0, delete, C1, and the separators of lines and paragraphs
BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # by which text pretends to be other text
_CONTROL = re.compile(f"[{CONTROL}]")
_UNSHOWN = re.compile(f"[{CONTROL}{BIDI}\ud800-\udfff]")  # and bytes of names that are no valid UTF-8


def printable(text: str) -> str:
    r"""The text on one line; control characters, those that turn the direction of text, and invalid bytes are shown
    as \n, \x1b, \u202e or \udcff."""
    return _UNSHOWN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(error: BaseException) -> str:
    """What an error says, without its line breaks; its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def without_tricks(text: str) -> str:
    """The same for a text of several lines, which stay."""
    return "\n".join(map(printable, text.split("\n")))


def refuse_control(place: str, text: str) -> None:
    """Control characters and line breaks could steer a terminal; the error names the place, and shows them escaped."""
    match = _CONTROL.search(text)
    if match:
        raise DataError(
            f"{place} has the character U+{ord(match[0]):04X}; control characters and line breaks are not allowed: "
            f"{printable(text)[:80]}"
        )


def refuse_control_in(place: str, value: Any) -> None:
    """The same for every key and text of a JSON value, however deep."""
    remaining = [(place, value)]
    while remaining:
        where, one = remaining.pop()
        if isinstance(one, str):
            refuse_control(where, one)
        elif isinstance(one, dict):
            for key, inner in one.items():
                refuse_control(f"{where}: a name", key)
                remaining.append((f"{where}.{printable(key)[:50]}"[-300:], inner))
        elif isinstance(one, list | tuple):
            remaining += [(f"{where}.{number}"[-300:], inner) for number, inner in enumerate(one)]


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Columns as wide as they need to be; those of numbers stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        lines.append("  ".join(cell.rjust(n) if j in right else cell.ljust(n) for j, (cell, n) in cells).rstrip())
    return "\n".join(lines)


class Display:
    """Shows the events of a run: a bar with the time left on a terminal, plain lines otherwise.

    The event `plan` has the number of image passes of the run, and how many are done."""

    def __init__(self, console: Console, name: str) -> None:
        self.console, self.name = console, name
        self.done, self.total = 0, 1
        self.trained = 0.0  # seconds of training seen, for the time left
        self.measured = 0  # image passes that took them
        self.bar: Progress | None = None
        self.row = TaskID(0)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # cut short on a narrow terminal
            columns = (
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[losses]}", table_column=rest),
            )
            self.bar = Progress(*columns, console=self.console, transient=True, expand=True)
            self.row = self.bar.add_task(self.name, total=self.total, left="", losses="")
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        getattr(self, f"_on_{record['event']}")(record)

    def _on_remarks(self, record: dict[str, Any]) -> None:
        for remark in record["remarks"]:
            self._print(f"note: {remark}")

    def _on_plan(self, record: dict[str, Any]) -> None:
        self.total, self.done = record["images"], record["done"]
        if self.bar is not None:
            self.bar.update(self.row, total=self.total, completed=self.done)

    def _on_task(self, record: dict[str, Any]) -> None:
        classes = ", ".join(record["classes"]) or "no new class"
        self._print(
            f"{self.name}  task {record['task'] + 1}: {classes}; {record['new']:,} new images, "
            f"{record['exemplars']:,} exemplars"
        )
        for note in record["notes"]:
            self._print(f"  note: {note}")

    def _on_epoch(self, record: dict[str, Any]) -> None:
        self.done += record["images"]
        if not record.get("shared"):  # another run has spent that time
            self.measured += record["images"]
            self.trained += record["seconds"]
        left = (self.total - self.done) * self.trained / max(1, self.measured)
        losses = ", ".join(f"{name} {value:.3f}" for name, value in record["losses"].items())
        where = f"task {record['task'] + 1} {record['phase']} {record['epoch'] + 1}/{record['epochs']}"
        if self.bar is not None:
            text, left_text = f"{self.name}  {where}", f"{duration(left)} left"
            self.bar.update(self.row, completed=self.done, description=text, left=left_text, losses=losses)
        elif (record["epoch"] + 1) % max(1, record["epochs"] // 4) == 0:
            self._print(f"  {where}: {losses}; {record['images_per_second']:.0f} images/s; {duration(left)} left")

    def _on_selection(self, record: dict[str, Any]) -> None:
        measured = ""
        if record["mmd2"] is not None:
            measured = f", squared MMD {record['mmd2']:.4f} (bound {record['bound']:.3f})"
        self._print(f"  kept {record['kept']} of {record['of']} {record['class']}{measured}")

    def _on_learned(self, record: dict[str, Any]) -> None:
        self._print(
            f"  learned; {record['parameters']:,} parameters used for prediction; "
            f"peak memory {record['peak_megabytes']:,.0f} MB"
        )

    def _print(self, text: str) -> None:
        self.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def plain_progress(console: Console, subject: str) -> Callable[[int, int], None]:
    """Progress of counted work, such as decoding images: a line every few seconds while it lasts."""
    shown = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if done < total and time.monotonic() - shown > 3.0:
            shown = time.monotonic()
            console.print(f"  {subject}: {done:,} of {total:,} ({done / max(1, total):.0%})", highlight=False)

    return progress
