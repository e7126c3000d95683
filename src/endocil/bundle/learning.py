"""A bundle learns: the same step as in a run, without the old training data, killed and resumed to the same bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from endocil.assembly import Parts
from endocil.bundle.content import Content, read_content, write_content
from endocil.bundle.learn_checks import (
    check_step,
    cost,
    next_phases,
    planned_images,
    refuse_what_never_learns,
)
from endocil.bundle.learned import content_after, notes_on
from endocil.bundle.making import HELD_OUT
from endocil.bundle.manifest import Terms
from endocil.bundle.newcomers import read_newcomers
from endocil.bundle.restoring import settings_of
from endocil.bundle.step import Step, changed, fresh_parts, restored_parts, step_of
from endocil.bundle.work_folder import WorkFolder, facts_of
from endocil.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.devices import learning_on
from endocil.errors import EndocilError
from endocil.images.cache import Progress
from endocil.journal import Journal, Show
from endocil.run_learner import build_learner

if TYPE_CHECKING:
    from lightning_fabric import Fabric


Tell = Callable[[str], None]


@dataclass(frozen=True)
class Learned:
    content: Content
    digest: str  # of the new bundle's file
    notes: tuple[str, ...] = ()  # what the new bundle cannot do


def learn(
    bundle: Path | str,
    new: Path | str,
    output: Path | str,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    terms: Terms | None = None,
    held_out: int = HELD_OUT,
    groups: str | None = None,
    work: Path | None = None,
    trust: bool = False,
    show: Show = lambda record: None,
    tell: Tell = lambda line: None,
    progress: Progress | None = None,
) -> Learned:
    """Learn the images of a folder or a CSV list into a new bundle; the old one is not touched.

    `held_out`: so many held-out images of each class at most. `groups`: what belongs together among the new images,
    as `scenario.groups` of a run; by default as the data or the bundle's run says it.
    Stopped, the same call goes on in the folder `work` (default: OUTPUT.learning), which is removed at the end."""
    place, terms = Path(output), terms or Terms()
    refuse_existing(place)
    before, reading = changed(read_content(bundle), changes)
    settings = settings_of(before, trust=trust)
    refuse_what_never_learns(before, settings)
    newcomers = read_newcomers(
        Path(new),
        before.manifest.preprocessing,
        before.settings,
        changes=reading,
        validation=validation,
        groups=groups,
        progress=progress,
    )
    step = step_of(before, settings, newcomers)
    folder = WorkFolder(work or work_folder_of(place))
    with folder.open(facts_of(step, terms)):
        parts = take_step(step, folder.path, trust=trust, show=show, tell=tell)
        content = content_after(step, parts, terms, most_held_out=held_out)
        refuse_existing(place)  # another process may have been first
        digest = write_content(place, content)
        folder.remove()
    return Learned(content, digest, notes_on(content))


def work_folder_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.learning")


def refuse_existing(output: Path) -> None:
    if output.exists():
        raise EndocilError(f"{output} is there already; choose another file with -o")


def take_step(
    step: Step,
    folder: Path,
    *,
    trust: bool = False,
    show: Show = lambda record: None,
    tell: Tell | None = None,
) -> Parts:
    """Train in this folder, from its checkpoint where there is one; the method and its memory afterwards.

    `tell` gets the lines of the preflight, with what it will cost."""
    checkpoint = load_checkpoint(folder)
    with learning_on(step.settings.run.accelerator) as fabric:
        parts = restored_parts(step, fabric.device, trust=trust)
        found = check_step(step, parts)
        found.refuse_problems()
        if tell is not None:
            lines = [*found.facts, *(f"note: {remark}" for remark in found.remarks)]
            for line in lines if checkpoint else [*lines, cost(step, parts)]:
                tell(line)
        return _train(step, parts, folder, fabric, checkpoint, show)


def _train(
    step: Step, parts: Parts, folder: Path, fabric: "Fabric", checkpoint: Checkpoint | None, show: Show
) -> Parts:
    journal = Journal(folder / "events.jsonl", show)
    past = journal.cut_back(checkpoint.events if checkpoint else 0)
    done = sum(event.get("images", 0) for event in past)
    show({"event": "plan", "images": planned_images(next_phases(step, parts)[1]), "done": done})
    if checkpoint is not None:
        parts = fresh_parts(step)
    learner = build_learner(parts, folder, fabric, journal)
    if checkpoint is not None:
        restore(checkpoint, parts.method, parts.memory, step.tasks, fabric.device)
    if checkpoint is None or checkpoint.position.task == step.task.index:
        learner.learn(step.task, step.new(), checkpoint)
        learner.save(Position(step.task.index + 1))
    return parts
