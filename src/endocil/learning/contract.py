"""What every method promises (methods/base.py), checked on a tiny scenario of three tasks: `endocil check-method`.

Each problem is one line that names the part, what it did and the way out. The parts of a task are tried one by one on a
copy; then the scenario is run three times: uninterrupted, again, and stopped in the middle of a task and resumed.
"""

import copy
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation
from endocil.data.batches import Batch, ImageSet
from endocil.data.scenario import Scenario, Task, build_scenario
from endocil.datasets.synthetic import small_images
from endocil.errors import EndocilError
from endocil.io.terminal import one_line
from endocil.learning.checkpoint import Position, grow, load_checkpoint, restore
from endocil.learning.events import Journal
from endocil.learning.features import features_of
from endocil.learning.learner import Learner
from endocil.learning.memory import ExemplarMemory, build_selector, exemplar_tensors, exemplars_of
from endocil.learning.parallel import one_device
from endocil.learning.training import batches_of, fit, only_training
from endocil.methods import Method, build_method
from endocil.methods.base import Phase, TaskData, shared_schedule
from endocil.networks import build_backbone, trained_parts

COUNTS, INCREMENTS, SIZE, QUOTA = (14, 11, 12, 4, 13, 9), (2, 1, 3), 32, 4  # a class below the quota, one new class
NAME_IT = "name what it is for: batch.uniform(columns, purpose), or endocil.data.seeding.generator(self.seed, ...)"


