"""A model that keeps learning: it learns classes as they arrive, predicts among all of them, and keeps exemplars.

    model = Model.create(method="endocil", size=64)
    model.learn(images, labels)            # and again, as often as new classes or images arrive
    model.predict(images).top(3)
    model.save("model.endocil")
    Model.load("model.endocil")            # a model file, or the folder of a finished run

Every way to learn ends in `learn_task`: a run calls it once per task, with `predict` after each; `endocil learn` loads
a model and calls it through `learn_in_folder`, which adds checkpoints; `learn` takes images from Python and does the
same in a temporary folder.
"""

import copy
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.data.decode import RULES
from endocil.data.inputs import ImageInputs, Inputs, PathsOrImages, Texts, inputs_of, read_arrays
from endocil.data.scenario import Task
from endocil.data.seeding import generator
from endocil.errors import EndocilError, SettingsError
from endocil.io.files import portable
from endocil.learning.build import build_learner, build_learning, build_memory, complete
from endocil.learning.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.learning.events import Journal, Show, environment
from endocil.learning.feature_store import FeatureStore
from endocil.learning.features import l2_normalise, outputs_of
from endocil.learning.learner import Learner
from endocil.learning.memory import ExemplarMemory, KeptImages, keep_images, no_images
from endocil.learning.parallel import learning_on
from endocil.methods import Method, method_title
from endocil.methods.frozen import FrozenMethod
from endocil.model.calibration import RATE, spread_and_calibration
from endocil.model.card import limits_of, notes_of
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.inference import NO_EXEMPLARS, OnBatch, Progress, predict
from endocil.model.manifest import (
    UNTESTED,
    Calibration,
    LearnedClass,
    Manifest,
    Preprocessing,
    Step,
    Terms,
    step_now,
    terms_of,
)
from endocil.model.new_images import NewImages, NewTask, Parts, as_next_task, distinct_names, split_new_images
from endocil.model.predictions import Predictions
from endocil.model.restore import model_settings, restored_method
from endocil.networks import frozen_for_now
from endocil.settings.settings import Settings, load_settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


HEADS = "heads alone, every class equally often"  # in the history


