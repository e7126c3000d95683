"""Further metrics of stored scores: top-5 and task-aware accuracy, backward and forward transfer, in percent.

They are left out of the tables by default; `endocil table --metric` shows them. docs/compare.md defines them.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from endocil.metrics.metrics import task_sizes
from endocil.model.predictions import Head, Predictions

FURTHER_METRICS: Mapping[str, str] = {
    "top5_last": "Share of the test images whose class is among the five highest scores, after the last task.",
    "top5_avg": "Mean over the tasks of the share whose class is among the five highest scores.",
    "task_aware_last": "Accuracy after the last task if the task of each image were known: the highest score among the "
    "classes of its task.",
    "task_aware_avg": "Mean over the tasks of the task-aware accuracy on the classes seen so far.",
    "bwt": "Backward transfer: accuracy on a task at the end minus that just after it was learnt, mean over all tasks "
    "but the last; negative: it was forgotten.",
    "fwt": "Forward transfer: task-aware accuracy on a task just after it was learnt minus that of a model which "
    "learned all classes at once, mean over all tasks but the first.",
}
NEED_SCORES = frozenset({"top5_last", "top5_avg", "task_aware_last", "task_aware_avg", "fwt"})


def class_tasks(predictions: Sequence[Predictions]) -> NDArray[np.int64]:
    """(C,) the task that brings each class of the last predictions."""
    sizes = task_sizes(predictions)
    return np.repeat(np.arange(len(sizes)), sizes)


def top_correct(p: Predictions, head: Head = "softmax", k: int = 5) -> NDArray[np.bool_]:
    """(n,) whether an image's class is among the k best; ties go to the class learned first."""
    best = np.argsort(-p.outputs(head), axis=1, kind="stable")[:, :k]
    return np.asarray((best == p.labels[:, None]).any(axis=1))


def task_aware_correct(p: Predictions, tasks: NDArray[np.int64], head: Head = "softmax") -> NDArray[np.bool_]:
    """(n,) whether an image's class is the best among those of its task. `tasks`: (C,) the task of each class."""
    tasks = tasks[: len(p.classes)]
    others = tasks[None, :] != tasks[p.labels][:, None]  # (n, C)
    return np.asarray(np.where(others, -np.inf, p.outputs(head)).argmax(axis=1) == p.labels)
