"""What a killed process leaves is taken up or removed by the next command; nothing of others is touched or followed."""

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import TINY, run_files
from PIL import Image

from endocil.errors import EndocilError
from endocil.io.files import temporary_beside
from endocil.learning import checkpoint, first_task
from endocil.learning.checkpoint import FILE
from endocil.release.learn import learn, work_folder_of
from endocil.reports.publish import OLD, publish, put_back
from endocil.runs import folder as run_folder
from endocil.runs.folder import RunFolder, new_folder
from endocil.runs.records import read_runs
from endocil.runs.run import resume, run
from endocil.settings.settings import load_settings


class Killed(BaseException):
    """Stands for SIGKILL: nothing that tidies up may run after it, so the tests put the leftovers there themselves."""


@pytest.mark.parametrize("file", ["split.csv", "leaks.json", "data.json", "environment.json", "settings.toml"])
def test_a_run_killed_while_its_folder_was_made_is_started_again_by_the_same_command(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def killed(writer: Any) -> Any:
        def write(path: Path, *content: Any) -> None:
            if path.name == file:
                temporary_beside(path).write_text("half")
                raise Killed
            writer(path, *content)

        return write

    with monkeypatch.context() as patch:
        for name in ("write_csv", "write_json", "write_atomically"):
            patch.setattr(run_folder, name, killed(getattr(run_folder, name)))
        with pytest.raises(Killed):
            run(TINY, folder)
    assert any(folder.glob(".*.tmp"))
    with pytest.raises(EndocilError, match=r"stopped before it began; start it with 'endocil run'"):
        resume(folder)
    settings = load_settings(TINY)
    monkeypatch.chdir(tmp_path)
    default = Path("runs", "endocil-seed0")
    shutil.copytree(folder, default)
    assert new_folder(settings) == default  # not a second folder beside the one that never began
    with RunFolder(default).locked():
        assert new_folder(settings) == Path("runs", "endocil-seed0-2")
    if file == "settings.toml":
        run(TINY, folder)
        assert not list(folder.rglob(".*.tmp"))


def test_a_users_own_files_are_never_taken_for_those_of_a_run_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text("mine")
    with pytest.raises(EndocilError, match="is not empty"):
        run(TINY, tmp_path)
    assert (tmp_path / "split.csv").read_text() == "mine"


def test_a_run_killed_while_it_kept_its_first_task_for_others_removes_the_rest_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint stands behind the phase already: nobody would write into that folder again."""
    shared = tmp_path / "first-tasks"
    settings = {**TINY, "method": {"name": "icarl"}, "run": {**TINY["run"], "first_tasks": str(shared)}}

    def killed(path: Path, *content: Any) -> None:
        temporary_beside(path).write_bytes(b"half")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(first_task, "write_atomically", killed)
        with pytest.raises(Killed):
            run(settings, tmp_path / "run")
    assert any(shared.glob(".*.tmp"))
    resume(tmp_path / "run")
    assert not any(shared.glob(".*.tmp"))


def test_a_run_killed_when_it_was_finished_keeps_no_pictures_beside_its_model(tiny_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    left = [folder / FILE, folder / "exemplars-2.safetensors", temporary_beside(folder / "predictions" / "task-0.csv")]
    for path in left:
        path.write_text("left")
    resume(folder)
    assert not [path for path in left if path.exists()]
    assert run_files(folder) == run_files(tiny_run)


def test_a_run_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run(TINY, tmp_path / "run")
    finally:
        os.umask(before)
    entries = [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries if path.is_file()} == {0o600}


def test_a_link_in_somebodys_run_is_refused_and_nothing_is_written_through_it(tiny_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    (folder / "metrics.json").unlink()
    (tmp_path / "mine").write_text("mine")
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(
        EndocilError, match=r"events\.jsonl is a link to .*mine: a run writes into its own folder alone"
    ):
        resume(folder)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.fixture(scope="module")
def new_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "images"
    (folder / "swelling").mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(8):
        pixels = random.integers(0, 256, (24, 24, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "swelling" / f"{number}.png")
    return folder


def test_a_step_killed_after_its_model_was_written_leaves_no_pictures(
    tiny_model: Path, new_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "next.endocil"

    def killed(folder: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.WorkFolder, "remove", killed)
        with pytest.raises(Killed):
            learn(tiny_model, new_images, output)
    written, work = output.read_bytes(), work_folder_of(output)
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert any(work.glob("exemplars-*.safetensors"))
    learn(tiny_model, new_images, output)  # the same command again
    assert output.read_bytes() == written
    assert not work.exists()
    with pytest.raises(EndocilError, match="exists already"):
        learn(tiny_model, new_images, output)


@pytest.mark.parametrize("left", [("learning.json", ".lock"), ("learning.json",), ()])
def test_a_step_killed_while_it_removed_its_folder_leaves_none_behind(
    left: tuple[str, ...], tiny_model: Path, new_images: Path, tmp_path: Path
) -> None:
    output = tmp_path / "next.endocil"
    shutil.copy(tiny_model, output)
    work = checkpoint.WorkFolder(work_folder_of(output))
    with work.open(dict.fromkeys(checkpoint.COMPARED, "x")):
        with pytest.raises(EndocilError, match="exists already"):  # another process that is learning there keeps it
            learn(tiny_model, new_images, output)
        assert work.path.exists()
    for path in work.path.iterdir():
        if path.name not in left:
            path.unlink()
    with pytest.raises(EndocilError, match="exists already"):
        learn(tiny_model, new_images, output)
    assert os.listdir(tmp_path) == ["next.endocil"]


def test_a_step_killed_when_its_folder_was_new_leaves_none_behind(
    tiny_model: Path, new_images: Path, tmp_path: Path
) -> None:
    output = tmp_path / "next.endocil"
    work_folder_of(output).mkdir()  # killed before its first record
    learn(tiny_model, new_images, output)
    assert os.listdir(tmp_path) == ["next.endocil"]


def test_another_file_in_the_place_of_a_step_that_is_going_on_is_not_overwritten(
    tiny_model: Path, new_images: Path, tmp_path: Path
) -> None:
    output = tmp_path / "next.endocil"

    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "selection":
            raise Killed

    with pytest.raises(Killed):
        learn(tiny_model, new_images, output, show=stop)
    shutil.copy(tiny_model, output)
    with pytest.raises(EndocilError, match="exists already"):
        learn(tiny_model, new_images, output)
    assert output.read_bytes() == tiny_model.read_bytes()


def test_a_folder_put_aside_by_a_publish_that_was_killed_is_put_back_or_removed(tiny_run: Path, tmp_path: Path) -> None:
    records, output = read_runs([tiny_run]), tmp_path / "published"
    publish(records, output, figures=False)
    aside = temporary_beside(output).with_suffix(OLD)
    output.rename(aside)  # killed between two renames
    unfinished = temporary_beside(output)
    unfinished.mkdir()
    put_back(output)
    assert (output / "index.md").is_file()
    shutil.copytree(output, aside)  # killed after them
    publish(records, output, figures=False)
    assert os.listdir(tmp_path) == ["published"]