def contract_problems(
    name: str, options: Mapping[str, Any] | None = None, *, rate: float = 0.01, log: Callable[[str], None] = print
) -> list[str]:
    """Lines on what is wrong with a method; none where it keeps the contract. `log` is told what is being tried."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _Checker(name, dict(options or {}), rate, Path(folder), log).problems()
    except _ContractError as error:
        return [str(error)]
    finally:
        torch.set_num_threads(threads)


class _ContractError(Exception):
    """A promise that is not kept, in words."""


class _StoppedError(Exception):
    """The run is stopped here on purpose."""


class _Checker:
    def __init__(
        self, name: str, options: dict[str, Any], rate: float, folder: Path, log: Callable[[str], None]
    ) -> None:
        self.name, self.options, self.rate, self.folder, self.log = name, options, rate, folder, log
        self.images, self.fabric = small_images(COUNTS, SIZE), one_device("cpu")
        scenario = build_scenario(self.images.table, increments=INCREMENTS)
        try:
            with _watched("the constructor"):
                method = self.new_method()
        except (AttributeError, LookupError, TypeError, RuntimeError) as error:
            raise _ContractError(f"the constructor fails: {_in_words(error)}") from error
        self.scenario: Scenario = scenario.joined() if method.joint else scenario

    def problems(self) -> list[str]:
        """Of the first task that has any; whole runs are tried only where the parts are right."""
        method = self.new_method()
        learner = self.learner(method, self.folder / "parts")
        for task in self.scenario.tasks:
            self.log(f"task {task.index}: {task.n_new} new classes")
            where = f"task {task.index}"
            try:
                self.try_parts(copy.deepcopy(method), learner.memory, task)
                where = f"learning task {task.index} fails"
                self.learn(learner, task)
            except _ContractError:
                raise
            except Exception as error:
                return [f"{where}: {_in_words(error)}"]
        return self.scenario_problems()

    def try_parts(self, method: Method, memory: ExemplarMemory | None, task: Task) -> None:
        """Every part of a task, in the order of a run, on a method that may be thrown away."""
        new = ImageSet.of(self.images, self.scenario.rows("train", task.new))
        data = TaskData(new, exemplars_of(memory, new), Augmentation(), lambda images: features_of(method, images))
        with _named("grow"):
            grow(method, task, torch.device("cpu"))
        with _named("prepare"):
            method.prepare(task, data)
        phases = _phases(method, task, data)
        start = _state(method)
        for index, phase in enumerate(phases):
            _check_objective(method, task, data, phase)
            _check_training(method, phase, task, index)
        with _named("consolidate"):
            method.consolidate(task, data)
        for key in (key for key, value in method.statistics.items() if not isinstance(value, Tensor)):
            raise _ContractError(f"statistics['{key}'] is no tensor; keep tensors there, or set an attribute in grow")
        _check_scores(method, task, new)
        _check_untrained(method, task, phases, start)
        features = method.embed(torch.zeros(2, 3, SIZE, SIZE))
        with _named("exemplar_tensors"):
            exemplar_tensors(method, task, features, method.classify(features))

    def scenario_problems(self) -> list[str]:
        self.log("the same run twice")
        straight, again = self.run_scenario("straight"), self.run_scenario("again")
        for name in _differing(straight, again):
            return [f"the same seed gives other values of {name} in a second run; {NAME_IT}"]
        self.log("a run that is stopped and resumed")
        try:
            resumed = self.stopped_and_resumed()
        except Exception as error:
            return [f"a stopped run cannot be resumed: {_in_words(error)}"]
        return [
            f"a run that is stopped and resumed ends with other values of {name}: it depends on state that is no "
            f"parameter, buffer or entry of statistics; make it one of these"
            for name in _differing(straight, resumed)[:1]
        ]

    # --- runs

    def new_method(self) -> Method:
        backbone, _ = build_backbone("resnet18", seed=0, options={"width": 8})
        for module in backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.5  # a few steps are enough for its running statistics
        schedule = shared_schedule(epochs=2, milestones=(1,), batch_size=8, learning_rate=self.rate)
        return build_method(self.name, backbone, self.options, schedule=schedule, seed=0)

    def learner(self, method: Method, folder: Path) -> Learner:
        folder.mkdir(exist_ok=True)
        select = build_selector(method.default_selector, {})
        memory = ExemplarMemory(per_class=QUOTA, select=select, size=SIZE) if method.replay else None
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return Learner(
            method,
            memory,
            folder=folder,
            fabric=self.fabric,
            journal=Journal(folder / "events.jsonl", lambda record: None),
            augmentation=Augmentation(),
            seed=0,
            clock=itertools.count(0, 100).__next__,  # a checkpoint is due after every epoch
        )

    def learn(self, learner: Learner, task: Task, unfinished: Any = None) -> None:
        new = ImageSet.of(self.images, self.scenario.rows("train", task.new))
        learner.learn(task, new, self.images.table.classes, unfinished)
        learner.save(Position(task.index + 1))

    def run_scenario(self, name: str) -> dict[str, Tensor]:
        learner = self.learner(self.new_method(), self.folder / name)
        for task in self.scenario.tasks:
            self.learn(learner, task)
        return _state(learner.method, learner.memory)

    def stopped_and_resumed(self) -> dict[str, Tensor]:
        """Stopped after the first epoch of the second task, or where there is none before the last task."""
        tasks, folder = self.scenario.tasks, self.folder / "stopped"
        stopped = self.learner(self.new_method(), folder)

        def stop(record: dict[str, Any]) -> None:
            late = record["event"] == "epoch" and record["task"] == min(1, len(tasks) - 1)
            if late and record["epoch"] == 1:  # the first epoch's checkpoint is written
                raise _StoppedError

        stopped.journal.show = stop
        with suppress(_StoppedError):
            for task in tasks[: max(1, len(tasks) - 1)]:
                self.learn(stopped, task)
        resumed = self.learner(self.new_method(), folder)
        checkpoint = load_checkpoint(folder)
        assert checkpoint is not None
        resumed.journal.cut_back(checkpoint.events)
        restore(checkpoint, resumed.method, resumed.memory, tasks, self.images.table.classes, torch.device("cpu"))
        at = checkpoint.position
        for task in tasks[at.task :]:
            self.learn(resumed, task, checkpoint if task.index == at.task and at != Position(at.task) else None)
        return _state(resumed.method, resumed.memory)


# --- one promise each


@contextmanager
def _watched(part: str) -> Iterator[None]:
    """Refuses numbers from the generators that everybody shares."""
    before = _shared_generators()
    yield
    if _shared_generators() != before:
        raise _ContractError(f"{part} draws random numbers without a name, so that no run can be repeated; {NAME_IT}")


@contextmanager
def _named(part: str) -> Iterator[None]:
    """Watched; an error says which part fails."""
    try:
        with _watched(part):
            yield
    except _ContractError:
        raise
    except Exception as error:
        raise EndocilError(f"{part} fails: {_in_words(error)}") from error


def _shared_generators() -> tuple[object, ...]:
    kind, numbers, *rest = np.random.get_state(legacy=True)
    return bytes(torch.get_rng_state().tolist()), random.getstate(), bytes(np.asarray(numbers)), kind, tuple(rest)


def _phases(method: Method, task: Task, data: TaskData) -> tuple[Phase, ...]:
    before, plain = _state(method), _plain(method)
    with _named("phases"):
        first, again = (method.phases(task, data) for _ in range(2))
    for name in [*_differing(before, _state(method)), *_differing(plain, _plain(method))]:
        raise _ContractError(f"phases() changes `{name}`, and a resumed run calls it again; change state in grow")
    if not isinstance(first, tuple) or not all(isinstance(phase, Phase) for phase in first):
        raise _ContractError(f"phases gives {type(first).__name__}; expected a tuple of Phase")
    if [_plan(phase) for phase in first] != [_plan(phase) for phase in again]:
        raise _ContractError(f"phases gives other phases when it is called again; {NAME_IT}")
    return first


def _plan(phase: Phase) -> tuple[object, ...]:
    return phase.name, phase.schedule, phase.images.rows.tolist(), [one.images.rows.tolist() for one in phase.replay]


def _check_objective(method: Method, task: Task, data: TaskData, phase: Phase) -> None:
    """Losses of a batch, and of one without exemplars; gradients of all that is to be trained."""
    alone = replace(phase, images=data.new, replay=())
    for which, tried in (("a batch", phase), ("a batch without exemplars", alone)):
        batch = next(iter(batches_of(tried, method, Augmentation(), 0, ("contract",))))
        with only_training(method, (*phase.train, phase.gradients)):
            try:
                with _named(f"the objective of phase '{phase.name}'"):
                    outcome = phase.objective(batch)
            except EndocilError:
                _check_shapes(method, task, data.new)  # a likely reason
                raise
            _check_outcome(outcome, batch, task, f"phase '{phase.name}': of {which}")
            torch.stack([loss.mean() for loss in outcome.losses.values()]).sum().backward()
            trained = {parameter for module in phase.train for parameter in module.parameters()}
            names = {parameter: name for name, parameter in method.named_parameters()}
            if tried is phase and (unknown := [one for one in trained if one not in names]):
                raise _ContractError(
                    f"phase '{phase.name}' trains a parameter of shape {tuple(unknown[0].shape)} that the method does "
                    f"not own, so it is never saved; make its module an attribute of the method"
                )
            for name in sorted(names[one] for one in trained if tried is phase and one.grad is None):
                raise _ContractError(
                    f"phase '{phase.name}' trains {name}, but its losses do not depend on it; leave its module out of "
                    f"Phase.train, or use it"
                )


def _check_outcome(outcome: object, batch: Batch, task: Task, where: str) -> None:
    if not isinstance(outcome, Outcome) or not outcome.losses:
        raise _ContractError(f"{where} the objective gives {type(outcome).__name__}; expected an Outcome with losses")
    for name, loss in outcome.losses.items():
        if loss.shape not in ((len(batch),), ()):
            raise _ContractError(
                f"{where} the loss '{name}' has shape {tuple(loss.shape)}; expected ({len(batch)},), one for each "
                f"image, or () for a penalty on parameters"
            )
        if not bool(loss.isfinite().all()):
            raise _ContractError(f"{where} the loss '{name}' is not finite; expected finite values from a new network")
    if outcome.logits is not None and outcome.logits.shape != (len(batch), task.n_seen):
        raise _ContractError(
            f"{where} Outcome.logits have shape {tuple(outcome.logits.shape)}; expected {(len(batch), task.n_seen)}"
        )


def _check_training(method: Method, phase: Phase, task: Task, index: int) -> None:
    """One epoch; what is neither trained nor declared stays as it is."""
    inside = {
        id(value)
        for part in (*phase.train, *phase.also_changes)
        for value in ([part] if isinstance(part, Tensor) else part.state_dict(keep_vars=True).values())
    }
    may_change = {name for name, value in method.state_dict(keep_vars=True).items() if id(value) in inside}
    before = _state(method)
    short = replace(phase, schedule=replace(phase.schedule, epochs=1, warmup=0))
    head, key, fabric = method.classifier, (task.index, index), one_device("cpu")
    with _named(f"phase '{phase.name}'"):
        list(fit(short, method, fabric=fabric, augmentation=Augmentation(), seed=0, key=key, logged_head=head))
    for name in sorted({*_differing(before, _state(method))} - may_change):
        raise _ContractError(
            f"phase '{phase.name}' changes {name}, which is neither in Phase.train nor in Phase.also_changes; train "
            f"it, declare it, or leave it alone"
        )


def _check_scores(method: Method, task: Task, images: ImageSet) -> None:
    """Their shape, that they are finite, and that an image's do not depend on others; what prediction uses."""
    pictures, scores = _check_shapes(method, task, images)
    with _named("embed or classify"), torch.no_grad():
        if not bool(scores.isfinite().all()):
            raise _ContractError(f"classify gives scores that are not finite after task {task.index}; is a divisor 0?")
        if not torch.allclose(method(pictures[:1]), scores[:1], rtol=1e-3, atol=1e-3 * float(scores.abs().max())):
            raise _ContractError(
                "the scores of an image depend on the other images of its batch; in eval mode use stored statistics"
            )
    tried = copy.deepcopy(method).requires_grad_(True)
    tried(pictures).sum().backward()
    used = {name for name, parameter in tried.named_parameters() if parameter.grad is not None}
    predicts = {id(parameter) for module in method.predictors for parameter in module.parameters()}
    declared = {name for name, parameter in method.named_parameters() if id(parameter) in predicts}
    for name in sorted(used - declared):
        raise _ContractError(f"prediction uses {name}; return its module from the property predictors")
    for name in sorted(declared - used):
        raise _ContractError(f"predictors has {name}, which prediction does not use; leave its module out there")


