"""The ladder of scale and the table of buffers, from invented runs on Hyper-Kvasir beside the paper's numbers."""

import itertools
from typing import Any

import pytest
from paper_runs import places_of, seeds_of
from scipy import stats

from endocil.io.text_tables import DASH
from endocil.reports.ledger import Entry
from reproduction.ladder import BUFFER, buffers_text, chance, ladder_text
from reproduction.page import results_page
from reproduction.paper import main_rows

FIVE = ("endocil", "icarl", "bic", "dgr", "foster")
SMALL = {"data__size": 64, "network__width": 16}
LARGE = {"data__size": 96, "network__width": 32}
TUNED: dict[str, Any] = {"data__size": 96, "network__width": None, "network__backbone": "efficientnet-lite0"}
TUNED |= {"network__weights": "imagenet", "network__freeze": ["stem", "stage1"]}
PAPERS = {
    row.method: float(row.values["acc_last"] or 0)
    for row in main_rows()
    if row.data == "hyper-kvasir" and row.buffer in (BUFFER, None)
}


def _runs(values: dict[str, float], **scale: Any) -> list[Entry]:
    return [e for name, value in values.items() for e in seeds_of(name, value, value + 0.1, **scale)]


def _rows(text: str) -> dict[str, list[str]]:
    """The cells of each row of tables, by kind and scale."""
    cells = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {f"{row[0]}: {row[1]}": row[2:] for row in cells}


def test_each_scale_has_its_own_order_and_its_rank_correlation_with_the_paper() -> None:
    like_the_paper = {name: PAPERS[name] for name in FIVE}
    turned = {name: 100 - value for name, value in like_the_paper.items()}
    entries = [*_runs(turned, **SMALL), *_runs(like_the_paper, **LARGE), *_runs(turned, **TUNED)]
    entries += seeds_of("wa", 1.0, 1.1, **SMALL)  # of the smallest scale alone
    entries += _runs({"finetune": 1.0, "lwf": 2.0, "ewc": 3.0, "joint": 90.0}, **SMALL)  # without a memory
    text = ladder_text(places_of(entries))
    rows = _rows(text)
    small = rows["Trained from scratch: 64 px, width 16, 100 epochs per task"]
    large = rows["Trained from scratch: 96 px, width 32, 100 epochs per task"]
    tuned = rows[
        "Fine-tuned: 96 px, fine-tuned efficientnet-lite0 (imagenet), stem to stage1 frozen, 100 epochs per task"
    ]
    assert large[1] == "EndoCIL 78.2 > FOSTER 76.6 > DGR 76.5 > iCaRL 73.7 > BiC 71.6"
    assert small[1] == tuned[1] == "BiC 28.5 > iCaRL 26.4 > DGR 23.6 > FOSTER 23.5 > EndoCIL 21.9"  # without WA
    assert (large[3], small[3], tuned[3]) == ("1.00 (p = 0.017)", "-1.00 (p = 0.017)", "-1.00 (p = 0.017)")
    assert small[4].endswith(", 6 methods")
    assert large[4] == tuned[4] == DASH
    assert float(large[2].partition(" ")[0]) == pytest.approx(PAPERS["endocil"] - PAPERS["icarl"], abs=0.06)
    [paper] = [own for key, own in rows.items() if "The paper, Hyper-Kvasir: 256 px" in key]
    assert paper[1].startswith("EndoCIL 78.13, FOSTER 76.56")
    told = "the order of BiC, DGR, EndoCIL, FOSTER and iCaRL moves towards the paper's (rank correlation -1.00 at 64 px"
    assert told in text
    assert "but with 5 methods only one of 1.00 or more can be told from chance" in text
    assert "## The ladder of scale" in results_page(places_of(entries))


def test_neighbours_within_noise_are_marked_and_one_seed_tells_nothing() -> None:
    noisy = [*seeds_of("endocil", 70.0, 60.0, 65.0, **SMALL), *seeds_of("icarl", 60.0, 69.0, 65.0, **SMALL)]
    noisy += [*seeds_of("bic", 50.0, **SMALL), *seeds_of("wa", 40.0, **SMALL)]
    [row] = [own for key, own in _rows(ladder_text(places_of(noisy))).items() if "64 px" in key]
    assert row[:2] == ["1 or 3", "EndoCIL 65.0 ≈ iCaRL 64.7 ≈ BiC 50.0 ≈ WA 40.0"]


def test_a_stem_another_split_other_buffers_and_few_methods_are_no_step_of_the_ladder() -> None:
    values = {name: PAPERS[name] for name in FIVE}
    others: list[dict[str, Any]] = [{"network__stem": "3x3-pool"}, {"scenario__split_by": "group"}]
    for other in (*others, {"memory__per_class": 50}):
        assert ladder_text(places_of(_runs(values, **SMALL, **other))).startswith("No data set has 3 of the paper's")
    two = {name: PAPERS[name] for name in FIVE[:2]}
    assert ladder_text(places_of(_runs(two, **SMALL))).startswith("No data set has")
    rows = _rows(ladder_text(places_of([*_runs(values, **SMALL), *_runs(two, **LARGE)])))
    large = rows["Trained from scratch: 96 px, width 32, 100 epochs per task"]
    assert large[3] == DASH  # two methods have an order, but no rank correlation
    assert large[1].startswith("EndoCIL")


def test_the_probability_of_a_rank_correlation_is_that_of_all_orders_or_scipys() -> None:
    own = [3.0, 1.0, 2.0, 4.0]
    rho = float(stats.spearmanr(own, range(4)).statistic)
    found = [stats.spearmanr(order, range(4)).statistic for order in itertools.permutations(range(4))]
    assert chance(rho, 4) == pytest.approx(sum(abs(r) >= abs(rho) - 1e-9 for r in found) / 24)
    many = [float(x) for x in (1, 0, 2, 3, 5, 4, 6, 9, 8, 7)]
    expected = stats.spearmanr(many, range(10))
    assert chance(float(expected.statistic), 10) == pytest.approx(expected.pvalue)


def test_buffers_stand_beside_each_other_over_the_seeds_that_all_have_and_beside_the_paper() -> None:
    entries = [*seeds_of("bic", 50.0, 51.0, 90.0), *seeds_of("icarl", 60.0, 61.0)]
    entries += [*seeds_of("bic", 52.0, 53.5, memory__per_class=40), *seeds_of("bic", 54.0, 55.5, memory__per_class=50)]
    text = buffers_text(places_of(entries))
    rows = [line for line in text.splitlines() if line.startswith("| BiC |")]
    assert len(rows) == 2  # of Acc_last and of Acc_avg
    cells = [cell.strip() for cell in rows[0].strip("| ").split(" | ")]
    assert cells[:5] == ["BiC", "2", "50.50 ± 0.71", "52.75 ± 1.06", "54.75 ± 1.06"]
    assert cells[5].startswith("+4.2 (± ")
    theirs = {
        row.buffer: row.values["acc_last"] for row in main_rows() if (row.data, row.method) == ("hyper-kvasir", "bic")
    }
    assert cells[6:] == [f"{theirs[size]:.2f}" for size in (30, 40, 50)]
    assert "iCaRL" not in text  # with one buffer
    page = results_page(places_of(entries))
    assert "2 seeds: BiC (40 exemplars per class), BiC (50 exemplars per class), iCaRL; " in page
    assert "3 seeds: BiC (30 exemplars per class)" in page
    assert buffers_text(places_of(seeds_of("bic", 50.0, 51.0))) == "No method was run with two numbers of exemplars.\n"
