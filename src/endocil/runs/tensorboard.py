"""A run for TensorBoard: event files below RUN/tensorboard, made from events.jsonl and the predictions.

A resumed run writes them again from the events up to its checkpoint, so they are those of a run that was never stopped.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from endocil.errors import ResourceError
from endocil.learning.events import Show, read_events
from endocil.metrics.metrics import summarise
from endocil.model.prediction_files import read_run_predictions
from endocil.model.predictions import HEADS
from endocil.runs.folder import RunFolder

POSITION_KEYS = {"task", "epoch", "epochs", "images", "seconds", "shared"}  # of an epoch: not measurements


def refuse_missing_package() -> None:
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise ResourceError(
            "run.tensorboard needs the package tensorboard: pip install 'endocil[tensorboard]'"
        ) from error


@contextmanager
def for_tensorboard(here: RunFolder, show: Show, *, enabled: bool) -> Iterator[Show]:
    """`show` that, if enabled, writes event files too. Of several processes that learn together, one does it."""
    if not enabled:
        yield show
        return
    refuse_missing_package()
    with tracked(Tracker(here, lambda: _event_files(here)), show) as shown:
        yield shown


def write_tensorboard(here: RunFolder) -> Path:
    """The event files of a run, finished or not, as far as it is."""
    refuse_missing_package()
    with closing(Tracker(here, lambda: _event_files(here))) as tracker:
        tracker.begin()
    return here.path / "tensorboard"


def _event_files(here: RunFolder) -> "Writer":
    from torch.utils.tensorboard import SummaryWriter

    folder = here.path / "tensorboard"
    shutil.rmtree(folder, ignore_errors=True)
    writer: Writer = SummaryWriter(folder)
    return writer


class Writer(Protocol):
    """Where scalars go: TensorBoard's event files, or Weights & Biases."""

    def add_scalar(self, tag: str, value: float, step: int, seconds: float, /) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


@contextmanager
def tracked(tracker: "Tracker", show: Show) -> Iterator[Show]:
    """`show` that hands each event to the tracker too."""
    with closing(tracker):

        def show_and_track(record: dict[str, Any]) -> None:
            show(record)
            tracker(record)

        yield show_and_track


class Tracker:
    """Scalars over the epochs of all tasks, and over the tasks. Fed by the run's events.

    Times are the beginning of the run and the seconds of training since, so that they do not depend on stops."""

    def __init__(self, here: RunFolder, open_writer: Callable[[], Writer]) -> None:
        self.here, self.open_writer = here, open_writer
        self.writer: Writer | None = None
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
        """Write everything again, from the events so far."""
        self.writer = self.open_writer()
        for record in read_events(self.here.events):
            self.add(record)

    def add(self, record: dict[str, Any]) -> None:
        if record["event"] == "task":
            self._score()  # of the tasks before this one
            self.classes += record["classes"]
        elif record["event"] == "epoch":
            self.epochs += 1
            self.seconds += record["seconds"]
            for name, value in record["losses"].items():
                self._write(f"loss/{name}", value, self.epochs)
            for name, values in record.get("per_class", {}).items():
                for label, value in zip(self.classes, values, strict=False):
                    self._write(f"loss of {label}/{name}", value, self.epochs)
            for name in sorted(record.keys() - POSITION_KEYS):
                if isinstance(record[name], int | float):
                    self._write(f"epoch/{name}", record[name], self.epochs)
        elif record["event"] == "learned":
            self.learned += 1
            self._write("parameters", record["parameters"], record["task"])
            for name, value in record.get("measured", {}).items():
                self._write(f"task/{name}", value, record["task"])

    def close(self) -> None:
        if self.writer is not None:
            self._score()
            self.writer.close()

    def _score(self) -> None:
        """Accuracy and forgetting after each task that has predictions and was not scored yet."""
        files = [self.here.predictions(task) for task in range(self.learned)]
        n = next((i for i, file in enumerate(files) if not file.exists()), len(files))
        if n == self.scored:
            return
        predictions = read_run_predictions(files[:n], of_run=True)
        for task in range(self.scored, n):
            metrics = summarise(predictions[: task + 1])
            for head in HEADS:
                if metrics[head] is not None:
                    self._write(f"accuracy/{head}", metrics[head]["acc_last"], task)
                    self._write(f"macro F1/{head}", metrics[head]["f1_last"], task)
                    self._write(f"forgetting/{head}", metrics[head]["af"], task)
        self.scored = n

    def _write(self, tag: str, value: float | None, step: int) -> None:
        if value is not None and self.writer is not None:  # a class without images, a task with nothing to forget
            self.writer.add_scalar(tag, value, step, self.began + self.seconds)
