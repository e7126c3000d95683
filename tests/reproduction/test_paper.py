"""The paper beside a made-up ledger: what is compared, what is kept apart, and how each claim is judged."""

from pathlib import Path
from typing import Any

import pytest
from paper_runs import CLASSES, PRESETS, places_of, run_of, seeds_of
from scipy import stats

from endocil.metrics.metrics import TABLE_METRICS
from endocil.reports.ledger import Entry, insert_texts
from reproduction.__main__ import page, texts
from reproduction.claims import METRIC_TITLES, claims, finding, t_quantile
from reproduction.page import claims_text, results_page, verdicts_text
from reproduction.paper import Place, ablation_rows, main_rows, paper
from reproduction.tables import judged

# What the paper tells of its runs.
SCALE: dict[str, dict[str, Any]] = {
    "data": {"size": 256},
    "scenario": {"minimum": 100, "split_by": "image", "order": "alphabetical"},
    "network": {"backbone": "resnet18", "width": 64},
    "train": {
        "epochs": 100,
        "learning_rate": 0.1,
        "momentum": 0.9,
        "milestones": [0.5, 0.7],  # 50 and 70 of 100
        "decay": 0.1,
        "batch_size": 64,
        "first_weight_decay": 0.0005,
        "weight_decay": 0.0002,
    },
}


def _components(mdbr: bool, prcbl: bool, cfg: bool, *values: float) -> list[Entry]:
    return seeds_of(
        "endocil",
        *values,
        select="mmd" if mdbr else "mean",
        method__loss="prior_regularized" if prcbl else "cross_entropy",
        method__gradients="calibrated" if cfg else "plain",
    )


def _claim(words: str) -> Any:
    [found] = [claim for claim in claims() if words in claim["says"]]
    return found


def test_the_papers_data_is_whole_and_its_text_agrees_with_its_tables() -> None:
    rows = main_rows()
    assert len(rows) == 4 * (4 + 3 * 9)
    for buffer, metric, margins in (
        (30, "acc_last", [1.57, 0.59, 3.26, 8.02]),
        (40, "acc_avg", [1.15, 0.47, 1.06, 1.15]),
    ):
        for data, margin in zip(paper()["data"], margins, strict=True):
            scores = sorted(row.values[metric] or 0 for row in rows if (row.data, row.buffer) == (data, buffer))
            own = next(r for r in rows if (r.data, r.buffer, r.method) == (data, buffer, "endocil"))
            assert own.values[metric] == scores[-1]
            assert scores[-1] - scores[-2] == pytest.approx(margin, abs=1e-9)
    ablation = ablation_rows()
    assert len({row.components for row in ablation}) == 8
    full, none = ablation[-1].values, ablation[0].values
    gains = [round((full[m] or 0) - (none[m] or 0), 2) for m in TABLE_METRICS]
    assert gains == [4.47, 5.37, 3.27, 4.01, -9.26]


def test_every_accuracy_of_the_paper_is_a_whole_number_of_its_test_images() -> None:
    for row in main_rows():
        n = paper()["data"][row.data]["test_images"]
        right = round((row.values["acc_last"] or 0) * n / 100)
        assert round(100 * right / n, 2) == row.values["acc_last"]


def test_the_quantiles_of_t_are_those_of_printed_tables() -> None:
    for freedom, quantile in ((1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042)):
        assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)
    assert t_quantile(2, 0.5) == pytest.approx(0.816, abs=5e-4)


def test_a_difference_is_judged_by_one_more_run_on_other_images() -> None:
    ours, tested = [73.0, 74.0, 75.0], 2103
    seeds = stats.t.ppf(0.975, 2) * 1.0 * (1 + 1 / 3) ** 0.5  # the seeds' standard deviation is 1
    images = 1.96 * 100 * (2 * 0.8 * 0.2 / tested) ** 0.5
    assert judged("acc_last", 80.0, ours, tested) == "worse"  # 6.0 points
    assert (seeds**2 + images**2) ** 0.5 == pytest.approx(5.52, abs=0.01)
    assert judged("acc_last", 79.0, ours, tested) == "within noise"  # 5.0 points
    assert judged("acc_last", 60.0, ours, tested) == "better"
    assert judged("af", 60.0, ours, tested) == "worse"
    assert judged("acc_last", 60.0, [74.0], tested) == "one seed"


