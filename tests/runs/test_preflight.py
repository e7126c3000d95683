"""What cannot work is said before the first epoch."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from pictures import TINY, run_files
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import endocil
from endocil import EndocilError, Method
from endocil.cli.main import _application
from endocil.data.scenario import Task
from endocil.io.files import read_csv, write_csv
from endocil.learning.features import outputs_of
from endocil.methods.base import Phase, TaskData
from endocil.methods.finetune import Finetune
from endocil.networks import GrowingClassifier
from endocil.runs.folder import RunFolder
from endocil.runs.parts import assemble
from endocil.runs.preflight import preflight
from endocil.settings.settings import Settings, load_settings


class NearestMean(Method):
    """Learns in closed form: nothing is trained, and the classifier is computed from the new classes' means."""

    classifier: GrowingClassifier

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        return ()

    @torch.no_grad()
    def consolidate(self, task: Task, data: TaskData) -> None:
        features = outputs_of(self, data.new, 64, for_selection=True).features
        for label in range(task.n_old, task.n_seen):
            mean = features[data.new.labels == label].mean(dim=0)
            self.classifier.weight[label] = mean
            self.classifier.bias[label] = -mean.square().sum() / 2


class TrainedOnce(Finetune):
    """Trains in the first task alone."""

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        return super().phases(task, data) if task.index == 0 else ()


class SharesTooMuch(Finetune):
    """Trains a module of its own in a phase that it shares with other methods."""

    def __init__(self, backbone: nn.Module, **shared: Any) -> None:
        super().__init__(backbone, **shared)
        self.extra = nn.Linear(2, 2)

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (phase,) = super().phases(task, data)
        return (Phase("train", data.new, (self, self.extra), phase.schedule, phase.objective, first_task_name="mine"),)


class ComparesLater(Finetune):
    """Compares the images of a batch with each other, from the second task on."""

    def phases(self, task: Task, data: TaskData) -> tuple[Phase, ...]:
        (phase,) = super().phases(task, data)
        return (replace(phase, whole_batches=task.index > 0),)


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    """Two classes of ten pictures; of each the last two test."""
    rows = []
    for label in ("polyp", "ulcer"):
        (tmp_path / label).mkdir()
        for i in range(10):
            Image.new("RGB", (24, 24), (10 * i, 200, 20)).save(tmp_path / label / f"{i}.png")
            rows.append((f"{label}/{i}.png", label, f"{label}{i // 5}", "test" if i > 7 else "train"))
    write_csv(tmp_path / "list.csv", ("path", "label", "patient", "split"), rows)
    return tmp_path / "list.csv"


def settings(listing: Path, **scenario: object) -> Settings:
    return load_settings(
        {
            "data": {"name": "csv", "file": str(listing), "size": 16},
            "scenario": {"tasks": 1, **scenario},
            "network": {"width": 8},
            "method": {"name": "icarl"},
            "train": {"epochs": 1, "milestones": []},
        }
    )


def change(listing: Path, label: str, part: str) -> None:
    rows = read_csv(listing)
    header = tuple(rows[0])
    kept = [tuple((row | {"split": part} if row["label"] == label else row).values()) for row in rows]
    write_csv(listing, header, kept)


def problems(listing: Path, **scenario: object) -> str:
    return " ".join(preflight(assemble(settings(listing, **scenario))).problems)


def test_a_split_that_works_has_no_problem(listing: Path) -> None:
    assert problems(listing, split_by="given") == ""
    told = preflight(assemble(settings(listing, split_by="given", validation=0.2))).facts[0]
    assert "10 to train, 6 to validate, 4 to test" in told


def test_a_class_without_training_images_is_a_problem(listing: Path) -> None:
    change(listing, "ulcer", "test")
    assert "no training image of ulcer" in problems(listing, split_by="given")


def test_a_first_task_without_test_images_is_a_problem(listing: Path) -> None:
    change(listing, "polyp", "train")
    change(listing, "ulcer", "train")
    assert "no test image of the first task's classes" in problems(listing, split_by="given")
    assert "no test image of the first task's classes" in problems(listing, folds=40, fold=39)


def test_classes_that_differ_in_spelling_alone_are_told(listing: Path) -> None:
    remarks = " ".join(preflight(assemble(settings(listing))).remarks)
    assert "spelling" not in remarks
    listing.write_text(
        listing.read_text().replace("3.png,ulcer", "3.png,Ulcers").replace("4.png,ulcer", "4.png,Ulcers")
    )
    remarks = " ".join(preflight(assemble(settings(listing))).remarks)
    assert "classes that differ in spelling alone: Ulcers, ulcer; if they are one class" in remarks