def _check_shapes(method: Method, task: Task, images: ImageSet) -> tuple[Tensor, Tensor]:
    """Three pictures and their scores."""
    method.eval()
    pictures = torch.from_numpy(images.gather(torch.arange(3)).numpy() / np.float32(128) - 1).permute(0, 3, 1, 2)
    with _named("embed or classify"), torch.no_grad():
        features = method.embed(pictures)
        if features.ndim != 2 or len(features) != 3:
            raise _ContractError(f"embed gives features of shape {tuple(features.shape)} for 3 images; expected (3, d)")
        scores = method.classify(features)
        if scores.shape != (3, task.n_seen):
            raise _ContractError(
                f"classify gives scores of shape {tuple(scores.shape)} for 3 images in task {task.index}; expected "
                f"{(3, task.n_seen)}, one column for each class seen so far"
            )
    return pictures, scores


def _check_untrained(method: Method, task: Task, phases: tuple[Phase, ...], start: dict[str, Tensor]) -> None:
    """In the first task backbone and classifier learn, or are computed."""
    if task.index or not phases:
        return
    trained = {id(one) for phase in phases for module in phase.train for one in module.parameters()}
    frozen = {id(one) for one in method.backbone.parameters()}
    frozen -= {id(one) for part in trained_parts(method.backbone) for one in part.parameters()}
    predicts = {id(one) for module in method.predictors for one in module.parameters()}
    predicts &= {id(one) for module in (method.backbone, method.classifier) for one in module.parameters()}
    now = _state(method)
    for name, parameter in method.named_parameters():
        if id(parameter) in predicts - trained - frozen and torch.equal(start[name], now[name]):
            raise _ContractError(
                f"no phase of the first task trains {name}, which predicts; put its module into Phase.train, or set it "
                f"in consolidate"
            )


