"""The folder of a bundle that is learning: a killed command goes on from here, and the folder goes at the end."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from endocil.bundle.manifest import Terms
from endocil.bundle.step import Step
from endocil.checkpoint import FILE
from endocil.errors import EndocilError
from endocil.files import write_json
from endocil.locking import lock

FACTS = "learning.json"
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
        used = self.path.is_dir() and any(self.path.iterdir())
        if used and not (self.path / FACTS).is_file() and not _only_ours(self.path):
            raise EndocilError(f"{self.path} holds other files; choose another folder with --work")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("ab") as file:
            if lock(file, wait=False) == "taken":
                raise EndocilError(f"another process is learning in {self.path}; let it finish")
            for left in self.path.glob(".*.tmp"):  # a kill in the middle of writing
                left.unlink(missing_ok=True)
            self._compare(facts)
            try:
                yield
            except EndocilError:
                if not self._begun():
                    self.remove()
                raise

    def _begun(self) -> bool:
        """Whether anything is learned that would be lost."""
        return (self.path / FILE).exists()

    def _compare(self, facts: dict[str, str]) -> None:
        file = self.path / FACTS
        if not self._begun():
            write_json(file, facts)
            return
        try:
            recorded = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise EndocilError(f"{file} is damaged; remove {self.path} to begin anew") from error
        for key, value in facts.items():
            if recorded.get(key) != value:
                raise EndocilError(
                    f"{self.path} is of a step with other {WHAT[key]}; go on with the same command as then, "
                    f"remove it to begin anew, or choose another folder with --work"
                )

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


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
    """Names, classes, parts and pixels of the new images."""
    images, table = step.images, step.images.table
    text = "\0".join((*table.ids, *table.classes, *images.part.tolist()))
    total = hashlib.sha256(text.encode(errors="surrogateescape") + table.labels.tobytes())
    for rows in torch.split(torch.arange(len(table)), 256):
        total.update(images.gather(rows).numpy().tobytes())
    return total.hexdigest()


def _only_ours(path: Path) -> bool:
    """A kill before the first record was written."""
    return all(entry.name.startswith(".") for entry in path.iterdir())
