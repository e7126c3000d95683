"""From settings to the parts of a run: images, scenario, method, memory."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from endocil.data.augment import Augmentation
from endocil.data.batches import ImageSet
from endocil.data.cache import Images, Progress, load_images
from endocil.data.near_duplicates import near_duplicate_groups
from endocil.data.resize import prepared
from endocil.data.scenario import (
    Scenario,
    Task,
    arrival_order,
    arriving_scenario,
    blurry,
    build_scenario,
    by_source,
    few_shot,
    keep_classes,
    long_tail,
)
from endocil.data.splits import Folds, by_file, by_given, by_group, by_image, grouped_by_file, grouped_by_pattern
from endocil.data.table import ImageTable
from endocil.datasets import load_table
from endocil.errors import SettingsError
from endocil.io.files import expand
from endocil.learning.build import build_augmentation, build_learning, build_memory, complete
from endocil.learning.memory import ExemplarMemory
from endocil.methods import Method
from endocil.settings.settings import Settings


@dataclass(frozen=True)
class RunParts:
    """What a run works with; the settings are complete, every default written out."""

    settings: Settings
    images: Images
    scenario: Scenario
    method: Method
    memory: ExemplarMemory | None
    augmentation: Augmentation
    notes: tuple[str, ...]

    def image_set(self, part: str, classes: slice) -> ImageSet:
        """The images of these classes in the training, validation or test part."""
        return ImageSet.of(self.images, self.scenario.rows(part, classes))

    def arriving(self, part: str, task: Task) -> ImageSet:
        """The images that come in this task: of its new classes, and of known ones that come back."""
        return ImageSet.of(self.images, self.scenario.arriving(part, task))


def assemble(
    settings: Settings, progress: Progress | None = None, data: tuple[Images, Scenario] | None = None
) -> RunParts:
    """`data`: the images and tasks of these settings, where they are known already."""
    settings = complete(settings)
    images, scenario = data or images_and_scenario(settings, progress)
    method, notes = build_learning(settings)
    unreadable = (f"left out {name}: {reason}" for name, reason in images.skipped)
    return RunParts(
        settings=settings,
        images=images,
        scenario=scenario.joined() if method.joint else scenario,
        method=method,
        memory=build_memory(settings) if method.replay else None,
        augmentation=build_augmentation(settings.train),
        notes=(*images.table.notes, *scenario.notes, *unreadable, *notes),
    )


def with_run_settings(settings: Settings, **values: Any) -> Settings:
    """The same settings with other values in [run]."""
    return settings.model_copy(update={"run": settings.run.model_copy(update=values)})


def kept_table(settings: Settings, progress: Progress | None = None) -> ImageTable:
    """The images of the kept classes, before any is read."""
    kept = with_kept_classes(load_table(settings.data.name, settings.data.options, progress), settings)
    return prepared(kept, crop_frame=settings.data.crop_frame, fit=settings.data.fit)


def with_kept_classes(table: ImageTable, settings: Settings) -> ImageTable:
    chosen = settings.scenario
    if chosen.order_seed is not None and chosen.order != "seeded":
        raise SettingsError("scenario.order_seed is set, but scenario.order is not 'seeded'; set both or none")
    kept = keep_classes(
        table,
        minimum=chosen.minimum,
        leave_out=chosen.leave_out,
        order=chosen.order,
        seed=settings.seed if chosen.order_seed is None else chosen.order_seed,
    )
    if not isinstance(chosen.tasks, str):
        return kept
    kept = by_source(kept) if chosen.tasks == "source" else kept
    return kept.keep_classes(arrival_order(kept)[0])


def images_and_scenario(settings: Settings, progress: Progress | None = None) -> tuple[Images, Scenario]:
    """The decoded images, and how they are split into tasks and parts.

    Classes are chosen before their images are decoded. If unreadable images are left out, the classes that have become
    too small are left out as well."""
    table = kept_table(settings, progress)
    skip = settings.data.skip_unreadable
    images = load_images(table, settings.data.size, skip_unreadable=skip, progress=progress)
    if images.skipped:
        table = images.table
        large = table.counts() >= settings.scenario.minimum  # (classes,)
        names = [name for name, enough in zip(table.classes, large, strict=True) if enough]
        rows = images.rows[torch.from_numpy(np.asarray(large[table.labels]))]
        images = replace(images, table=table.keep_classes(names), rows=rows)
    scenario = scenario_of(images.table, settings, progress)
    return replace(images, table=scenario.table), scenario  # its groups are those of the split


def scenario_of(table: ImageTable, settings: Settings, progress: Progress | None = None) -> Scenario:
    """The split and the tasks of a table of kept classes."""
    chosen = settings.scenario
    if chosen.groups != "given":
        if chosen.split_by != "group":
            raise SettingsError("scenario.groups is set, but scenario.split_by is not 'group'; set both or none")
        table = replace(table, groups=grouped(table, chosen.groups, "scenario.groups", progress))
    folds = Folds(chosen.folds, chosen.fold)
    if chosen.split is not None:
        if chosen.split_by != "image" or folds != Folds() or chosen.validation:
            raise SettingsError(
                "scenario.split gives the split as a file; leave out split_by, folds, fold and validation"
            )
        split = by_file(table, expand(chosen.split, "scenario.split"))
    else:
        rule = {"given": by_given, "group": by_group, "image": by_image}[chosen.split_by]
        split = rule(table, validation=chosen.validation, folds=folds, seed=chosen.split_seed)
        if chosen.validation:
            split = split.with_validation_note(table)
    if isinstance(chosen.tasks, str):
        scenario = arriving_scenario(table, split=split)
    else:
        scenario = build_scenario(
            table,
            increments=chosen.increments,
            tasks=chosen.tasks,
            first=chosen.first,
            increment=chosen.increment,
            split=split,
        )
    return _variant(scenario, settings)


def _variant(scenario: Scenario, settings: Settings) -> Scenario:
    """With fewer training images, or images that come later, as the settings have it."""
    chosen = settings.scenario
    if chosen.imbalance_order is not None and chosen.imbalance is None:
        raise SettingsError("scenario.imbalance_order is set, but scenario.imbalance is not; set both or none")
    if chosen.imbalance is not None:
        scenario = long_tail(scenario, chosen.imbalance, chosen.imbalance_order or "shuffled", chosen.split_seed)
    if chosen.shots is not None:
        scenario = few_shot(scenario, chosen.shots, chosen.split_seed)
    return scenario if chosen.blurry is None else blurry(scenario, chosen.blurry, chosen.split_seed)


def grouped(table: ImageTable, rule: str, option: str, progress: Progress | None) -> tuple[str, ...]:
    """The groups of the images, by near duplicates, a CSV file, or a pattern on the path. `option` names the rule."""
    if rule == "near-duplicates":
        return near_duplicate_groups(table, progress=progress)
    if rule.endswith(".csv"):
        return grouped_by_file(table, expand(rule, option))
    return grouped_by_pattern(table, rule)
