"""The commands as a newcomer types them: results, help, and one clear line for everything that goes wrong."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import typer
from commands import Done, command, endocil, start
from pictures import TINY
from PIL import Image

from endocil import Settings, load_settings
from endocil.cli.main import _application
from endocil.learning.checkpoint import FILE as CHECKPOINT

TRACEBACK = "Traceback"


def refused(result: Done, *words: str) -> None:
    """One line on stderr that holds these words, and a non-zero exit."""
    assert result.returncode != 0
    assert TRACEBACK not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("endocil: ")
    for word in words:
        assert word in result.stderr


def in_a_process(*arguments: object, **options: Any) -> Done:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=180, **options)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of eight small pictures."""
    random = np.random.default_rng(0)
    for label, name in enumerate(("cecum", "polyp", "ulcer")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(8):
            pixels = random.integers(40 * label, 40 * label + 90, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{i}.png")
    return tmp_path / "data"


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return write_settings(tmp_path / "tiny.toml", TINY)


def write_settings(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(values))
    return path


def own(root: Path, **scenario: object) -> dict[str, Any]:
    return {**TINY, "data": {"name": "folder", "root": str(root), "size": 16}, "scenario": scenario or {"tasks": 1}}


def test_a_run_prints_a_table_and_leaves_everything_behind(settings: Path, tmp_path: Path) -> None:
    done = endocil("run", settings, "-o", tmp_path / "run", "--set", "run.keep=true")
    assert done.returncode == 0, done.stderr
    assert "EndoCIL" in done.stdout
    assert "kept 4 of" in done.stdout
    assert "bound" in done.stdout
    assert "left" in done.stdout
    kept = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    per_task = {f"{room}/task-{t}.csv" for room in ("predictions", "memory") for t in range(3)}
    weights = {f"weights/task-{t}.safetensors" for t in range(3)} | {"features/task-0.safetensors"}
    single = {
        "settings.toml",
        "environment.json",
        "split.csv",
        "leaks.json",
        "data.json",
        "events.jsonl",
        "metrics.json",
        "report.html",
    }
    assert kept == per_task | weights | single | {"model.endocil", ".lock"}
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {"acc_last", "f1_last", "acc_avg", "f1_avg", "af", "af_printed", "forgetting_max"} <= set(metrics["softmax"])
    assert metrics["nearest_mean"] is not None
    again = endocil("resume", tmp_path / "run")
    assert again.returncode == 0
    assert "is finished" in again.stdout


def test_a_command_loads_its_settings_once(settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[object] = []

    def counting(source: Any, overrides: Sequence[str] = ()) -> Settings:
        sources.append(source)
        return load_settings(source, overrides)

    for module in ("settings.settings", "runs.run", "runs.folder", "runs.records", "runs.sweep.plan"):
        monkeypatch.setattr(f"endocil.{module}.load_settings", counting)
    (tmp_path / "sweep.toml").write_text(f'settings = "{settings.name}"\n')
    for words in (
        ("run", settings, "-o", tmp_path / "run"),
        ("resume", tmp_path / "run"),
        ("check", settings),
        ("sweep", tmp_path / "sweep.toml", "-o", tmp_path / "sweep"),
    ):
        sources.clear()
        done = endocil(*words)
        assert done.returncode == 0, done.stderr
        assert len(sources) == 1, words


def test_what_a_run_leaves_for_evaluation_holds_no_time_host_or_path(settings: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert endocil("run", settings, "-o", tmp_path / name).returncode == 0
    for pattern in ("metrics.json", "predictions/*", "memory/*", "split.csv", "settings.toml"):
        for path in (tmp_path / "one").glob(pattern):
            assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_score_repeats_the_metrics_of_a_run(settings: Path, tmp_path: Path) -> None:
    assert endocil("run", settings, "-o", tmp_path / "run").returncode == 0
    files = sorted((tmp_path / "run" / "predictions").iterdir())
    scored = endocil("score", tmp_path / "run", "--json")
    assert json.loads(scored.stdout) == json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "acc_last" in endocil("score", *files).stdout


def test_help_answers_without_the_heavy_libraries(tmp_path: Path) -> None:
    code = "import sys, endocil.cli.main; print('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    for words in (
        [],
        ["run"],
        ["demo"],
        ["check"],
        ["resume"],
        ["methods"],
        ["score"],
        ["data", "synth"],
        ["ledger", "add"],
    ):
        shown = endocil(*words, "--help")
        assert shown.returncode == 0
        assert "Usage" in shown.stdout


def test_no_help_text_has_square_brackets_which_help_would_leave_out() -> None:
    """They are markup to rich: of "endocil[pretrained]" help showed "endocil"."""
    program: Any = typer.main.get_command(_application())
    inner = [member for one in program.commands.values() for member in getattr(one, "commands", {}).values()]
    commands = [*program.commands.values(), *inner]
    texts = [text for one in commands for text in (one.help, *(option.help for option in one.params)) if text]
    assert len(texts) > 100
    assert [text for text in texts if "[" in text] == []


def test_methods_are_listed_with_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    shown = endocil("methods").stdout
    for word in ("keys of [method]", "finetune", "icarl", "endocil", "joint", "beta = 0.96", "temperature = 2.0"):
        assert word in shown


def test_check_reports_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    file = write_settings(tmp_path / "own.toml", own(folder, increments=[2, 1]))
    shown = endocil("check", file, "--set", "memory.per_class=7", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for word in (
        "24 images in 3 classes",
        "task 2: ulcer 6+2",
        "smaller than the 7 exemplars",
        "phase 'train', ",
        " s of training at ",
        "MB of memory",
        "ready to run",
    ):
        assert word in shown.stdout
    assert not (tmp_path / "runs").exists()


def test_own_images_run_from_a_folder(folder: Path, tmp_path: Path) -> None:
    file = write_settings(tmp_path / "own.toml", own(folder, increments=[2, 1]))
    assert endocil("run", file, "-o", tmp_path / "run").returncode == 0
    assert "polyp" in (tmp_path / "run" / "split.csv").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.epoch=3", ("unknown train key 'epoch'", "known:")),
        ("method.temprature=3", ("unknown method key 'temprature'", "temperature")),
        ("data.rot=x", ("unknown data key 'rot'", "root")),
        ("data.root=/nowhere/at/all", ("/nowhere/at/all",)),
        ("data.root=$NOT_SET_ANYWHERE", ("NOT_SET_ANYWHERE", "not set")),
        ("scenario.increments=[1, 2]", ("first task has one class", "scenario.increments")),
        ("scenario.increments=[2, 2]", ("add up to 4, but 3 classes",)),
        ("method.name=nothing", ("unknown method.name 'nothing'", "icarl")),
        ("train.milestones=[9]", ("never fall",)),
        ("network.width=5", ("multiple of 8",)),
        ("network.width=wide", ("network.width: input should be a valid integer",)),
        ("method.beta=1.0", ("method.beta is 1.0",)),
        ("method.beta=much", ("method.beta: input should be a valid number",)),
        ("method.temperature=0", ("method.temperature is 0",)),
        ("method.name=json:dumps", ("json:dumps", "subclass of endocil.Method")),
        ("memory.kernels=0", ("memory.select 'mmd'", "kernels")),
        ("run.accelerator=abacus", ("run.accelerator 'abacus'",)),
        ("data.root=5", ("data.root: input should be a valid string",)),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_before_anything_is_written(
    change: str, words: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    file = write_settings(tmp_path / "own.toml", own(folder, increments=[2, 1]))
    refused(endocil("run", file, "-o", tmp_path / "run", "--set", change), *words)
    assert not (tmp_path / "run").exists()


def test_an_unreadable_image_is_refused_with_its_name_and_left_out_on_request(folder: Path, tmp_path: Path) -> None:
    (folder / "polyp" / "3.png").write_bytes(b"not a picture")
    file = write_settings(tmp_path / "own.toml", own(folder))
    refused(endocil("run", file, "-o", tmp_path / "run"), "polyp/3.png", "data.skip_unreadable")
    assert not (tmp_path / "run").exists()
    done = endocil("run", file, "-o", tmp_path / "run", "--set", "data.skip_unreadable=true")
    assert done.returncode == 0, done.stderr
    assert "polyp/3.png" not in (tmp_path / "run" / "split.csv").read_text()
    assert "note: left out polyp/3.png" in done.stdout


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    file = write_settings(tmp_path / "own.toml", {**TINY, "data": {"name": "folder"}})
    refused(endocil("run", file, "-o", tmp_path / "run"), "data.root is not set", "--set data.root=VALUE")
    assert not (tmp_path / "run").exists()


def test_an_empty_class_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (folder / "erosion").mkdir()
    file = write_settings(tmp_path / "own.toml", own(folder))
    refused(endocil("run", file, "-o", tmp_path / "run"), "erosion")
    assert not (tmp_path / "run").exists()


def test_a_used_folder_and_a_wrong_resume_folder_are_refused(settings: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    refused(endocil("run", settings, "-o", tmp_path / "used"), "is not empty")
    refused(endocil("resume", tmp_path / "used"), "is not a run")
    refused(endocil("resume", tmp_path / "nothing"), "is not a run")
    refused(endocil("score", tmp_path / "nothing.csv"), "nothing.csv")
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["notes.txt"]


def test_a_full_disk_ends_in_one_line_and_a_run_that_can_go_on(settings: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the checkpoint does not fit."""

    def small_files_only() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))

    assert endocil("check", settings).returncode == 0  # fills the image cache
    failed = in_a_process("run", settings, "-o", tmp_path / "run", preexec_fn=small_files_only)
    refused(failed, "checkpoint.safetensors", "choose another folder")
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.endswith(".tmp")]
    resumed = endocil("resume", tmp_path / "run")
    assert resumed.returncode == 0, resumed.stderr


def a_process(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def a_group(pid: int) -> None:
    """As Slurm does, which signals every process of a step."""
    os.killpg(pid, signal.SIGTERM)


def first_process_of_a_container(pid: int) -> None:
    """As `docker stop` does: the child of unshare is process 1 in its namespace."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)


def a_group_before_its_time_is_over(pid: int) -> None:
    """As Slurm does with --signal=USR1@120."""
    os.killpg(pid, signal.SIGUSR1)


def ctrl_c(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (ctrl_c, signal.SIGINT),
        (a_process, signal.SIGTERM),
        (a_group, signal.SIGTERM),
        (a_group_before_its_time_is_over, signal.SIGUSR1),
        (first_process_of_a_container, signal.SIGTERM),
    ],
)
def test_a_run_that_is_told_to_stop_writes_a_checkpoint_at_once_and_says_how_to_go_on(
    send: Callable[[int], None], number: int, settings: Path, tmp_path: Path
) -> None:
    """Slurm and Docker send SIGTERM or SIGUSR1; by the clock the first checkpoint would come after thirty seconds."""
    container = ("unshare", "--pid", "--fork", "--mount-proc") if send is first_process_of_a_container else ()
    if container and subprocess.run([*container, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of processes here")
    typed = ("run", settings, "-o", tmp_path / "run", "--set", "train.epochs=4000")
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = start(*typed, before=container, start_new_session=True, **pipes)
    journal = tmp_path / "run" / "events.jsonl"
    while not journal.exists() or '"epoch"' not in journal.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    send(process.pid)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"endocil resume {tmp_path / 'run'}" in errors
    assert TRACEBACK not in errors
    assert (tmp_path / "run" / CHECKPOINT).exists()


def test_a_run_of_a_sweep_that_is_told_to_stop_twice_writes_its_checkpoint(settings: Path, tmp_path: Path) -> None:
    """Slurm signals a sweep and its runs; then the sweep, too, tells its runs to stop: their input ends."""
    typed = ["run", settings, "-o", tmp_path / "run", "--set", "train.epochs=4000", "--set", "train.batch_size=16"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "endocil.cli.sweep_run", *map(str, typed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    journal = tmp_path / "run" / "events.jsonl"
    while not journal.exists() or '"epoch"' not in journal.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)  # which closes its input
    assert f"endocil resume {tmp_path / 'run'}" in errors
    assert (tmp_path / "run" / CHECKPOINT).exists()


def test_synthetic_images_can_be_written_and_learned_as_own_images(tmp_path: Path) -> None:
    done = endocil("data", "synth", tmp_path / "data", "--images", "60", "--size", "32")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "data").rglob("*.png"))) == 60
    refused(endocil("data", "synth", tmp_path / "data", "--images", "60"), "data")


@pytest.mark.skipif(shutil.which("git") is None, reason="environment.json names the commit where git is there")
def test_the_environment_names_versions_and_no_machine(settings: Path, tmp_path: Path) -> None:
    assert endocil("run", settings, "-o", tmp_path / "run").returncode == 0
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert {"python", "torch", "endocil", "numpy", "threads", "commit"} <= set(recorded)
    assert os.uname().nodename not in json.dumps(recorded)


def test_a_run_goes_into_the_ledger_once_and_its_tables_into_a_page(settings: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "results"
    first = endocil("run", settings, "-o", tmp_path / "run", "--ledger", ledger)
    assert "added" in first.stdout, first.stderr
    again = endocil("run", settings, "-o", tmp_path / "again", "--ledger", ledger)
    assert again.returncode == 0
    assert "already in the ledger" in again.stdout
    assert not (tmp_path / "again").exists()
    assert "already in the ledger" in endocil("ledger", "add", tmp_path / "run", "--ledger", ledger).stdout
    changed = endocil("run", settings, "-o", tmp_path / "changed", "--ledger", ledger, "--set", "method.beta=0.5")
    assert "added" in changed.stdout, changed.stderr
    assert "EndoCIL (beta=0.5)" in endocil("ledger", "table", "--ledger", ledger).stdout
    own = endocil("ledger", "table", "--ledger", ledger, "--which", "methods").stdout
    assert "| EndoCIL |" in own
    assert "beta" not in own
    page = tmp_path / "page.md"
    page.write_text("<!-- ledger:runs -->\n<!-- /ledger -->\n<!-- ledger:ablation -->\n<!-- /ledger -->\n")
    refused(endocil("ledger", "insert", page, "--check", "--ledger", ledger), "out of date", "page.md")
    assert endocil("ledger", "insert", page, "--ledger", ledger).returncode == 0
    assert endocil("ledger", "insert", page, "--check", "--ledger", ledger).returncode == 0
    assert "EndoCIL (beta=0.96)" in page.read_text()


def test_the_version_and_a_contact_sheet(tmp_path: Path) -> None:
    assert in_a_process("--version").stdout.startswith("endocil 0.")
    done = endocil("data", "sheet", tmp_path / "sheet.png", "--size", "16", "--per-class", "3")
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "sheet.png").width > 48
    refused(endocil("data", "sheet", tmp_path / "sheet.txt"), ".jpg or .png")


def test_a_method_of_ones_own_lies_in_the_folder_one_works_in(settings: Path, tmp_path: Path) -> None:
    (tmp_path / "lying_here.py").write_text(
        "from endocil.methods.finetune import Finetune\n\n\nclass Mine(Finetune):\n    '''My own.'''\n"
    )
    done = endocil("run", settings, "-o", "run", "--set", "method.name=lying_here:Mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Mine" in done.stdout


def test_a_name_that_no_model_could_hold_is_refused_before_training(folder: Path, tmp_path: Path) -> None:
    (folder / "polyp" / "3.png").rename(folder / "polyp" / "3\r.png")
    file = write_settings(tmp_path / "own.toml", own(folder))
    refused(endocil("run", file, "-o", tmp_path / "run"), "U+000D", "polyp/3")
    assert not (tmp_path / "run").exists()
