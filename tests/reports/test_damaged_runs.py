"""A run folder with a damaged file is one clear line in a table, on a page and in `endocil watch`, no traceback."""

import json
import random
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from damaged_records import MISSING, replaced, watched

from endocil.errors import EndocilError
from endocil.reports.page import write_run_page
from endocil.reports.tables import comparison
from endocil.runs.paired_predictions import read_paired_predictions
from endocil.runs.records import read_run, read_runs

MakeRun = Callable[..., Path]
WRONG: tuple[Any, ...] = ("text", 7, -1.5, True, None, [], {}, ["x"], {"x": "y"}, 10**400, float("inf"), MISSING)
SAMPLES = 50  # of each file


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def read(file: Path) -> Any:
    text = file.read_text()
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)


def write(file: Path, value: Any) -> bool:
    """Whether the format can hold it at all."""
    if file.suffix == ".jsonl":
        lines = value if isinstance(value, list) else [value]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif file.suffix == ".toml":
        try:
            file.write_text(tomli_w.dumps(value))
        except (TypeError, AttributeError):
            return False
    else:
        file.write_text(json.dumps(value))
    return True


def reported(folder: Path) -> None:
    comparison(read_runs([folder])).text()
    write_run_page(read_run(folder), folder)


@pytest.mark.parametrize(
    "name", ["metrics.json", "environment.json", "events.jsonl", "leaks.json", "data.json", "settings.toml"]
)
def test_a_value_of_the_wrong_type_is_one_line(name: str, tiny_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    (folder / "model.endocil").unlink()  # reading it for every case takes long
    sound, chosen = read(folder / name), random.Random(name)
    everywhere = [*places(sound)]
    refused = 0
    for _ in range(SAMPLES):
        path, wrong = chosen.choice(everywhere), chosen.choice(WRONG)
        if (wrong is MISSING and not path) or not write(folder / name, replaced(sound, path, wrong)):
            continue
        for show in (reported, watched):
            try:
                show(folder)
            except EndocilError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{name} with {wrong!r} at {path}, {show.__name__}") from error
    assert refused or name in ("environment.json", "data.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [("warmup", "text"), ("warmup", float("inf")), ("milestones", [float("nan")]), ("epochs", 10**400)],
)
def test_a_schedule_that_no_run_can_have_is_one_line(key: str, value: Any, tiny_run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    write(folder / "settings.toml", replaced(read(folder / "settings.toml"), ("train", key), value))
    with pytest.raises(EndocilError, match=rf"settings\.toml.*{key}"):
        comparison(read_runs([folder])).text()


def test_predictions_of_a_task_for_an_image_that_the_last_task_has_not_are_one_line(
    tiny_run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    lines = (folder / "predictions" / "task-0.csv").read_text().splitlines()
    lines[1] = f"other{lines[1]}"
    (folder / "predictions" / "task-0.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(EndocilError, match=r"task-0\.csv has the image 'other.*, which that of the last task has not"):
        read_paired_predictions([read_run(folder)], "softmax")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("split.csv", "image,class,part\na.png,a,train\n", r"split\.csv lacks the columns"),
        ("split.csv", "image,class,task,part\na.png,a,first,train\n", r"split\.csv: a\.png has the task 'first'"),
        ("data.json", '{"notes": 5}', r"data\.json, notes: "),
        ("data.json", "{", r"data\.json is not JSON"),
        ("leaks.json", "[1]", r"leaks\.json: expected a JSON object"),
        ("leaks.json", '{"exact_in_train": "much"}', r"leaks\.json, exact_in_train: "),
    ],
)
def test_lists_and_notes_that_are_none_are_named_by_reports_and_watch(
    name: str, content: str, words: str, tiny_run: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_run, tmp_path / "run")
    (folder / name).write_text(content)
    for show in (reported, watched):
        with pytest.raises(EndocilError, match=words):
            show(folder)
