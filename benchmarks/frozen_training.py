"""Methods that train, on a frozen backbone, from stored features: each image passes the network once for all runs.

    python benchmarks/frozen_training.py experiments/frozen-replay-validation.toml -o runs/replay [--only TEXT]

The runs of a sweep file, one after the other in this process, in folders as `endocil sweep` names them; finished ones
are skipped. `endocil sweep` itself shows every image to the network in every epoch, as augmentation changes it; so
augmentation must be off here (train.flip and train.brightness 0). The results are those of `endocil sweep` up to
rounding: there a batch passes the network at once, here each image by itself.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from endocil.data.augment import Augmentation
from endocil.data.batches import pixel_digest
from endocil.learning import build
from endocil.learning.build import build_learning, feature_store
from endocil.learning.features import features_of, sharing_features
from endocil.methods.base import Method
from endocil.networks.efficientnet_lite import EfficientNetLite
from endocil.runs.run import run
from endocil.runs.sweep.plan import plan, read_sweep
from endocil.runs.sweep.runner import SweepFolder
from endocil.settings.settings import Settings

OFF = Augmentation(flip=0.0, brightness=0.0)
network = EfficientNetLite.forward


def forward(self: EfficientNetLite, images: Tensor, *others: Any) -> Tensor:
    """Features stay as they are."""
    return images if images.ndim == 2 else network(self, images, *others)


@dataclass(frozen=True, kw_only=True)
class StoredFeatures(Augmentation):
    """In place of pixels the features of each image: (B, H, W, 3) uint8 -> (B, d)."""

    method: Method
    known: dict[bytes, Tensor]

    def __call__(self, pixels: Tensor, *_: Any, **__: Any) -> Tensor:
        digests = [pixel_digest(one) for one in pixels]
        missing = [place for place, digest in enumerate(digests) if digest not in self.known]
        if missing:
            found = features_of(self.method, pixels[missing])  # by the shared store
            self.known.update(zip([digests[place] for place in missing], found, strict=True))
        return torch.stack([self.known[digest] for digest in digests])


def learn(settings: Settings, folder: Path, known: dict[bytes, Tensor]) -> dict[str, Any]:
    """A run of these settings; its metrics."""
    if build.build_augmentation(settings.train) != OFF or settings.train.mixup:
        raise SystemExit("stored features go with train.flip=0 and train.brightness=0, and nothing else of the kind")
    method, _ = build_learning(settings)
    if not method.frozen:
        raise SystemExit('stored features go with network.freeze=["all"]')
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    stored = StoredFeatures(method=method, known=known)
    with (
        sharing_features(feature_store(settings)),
        patch.object(build, "build_augmentation", lambda train: stored),
        patch.object(EfficientNetLite, "forward", forward),
    ):
        return dict(run(settings, folder).metrics["softmax"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    parser.add_argument("--only", default="", help="runs whose name has this text")
    options = parser.parse_args()
    folder, known = SweepFolder(options.output), dict[bytes, Tensor]()
    options.output.mkdir(parents=True, exist_ok=True)
    runs = plan(read_sweep(options.file), options.file.parent, options.changes)
    for one in [one for one in runs if options.only in one.name and folder.state(one) != "finished"]:
        began = time.perf_counter()
        result = learn(one.settings, folder.run(one).path, known)
        seconds = time.perf_counter() - began
        print(f"{one.name}: {result['acc_last']:.1f} / {result['f1_last']:.1f}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
