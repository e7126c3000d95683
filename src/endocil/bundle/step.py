"""One more task in the life of a bundle: what it has kept, the new images, and the parts that learn them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from endocil.assembly import Parts, build_learning, build_memory
from endocil.bundle.content import Content
from endocil.bundle.joined import Joined, join
from endocil.bundle.manifest import LONGEST_NAME
from endocil.bundle.newcomers import Newcomers
from endocil.bundle.pictures import LONGEST_CELL, Pictures, no_pictures
from endocil.bundle.plain import refuse_control
from endocil.bundle.restoring import restored
from endocil.errors import EndocilError
from endocil.images.augment import Augmentation
from endocil.images.batch import ImageSet
from endocil.images.table import ImageTable
from endocil.memory import ExemplarMemory
from endocil.methods import Method
from endocil.methods.method import TaskData
from endocil.report.names import portable
from endocil.scenario import TRAIN, Scenario, Task
from endocil.settings import Settings, load_settings

CHANGEABLE = ("train", "run", "memory", "method", "data")
# what the network was made for, and what learning on has no use for
FIXED = (
    "method.name",
    "data.name",
    "data.size",
    "data.crop_frame",
    "run.first_tasks",
    "run.keep",
    "run.gallery",
)


@dataclass(frozen=True)
class Step:
    """What was learned before (none: nothing yet), and what there is to learn now."""

    before: Content | None
    settings: Settings  # complete
    images: Joined
    tasks: tuple[Task, ...]  # the last is the one to learn
    notes: tuple[str, ...]

    @property
    def task(self) -> Task:
        return self.tasks[-1]

    def scenario(self) -> Scenario:
        return Scenario(self.images.table, self.tasks, self.images.part, self.notes)

    def new(self) -> ImageSet:
        """The new images to learn from, of new classes and of known ones."""
        return ImageSet.of(self.images, self.scenario().rows(TRAIN, self.task.seen))

    def data(self, parts: Parts) -> TaskData:
        kept = (
            parts.memory.images(self.images) if parts.memory is not None else self.new().take(torch.arange(0))
        )
        return TaskData(self.new(), kept, parts.augmentation)


def step_of(before: Content | None, settings: Settings, newcomers: Newcomers) -> Step:
    none = no_pictures(settings.data.size)
    classes = before.classes if before else ()
    exemplars, held_out = (before.exemplars, before.held_out) if before else (none, none)
    _refuse_unfit_names(newcomers.images.table)
    images, notes = join(classes, _in_order(exemplars, classes), held_out, newcomers)
    tasks = before.tasks if before else ()
    task = Task(len(tasks), len(classes), len(images.table.classes) - len(classes))
    return Step(before, settings, images, (*tasks, task), (*newcomers.notes, *notes))


def _refuse_unfit_names(table: ImageTable) -> None:
    """What no bundle could hold is told before anything is learned."""
    for what, texts, most in (
        ("the name of a class", table.classes, LONGEST_NAME),
        ("the name of an image", [str(portable(name)) for name in table.ids], LONGEST_CELL),
        ("a group", table.groups, LONGEST_CELL),
        ("a source", table.sources, LONGEST_CELL),
    ):
        for text in sorted(set(texts)):
            refuse_control(what, text)
            if len(text) > most:
                raise EndocilError(
                    f"{what} has {len(text):,} characters; expected at most {most:,}: {text[:80]}..."
                )


def fresh_parts(step: Step) -> Parts:
    """A method that has learned nothing and an empty memory, for a checkpoint to be put into."""
    method, _ = build_learning(step.settings)
    return _parts(step, method)


def restored_parts(step: Step, device: torch.device, *, trust: bool = False) -> Parts:
    """The method and its memory as they were after the last task."""
    if step.before is None:
        return fresh_parts(step)
    parts = _parts(step, restored(step.before, device, trust=trust))
    if parts.memory is not None:
        _fill(parts.memory, step)
    return parts


def changed(content: Content, changes: Sequence[str]) -> tuple[Content, list[str]]:
    """The bundle with changed settings, and those changes that are about reading the new images."""
    for change in changes:
        key = change.partition("=")[0].strip()
        section = key.partition(".")[0]
        if key in FIXED or section not in CHANGEABLE:
            raise EndocilError(
                f"'{key}' cannot be changed in a bundle that has learned; --set takes train.*, run.*, memory.*, "
                f"options of the method, and data.* for reading the new images"
            )
    reading = [change for change in changes if change.strip().startswith("data.")]
    others = [change for change in changes if change not in reading]
    values = load_settings(content.settings, others).model_dump(mode="json", exclude_none=True)
    return replace(content, manifest=content.manifest.model_copy(update={"settings": values})), reading


def _parts(step: Step, method: Method) -> Parts:
    train = step.settings.train
    return Parts(
        settings=step.settings,
        images=step.images,
        scenario=step.scenario(),
        method=method,
        memory=build_memory(step.settings) if method.replay else None,
        augmentation=Augmentation(flip=train.flip, brightness=train.brightness, crop=train.crop),
        notes=step.notes,
    )


def _fill(memory: ExemplarMemory, step: Step) -> None:
    """Exemplars are the first rows of the step's images, class by class in the order of choice."""
    assert step.before is not None
    labels = torch.from_numpy(step.images.table.labels[: len(step.before.exemplars)].copy())
    tasks = torch.tensor([learned.task for learned in step.before.manifest.classes])
    memory.load_state({"rows": torch.arange(len(labels)), "labels": labels, "tasks": tasks[labels]})


def _in_order(exemplars: Pictures, classes: Sequence[str]) -> Pictures:
    def place(row: int) -> tuple[int, int]:
        origin = exemplars.origins[row]
        return classes.index(origin.class_name), origin.order

    return exemplars.take(sorted(range(len(exemplars)), key=place)) if len(exemplars) else exemplars
