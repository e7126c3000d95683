"""`endocil learn`: a saved model learns the images of a folder or a list; a stopped step resumes bit for bit."""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import torch

from endocil.data.cache import Progress, load_images
from endocil.data.decode import RULES
from endocil.data.inputs import folder_or_list, lists_dicom
from endocil.data.resize import prepared
from endocil.data.table import ImageTable, spelling
from endocil.datasets import load_table
from endocil.datasets.folder import load_as
from endocil.errors import DataError, EndocilError, RefusedError, SettingsError
from endocil.io.files import refuse_existing
from endocil.io.terminal import duration, refuse_control
from endocil.learning.build import build_augmentation, feature_store
from endocil.learning.checkpoint import WorkFolder
from endocil.learning.events import Show
from endocil.learning.features import sharing_features
from endocil.learning.memory import exemplars_of
from endocil.methods import Method, method_title
from endocil.methods.base import Phase, TaskData
from endocil.methods.frozen import FrozenMethod
from endocil.model.calibration import NAMED
from endocil.model.manifest import Terms
from endocil.model.model import Model
from endocil.model.new_images import NewImages, NewTask, Parts, split_new_images
from endocil.networks import frozen_for_now
from endocil.release.compare import learning_cost, why_unmeasured
from endocil.release.gate import Rules, judge
from endocil.runs.parts import grouped
from endocil.runs.preflight import describe_phases, schedule_problems, speed
from endocil.settings.settings import DataSettings, load_settings

ENOUGH = 50  # images of a new class; with fewer a warning precedes learning
OF_THE_MODEL = ("data.name", "data.size", "data.crop_frame", "data.fit")  # the other data.* say how images are read


