"""A whole life on both sides, number by number: iCaRL, WA and DER learn four tasks in endocil and in PyCIL, float64.

Same first weights, same new classifier rows, same augmented batches in the same order; all else is each side's own:
losses, optimiser, alignment, teachers, exemplars, class means, both heads. Prints two Markdown tables; fails where
exemplars differ, or more predictions of a task than ALLOWED.
"""

import argparse
import contextlib
import importlib
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peer
import torch
from runs import INCREMENT, KeptImages, settings, without_workers
from sides import pairs
from torch import Tensor, nn

import endocil
from endocil.data.augment import IMAGENET, Augmentation, normalise
from endocil.data.batches import Batch, ImageSet, training_batches
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.data.splits import TEST, TRAIN
from endocil.learning.events import Journal
from endocil.learning.learner import Learner
from endocil.learning.parallel import OneProcess
from endocil.model.predictions import predict
from endocil.runs.parts import RunParts, assemble

WIDTH = 8
TRAINING = {"epochs": 3, "milestones": [2], "batch_size": 64}
ALLOWED = 2  # test images of a task whose prediction may differ: our features leave the network as float32
NEVER = 1e9  # seconds between checkpoints

Heads = dict[str, Tensor]  # predicted classes of all test images, by head


@dataclass(frozen=True)
class Row:
    """What is left of a task on both sides."""

    method: str
    task: int
    exemplars: int
    other_exemplars: int  # of these, how many places of the memory hold another image
    absolute: float
    relative: float
    labels: Tensor
    ours: Heads
    theirs: Heads

    def differing(self, head: str) -> int:
        return int((self.ours[head] != self.theirs[head]).sum())

    @property
    def missed(self) -> bool:
        return self.other_exemplars > 0 or any(self.differing(head) > ALLOWED for head in self.ours)

    def __str__(self) -> str:
        weights = f"{self.absolute:.1e} | {self.relative:.1e}"
        memory = f"{self.other_exemplars} of {self.exemplars}"
        cells = [
            f"{self.differing(head)} of {len(self.labels)} | {self._accuracy(self.ours[head])} | "
            f"{self._accuracy(self.theirs[head])}"
            for head in ("softmax", "nearest_mean")
        ]
        verdict = "MISSED" if self.missed else "met"
        return f"| {self.method} | {self.task + 1} | {memory} | {weights} | {' | '.join(cells)} | {verdict} |"

    def _accuracy(self, predicted: Tensor) -> str:
        return f"{100 * float((predicted == self.labels).double().mean()):.2f}"


class Ours:
    """Our run, task by task, by the learner that every run uses."""

    def __init__(self, images: Path, method: str, seed: int, folder: Path) -> None:
        wanted = settings(images, method, seed)
        wanted = {**wanted, "network": {"width": WIDTH}, "train": TRAINING}
        self.parts: RunParts = assemble(endocil.load_settings(wanted))
        self.method, self.seed = self.parts.method.double(), seed
        # images are float32 everywhere in the package
        self.method.backbone.register_forward_pre_hook(lambda module, given: (given[0].double(), *given[1:]))
        self.first = {key: value.clone() for key, value in self.method.backbone.state_dict().items()}
        self.grown: dict[str, dict[str, Tensor]] = {}
        self._grow, self.method.grow = self.method.grow, self._grow_in_float64  # type: ignore[method-assign]
        self.learner = Learner(
            self.method,
            self.parts.memory,
            folder=folder,
            fabric=OneProcess(),
            journal=Journal(folder / "events.jsonl", lambda record: None),
            augmentation=self.parts.augmentation,
            seed=seed,
            checkpoint_seconds=NEVER,
        )

    def _grow_in_float64(self, task: Task) -> None:
        """DER's new auxiliary head would be float32; the heads as they start are kept for PyCIL."""
        self._grow(task)
        self.method.double()
        heads = {"fc": self.method.classifier, "aux_fc": getattr(self.method, "auxiliary", None)}
        self.grown = {
            name: {key: value.clone() for key, value in head.state_dict().items()}
            for name, head in heads.items()
            if head is not None
        }

    def learn(self, task: Task) -> ImageSet:
        """Learn a task; the images that it was learned from, in the order that the batches are cut from."""
        new = ImageSet.of(self.parts.images, self.parts.scenario.rows(TRAIN, task.new))
        seen = new + self.memory()
        self.learner.learn(task, new, self.parts.images.table.classes)
        return seen

    def memory(self) -> ImageSet:
        """The exemplars, as rows of the images."""
        assert self.parts.memory is not None
        row_of = {name: row for row, name in enumerate(self.parts.images.table.ids)}
        rows = [row_of[one.image] for one in self.parts.memory.exemplars.provenance]
        return ImageSet.of(self.parts.images, torch.tensor(rows, dtype=torch.int64), from_memory=True)

    def predict(self, task: Task) -> tuple[Tensor, Tensor, Heads]:
        """The rows of all test images of seen classes, their labels, and what both heads say."""
        tests = ImageSet.of(self.parts.images, self.parts.scenario.rows(TEST, task.seen))
        found = predict(self.method, tests, 256, classes=self.parts.images.table.classes[task.seen])
        assert found.distances is not None
        heads = {"softmax": found.scores.argmax(1), "nearest_mean": found.distances.argmin(1)}
        return tests.rows, tests.labels, {head: torch.from_numpy(values) for head, values in heads.items()}


