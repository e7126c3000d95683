"""A run for TensorBoard and for Weights & Biases: scalars made from events.jsonl and the predictions.

TensorBoard's event files lie below RUN/tensorboard. A resumed run writes them again from the events up to its
checkpoint, so they are those of a run that was never stopped.

Weights & Biases gets the same scalars (`run.wandb`). Numbers, names of classes and settings without folders are logged;
no image and no name of one. WANDB_MODE=offline keeps all in RUN/wandb. A resumed run is a new one there, which begins
with the events up to the checkpoint.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from endocil.errors import ResourceError
from endocil.io.files import portable
from endocil.learning.events import Show, read_events
from endocil.metrics.metrics import summarise
from endocil.model.prediction_files import read_run_predictions
from endocil.model.predictions import HEADS
from endocil.runs.experiments import data_title, label
from endocil.runs.folder import RunFolder

POSITION_KEYS = {"task", "epoch", "epochs", "images", "seconds", "shared"}  # of an epoch: not measurements
BY_EPOCH = ("loss", "epoch/")  # how tags begin whose steps are epochs; those of the others are tasks


def refuse_missing_package(name: Literal["tensorboard", "wandb"]) -> None:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the import: its crashes are not reported unasked
    try:
        import_module(name)
    except ImportError as error:
        raise ResourceError(f"run.{name} needs the package {name}: pip install 'endocil[{name}]'") from error


@contextmanager
def tracked(here: RunFolder, show: Show, *, tensorboard: bool, wandb: bool) -> Iterator[Show]:
    """`show` that hands each event to the trackers too. Of several processes that learn together, one does it."""
    trackers = []
    if tensorboard:
        refuse_missing_package("tensorboard")
        trackers.append(Tracker(here, lambda: _event_files(here)))
    if wandb:
        refuse_missing_package("wandb")
        trackers.append(Tracker(here, lambda: WandbWriter(here)))

    def show_and_track(record: dict[str, Any]) -> None:
        show(record)
        for tracker in trackers:
            tracker(record)

    with ExitStack() as stack:
        for tracker in trackers:
            stack.enter_context(closing(tracker))
        yield show_and_track


def write_tensorboard(here: RunFolder) -> Path:
    """The event files of a run, finished or not, as far as it is."""
    refuse_missing_package("tensorboard")
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
            self.seconds += record.get("seconds", 0.0)
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


class WandbWriter:
    """One run at Weights & Biases, named after the folder; seeds of an experiment are a group."""

    def __init__(self, here: RunFolder) -> None:
        import wandb

        settings = here.settings.model_dump(mode="json", exclude_none=True)
        # nothing of this machine: no output, code, host, user or command line
        quiet = wandb.Settings(
            console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        try:
            self.run = wandb.init(
                dir=here.path,
                name=here.path.resolve().name,
                group=f"{data_title(settings)}: {label(settings)}",
                config=portable(settings),
                settings=quiet,
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise ResourceError(
                f"Weights & Biases cannot be reached or used: {reason}; log in with 'wandb login', set "
                f"WANDB_MODE=offline, or leave run.wandb out"
            ) from error
        self.known: set[str] = set()

    def add_scalar(self, tag: str, value: float, step: int, seconds: float, /) -> None:
        axis = "epoch" if tag.startswith(BY_EPOCH) else "task"
        if tag not in self.known:
            self.known.add(tag)
            self.run.define_metric(tag, step_metric=axis)
        self.run.log({tag: value, axis: step})

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        self.run.finish()