def learn(
    model_path: Path | str,
    new: Path | str,
    output: Path | str,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    terms: Terms | None = None,
    held_out: int | None = None,
    groups: str | None = None,
    work: Path | None = None,
    class_name: str = "",
    new_classes: Sequence[str] = (),
    train: Parts = "all",
    rules: Rules | None = None,
    trust: bool = False,
    show: Show = lambda record: None,
    log: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> Model:
    """Learn the images of a folder or a CSV list into a new model file; the old one is not touched.

    `held_out`: keep at most this many held-out images per class. `groups`: which of the new images belong together, as
    `scenario.groups` of a run; by default as the data or the model's run says it. `class_name`: the class of all images
    of the folder, which needs no folders for classes then. `new_classes`: classes to be learned
    as new ones although the model knows one of nearly the same name (Polyps beside polyps); otherwise they are refused.
    `train`: the whole network, as a run, or the heads alone, every class equally often.
    `rules`: of a gate on the held-out images; if they refuse, no file is written and this is a RefusedError.
    `log` gets the lines of the preflight, and what learning cost the old classes. If stopped, the same call resumes
    from the folder `work` (default: OUTPUT.learning), which is removed at the end."""
    place, terms = Path(output), terms or Terms()
    folder = WorkFolder(work or work_folder_of(place), ours=work is None)
    if not folder.begun():  # else the process that wrote the file may have been killed before it removed the folder
        if place.exists():  # or while it did
            folder.discard()
        refuse_existing(place)
    keys = [change.partition("=")[0].strip() for change in changes]
    of_reading = [key.startswith("data.") and key not in OF_THE_MODEL for key in keys]
    reading = [change for change, here in zip(changes, of_reading, strict=True) if here]
    settings_changes = [change for change, here in zip(changes, of_reading, strict=True) if not here]
    if held_out is not None:
        settings_changes.append(f"run.held_out={held_out}")
    model = Model.load(model_path, changes=settings_changes, trust=trust)
    if reason := model.cannot_learn():  # before any image is read
        raise SettingsError(reason)
    images = read_new_images(
        Path(new),
        model,
        changes=reading,
        validation=validation,
        groups=groups,
        class_name=class_name,
        progress=progress,
    )
    new_task = model.next_task(images)
    _refuse_second_spellings(model, new_task, new_classes)
    if rules is not None and not set(model.classes) & {
        one.class_name for one in model.held_out_with(new_task).provenance
    }:
        raise SettingsError(f"--gate: {why_unmeasured(model)}")
    shared = feature_store(model.settings) if model.method.frozen else None
    with folder.open(fingerprint_of(model, new_task, terms, train)), sharing_features(shared):
        if place.exists():
            return _learned_before(model, place, folder, trust=trust)
        if problems := model.problems(new_task):
            raise DataError("; ".join(problems))
        method, phases = next_phases(model, new_task, train)
        if problems := schedule_problems(phases):
            raise SettingsError("; ".join(problems))
        for line in (
            *_plan(model, new_task, phases, train),
            *(f"note: {remark}" for remark in _remarks(model, new_task)),
            *_few_images(model, new_task),
        ):
            log(line)
        passes = [phase.schedule.epochs * phase.images_per_epoch for phase in phases]
        planned = sum(passes)
        if planned and not folder.begun():
            speeds = [speed(model.settings, method, phase, seconds=1.0) for phase in phases]  # of a few real steps
            seconds = sum(images / each for images, each in zip(passes, speeds, strict=True))
            log(f"about {duration(seconds)} of training ({planned:,} image passes)")
        model.learn_in_folder(new_task, folder.path, parts=train, terms=terms, show=show, planned=planned)
        model.calibrate()
        cost = learning_cost(model)
        for line in cost.lines if cost else (f"note: {why_unmeasured(model)}",):
            log(line)
        if rules is not None and cost is not None and not (verdict := judge(rules, cost.comparison)).passed:
            failed = [f"{each.about or 'all images'}: {each.explanation}" for each in verdict.checks if not each.passed]
            folder.remove()
            raise RefusedError(f"{verdict.line} {'; '.join(failed)}. These are held-out images; {place} is not written")
        refuse_existing(place)  # another process may have been first
        model.save(place)
        folder.remove()
    return model


def work_folder_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.learning")


# --- the new images


def read_new_images(
    path: Path,
    model: Model,
    *,
    changes: Sequence[str] = (),
    validation: float | None = None,
    groups: str | None = None,
    class_name: str = "",
    progress: Progress | None = None,
) -> NewImages:
    """The images of a folder, one folder for each class, or of a CSV list; `changes` are of [data], for reading them.

    `class_name`: all images of the folder, at any depth, are of this class. Lines of a list without a label, such as
    those of `endocil review` that nobody has completed, are left out.

    `validation`: the share that is held out; by default that of the settings, or what a split column says."""
    settings = model.settings
    data = _data_settings(path, settings.data, changes)
    if class_name and data.name != "folder":
        raise SettingsError(
            f"--class names the class of a folder's images, but {path} is a list, which has labels; leave --class out"
        )
    refuse_control("--class", class_name)
    try:
        table = load_as(str(path), class_name) if class_name else load_table(data.name, data.options, progress)
    except DataError as error:
        if class_name or data.name != "folder" or any(entry.is_dir() for entry in path.iterdir()):
            raise
        raise DataError(f"{error}, or --class NAME for images of one class alone") from error
    table = prepared(table, crop_frame=settings.data.crop_frame, fit=settings.data.fit)
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
    if values["name"] == "csv":
        values |= {"name": "dicom" if lists_dicom(path) else "csv", "skip_unlabelled": True}
    return load_settings({"data": values}, changes).data if changes else DataSettings.model_validate(values)


def _groups(
    table: ImageTable, option: str | None, rule: str, progress: Progress | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What belongs together among the new images: by the option, by the data, or by the rule of the model's run.

    A regular expression from a model file is never run: it could take forever (ReDoS)."""
    if option is None and (any(table.groups) or rule == "given"):
        return table.groups, ()
    if option == "given":
        return table.groups, ()
    if option is not None or rule == "near-duplicates":
        return grouped(table, rule if option is None else option, "--groups", progress), ()
    if rule.endswith(".csv"):
        note = "the run's file of groups is not in the model: no new image has a group (--groups FILE.csv names them)"
        return table.groups, (note,)
    raise DataError(
        f"the model's images were grouped by the pattern {rule[:200]!r}, and the new ones have no groups; give "
        f"--groups with a pattern for them, or --groups given if they have no groups"
    )


# --- before it learns: what will be done, what it will cost, and what cannot work


def next_phases(model: Model, new_task: NewTask, parts: Parts = "all") -> tuple[Method, tuple[Phase, ...]]:
    """A copy of the method that has made room for the new classes, and what it will train."""
    method = copy.deepcopy(model.method)
    exemplars = exemplars_of(model.memory, new_task.train)
    data = TaskData(new_task.train, exemplars, build_augmentation(model.settings.train))
    if parts == "all":
        method.grow(new_task.task)
        return method, method.phases(new_task.task, data)
    with frozen_for_now(method):
        method.grow(new_task.task)
        return method, method.phases(new_task.task, data.balanced(model.settings.seed))


def _plan(model: Model, new_task: NewTask, phases: tuple[Phase, ...], parts: Parts) -> list[str]:
    known, title = len(model.classes), method_title(model.settings.method.name)
    learned, held = (images.counts(len(new_task.classes)).tolist() for images in (new_task.train, new_task.held_out))
    counts = [
        f"{name} {learned[label]}+{held[label]}{' (known)' if label < known else ''}"
        for label, name in enumerate(new_task.classes)
        if learned[label] or held[label]
    ]
    facts = [
        f"the model: {known} classes in {len(model.tasks)} task{'s' * (len(model.tasks) != 1)}, "
        f"{len(model.exemplars):,} exemplars",
        f"task {new_task.task.number}: {', '.join(counts)} (to learn + held out)",
        f"{title}: {describe_phases(phases)}",
    ]
    if parts == "heads":
        facts.append("the heads learn, the backbone stays as it is, every class equally often (--train all: as a run)")
    if model.memory is not None:
        available = Counter(model.memory.counts()) + Counter(new_task.train.labels.tolist())
        quota = model.memory.quota(list(available.values()))
        kept = sum(min(quota, n) for n in available.values())
        megabytes = kept * model.settings.data.size**2 * 3 / 1e6
        facts.append(f"{kept:,} exemplars afterwards, at most {quota} of a class ({megabytes:,.1f} MB)")
    return facts


def _few_images(model: Model, new_task: NewTask) -> list[str]:
    """A warning before anything is learned: the remedy is more images."""
    counts = new_task.train.counts(new_task.task.n_seen)[new_task.task.new].tolist()
    names = new_task.classes[new_task.task.new]
    few = [f"'{name}' has {n}" for name, n in zip(names, counts, strict=True) if n < ENOUGH]
    if not model.classes or not few:
        return []
    return [
        f"WARNING: few images to learn from: {', '.join(few)}; below about {ENOUGH} a new class is often missed, and "
        f"classes that look like it lose (docs/learn-on.md has figures)"
    ]


def _remarks(model: Model, new_task: NewTask) -> list[str]:
    remarks = [*new_task.notes, *_uncalibrated(model, new_task)]
    if model.memory is None and not isinstance(model.method, FrozenMethod):
        remarks.append(f"{method_title(model.settings.method.name)} keeps no exemplars: it may forget old classes")
    for name in new_task.classes[new_task.task.new]:
        if any(spelling(name) == spelling(known) for known in model.classes):
            continue  # asked for
        similar = get_close_matches(name.lower(), [old.lower() for old in model.classes], 1, 0.85)
        if similar:
            known = next(old for old in model.classes if old.lower() == similar[0])
            remarks.append(f"'{name}' is learned as a new class, beside '{known}'; is it meant to be the same?")
    if model.classes and model.manifest.preprocessing.rules != RULES:
        remarks.append(
            f"the model's images were decoded by '{model.manifest.preprocessing.rules}', the new ones by "
            f"'{RULES}': their pixels differ a little"
        )
    return remarks


def _refuse_second_spellings(model: Model, new_task: NewTask, confirmed: Sequence[str]) -> None:
    """A known class by another spelling would be learned as a second class, and the two be told apart by chance."""
    new = new_task.classes[new_task.task.new]
    for name in confirmed:
        if name not in new:
            raise SettingsError(f"--new-class {name}: not among the new classes, which are {', '.join(new) or 'none'}")
    for i, name in enumerate(new):
        same = [other for other in (*model.classes, *new[:i]) if spelling(other) == spelling(name)]
        if same and name not in confirmed:
            origin = "that the model knows" if same[0] in model.classes else "that is new as well"
            raise SettingsError(
                f"is '{name}' the class '{same[0]}' {origin}? If so, rename it to '{same[0]}' among the "
                f"new images; if it is another one, say so with --new-class '{name}'"
            )


def _uncalibrated(model: Model, new_task: NewTask) -> list[str]:
    """Warn before training, because the remedy is another share or list."""
    if not model.classes:
        return []
    have = {one.class_name for one in model.held_out.provenance}
    have |= {new_task.classes[label] for label in new_task.held_out.classes()}
    lacking = [name for name in new_task.classes if name not in have]
    if not lacking or not have or not model.manifest.keeps_images:
        return []
    more = " and others" if len(lacking) > NAMED else ""
    return [
        f"the new model will not be calibrated: no held-out images of {', '.join(lacking[:NAMED])}{more} "
        f"(--validation, or a column split, holds some of the new images out)"
    ]


# --- resuming


def _learned_before(model: Model, output: Path, folder: WorkFolder, *, trust: bool) -> Model:
    """The model that a process killed just before its end has written; of another file, a refusal."""
    with suppress(EndocilError):
        saved = Model.load(output, trust=trust)
        if saved.history and saved.history[-1].parent == model.digest:
            folder.remove()
            return saved
    raise SettingsError(f"{output} exists already, and is not what {folder.path} was learning; choose another with -o")


def fingerprint_of(model: Model, new_task: NewTask, terms: Terms, parts: Parts = "all") -> dict[str, str]:
    """What decides the outcome, as digests and settings; threads and devices may differ."""
    settings = model.settings.model_dump(mode="json", exclude={"run"})
    return {
        "parent": model.digest,
        "images": _digest_of_images(new_task),
        "settings": json.dumps({**settings, "parts": parts}, sort_keys=True),
        "terms": terms.model_dump_json(),
    }


def _digest_of_images(new_task: NewTask) -> str:
    """Names, classes, groups, sources, parts and pixels of the new images."""
    total = hashlib.sha256("\0".join(new_task.classes).encode(errors="surrogateescape"))
    for images in (new_task.train, new_task.held_out):
        for row in images.rows.tolist():
            total.update("\0".join(images.images.describe(row)).encode(errors="surrogateescape"))
        total.update(images.labels.numpy().tobytes())
        for places in torch.split(torch.arange(len(images)), 256):
            total.update(images.gather(places).numpy().tobytes())
    return total.hexdigest()