class Numbered(KeptImages):
    """The data set of runs.py whose images are named by their rows, so that PyCIL's memory can be read."""

    use_path = True

    def __init__(self, images: Path, parts: RunParts) -> None:
        super().__init__(images)
        every = slice(0, len(parts.images.table.classes))
        self.train_data, self.test_data = (parts.scenario.rows(part, every).numpy() for part in (TRAIN, TEST))


class OurBatches:
    """PyCIL's training loader: each pass over it is our next epoch."""

    def __init__(self, images: ImageSet, ours: Ours, task: Task) -> None:
        self.images, self.ours, self.task, self.epoch = images, ours, task, 0

    def __len__(self) -> int:
        return len(self._batches(0))

    def _batches(self, epoch: int) -> list[Batch]:
        key, device = (self.task.index, 0, epoch), torch.device("cpu")
        size, augmentation = self.ours.method.schedule(self.task).batch_size, self.ours.parts.augmentation
        with default_type(torch.float32):  # torch.rand gives other numbers in float64
            return list(training_batches(self.images, size, augmentation, self.ours.seed, key, device))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        self.epoch += 1
        for batch in self._batches(self.epoch - 1):
            yield torch.arange(len(batch)), batch.images.double(), batch.labels


class Theirs:
    """PyCIL's learner, data manager and memory, task by task."""

    def __init__(self, images: Path, method: str, ours: Ours) -> None:
        self.ours, self.seen, self.task = ours, ours.memory(), Task(0, 0, 0)
        managers: Any = importlib.import_module("utils.data_manager")
        managers._get_idata = lambda name: Numbered(images, ours.parts)
        managers.pil_loader = self._picture
        self.manager = managers.DataManager("imagenet-like", False, ours.seed, INCREMENT, INCREMENT)
        epochs, milestones = TRAINING["epochs"], TRAINING["milestones"]
        first = {"init_epoch": epochs, "init_milestones": milestones}
        constants = {"epochs": epochs, "milestones": milestones, **first}
        loading = {"batch_size": TRAINING["batch_size"], "num_workers": 0}
        memory = {"fixed_memory": True, "memory_per_class": ours.parts.memory.per_class}  # type: ignore[union-attr]
        peer.use_convnet(self._first_convnet)
        with float64_and_silence():
            self.learner, module = peer.learner(method, {**constants, **loading}, **memory)
        self.learner.topk = 2  # five of three classes cannot be ranked
        self._load, module.DataLoader = torch.utils.data.DataLoader, self._loader  # type: ignore[attr-defined]
        self._update, self.learner._network.update_fc = self.learner._network.update_fc, self._updated

    def _picture(self, row: int) -> Any:
        from PIL import Image

        return Image.fromarray(self.ours.parts.images.gather(torch.tensor([row]))[0].numpy())

    def _first_convnet(self) -> peer.Convnet:
        convnet = peer.Convnet(width=WIDTH).double()
        convnet.load_state_dict(self.ours.first)
        return convnet

    def _loader(self, dataset: Any, **options: Any) -> Any:
        """Tests are PyCIL's; training is ours, if PyCIL wants to learn from the same images."""
        if not options["shuffle"]:
            return self._load(dataset, **options)
        if sorted(dataset.images.tolist()) != sorted(self.seen.rows.tolist()):
            raise SystemExit(f"task {self.task.index + 1}: PyCIL's training images are not ours")
        return OurBatches(self.seen, self.ours, self.task)

    def _updated(self, n_classes: int) -> None:
        """What is new in the heads is ours; what was learned stays PyCIL's."""
        network, old = self.learner._network, self.learner._network.fc
        rows, columns = (0, 0) if old is None else old.weight.shape
        self._update(n_classes)
        grown = self.ours.grown["fc"]
        with torch.no_grad():
            network.fc.weight[rows:] = grown["weight"][rows:]
            network.fc.weight[:, columns:] = grown["weight"][:, columns:]
            network.fc.bias[rows:] = grown["bias"][rows:]
        if "aux_fc" in self.ours.grown:
            network.aux_fc.load_state_dict(self.ours.grown["aux_fc"])

    def learn(self, task: Task, seen: ImageSet) -> None:
        self.task, self.seen = task, seen
        with float64_and_silence():
            self.learner.incremental_train(self.manager)

    def predict(self, rows: Tensor) -> Heads:
        """What both heads say of these test images; a task ends here."""
        learner, loader = self.learner, self.learner.test_loader
        place = {row: index for index, row in enumerate(loader.dataset.images.tolist())}
        order = [place[row] for row in rows.tolist()]
        with float64_and_silence():
            found = {
                "softmax": learner._eval_cnn(loader)[0],
                "nearest_mean": learner._eval_nme(loader, learner._class_means)[0],
            }
            learner.after_task()
        return {head: torch.from_numpy(predicted[order, 0]) for head, predicted in found.items()}

    def memory(self) -> Tensor:
        return torch.from_numpy(self.learner._data_memory.astype(np.int64))


