"""A run for Weights & Biases (`run.wandb`): the scalars that TensorBoard gets, made from the same events.

Numbers, names of classes and settings without folders are logged; no image and no name of one. WANDB_MODE=offline keeps
all in RUN/wandb. A resumed run is a new one there, which begins with the events up to the checkpoint.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from endocil.errors import ResourceError
from endocil.io.files import portable
from endocil.learning.events import Show
from endocil.runs.experiments import data_title, label
from endocil.runs.folder import RunFolder
from endocil.runs.tensorboard import Tracker, tracked

BY_EPOCH = ("loss", "epoch/")  # how tags begin whose steps are epochs; those of the others are tasks


def refuse_missing_package() -> None:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at the import: its crashes are not reported unasked
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise ResourceError("run.wandb needs the package wandb: pip install 'endocil[wandb]'") from error


@contextmanager
def for_wandb(here: RunFolder, show: Show, *, enabled: bool) -> Iterator[Show]:
    """`show` that, if enabled, logs too. Of several processes that learn together, one does it."""
    if not enabled:
        yield show
        return
    refuse_missing_package()
    with tracked(Tracker(here, lambda: WandbWriter(here)), show) as shown:
        yield shown


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
