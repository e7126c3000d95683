"""New images as a model's next task: without duplicates of kept images, new classes numbered, some images held out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from endocil.data.batches import ImageSet, pixel_digest
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.data.splits import TEST, TRAIN, VALIDATION, Folds, Split, by_given, with_validation
from endocil.data.table import ImageTable
from endocil.errors import DataError, SettingsError
from endocil.io.files import portable
from endocil.io.terminal import refuse_control
from endocil.learning.memory import ExemplarMemory, KeptImages, Provenance, keep_images
from endocil.methods import Method
from endocil.model.manifest import LONGEST_CELL, LONGEST_NAME, Terms
from endocil.settings.settings import ScenarioSettings


@dataclass(frozen=True, eq=False)
class NewImages:
    """New images with their part: train, validation (held out) or test (not used)."""

    images: Images
    part: np.ndarray  # (N,) str
    notes: tuple[str, ...] = ()


def split_new_images(
    images: Images, scenario: ScenarioSettings, validation: float | None = None, *, notes: tuple[str, ...] = ()
) -> NewImages:
    """Which of the new images train and which are held out; depends on ids and groups, not on their order."""
    table, seed = images.table, scenario.split_seed
    if validation is not None and not 0.0 <= validation < 1.0:
        raise SettingsError(f"--validation is {validation}; expected a share from 0 to below 1, such as 0.1")
    usual = 0.0 if VALIDATION in table.parts else scenario.validation
    share = usual if validation is None else validation
    if any(table.parts):
        if unknown := sorted(set(table.parts) - {TRAIN, VALIDATION, TEST}):
            got = f"'{unknown[0]}'" if unknown[0] else "nothing for some images"
            raise DataError(
                f"the split column of the new images says {got}; expected train, validation or test for each"
            )
        split = by_given(table, validation=share, folds=Folds(), seed=seed)
        unused = int((split.part == TEST).sum())
        notes += (f"{unused:,} images of the test part are left alone",) if unused else ()
    else:
        whole = np.full(len(table), TRAIN, dtype="U10")
        split = Split(with_validation(table, whole, share, seed))
    if share:
        split = split.with_validation_note(table)
    return NewImages(images, split.part, (*notes, *split.notes))


Parts = Literal["all", "heads"]  # of a network that learn


@dataclass(frozen=True, eq=False)
class NewTask:
    """One more task for a model: its classes and images, with labels among all classes of the model."""

    task: Task
    classes: tuple[str, ...]  # all, new ones behind the others in alphabetical order
    train: ImageSet
    held_out: ImageSet
    notes: tuple[str, ...] = ()

    def problems(self, method: Method, memory: ExemplarMemory | None) -> list[str]:
        """What makes it impossible for this method to learn these images beside the exemplars of this memory."""
        names, task = self.classes, self.task
        counts = self.train.counts(task.n_seen).tolist()
        if not sum(counts):
            return ["there are no new images to learn from"]
        if unable := method.problems(task.n_seen):
            return unable
        if not task.n_new and not method.learns_known_classes:
            known = ", ".join(name for name, n in zip(names, counts, strict=True) if n)
            return [
                f"all new images are of known classes ({known}), and the method {type(method).__name__} says that it "
                f"needs a new class in each task (learns_known_classes); add images of one, or use another method"
            ]
        if task.index == 0 and task.n_new == 1:
            return ["a single class cannot be learned first; give at least two"]
        problems = [
            f"class '{names[label]}' has {counts[label] or 'no'} image to learn from; expected at least 2"
            for label in range(task.n_old, task.n_seen)
            if counts[label] < 2
        ]
        if memory is not None:
            held = memory.counts()
            empty = [names[label] for label in range(task.n_old) if not counts[label] and label not in held]
            if empty:
                problems.append(
                    f"the model holds no exemplars of {', '.join(empty)} any more; add images of it to the new ones"
                )
        return problems


def as_next_task(
    classes: Sequence[str], tasks: Sequence[Task], exemplars: KeptImages, held_out: KeptImages, new: NewImages
) -> NewTask:
    """The new images as a model's next task.

    A new image with the id and the pixels of an exemplar is that exemplar, and is left out. So is one with the pixels
    of a held-out image, whatever its id: that one must never be trained on; and one to be held out with the pixels of
    an exemplar, which was."""
    images, table = new.images, new.images.table
    refuse_unfit_names(table)
    ids = [str(portable(name)) for name in table.ids]
    held = _held_out_already(images, ids, held_out)
    aside = np.flatnonzero(new.part != TRAIN).tolist()
    repeated = {*_exemplars_already(images, ids, exemplars), *held, *_same_pixels(images, aside, exemplars)}
    rows = np.array([row for row in range(len(table)) if row not in repeated], np.int64)
    left = table.take(rows)
    names_of = [left.classes[label] for label in left.labels.tolist()]
    names = (*classes, *sorted(set(names_of) - set(classes)))
    label_of = {name: label for label, name in enumerate(names)}
    taken = [one.image for one in (*exemplars.provenance, *held_out.provenance)]
    distinct, renamed = _distinct([ids[row] for row in rows], taken)
    relabelled = ImageTable(
        ids=tuple(distinct),
        labels=np.array([label_of[name] for name in names_of], np.int64),
        classes=names,
        reader=table.reader,
        groups=tuple(table.groups[row] for row in rows),
        sources=tuple(table.sources[row] for row in rows),
    )
    source = Images(relabelled, images.pixels, images.rows[torch.from_numpy(rows)], images.skipped)
    part = new.part[rows]
    task = Task(len(tasks), len(classes), len(names) - len(classes))
    train, aside_set = (
        ImageSet.of(source, torch.from_numpy(np.flatnonzero(part == wanted))) for wanted in (TRAIN, VALIDATION)
    )
    notes = (*new.notes, *_notes(len(repeated), sum(held.values()), renamed))
    return NewTask(task, names, train, aside_set, notes)


def refuse_unfit_names(table: ImageTable) -> None:
    """Names that no model file could hold are refused before anything is learned."""
    for kind, texts, most in (
        ("the name of a class", table.classes, LONGEST_NAME),
        ("the name of an image", [str(portable(name)) for name in table.ids], LONGEST_CELL),
        ("a group", table.groups, LONGEST_CELL),
        ("a source", table.sources, LONGEST_CELL),
    ):
        for text in sorted(set(texts)):
            refuse_control(kind, text)
            if len(text) > most:
                raise DataError(f"{kind} has {len(text):,} characters; expected at most {most:,}: {text[:80]}...")


def _exemplars_already(images: Images, ids: Sequence[str], exemplars: KeptImages) -> list[int]:
    """Rows of new images that are among the exemplars already."""
    table, place = images.table, {one.image: row for row, one in enumerate(exemplars.provenance)}
    rows = []
    for row, name in enumerate(ids):
        if name not in place or not torch.equal(images.gather(torch.tensor([row]))[0], exemplars.pixels[place[name]]):
            continue
        _refuse_other_class(exemplars.provenance[place[name]], name, table.classes[table.labels[row]])
        rows.append(row)
    return rows


def _held_out_already(images: Images, ids: Sequence[str], held_out: KeptImages) -> dict[int, bool]:
    """Rows of new images that are held out already, and whether by another name."""
    table, rows = images.table, {}
    for row, one in _same_pixels(images, range(len(table)), held_out).items():
        _refuse_other_class(one, ids[row], table.classes[table.labels[row]])
        rows[row] = one.image != ids[row]
    return rows


def _same_pixels(images: Images, rows: Sequence[int], kept: KeptImages) -> dict[int, Provenance]:
    """Of some rows those with the pixels of a kept image, and where that one came from."""
    if not len(kept):
        return {}
    provenance_of = {pixel_digest(pixels): one for pixels, one in zip(kept.pixels, kept.provenance, strict=True)}
    same = {}
    for part in torch.split(torch.tensor(rows, dtype=torch.int64), 256):
        for row, pixels in zip(part.tolist(), images.gather(part), strict=True):
            if (one := provenance_of.get(pixel_digest(pixels))) is not None:
                same[row] = one
    return same


def _refuse_other_class(kept: Provenance, image: str, name: str) -> None:
    if kept.class_name != name:
        inside = "" if kept.image == image else f" {kept.image},"
        raise DataError(
            f"the image {image} is '{name}' among the new images, but the model holds it as{inside} "
            f"'{kept.class_name}'; remove it from the new images, or out of the model with 'endocil forget --image'"
        )


def _distinct(ids: Sequence[str], taken: Sequence[str]) -> tuple[list[str], int]:
    """The ids, with a number behind those that stand for another image already; how many have one."""
    used, distinct = set(taken), []
    for name in ids:
        chosen, number = name, 1
        while chosen in used:
            number += 1
            chosen = f"{name} ({number})"
        used.add(chosen)
        distinct.append(chosen)
    return distinct, sum(new != old for new, old in zip(distinct, ids, strict=True))


def distinct_names(kept: KeptImages) -> KeptImages:
    """The images with names that say nothing of a machine's folders, and no two alike."""
    names, _ = _distinct([str(portable(one.image)) for one in kept.provenance], ())
    provenance = (replace(one, image=name) for one, name in zip(kept.provenance, names, strict=True))
    return replace(kept, provenance=tuple(provenance))


