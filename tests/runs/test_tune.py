"""`endocil tune`: settings are chosen by the validation part, and the test part is never asked."""

import csv
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import endocil
from small import SMALL, write_sweep

from endocil import EndocilError, load_settings, run
from endocil.cli.sweep import ranking_table
from endocil.reports.ledger import add_to_ledger
from endocil.runs.experiments import label
from endocil.runs.records import RunRecord
from endocil.runs.sweep.plan import plan, read_sweep
from endocil.runs.sweep.tune import points, rank_candidates

RATES = {"train.learning_rate": [0.1, 0.00001]}


def images_of(files: list[Path], column: str = "image") -> set[str]:
    return {row[column] for path in files for row in csv.DictReader(path.open(encoding="utf-8"))}


def test_points_that_cannot_work_are_told_before_the_first_run(tmp_path: Path) -> None:
    search = {"method.temperature": [2.0, 0.0, -1.0]}
    file = write_sweep(
        tmp_path, set={"scenario.validation": 0.3}, vary={"method": ["icarl"], "seed": [0, 1]}, search=search
    )
    status, said, errors = endocil("tune", file, "-o", tmp_path / "out")
    assert status == 1
    assert said.count("cannot run: method.temperature is ") == 2
    assert said.count("(2 runs of tiny, such as tiny-icarl-temperature-") == 2
    assert errors.strip() == "endocil: 4 of 6 runs would fail, so none was started; see above"
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_runs_here")
def test_tuning_predicts_validation_images_alone_and_its_runs_stay_out_of_the_ledger(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, set={"scenario.validation": 0.3}, vary={"method": ["icarl"]}, search=RATES)
    folder = tmp_path / "out"
    status, _, errors = endocil("tune", file, "-o", folder)
    assert status == 0, errors
    runs = sorted(path.parent for path in folder.glob("*/metrics.json"))
    assert len(runs) == 2
    for one in runs:
        rows = list(csv.DictReader((one / "split.csv").open(encoding="utf-8")))
        part = {row["image"]: row["part"] for row in rows}
        assert {"train", "validation", "test"} == set(part.values())
        last = sorted(one.glob("predictions/*.csv"))[-1]
        assert images_of([last]) == {image for image, which in part.items() if which == "validation"}
        predicted = images_of([*one.glob("predictions/*.csv")]) | images_of([*one.glob("memory/*.csv")])
        assert not predicted & {image for image, which in part.items() if which == "test"}
        settings = load_settings(one / "settings.toml")
        assert settings.run.evaluate == "validation"
        assert "run.evaluate=validation" in label(settings.model_dump(mode="json"))
        with pytest.raises(EndocilError, match="evaluated on its validation part, for tuning"):
            add_to_ledger(one, tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()

    reached = {
        load_settings(one / "settings.toml").train.learning_rate: json.loads((one / "metrics.json").read_text())[
            "softmax"
        ]["acc_avg"]
        for one in runs
    }
    best = load_settings(folder / "best.toml")
    assert best.train.learning_rate == max(reached, key=reached.__getitem__)
    assert best.run.evaluate == "test"
    assert best.run.first_tasks is None
    assert 'evaluate = "validation"' not in (folder / "best.toml").read_text()
    listed = list(csv.DictReader((folder / "tuning.csv").open(encoding="utf-8")))
    assert [float(row["softmax.acc_avg"]) for row in listed] == sorted(reached.values(), reverse=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"search": RATES}, "set scenario.validation to a share"),
        ({}, "there is nothing to search"),
        (
            {"search": {"train.learning_rate": []}, "samples": 2},
            "search.train.learning_rate is an empty list; give at least one value",
        ),
        ({"search": RATES, "metric": "softmax.accuracy"}, "known: softmax.acc_last"),
        (
            {"search": RATES, "settings": ["tiny.toml", "smoke"], "set": {"scenario.validation": 0.2}},
            "tune each data set alone",
        ),
        (
            {
                "search": RATES,
                "set": {"scenario.validation": 0.2, "method.name": "finetune"},
                "metric": "nearest_mean.acc_avg",
            },
            "the method 'finetune' keeps none; set metric = \"softmax.acc_avg\"",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_the_way_out(tmp_path: Path, content: dict[str, Any], words: str) -> None:
    status, _, errors = endocil("tune", write_sweep(tmp_path, **content), "-o", tmp_path / "out")
    assert status == 1
    assert len(errors.strip().splitlines()) == 1
    assert words in errors
    assert not (tmp_path / "out").exists()


def test_a_sweep_refuses_a_search_and_a_run_refuses_to_validate_without_images(tmp_path: Path) -> None:
    _, _, refused = endocil("sweep", write_sweep(tmp_path, search=RATES), "-o", tmp_path / "out")
    assert "'endocil tune' takes" in refused
    with pytest.raises(EndocilError, match=r"no validation image.*scenario\.validation"):
        run({**SMALL, "run": {"evaluate": "validation"}}, tmp_path / "run")


def test_a_metric_without_a_value_is_an_error_and_gives_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_sweep(tmp_path, set={"scenario.validation": 0.3}, search=RATES, metric="softmax.af")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "best.toml").write_text("of an earlier metric")
    without = SimpleNamespace(metrics={"softmax": {"af": None}})  # such as the forgetting of a single task
    monkeypatch.setattr("endocil.runs.sweep.runner.run_all", lambda *arguments: [])
    monkeypatch.setattr("endocil.runs.folder.RunFolder.finished", lambda self: True)
    monkeypatch.setattr("endocil.runs.records.read_run", lambda path: without)
    status, _, errors = endocil("tune", file, "-o", folder)
    assert status == 1
    assert "metric 'softmax.af' has no value in any of the runs" in errors
    assert not (folder / "best.toml").exists()
    listed = list(csv.DictReader((folder / "tuning.csv").open(encoding="utf-8")))
    assert [row["rank"] for row in listed] == ["", ""]


