"""Predictions of other toolboxes as runs: both formats, all commands that compare, unknown budgets, hostile files."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Done
from commands import endocil as command
from numpy.lib import format as npy

from endocil.errors import EndocilError
from endocil.model.prediction_files import read_run_predictions
from endocil.runs.experiments import groups
from endocil.runs.import_predictions import Origin, import_predictions, read_npz
from endocil.runs.records import read_run, read_runs

CLASSES = ("cecum", "polyp", "ulcer", "z-line")
EACH, TASKS = 12, (2, 4)  # test images of a class; classes known after each task
ORIGIN = Origin(method="iCaRL", toolbox="PyCIL")


def scores(seen: int, seed: int = 0, skill: float = 1.5) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names, labels and logits of the test images after a task."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(seen), EACH)
    images = [f"{CLASSES[label]}/{i % EACH}.jpg" for i, label in enumerate(labels.tolist())]
    logits = random.normal(size=(len(labels), seen)) + skill * np.eye(seen)[labels]
    return images, labels, logits.astype(np.float32)


def write_npz(folder: Path, *, alone: bool = False, **options: Any) -> list[Path]:
    """A file for each task; `alone`: predicted classes without scores."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for task, seen in enumerate(TASKS):
        images, labels, logits = scores(seen, **options)
        answers: dict[str, Any] = {"predicted": logits.argmax(1)} if alone else {"score": logits, "distance": -logits}
        file = folder / f"task-{task}.npz"
        np.savez(file, image=images, label=labels, classes=CLASSES[:seen], **answers)
        files.append(file)
    return files


def write_one_csv(file: Path, columns: str = "", cells: str = "") -> Path:
    """One file with a column task; classes that are not yet learned have empty scores."""
    lines = [f"task,image,label{columns}," + ",".join(f"score:{name}" for name in CLASSES)]
    for task, seen in enumerate(TASKS):
        for image, label, row in zip(*scores(seen), strict=True):
            values = [*map(str, row.tolist()), *[""] * (len(CLASSES) - seen)]
            lines.append(",".join([str(task), image, CLASSES[label], *([cells] if cells else []), *values]))
    file.write_text("\n".join(lines) + "\n")
    return file


def imported(files: Sequence[Path], folder: Path, *options: object) -> Done:
    return command("import", *files, "-o", folder, *options)


def test_arrays_and_one_list_with_a_column_of_tasks_give_the_same_run(tmp_path: Path) -> None:
    import_predictions(write_npz(tmp_path / "npz"), tmp_path / "a", ORIGIN)
    done = imported([write_one_csv(tmp_path / "all.csv", ",method,seed", "iCaRL,3")], tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert "4 classes in tasks of 2+2, 48 test images" in done.stdout
    assert "not ranked with others unless --rank-anyway: --epochs, --size, --width, --exemplars" in done.stdout
    a, b = (read_run(tmp_path / name) for name in "ab")
    assert b.settings["seed"] == 3
    assert a.metrics["softmax"] == b.metrics["softmax"]
    assert a.metrics["nearest_mean"] is not None
    logits = scores(4)[2]
    [_, last] = read_run_predictions(sorted((tmp_path / "a" / "predictions").iterdir()))
    assert np.array_equal(last.scores, logits)
    assert last.classes == CLASSES
    assert a.metrics["softmax"]["acc_last"] == pytest.approx(100 * (logits.argmax(1) == scores(4)[1]).mean())
    assert json.loads((tmp_path / "a" / "imported.json").read_text())["files"].keys() == {"task-0.npz", "task-1.npz"}


def test_labels_that_are_numbers_get_the_names_of_a_list(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    lines = ["label,predicted", *(f"{label},{label % 2}" for label in scores(2)[1].tolist())]
    (tmp_path / "task-0.csv").write_text("\n".join(lines))
    done = imported([tmp_path / "task-0.csv"], tmp_path / "a", "--method", "x", "--classes", tmp_path / "names.txt")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "a")
    assert run.metrics["classes"] == ["cecum", "polyp"]
    assert "rows at the same place are taken for the same image" in " ".join(run.notes)


def test_an_imported_run_enters_every_command_that_compares_runs(tmp_path: Path) -> None:
    import_predictions(write_npz(tmp_path / "1", skill=4.0), tmp_path / "ours", Origin(method="WA", toolbox="Mammoth"))
    import_predictions(write_npz(tmp_path / "2", alone=True, seed=1), tmp_path / "theirs", ORIGIN)
    both = (tmp_path / "ours", tmp_path / "theirs")
    table = command("table", *both, "--metric", "acc_last", "--metric", "top5_last")
    assert table.returncode == 0, table.stderr
    assert "iCaRL (PyCIL): predicted classes without scores, so no top5_last" in " ".join(table.stdout.split())
    assert "the budget of some runs is not known (epochs, pixels, width, exemplars)" in table.stdout
    assert "*" not in table.stdout  # nothing is ranked
    assert "*" in command("table", *both, "--rank-anyway").stdout
    versus = command("versus", both[1], "--against", both[0])  # a folder that was not among the runs
    assert versus.returncode == 0, versus.stderr
    assert "Difference from WA (Mammoth)" in versus.stdout
    assert "worse" in versus.stdout
    report = command("report", *both, "-o", tmp_path / "page.html")
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "page.html").read_text()
    assert "The budget of some runs is not known (epochs, pixels, width, exemplars)." in page
    assert "ranked only against those of the same budget" in page
    assert "0 training" not in page
    published = command("publish", *both, "-o", tmp_path / "published", "--no-figures")
    assert published.returncode == 0, published.stderr
    assert (tmp_path / "published" / "index.md").is_file()


