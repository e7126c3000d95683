"""Experiments on the same test images: the numbers are those of the metrics, the verdicts follow from them."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from endocil.cli.main import _application
from endocil.errors import EndocilError
from endocil.io.text_tables import Spread
from endocil.metrics.metrics import TABLE_METRICS, summarise
from endocil.metrics.statistics import observed
from endocil.model.prediction_files import write_predictions
from endocil.model.predictions import Predictions
from endocil.reports.comparisons import (
    comparable_or_none,
    comparable_runs,
    interval_note,
    interval_table,
    source_table,
    versus,
)
from endocil.reports.ranking import findings, ranking
from endocil.runs.experiments import groups
from endocil.runs.records import read_run

MakeRun = Callable[..., Path]
NAMES = ("a", "b", "c", "d", "e")
EACH = 40  # test images of a class


def _stored(classes: Sequence[str], skill: float, seed: int) -> list[Predictions]:
    """Tasks of two, two and one classes; images in an order of the run's own, right with a chance of `skill`."""
    random, stored = np.random.default_rng(seed), []
    for seen in (2, 4, 5) if classes == NAMES else (len(classes),):
        labels = random.permutation(np.repeat(np.arange(seen), EACH))
        number = np.zeros(seen, dtype=int)
        images = []
        for label in labels:
            images.append(f"{classes[label]}/{number[label]:03}.jpg")
            number[label] += 1
        right = random.random(len(labels)) < skill
        scores = np.eye(seen, dtype=np.float32)[np.where(right, labels, random.integers(0, seen, len(labels)))]
        sources = tuple("one" if image < "c" else "two" for image in images)
        stored.append(Predictions(tuple(images), labels, tuple(classes[:seen]), scores, 1 - scores, sources))
    return stored


def _run(
    make_run: MakeRun,
    method: str,
    skill: float,
    seed: int = 0,
    *,
    group: Callable[[str], str] = lambda image: "",
    classes: Sequence[str] = NAMES,
) -> Path:
    stored = _stored(classes, skill, seed + 100 * len(method))
    folder = make_run(method, seed, metrics=summarise(stored))
    for t, predictions in enumerate(stored):
        write_predictions(folder / "predictions" / f"task-{t}.csv", predictions)
    lines = ["image,class,task,part,group,source"]
    lines += [f"{image},{image[0]},0,test,{group(image)}," for image in stored[-1].images]
    (folder / "split.csv").write_text("\n".join(lines) + "\n")
    return folder


def _command(*words: object) -> str:
    done = CliRunner().invoke(_application(), [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("metric", TABLE_METRICS)
def test_a_measure_of_the_images_as_they_are_is_the_metric(make_run: MakeRun, metric: str) -> None:
    runs = [read_run(_run(make_run, "icarl", 0.6, seed)) for seed in (0, 1)]
    [predictions] = comparable_runs(runs).predictions
    for run, own in zip(runs, predictions, strict=True):
        assert observed(own.measure(metric)) == pytest.approx(run.metrics["softmax"][metric])


def test_classes_learned_in_another_order_are_the_same_classes(make_run: MakeRun) -> None:
    runs = [
        read_run(_run(make_run, "joint", 0.7, classes=NAMES[:4])),
        read_run(_run(make_run, "finetune", 0.7, classes=NAMES[3::-1])),
    ]
    for group, [own] in zip((examined := comparable_runs(runs)).groups, examined.predictions, strict=True):
        assert observed(own.measure("f1_last")) == pytest.approx(group.first.metrics["softmax"]["f1_last"])


def test_the_table_has_intervals_around_the_means(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, method, 0.6, seed)) for method in ("icarl", "endocil") for seed in (0, 1)]
    table = interval_table(comparable_runs(runs))
    for cell in table.rows[0][2:]:
        assert isinstance(cell, Spread)
        assert cell.interval is not None
        assert cell.interval[0] < cell.mean < cell.interval[1]
    note = interval_note(comparable_runs(runs))
    assert "over 200 test images, 2,000 resamples" in note


