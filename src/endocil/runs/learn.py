"""`endocil learn`: a saved model learns the images of a folder or a list, killed and resumed to the same bits."""

import copy
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import torch

from endocil.data.cache import Progress, load_images
from endocil.data.decode import RULES
from endocil.data.frame import cropped
from endocil.data.inputs import folder_or_list
from endocil.data.near_duplicates import near_duplicate_groups
from endocil.data.splits import grouped_by_file, grouped_by_pattern
from endocil.data.table import ImageTable
from endocil.datasets import load_table
from endocil.errors import DataError, EndocilError, FileFormatError, ResourceError, SettingsError
from endocil.io.files import write_json
from endocil.io.locks import lock
from endocil.learning.build import build_augmentation
from endocil.learning.checkpoint import EXEMPLARS, FILE, load_checkpoint
from endocil.learning.events import Show
from endocil.methods import Method
from endocil.methods.base import Phase, TaskData
from endocil.model.calibration import NAMED
from endocil.model.manifest import Terms
from endocil.model.model import Model
from endocil.model.new_images import NewImages, NewTask, split_new_images
from endocil.runs.preflight import Preflight, schedule_problems, speed, trained
from endocil.settings.settings import DataSettings, load_settings

Tell = Callable[[str], None]


def learn(
    model: Path | str,
    new: Path | str,
    output: Path | str,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    terms: Terms | None = None,
    held_out: int | None = None,
    groups: str | None = None,
    work: Path | None = None,
    trust: bool = False,
    show: Show = lambda record: None,
    tell: Tell = lambda line: None,
    progress: Progress | None = None,
) -> Model:
    """Learn the images of a folder or a CSV list into a new model file; the old one is not touched.

    `held_out`: so many held-out images of each class at most. `groups`: what belongs together among the new images,
    as `scenario.groups` of a run; by default as the data or the model's run says it. `tell` gets the lines of the
    preflight. Stopped, the same call goes on in the folder `work` (default: OUTPUT.learning), which is removed at the
    end."""
    place, terms = Path(output), terms or Terms()
    refuse_existing(place)
    reading = [change for change in changes if change.strip().startswith("data.")]
    settings_changes = [change for change in changes if change not in reading]
    if held_out is not None:
        settings_changes.append(f"run.held_out={held_out}")
    _refuse_fixed_data(reading)
    living = Model.load(model, changes=settings_changes, trust=trust)
    if reason := living.cannot_learn():  # before any image is read
        raise EndocilError(reason)
    images = read_new_images(
        Path(new), living, changes=reading, validation=validation, groups=groups, progress=progress
    )
    step = living.next_task(images)
    folder = WorkFolder(work or work_folder_of(place))
    with folder.open(facts_of(living, step, terms)):
        check = check_step(living, step)
        check.refuse_problems()
        lines = [*check.facts, *(f"note: {remark}" for remark in check.remarks)]
        for line in lines if load_checkpoint(folder.path) else [*lines, cost(living, step)]:
            tell(line)
        planned = planned_images(next_phases(living, step)[1])
        living.learn_step(step, folder.path, terms=terms, show=show, planned=planned)
        living.calibrate()
        refuse_existing(place)  # another process may have been first
        living.save(place)
        folder.remove()
    return living


def work_folder_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.learning")


def refuse_existing(output: Path) -> None:
    if output.exists():
        raise SettingsError(f"{output} is there already; choose another file with -o")


def _refuse_fixed_data(changes: Sequence[str]) -> None:
    for change in changes:
        key = change.partition("=")[0].strip()
        if key in ("data.name", "data.size", "data.crop_frame"):
            raise SettingsError(
                f"'{key}' cannot be changed in a model that has learned; --set takes train.*, run.*, memory.*, "
                f"options of the method, and data.* for reading the new images"
            )


# --- the new images


def read_new_images(
    path: Path,
    model: Model,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    groups: str | None = None,
    progress: Progress | None = None,
) -> NewImages:
    """The images of a folder, one folder for each class, or of a CSV list; `changes` are of [data], for reading them.

    `validation`: the share that is held out; by default that of the settings, or what a split column says."""
    settings = model.settings
    data = _data_settings(path, settings.data, changes)
    table = load_table(data.name, data.options, progress)
    if settings.data.crop_frame:
        table = cropped(table)
    images = load_images(table, settings.data.size, skip_unreadable=data.skip_unreadable, progress=progress)
    skipped = (f"left out {name}: {reason}" for name, reason in images.skipped)
    names, notes = _groups(images.table, groups, settings.scenario.groups, progress)
    images = replace(images, table=replace(images.table, groups=names))
    notes = (*table.notes, *skipped, *notes)
    return split_new_images(images, settings.scenario, validation, notes=notes)


def _data_settings(path: Path, learned_from: DataSettings, changes: Sequence[str]) -> DataSettings:
    """How the new images are read: folders named as those that the model learned from, or a list."""
    values = folder_or_list(path, "new")
    if values["name"] == learned_from.name == "folder":
        values["class_from"] = learned_from.options.get("class_from", "first")
    values["skip_unreadable"] = learned_from.skip_unreadable
    return load_settings({"data": values}, changes).data


