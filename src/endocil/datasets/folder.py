"""Image folders: the name of a folder is the class of the images in it.

class_from = "first": root/polyp/day-1/001.jpg is a "polyp", whatever lies between
class_from = "leaf":  root/lower-gi-tract/landmarks/cecum/001.jpg is a "cecum", at any depth
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from endocil.datasets.class_folders import ClassFrom, Found, classed, find
from endocil.datasets.members import is_image
from endocil.errors import EndocilError
from endocil.files import expand, read_csv
from endocil.images.decode import FileReader
from endocil.images.table import ImageTable


def load(*, root: str, class_from: ClassFrom = "first", groups: str | None = None) -> ImageTable:
    """All images below `root`; `groups` is a CSV file (path, group) of images that belong together."""
    images = classed(_find(root), class_from)
    ids = [image_id for image_id, _ in images.files]
    given = _read_groups(groups, ids, images.below) if groups else ("",) * len(ids)
    return _table(images.top, images.files, given, images.notes)


def load_any(*, root: str, class_from: ClassFrom | None = None, groups: str | None = None) -> ImageTable:
    """All images below `root` for a look at them: folders are not asked to be classes.

    Without `class_from`, a single folder in `root` is taken for a wrapping, and the folders that hold images are the
    classes; where no folder holds any, all images are of one class with the name of `root`."""
    found = _find(root)
    if class_from is not None or groups is not None or not found.files:
        return load(root=root, class_from=class_from or "first", groups=groups)
    if not found.places:
        name = found.top.resolve().name or "images"
        return _table(found.top, [(path, name) for path in sorted(found.files)])
    first = {place.split("/")[0] for place in found.places}
    leaves = [place.split("/")[-1] for place in found.places]
    wrapped = len(first) == 1 and len(set(leaves)) == len(leaves)
    found.empty, found.folders = [], sorted(first)  # a folder without images is no class that lacks them
    images = classed(found, "leaf" if wrapped else "first")
    return _table(images.top, images.files, notes=images.notes)


def _find(root: str) -> Found:
    return find(root, "image", lambda path: is_image(path.name))


def _table(
    top: Path, files: Sequence[tuple[str, str]], groups: Sequence[str] = (), notes: Sequence[str] = ()
) -> ImageTable:
    classes = tuple(sorted({name for _, name in files}))
    label = {name: number for number, name in enumerate(classes)}
    return ImageTable(
        ids=tuple(image_id for image_id, _ in files),
        labels=np.array([label[name] for _, name in files], np.int64),
        classes=classes,
        reader=FileReader(top),
        groups=tuple(groups) or ("",) * len(files),
        sources=("",) * len(files),
        notes=tuple(notes),
    )


def _read_groups(groups: str, ids: list[str], below: str) -> tuple[str, ...]:
    """One group per image; the file's paths start at root or at the folder that holds the class folders."""
    path = expand(groups, "data.groups")
    group_of: dict[str, str] = {}
    for row in read_csv(path):
        if not {"path", "group"} <= row.keys():
            raise EndocilError(f"data.groups {path} has the columns {', '.join(row)}; expected path, group")
        name = row["path"].replace("\\", "/").removeprefix("./").removeprefix(below)
        if group_of.setdefault(name, row["group"]) != row["group"]:
            raise EndocilError(
                f"data.groups {path} puts {name} into two groups: {group_of[name]}, {row['group']}"
            )
    missing = [image_id for image_id in ids if image_id not in group_of]
    if missing:
        raise EndocilError(
            f"data.groups {path} has no line for {len(missing)} of {len(ids)} images, first {missing[0]}; "
            f"give every image a line with its path below data.root"
        )
    return tuple(group_of[image_id] for image_id in ids)