def test_groups_of_the_split_are_drawn_whole(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, "icarl", 0.6, group=lambda image: image[:4]))]  # ten images each, a/00*.jpg
    tested = comparable_runs(runs).test_set
    assert tested.describe() == "200 test images in 20 groups, drawn whole"
    assert len(set(tested.units[:10])) == 1
    assert tested._strata().tolist() == [label for label in range(5) for _ in range(4)]


def test_images_without_a_group_stand_for_themselves(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, "icarl", 0.6, group=lambda image: "g" if image[0] == "a" else ""))]
    assert comparable_runs(runs).test_set.describe() == "200 test images in 161 groups, drawn whole"


def test_a_clear_difference_is_significant_and_none_is_not(make_run: MakeRun) -> None:
    skills = {"icarl": 0.55, "endocil": 0.9, "finetune": 0.56}
    runs = [read_run(_run(make_run, method, skill, seed)) for method, skill in skills.items() for seed in (0, 1)]
    examined = comparable_runs(runs)
    found = versus(examined, examined.groups[0], ["acc_last", "acc_avg"])
    assert [(one.group.label, one.metric, one.verdict) for one in found] == [
        ("EndoCIL", "acc_last", "better"),
        ("Finetune", "acc_last", "not significant"),
        ("EndoCIL", "acc_avg", "better"),
        ("Finetune", "acc_avg", "not significant"),
    ]
    assert found[0].p == pytest.approx(2 / 10_001)
    assert found[0].adjusted == pytest.approx(4 * 2 / 10_001)  # the smallest of four, counted four times
    assert found[0].interval[0] < found[0].difference < found[0].interval[1]
    back = versus(examined, examined.groups[1], ["acc_last"])[0]
    assert back.verdict == "worse"
    assert back.difference == pytest.approx(-found[0].difference)


def test_two_single_runs_are_compared_by_the_exact_test(make_run: MakeRun) -> None:
    examined = comparable_runs([read_run(_run(make_run, method, 0.7)) for method in ("icarl", "endocil")])
    [one] = versus(examined, examined.groups[0], ["acc_last"])
    own, other = (one[0].correct[-1] for one in (examined.predictions[1], examined.predictions[0]))
    only, only_other = int(np.sum(own & ~other)), int(np.sum(other & ~own))
    assert one.exact
    assert one.p == pytest.approx(stats.binomtest(only, only + only_other).pvalue)
    assert one.difference == pytest.approx(100 * (only - only_other) / 200)


def test_less_forgetting_is_better(make_run: MakeRun) -> None:
    examined = comparable_runs([read_run(_run(make_run, method, 0.7)) for method in ("icarl", "endocil")])
    [one] = versus(examined, examined.groups[0], ["af"])
    assert not one.exact
    lower = type(one)(**{**vars(one), "difference": -5.0, "adjusted": 0.01})
    assert (lower.verdict, type(one)(**{**vars(lower), "difference": 5.0}).verdict) == ("better", "worse")


def test_one_task_has_no_average_to_compare(make_run: MakeRun) -> None:
    runs = [read_run(_run(make_run, "icarl", 0.7)), read_run(_run(make_run, "endocil", 0.6))]
    shared = summarise(_stored(NAMES, 0.9, 5)[-1:])
    folder = make_run("joint", metrics=shared)
    write_predictions(folder / "predictions" / "task-0.csv", _stored(NAMES, 0.9, 5)[-1])
    examined = comparable_runs([*runs, read_run(folder)])
    found = versus(examined, examined.groups[0], ["acc_last", "acc_avg"])
    assert [(one.group.label, one.metric) for one in found] == [
        ("EndoCIL", "acc_last"), ("JointTrain", "acc_last"), ("EndoCIL", "acc_avg"),
    ]  # fmt: skip


def test_runs_on_other_images_and_runs_without_predictions_are_refused(make_run: MakeRun) -> None:
    one = read_run(_run(make_run, "icarl", 0.7))
    other = read_run(_run(make_run, "endocil", 0.7, classes=NAMES[:3]))
    with pytest.raises(EndocilError, match=r"\(200 test images\) and .* \(120\) were tested on different images, 120"):
        comparable_runs([one, other])
    with pytest.raises(EndocilError, match="has no stored predictions"):
        comparable_runs([read_run(make_run("icarl"))])
    with pytest.raises(EndocilError, match="nearest-mean head"):
        comparable_runs([read_run(make_run("finetune"))], "nearest_mean")


