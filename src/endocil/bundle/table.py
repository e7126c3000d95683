"""Predictions as a CSV file: one line for each image, unreadable ones at the end. Columns: docs/bundles.md."""

from pathlib import Path

from endocil.bundle.pictures import Pictures
from endocil.bundle.predicting import Predicted
from endocil.files import write_csv


def write_predicted(
    path: Path, predicted: Predicted, exemplars: Pictures, drawn: tuple[str, ...] = ()
) -> None:
    """`drawn`: the file of each image's Grad-CAM picture, where they were asked for."""
    shown = min(predicted.shown, len(predicted.classes))
    reasons = max((len(rows) for rows in predicted.nearest), default=0)
    header = ["image", "error", "calibrated"]
    header += [f"{what}_{i}" for i in range(1, shown + 1) for what in ("class", "probability")]
    header += ["mean_class", "mean_probability", "unlike", "unlike_score"]
    header += [f"exemplar_{i}{what}" for i in range(1, reasons + 1) for what in ("", "_class", "_distance")]
    header += ["gradcam"] if drawn else []
    rows = [_row(predicted, i, exemplars, drawn) for i in range(len(predicted))]
    empty = [""] * (len(header) - 2)
    rows += [[name, reason, *empty] for name, reason in predicted.unreadable]
    write_csv(path, header, rows)


def _row(predicted: Predicted, i: int, exemplars: Pictures, drawn: tuple[str, ...]) -> list[str]:
    row = [predicted.images[i], "", _yes(predicted.calibrated)]
    values, order = predicted.probabilities[i].sort(descending=True, stable=True)
    for label, value in list(zip(order.tolist(), values.tolist(), strict=True))[: predicted.shown]:
        row += [predicted.classes[label], _number(value)]
    row += _of_mean_head(predicted, i)
    row += ["" if predicted.unlike is None else _yes(bool(predicted.unlike[i]))]
    row += [_number(float(predicted.unlike_score[i]))]
    if predicted.nearest:
        near = zip(predicted.nearest[i], predicted.nearest_distances[i], strict=True)
        for place, distance in near:
            origin = exemplars.origins[place]
            row += [origin.image, origin.class_name, _number(distance)]
    return [*row, drawn[i]] if drawn else row


def _of_mean_head(predicted: Predicted, i: int) -> list[str]:
    if predicted.mean_probabilities is None:
        return ["", ""]
    best = int(predicted.mean_probabilities[i].argmax())
    return [predicted.classes[best], _number(float(predicted.mean_probabilities[i, best]))]


def _number(value: float) -> str:
    return f"{value:.6g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