# --- what a method is made of


def _state(method: Method, memory: ExemplarMemory | None = None) -> dict[str, Tensor]:
    state = {**method.state_dict(), **{f"statistics['{key}']": value for key, value in method.statistics.items()}}
    if memory is not None:
        kept = {f"exemplar_tensors '{key}'": value for key, value in memory.exemplars.tensors.items()}
        state |= {**kept, "the exemplars": memory.exemplars.pixels}
    return {name: value.detach().clone() for name, value in state.items() if isinstance(value, Tensor)}


def _plain(method: Method) -> dict[str, object]:
    """Attributes that are plain values; of lists and the like their length, as they may hold tensors."""
    hidden = ("training", "statistics", "measurements")
    own = {key: value for key, value in vars(method).items() if key not in hidden and not key.startswith("_")}
    lengths = {key: len(value) for key, value in own.items() if isinstance(value, list | tuple | dict | set)}
    return {**{key: value for key, value in own.items() if isinstance(value, bool | int | float | str)}, **lengths}


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Names whose values (of tensors the bits) differ, or that only one side has."""

    def same(name: str) -> bool:
        a, b = one.get(name), other.get(name)
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b

    return [name for name in sorted({*one, *other}) if not (name in one and name in other and same(name))]


def _in_words(error: Exception) -> str:
    kind = "" if isinstance(error, EndocilError) else f"{type(error).__name__}: "
    return f"{kind}{one_line(error)}"