def _groups(
    table: ImageTable, option: str | None, rule: str, progress: Progress | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What belongs together among the new images: by the option, by the data, or by the rule of the model's run.

    A pattern of the model is never run: one can be written that does not come to an end."""
    if option is None and (any(table.groups) or rule == "given"):
        return table.groups, ()
    chosen = rule if option is None else option
    if chosen == "given":
        return table.groups, ()
    if chosen == "near-duplicates":
        return near_duplicate_groups(table, progress=progress), ()
    if option is not None:
        by_file = option.endswith(".csv")
        return (grouped_by_file(table, Path(option)) if by_file else grouped_by_pattern(table, option)), ()
    if rule.endswith(".csv"):
        note = "the run's file of groups is not in the model: no new image has a group (--groups FILE.csv names them)"
        return table.groups, (note,)
    raise DataError(
        f"the model's images were grouped by the pattern {rule[:200]!r}, and the new ones have no groups; give "
        f"--groups with a pattern for them, or --groups given to learn them without"
    )


# --- before it learns: what will be done, what it will cost, and what cannot work


def check_step(model: Model, step: NewTask) -> Preflight:
    problems = model.problems(step)
    if problems:
        return Preflight(_facts(model, step), (), tuple(problems))
    _, phases = next_phases(model, step)
    facts = (*_facts(model, step), *_plan(model, step, phases))
    return Preflight(facts, tuple(_remarks(model, step)), tuple(schedule_problems(phases)))


def next_phases(model: Model, step: NewTask) -> tuple[Method, tuple[Phase, ...]]:
    """A copy of the method that has made room for the new classes, and what it will train."""
    method = copy.deepcopy(model.method)
    method.grow(step.task)
    exemplars = step.train.take(torch.arange(0)) if model.memory is None else model.memory.images()
    data = TaskData(step.train, exemplars, build_augmentation(model.settings.train))
    return method, method.phases(step.task, data)


def planned_images(phases: tuple[Phase, ...]) -> int:
    return sum(phase.schedule.epochs * len(phase.images) for phase in phases)


def cost(model: Model, step: NewTask, seconds: float = 1.0) -> str:
    """From a few real steps of a copy."""
    method, phases = next_phases(model, step)
    minutes = sum(
        phase.schedule.epochs * len(phase.images) / speed(model.settings, method, phase, seconds)
        for phase in phases
    )
    return f"about {minutes / 60:,.1f} minutes of training ({planned_images(phases):,} image passes)"


def _facts(model: Model, step: NewTask) -> tuple[str, ...]:
    known = len(model.classes)
    learned, held = (images.counts(len(step.classes)).tolist() for images in (step.train, step.held_out))
    counts = [
        f"{name} {learned[label]}+{held[label]}{' (known)' if label < known else ''}"
        for label, name in enumerate(step.classes)
        if learned[label] or held[label]
    ]
    return (
        f"the model: {known} classes in {len(model.tasks)} tasks, {len(model.exemplars):,} exemplars",
        f"task {step.task.index}: {', '.join(counts) or 'no images'} (to learn + held out)",
    )


def _plan(model: Model, step: NewTask, phases: tuple[Phase, ...]) -> list[str]:
    facts = [f"method {model.settings.method.name} trains: {trained(phases)}"]
    if model.memory is not None:
        available = Counter(model.memory.counts()) + Counter(step.train.labels.tolist())
        quota = model.memory.quota(list(available.values()))
        kept = sum(min(quota, n) for n in available.values())
        megabytes = kept * model.settings.data.size**2 * 3 / 1e6
        facts.append(f"{kept:,} exemplars afterwards, at most {quota} of a class ({megabytes:,.1f} MB)")
    return facts


def _remarks(model: Model, step: NewTask) -> list[str]:
    remarks = [*step.notes, *_uncalibrated(model, step)]
    if model.memory is None:
        remarks.append(
            f"method {model.settings.method.name} keeps no exemplars: what it knows of old classes may be lost"
        )
    for name in step.classes[step.task.new]:
        similar = get_close_matches(name.lower(), [old.lower() for old in model.classes], 1, 0.85)
        if similar:
            known = next(old for old in model.classes if old.lower() == similar[0])
            remarks.append(
                f"'{name}' is learned as a new class, beside '{known}'; is it meant to be the same?"
            )
    if model.classes and model.manifest.preprocessing.rules != RULES:
        remarks.append(
            f"the model's images were decoded by '{model.manifest.preprocessing.rules}', the new ones by "
            f"'{RULES}': their pixels differ a little"
        )
    return remarks


def _uncalibrated(model: Model, step: NewTask) -> list[str]:
    """Said before an hour of training, as the way out is another share or another list."""
    if not model.classes:
        return []
    have = {one.class_name for one in model.held_out.provenance}
    have |= {step.classes[label] for label in step.held_out.classes()}
    lacking = [name for name in step.classes if name not in have]
    if not lacking or not have or not model.manifest.keeps_images:
        return []
    more = " and others" if len(lacking) > NAMED else ""
    return [
        f"the new model will not be calibrated: no held-out images of {', '.join(lacking[:NAMED])}{more} "
        f"(--validation, or a column split, holds some of the new images out)"
    ]


# --- the folder of a step that is being learned

FACTS, EVENTS, LOCK = "learning.json", "events.jsonl", ".lock"
MADE = "made_folder"  # by us; a folder of the user's stays
RECORDED = {
    "parent": "model file",
    "images": "new images",
    "settings": "settings",
    "terms": "--licence and --consent",
}


@dataclass(frozen=True)
class WorkFolder:
    """A killed command goes on from here; the folder is removed at the end."""

    path: Path

    @contextmanager
    def open(self, facts: dict[str, str]) -> Iterator[None]:
        """One process at a time; what lies here must be of the same model, images and settings."""
        if self.path.is_file():
            raise SettingsError(f"{self.path} is a file; choose another folder with --work")
        made = not self.path.exists()
        if not made and not self._only_ours():
            raise SettingsError(f"{self.path} holds other files; choose another folder with --work")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("ab") as file:
            if lock(file, wait=False) == "taken":
                raise ResourceError(f"another process is learning in {self.path}; let it finish")
            for left in self._temporary():  # a kill in the middle of writing
                left.unlink(missing_ok=True)
            made = made or self._recorded().get(MADE) == "yes"
            self._compare({**facts, MADE: "yes" if made else "no"})
            try:
                yield
            except EndocilError:
                if not self._begun():
                    self.remove()
                raise

    def _only_ours(self) -> bool:
        """Nothing, a step that was begun, or what a kill leaves before its first record was written."""
        names = {entry.name for entry in self.path.iterdir()} - {file.name for file in self._temporary()}
        if LOCK in names and (self.path / LOCK).stat().st_size > 0:  # ours is empty
            return False
        begun = set(RECORDED) <= set(self._recorded())
        names -= {file.name for file in self.path.glob(EXEMPLARS.format(task="*"))} if begun else set()
        return names <= ({LOCK, FACTS, EVENTS, FILE} if begun else {LOCK})

    def _temporary(self) -> list[Path]:
        """What a kill in the middle of writing has left."""
        names = "|".join(re.escape(name) for name in (FACTS, EVENTS, FILE))
        form = re.compile(rf"\.({names}|{EXEMPLARS.format(task='[0-9]+')})\.[0-9a-f]{{32}}\.tmp")
        return [left for left in self.path.glob(".*.tmp") if form.fullmatch(left.name)]

    def _recorded(self) -> dict[str, str]:
        file = self.path / FACTS
        if not file.is_file():
            return {}
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError:  # somebody else's: ours are whole or not there
            return {}
        return found if isinstance(found, dict) else {}

    def _begun(self) -> bool:
        """Whether anything is learned that would be lost."""
        return (self.path / FILE).exists()

    def _compare(self, facts: dict[str, str]) -> None:
        if not self._begun():
            write_json(self.path / FACTS, facts)
            return
        recorded = self._recorded()
        for key in RECORDED:
            if recorded.get(key) != facts[key]:
                raise FileFormatError(
                    f"{self.path} is of a step with other {RECORDED[key]}; go on with the same command as then, "
                    f"remove it to begin anew, or choose another folder with --work"
                )

    def remove(self) -> None:
        """What we have written, and the folder if we made it and nothing else lies in it."""
        made = self._recorded().get(MADE) == "yes"
        with suppress(OSError):
            exemplars = self.path.glob(EXEMPLARS.format(task="*"))
            own = (self.path / name for name in (FILE, EVENTS, FACTS, LOCK))
            for file in (*self._temporary(), *exemplars, *own):
                file.unlink(missing_ok=True)
            if made:
                self.path.rmdir()


def facts_of(model: Model, step: NewTask, terms: Terms) -> dict[str, str]:
    """What decides the outcome, as digests and settings; threads and devices may differ."""
    settings = model.settings.model_dump(mode="json", exclude={"run"})
    return {
        "parent": model.digest,
        "images": _digest_of_images(step),
        "settings": json.dumps(settings, sort_keys=True),
        "terms": terms.model_dump_json(),
    }


def _digest_of_images(step: NewTask) -> str:
    """Names, classes, groups, sources, parts and pixels of the new images."""
    total = hashlib.sha256("\0".join(step.classes).encode(errors="surrogateescape"))
    for images in (step.train, step.held_out):
        for row in images.rows.tolist():
            total.update("\0".join(images.images.describe(row)).encode(errors="surrogateescape"))
        total.update(images.labels.numpy().tobytes())
        for places in torch.split(torch.arange(len(images)), 256):
            total.update(images.gather(places).numpy().tobytes())
    return total.hexdigest()