def test_runs_at_the_papers_scale_stand_beside_its_numbers_and_others_apart() -> None:
    small = seeds_of("icarl", 50.0, 51.0, data__size=64)
    text = results_page(places_of([*seeds_of("icarl", 73.0, 74.0), *seeds_of("wa", 60.0), *small]))
    lines = text.splitlines()
    [row] = [line for line in lines if line.startswith("| 30 | iCaRL | 2 |")]
    assert "| 73.66; 73.50 ± 0.71 (-0.16, within noise) |" in row
    [row] = [line for line in lines if line.startswith("| 30 | WA | 1 |")]
    assert "72.33; 60.00 (-12.33, one seed)" in row
    [line] = [line for line in lines if line.startswith("Not run: without exemplars: JointTrain, Finetune")]
    assert "; 30 exemplars per class: BiC, DER," in line
    assert "EndoCIL" in line
    assert "another: data.size 64 instead of 256" in text
    assert "Not run at the paper's scale: Gastrovision, Kvasir-Capsule, Capsule Vision." in text
    apart = text[text.index("## Runs at another scale") :]
    assert "50.50 ± 0.71" in apart
    assert "73.50" not in apart


def test_another_split_and_other_tasks_are_another_scale() -> None:
    [place] = places_of(seeds_of("icarl", 70.0, scenario__split_by="group"))
    assert place.deviations == ("scenario.split_by group instead of image",)
    entry = run_of("icarl", 0, 70.0)
    other = Entry(entry.file, entry.settings, {**entry.metrics, "task_sizes": [8, 8], "test_images": [9, 99]}, 1)
    assert places_of([other])[0].deviations == (
        "tasks of 8, 8 classes instead of 4, 3, 3, 3, 3",
        "99 test images instead of 2,103",
    )


def test_fine_tuned_methods_with_rates_of_their_own_are_one_place_that_names_them() -> None:
    entries = seeds_of("icarl", 70.0, network__weights="imagenet", train__learning_rate=0.03)
    entries += seeds_of("foster", 71.0, network__weights="imagenet", train__learning_rate=0.1)
    [place] = places_of(entries)
    assert [method.label for method in place.methods] == ["iCaRL", "FOSTER"]
    assert place.deviations == (
        "network.weights imagenet instead of none",
        "train.learning_rate 0.03 and 0.1 by method instead of 0.1",
    )


def test_the_presets_are_what_the_paper_tells() -> None:
    for data, settings in PRESETS.items():
        for section, wanted in SCALE.items():
            assert {key: settings[section][key] for key in wanted} == wanted, (data, section)
        assert settings["scenario"]["increments"] == paper()["data"][data]["increments"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"network__weights": "imagenet.pth"}, "network.weights imagenet.pth instead of none"),
        ({"network__freeze": ["stem", "layer1"]}, "network.freeze stem, layer1 instead of none"),
        ({"network__stem": "3x3"}, "network.stem 3x3 instead of 7x7"),
        ({"scenario__order": "seeded"}, "scenario.order seeded instead of alphabetical"),
        ({"scenario__validation": 0.2}, "scenario.validation 0.2 instead of 0.0"),
        ({"scenario__leave_out": ["polyps"]}, "scenario.leave_out polyps instead of none"),
        ({"train__crop": True}, "train.crop true instead of false"),
        ({"train__flip": 0.0}, "train.flip 0.0 instead of 0.5"),
        ({"train__precision": "bf16"}, "train.precision bf16 instead of 32"),
        ({"data__crop_frame": True}, "data.crop_frame true instead of false"),
    ],
)
def test_a_run_that_may_give_another_result_is_not_at_the_papers_scale(change: Any, told: str) -> None:
    [place] = places_of(seeds_of("icarl", 70.0, **change))
    assert place.deviations == (told,)


