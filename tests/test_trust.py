"""Code from outside runs when somebody has asked for it, and at no other time."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from commands import command, endocil
from pictures import TINY
from tiny_runs import tiny

from endocil import registry
from endocil.cli.console import resumable
from endocil.data.readers import read_in_chunks
from endocil.errors import EndocilError
from endocil.model.file import model_path
from endocil.runs.folder import RunFolder
from endocil.runs.records import read_run
from endocil.runs.run import resume, run

METHOD = "from pathlib import Path\nfrom endocil.methods.icarl import ICaRL\nPath('executed').touch()\n"
METHOD += "class Thing(ICaRL):\n    pass\n"
SHADOWING = "raise SystemExit('a file of the working folder was imported')\n"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is trusted yet, and the module can be imported anew."""
    monkeypatch.setattr(registry, "_trusted", set())
    monkeypatch.setattr(registry, "_folders", [])
    yield
    sys.modules.pop("evil", None)


def rename(folder: Path, section: str, key: str, name: str) -> None:
    file = folder / "settings.toml"
    settings = tomllib.loads(file.read_text())
    settings[section][key] = name
    file.write_text(tomli_w.dumps(settings))


@pytest.fixture
def foreign(tmp_path: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's finished run that names evil.py of the folder one works in, for each kind of name."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(tiny_run, tmp_path / "r")
    for section, key in (("method", "name"), ("data", "name"), ("network", "backbone"), ("memory", "select")):
        rename(folder, section, key, "evil:Thing")
    (tmp_path / "evil.py").write_text(METHOD)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("table", "r"),
        ("table", "r", "--no-intervals"),
        ("report", "r", "-o", "page.html"),
        ("report", "r", "--gallery", "-o", "page.html"),
        ("publish", "r", "-o", "published"),
        ("figures", "r", "-o", "figures"),
        ("versus", "r", "r2"),
        ("ledger", "add", "r", "--ledger", "ledger"),
        ("watch", "r", "--once"),
        ("resume", "r"),
        ("bundle", "r", "-o", "model.endocil"),
        ("score", "r/predictions/task-0.csv"),
    ],
    ids=" ".join,
)
def test_reading_a_run_imports_nothing_that_it_names(arguments: tuple[str, ...], foreign: Path, tmp_path: Path) -> None:
    second = shutil.copytree(foreign, tmp_path / "r2")
    (second / "settings.toml").write_text((second / "settings.toml").read_text().replace("seed = 0", "seed = 1"))
    done = endocil(*arguments, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "executed").exists()
    if arguments[0] not in ("figures", "versus"):  # whether they show these runs is not the question here
        assert done.returncode == 0, done.stderr