def test_what_was_left_out_is_recorded_with_its_reason(listing: Path, tmp_path: Path) -> None:
    (tmp_path / "polyp" / "3.png").write_bytes(b"")
    chosen = settings(listing, split_by="given")
    with pytest.raises(EndocilError, match="1 of 20 images cannot be read"):
        assemble(chosen)
    data = chosen.data.model_copy(update={"skip_unreadable": True})
    parts = assemble(chosen.model_copy(update={"data": data}))
    here = RunFolder(tmp_path / "run")
    here.create(parts)
    recorded = (here.path / "data.json").read_text("utf-8")
    assert "polyp/3.png" in recorded
    assert "left out" in recorded


def typed(*arguments: object) -> str:
    """What a command says; its error is raised here."""
    done = CliRunner().invoke(_application(), [*map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def no_compiler(module: nn.Module) -> None:
    raise type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})("no C++ compiler")


@pytest.mark.parametrize(
    "change",
    [
        "run.accelerator=cuda",
        "run.accelerator=tpu",
        "run.tensorboard=true",
        "run.first_tasks=FILE",
        "run.first_tasks=FILE/below",
        "run.first_tasks=store method.name=test_preflight:SharesTooMuch",
        "train.compile=true",
        "data.name=nothing",
        "data.name=folder",
        'data={name="folder",root="$NOT_SET_ANYWHERE"}',
        "scenario.increments=[1,4]",
        "scenario.increments=[2,2]",
        'scenario.order=["polyp"]',
        "scenario.folds=1",
        "scenario.split=nothing.csv",
        "scenario.split_by=given",
        "run.evaluate=validation",
        "network.width=5",
        'network.freeze=["nothing"]',
        "network.weights=nothing.pth",
        "memory.total=2",
        "memory.select=nothing",
        "memory.kernels=0",
        "method.name=nothing",
        "method.beta=1.0",
        "method.native=1",
        "train.milestones=[9]",
        "train.milestones=[0.5,9]",
        "train.epochs=0",
        "train.accumulate=2 method.name=test_preflight:ComparesLater",
        'train.precision=bf16 network={backbone="small_networks:WrongIn16Bits"}',
    ],
)
def test_check_refuses_what_run_refuses_before_training_with_the_same_line(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("lightning_fabric.accelerators.cuda.num_cuda_devices", lambda: 0)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    monkeypatch.setattr(nn.Module, "compile", no_compiler)
    (tmp_path / "FILE").write_text("")
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(TINY))
    monkeypatch.chdir(tmp_path)
    changes = [word for one in change.split() for word in ("--set", one)]
    refused = []
    for command in (["check", "tiny.toml"], ["run", "tiny.toml", "-o", "out"]):
        with pytest.raises(EndocilError) as caught:
            typed(*command, *changes)
        refused.append(str(caught.value))
    assert refused[0] == refused[1]
    assert "\n" not in refused[0]
    if "compile" not in change:  # a network is translated when it is first called: the run has begun by then
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["NearestMean", "TrainedOnce"])
def test_a_method_without_phases_is_checked_run_resumed_and_reported(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(
        tomli_w.dumps({**TINY, "method": {"name": f"test_preflight:{method}"}, "memory": {}})
    )
    told = typed("check", "own.toml")
    assert "later tasks: nothing is trained" in told
    assert ("no time for training" in told) == (method == "NearestMean")
    assert "ready to run" in told
    assert method in typed("run", "own.toml", "-o", "whole")

    class StoppedError(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "task" and record["task"] == 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        endocil.run("own.toml", "stopped", show=stop)
    assert "task 2" in typed("watch", "stopped", "--once")
    if method == "NearestMean":
        assert "33%" in typed("watch", ".", "--once")  # one of three tasks
    typed("resume", "stopped")
    assert run_files(tmp_path / "stopped") == run_files(tmp_path / "whole")
    typed("report", "whole", "stopped", "-o", "page.html")
    assert method in (tmp_path / "page.html").read_text("utf-8")
    assert "added" in typed("ledger", "add", "whole", "--ledger", "ledger")
    assert method in typed("ledger", "table", "--ledger", "ledger", "--which", "costs")


@pytest.mark.parametrize("preset", ["smoke", "demo"])
@pytest.mark.parametrize("epochs", [1, 2, 10])
def test_a_preset_can_be_run_with_any_number_of_epochs(preset: str, epochs: int) -> None:
    assert preflight(assemble(load_settings(preset, [f"train.epochs={epochs}"]))).problems == ()


def test_milestones_of_a_method_without_phases_are_nobodys_business(tmp_path: Path) -> None:
    changes = ["method.name=test_preflight:NearestMean", "train.milestones=[9]"]
    assert preflight(assemble(load_settings(TINY, changes))).problems == ()
    (told,) = preflight(assemble(load_settings(TINY, changes[1:]))).problems
    assert "train.milestones [9] all lie at or beyond the 2 epochs" in told
    assert "train.milestones=[0.5,0.7]" in told