def hold_out(held_out: KeptImages, new_task: NewTask, terms: Terms, *, most: int, seed: int) -> KeptImages:
    """Held-out images, and a sample of a task's: at most so many of each class from each source, so that a new device
    or centre is measured too."""
    images, chosen = new_task.held_out, list[int]()
    kept = Counter((one.class_name, one.source) for one in held_out.provenance)
    for label, name in enumerate(new_task.classes):
        places = torch.nonzero(images.labels == label).flatten()
        order = torch.randperm(len(places), generator=generator(seed, "bundle", name))
        own = []
        for place in places[order].tolist():
            _, _, source = images.images.describe(int(images.rows[place]))
            if kept[name, source] < most:
                kept[name, source] += 1
                own.append(place)
        chosen += sorted(own)
    return held_out + keep_images(
        images,
        torch.tensor(chosen, dtype=torch.int64),
        new_task.classes,
        task=new_task.task.index,
        licence=terms.licence,
        consent=terms.consent,
    )


def _notes(repeated: int, elsewhere: int, renamed: int) -> tuple[str, ...]:
    notes = []
    if repeated:
        other = f" ({elsewhere:,} as held-out images of another name)" if elsewhere else ""
        notes.append(f"{repeated:,} new images are left out: the model holds them already{other}")
    if renamed:
        notes.append(f"{renamed:,} new images have the name of another image; a number is put behind it")
    return tuple(notes)