def test_a_stopped_run_goes_on_with_code_from_outside_only_if_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(METHOD)

    def stop(record: dict[str, Any]) -> None:
        if record["event"] == "learned":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # the settings are one's own here: run asks for no trust
        run({**TINY, "method": {"name": "evil:Thing"}}, tmp_path / "run", show=stop)
    (tmp_path / "executed").unlink()
    sys.modules.pop("evil")
    registry._trusted.clear()
    with pytest.raises(EndocilError, match=r"method\.name is 'evil:Thing'.* only with --trust"):
        resume(tmp_path / "run")
    refused = endocil("resume", tmp_path / "run", cwd=tmp_path)
    assert refused.returncode == 1
    assert "--trust" in refused.stderr
    assert not (tmp_path / "executed").exists()
    shown = endocil("watch", "run", "--once", cwd=tmp_path)
    assert "continue with 'endocil resume run --trust'" in shown.stdout
    done = endocil("resume", tmp_path / "run", "--trust", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(("name", "command"), [("evil:Thing", "resume run --trust"), ("icarl", "resume run")])
def test_a_run_that_is_stopped_says_whether_it_needs_trust_to_go_on(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("run")
    folder.mkdir()
    (folder / "settings.toml").write_text(tomli_w.dumps(tiny() | {"method": {"name": name}}))
    with pytest.raises(SystemExit), resumable(folder):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.endswith(f"Continue with: endocil {command}\n")
    with pytest.raises(EndocilError, match=rf"continue with 'endocil {command}'"):
        RunFolder(folder).refuse_used()
    with pytest.raises(EndocilError, match=rf"finish it with `endocil {command}`"):
        read_run(folder)
    with pytest.raises(EndocilError, match=rf"continue with 'endocil {command}'"):
        model_path(folder)


@pytest.mark.parametrize("name", ["dill.py", "pynvml.py", "random.py"])
def test_a_file_beside_a_model_is_not_imported_in_its_place(name: str, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text(SHADOWING)
    script = "import sys; sys.argv = ['endocil', *sys.argv[1:]]; from endocil.cli.main import main; main()"
    for start in ([sys.executable, "-P", "-c", script, "memory", str(tiny_model)], command("memory", tiny_model)):
        if start[1] == "-m" and name == "random.py":  # Python itself imports it before a program can say anything
            continue
        done = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class Shade:
    """A reader of grey images, in processes."""

    in_processes = True

    def read(self, image_id: str, size: int) -> Any:
        import numpy as np

        return np.full((size, size, 3), int(image_id) % 256, np.uint8)


def test_a_file_of_the_working_folder_does_not_stand_in_for_pythons_own_in_a_reading_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pickle.py", "random.py"):
        (tmp_path / name).write_text(SHADOWING)
    monkeypatch.chdir(tmp_path)
    ids = [str(i) for i in range(300)]
    reader: Any = Shade()
    assert sum(len(pixels) for pixels, _ in read_in_chunks(reader, ids, 16, 2)) == 300


LOADER = """
import hashlib
import numpy as np
from endocil import ImageTable


class Reader:
    in_processes = True

    def read(self, image_id, size):
        return np.full((size, size, 3), int(image_id) % 256, np.uint8)

    def fingerprint(self, ids):
        return hashlib.sha256(" ".join(ids).encode()).hexdigest()


def load():
    n = 300
    labels = np.arange(n) % 3
    return ImageTable(
        ids=tuple(map(str, range(n))), labels=labels, classes=("a", "b", "c"), groups=("",) * n, sources=("",) * n,
        reader=Reader(),
    )
"""


def test_a_reader_of_ones_own_works_in_reading_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_images.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    registry.trust(["my_images:load"])
    load: Any = registry.resolve("data.name", "my_images:load", {})
    reader = load().reader
    assert str(tmp_path) not in sys.path
    assert sum(len(pixels) for pixels, _ in read_in_chunks(reader, [str(i) for i in range(300)], 16, 2)) == 300


@pytest.mark.skipif(sys.platform == "win32", reason="signals and locks of POSIX")
def test_a_sweep_takes_a_method_and_no_standard_module_from_the_working_folder(tmp_path: Path) -> None:
    file = tmp_path / "work" / "sweep.toml"
    file.parent.mkdir()
    file.write_text(tomli_w.dumps({"settings": "tiny.toml", "set": {"method.name": "evil:Thing"}}))
    (file.parent / "tiny.toml").write_text(tomli_w.dumps(TINY))
    (file.parent / "evil.py").write_text(METHOD)
    script = "import sys; sys.argv = ['endocil', *sys.argv[1:]]; from endocil.cli.main import main; main()"
    (file.parent / "random.py").write_text(SHADOWING)
    sweep = [sys.executable, "-P", "-c", script, "sweep", str(file), "-o", "out"]
    done = subprocess.run(sweep, cwd=file.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    (finished,) = file.parent.glob("out/*/metrics.json")
    assert "evil:Thing" in (finished.parent / "settings.toml").read_text()


def test_a_sweep_goes_on_with_its_own_code_and_with_no_other(tmp_path: Path) -> None:
    from endocil.runs.sweep.executors import Job, _command

    folder, settings = tmp_path / "run", tmp_path / "settings.toml"
    folder.mkdir()
    settings.write_text(tomli_w.dumps(tiny() | {"method": {"name": "evil:Thing"}}))
    job = Job("one", folder, settings, tmp_path / "log", tmp_path)
    for name, trusted in (("evil:Thing", True), ("other:Thing", False), ("icarl", False)):
        (folder / "settings.toml").write_text(tomli_w.dumps(tiny() | {"method": {"name": name}}))
        assert ("--trust" in _command(job)) == trusted