@pytest.mark.parametrize(
    "change",
    [
        {"data__root": "$ELSEWHERE"},
        {"data__skip_unreadable": True},
        {"scenario__split_seed": 7},
        {"scenario__tasks": 5},
        {"train__compile": True},
        {"train__accumulate": 2},
    ],
)
def test_what_the_paper_does_not_tell_or_changes_no_result_may_differ(change: Any) -> None:
    [place] = places_of(seeds_of("icarl", 70.0, **change))
    assert place.deviations == ()


def test_two_splits_at_the_papers_scale_are_both_shown() -> None:
    ledger = [
        *seeds_of("icarl", 73.0, 74.0),
        *seeds_of("wa", 60.0, 61.0),
        *seeds_of("icarl", 50.0, 51.0, scenario__split_seed=7),
        *seeds_of("endocil", 90.0, 91.0, scenario__split_seed=7),
    ]
    found = places_of(ledger)
    assert [place.suffix for place in found] == [" (scenario.split_seed=1993)", " (scenario.split_seed=7)"]
    text = results_page(found)
    assert "1 of the paper's 4 data sets was run at its scale." in text
    for split, value in (("1993", "73.50 ± 0.71"), ("7", "50.50 ± 0.71")):
        start = text.index(f"### Hyper-Kvasir (scenario.split_seed={split})")
        table = text[start : text.index("##", start + 3)]
        assert value in table
        assert f"- Hyper-Kvasir (scenario.split_seed={split}), at the paper's scale: **undecided**" in text
    assert "| 4, 3, 3, 3, 3 | 2,103 | 2 methods, 0 ablation rows (scenario.split_seed=1993); 2 methods," in text
    assert "Hyper-Kvasir (scenario.split_seed=7): undecided (2 seeds); 3 not run" in text


def _kvasir_capsule(*known: tuple[str, float], rest: float | None) -> Place:
    """EndoCIL at 70 over three seeds, the named methods as given, the paper's other methods at `rest`."""
    others = {row.method for row in main_rows() if row.buffer in (30, None)} - {"endocil", "joint"}
    values = ({} if rest is None else dict.fromkeys(sorted(others), rest)) | dict(known)
    entries = [e for name, value in values.items() for e in seeds_of(name, value, value + 1, value + 2.1)]
    [place] = places_of([*entries, *seeds_of("endocil", 70.0, 71.1, 72.0)])
    return place


def test_being_below_some_needs_one_clear_rival_for_each_task() -> None:
    claim = {**_claim("EndoCIL is below some methods"), "data": ["hyper-kvasir"]}
    told = finding(claim, _kvasir_capsule(("dgr", 80.0), rest=60.0))
    assert told.verdict == "holds"
    assert "after task 1 DGR against it +10.0" in told.reason
    # One strong rival is enough, whatever was not run.
    assert finding(claim, _kvasir_capsule(("dgr", 80.0), rest=None)).verdict == "holds"
    assert finding(claim, _kvasir_capsule(rest=60.0)).verdict == "does not hold"
    # A weak rival alone says nothing of those that were not run.
    told = finding(claim, _kvasir_capsule(("finetune", 60.0), rest=None))
    assert told.verdict == "undecided"
    assert "not run: BiC, DER, DGR, EWC, FOSTER, LwF, MEMO, MRFA, WA, iCaRL" in told.reason


def test_the_best_of_many_rivals_needs_a_wider_interval() -> None:
    claim = {**_claim("EndoCIL is below some methods"), "data": ["hyper-kvasir"]}
    own = seeds_of("endocil", 70.0, 71.0, 72.0)
    # Differences 1.3, 2.0, 2.7: mean 2.0, half of the t interval at 95 %: 4.303 * 0.7 / sqrt(3) = 1.7
    near = [71.3, 73.0, 74.7]
    [alone] = places_of([*own, *seeds_of("dgr", *near)])
    assert finding(claim, alone).verdict == "holds"
    [among] = places_of([*own, *seeds_of("dgr", *near), *seeds_of("wa", 50.0, 51.3, 52.0)])
    told = finding(claim, among)
    half = stats.t.ppf(1 - 0.05 / 4, 2) * stats.tstd([1.3, 2.0, 2.7]) / 3**0.5
    assert told.verdict == "undecided"
    assert f"after task 1 DGR against it +2.0 (± {half:.1f} over 3 seeds)" in told.reason
    assert "(± widened for the best of 2)" in told.reason


