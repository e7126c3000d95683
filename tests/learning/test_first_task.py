"""The first task is trained once: who may share it, and that sharing changes no bit of any result."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from life import POOLED, TRAINED, Life, Lives, differing, new_method, state_of
from pictures import TINY, run_files
from torch import Tensor
from torch.nn import functional

import endocil
from endocil import EndocilError
from endocil.components.losses import Outcome
from endocil.data.augment import Augmentation, Operation
from endocil.data.batches import Batch
from endocil.data.cache import Images
from endocil.data.scenario import Task
from endocil.learning.first_task import PACKAGE, FirstTasks, digest_of, digest_of_code, network_of
from endocil.methods.base import Phase, TaskData
from endocil.methods.common import LabelLoss
from endocil.methods.icarl import ICaRL
from endocil.registry import trust
from endocil.reports.ledger import _measured
from endocil.runs.records import read_run

# options that change the first task, and options that must not
VARIANTS: dict[str, list[dict[str, Any]]] = defaultdict(
    lambda: [{}],
    endocil=[{}, {"loss": "cross_entropy"}, {"gradients": "plain"}, {"reduction": "weights"}, {"beta": 0.5}],
    dgr=[{}, {"variant": "original"}, {"attenuation": 3.0, "new_ratio": "inverse"}],
    bic=[{}, {"held_out": 0.4}],
    foster=[{}, {"evaluate": "student", "oofc": "az", "align_student": True}],
    memo=[{}, {"train_base": False}],
    mrfa=[{}, {"step": 0.1, "auto_kd": True}],
    ewc=[{}, {"fisher": "pycil"}],
)


class StoppedError(Exception):
    pass


def first_phase(life: Life) -> Phase:
    task = life.scenario.tasks[0]
    life.method.grow(task)
    phase: Phase
    (phase,) = life.method.phases(task, life.data(task))
    return phase


OWN_HEADS = {"lucir", "podnet"}  # with cosine heads no other method can take their first task


def untimed(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "events.jsonl").read_text("utf-8").splitlines()]
    for record in records:
        for key in ("seconds", "images_per_second"):
            record.pop(key, None)
    return [record for record in records if record["event"] == "epoch"]


def test_methods_whose_first_task_has_the_same_name_train_it_to_the_same_bits(images: Images, tmp_path: Path) -> None:
    by_name = defaultdict(set)
    events = defaultdict(list)
    for name in TRAINED:
        for i, options in enumerate(VARIANTS[name]):
            one = Life(images, tmp_path / f"{name}-{i}", new_method(name, **options))
            if one.method.joint:  # all classes are its first task: other images than those of the others
                continue
            phase = first_phase(one)
            if name in OWN_HEADS:
                assert not phase.first_task_name
                continue
            one.learner._train(one.scenario.tasks[0], 0, phase, None)
            bits = digest_of(network_of(one.method))
            assert phase.first_task_name
            by_name[phase.first_task_name].add(bits)
            events[phase.first_task_name].append(untimed(one.folder))
    assert all(len(bits) == 1 for bits in by_name.values()), by_name
    # DGR's two variants have names of their own: one clips long gradients, which these small ones are not
    assert len(by_name) == 4
    assert len(set.union(*by_name.values())) == 3
    for told in events.values():  # what the epochs measured is the same too, by the same names
        assert all(one == told[0] for one in told)


def test_later_tasks_are_not_shared(lives: Lives, tmp_path: Path) -> None:
    for name in TRAINED:
        life = lives.after(name, 1, tmp_path / name)
        for task in life.scenario.tasks[1:2]:
            life.method.grow(task)
            assert {phase.first_task_name for phase in life.method.phases(task, life.data(task))} == {""}


def settings(method: str, store: Path | None = None, **run: object) -> dict[str, Any]:
    shared = {} if store is None else {"first_tasks": str(store)}
    network = {"backbone": POOLED}
    return {**TINY, "method": {"name": method}, "network": network, "run": {**TINY["run"], **shared, **run}}


def sharing(life: Life, folder: Path) -> Life:
    life.learner.first_tasks = FirstTasks(folder, digest_of(life.method.backbone.state_dict()), {})
    return life


def test_a_life_that_takes_its_first_task_from_another_is_the_life_that_trains_it(
    images: Images, lives: Lives, tmp_path: Path
) -> None:
    """Finetune comes first: all that start like it take its network, whatever they do with it afterwards."""
    trained = set()
    for name in sorted(set(TRAINED) - OWN_HEADS, key=lambda name: (name != "finetune", name)):
        alone = lives.after(name, 2, tmp_path / f"{name}-alone")
        taken = sharing(Life(images, tmp_path / name, new_method(name)), tmp_path / "store").live(2)
        if not any(record.pop("shared", False) for record in untimed(tmp_path / name)):
            trained.add(name)
            taken = sharing(Life(images, tmp_path / f"{name}-2", new_method(name)), tmp_path / "store").live(2)
        assert differing(state_of(alone.method), state_of(taken.method)) == [], name
        if alone.memory is not None:
            assert taken.memory.records() == alone.memory.records()
        first, told = untimed(alone.folder), untimed(taken.folder)
        shared = [record.pop("shared", False) for record in told]
        assert told == first
        assert shared == [record["task"] == 0 for record in first]
    assert trained == {"finetune", "dgr", "endocil", "joint"}
    assert len(list((tmp_path / "store").glob("*.safetensors"))) == 4


@pytest.mark.parametrize("name", ["icarl", "foster"])
def test_a_run_that_takes_its_first_task_from_another_leaves_the_same_files(name: str, tmp_path: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "learned":
            raise StoppedError

    with pytest.raises(StoppedError):
        endocil.run(settings("wa", tmp_path / "store"), tmp_path / "other", show=stop)
    endocil.run(settings(name), tmp_path / "alone")
    endocil.run(settings(name, tmp_path / "store"), tmp_path / "taken")
    assert run_files(tmp_path / "taken") == run_files(tmp_path / "alone")
    assert any(record.get("shared") for record in untimed(tmp_path / "taken"))


def test_time_spent_by_another_run_is_told_apart(tmp_path: Path) -> None:
    for name in ("first", "taken"):
        endocil.run(settings("icarl", tmp_path / "store"), tmp_path / name)
    first, taken = (read_run(tmp_path / name) for name in ("first", "taken"))
    spent = [e["seconds"] for e in first.events_of("epoch") if e["task"] == 0]
    assert "shared_seconds" not in _measured(first)
    assert _measured(taken)["shared_seconds"] == round(sum(spent), 1)
    seconds = sum(e["seconds"] for e in taken.events_of("epoch"))
    assert _measured(taken)["seconds"] == round(seconds, 1)


def key_of(life: Life, folder: Path, **facts: object) -> str:
    store = FirstTasks(folder, digest_of(life.method.backbone.state_dict()), facts)
    phase = first_phase(life)
    same = {"seed": life.method.seed, "augmentation": life.learner.augmentation}
    with store.of(life.method, phase, **same, log=print) as place:
        return place.path.stem


class OwnOptimizer(torch.optim.SGD):
    """From outside."""


trust(["test_first_task:OwnOptimizer", "test_first_task:unchanged"])


def unchanged(images: Tensor, uniform: Callable[[int], Tensor]) -> Tensor:
    """An operation of augmentation from outside."""
    return images


def test_whatever_decides_the_bits_has_another_place(images: Images, tmp_path: Path) -> None:
    from pictures import make_images

    def life(images: Images = images, **options: Any) -> Life:
        return Life(images, tmp_path / "life", new_method("icarl", **options))

    darker = make_images([14, 11, 12, 4, 13, 9])
    darker.pixels[darker.rows[0]] //= 2

    def changed(**schedule: Any) -> Life:
        found, before = life(), life().method.schedule
        found.method.schedule = lambda task: replace(before(task), **schedule)
        return found

    def augmented(*operations: Operation) -> Life:
        found = life()
        found.learner.augmentation = Augmentation(operations=operations)
        return found

    places = [
        key_of(changed(optimizer="adamw"), tmp_path),
        key_of(changed(optimizer="adamw", optimizer_options={"eps": 1e-6}), tmp_path),
        key_of(changed(optimizer="test_first_task:OwnOptimizer"), tmp_path),
        key_of(changed(warmup=1), tmp_path),
        key_of(changed(backbone_factor=0.1), tmp_path),
        key_of(changed(clip_gradients=1.0), tmp_path),
        key_of(augmented(Operation("rotate")), tmp_path),
        key_of(augmented(Operation("rotate", {"degrees": 3.0})), tmp_path),
        key_of(augmented(Operation("test_first_task:unchanged")), tmp_path),
        key_of(life(), tmp_path, label_smoothing=0.1),
    ]
    assert key_of(augmented(Operation("rotate")), tmp_path) == places[6]
    places = [
        key_of(life(), tmp_path),
        *places,
        key_of(life(), tmp_path, precision="bf16"),
        key_of(life(seed=1), tmp_path),
        key_of(life(epochs=3), tmp_path),
        key_of(life(freeze=("layer1",)), tmp_path),
        key_of(life(images=make_images([14, 11, 12, 4, 13, 9], seed=1)), tmp_path),
        key_of(life(images=darker), tmp_path),
    ]
    assert len(set(places)) == len(places)
    assert key_of(life(), tmp_path) == places[0]
    shares = life()
    shares.method.schedule = lambda task: replace(life().method.schedule(task), milestones=(0.5,))
    assert key_of(shares, tmp_path) == places[0]  # the same epochs as shares: 1 of 2
    torch.set_num_threads(torch.get_num_threads() + 1)
    assert key_of(life(), tmp_path) != places[0]


class Smoothed(ICaRL):
    """A method from outside that changes the loss and forgets to say that its first task is another."""

    def __init__(self, backbone: torch.nn.Module, *, smoothing: float = 0.1, **shared: Any) -> None:
        super().__init__(backbone, **shared)
        self.smoothing = smoothing

    def label_loss(self, task: Task, counts: Tensor) -> LabelLoss:
        return lambda logits, batch: functional.cross_entropy(
            logits, batch.labels, reduction="none", label_smoothing=self.smoothing
        )


class Greedy(ICaRL):
    """Trains a module of its own in a phase that it shares."""

    def __init__(self, backbone: torch.nn.Module, **shared: Any) -> None:
        super().__init__(backbone, **shared)
        self.extra = torch.nn.Linear(2, 2)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (phase,) = super().phases(task, data)

        def objective(batch: Batch) -> Outcome:
            return phase.objective(batch)

        return (Phase("train", data.all, (self, self.extra), phase.schedule, objective, first_task_name="mine"),)


def test_a_method_from_outside_shares_with_itself_alone(images: Images, tmp_path: Path) -> None:
    methods: list[tuple[str, dict[str, Any]]] = [
        ("icarl", {}),
        ("test_first_task:Smoothed", {}),
        ("test_first_task:Smoothed", {"smoothing": 0.2}),
        ("test_first_task:Smoothed", {}),
    ]
    places = [
        key_of(Life(images, tmp_path / "life", new_method(name, **options)), tmp_path) for name, options in methods
    ]
    assert len(set(places)) == 3
    assert places[1] == places[3]
    with pytest.raises(EndocilError, match=r"leave Phase\.first_task_name empty"):
        key_of(Life(images, tmp_path / "life", new_method("test_first_task:Greedy")), tmp_path)


def test_a_damaged_or_foreign_file_is_trained_anew_with_a_note(tmp_path: Path) -> None:
    store = tmp_path / "store"
    endocil.run(settings("icarl", store), tmp_path / "first")
    (file,) = store.glob("*.safetensors")
    whole = file.read_bytes()
    endocil.run(settings("endocil", store), tmp_path / "other")
    (other,) = (path for path in store.glob("*.safetensors") if path != file)
    changed = bytearray(whole)
    changed[-5] ^= 1
    for i, content in enumerate([whole[: len(whole) // 2], b"", bytes(changed), other.read_bytes()]):
        file.write_bytes(content)
        remarks: list[str] = []

        def show(record: dict[str, Any], remarks: list[str] = remarks) -> None:
            remarks += record.get("remarks", [])

        endocil.run(settings("icarl", store), tmp_path / f"again-{i}", show=show)
        assert any("cannot be used" in remark and "trained again" in remark for remark in remarks)
        assert run_files(tmp_path / f"again-{i}") == run_files(tmp_path / "first")
        assert differing(*(_tensors(content) for content in (file.read_bytes(), whole))) == []


def _tensors(content: bytes) -> dict[str, Any]:
    from safetensors.torch import load

    return load(content)


@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_stopped_while_it_trains_or_after_taking_goes_on_to_the_same_files(stop: int, tmp_path: Path) -> None:
    def stopping() -> Callable[[dict[str, Any]], None]:
        left = itertools.count(stop - 1, -1)

        def show(record: dict[str, Any]) -> None:
            if record["event"] == "epoch" and next(left) == 0:
                raise StoppedError

        return show

    endocil.run(settings("icarl"), tmp_path / "alone")
    for name in ("training", "taking"):
        with pytest.raises(StoppedError):
            endocil.run(settings("icarl", tmp_path / "store", checkpoint_seconds=0), tmp_path / name, show=stopping())
        endocil.resume(tmp_path / name)
        assert run_files(tmp_path / name) == run_files(tmp_path / "alone")
    # a run that was stopped in the first task and finds it stored meanwhile takes the rest of it
    if stop == 1:
        with pytest.raises(StoppedError):
            endocil.run(settings("icarl", tmp_path / "new", checkpoint_seconds=0), tmp_path / "late", show=stopping())
        (tmp_path / "new").rename(tmp_path / "empty")
        (tmp_path / "store").rename(tmp_path / "new")
        endocil.resume(tmp_path / "late")
        assert run_files(tmp_path / "late") == run_files(tmp_path / "alone")


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked there")
def test_one_trains_the_others_wait_and_a_killed_one_makes_way(tmp_path: Path) -> None:
    def start(name: str, method: str, show: str) -> subprocess.Popen[str]:
        values, folder = settings(method, tmp_path / "store"), str(tmp_path / name)
        code = f"import endocil, os, signal\nendocil.run({values!r}, {folder!r}, show=lambda record: {show})"
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=own)

    # It stops itself in the middle of the first task: on a busy machine it could be done before another stops it.
    holder = start("killed", "icarl", "record['event'] == 'epoch' and os.kill(os.getpid(), signal.SIGSTOP)")
    _, status = os.waitpid(holder.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    waiting = start("waiting", "finetune", "print(record, flush=True)")
    assert waiting.stdout
    assert any("waiting for it" in line for line in waiting.stdout)
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    waiting.communicate()
    assert waiting.returncode == 0
    assert not any(record.get("shared") for record in untimed(tmp_path / "waiting"))
    endocil.resume(tmp_path / "killed")
    assert any(record.get("shared") for record in untimed(tmp_path / "killed"))
    endocil.run(settings("icarl"), tmp_path / "alone")
    assert run_files(tmp_path / "killed") == run_files(tmp_path / "alone")


def test_any_file_of_code_that_changes_moves_or_goes_gives_another_key(tmp_path: Path) -> None:
    package = tmp_path / "endocil"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    whole = digest_of_code(package)
    assert whole == digest_of_code(PACKAGE)
    files = sorted(package.rglob("*.py"))
    assert len(files) > 100
    for file in files[::12]:
        content = file.read_bytes()
        file.write_bytes(content + b"\n")
        assert digest_of_code(package) != whole, file
        file.write_bytes(content)
    moved = files[0].rename(files[0].with_name("moved.py"))
    assert digest_of_code(package) != whole
    moved.unlink()
    assert digest_of_code(package) != whole
