"""The ledger's methods side by side: what is put together, what is marked, the ranks over data sets, and the words."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from endocil.cli.ledger import plot
from endocil.errors import EndocilError
from endocil.methods import BASELINE, COMPARED, OWN_METHOD
from endocil.metrics.statistics import paired_t_p
from endocil.reports.figures.ledger_plot import rank_figure, write_rank_plot
from endocil.reports.ledger import Entry
from endocil.reports.ledger_tables import leaks_table, ledger_table, shared_budget
from endocil.reports.ledger_texts import alignment_text, overview, summary
from endocil.reports.ranks_over_data import ranked, ranks_over_data, ranks_text
from endocil.reports.side_by_side import comparisons, side_by_side_text, variants_table
from endocil.runs.records import completed

FROZEN = {"network__freeze": ["all"], "network__weights": "imagenet", "network__backbone": "efficientnet-lite0"}
METRICS = ("acc_last", "f1_last", "acc_avg", "f1_avg", "af")


def _entry(method: str, seed: int, value: float, data: str = "mine", **changes: Any) -> Entry:
    """An invented run; all its metrics are `value`."""
    settings: dict[str, Any] = {
        "seed": seed,
        "data": {"name": "folder", "root": f"/images/{data}", "size": 64},
        "scenario": {"split_by": "image", "leave_out": []},
        "network": {"width": 16},
        "memory": {"per_class": 30},
        "method": {"name": method},
        "train": {"epochs": 30, "milestones": [15, 21]},
    }
    extra = {key: changes.pop(key) for key in ("leaks", "measured") if key in changes}
    for key, changed in changes.items():
        section, _, name = key.partition("__")
        settings[section][name] = changed
    sizes = [4] if method == "joint" else [2, 2]
    metrics = {"softmax": dict.fromkeys(METRICS, value), "task_sizes": sizes, "test_images": [100]}
    return Entry(Path(f"{method}-{seed}.json"), settings, metrics, 0 if method == "finetune" else 120, **extra)


def _seeds(method: str, *values: float, **changes: Any) -> list[Entry]:
    return [_entry(method, seed, value, **changes) for seed, value in enumerate(values)]


def test_methods_are_rows_and_data_sets_groups_of_columns_with_seeds_where_they_differ() -> None:
    entries = [
        *_seeds("joint", 80.0, 81.0),
        *_seeds("icarl", 60.0, 61.0),
        *_seeds("finetune", 20.0, 30.0),
        *_seeds("icarl", 50.0, 51.0, data="other"),
        *_seeds("endocil", 52.0, data="other"),
        *_seeds("endocil", 64.0, 66.0),
    ]
    [found] = comparisons(entries)
    table = found.table()
    assert [column.whole_title for column in table.columns][:7] == [
        "Method", "mine Acc_last", "mine F1_last", "mine Acc_avg", "mine F1_avg", "mine AF", "other Seeds",
    ]  # fmt: skip
    assert [row[0] for row in table.rows] == ["Finetune", "EndoCIL", "iCaRL", "JointTrain"]
    assert [row[6] for row in table.rows] == [None, 1, 2, None]
    assert found.seeds() == "2 seeds on mine"
    assert found.scale == "64 px, width 16, 30 epochs per task, 30 exemplars per class"


def test_best_second_and_ties_within_noise_are_marked_as_the_test_says() -> None:
    best, near, far = [70.0, 72.0, 74.0], [68.0, 73.0, 72.5], [60.1, 61.9, 64.0]
    entries = [*_seeds("endocil", *best), *_seeds("icarl", *near), *_seeds("bic", *far), *_seeds("wa", 66.0)]
    assert stats.ttest_rel(best, near).pvalue > 0.05 > stats.ttest_rel(best, far).pvalue
    text = side_by_side_text(comparisons(entries))
    assert '<tr><th colspan="1"></th><th colspan="6">mine</th></tr>' in text
    cells = [re.findall("<td[^>]*>(.*?)</td>", line) for line in text.split("\n") if line.startswith("<tr><td>")]
    lines = {row[0]: row[2] for row in cells}
    assert lines["EndoCIL"] == "<b>72.00 ± 2.00</b>"
    assert lines["iCaRL"] == "<u>71.17 ± 2.75</u> ≈"
    assert lines["BiC"] == "62.00 ± 1.95"
    assert lines["WA"] == "66.00"  # one seed is not enough to tell


def test_a_single_run_is_not_ranked_beside_methods_with_several_seeds() -> None:
    entries = [*_seeds("endocil", 70.0, 72.0), *_seeds("icarl", 69.0, 72.5), *_seeds("wa", 90.0)]
    [found] = comparisons(entries)
    assert found.data_sets[0].best("acc_last").label == "EndoCIL"
    assert [one.label for one in found.data_sets[0].ties("acc_last")] == ["iCaRL"]
    assert "<b>71.00 ± 1.41</b>" in side_by_side_text([found])
    assert "WA, with one seed, is not ranked" in summary(entries)
    alone = [*_seeds("endocil", 70.0), *_seeds("wa", 90.0)]
    assert "WA has the highest accuracy after the last task (90.0 %); EndoCIL (70.0 %) ends" in summary(alone)


def test_where_another_method_is_ahead_the_highest_of_the_papers_is_named_too() -> None:
    entries = [*_seeds("multistage_fsa", 80.0, 80.5), *_seeds("dgr", 71.0, 71.6), *_seeds("endocil", 70.0, 70.5)]
    [told] = summary(entries).splitlines()
    assert "MultiStage-FSA has the highest accuracy after the last task (80.2 %); all others are" in told
    assert (
        "of the paper's methods DGR is highest (71.3 %); all others are significantly lower; EndoCIL (70.2 %) ends 1.0"
        in told
    )


def test_of_forgetting_the_lowest_is_the_best() -> None:
    [found] = comparisons([*_seeds("endocil", 20.0, 21.0), *_seeds("icarl", 40.0, 41.5)])
    assert found.data_sets[0].best("af").label == "EndoCIL"
    assert found.data_sets[0].best("acc_last").label == "iCaRL"


@pytest.mark.parametrize(
    "change",
    [
        {"data__size": 96},
        {"network__width": 32},
        {"network__stem": "small"},
        {"train__epochs": 60},
        {"memory__per_class": 40},
    ],
)
def test_runs_of_another_scale_are_a_comparison_of_their_own(change: dict[str, Any]) -> None:
    methods = ("endocil", "icarl")
    small = [e for m in (*methods, "bic") for e in _seeds(m, 60.0, 61.0)]
    large = [e for m in methods for e in _seeds(m, 80.0, 81.0, **change)]
    found = comparisons([*large, *small])
    assert [len(one.data_sets[0].methods) for one in found] == [3, 2]  # the most experiments first
    assert len({one.scale for one in found}) == 2


def test_runs_of_another_split_are_left_out_and_variants_of_a_data_set_are_named_by_their_difference() -> None:
    methods = ("endocil", "icarl")
    entries = [e for m in methods for e in _seeds(m, 60.0, 61.0)]
    entries += [e for m in methods for e in _seeds(m, 50.0, 51.0, scenario__split_by="group")]
    entries += [e for m in methods for e in _seeds(m, 40.0, 41.0, scenario__leave_out=["Normal"])]
    [found] = comparisons(entries)
    assert [data.title for data in found.data_sets] == ["mine (leave_out=none)", "mine (leave_out=Normal)"]
    [other] = comparisons(entries, by_image=False)
    assert [data.title for data in other.data_sets] == ["mine, split by group"]


def test_a_data_set_with_few_of_the_methods_has_a_table_of_its_own_and_a_sentence() -> None:
    full = [e for m in ("endocil", "icarl", "bic", "wa", "dgr") for e in _seeds(m, 60.0, 61.0)]
    few = [e for m in ("endocil", "icarl") for e in _seeds(m, 40.0, 41.0, data="other")]
    found = comparisons([*few, *full])
    assert [[data.title for data in one.data_sets] for one in found] == [["mine"], ["other"]]
    assert found[0].scale == found[1].scale
    assert "**other** (2 of the paper's 12 methods so far)" in summary([*few, *full])


def test_the_overview_names_the_highest_and_what_frozen_features_add() -> None:
    assert overview(_seeds("icarl", 60.0, 61.0)) == "No data set has all methods yet.\n"
    values = {name: 40.0 + i for i, name in enumerate(COMPARED)} | {OWN_METHOD: 70.0, BASELINE: 60.0}
    entries = [e for name, v in values.items() for e in _seeds(name, v, v + 1)]
    entries += [e for name, v in (("analytic", 80.0), ("simplecil", 50.0)) for e in _seeds(name, v, v, **FROZEN)]
    scratch, own, features = overview(entries).splitlines()
    assert "after the last task EndoCIL is highest on mine (70.5 %)." in scratch
    assert own.startswith(
        "- Of the paper's 12 methods EndoCIL is highest on mine (70.5 %). EndoCIL is highest, or within noise of the "
        "highest, on 1 of the 1"
    )
    assert own.endswith("; on average EndoCIL ends 10.0 points above iCaRL (significant on 1 of 1).")
    assert "Analytic ends at 80.0 % on mine (70.5 % from scratch)" in features
    ours = overview([*entries, *_seeds("multistage_fsa", 75.0, 76.0)]).splitlines()
    assert "after the last task MultiStage-FSA is highest on mine (75.5 %)." in ours[0]
    assert ours[1] == own  # it is none of the paper's


FINE_TUNED = {
    "data__size": 96,
    "network__width": None,
    "network__weights": "imagenet",
    "network__backbone": "efficientnet-lite0",
    "network__freeze": ["stem", "stage1", "stage2"],
    "train__epochs": 10,
    "train__later_factor": 0.1,
}
BUDGET = (
    "96 px, fine-tuned efficientnet-lite0 (imagenet), stem to stage2 frozen, 10 epochs per task, later tasks at 0.1 of "
    "the learning rate"
)


def test_a_fine_tuned_network_is_named_wherever_its_scale_is_and_kept_from_runs_from_scratch() -> None:
    scratch = [e for i, name in enumerate(COMPARED) for e in _seeds(name, 40.0 + i, 41.0 + i)]
    tuned = [*_seeds("bic", 80.0, 82.0, **FINE_TUNED), *_seeds("endocil", 70.0, 72.0, **FINE_TUNED)]
    tuned += _seeds("icarl", 60.0, 61.5, **FINE_TUNED)
    frozen = [e for m in ("analytic", "multistage") for e in _seeds(m, 60.0, 61.0, **FROZEN)]
    assert shared_budget(tuned[0].settings) == BUDGET
    text = side_by_side_text(comparisons([*frozen, *tuned, *scratch]))
    headings = [line for line in text.splitlines() if line.startswith("**")]
    assert headings == [
        "**Trained from scratch: 64 px, width 16, 30 epochs per task, 30 exemplars per class (2 seeds)**",
        f"**Fine-tuned: {BUDGET}, 30 exemplars per class (2 seeds)**",
        "**Frozen ImageNet features: 64 px, frozen efficientnet-lite0 (imagenet), 30 exemplars per class (2 seeds)**",
    ]
    told = overview([*tuned, *scratch]).splitlines()
    assert [line.partition("(")[0] for line in told] == [
        "- **Trained from scratch** ",
        "- Of the paper's 12 methods EndoCIL is highest on mine ",
        "- **Trained from pretrained weights** ",
    ]
    assert told[2].endswith(
        f"({BUDGET}, 30 exemplars per class): of the methods run (BiC, EndoCIL and iCaRL) BiC is highest on mine "
        "(81.0 %; 51.5 % from scratch); on average EndoCIL ends 10.2 points above iCaRL (significant on 1 of 1)."
    )
    alone = overview(tuned)
    assert alone == "No data set has all methods yet.\n"  # nothing from scratch, so nothing is said to be


def test_fine_tuned_methods_stand_side_by_side_each_at_its_own_learning_rate() -> None:
    low, high = ({**FINE_TUNED, "train__learning_rate": rate} for rate in (0.03, 0.1))
    tuned = [*_seeds("bic", 80.0, 82.0, **low), *_seeds("icarl", 60.0, 61.5, **low)]
    tuned += [*_seeds("joint", 90.0, **high), *_seeds("foster", 70.0, 71.0, **high)]
    [one] = comparisons(tuned)
    assert one.scale == f"{BUDGET}, learning rates 0.03 and 0.1 by method, 30 exemplars per class"
    [data] = one.data_sets
    assert [method.label for method in data.methods] == ["BiC", "iCaRL", "JointTrain", "FOSTER"]
    scratch = [e for name in ("bic", "icarl") for e in _seeds(name, 40.0, train__learning_rate=0.1)]
    scratch += [e for name in ("dgr", "foster") for e in _seeds(name, 40.0, train__learning_rate=0.03)]
    assert len(comparisons(scratch)) == 2  # from scratch the learning rate is part of the setting


def test_runs_from_scratch_are_told_as_such_where_more_was_fine_tuned() -> None:
    scratch = [e for i, name in enumerate(COMPARED) for e in _seeds(name, 40.0 + i, 41.0 + i)]
    tuned = [e for name in (*COMPARED, "joint") for e in _seeds(name, 80.0, 82.0, **FINE_TUNED)]
    assert comparisons([*tuned, *scratch])[0].kind == "Fine-tuned"
    assert overview([*tuned, *scratch]).startswith("- **Trained from scratch** (64 px, width 16, 30 epochs per task")


def test_another_stem_or_rate_of_later_tasks_is_named_in_the_scale_and_the_usual_one_is_not() -> None:
    [usual] = _seeds("bic", 60.0, network__stem="7x7", train__later_factor=1.0)
    [other] = _seeds("bic", 60.0, network__stem="3x3-pool", train__later_factor=0.5)
    assert shared_budget(usual.settings) == "64 px, width 16, 30 epochs per task"
    assert shared_budget(other.settings) == (
        "64 px, width 16, stem 3x3-pool, 30 epochs per task, later tasks at 0.5 of the learning rate"
    )
    table = ledger_table([usual, other])
    assert [row[0] for row in table.rows] == ["BiC", "BiC"]  # the sections tell them apart
    assert len(set(table.sections)) == 2


def test_the_overview_says_what_the_training_part_has_seen_of_the_test_images() -> None:
    entries = [e for i, name in enumerate(COMPARED) for e in _seeds(name, 40.0 + i, 41.0 + i)]
    methods = (("analytic", 80.0), ("multistage", 90.0))
    for data, rate in (("all", 1.0), ("some", 0.325), ("none", 0.0)):
        more = {**FROZEN, "leaks": {"group_in_train": rate}}
        entries += [e for name, v in methods for e in _seeds(name, v, v, data=data, **more)]
    apart = {**FROZEN, "leaks": {"group_in_train": 0.0}, "scenario__split_by": "group"}
    entries += [e for name, v in methods for e in _seeds(name, v - 60, v - 60, data="all", **apart)]
    sentence = overview(entries).splitlines()[-1]
    assert "MultiStage, a method of this project, ends at 90.0 % on all (every test image shows a video or" in sentence
    assert "trained on; split by video or patient, such methods end at 20.0 to 30.0 %), 90.0 % on none" in sentence
    assert "90.0 % on some (32 % of the test images show a video or patient that was trained on)." in sentence


def test_a_variant_stands_beside_its_method_with_default_options_over_the_seeds_that_both_have() -> None:
    def rows(*entries: Entry) -> dict[Any, tuple[Any, ...]]:
        whole = [replace(entry, settings=completed(entry.settings)) for entry in entries]
        return {row[0]: row[1:] for row in variants_table(whole).rows}

    usual = [*_seeds("endocil", 70.0, 71.0, 72.0), *_seeds("bic", 60.0, 61.0)]
    assert rows(*usual) == {}
    found = rows(
        *usual,
        *_seeds("endocil", 71.0, 72.2, method__reduction="weights"),
        *_seeds("endocil", 66.0, 68.0, method__gradients="plain"),  # a row of the ablation
        *_seeds("endocil", 66.0, 68.0, memory__per_class=50),  # of another comparison
        *_seeds("bic", 59.0, network__stem="3x3-pool"),
    )
    assert found.keys() == {"EndoCIL (reduction=weights)", "BiC (network.stem=3x3-pool)"}
    shared, last, _, difference, _, p = found["EndoCIL (reduction=weights)"]
    assert (shared, last.mean, difference, p) == (2, 71.6, "+1.10", f"{paired_t_p([1.0, 1.2]):.2g}")
    assert found["BiC (network.stem=3x3-pool)"][3:] == ("-1.00", "-1.00", None)


def test_a_table_names_the_number_of_exemplars_only_where_a_method_keeps_any() -> None:
    [found] = comparisons([e for m in ("finetune", "endocil") for e in _seeds(m, 60.0, 61.0)])
    assert found.scale.endswith("30 exemplars per class")
    without = [replace(e, exemplars=0) for m in ("analytic", "multistage") for e in _seeds(m, 60.0, 61.0, **FROZEN)]
    [found] = comparisons(without)
    assert found.scale == "64 px, frozen efficientnet-lite0 (imagenet)"


def test_a_ledger_without_two_methods_says_so() -> None:
    assert side_by_side_text(comparisons(_seeds("icarl", 60.0))).startswith("The ledger has no data set with 2 methods")


NAMES = ("endocil", "icarl", "bic")


def _three_data_sets() -> list[Entry]:
    values = {"endocil": 70.0, "icarl": 60.0, "bic": 50.0}
    return [e for data in "abc" for m, v in values.items() for e in _seeds(m, v, v + 1, data=data)]


def test_ranks_come_from_complete_data_sets_alone_with_friedmans_test() -> None:
    entries = [*_three_data_sets(), *_seeds("endocil", 1.0, 2.0, data="d"), *_seeds("icarl", 3.0, 4.0, data="d")]
    [found] = comparisons(entries)
    ranks = ranks_over_data(found, NAMES)
    assert ranks.data == ("a", "b", "c")
    assert dict(zip(ranks.methods, ranks.mean, strict=True)) == {"EndoCIL": 1.0, "iCaRL": 2.0, "BiC": 3.0}
    expected = stats.friedmanchisquare(*([value] * 3 for value in (70.5, 60.5, 50.5)))
    assert (ranks.statistic, ranks.p) == pytest.approx((expected.statistic, expected.pvalue))


def test_with_too_few_data_sets_the_command_says_what_is_missing_instead_of_drawing(tmp_path: Path) -> None:
    entries = [*_seeds("endocil", 60.0, 61.0), *_seeds("icarl", 50.0, 51.0), *_seeds("bic", 40.0)]
    [found] = comparisons(entries)
    with pytest.raises(EndocilError, match=r"complete: none; mine lacks BiC"):  # one seed of it
        ranks_over_data(found, NAMES)
    assert ranks_text(found, "ranks.svg").startswith("No ranks yet: ranks need 2 data sets")
    assert ranks_text(None, "ranks.svg").startswith("No ranks yet")
    (tmp_path / "ledger").mkdir()
    with pytest.raises(EndocilError, match="ranks need 2 data sets"):
        plot(tmp_path / "ranks.svg", tmp_path / "ledger", "ranks")
    two = ranked(["a", "b", "c"], ["x", "y"], [[3, 3], [2, 2], [1, 1]])
    with pytest.raises(EndocilError, match="2 data sets are too few for a diagram of 3 methods"):
        write_rank_plot(two, tmp_path / "ranks.svg")
    assert list(tmp_path.glob("*.svg")) == []


def test_the_diagram_joins_the_methods_that_differ_by_less_than_the_critical_difference(tmp_path: Path) -> None:
    ranks = ranked(list("abcd"), [str(i) for i in range(20)], [[4] * 20, [3] * 20, [1, 2] * 10, [2, 1] * 10])
    assert ranks.mean == (1.0, 2.0, 3.5, 3.5)
    assert 1.0 < ranks.critical_difference < 1.5
    assert ranks.not_different() == [(0, 1), (2, 3)]
    (axis,) = rank_figure(ranks).axes
    texts = [text.get_text().strip() for text in axis.texts]
    assert {"a 1.00", "b 2.00", "c 3.50", "d 3.50", f"critical difference {ranks.critical_difference:.2f}"} <= set(
        texts
    )
    files = [tmp_path / "one.svg", tmp_path / "other.svg"]
    for file in files:
        write_rank_plot(ranks, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_summary_says_what_is_highest_what_is_noise_and_what_is_missing() -> None:
    entries = [
        *_seeds("bic", 70.0, 72.0, 74.0),
        *_seeds("endocil", 68.0, 73.0, 72.5),
        *_seeds("icarl", 60.1, 61.9, 64.0),
        *_seeds("endocil", 50.0, 52.0, scenario__split_by="group"),
        *_seeds("icarl", 51.0, 50.0, scenario__split_by="group"),
    ]
    whole, by_group = summary(entries).splitlines()
    p = stats.ttest_rel([70.0, 72.0, 74.0], [68.0, 73.0, 72.5]).pvalue
    assert whole.startswith(
        "- **mine** (3 of the paper's 12 methods so far): BiC has the highest accuracy after the last task (72.0 %); "
        "EndoCIL is within noise of it; EndoCIL (71.2 %) ends 0.8 points below BiC "
        f"(not significant over 3 seeds, p = {p:.2g});"
    )
    assert "EndoCIL ends 7.9 to 11.1 points above iCaRL with each of 3 seeds (significant, p = 0.0" in whole
    assert by_group.startswith(
        "- **mine, split by group**: EndoCIL ends 0.5 points above iCaRL on average, but not with every seed (not"
    )
    assert summary([]) == "Nothing was run yet.\n"


def test_leaks_stand_for_each_split_and_older_entries_have_none() -> None:
    leaks = {"test_images": 100, "exact_in_train": 0.0, "near_in_train": 0.1875, "group_in_train": None}
    entries = [
        _entry("icarl", 0, 60.0),
        _entry("icarl", 1, 60.0, leaks=leaks),
        _entry("icarl", 0, 60.0, scenario__split_by="group"),
    ]
    table = leaks_table(entries)
    assert [row[:5] for row in table.rows] == [
        ("mine", "100", "0.0 %", "18.8 %", None),
        ("mine, split by group", "100", *("not recorded",) * 3),
    ]


def test_alignment_factors_stand_by_task_and_experiments_without_them_are_named() -> None:
    entries = [
        _entry("wa", 0, 60.0, measured={"alignment": [None, 0.8]}),
        _entry("wa", 1, 60.0, measured={"alignment": [None, 1.2]}),
        _entry("der", 0, 60.0),
        _entry("icarl", 0, 58.0),
    ]
    text = alignment_text(entries)
    assert "| Method | Seeds | Task 2 |" in text
    assert "| WA | 2 | 1.00 ± 0.28 |" in text
    assert "Factors not recorded: DER on mine: 64 px, width 16, 30 epochs per task." in text
    assert "- mine: WA +2.0 (one seed shows nothing about noise); DER +2.0 (one seed" in text


def test_entries_are_put_together_whatever_the_order_of_their_settings() -> None:
    one, other = _entry("icarl", 0, 60.0), _entry("icarl", 1, 60.0)
    settings = json.loads(json.dumps(other.settings, sort_keys=True))
    turned = Entry(other.file, settings, other.metrics, other.exemplars)
    [found] = comparisons([one, turned, *_seeds("bic", 50.0, 51.0)])
    assert {len(group.seeds) for group in found.data_sets[0].methods} == {2}