def test_every_metric_of_a_claim_has_a_name() -> None:
    assert all(METRIC_TITLES[name] for claim in claims() for name in claim.get("metrics", ()))
    ledger = [*_components(False, False, False, 60.0, 61.0), *_components(False, True, False, 66.0, 68.0)]
    told = finding(_claim("raises the mean of the classes' accuracies"), places_of(ledger)[0])
    assert told.reason.startswith("Balanced accuracy after the last task, PRCBL against none +6.5")


def test_a_lead_holds_fails_or_stays_open() -> None:
    claim = {**_claim("On Kvasir-Capsule EndoCIL is the best"), "data": ["hyper-kvasir"]}
    rest = [row.method for row in main_rows() if row.buffer == 30 and row.data == "hyper-kvasir"]
    rest = [*rest, "finetune", "ewc", "lwf"]
    others = [e for method in rest if method != "endocil" for e in seeds_of(method, 60.0, 61.0, 62.0)]
    [place] = places_of([*others, *seeds_of("endocil", 70.0, 71.1, 72.0)])
    assert finding(claim, place).verdict == "holds"
    [place] = places_of([*others, *seeds_of("endocil", 61.0, 60.0, 62.5)])
    assert finding(claim, place).verdict == "undecided"
    [place] = places_of([*others, *seeds_of("endocil", 50.0, 51.1, 52.0)])
    told = finding(claim, place)
    assert told.verdict == "does not hold"
    assert "clearly not in 11" in told.reason
    [place] = places_of([*seeds_of("icarl", 60.0, 61.0), *seeds_of("endocil", 70.0, 71.1)])
    assert finding(claim, place).verdict == "undecided"
    assert "not run: BiC" in finding(claim, place).reason
    [place] = places_of(seeds_of("icarl", 60.0))
    assert not finding(claim, place).run


def test_one_seed_says_nothing_and_only_shared_seeds_are_compared() -> None:
    claim = _claim("DGR is slightly ahead of EndoCIL after the first task")
    [place] = places_of([*seeds_of("dgr", 90.0), *seeds_of("endocil", 50.0)])
    told = finding(claim, place)
    assert (told.verdict, told.reason) == ("undecided", "after task 1 +40.0 (one seed)")
    # Differences 2.0 and 3.0: mean 2.5, t interval 12.706 * 0.7071 / sqrt(2) = 6.353
    [place] = places_of([*seeds_of("dgr", 72.0, 74.0, 99.0), *seeds_of("endocil", 70.0, 71.0)])
    assert finding(claim, place).reason == "after task 1 +2.5 (± 6.4 over 2 seeds)"
    [place] = places_of([run_of("dgr", 0, 70.0), run_of("endocil", 1, 60.0)])
    assert finding(claim, place).reason == "no seed is shared"


def test_the_components_claims_follow_from_the_ablation() -> None:
    ledger = [
        *_components(False, False, False, 60.0, 61.0, 62.0),
        *_components(False, False, True, 58.0, 59.1, 60.0),
        *_components(False, True, False, 66.0, 67.1, 68.0),
        *_components(True, False, False, 60.1, 61.0, 61.9),
        *_components(False, True, True, 60.0, 61.1, 62.0),
    ]
    [place] = places_of(ledger)
    assert finding(_claim("CFG alone"), place).verdict == "holds"
    assert finding(_claim("CFG together with PRCBL"), place).verdict == "does not hold"
    assert finding(_claim("PRCBL is the component"), place).verdict == "holds"
    assert finding(_claim("All three components"), place).reason == "not run: all three"
    text = results_page([place])
    assert "✓ | 3 | 69.95; 59.03 ± 1.00 (-10.92, worse) |" in text


