"""The ledger: what is stored of a run, under which name, and when a run is there already."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from endocil.errors import EndocilError
from endocil.reports.ledger import AlreadyInLedgerError, add_to_ledger, find_in_ledger, ledger_name, read_ledger
from endocil.runs.experiments import digest
from endocil.runs.records import read_run

MakeRun = Callable[..., Path]
MakeSettings = Callable[..., dict[str, Any]]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_the_file_is_named_after_data_method_components_buffer_seed_and_digest(make_run: MakeRun, ledger: Path) -> None:
    names = [
        add_to_ledger(make_run("endocil", seed=2), ledger).name,
        add_to_ledger(make_run("finetune"), ledger).name,
        add_to_ledger(make_run("foster", method__evaluate="student"), ledger).name,
        add_to_ledger(make_run("my.module:Way", data__name="my.data:Set", memory__per_class=7), ledger).name,
    ]
    patterns = [
        r"folder-test-kvasir-endocil-mmd-prior_regularized-calibrated-b30-s2-[0-9a-f]{8}\.json",
        r"folder-test-kvasir-finetune-mean-b30-s0-[0-9a-f]{8}\.json",
        r"folder-test-kvasir-foster-evaluate-student-mean-b30-s0-[0-9a-f]{8}\.json",
        r"Set-test-kvasir-Way-mean-b7-s0-[0-9a-f]{8}\.json",
    ]
    assert all(re.fullmatch(pattern, name) for pattern, name in zip(patterns, names, strict=True)), names


def test_every_entry_of_the_projects_ledger_ends_in_the_digest_of_its_settings() -> None:
    entries = read_ledger(Path(__file__).parents[2] / "docs" / "results")
    assert [entry.file.stem[-8:] for entry in entries] == [digest(entry.settings) for entry in entries]
    unnamed = [entry for entry in entries if entry.file.name != ledger_name(entry.settings)]
    assert len(unnamed) <= 1  # an entry from before names had the option evaluate


def test_an_entry_holds_settings_metrics_environment_counts_and_time(make_run: MakeRun, ledger: Path) -> None:
    run = read_run(make_run("endocil"))
    stored = json.loads(add_to_ledger(make_run("endocil"), ledger).read_text())
    assert stored["settings"]["method"] == run.settings["method"]
    assert stored["settings"]["data"]["root"] == "test-kvasir"
    assert stored["environment"]["python"] == "3.11.2"
    assert stored["images"]["barretts"] == {"test": 20, "train": 80}
    assert stored["exemplars"] == 420
    assert stored["metrics"]["softmax"]["confusion"] == run.metrics["softmax"]["confusion"]
    assert stored["metrics"]["softmax"]["acc_last"] == pytest.approx(run.metrics["softmax"]["acc_last"], abs=1e-6)
    assert stored["metrics"]["softmax"]["per_class"]["polyps"]["images"] == 41
    assert stored["metrics"]["nearest_mean"]["af"] == pytest.approx(run.metrics["nearest_mean"]["af"], abs=1e-6)
    assert stored["seconds_per_epoch"] == 1.5
    assert stored["seconds"] == 45.0
    assert stored["parameters"] == 11184720
    assert stored["peak_megabytes"] == 704


def test_an_entry_keeps_the_leaks_and_what_the_method_measured_after_each_task(make_run: MakeRun, ledger: Path) -> None:
    folder = make_run("wa")
    (folder / "leaks.json").write_text(
        json.dumps({"test_images": 462, "near_in_train": 0.1875, "group_in_train": None})
    )
    add_to_ledger(folder, ledger)
    old = add_to_ledger(make_run("icarl"), ledger)
    stored = json.loads(old.read_text())
    del stored["leaks"], stored["measured"]  # an entry of an earlier version
    old.write_text(json.dumps(stored))
    earlier, entry = read_ledger(ledger)
    assert entry.leaks["near_in_train"] == 0.1875
    assert entry.measured == {"alignment": [None, 1.1, 1.2, 1.3, 1.4]}
    assert (earlier.leaks, earlier.measured) == ({}, {})


def test_an_entry_is_small_and_holds_no_image_no_prediction_and_no_path(make_run: MakeRun, ledger: Path) -> None:
    text = add_to_ledger(make_run("endocil"), ledger).read_text()
    assert len(text) < 30_000
    assert ".jpg" not in text
    assert "somebody" not in text
    assert "confusions" not in text


def test_lists_of_numbers_stand_on_one_line_each(make_run: MakeRun, ledger: Path) -> None:
    text = add_to_ledger(make_run("endocil"), ledger).read_text()
    assert re.search(r"^ *\[\d+(, \d+){13}\],?$", text, re.MULTILINE)  # a row of the confusion matrix
    assert '"task_sizes": [4, 3, 3, 2, 2]' in text


def test_names_with_brackets_are_stored_as_they_are(make_run: MakeRun, make_metrics: Any, ledger: Path) -> None:
    names = ["[ a ]", "[\n b ]", "{c}", 'd"', "e"]
    folder = make_run("icarl", metrics=make_metrics("icarl", classes=names, sizes=(3, 2)))
    assert json.loads(add_to_ledger(folder, ledger).read_text())["metrics"]["classes"] == names


def test_a_run_once_in_the_ledger_is_not_added_again(make_run: MakeRun, ledger: Path) -> None:
    file = add_to_ledger(make_run("endocil"), ledger)
    before = file.read_bytes()
    with pytest.raises(AlreadyInLedgerError, match=f"already in the ledger: {file}") as caught:
        add_to_ledger(make_run("endocil", data__root="elsewhere/test-kvasir", run__threads=8), ledger)
    assert caught.value.file == file
    assert list(ledger.iterdir()) == [file]
    assert file.read_bytes() == before


def test_a_run_is_found_by_its_settings(make_run: MakeRun, make_settings: MakeSettings, ledger: Path) -> None:
    assert find_in_ledger(make_settings("endocil"), ledger) is None
    file = add_to_ledger(make_run("endocil"), ledger)
    assert find_in_ledger(make_settings("endocil"), ledger) == file
    assert find_in_ledger(make_settings("endocil", seed=1), ledger) is None
    assert find_in_ledger(make_settings("endocil", method__beta=0.9), ledger) is None


def test_an_unfinished_run_does_not_enter_the_ledger(make_run: MakeRun, ledger: Path) -> None:
    folder = make_run("endocil")
    (folder / "metrics.json").unlink()
    with pytest.raises(EndocilError, match="endocil resume"):
        add_to_ledger(folder, ledger)
    assert not ledger.exists()


def test_a_file_that_is_no_entry_is_named(make_run: MakeRun, ledger: Path) -> None:
    add_to_ledger(make_run("endocil"), ledger)
    (ledger / "other.json").write_text("{}")
    with pytest.raises(EndocilError, match=r"other\.json is not an entry of the ledger"):
        read_ledger(ledger)


def test_a_missing_ledger_is_named(ledger: Path) -> None:
    with pytest.raises(EndocilError, match="there is no ledger"):
        read_ledger(ledger)


def test_a_run_from_before_a_setting_existed_still_counts(
    make_run: MakeRun, make_settings: MakeSettings, ledger: Path
) -> None:
    """Filling in today's defaults makes yesterday's settings comparable."""
    file = add_to_ledger(make_run("endocil"), ledger)
    today = make_settings("endocil", method__sharpness=1.0)

    def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**settings, "method": {"sharpness": 1.0, **settings["method"]}}

    assert find_in_ledger(today, ledger) is None
    assert find_in_ledger(today, ledger, complete=complete) == file
    other = make_settings("endocil", method__sharpness=2.0)
    assert find_in_ledger(other, ledger, complete=complete) is None