@contextlib.contextmanager
def default_type(kind: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def float64_and_silence() -> Iterator[None]:
    silence = io.StringIO()
    with default_type(torch.float64), contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        yield


def live(images: Path, name: str, seed: int, folder: Path) -> Iterator[Row]:
    """Both sides, task after task, until their memories part."""
    ours = Ours(images, name, seed, folder)
    theirs = Theirs(images, name, ours)
    for task in ours.parts.scenario.tasks:
        theirs.learn(task, ours.learn(task))
        kept = ours.memory().rows
        others = int((kept != theirs.memory()).sum())
        absolute, relative = differences(pairs(name, ours.method, theirs.learner))
        rows, labels, mine = ours.predict(task)
        predictions = (labels, mine, theirs.predict(rows))
        yield Row(name, task.index, len(kept), others, absolute, relative, *predictions)
        if others:
            return


def differences(modules: Sequence[tuple[nn.Module, nn.Module]]) -> tuple[float, float]:
    """Of all weights and batch-norm statistics: the largest, and the largest relative to its tensor's largest value."""
    absolute, relative = 0.0, 0.0
    for mine, theirs in modules:
        other = theirs.state_dict()
        for key, value in mine.state_dict().items():
            if value.is_floating_point():
                difference = float((value - other[key]).abs().max())
                absolute = max(absolute, difference)
                # new biases may still be 0
                relative = max(relative, difference / max(float(other[key].abs().max()), 1e-12))
    return absolute, relative


def grey_levels(pictures: Tensor) -> Tensor:
    """Back from network input to values from 0 to 255."""
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (IMAGENET.mean, IMAGENET.std))
    return (pictures * deviation + mean) * 255


def pictures(images: Images, rows: Tensor) -> Iterator[str]:
    """Ours against Pillow's, as PyCIL sees it: the same flips and factors in training, and no change in tests."""
    from PIL import Image
    from torchvision.transforms import functional

    def theirs(pixels: Tensor, flip: bool, factor: float) -> Tensor:
        picture = Image.fromarray(pixels.numpy())
        picture = functional.hflip(picture) if flip else picture
        picture = functional.adjust_brightness(picture, factor) if factor != 1.0 else picture
        mean, std = list(IMAGENET.mean), list(IMAGENET.std)
        seen: Tensor = functional.normalize(functional.to_tensor(picture), mean, std)
        return seen

    pixels, n, change = images.gather(rows), len(rows), Augmentation()
    random = generator(0, "pictures")  # as Augmentation draws from it
    flips = (torch.rand(n, generator=random) < change.flip).tolist()
    factors = (1 + change.brightness * (2 * torch.rand(n, generator=random) - 1)).tolist()
    sides = {
        "training": (change(pixels, generator(0, "pictures")), map(theirs, pixels, flips, factors)),
        "test": (normalise(pixels), map(theirs, pixels, [False] * n, [1.0] * n)),
    }
    for kind, (mine, other) in sides.items():
        ours, pycil = grey_levels(mine), grey_levels(torch.stack(list(other)))
        difference = pycil - ours
        yield (
            f"| {kind} | {n} | {float(ours.mean()):.3f} | {float(pycil.mean()):.3f} | "
            f"{float(difference.mean()):+.3f} | {float(difference.abs().max()):.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pycil", type=Path, required=True, help="checkout of PyCIL")
    parser.add_argument("--images", type=Path, required=True, help="image folder (Hyper-Kvasir, or the part of it)")
    parser.add_argument("--methods", nargs="+", default=["icarl", "wa", "der"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer.open_pycil(options.pycil)
    without_workers()
    print(
        "| method | task | exemplars that differ | weights: max abs. | relative "
        "| softmax: differ | endocil | PyCIL | nearest mean: differ | endocil | PyCIL | target |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    missed = False
    for name in options.methods:
        with tempfile.TemporaryDirectory() as folder:
            for row in live(options.images, name, options.seed, Path(folder)):
                print(row, flush=True)
                missed = missed or row.missed
    parts = assemble(endocil.load_settings(settings(options.images, "icarl", options.seed)))
    rows = parts.scenario.rows(TRAIN, slice(0, len(parts.images.table.classes)))
    print("\n| pictures | images | mean, endocil | mean, PyCIL | mean difference | largest |")
    print("|---|---|---|---|---|---|", *pictures(parts.images, rows), sep="\n")
    sys.exit(missed)


if __name__ == "__main__":
    main()