def test_ranks_of_the_paper_are_those_of_scipy() -> None:
    text = results_page([])
    rows = [row for row in main_rows() if row.buffer == 30]
    methods = list(dict.fromkeys(row.method for row in rows))
    scores = [[row.values["acc_last"] for row in rows if row.method == method] for method in methods]
    expected = stats.friedmanchisquare(*scores)
    assert f"Friedman {expected.statistic:.1f}, p {expected.pvalue:.2g}." in text
    assert "- The paper, 30 per class, 4 data sets: EndoCIL 1.00," in text  # the best on all four
    assert "- Ours, 30, 40, 50 per class: not run on two data sets." in text


def test_our_ranks_need_two_data_sets() -> None:
    facts = paper()["data"]["gastrovision"]
    entries = []
    for method, value in (("icarl", 60.0), ("wa", 50.0)):
        entries.append(run_of(method, 0, value))
        other = run_of(method, 0, value + 1, data__name="gastrovision")
        metrics = {**other.metrics, "test_images": [0, 0, 0, 0, facts["test_images"]]}
        entries.append(Entry(other.file, other.settings, metrics, 480))
    text = results_page(places_of(entries))
    assert "- Ours, 30 per class, 2 data sets: iCaRL 1.00, WA 2.00. Friedman 2.0" in text


def test_every_number_of_the_papers_per_class_table_is_a_whole_number_of_images() -> None:
    rows = paper()["per_class"]["rows"]
    assert sum(n for _, n in CLASSES) == paper()["data"]["hyper-kvasir"]["test_images"]
    for (_, values), mean in zip(rows, (66.92, 71.51), strict=True):
        assert round(sum(values) / len(values), 2) == mean
        for value, (_, n) in zip(values, CLASSES, strict=True):
            assert round(100 * round(value * n / 100) / n, 2) == value


def test_classes_stand_beside_those_of_the_paper() -> None:
    ledger = [*_components(False, False, False, 60.0, 61.0), *_components(False, True, False, 66.0, 68.0)]
    text = results_page(places_of(ledger))
    assert "| Class | Test images | CE, our seeds: 2 | PRCBL, our seeds: 2 |" in text
    # impacted-stool: 27 test images, so that half the interval of the images alone is 1.96 * 100 * sqrt(2 / 4 / 27)
    assert (
        "| impacted-stool | 27 | 100.00; 60.50 ± 0.71 (-39.50, worse) | 96.30; 67.00 ± 1.41 (-29.30, within noise) |"
        in text
    )
    table = text[text.index("## Table 4 of the paper") :]
    assert table.splitlines()[4].startswith("Run: 16 of 16 rows; of their numbers ")


def test_the_page_says_first_what_may_be_believed() -> None:
    nothing = results_page([])
    assert "Nothing was run at the paper's scale on any of its 4 data sets" in nothing
    ledger = [*_components(False, False, False, 60.0, 61.0, 62.0), *_components(False, False, True, 58.0, 59.1, 60.0)]
    text = results_page(places_of(ledger))
    assert "1 of the paper's 4 data sets was run at its scale." in text
    short = text[: text.index("## What was run")]
    assert "| CFG alone, with cross-entropy, lowers Acc_last. | Hyper-Kvasir: holds (3 seeds) | not run |" in short
    assert "| With 30 exemplars per class EndoCIL has the highest Acc_last on all four data sets. |" in short
    assert len([line for line in short.splitlines() if line.startswith("| ")]) == 1 + len(claims())


def test_methods_are_told_by_their_seeds_and_those_that_were_not_run() -> None:
    text = results_page(places_of([*seeds_of("icarl", 73.0, 74.0), *seeds_of("wa", 60.0)]))
    [line] = [line for line in text.splitlines() if line.startswith("- Hyper-Kvasir: 2 seeds")]
    assert line.startswith("- Hyper-Kvasir: 2 seeds: iCaRL; 1 seed: WA; not run: BiC, DER,")
    assert "Run: 2 of 31 rows; of their numbers " in text
    others = results_page(places_of(seeds_of("simplecil", 50.0)))
    assert "- Hyper-Kvasir: 1 seed: SimpleCIL; none of the paper's methods." in others


def test_data_of_ones_own_is_told_with_all_that_differs() -> None:
    [place] = places_of(seeds_of("icarl", 70.0, data__name="folder", train__epochs=30))
    assert place.deviations == (
        "not one of the paper's data sets",
        "train.epochs 30 instead of 100",
        "train.milestones 15, 21 instead of 50, 70",
    )
    [same] = places_of(seeds_of("icarl", 70.0, data__name="folder", train__milestones=[50, 70]))
    assert same.deviations == ("not one of the paper's data sets",)


