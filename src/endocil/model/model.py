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
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from endocil.data.batches import ImageSet
from endocil.data.cache import Images
from endocil.data.decode import RULES
from endocil.data.inputs import ImageInputs, Inputs, PathsOrImages, Texts, inputs_of, read_arrays
from endocil.data.scenario import Task
from endocil.errors import EndocilError
from endocil.io.files import portable
from endocil.learning.build import build_learner, build_learning, build_memory, complete
from endocil.learning.checkpoint import Checkpoint, Position, load_checkpoint, restore
from endocil.learning.events import Journal, Show, environment
from endocil.learning.features import FeatureStore, l2_normalise, outputs_of
from endocil.learning.learner import Learner
from endocil.learning.memory import ExemplarMemory, KeptImages, no_images
from endocil.learning.parallel import Processes, learning_on
from endocil.methods import Method
from endocil.methods.frozen import FrozenMethod
from endocil.model.calibration import RATE, limits_of, notes_of, spread_and_calibration, why_unable
from endocil.model.file import ModelFile, read_model_file, write_model_file
from endocil.model.manifest import Calibration, Manifest, Preprocessing, Step, Terms, after_learning, terms_of
from endocil.model.new_images import NewImages, NewTask, Parts, as_next_task, distinct_names, hold_out, split_new_images
from endocil.model.predictions import NO_EXEMPLARS, OnBatch, Predictions, Progress, predict
from endocil.model.restore import model_settings, restored_method
from endocil.networks import frozen_for_now
from endocil.settings.settings import Settings, load_settings

Device = str | torch.device | None
HEADS = "heads alone, every class equally often"  # in the history


class Model:
    """A method with its networks, the exemplar memory, the classes, the calibration and the history."""

    def __init__(
        self, settings: Settings, method: Method, memory: ExemplarMemory | None, *, name: str = "model"
    ) -> None:
        """A model that has learned nothing yet; `settings` are complete. `create` and `load` are the usual ways."""
        self.settings, self.method, self.memory, self.name = settings, method, memory, name
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
    ) -> "Model":
        """A model that has learned nothing yet.

        `settings`: a preset's name, a TOML file, a dictionary or Settings. Of [data] and [scenario] only `size`,
        `crop_frame`, `fit`, `validation` and `split_seed` are used. `method` and `size` (in pixels) override them."""
        changes = [f"method.name={method}"] if method else []
        changes += [f"data.size={size}"] if size else []
        chosen = complete(load_settings(settings or {}, changes).trusted(), data=False)
        built, _ = build_learning(chosen)
        return cls(chosen, built, build_memory(chosen) if built.replay else None, name=name)

    @classmethod
    def load(
        cls, path: str | Path, *, changes: Sequence[str] = (), trust: bool = False, device: Device = None
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
        model = cls(settings, method, memory, name=file.manifest.name)
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
        n = len(self.tasks)
        facts += [f"{len(self.classes)} classes in {n} task{'s' * (n != 1)}", f"{len(self.exemplars):,} exemplars"]
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
        terms, n, data = terms_of(licence, consent), len(self.tasks), self.settings.data
        table, pixels = read_arrays(
            images, labels, groups, sources, task=n, size=data.size, crop_frame=data.crop_frame, fit=data.fit
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
        return None if self._manifest is None else why_unable(self._manifest, self.method)

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
            images = new_task.task, new_task.train, new_task.classes
            learner.learn(*images, unfinished, licence=terms.licence, consent=terms.consent)
            if by == "learn" and not isinstance(self.method, FrozenMethod):  # whose sums take seconds to add again
                learner.save(Position(new_task.task.index + 1))
        self._record(new_task, terms, by)

    def _record(self, new_task: NewTask, terms: Terms, by: Literal["run", "learn"]) -> None:
        """Write what was learned into the manifest, and keep some of the held-out images."""
        seen, fitting = self.method.normalisation, self.settings.data.model_dump(include={"size", "crop_frame", "fit"})
        self.held_out = self.held_out_with(new_task, terms)
        self._manifest = after_learning(
            self._manifest,
            new_task.task,
            dict(zip(new_task.classes, new_task.train.counts(new_task.task.n_seen).tolist(), strict=True)),
            name=self.name,
            settings=portable(self.settings.model_dump(mode="json", exclude_none=True)),
            preprocessing=Preprocessing(**fitting, mean=seen.mean, deviation=seen.std, rules=RULES),
            environment=environment(self.settings),
            terms=terms,
            by=by,
            parent=self.digest,
            changes=self._changes,
        )
        self.digest, self._changes = "", ()

    def held_out_with(self, new_task: NewTask, terms: Terms | None = None) -> KeptImages:
        """The held-out images once a task is learned: those there are, and a sample of the task's."""
        if self._manifest is not None and not self._manifest.keeps_images:
            return self.held_out
        most = self.settings.run.held_out
        return hold_out(self.held_out, new_task, terms or Terms(), most=most, seed=self.settings.seed)

    def predict_kept(self, kept: KeptImages) -> Predictions:
        """Predict images that a model keeps; an image of a class that this one does not know has the label -1."""
        label_of = {name: label for label, name in enumerate(self.classes)}
        labels = torch.tensor([label_of.get(one.class_name, -1) for one in kept.provenance])
        return self.predict(kept.image_set(labels), batch=self.settings.run.evaluation_batch)

    def calibrate(self, rate: float | None = None) -> None:
        """Fit temperatures and the out-of-distribution threshold on the held-out images.

        `rate`: the share of images of learned classes that the threshold flags."""
        old, batch = self.manifest.calibration, self.settings.run.evaluation_batch
        rate = rate or (old.ood_rate if old else RATE)
        self.method.eval()
        self.spread, fitted = spread_and_calibration(
            self.method, self.exemplars, self.held_out, self.classes, rate=rate, batch=batch
        )
        self.amend(calibration=fitted)

    def amend(self, **facts: Any) -> None:
        """Change some of what the manifest says."""
        self._manifest = self.manifest.model_copy(update=facts)

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
        fabric: Processes | None = None,
        store: FeatureStore | None = None,
    ) -> Predictions:
        """Predict images: a file, a folder, a CSV file, a table, or paths, PIL images and uint8 arrays.

        `top`: so many classes are named by `Predictions.top()`. `reasons`: so many nearest exemplars of each image.
        There is one row for each image, in their order; one that cannot be read has its reason in `errors`. Where none
        can be read, that is an error. `on_batch` is called with each batch that was read. A run gives an image set; the
        processes of `fabric` share it, and `store` keeps the features of a frozen backbone."""
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

    def file(self, *, copy: bool = True) -> ModelFile:
        """The content of its model file. Without `copy` the statistics, which can be large, are the model's own."""
        statistics = {name: value.detach().cpu() for name, value in self.method.statistics.items()}
        return ModelFile(
            self.manifest,
            {name: value.detach().cpu().clone() for name, value in self.method.state_dict().items()},
            {name: value.clone() if copy else value for name, value in statistics.items()},
            distinct_names(self.exemplars),
            distinct_names(self.held_out),
            digest=self.digest,
            spread=self.spread,
        )

    def save(self, path: str | Path) -> str:
        """Write a model file and return its digest, which later versions record as their parent."""
        self.digest = write_model_file(Path(path), self.file(copy=False))
        return self.digest
