"""events.jsonl: one line for each thing that happened, shown on the screen from the same stream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError
from endocil.io.files import write_atomically

Show = Callable[[dict[str, Any]], None]


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