def test_the_projects_page_is_what_the_command_writes_from_its_ledger() -> None:
    ledger = Path(__file__).parents[2] / "docs" / "results"
    stored = (ledger / "README.md").read_text("utf-8")
    assert stored == page(ledger), "run: python -m reproduction -o docs/results/README.md"
    assert insert_texts(ledger.with_suffix(".md"), texts(ledger), kind="paper", check=True) is False, "make results"


def test_what_was_not_run_is_one_line() -> None:
    text = results_page([])
    assert (
        f"Not run at any scale: claims 1, 2, {', '.join(map(str, range(3, len(claims()))))} and {len(claims())}."
        in text
    )
    assert "### " not in text
    assert text.count("Nothing was run at the paper's scale: no rows to compare.") == 1
    some = results_page(places_of([*seeds_of("icarl", 73.0, 74.0), *seeds_of("endocil", 75.0, 76.0)]))
    assert "Not run: all rows of Gastrovision, Kvasir-Capsule and Capsule Vision." in some
    assert "### Gastrovision" not in some


def test_a_claim_on_a_data_set_is_judged_there_at_another_scale_with_scale_and_seeds() -> None:
    small = [*seeds_of("dgr", 72.0, 74.0, data__size=64), *seeds_of("endocil", 70.0, 71.0, data__size=64)]
    text = verdicts_text(places_of(small)) + claims_text(places_of(small))
    [row] = [line for line in text.splitlines() if "DGR is slightly ahead of EndoCIL after the first task" in line]
    assert row.endswith("| Undecided: Hyper-Kvasir, 2 seeds |")
    assert "At another scale, 64 px, width 64, 100 epochs per task where no other is named" in text
    assert "- **Undecided** wherever they were run: 1, 4 and 6.\n" in text
    large = [*seeds_of("dgr", 72.0, 74.0, data__size=96), *seeds_of("endocil", 70.0, 71.0, data__size=96)]
    [row] = [line for line in claims_text(places_of([*small, *large])).splitlines() if line.startswith("| 4 |")]
    assert "Undecided: Hyper-Kvasir, 2 seeds. At 96 px, width 64, 100 epochs per task: Undecided: Hyper-K" in row
    assert "- **Holds**: none.\n" in text


def test_a_claim_that_holds_or_does_not_is_named_in_words_with_its_data() -> None:
    clear = [*_components(False, False, False, 60.0, 61.0, 62.0), *_components(False, False, True, 58.0, 59.1, 60.0)]
    text = verdicts_text(places_of(clear))
    assert "- **Holds**: CFG alone, with cross-entropy, lowers Acc_last (10; Hyper-Kvasir).\n" in text
    assert "- **Does not hold**: none.\n" in text
    assert " 10" not in text.partition("**Undecided**")[2]
    part: Any = {"data__name": "folder", "data__root": "$HYPER_KVASIR_PART", "method__loss": "cross_entropy"}
    unclear = [
        *seeds_of("endocil", 60.0, 70.0, select="mean", method__gradients="plain", **part),
        *seeds_of("endocil", 61.0, 69.0, select="mean", method__gradients="calibrated", **part),
    ]
    assert "lowers Acc_last (10; Hyper-Kvasir; undecided elsewhere)." in verdicts_text(places_of([*clear, *unclear]))


def test_a_claim_on_a_data_set_is_judged_on_a_part_of_it_under_the_parts_name() -> None:
    part = {"data__name": "folder", "data__root": "$HYPER_KVASIR_PART"}
    places = places_of([*seeds_of("dgr", 72.0, 74.0, **part), *seeds_of("endocil", 70.0, 71.0, **part)])
    rows = [line for line in claims_text(places).splitlines() if "DGR is slightly ahead of EndoCIL after" in line]
    assert [row.rpartition("| Undecided")[2] for row in rows] == [": Hyper-Kvasir part, 2 seeds |"]
