"""events.jsonl: one line for each thing that happened, shown on the screen from the same stream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError, FileFormatError
from endocil.io.files import write_atomically

Show = Callable[[dict[str, Any]], None]


def read_events(path: Path, *, finished: bool = False) -> list[dict[str, Any]]:
    """The events so far; none where there is no file yet, and without a last line that is half written.

    `finished`: nobody writes any more, so a missing file and a last line that is not whole are errors."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        if not finished:
            return []
        raise FileFormatError(f"cannot read {path}: {error}; the run folder is not whole") from error
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error}") from error
    return [
        _event(f"{path}, line {number}", line)
        for number, line in enumerate(lines if finished else lines[:-1], 1)
        if line
    ]


def _event(place: str, line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise FileFormatError(f"{place} is not JSON: {error}; the file is damaged") from error
    if not isinstance(event, dict) or "event" not in event:
        raise FileFormatError(f"{place} is not an event: expected a JSON object with the key 'event'")
    return event


class Journal:
    """Appends events to a file and hands each to the display. `lines` is what a checkpoint remembers.

    `silent`: of several processes that learn together, one keeps the journal and the others read it at most."""

    def __init__(self, path: Path, show: Show, *, silent: bool = False) -> None:
        self.path, self.show, self.lines, self.silent = path, show, 0, silent

    def cut_back(self, lines: int) -> list[dict[str, Any]]:
        """Keep the first lines only and return them: what came after the checkpoint is done again."""
        kept = self.path.read_text("utf-8").splitlines()[:lines] if self.path.exists() else []
        if not self.silent:
            write_atomically(self.path, "".join(f"{line}\n" for line in kept))
        self.lines = len(kept)
        return [json.loads(line) for line in kept]

    def epochs(self, task: int, phase: str) -> list[dict[str, Any]]:
        """What was written about the epochs of a phase."""
        records = [json.loads(line) for line in self.path.read_text("utf-8").splitlines()]
        wanted = {"event": "epoch", "task": task, "phase": phase}
        return [record for record in records if wanted.items() <= record.items()]

    def write(self, event: str, **fields: Any) -> None:
        if self.silent:
            return
        record = {"event": event, **fields}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise EndocilError(
                f"cannot write {self.path}: {error.strerror or error}; mend that (free some space), "
                f"then go on with 'endocil resume {self.path.parent}'"
            ) from error
        self.lines += 1
        self.show(record)
