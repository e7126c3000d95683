"""Before a bundle learns: what will be done, what it will cost, and what cannot work, with the way out."""

import copy
from collections import Counter
from difflib import get_close_matches

from endocil.assembly import Parts
from endocil.bundle.calibration import NAMED
from endocil.bundle.content import Content
from endocil.bundle.step import Step
from endocil.errors import EndocilError
from endocil.estimate import speed
from endocil.images.decode import RULES
from endocil.methods import Method, method_class
from endocil.methods.method import Phase
from endocil.preflight import Preflight, schedule_problems, trained
from endocil.scenario import VALIDATION
from endocil.settings import Settings


def refuse_what_never_learns(content: Content, settings: Settings) -> None:
    """Known before any image is read."""
    method, name = method_class(settings.method.name), settings.method.name
    if method.joint:
        raise EndocilError(
            f"the bundle's method {name} learns all classes at once and cannot add one; "
            f"start a run with all images, or bundle a run of another method"
        )
    if method.replay and not content.manifest.learns:
        raise EndocilError(
            f"the bundle holds no exemplars (it was made without them), and {name} cannot learn on without; "
            f"make it again with 'endocil bundle RUN', without --without-exemplars"
        )


def check_step(step: Step, parts: Parts) -> Preflight:
    problems = _problems(step, parts)
    if problems:
        return Preflight(_facts(step), (), tuple(problems))
    _, phases = next_phases(step, parts)
    facts = (*_facts(step), *_plan(step, parts, phases))
    return Preflight(facts, tuple(_remarks(step, parts)), tuple(schedule_problems(phases)))


def next_phases(step: Step, parts: Parts) -> tuple[Method, tuple[Phase, ...]]:
    """A copy of the method that has made room for the new classes, and what it will train."""
    method = copy.deepcopy(parts.method)
    method.grow(step.task)
    return method, method.phases(step.task, step.data(parts))


def planned_images(phases: tuple[Phase, ...]) -> int:
    return sum(phase.schedule.epochs * len(phase.images) for phase in phases)


def cost(step: Step, parts: Parts, seconds: float = 1.0) -> str:
    """From a few real steps of a copy."""
    method, phases = next_phases(step, parts)
    minutes = sum(
        phase.schedule.epochs * len(phase.images) / speed(parts, method, phase, seconds) for phase in phases
    )
    return f"about {minutes / 60:,.1f} minutes of training ({planned_images(phases):,} image passes)"


def _facts(step: Step) -> tuple[str, ...]:
    before, names = step.before, step.images.table.classes
    known = len(before.classes) if before else 0
    trained = Counter(names[label] for label in step.new().labels.tolist())
    held = step.scenario().counts(VALIDATION)
    told = [
        f"{name} {trained[name]}+{held[label]}{' (known)' if label < known else ''}"
        for label, name in enumerate(names)
        if trained[name] or held[label]
    ]
    exemplars = len(before.exemplars) if before else 0
    return (
        f"the bundle: {known} classes in {len(step.tasks) - 1} tasks, {exemplars:,} exemplars",
        f"task {step.task.index}: {', '.join(told) or 'no images'} (to learn + held out)",
    )


def _plan(step: Step, parts: Parts, phases: tuple[Phase, ...]) -> list[str]:
    facts = [f"method {step.settings.method.name} trains: {trained(phases)}"]
    if parts.memory is not None:
        available = {label: len(rows) for label, rows in parts.memory.rows.items()}
        available.update(Counter(available) + Counter(step.new().labels.tolist()))
        quota = parts.memory.quota(list(available.values()))
        kept = sum(min(quota, n) for n in available.values())
        megabytes = kept * step.settings.data.size**2 * 3 / 1e6
        facts.append(f"{kept:,} exemplars afterwards, at most {quota} of a class ({megabytes:,.1f} MB)")
    return facts


def _remarks(step: Step, parts: Parts) -> list[str]:
    remarks = list(step.notes)
    remarks += _uncalibrated(step)
    if parts.memory is None:
        remarks.append(
            f"method {step.settings.method.name} keeps no exemplars: what it knows of old classes may be lost"
        )
    known = step.before.classes if step.before else ()
    for name in step.images.table.classes[step.task.new]:
        alike = get_close_matches(name.lower(), [old.lower() for old in known], 1, 0.85)
        if alike:
            meant = next(old for old in known if old.lower() == alike[0])
            remarks.append(
                f"'{name}' is learned as a new class, beside '{meant}'; is it meant to be the same?"
            )
    if step.before and step.before.manifest.preprocessing.rules != RULES:
        remarks.append(
            f"the bundle's pictures were decoded by '{step.before.manifest.preprocessing.rules}', the new ones by "
            f"'{RULES}': their pixels differ a little"
        )
    return remarks


def _uncalibrated(step: Step) -> list[str]:
    """Told before an hour of training, as the way out is another share or another list."""
    if step.before is None:
        return []
    names = step.images.table.classes
    have = {origin.class_name for origin in step.before.held_out.origins}
    have |= {name for name, n in zip(names, step.scenario().counts(VALIDATION), strict=True) if n}
    lacking = [name for name in names if name not in have]
    if not lacking or not have or not step.before.manifest.pictures:
        return []
    more = " and others" if len(lacking) > NAMED else ""
    return [
        f"the new bundle will not be calibrated: no held-out images of {', '.join(lacking[:NAMED])}{more} "
        f"(--validation, or a column split, holds some of the new images out)"
    ]


def _problems(step: Step, parts: Parts) -> list[str]:
    names, task = step.images.table.classes, step.task
    new = step.new().counts(task.n_seen).tolist()
    if not sum(new):
        return ["there are no new images to learn from"]
    if not task.n_new:
        known = ", ".join(name for name, n in zip(names, new, strict=True) if n)
        return [
            f"all new images are of known classes ({known}); "
            f"learning needs at least one new class, and more images of known ones may come with it"
        ]
    if task.index == 0 and task.n_new == 1:
        return ["one class alone cannot be learned first; give at least two"]
    found = [
        f"class '{names[label]}' has {new[label]} images to learn from; expected at least 2"
        for label in range(task.n_old, task.n_seen)
        if new[label] < 2
    ]
    if parts.memory is not None:
        empty = [
            names[label] for label in range(task.n_old) if not new[label] and label not in parts.memory.rows
        ]
        found += [
            f"the bundle holds no exemplars of {', '.join(empty)} any more; add images of it to the new ones"
        ] * bool(empty)
    return found
