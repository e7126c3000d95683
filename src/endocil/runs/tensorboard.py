"""A run for TensorBoard: event files below RUN/tensorboard, made from what the run records anyway.

Everything comes from events.jsonl and the predictions, so the files of a run that was stopped and went on are those
of a run that was not: when it goes on, they are written anew from the events up to its checkpoint.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from endocil.errors import EndocilError
from endocil.learning.events import Show
from endocil.metrics.metrics import summarise
from endocil.model.predictions import HEADS, read_run_predictions
from endocil.runs.folder import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

NO_SCALARS = {
    "task",
    "epoch",
    "epochs",
    "images",
    "seconds",
    "shared",
}  # of an epoch: where it was, not what it found


def refuse_missing_package() -> None:
    """Before anything is trained."""
    try:
        import tensorboard  # type: ignore[import-untyped,import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        raise EndocilError(
            "run.tensorboard needs the package tensorboard: pip install 'endocil[tensorboard]'"
        ) from error


@contextmanager
def for_tensorboard(here: RunFolder, show: Show, *, wanted: bool) -> Iterator[Show]:
    """`show` that writes event files too, if that is wanted: of several processes that learn together, by one."""
    if not wanted:
        yield show
        return
    refuse_missing_package()
    tracker = Tracker(here)

    def both(record: dict[str, Any]) -> None:
        show(record)
        tracker(record)

    try:
        yield both
    finally:
        tracker.close()


def write_tensorboard(here: RunFolder) -> "Path":
    """The event files of a run, finished or not, as far as it is."""
    refuse_missing_package()
    tracker = Tracker(here)
    tracker.begin()
    tracker.close()
    return tracker.folder


class Tracker:
    """Scalars over the epochs of the whole life, and over its tasks. Fed by the run's events.

    Times are the beginning of the run and the seconds of training since, so that they do not depend on stops."""

    def __init__(self, here: RunFolder) -> None:
        self.here, self.folder = here, here.path / "tensorboard"
        self.writer: Any = None
        self.classes: list[str] = []
        self.learned = self.epochs = self.scored = 0
        self.began = (here.path / "settings.toml").stat().st_mtime
        self.seconds = 0.0

    def __call__(self, record: dict[str, Any]) -> None:
        if record["event"] == "plan":  # all that is kept of the past has been read
            self.begin()
        elif self.writer is not None:
            self.add(record)
            self.writer.flush()

    def begin(self) -> None:
        """From the events that are there; a last line that is half written does not count."""
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(self.folder, ignore_errors=True)
        self.writer = SummaryWriter(self.folder)
        text = self.here.events.read_bytes() if self.here.events.exists() else b""
        for line in text.rpartition(b"\n")[0].splitlines():
            self.add(json.loads(line))

    def add(self, record: dict[str, Any]) -> None:
        if record["event"] == "task":
            self._score()  # of the tasks before this one
            self.classes += record["classes"]
        elif record["event"] == "epoch":
            self._epoch(record)
        elif record["event"] == "learned":
            self.learned += 1
            self._write("parameters", record["parameters"], record["task"])

    def close(self) -> None:
        if self.writer is not None:
            self._score()
            self.writer.close()

    def _epoch(self, record: dict[str, Any]) -> None:
        self.epochs += 1
        self.seconds += record["seconds"]
        for name, value in record["losses"].items():
            self._write(f"loss/{name}", value, self.epochs)
        for name, values in record.get("per_class", {}).items():
            for label, value in zip(self.classes, values, strict=False):
                self._write(f"loss of {label}/{name}", value, self.epochs)
        for name in sorted(record.keys() - NO_SCALARS):
            if isinstance(record[name], int | float):
                self._write(f"epoch/{name}", record[name], self.epochs)

    def _score(self) -> None:
        """Accuracy and forgetting after the tasks whose predictions are there, those that were scored left out."""
        files = [self.here.predictions(task) for task in range(self.learned)]
        n = next((i for i, file in enumerate(files) if not file.exists()), len(files))
        if n == self.scored:
            return
        predictions = read_run_predictions(files[:n])
        for task in range(self.scored, n):
            found = summarise(predictions[: task + 1])
            for head in HEADS:
                if found[head] is not None:
                    self._write(f"accuracy/{head}", found[head]["acc_last"], task)
                    self._write(f"macro F1/{head}", found[head]["f1_last"], task)
                    self._write(f"forgetting/{head}", found[head]["af"], task)
        self.scored = n

    def _write(self, tag: str, value: float | None, step: int) -> None:
        if value is not None:  # a class without images, a task with nothing to forget
            self.writer.add_scalar(tag, value, step, self.began + self.seconds)
