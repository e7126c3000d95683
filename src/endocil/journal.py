"""events.jsonl: one line for each thing that happened, shown on the screen from the same stream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from endocil.errors import EndocilError
from endocil.files import write_atomically

Show = Callable[[dict[str, Any]], None]


class Journal:
    """Appends events to a file and hands each to the display. `lines` is what a checkpoint remembers."""

    def __init__(self, path: Path, show: Show) -> None:
        self.path, self.show, self.lines = path, show, 0

    def cut_back(self, lines: int) -> list[dict[str, Any]]:
        """Keep the first lines only and return them: what came after the checkpoint is done again."""
        kept = self.path.read_text("utf-8").splitlines()[:lines] if self.path.exists() else []
        write_atomically(self.path, "".join(f"{line}\n" for line in kept))
        self.lines = len(kept)
        return [json.loads(line) for line in kept]

    def write(self, event: str, **fields: Any) -> None:
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