def test_each_source_has_its_own_accuracy(make_run: MakeRun) -> None:
    run = read_run(_run(make_run, "icarl", 0.7))
    table = source_table(comparable_runs([run]))
    told = run.metrics["softmax"]["per_source"]
    assert [row[:4] for row in table.rows] == [("one", 80, "iCaRL", 1), ("two", 120, "iCaRL", 1)]
    for name, row in zip(("one", "two"), table.rows, strict=True):
        assert isinstance(row[4], Spread)
        assert row[4].mean == pytest.approx(told[name]["accuracy"])


def test_the_page_says_whether_the_lead_is_significant(make_run: MakeRun) -> None:
    close = [read_run(_run(make_run, method, 0.7)) for method in ("icarl", "endocil")]
    far = [read_run(_run(make_run, method, s)) for method, s in (("icarl", 0.3), ("endocil", 0.9))]
    noise = [
        sentence.replace("\N{NO-BREAK SPACE}", " ")
        for sentence in findings(groups(close), ranking(comparable_or_none(close)))
    ]
    clear = [
        sentence.replace("\N{NO-BREAK SPACE}", " ")
        for sentence in findings(groups(far), ranking(comparable_or_none(far)))
    ]
    assert "which is not significant (95 % interval of the paired difference:" in noise[1]
    assert "significant" not in clear[1]
    assert clear[1].startswith("EndoCIL is ")
    assert "variation between seeds is not included" in clear[3]


def test_the_commands_print_and_write_what_was_computed(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [_run(make_run, method, skill) for method, skill in (("icarl", 0.4), ("endocil", 0.9))]
    text = _command("table", *runs)
    assert text.startswith("Results of the softmax head in percent\n")
    assert text.count("[") == 2 * 5
    assert "95 % percentile bootstrap interval" in " ".join(text.split())
    assert "95 %" not in _command("table", *runs, "--no-intervals")
    assert "<br>[" in _command("table", *runs, "--format", "markdown", "--head", "nearest_mean")
    assert "Source" in _command("table", *runs, "--per", "source")
    rows = list(csv.DictReader(io.StringIO(_command("table", *runs, "--format", "csv"))))
    assert float(rows[0]["acc_last_low"]) < float(rows[0]["acc_last"]) < float(rows[0]["acc_last_high"])

    file = tmp_path / "versus.tex"
    _command("versus", *runs, "--against", "endocil", "--format", "latex", "-o", file)
    assert r"\begin{tabular}{llrrrrrrrl}" in file.read_text()
    text = _command(
        "table", *runs, "--format", "latex", "--caption", "Mine", "--label", "tab:x", "--name", "iCaRL=base"
    )
    assert r"\caption{Mine}" in text
    assert r"\label{tab:x}" in text
    assert "base & 1" in text
    assert "iCaRL" not in text
    told = " ".join(_command("versus", *runs).split())
    assert "Difference from iCaRL in points, on the same test images" in told
    assert "10,000 resamples over 200 test images; one seed each" in told
    assert "exact McNemar test for the accuracy of two single runs" in told
    assert "adjusted for the 2 comparisons" in told


def test_the_commands_refuse_in_words(make_run: MakeRun) -> None:
    runs = [str(_run(make_run, method, 0.5)) for method in ("icarl", "endocil")]
    for words, said in (
        (["--against", "wa"], "no experiment 'wa' among these runs; there are 'iCaRL', 'EndoCIL'"),
        (["--metric", "speed"], "no metric speed; known: acc_last"),
    ):
        with pytest.raises(EndocilError, match=said):
            CliRunner().invoke(_application(), ["versus", *runs, *words], catch_exceptions=False)
    for words, message in (
        (["--label", "tab:x"], "--label is for --format latex"),
        (["--name", "wa=WA"], "no method 'wa' in the table; there are 'EndoCIL', 'iCaRL'"),
    ):
        with pytest.raises(EndocilError, match=message):
            CliRunner().invoke(_application(), ["table", *runs, *words], catch_exceptions=False)
    with pytest.raises(EndocilError, match="only runs of iCaRL were given"):
        CliRunner().invoke(_application(), ["versus", runs[0]], catch_exceptions=False)
