"""The folder of a step that was stopped: what lies there of somebody else's is neither taken nor removed."""

import json
from pathlib import Path

import pytest

from endocil import EndocilError
from endocil.io.files import LOCK_FILE, temporary_beside
from endocil.learning.checkpoint import COMPARED, EVENTS, FILE, FINGERPRINT, WorkFolder

STEP = dict.fromkeys(COMPARED, "x")


def stopped(path: Path) -> None:
    """A step that was killed behind its first checkpoint."""
    with WorkFolder(path).open(STEP):
        for file in (path / FILE, path / EVENTS, temporary_beside(path / FILE)):
            file.write_bytes(b"")


@pytest.mark.parametrize("name", [".git", ".cache/x", "mine.txt", LOCK_FILE, FINGERPRINT, FILE, EVENTS, ".mine.tmp"])
def test_a_folder_with_other_files_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    file = tmp_path / "work" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    with (
        pytest.raises(EndocilError, match="holds other files; choose another folder with --work"),
        WorkFolder(tmp_path / "work").open(STEP),
    ):
        pass
    assert file.read_text() == "{}"
    assert [path for path in (tmp_path / "work").rglob("*") if path.is_file()] == [file]


def test_files_that_come_beside_a_step_stay(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work")
    with work.open(STEP):
        (work.path / "mine.txt").write_text("mine")
    work.remove()
    assert [file.name for file in work.path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("refused", [False, True])
def test_an_empty_folder_that_was_given_is_empty_again(refused: bool, tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work")
    work.path.mkdir()
    if refused:
        with pytest.raises(EndocilError, match="no"), work.open(STEP):
            raise EndocilError("no")
    else:
        stopped(work.path)
        with work.open(STEP):
            pass
        work.remove()
    assert list(work.path.iterdir()) == []


def test_a_folder_of_our_own_goes_also_when_it_was_stopped_in_between(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work")
    stopped(work.path)
    assert json.loads((work.path / FINGERPRINT).read_text())["parent"] == "x"
    with work.open(STEP):
        pass
    work.remove()
    assert not work.path.exists()
