"""Metrics of class-incremental learning, in percent: pure functions of stored predictions.

T + 1 tasks are counted t = 0..T; a[t][s] is the accuracy on the test images of task s by the model after task
t, which chooses among all classes seen so far. EndoCIL (arXiv 2510.17200) prints its average forgetting with
1/(T+1), but its tables' numbers are only plausible with 1/T: `af` is the one to compare with them.
A division by zero counts as 0 in precision and F1; the recall of a class without test images is undefined.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from endocil.errors import EndocilError
from endocil.model.predictions import HEADS, Head, Predictions

METRICS: Mapping[str, str] = {
    "acc_last": "Accuracy over the test images of all classes, after the last task.",
    "f1_last": "Macro F1, the plain mean of the F1 of all classes, after the last task.",
    "acc_avg": "Mean over the tasks of the accuracy on the classes seen so far.",
    "f1_avg": "Mean over the tasks of the macro F1 of the classes seen so far.",
    "af": "Average forgetting: accuracy on a task just after it was learnt minus that at the end, "
    "mean over all tasks but the last; lower is better, negative: accuracy on old tasks rose.",
    "af_printed": "The sum of `af` divided by the number of all tasks, as the paper's equation is printed.",
    "forgetting_max": "As `af`, but from the best accuracy ever reached on a task.",
    "balanced_last": "Balanced accuracy, the plain mean of the recalls of all classes, after the last task.",
    "acc": "Accuracy on the classes seen so far, after each task.",
    "f1": "Macro F1 of the classes seen so far, after each task.",
    "task_accuracy": "Row t, column s: accuracy on the test images of task s after task t.",
    "confusion": "Row i, column j: test images of class i given to class j, after the last task.",
    "confusions": "The confusion matrix after each task.",
    "per_class": "Recall, precision, F1 and number of test images of each class, after the last task.",
    "per_class_over_tasks": "Recall of each class seen so far, after each task.",
    "per_source": "Accuracy, recall, precision and F1 of each source alone, after the last task.",
}
TABLE_METRICS = ("acc_last", "f1_last", "acc_avg", "f1_avg", "af")  # the columns of the paper's tables

Counts = NDArray[np.int64]  # (C, C) true class by predicted class
Figures = dict[str, Any]
ALL = slice(None)


def task_sizes(predictions: Sequence[Predictions]) -> list[int]:
    """The number of classes each task adds; none where it brings images of known classes alone."""
    if not predictions:
        raise EndocilError("no predictions given; expected those after each task, in the order of learning")
    known = [(), *(p.classes for p in predictions)]
    for old, now in pairwise(known):
        if now[: len(old)] != old or not now:
            raise EndocilError(f"expected the classes {old} and new ones after them; got {now}")
    return [len(now) - len(old) for old, now in pairwise(known)]


def confusion(p: Predictions, head: Head, counted: NDArray[np.bool_] | slice = ALL) -> Counts:
    """The number of the counted images of each true class (row) given to each class (column)."""
    c = len(p.classes)
    pairs = (_labels(p) * c + p.predicted(head))[counted]
    return np.bincount(pairs, minlength=c * c).reshape(c, c).astype(np.int64)


def _labels(p: Predictions) -> NDArray[np.int64]:
    if (p.labels < 0).any():
        raise EndocilError("metrics need the class of every image; expected labels, got images without")
    return p.labels


def accuracy(p: Predictions, head: Head) -> float:
    """Share of the images given their own class."""
    correct = np.asarray(p.predicted(head) == _labels(p))
    return float(accuracy_from(correct.sum(), np.asarray(correct.size)))


def balanced_accuracy(p: Predictions, head: Head) -> float:
    """Plain mean of the recalls of the classes that have images."""
    return float(np.nanmean(rates(confusion(p, head))["recall"]))


def macro_f1(p: Predictions, head: Head) -> float:
    """Plain mean over all seen classes of 2 TP / (images + predicted)."""
    return float(rates(confusion(p, head))["f1"].mean())


def rates(counts: Counts) -> dict[str, NDArray[Any]]:
    """Recall, precision, F1 and number of images of each class, (C,)."""
    correct, images, predicted = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    return {
        "recall": accuracy_from(correct, images),
        "precision": _percent(correct, predicted, empty=0.0),
        "f1": f1_from(correct, images + predicted),
        "images": images,
    }


def accuracy_from(correct: NDArray[Any], images: NDArray[Any]) -> NDArray[np.float64]:
    """Percent of the images given their own class; NaN where there are none."""
    return _percent(correct, images, empty=np.nan)


def f1_from(correct: NDArray[Any], images_and_predicted: NDArray[Any]) -> NDArray[np.float64]:
    """2 TP / (images + predicted) in percent; 0 where a class has neither."""
    return _percent(2 * correct, images_and_predicted, empty=0.0)


def _percent(part: NDArray[Any], whole: NDArray[Any], empty: float) -> NDArray[np.float64]:
    return np.where(whole == 0, empty, 100.0 * part / np.maximum(whole, 1))


def task_accuracy(predictions: Sequence[Predictions], head: Head) -> NDArray[np.float64]:
    """a[t][s], (T+1, T+1); NaN above the diagonal and where a task has no test images."""
    ends = np.cumsum(task_sizes(predictions))
    a = np.full((len(ends), len(ends)), np.nan)
    for t, p in enumerate(predictions):
        counts = confusion(p, head)
        tasks = np.searchsorted(ends, np.arange(len(counts)), side="right")  # (C,) task of each class
        correct, images = (np.bincount(tasks, each, t + 1) for each in (counts.diagonal(), counts.sum(axis=1)))
        a[t, : t + 1] = accuracy_from(correct, images)
    return a


def average_forgetting(a: NDArray[np.float64], sizes: Sequence[int] | None = None) -> float:
    """sum over s < T of (a[s][s] - a[T][s]) / T; NaN after one task, which cannot forget.

    `sizes`: the number of classes of each task. One without has no accuracy of its own, and is not counted in T."""
    return _mean((a.diagonal()[:-1] - a[-1, :-1])[_counted(a, sizes)])


def af_printed(a: NDArray[np.float64], sizes: Sequence[int] | None = None) -> float:
    """The same sum / (T+1), as printed in the paper; its term s = T is 0."""
    n = int(_counted(a, sizes).sum())
    return average_forgetting(a, sizes) * n / (n + 1)


def forgetting_max(a: NDArray[np.float64], sizes: Sequence[int] | None = None) -> float:
    """sum over s < T of (max over t of a[t][s] - a[T][s]) / T, PyCIL's forgetting; NaN after one task."""
    return _mean((np.fmax.reduce(a, axis=0)[:-1] - a[-1, :-1])[_counted(a, sizes)])