def test_figures_show_what_predictions_have_and_say_what_they_lack(tmp_path: Path) -> None:
    import_predictions(write_npz(tmp_path / "1", alone=True), tmp_path / "run", ORIGIN)
    names = ("accuracy", "confusion", "forgetting", "recall", "calibration", "growth", "weight-norms", "gamma")
    chosen = [part for name in names for part in ("--only", name)]
    done = command("figures", tmp_path / "run", "-o", tmp_path / "f", "--format", "png", "--dpi", "20", *chosen)
    assert done.returncode == 0, done.stderr
    drawn = {file.stem.split("-")[0].split(" ")[0] for file in (tmp_path / "f").iterdir()}
    assert {"accuracy", "confusion", "forgetting", "recall"} <= drawn
    assert not {"calibration", "growth", "weight", "gamma"} & drawn
    assert done.stdout.count("not drawn") == 4


def test_budgets_that_are_known_are_compared_and_unknown_ones_never_count_as_the_same(tmp_path: Path) -> None:
    known = {"data": {"size": 64}, "network": {"width": 64}, "memory": {"per_class": 0}, "train": {"epochs": 3}}
    for name, budget in (("a", known), ("b", known), ("c", {}), ("d", {})):
        origin = Origin(method=name, toolbox="PyCIL", budget=budget)
        import_predictions(write_npz(tmp_path / "npz"), tmp_path / name, origin)

    def starred(*names: str) -> bool:
        return "*" in command("table", *(tmp_path / name for name in names), "--no-intervals").stdout

    assert starred("a", "b")
    assert not starred("a", "c")
    assert not starred("c", "d")


def test_seeds_of_an_imported_method_are_one_experiment(tmp_path: Path) -> None:
    for seed in (0, 1):
        origin = Origin(method="iCaRL", toolbox="PyCIL", seed=seed)
        import_predictions(write_npz(tmp_path / "npz", seed=seed), tmp_path / f"s{seed}", origin)
    [group] = groups(read_runs([tmp_path / "s0", tmp_path / "s1"]))
    assert (group.label, group.seeds) == ("iCaRL (PyCIL)", (0, 1))


def test_like_takes_data_split_groups_and_sources_of_a_run_on_the_same_images(tmp_path: Path) -> None:
    rows = write_one_csv(tmp_path / "all.csv", ",source,group", "scope,patient")
    import_predictions([rows], tmp_path / "first", Origin(method="ours", data="hyper-kvasir"))
    import_predictions(write_npz(tmp_path / "npz"), tmp_path / "second", ORIGIN, like=tmp_path / "first")
    second = read_run(tmp_path / "second")
    assert second.settings["data"]["name"] == "hyper-kvasir"
    split = (tmp_path / "second" / "split.csv").read_text()
    assert split.count("test,patient,scope") == len(CLASSES) * EACH
    other = import_predictions(write_npz(tmp_path / "npz")[:1], tmp_path / "third", ORIGIN)
    assert other["task_sizes"] == [2]
    with pytest.raises(EndocilError, match="48 images and these predictions are of 24, 24 in common"):
        import_predictions(write_npz(tmp_path / "npz")[:1], tmp_path / "x", ORIGIN, like=tmp_path / "first")


