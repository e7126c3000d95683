"""How hard is the synthetic set, and how fast is it drawn?

    python benchmarks/synthetic.py

Draws the demo's images on one core, then fits a linear model on standardised pixels (thumbnails of 16 x 16 and the
whole images) on the demo's own split, for several strengths of regularisation; the best is printed, which
favours the linear model. JointTrain on the same split: `endocil run demo --set method.name=joint`.
"""

import time
import warnings

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler

from endocil import load_settings
from endocil.learning.build import complete
from endocil.runs.parts import images_and_scenario


def linear(pixels: np.ndarray, labels: np.ndarray, train: np.ndarray, test: np.ndarray, strength: float) -> float:
    scaler = StandardScaler().fit(pixels[train])
    model = LogisticRegression(C=strength, max_iter=200, class_weight="balanced", tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not converged is good enough here
        model.fit(scaler.transform(pixels[train]), labels[train])
    found = model.predict(scaler.transform(pixels[test]))
    return 100.0 * float(balanced_accuracy_score(labels[test], found))


def thumbnails(images: np.ndarray, size: int) -> np.ndarray:
    n, whole = images.shape[:2]
    cut = images.reshape(n, size, whole // size, size, whole // size, 3)
    means: np.ndarray = cut.mean((2, 4), dtype=np.float32)
    return means.reshape(n, -1) / 255.0


def main() -> None:
    settings = complete(load_settings("demo"))
    images, scenario = images_and_scenario(settings)
    whole = settings.data.size
    table, train, test = images.table, scenario.part == "train", scenario.part == "test"
    began = time.perf_counter()
    for image_id in table.ids:
        table.reader.read(image_id, whole)
    print(f"{len(table)} images of {whole} px drawn in {time.perf_counter() - began:.1f} s on one core")
    pixels = images.gather(torch.arange(len(table))).numpy()
    for size, strengths in ((16, (1e-3, 1e-2, 1e-1)), (whole, (1e-4, 1e-3))):
        scores = [linear(thumbnails(pixels, size), table.labels, train, test, c) for c in strengths]
        print(f"linear model on {size} x {size} pixels: balanced accuracy {max(scores):.1f} % (best of {len(scores)})")


if __name__ == "__main__":
    main()
