"""The sentences of the page follow from the numbers."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from endocil.reports.comparisons import comparable_or_none, compared_over_seeds
from endocil.reports.ranking import describe_runs, findings, ranking
from endocil.runs.experiments import groups
from endocil.runs.records import read_run

MakeRun = Callable[..., Path]
MakeMetrics = Callable[..., dict[str, Any]]


def _metrics(made: dict[str, Any], **values: float) -> dict[str, Any]:
    changed = copy.deepcopy(made)
    changed["softmax"] |= values
    return changed


def test_the_description_names_data_classes_tasks_images_buffer_epochs_and_seeds(make_run: MakeRun) -> None:
    runs = [read_run(make_run(method, seed)) for method in ("finetune", "endocil", "joint") for seed in (0, 1)]
    assert describe_runs(groups(runs)) == (
        "Three methods (Finetune, EndoCIL and JointTrain) learned the 14 classes of test-kvasir in 5 tasks "
        "of 4, 3, 3, 2 and 2 classes (JointTrain: all at once), with 1,848 training and 462 test images of 64 "
        "pixels, split by image. Methods with a memory kept at most 30 images per class as exemplars; 6 epochs per "
        "task; seeds 0 and 1."
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"split_by": "group"}, "by group"),
        ({"split_by": "group", "groups": "near-duplicates"}, "by group (near-duplicates)"),
        ({"split_by": "given"}, "as given"),
        ({"split": "/somewhere/split.csv"}, "by file (split.csv)"),
    ],
)
def test_the_top_says_how_images_were_split(make_run: MakeRun, settings: dict[str, str], told: str) -> None:
    changes = {f"scenario__{key}": value for key, value in settings.items()}
    assert f"test images of 64 pixels, split {told}. " in describe_runs(
        groups([read_run(make_run("icarl", **changes))])
    )


def test_one_method_without_memory_is_told_as_such(make_run: MakeRun) -> None:
    told = describe_runs(groups([read_run(make_run("finetune"))]))
    assert told.startswith("Finetune learned the 14 classes")
    assert told.endswith("No images were kept between tasks; 6 epochs per task; seed 0.")


def test_different_buffers_are_both_told(make_run: MakeRun) -> None:
    told = describe_runs(groups([read_run(make_run("icarl", memory__per_class=n)) for n in (30, 50)]))
    assert "At most 30 or 50 images per class were kept as exemplars" in told


def test_the_findings_tell_accuracies_lead_forgetting_and_noise(make_run: MakeRun, make_metrics: MakeMetrics) -> None:
    figures = {"finetune": (20.0, 90.0), "icarl": (50.0, 30.0), "endocil": (55.5, 20.0), "joint": (80.0, 0.0)}
    runs = [
        read_run(make_run(method, metrics=_metrics(make_metrics(method), acc_last=accuracy, af=lost)))
        for method, (accuracy, lost) in figures.items()
    ]
    seen = [
        sentence.replace("\N{NO-BREAK SPACE}", " ")
        for sentence in findings(groups(runs), ranking(comparable_or_none(runs)))
    ]
    assert seen == [
        "After the last task, the accuracy is 20.0 % (Finetune), 50.0 % (iCaRL) and 55.5 % (EndoCIL); trained on all "
        "classes at once, 80.0 % (JointTrain).",
        "EndoCIL is 5.5 points ahead of iCaRL.",
        "Average forgetting, in points: 90.0 (Finetune), 30.0 (iCaRL) and 20.0 (EndoCIL).",
        # 100 * sqrt(0.5 * 0.5 / 462) = 2.33
        "One seed only: differences of a few points may be noise. With 462 test images, the standard error of an "
        "accuracy is up to 2.3 points.",
    ]


def test_a_lead_smaller_than_the_spread_over_seeds_is_said_to_be_so(
    make_run: MakeRun, make_metrics: MakeMetrics
) -> None:
    figures = {"icarl": (48.0, 52.0), "endocil": (50.0, 52.0)}
    runs = [
        read_run(make_run(method, seed, metrics=_metrics(make_metrics(method), acc_last=accuracy)))
        for method, accuracies in figures.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    seen = findings(groups(runs), ranking(comparable_or_none(runs)))
    assert "EndoCIL is 1.0 points ahead of iCaRL, which is within the spread over seeds (± 2.8)." in seen
    assert seen[-1].startswith("Values are means over the seeds")


def test_equal_accuracies_are_called_the_same(make_run: MakeRun, make_metrics: MakeMetrics) -> None:
    runs = [
        read_run(make_run(method, metrics=_metrics(make_metrics(method), acc_last=50.0)))
        for method in ("icarl", "endocil")
    ]
    assert "iCaRL and EndoCIL have the same accuracy." in findings(groups(runs), ranking(comparable_or_none(runs)))


def test_the_upper_bound_alone_has_neither_lead_nor_forgetting(make_run: MakeRun) -> None:
    runs = [read_run(make_run("joint"))]
    seen = findings(groups(runs), ranking(comparable_or_none(runs)))
    assert len(seen) == 2
    assert seen[0].startswith("Trained on all classes at once, the accuracy is ")


def test_what_differs_by_far_more_than_the_seeds_spread_is_significant(
    make_run: MakeRun, make_metrics: MakeMetrics
) -> None:
    accuracies = {
        "finetune": (20.0, 22.0, 21.0),
        "endocil": (60.0, 64.0, 62.0),
        "icarl": (61.5, 61.0, 65.0),
        "joint": (80.0, 84.5, 82.5),
    }
    runs = [
        read_run(make_run(method, seed, metrics=_metrics(make_metrics(method, seed), acc_last=value)))
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    assert compared_over_seeds(runs) == (
        "Significant differences in Acc_last over 3 seeds (paired t test, p < 0.05 after Holm's correction for 6 "
        "pairs): Finetune below EndoCIL, iCaRL and JointTrain; EndoCIL below JointTrain; iCaRL below JointTrain. "
        "Not significant: EndoCIL and iCaRL."
    )
    first = [run for run in runs if run.settings["seed"] == 0 and run.settings["method"]["name"] != "joint"]
    assert compared_over_seeds(first).endswith(
        "over 1 seed (paired t test, p < 0.05 after Holm's correction for 3 pairs): none. "
        "Not significant: Finetune and EndoCIL or iCaRL; EndoCIL and iCaRL."
    )