def drawn(folder: Path, samples: int, **limits: Any) -> list[float]:
    asked = read_sweep(write_sweep(folder, search={"train.epochs": limits}, samples=samples))
    return [point["train.epochs"] for point in points(asked)]


def test_whole_numbers_are_drawn_evenly_and_the_ends_no_less_often(tmp_path: Path) -> None:
    often = Counter(drawn(tmp_path, 3000, low=1, high=3))
    assert set(often) == {1, 2, 3}
    assert all(900 < count < 1100 for count in often.values()), often


def test_whole_numbers_drawn_by_size_stay_within_the_ends_and_become_rarer(tmp_path: Path) -> None:
    often = Counter(drawn(tmp_path, 6000, low=1, high=4, log=True))
    assert set(often) == {1, 2, 3, 4}
    assert often[1] > often[2] > often[3] > often[4] > 500


@pytest.mark.parametrize("log", [False, True])
def test_rounding_to_four_digits_steps_over_neither_end(tmp_path: Path, log: bool) -> None:
    found = drawn(tmp_path, 200, low=0.123456, high=0.123561, log=log)
    assert min(found) >= 0.123456
    assert max(found) <= 0.123561
    assert 0.1235 in found


@pytest.mark.parametrize(("chosen", "kept"), [({"run.threads": 2}, 2), ({}, None)])
def test_the_best_settings_keep_the_threads_of_the_user_and_not_those_of_the_sweep(
    tmp_path: Path, chosen: dict[str, Any], kept: int | None
) -> None:
    asked = read_sweep(write_sweep(tmp_path, settings="smoke", set=chosen, search=RATES))
    runs = plan(asked, tmp_path, (), points(asked))
    assert {one.settings.run.threads for one in runs} == {kept or 1}
    assert rank_candidates(runs, {}, "softmax.acc_avg")[0].settings().run.threads == kept


@pytest.mark.parametrize(("metric", "first"), [("softmax.acc_avg", 0.1), ("softmax.af", 0.001)])
def test_candidates_are_ranked_by_the_mean_over_seeds_and_unfinished_ones_come_last(
    tmp_path: Path, metric: str, first: float
) -> None:
    search = {"train.learning_rate": [0.001, 0.1, 0.5]}
    file = write_sweep(tmp_path, vary={"seed": [0, 1]}, search=search)
    asked = read_sweep(file)
    runs = plan(asked, tmp_path, (), points(asked))
    values = {0.001: (50.0, 52.0), 0.1: (90.0, 20.0), 0.5: (99.0, None)}
    records = {
        one.digest: RunRecord("run", {}, {}, {"softmax": {metric.partition(".")[2]: value}}, (), {}, ())
        for one in runs
        if (value := values[one.settings.train.learning_rate][one.settings.seed]) is not None
    }
    found = rank_candidates(runs, records, metric)
    order = [one.settings().train.learning_rate for one in found]
    assert order == [first, *({0.1, 0.001} - {first}), 0.5]
    assert found[-1].mean is None
    text = ranking_table(found, metric).text()
    assert "51.00 ± 1.41" in text
    assert "99.00" not in text
