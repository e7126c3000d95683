"""The folder of a bundle that is learning: a killed command goes on from here, and the folder goes at the end."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from endocil.bundle.manifest import Terms
from endocil.bundle.step import Step
from endocil.checkpoint import FILE
from endocil.errors import EndocilError
from endocil.files import temporaries_beside, write_json
from endocil.locking import lock

FACTS, EVENTS, LOCK = "learning.json", "events.jsonl", ".lock"
MADE = "made_folder"  # by us; a folder of the user's stays
WHAT = {
    "parent": "bundle",
    "images": "new images",
    "settings": "settings",
    "terms": "--licence and --consent",
}


@dataclass(frozen=True)
class WorkFolder:
    path: Path

    @contextmanager
    def open(self, facts: dict[str, str]) -> Iterator[None]:
        """One process at a time; what lies here must be of the same bundle, images and settings."""
        if self.path.is_file():
            raise EndocilError(f"{self.path} is a file; choose another folder with --work")
        made = not self.path.exists()
        if not made and not self._only_ours():
            raise EndocilError(f"{self.path} holds other files; choose another folder with --work")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("ab") as file:
            if lock(file, wait=False) == "taken":
                raise EndocilError(f"another process is learning in {self.path}; let it finish")
            for left in self._temporary():  # a kill in the middle of writing
                left.unlink(missing_ok=True)
            made = made or self._recorded().get(MADE) == "yes"
            self._compare({**facts, MADE: "yes" if made else "no"})
            try:
                yield
            except EndocilError:
                if not self._begun():
                    self.remove()
                raise

    def _only_ours(self) -> bool:
        """Nothing, a step that was begun, or what a kill leaves before its first record was written."""
        names = {entry.name for entry in self.path.iterdir()} - {file.name for file in self._temporary()}
        if LOCK in names and (self.path / LOCK).stat().st_size > 0:  # ours is empty
            return False
        begun = set(WHAT) <= set(self._recorded())
        return names <= ({LOCK, FACTS, EVENTS, FILE} if begun else {LOCK})

    def _temporary(self) -> list[Path]:
        return [left for name in (FACTS, EVENTS, FILE) for left in temporaries_beside(self.path / name)]

    def _recorded(self) -> dict[str, str]:
        file = self.path / FACTS
        if not file.is_file():
            return {}
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError:  # somebody else's: ours are whole or not there
            return {}
        return found if isinstance(found, dict) else {}

    def _begun(self) -> bool:
        """Whether anything is learned that would be lost."""
        return (self.path / FILE).exists()

    def _compare(self, facts: dict[str, str]) -> None:
        if not self._begun():
            write_json(self.path / FACTS, facts)
            return
        recorded = self._recorded()
        for key in WHAT:
            if recorded.get(key) != facts[key]:
                raise EndocilError(
                    f"{self.path} is of a step with other {WHAT[key]}; go on with the same command as then, "
                    f"remove it to begin anew, or choose another folder with --work"
                )

    def remove(self) -> None:
        """What we have written, and the folder if we made it and nothing else lies in it."""
        made = self._recorded().get(MADE) == "yes"
        with suppress(OSError):
            for file in (*self._temporary(), *(self.path / name for name in (FILE, EVENTS, FACTS, LOCK))):
                file.unlink(missing_ok=True)
            if made:
                self.path.rmdir()


def facts_of(step: Step, terms: Terms) -> dict[str, str]:
    """What decides the outcome, as digests and settings; threads and devices may differ."""
    settings = step.settings.model_dump(mode="json", exclude={"run"})
    return {
        "parent": step.before.digest if step.before else "",
        "images": _digest_of_images(step),
        "settings": json.dumps(settings, sort_keys=True),
        "terms": terms.model_dump_json(),
    }


def _digest_of_images(step: Step) -> str:
    """Names, classes, groups, sources, parts and pixels of the new images."""
    images, table = step.images, step.images.table
    text = "\0".join((*table.ids, *table.classes, *table.groups, *table.sources, *images.part.tolist()))
    total = hashlib.sha256(text.encode(errors="surrogateescape") + table.labels.tobytes())
    for rows in torch.split(torch.arange(len(table)), 256):
        total.update(images.gather(rows).numpy().tobytes())
    return total.hexdigest()