@pytest.mark.parametrize(
    "words", [["resume"], ["predict", "-o", "x.csv"], ["ledger", "add"], ["bundle", "-o", "x.endocil"]]
)
def test_commands_that_need_a_model_or_settings_refuse_it_in_one_line(words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    import_predictions(write_npz(tmp_path / "npz"), run, ORIGIN)
    at = 2 if words[0] == "ledger" else 1
    images = [tmp_path] if words[0] == "predict" else []
    done = command(*words[:at], run, *images, *words[at:], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "import" in done.stderr


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("ran",))


def bomb(shape: tuple[int, ...], dtype: str = "<f4", content: bytes = b"") -> bytes:
    """A member of an .npz file whose header claims this shape."""
    head = io.BytesIO()
    npy.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
    return head.getvalue() + content


def test_hostile_arrays_are_refused_before_memory_is_taken_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "task-0.npz"
    members = {
        "no objects": bomb((1,), "|O", pickle.dumps([Evil()])),
        "claims 4,000,000,000,000 bytes and holds 4": bomb((10**12,), content=b"1234"),
        "cannot be read as .npz": b"no array",
        "expected numbers or text": bomb((1,), "|V4", b"1234"),
    }
    for message, content in members.items():
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("label.npy", content)
        with pytest.raises(EndocilError, match=message) as error:
            import_predictions([file], tmp_path / "run", ORIGIN)
        assert "\n" not in str(error.value)
    file.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(EndocilError, match=r"cannot be read as \.npz"):
        read_npz(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(EndocilError, match="a pipe, a socket or a device"):
        read_npz(file)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label\npolyp\n", "score columns, or else `predicted`"),
        ("label,predicted\npolyp,ulcer\n", "column predicted: expected one of polyp; got 'ulcer'"),
        ("label,score:polyp\npolyp,nan\n", "expected a finite number"),
        ("task,label,predicted\n-1,polyp,polyp\n", "whole numbers from 0 on; got '-1'"),
        ("image,label,predicted\na,polyp,polyp\na,polyp,polyp\n", "an image is there twice"),
        ("method,label,predicted\na,polyp,polyp\nb,polyp,polyp\n", "column method has 2 values"),
        ("method,label,predicted\nfoster,polyp,polyp\n", "--method is 'iCaRL', but the column method says 'foster'"),
        ("seed,label,predicted\n-3,polyp,polyp\n", "column seed: expected a whole number"),
        ("task,image,label,predicted\n0,a,x,x\n1,b,x,x\n1,c,y,y\n", "task 0: expected the test images of the last"),
        ("task,image,label,predicted\n0,a,x,x\n1,b,y,y\n", "test images of all classes seen so far"),
        ("\0\0", "expected"),
    ],
)
def test_lists_that_do_not_fit_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(EndocilError, match=message) as error:
        import_predictions([tmp_path / "p.csv"], tmp_path / "run", ORIGIN)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_arrays_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    labels = np.array([0, 1])
    for arrays, message in (
        ({"label": labels, "logits": labels}, "holds logits; expected arrays named image, label"),
        ({"score": np.eye(2)}, "holds no array label"),
        ({"label": labels, "score": np.eye(3)}, r"score: expected numbers of shape \(2, 3\)"),
        ({"label": labels, "predicted": np.array([0.5, 1])}, "predicted: expected 2 whole numbers or texts"),
        ({"label": np.array([0, 7]), "score": np.eye(2), "classes": ["a", "b"]}, "'7' is no number of the 2 classes"),
    ):
        np.savez(tmp_path / "p.npz", **arrays)
        with pytest.raises(EndocilError, match=message):
            import_predictions([tmp_path / "p.npz"], tmp_path / "run", ORIGIN)
    np.savez(tmp_path / "p.npz", label=labels, score=np.eye(2))
    with pytest.raises(EndocilError, match="whose predictions are these"):
        import_predictions([tmp_path / "p.npz"], tmp_path / "run", Origin())
    import_predictions([tmp_path / "p.npz"], tmp_path / "run", ORIGIN)
    with pytest.raises(EndocilError, match="holds a finished run"):
        import_predictions([tmp_path / "p.npz"], tmp_path / "run", ORIGIN)
