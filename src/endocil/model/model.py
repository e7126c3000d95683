"""A model that lives: it learns classes as they come, predicts among all of them, and keeps what it needs to go on.

    model = Model.create(method="endocil", size=64)
    model.learn(images, labels)            # and again, as often as new classes or images arrive
    model.predict(images).top(3)
    model.save("model.endocil")
    Model.load("model.endocil")            # a model file, or the folder of a finished run

A run is a loop of `learn_task` and `predict`; `endocil learn` loads a model, calls `learn_task` once and saves it.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from endocil.data.augment import DEVIATION, MEAN
from endocil.data.cache import Images
from endocil.data.decode import RULES
from endocil.data.inputs import ImageInputs, Inputs, Wanted, inputs_of, read_arrays
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import EndocilError, SettingsError
from endocil.io.files import portable
from endocil.learning.build import build_learner, build_learning, build_memory, complete
from endocil.learning.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.learning.environment import environment
from endocil.learning.events import Journal, Show
from endocil.learning.features import unit_features
from endocil.learning.learner import Learner
from endocil.learning.memory import ExemplarMemory, KeptImages, keep_images, no_images
from endocil.learning.parallel import learning_on
from endocil.methods import Method
from endocil.model.calibration import RATE, calibrate, why_uncalibrated, why_unflagged
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.inference import Predicted, Progress, Watch, predict
from endocil.model.manifest import LearnedClass, Manifest, Preprocessing, Step, Terms, terms_of
from endocil.model.new_images import NewImages, NewTask, distinct_names, new_task, split_new_images
from endocil.model.out_of_distribution import spread_of
from endocil.model.restore import model_settings, restored_method
from endocil.settings.settings import Settings, load_settings

UNTESTED = "not tested: the metrics of the model before say nothing of this one"


class Model:
    """What has been learned, what is remembered, and what it can answer for."""

    def __init__(
        self,
        settings: Settings,
        method: Method,
        memory: ExemplarMemory | None,
        *,
        name: str = "model",
        trust: bool = False,
    ) -> None:
        """A model that has learned nothing yet; `settings` are complete. `create` and `load` are the usual ways."""
        self.settings, self.method, self.memory = settings, method, memory
        self.name, self.trust = name, trust
        self._manifest: Manifest | None = None  # none: nothing is learned yet
        self.held_out: KeptImages = no_images(settings.data.size)  # never trained on: for calibration
        self.spread: Mapping[str, Tensor] = {}  # of the exemplars' features: out_of_distribution.py
        self.digest = ""  # of the file it was last read from or saved to
        self._changes: tuple[str, ...] = ()

    @classmethod
    def create(
        cls,
        settings: str | Path | Mapping[str, Any] | Settings | None = None,
        *,
        method: str | None = None,
        size: int | None = None,
        name: str = "model",
        trust: bool = False,
    ) -> "Model":
        """A model that has learned nothing yet.

        `settings`: a preset's name, a TOML file, a dictionary or Settings, of which data and tasks play no part but
        for sizes and `scenario.validation`. `method` and `size` (pixels along a side) are changes to them."""
        changes = [f"method.name={method}"] if method else []
        changes += [f"data.size={size}"] if size else []
        chosen = complete(load_settings(settings or {}, changes), data=False)
        built, _ = build_learning(chosen)
        return cls(chosen, built, build_memory(chosen) if built.replay else None, name=name, trust=trust)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        changes: Sequence[str] = (),
        trust: bool = False,
        device: str | torch.device | None = None,
    ) -> "Model":
        """Read and check a model file, or that of a finished run's folder; damaged files are refused in one line.

        `changes` such as "train.epochs=10" are as those of `endocil learn --set`. `trust` lets the file name code of
        other packages, which is run then; nothing in the file itself is ever run."""
        return cls.from_file(read_model_file(path), changes=changes, trust=trust, device=device)

    @classmethod
    def from_file(
        cls,
        file: ModelFile,
        *,
        changes: Sequence[str] = (),
        trust: bool = False,
        device: str | torch.device | None = None,
    ) -> "Model":
        settings = model_settings(file, changes, trust=trust)
        method = restored_method(file, settings, torch.device(device or "cpu"))
        model = cls(settings, method, build_memory(settings) if method.replay else None, trust=trust)
        model._fill(file)
        model._changes = tuple(changes)
        return model

    def _fill(self, file: ModelFile) -> None:
        self.name, self._manifest, self.digest = file.manifest.name, file.manifest, file.digest
        self.held_out, self.spread = file.held_out, file.spread
        if self.memory is not None:
            self.memory.load(file.exemplars, file.classes)
        self._forget_cached()

    def _forget_cached(self) -> None:
        self.__dict__.pop("exemplar_features", None)

    # --- what it knows

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order of learning."""
        return tuple(one.name for one in self._manifest.classes) if self._manifest else ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        sizes = self._manifest.increments if self._manifest else ()
        starts = (0, *accumulate(sizes))
        return tuple(Task(i, start, size) for i, (start, size) in enumerate(zip(starts, sizes, strict=False)))

    @property
    def exemplars(self) -> KeptImages:
        return no_images(self.settings.data.size) if self.memory is None else self.memory.exemplars

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known before its predictions are used."""
        notes, learned = [], self.manifest
        if learned.calibration is None:
            notes.append(
                "not calibrated: probabilities are too high, and nothing is flagged as out of distribution"
            )
        elif why_unflagged(learned.calibration):
            notes.append(why_unflagged(learned.calibration))
        if learned.preprocessing.rules != RULES:
            notes.append(
                f"made with {learned.preprocessing.rules}, here are {RULES}: pixels may differ slightly"
            )
        return tuple(notes)

    @property
    def manifest(self) -> Manifest:
        """What the model says of itself: classes, settings, calibration, history."""
        if self._manifest is None:
            raise EndocilError("the model has learned nothing yet; call learn(images, labels) first")
        return self._manifest

    # --- learning

    def learn(
        self,
        images: ImageInputs,
        labels: Sequence[str],
        *,
        groups: Sequence[str] | None = None,
        sources: Sequence[str] | None = None,
        validation: float | None = None,
        licence: str = "",
        consent: str = "",
        show: Show = lambda record: None,
    ) -> "Model":
        """One more task: these images of new classes, and of known ones if there are any among them.

        Images are paths, PIL images or uint8 arrays; labels are names of classes. `groups` (patients, videos) and
        `sources` (devices, centres) go with the images that are kept. `validation`: the share that is held out for
        calibration. Where learning fails or is interrupted, the model is as before."""
        terms = terms_of(licence, consent)
        table, pixels = read_arrays(
            images,
            labels,
            groups,
            sources,
            task=len(self.tasks),
            size=self.settings.data.size,
            crop_frame=self.settings.data.crop_frame,
        )
        new = Images(table, pixels, torch.arange(len(table)), ())
        step = self.next_task(split_new_images(new, self.settings.scenario, validation))
        problems = self.problems(step)
        if problems:
            raise EndocilError("; ".join(problems))
        before = self.file() if self._manifest else None
        try:
            with tempfile.TemporaryDirectory() as folder:
                self.learn_step(step, Path(folder), terms=terms, show=show)
            self.calibrate()
        except BaseException:
            self._undo(before)
            raise
        return self

    def _undo(self, before: ModelFile | None) -> None:
        self.method = (
            build_learning(self.settings)[0]
            if before is None
            else restored_method(before, self.settings, self.method.device)
        )
        if self.memory is not None:
            self.memory = build_memory(self.settings)
        if before is not None:
            self._fill(before)

    def next_task(self, new: NewImages) -> NewTask:
        """The new images as this model's next task, without those that it holds already."""
        return new_task(self.classes, self.tasks, self.exemplars, self.held_out, new)

    def cannot_learn(self) -> str | None:
        """Why this model can learn nothing more, whatever the images; none where it can."""
        if self._manifest is None:
            return None
        if self.method.joint:
            return (
                f"the method {self.settings.method.name} learns all classes at once and cannot add one; "
                f"start a run with all images, or use a model of another method"
            )
        if self.method.replay and not self._manifest.learns:
            return (
                f"the model holds no exemplars (it was made without them), and {self.settings.method.name} "
                f"cannot learn on without; make it again with 'endocil bundle RUN', without --without-exemplars"
            )
        return None

    def problems(self, step: NewTask) -> list[str]:
        """What makes it impossible to learn these images."""
        if reason := self.cannot_learn():
            return [reason]
        names, task = step.classes, step.task
        counts = step.train.counts(task.n_seen).tolist()
        if not sum(counts):
            return ["there are no new images to learn from"]
        if not task.n_new:
            known = ", ".join(name for name, n in zip(names, counts, strict=True) if n)
            return [
                f"all new images are of known classes ({known}); "
                f"learning needs at least one new class, and more images of known ones may come with it"
            ]
        if task.index == 0 and task.n_new == 1:
            return ["one class alone cannot be learned first; give at least two"]
        problems = [
            f"class '{names[label]}' has {counts[label]} images to learn from; expected at least 2"
            for label in range(task.n_old, task.n_seen)
            if counts[label] < 2
        ]
        if self.memory is not None:
            held = self.memory.counts()
            empty = [names[label] for label in range(task.n_old) if not counts[label] and label not in held]
            if empty:
                problems.append(
                    f"the model holds no exemplars of {', '.join(empty)} any more; add images of it to the new ones"
                )
        return problems

    def learn_step(
        self,
        step: NewTask,
        folder: Path,
        *,
        terms: Terms | None = None,
        show: Show = lambda record: None,
        planned: int = 0,
    ) -> None:
        """Learn a task in this folder, from its checkpoint where there is one; `planned` images are shown."""
        checkpoint = load_checkpoint(folder)
        with learning_on(self.settings.run.accelerator) as fabric:
            journal = Journal(folder / "events.jsonl", show)
            past = journal.cut_back(checkpoint.events if checkpoint else 0)
            done_images = sum(event.get("images", 0) for event in past)
            show({"event": "plan", "images": planned, "done": done_images})
            if checkpoint is not None:
                self.method, _ = build_learning(self.settings)
            learner = build_learner(self.settings, self.method, self.memory, folder, fabric, journal)
            if checkpoint is not None:
                tasks = (*self.tasks, step.task)
                restore(checkpoint, self.method, self.memory, tasks, step.classes, fabric.device)
            done = checkpoint is not None and checkpoint.position.task > step.task.index
            self.learn_task(learner, step, checkpoint, terms=terms, by="learn", done=done)

    def learn_task(
        self,
        learner: Learner,
        step: NewTask,
        unfinished: Checkpoint | None = None,
        *,
        terms: Terms | None = None,
        by: Literal["run", "learn"] = "learn",
        done: bool = False,
    ) -> None:
        """Grow, train, consolidate, choose exemplars, measure class means; then remember what was learned.

        `unfinished`: a checkpoint of this task. `done`: it is learned already, and only has to be remembered."""
        terms = terms or Terms()
        if not done:
            learner.learn(
                step.task,
                step.train,
                step.classes,
                unfinished,
                licence=terms.licence,
                consent=terms.consent,
            )
            if by == "learn":
                learner.save(Position(step.task.index + 1))
        self._remember(step, terms, by)

    def _remember(self, step: NewTask, terms: Terms, by: Literal["run", "learn"]) -> None:
        """The record of what was learned, and some of the images that were held out."""
        before, task = self._manifest, step.task
        counts = step.train.counts(task.n_seen).tolist()
        known = {one.name: one for one in before.classes} if before else {}
        classes = tuple(
            known[name].model_copy(update={"images": known[name].images + n})
            if name in known
            else LearnedClass(name=name, task=task.index, images=n)
            for name, n in zip(step.classes, counts, strict=True)
        )
        step_record = Step(
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            by=by,
            endocil=version("endocil"),
            parent=self.digest or None,
            added={name: n for name, n in sorted(zip(step.classes, counts, strict=True)) if n},
            changes=self._changes,
            note=UNTESTED if by == "learn" else "",
        )
        if before is None or before.keeps_images:
            self.held_out = self.held_out + self._sample_held_out(step, terms)
        data, settings = self.settings.data, self.settings.model_dump(mode="json", exclude_none=True)
        self._manifest = Manifest(
            name=self.name,
            settings=portable(settings),
            classes=classes,
            increments=(*(before.increments if before else ()), task.n_new),
            preprocessing=before.preprocessing
            if before
            else Preprocessing(
                size=data.size, crop_frame=data.crop_frame, mean=MEAN, deviation=DEVIATION, rules=RULES
            ),
            calibration=before.calibration if before else None,
            metrics=None,
            environment=environment(self.settings),
            terms=before.terms if before else terms,
            history=(*(before.history if before else ()), step_record),
            learns=True,
            keeps_images=before.keeps_images if before else True,
        )
        self.digest, self._changes = "", ()
        self._forget_cached()

    def _sample_held_out(self, step: NewTask, terms: Terms) -> KeptImages:
        """Of the images that were set aside, so many of each class that it has at most `run.held_out` in all."""
        had = Counter(one.class_name for one in self.held_out.provenance)
        chosen = [torch.empty(0, dtype=torch.int64)]
        for label, name in enumerate(step.classes):
            places = torch.nonzero(step.held_out.labels == label).flatten()
            most = max(0, self.settings.run.held_out - had[name])
            random = generator(self.settings.seed, "bundle", name)
            chosen.append(places[torch.randperm(len(places), generator=random)[:most].sort().values])
        return keep_images(
            step.held_out,
            torch.cat(chosen),
            step.classes,
            task=step.task.index,
            licence=terms.licence,
            consent=terms.consent,
        )

    def calibrate(self, rate: float | None = None) -> None:
        """Fit temperatures and the out-of-distribution threshold on the held-out images.

        `rate`: the share of images of learned classes that the threshold flags."""
        learned, batch = self.manifest, self.settings.run.evaluation_batch
        old = learned.calibration
        self.method.eval()
        self.spread = spread_of(self.method, self.exemplars, self.classes, batch=batch)
        fitted = calibrate(
            self.method,
            self.held_out,
            self.classes,
            self.spread,
            rate=rate or (old.ood_rate if old else RATE),
            batch=batch,
        )
        self._manifest = learned.model_copy(update={"calibration": fitted})

    def pack(
        self,
        *,
        name: str = "",
        metrics: Mapping[str, Any] | None = None,
        terms: Terms | None = None,
        held_out: int | None = None,
        with_exemplars: bool = True,
        ood_rate: float | None = None,
    ) -> None:
        """Make it ready for others: with results and terms of use, with fewer images or none at all.

        `held_out`: so many held-out images of each class at most. Without exemplars no image at all is kept; the
        held-out ones still serve the calibration."""
        terms = terms or Terms()
        if held_out is not None:
            self.held_out = _first_of_each_class(self.held_out, held_out)
        self.calibrate(ood_rate)
        if terms != Terms():
            self.held_out = _under_terms(self.held_out, terms)
            if self.memory is not None:
                self.memory.exemplars = _under_terms(self.memory.exemplars, terms)
        if not with_exemplars:
            self.held_out = no_images(self.settings.data.size)
            if self.memory is not None:
                self.memory.load(no_images(self.settings.data.size), self.classes)
        changes = {
            "name": name or self.name,
            "metrics": None if metrics is None else dict(metrics),
            "terms": terms,
            "learns": with_exemplars or not self.method.replay,
            "keeps_images": with_exemplars,
        }
        self._manifest = self.manifest.model_copy(update=changes)
        self.name = name or self.name
        self._forget_cached()

    def limits(self) -> tuple[str, ...]:
        """What this model cannot do, and why."""
        learned, notes = self.manifest, []
        if learned.calibration is None:
            why = (
                why_uncalibrated(self.held_out, self.classes)
                if learned.keeps_images
                else "the model is kept without images, and so without held-out images"
            )
            notes.append(
                f"{why}: probabilities are not calibrated, and no image is flagged as out of distribution"
            )
        elif why_unflagged(learned.calibration):
            notes.append(why_unflagged(learned.calibration))
        if not learned.learns:
            notes.append("no images inside: the model predicts but cannot learn on")
        return tuple(notes)

    # --- predicting

    @cached_property
    def exemplar_features(self) -> Tensor:
        """(m, d) of length 1, of the exemplars inside; measured when first asked for."""
        return unit_features(self.method, self.exemplars.pixels)

    def inputs(self, images: Wanted) -> Inputs:
        """What `predict` will read."""
        return inputs_of(images, crop_frame=self.settings.data.crop_frame)

    def predict(
        self,
        images: Wanted | Inputs,
        *,
        top: int = 3,
        reasons: int = 0,
        batch: int = 64,
        progress: Progress | None = None,
        watch: Watch | None = None,
    ) -> Predicted:
        """Images: a file, a folder, a CSV file, an ImageTable, or a sequence of paths, PIL images and uint8 arrays.

        `top`: so many classes are named by `Predicted.top()`. `reasons`: so many nearest exemplars of each image.
        Images that cannot be read are listed in `unreadable`; where none can be read, that is an error. `watch`
        is called with each batch."""
        for option, value, least in (("top", top, 1), ("reasons", reasons, 0), ("batch", batch, 1)):
            if value < least:
                raise SettingsError(f"{option} is {value}; expected {least} or more")
        return predict(
            self.method,
            self.manifest,
            images if isinstance(images, Inputs) else self.inputs(images),
            exemplars=self.exemplar_features if reasons else torch.zeros(0, 0),
            spread=self.spread,
            top=top,
            reasons=reasons,
            batch=batch,
            progress=progress,
            watch=watch,
        )

    # --- files

    def file(self) -> ModelFile:
        """All of it as it stands in a model file."""
        return ModelFile(
            self.manifest,
            {name: value.detach().cpu().clone() for name, value in self.method.state_dict().items()},
            {name: value.detach().cpu().clone() for name, value in self.method.statistics.items()},
            distinct_names(self.exemplars),
            distinct_names(self.held_out),
            digest=self.digest,
            spread=self.spread,
        )

    def save(self, path: str | Path) -> str:
        """Write a model file; its digest, which is the parent of what is learned from here on."""
        self.digest = write_model_file(Path(path), self.file())
        return self.digest


def _first_of_each_class(kept: KeptImages, most: int) -> KeptImages:
    seen, rows = Counter[str](), []
    for row, one in enumerate(kept.provenance):
        seen[one.class_name] += 1
        if seen[one.class_name] <= most:
            rows.append(row)
    return kept.take(rows)


def _under_terms(kept: KeptImages, terms: Terms) -> KeptImages:
    provenance = (replace(one, licence=terms.licence, consent=terms.consent) for one in kept.provenance)
    return KeptImages(kept.pixels, tuple(provenance))