def _counted(a: NDArray[np.float64], sizes: Sequence[int] | None) -> NDArray[np.bool_]:
    """(T,) the tasks before the last that brought classes."""
    return np.ones(len(a) - 1, bool) if sizes is None else np.array(sizes[:-1]) > 0


def _mean(values: NDArray[np.float64]) -> float:
    return fmean(values.tolist()) if len(values) else float("nan")


def per_class(p: Predictions, head: Head, counted: NDArray[np.bool_] | slice = ALL) -> dict[str, Figures]:
    """Recall, precision, F1 and number of images by the name of the class."""
    columns = {rate: plain(values) for rate, values in rates(confusion(p, head, counted)).items()}
    return {name: {rate: column[i] for rate, column in columns.items()} for i, name in enumerate(p.classes)}


def per_source(p: Predictions, head: Head) -> dict[str, Figures]:
    """The figures of each source's images alone; empty where no source is known.

    Recall, precision and F1 are means over the classes that occur in the source."""
    by_source: dict[str, Figures] = {}
    for name in sorted(set(p.sources)) if any(p.sources) else []:
        own = np.array(p.sources) == name
        counts = confusion(p, head, own)
        by_class = rates(counts)
        occurs = by_class["images"] > 0
        by_source[name] = {rate: float(values[occurs].mean()) for rate, values in by_class.items()} | {
            "accuracy": float(accuracy_from(counts.trace(), counts.sum())),
            "images": int(counts.sum()),
            "per_class": per_class(p, head, own),
        }
    return by_source


def summarise(predictions: Sequence[Predictions]) -> Figures:
    """All metrics of a run by head, ready for JSON: None where undefined, or where a task lacks the head."""
    missing = {"nearest_mean"} if any(p.distances is None for p in predictions) else set()
    return {
        **{head: None if head in missing else _of_head(predictions, head) for head in HEADS},
        "classes": list(predictions[-1].classes),
        "task_sizes": task_sizes(predictions),
        "test_images": [len(p.images) for p in predictions],
    }


def _of_head(predictions: Sequence[Predictions], head: Head) -> Figures:
    a, sizes = task_accuracy(predictions, head), task_sizes(predictions)
    acc = [accuracy(p, head) for p in predictions]
    f1 = [macro_f1(p, head) for p in predictions]
    confusions = [confusion(p, head).tolist() for p in predictions]
    recalls = [{name: each["recall"] for name, each in per_class(p, head).items()} for p in predictions]
    last = predictions[-1]
    return {
        "acc_last": acc[-1],
        "f1_last": f1[-1],
        "acc_avg": fmean(acc),
        "f1_avg": fmean(f1),
        "af": plain(average_forgetting(a, sizes)),
        "af_printed": plain(af_printed(a, sizes)),
        "forgetting_max": plain(forgetting_max(a, sizes)),
        "balanced_last": balanced_accuracy(last, head),
        "acc": acc,
        "f1": f1,
        "task_accuracy": plain(a),
        "confusion": confusions[-1],
        "confusions": confusions,
        "per_class": per_class(last, head),
        "per_class_over_tasks": recalls,
        "per_source": per_source(last, head),
    }


def plain(values: Any) -> Any:
    """Python numbers in lists; None for NaN, which JSON does not know."""
    return np.where(np.isnan(values), np.array(None), values).tolist()


# --- further metrics, which tables leave out by default: `endocil table --metric` shows them


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