class Model:
    """A method with its networks, the exemplar memory, the classes, the calibration and the history."""

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
        self.held_out_before: Predictions | None = None  # of the held-out images by the version before the last learn
        self.spread: Mapping[str, Tensor] = {}  # of the learned features: out_of_distribution.py
        self.digest = ""  # of the file it was last read from or saved to
        self._changes: tuple[str, ...] = ()
        self._measured: tuple[KeptImages, Tensor] | None = None  # exemplars, and their features of length 1

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

        `settings`: a preset's name, a TOML file, a dictionary or Settings. Of [data] and [scenario] only `size`,
        `crop_frame`, `fit`, `validation` and `split_seed` are used. `method` and `size` (in pixels) override them."""
        changes = [f"method.name={method}"] if method else []
        changes += [f"data.size={size}"] if size else []
        chosen = complete(load_settings(settings or {}, changes).trusted(), data=False)
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

        `changes` such as "train.epochs=10" mean the same as in `endocil learn --set`. `trust` allows the file to name
        code of other packages, which is then imported and run; nothing in the file itself is ever run."""
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
        memory = build_memory(settings) if method.replay else None
        model = cls(settings, method, memory, name=file.manifest.name, trust=trust)
        model._manifest, model.digest, model._changes = file.manifest, file.digest, tuple(changes)
        model.held_out, model.spread = file.held_out, file.spread
        if memory is not None:
            memory.load(file.exemplars, file.classes)
        return model

    def __repr__(self) -> str:
        learned, settings = self._manifest, self.settings
        facts = [f"{settings.method.name} on {settings.network.backbone}", f"{settings.data.size} px"]
        if learned is None:
            return f"<Model {self.name!r}: {', '.join(facts)}, nothing learned yet>"
        facts += [
            f"{len(self.classes)} classes in {len(self.tasks)} task{'s' * (len(self.tasks) != 1)}",
            f"{len(self.exemplars):,} exemplars",
        ]
        if learned.gate is not None:
            facts.append(f"gate {'passed' if learned.gate.passed else 'refused'}")
        return f"<Model {self.name!r} version {learned.version}: {', '.join(facts)}>"

    # --- what it knows

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order of learning."""
        return self._manifest.class_names if self._manifest else ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self._manifest.tasks if self._manifest else ()

    @property
    def calibration(self) -> Calibration | None:
        """Temperatures and the out-of-distribution threshold; None before it is calibrated."""
        return self._manifest.calibration if self._manifest else None

    @property
    def history(self) -> tuple[Step, ...]:
        """What was learned or removed and when, oldest first."""
        return self._manifest.history if self._manifest else ()

    @property
    def exemplars(self) -> KeptImages:
        return no_images(self.settings.data.size) if self.memory is None else self.memory.exemplars

    @property
    def notes(self) -> tuple[str, ...]:
        """What users of its predictions must know."""
        return notes_of(self.manifest, self.held_out)

    def limits(self) -> tuple[str, ...]:
        """What this model cannot do, and why."""
        return limits_of(self.manifest, self.held_out)

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
        labels: Texts,
        *,
        groups: Texts | None = None,
        sources: Texts | None = None,
        validation: float | None = None,
        train: Parts = "all",
        licence: str = "",
        consent: str = "",
        show: Show = lambda record: None,
    ) -> "Model":
        """Learn one more task: images of new classes, and possibly of known ones.

        Images are paths, PIL images or uint8 arrays; labels are names of classes. `groups` (patients, videos) and
        `sources` (devices, centres) go with the images that are kept. `validation`: the share that is held out for
        calibration. `train`: the whole network ("all", as a run does), or the heads alone with balanced batches.
        `endocil.learning_cost(model)` tells afterwards what it cost the old classes.
        If learning fails or is interrupted, the model stays as it was."""
        terms = terms_of(licence, consent)
        table, pixels = read_arrays(
            images,
            labels,
            groups,
            sources,
            task=len(self.tasks),
            size=self.settings.data.size,
            crop_frame=self.settings.data.crop_frame,
            fit=self.settings.data.fit,
        )
        new = Images(table, pixels, torch.arange(len(table)), ())
        new_task = self.next_task(split_new_images(new, self.settings.scenario, validation))
        problems = self.problems(new_task)
        if problems:
            raise EndocilError("; ".join(problems))
        before = dict(vars(self))
        self.method, self.memory = copy.deepcopy(self.method), copy.copy(self.memory)  # the memory replaces its images
        try:
            with tempfile.TemporaryDirectory() as folder:
                self.learn_in_folder(new_task, Path(folder), parts=train, terms=terms, show=show)
            self.calibrate()
        except BaseException:
            vars(self).update(before)
            raise
        return self

    def next_task(self, new: NewImages) -> NewTask:
        """The new images as this model's next task, without those that it holds already."""
        return as_next_task(self.classes, self.tasks, self.exemplars, self.held_out, new)

    def cannot_learn(self) -> str | None:
        """Why this model cannot learn any images; None if it can."""
        if self._manifest is None:
            return None
        if self.method.joint:
            return (
                f"{method_title(self.settings.method.name)} learns all classes at once and cannot add one; "
                f"start a run with all images, or use a model of another method"
            )
        if self.method.replay and not self._manifest.learns:
            return (
                "the model holds no exemplars (it was made without them), and "
                f"{method_title(self.settings.method.name)} needs them to learn; make it again with 'endocil bundle "
                "RUN', without --without-exemplars"
            )
        return None

    def problems(self, new_task: NewTask) -> list[str]:
        """Reasons why these images cannot be learned."""
        reason = self.cannot_learn()
        return [reason] if reason else new_task.problems(self.method, self.memory)

    def learn_in_folder(
        self,
        new_task: NewTask,
        folder: Path,
        *,
        parts: Parts = "all",
        terms: Terms | None = None,
        show: Show = lambda record: None,
        planned: int = 0,
    ) -> None:
        """Learn a task with checkpoints in this folder, resuming from one if there is one.

        `parts`: "heads" freezes every backbone and balances the batches; "all" is what a run does. `planned`: image
        passes in all, for the progress display."""
        held_out = self.held_out_with(new_task, terms) if self._manifest else self.held_out
        self.held_out_before = self.predict_kept(held_out) if len(held_out) else None
        checkpoint = load_checkpoint(folder)
        heads = parts == "heads"
        self._changes += (HEADS,) if heads else ()
        frozen = frozen_for_now(self.method) if heads else nullcontext()
        with frozen, learning_on(self.settings.run.accelerator) as fabric:
            journal = Journal(folder / "events.jsonl", show)
            past = journal.cut_back(checkpoint.events if checkpoint else 0)
            done_images = sum(event.get("images", 0) for event in past)
            show({"event": "plan", "images": planned, "done": done_images})
            learner = build_learner(self.settings, self.method, self.memory, folder, fabric, journal)
            if heads:
                learner.balanced, learner.features = True, None  # it is frozen for this step: nothing to keep
            if checkpoint is not None:
                tasks = (*self.tasks, new_task.task)
                known = len(self.tasks)
                restore(checkpoint, self.method, self.memory, tasks, new_task.classes, fabric.device, grown=known)
            done = checkpoint is not None and checkpoint.position.task > new_task.task.index
            self.learn_task(learner, new_task, checkpoint, terms=terms, by="learn", done=done)

    def learn_task(
        self,
        learner: Learner,
        new_task: NewTask,
        unfinished: Checkpoint | None = None,
        *,
        terms: Terms | None = None,
        by: Literal["run", "learn"] = "learn",
        done: bool = False,
    ) -> None:
        """Grow, train, consolidate, select exemplars, compute class means; then record what was learned.

        `unfinished`: a checkpoint of this task. `done`: it was learned before a resume, and is only recorded."""
        terms = terms or Terms()
        if not done:
            learner.learn(
                new_task.task,
                new_task.train,
                new_task.classes,
                unfinished,
                licence=terms.licence,
                consent=terms.consent,
            )
            if by == "learn" and not isinstance(self.method, FrozenMethod):  # whose sums take seconds to add again
                learner.save(Position(new_task.task.index + 1))
        self._record(new_task, terms, by)

    def _record(self, new_task: NewTask, terms: Terms, by: Literal["run", "learn"]) -> None:
        """Write what was learned into the manifest, and keep some of the held-out images."""
        before, task, data = self._manifest, new_task.task, self.settings.data
        counts = dict(zip(new_task.classes, new_task.train.counts(task.n_seen).tolist(), strict=True))
        known = {one.name: one for one in before.classes} if before else {}
        self.held_out = self.held_out_with(new_task, terms)
        history = step_now(
            by,
            self.digest,
            added={name: n for name, n in sorted(counts.items()) if n},
            changes=self._changes,
            note=UNTESTED if by == "learn" else "",
        )
        first = {
            "preprocessing": Preprocessing(
                size=data.size,
                crop_frame=data.crop_frame,
                fit=data.fit,
                mean=self.method.normalisation.mean,
                deviation=self.method.normalisation.std,
                rules=RULES,
            ),
            "calibration": None,
            "terms": terms,
        }
        self._manifest = Manifest.model_validate(
            {
                **(dict(before) if before else first),
                "name": self.name,
                "settings": self._recorded_settings(before),
                "classes": [
                    known[name].model_copy(update={"images": known[name].images + n})
                    if name in known
                    else LearnedClass(name=name, task=task.index, images=n)
                    for name, n in counts.items()
                ],
                "increments": (*(before.increments if before else ()), task.n_new),
                "metrics": None,
                "gate": None,
                "environment": environment(self.settings),
                "history": (*self.history, history),
                "learns": True,
            }
        )
        self.digest, self._changes = "", ()

    def _recorded_settings(self, before: Manifest | None) -> dict[str, Any]:
        """Those it learned by. What its backbone once started from stays recorded, though a loaded model needs no
        such file any more."""
        settings: dict[str, Any] = portable(self.settings.model_dump(mode="json", exclude_none=True))
        started = before.settings.get("network", {}).get("weights") if before else None
        return {**settings, "network": {**settings["network"], "weights": started}} if started else settings

    def held_out_with(self, new_task: NewTask, terms: Terms | None = None) -> KeptImages:
        """The held-out images once a task is learned: those there are, and a sample of the task's.

        At most `run.held_out` of each class from each source, so that a new device or centre is measured too."""
        if self._manifest is not None and not self._manifest.keeps_images:
            return self.held_out
        terms, images = terms or Terms(), new_task.held_out
        kept = Counter((one.class_name, one.source) for one in self.held_out.provenance)
        chosen: list[int] = []
        for label, name in enumerate(new_task.classes):
            places = torch.nonzero(images.labels == label).flatten()
            order = torch.randperm(len(places), generator=generator(self.settings.seed, "bundle", name))
            own = []
            for place in places[order].tolist():
                _, _, source = images.images.describe(int(images.rows[place]))
                if kept[name, source] < self.settings.run.held_out:
                    kept[name, source] += 1
                    own.append(place)
            chosen += sorted(own)
        return self.held_out + keep_images(
            images,
            torch.tensor(chosen, dtype=torch.int64),
            new_task.classes,
            task=new_task.task.index,
            licence=terms.licence,
            consent=terms.consent,
        )

    def predict_kept(self, kept: KeptImages) -> Predictions:
        """Predict images that a model keeps; an image of a class that this one does not know has the label -1."""
        label_of = {name: label for label, name in enumerate(self.classes)}
        labels = torch.tensor([label_of.get(one.class_name, -1) for one in kept.provenance])
        return self.predict(kept.image_set(labels), batch=self.settings.run.evaluation_batch)

    def calibrate(self, rate: float | None = None) -> None:
        """Fit temperatures and the out-of-distribution threshold on the held-out images.

        `rate`: the share of images of learned classes that the threshold flags."""
        learned, batch = self.manifest, self.settings.run.evaluation_batch
        old = learned.calibration
        self.method.eval()
        self.spread, fitted = spread_and_calibration(
            self.method,
            self.exemplars,
            self.held_out,
            self.classes,
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
        """Prepare it for others: add results and terms of use, and drop some or all images.

        `held_out`: at most this many held-out images of each class. Without exemplars no image is kept at all; the
        held-out ones are used for the calibration first."""
        terms = terms or Terms()
        if held_out is not None:
            self.held_out = self.held_out.first_of_each_class(held_out)
        self.calibrate(ood_rate)
        if terms != Terms():
            self.held_out = self.held_out.under_terms(terms.licence, terms.consent)
            if self.memory is not None:
                self.memory.exemplars = self.memory.exemplars.under_terms(terms.licence, terms.consent)
        if not with_exemplars:
            self.held_out = no_images(self.settings.data.size)
            if self.memory is not None:
                self.memory.load(no_images(self.settings.data.size), self.classes)
        changes = {
            "name": name or self.name,
            "metrics": None if metrics is None else dict(metrics),
            "gate": None,  # the calibration may have changed
            "terms": terms,
            "learns": with_exemplars or not self.method.replay,
            "keeps_images": with_exemplars,
        }
        self._manifest = self.manifest.model_copy(update=changes)
        self.name = name or self.name

    # --- predicting

    @property
    def exemplar_features(self) -> Tensor:
        """(m, d) L2-normalised features of the exemplars; computed on first use, and again after learning."""
        exemplars = self.exemplars
        if not len(exemplars):
            return NO_EXEMPLARS
        if self._measured is None or self._measured[0] is not exemplars:
            self._measured = exemplars, l2_normalise(outputs_of(self.method, exemplars.pixels).features)
        return self._measured[1]

    def inputs(self, images: PathsOrImages) -> Inputs:
        """The images that `predict` will read."""
        return inputs_of(images, crop_frame=self.settings.data.crop_frame, fit=self.settings.data.fit)

    def predict(
        self,
        images: PathsOrImages | Inputs | ImageSet,
        *,
        top: int = 3,
        reasons: int = 0,
        batch: int = 64,
        progress: Progress | None = None,
        on_batch: OnBatch | None = None,
        fabric: "Fabric | None" = None,
        store: FeatureStore | None = None,
    ) -> Predictions:
        """Predict images: a file, a folder, a CSV file, a table, or paths, PIL images and uint8 arrays.

        `top`: so many classes are named by `Predictions.top()`. `reasons`: so many nearest exemplars of each image.
        There is one row for each image, in their order; one that cannot be read has its reason in `errors`. Where none
        can be read, that is an error. `on_batch` is called with each batch that was read. A run gives an image set; the
        processes of `fabric` share it, and `store` keeps the features of a frozen backbone."""
        for option, value, least in (("top", top, 1), ("reasons", reasons, 0), ("batch", batch, 1)):
            if value < least:
                raise SettingsError(f"{option} is {value}; expected {least} or more")
        return predict(
            self.method,
            images if isinstance(images, Inputs | ImageSet) else self.inputs(images),
            batch,
            classes=self.classes,
            size=self.settings.data.size,
            calibration=self.manifest.calibration,
            spread=self.spread,
            exemplars=self.exemplar_features if reasons else NO_EXEMPLARS,
            reasons=reasons,
            top=top,
            progress=progress,
            on_batch=on_batch,
            fabric=fabric,
            store=store,
        )

    # --- files

    def file(self) -> ModelFile:
        """The content of its model file."""
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
        """Write a model file and return its digest, which later versions record as their parent."""
        self.digest = write_model_file(Path(path), self.file())
        return self.digest
