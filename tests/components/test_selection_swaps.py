"""`refine="swap"`: lower MMD^2 than greedy, a local optimum, and an order whose beginnings are good."""

import math
from typing import Any

import pytest
import torch
from dense_mmd import CASES, cases, dense_kernel, gaussian, objective
from present import present
from torch import Tensor

from endocil.components.mmd import KernelMatrix, RowMeans, swapped
from endocil.components.selection import mmd_bound, select_by_mmd, squared_mmd


def swap_values(kernel: Tensor, chosen: list[int]) -> dict[tuple[int, int], float]:
    """MMD^2 after each exchange of one chosen row for one that is not, from its definition."""
    left = [j for j in range(len(kernel)) if j not in chosen]
    return {
        (place, j): objective(kernel, [*chosen[:place], j, *chosen[place + 1 :]])
        for place in range(len(chosen))
        for j in left
    }


def plain_swaps(kernel: Tensor, chosen: list[int]) -> list[int]:
    """The rule in plain loops: each place in turn takes the row that makes MMD^2 smallest, till nothing changes."""
    chosen, changed = list(chosen), True
    while changed:
        changed = False
        for place in range(len(chosen)):
            values = {j: v for (at, j), v in swap_values(kernel, chosen).items() if at == place}
            if min(values.values()) < objective(kernel, chosen) - 1e-12:
                chosen[place] = next(j for j, v in values.items() if v <= min(values.values()) + 1e-12)
                changed = True
    return chosen


def greedy_order(kernel: Tensor, members: list[int]) -> list[int]:
    """Members in the order in which greedy would choose them if there were no others."""
    order: list[int] = []
    while len(order) < len(members):
        left = {j: objective(kernel, [*order, j]) for j in sorted(members) if j not in order}
        order.append(next(j for j, value in left.items() if value <= min(left.values()) + 1e-12))
    return order


@pytest.mark.parametrize("name", CASES)
def test_swaps_equal_plain_loops_and_end_where_no_swap_lowers_mmd(name: str) -> None:
    features = cases(30, 5)[name]
    kernel = dense_kernel(features)
    start = select_by_mmd(features, 7).indices.tolist()
    end = plain_swaps(kernel, start)
    refined = select_by_mmd(features, 7, refine="swap")
    assert refined.indices.tolist() == greedy_order(kernel, end)
    assert min(swap_values(kernel, end).values()) >= float(present(refined.mmd2)[-1]) - 1e-12


@pytest.mark.parametrize("start", [list(range(6)), [5, 28, 3, 17, 1, 11]])
def test_swaps_from_any_start_equal_plain_loops(start: list[int]) -> None:
    features = gaussian(40, 3)
    matrix = KernelMatrix(features, 5, 2.0, "index", False)
    end = swapped(start, RowMeans(matrix, 6, None))
    assert end == plain_swaps(dense_kernel(features), start) != start


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("m", "n"), [(2500, 20), (300, 60)])
def test_refined_rows_are_distinct_and_never_worse_than_greedy(name: str, m: int, n: int) -> None:
    features = cases(m, 16)[name]
    greedy, refined = select_by_mmd(features, n), select_by_mmd(features, n, refine="swap")
    assert len(set(refined.indices.tolist())) == n
    assert refined.bound == mmd_bound(n)
    before, after = (squared_mmd(features, selection.indices) for selection in (greedy, refined))
    assert after <= before + 1e-12
    assert float(present(refined.mmd2)[-1]) == pytest.approx(after, rel=0, abs=1e-12 if m <= 1024 else 1e-6)


def test_where_float32_leaves_candidates_no_swap_lowers_the_exact_mmd() -> None:
    features, n = cases(2500, 16)["random"], 20
    kernel = dense_kernel(features)
    chosen = select_by_mmd(features, n, refine="swap").indices
    near, means = kernel[chosen].sum(0), kernel.mean(1)
    score = near / n - means
    # n / 2 of the change of MMD^2 for each chosen row (down) and each row in its place (across)
    change = score - score[chosen][:, None] + (5.0 - kernel[chosen]) / n
    change[:, chosen] = math.inf
    assert float(change.min()) >= -1e-12
    best = int(change[0].argmin())
    exact = objective(kernel, [best, *chosen[1:].tolist()]) - objective(kernel, chosen.tolist())
    assert float(change[0, best]) == pytest.approx(exact * n / 2, abs=1e-12)  # the formula is the definition


@pytest.mark.parametrize("seed", range(4))
def test_swaps_lower_mmd_by_some_percent_on_clustered_features(seed: int) -> None:
    centres = gaussian(12, 32, seed=100 + seed)
    sizes = torch.tensor([240, 120, 80, 60, 48, 40, 34, 30, 27, 24, 22, 20])  # unequal, as classes have them
    features = centres.repeat_interleave(sizes, dim=0) + 0.7 * gaussian(int(sizes.sum()), 32, seed=seed)
    features = torch.nn.functional.normalize(features.relu(), dim=1)
    greedy, refined = select_by_mmd(features, 20), select_by_mmd(features, 20, refine="swap")
    assert float(present(refined.mmd2)[-1]) < 0.98 * float(present(greedy.mmd2)[-1])


def test_the_order_after_swaps_is_greedy_within_them_and_better_than_by_number() -> None:
    features = cases(400, 16)["random"]
    refined = select_by_mmd(features, 24, refine="swap")
    kernel, members = dense_kernel(features), refined.indices.sort().values.tolist()
    assert refined.indices.tolist() == greedy_order(kernel, members)
    measured = [objective(kernel, refined.indices[:size].tolist()) for size in range(1, 25)]
    assert present(refined.mmd2).tolist() == pytest.approx(measured, rel=0, abs=1e-12)
    by_number = [objective(kernel, members[:size]) for size in range(1, 24)]
    assert all(ours < other for ours, other in zip(measured, by_number, strict=False))


def test_when_all_rows_are_taken_or_equal_there_is_nothing_to_swap() -> None:
    features = gaussian(9, 3)
    for n in (9, 20):
        whole, refined = select_by_mmd(features, n), select_by_mmd(features, n, refine="swap")
        assert refined.indices.tolist() == whole.indices.tolist()
    same = select_by_mmd(torch.full((7, 3), 0.1), 4, refine="swap")
    assert same.indices.tolist() == [0, 1, 2, 3]
    assert select_by_mmd(torch.ones(1, 2), 1, refine="swap").indices.tolist() == [0]


def test_a_twin_is_no_reason_to_swap() -> None:
    features = gaussian(300, 6)
    options: dict[str, Any] = {"refine": "swap", "self_pairs": True}  # the same mean distance
    twice = features.repeat_interleave(2, dim=0)
    firsts = select_by_mmd(twice, 15, **options).indices
    assert torch.equal(firsts, 2 * select_by_mmd(features, 15, **options).indices)
    seconds = (firsts + 1).tolist()
    matrix = KernelMatrix(twice, 5, 2.0, "index", True)
    assert swapped(seconds, RowMeans(matrix, 15, None)) == seconds
