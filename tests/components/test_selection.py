"""Exemplar selection against plain, dense, float64 references."""

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from dense_mmd import CASES, cases, dense_greedy, dense_kernel, gaussian, objective
from present import present
from torch import Tensor

import endocil.components.mmd as mmd
from endocil.components import mmd as _greedy
from endocil.components.selection import (
    Selection,
    mmd_bound,
    select_at_random,
    select_by_distance,
    select_by_entropy,
    select_by_mean,
    select_by_mmd,
    squared_mmd,
)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("m", "d", "n"), [(3000, 32, 50), (257, 16, 100)])
def test_greedy_mmd_equals_a_dense_float64_reference(name: str, m: int, d: int, n: int) -> None:
    features = cases(m, d)[name]
    kernel = dense_kernel(features)
    selection = select_by_mmd(features, n)
    assert selection.indices.tolist() == dense_greedy(kernel, n)
    exact = [objective(kernel, selection.indices[:size].tolist()) for size in (1, n // 2, n)]
    measured = present(selection.mmd2)[[0, n // 2 - 1, n - 1]].tolist()
    assert measured == pytest.approx(exact, rel=0, abs=1e-12 if m <= 1024 else 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_each_pick_is_the_brute_force_minimum_of_the_objective(name: str) -> None:
    features = cases(24, 5)[name]
    kernel, chosen = dense_kernel(features), list[int]()
    for index in select_by_mmd(features, 24).indices.tolist():
        left = [j for j in range(24) if j not in chosen]
        values = {j: objective(kernel, [*chosen, j]) for j in left}
        assert index == next(j for j in left if values[j] <= min(values.values()) + 1e-12)
        chosen.append(index)


KERNELS = [(1, 2.0), (4, 2.0), (10, 2.0), (5, 4.0), (5, 3.0), (5, 1.0), (8, 64.0)]
MANY_KERNELS = [(40, 2.0), (100, 2.0), (14, 1000.0), (40, 10.0)]  # far beyond float32, and many squarings


@pytest.mark.parametrize("name", ["clustered", "tight"])
@pytest.mark.parametrize(
    ("m", "kernels", "scale"),
    [
        *((m, *kernel) for m in (60, 2100) for kernel in KERNELS),
        *((60, *kernel) for kernel in MANY_KERNELS),
        *(pytest.param(2100, *kernel, marks=pytest.mark.slow) for kernel in MANY_KERNELS),
    ],
)
def test_other_kernels_and_scales_equal_the_dense_reference_too(name: str, m: int, kernels: int, scale: float) -> None:
    features = cases(m, 12)[name]
    picks = select_by_mmd(features, 20, kernels=kernels, scale=scale).indices.tolist()
    assert picks == dense_greedy(dense_kernel(features, kernels, scale), 20)


LITERAL = {"bandwidth": "literal"}
OTHER_READINGS = [(2**0.5, 5, LITERAL), (2.0, 4, LITERAL), (39 / 40, 5, {"self_pairs": True})]


@pytest.mark.parametrize(("ratio", "kernels", "options"), OTHER_READINGS)
def test_the_other_readings_of_the_bandwidth_only_scale_it(ratio: float, kernels: int, options: dict[str, Any]) -> None:
    features = gaussian(40, 6)
    kernel = dense_kernel(features, kernels, widths=ratio)
    selection = select_by_mmd(features, 10, kernels=kernels, **options)
    assert selection.indices.tolist() == dense_greedy(kernel, 10)
    measured = squared_mmd(features, selection.indices, kernels=kernels, **options)
    assert measured == pytest.approx(objective(kernel, selection.indices.tolist()), abs=1e-12)


@pytest.mark.parametrize(("m", "sizes"), [(40, (None, 1, 800)), (2500, (None, 2**14, 2**21))])
def test_the_tile_size_changes_no_pick(m: int, sizes: tuple[int | None, ...]) -> None:
    features = cases(m, 16)["duplicates"]
    picks = [select_by_mmd(features, 12, block_bytes=size).indices.tolist() for size in sizes]
    assert picks[0] == picks[1] == picks[2]


@pytest.mark.parametrize(("m", "refine"), [(900, "none"), (2500, "none"), (2500, "swap")])
def test_the_number_of_threads_changes_no_bit_and_stays_as_it_was(m: int, refine: Literal["none", "swap"]) -> None:
    before, features, runs = torch.get_num_threads(), cases(m, 16)["clustered"], list[Selection]()
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            runs.append(select_by_mmd(features, 12, refine=refine, block_bytes=2**16))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(run.indices, runs[0].indices) for run in runs)
    assert all(torch.equal(present(run.mmd2), present(runs[0].mmd2)) for run in runs)


def test_the_threads_come_back_after_an_error_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: Any) -> Tensor:
        raise RuntimeError("no product")

    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "mm", broken)
    with pytest.raises(RuntimeError, match="no product"):
        select_by_mmd(gaussian(50, 3), 5)
    assert torch.get_num_threads() == before


def test_products_with_fewer_bits_than_float32_change_no_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    features, exact = cases(2500, 16)["clustered"], torch.mm
    expected = select_by_mmd(features, 20).indices

    def coarse(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        if left.dtype == torch.float32:
            left, right = left.bfloat16().float(), right.bfloat16().float()
        return exact(left, right, out=out)

    monkeypatch.setattr(torch, "mm", coarse)
    assert torch.equal(select_by_mmd(features, 20).indices, expected)


def test_autocast_and_gradients_around_it_change_nothing() -> None:
    features = cases(2500, 16)["random"]
    expected = select_by_mmd(features, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = select_by_mmd(features.clone().requires_grad_(), 10)
    assert torch.equal(inside.indices, expected.indices)
    assert torch.equal(present(inside.mmd2), present(expected.mmd2))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kernels", [1, 5, 8])
def test_float32_stays_well_within_the_error_allowed_for_it(name: str, kernels: int) -> None:
    matrix = mmd.KernelMatrix(cases(2500, 24)[name], kernels, 2.0, "index", False)
    means = _greedy.RowMeans(matrix, picks=10, tile_bytes=None)
    off = means.values - matrix.all_sums(torch.float64, 2**20) / matrix.size
    assert bool((off.abs() <= means.error / 3).all())
    everything = torch.arange(matrix.size)
    off = matrix.rows(everything, torch.float32) - matrix.rows(everything)
    assert float(off.abs().max()) <= means.entry_error / 3


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("self_pairs", "count"), [(False, 50 * 49), (True, 50 * 50)])
def test_the_closed_form_of_the_mean_squared_distance(name: str, self_pairs: bool, count: int) -> None:
    features = cases(50, 7)[name].double()
    pairs = [float((x - y).square().sum()) for x, y in itertools.permutations(features, 2)]
    closed = mmd.mean_squared_distance(mmd.centred(features), self_pairs)
    assert closed == pytest.approx(sum(pairs) / count, rel=1e-11)


@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0, 8.0, 3.0])
def test_squaring_one_exponential_equals_a_sum_of_exponentials(scale: float) -> None:
    exponent = -gaussian(100).double().abs()
    expected = sum(torch.exp(exponent * scale**i) for i in range(5))
    torch.testing.assert_close(mmd.gaussians_(exponent.clone(), 5, scale), expected, rtol=0, atol=1e-12)


def test_the_kernel_of_a_row_with_itself_is_exactly_the_number_of_kernels() -> None:
    matrix = mmd.KernelMatrix(1e3 + gaussian(30, 9), 5, 2.0, "index", False)
    assert torch.equal(matrix.rows(torch.arange(30)).diagonal(), torch.full((30,), 5.0).double())


@pytest.mark.parametrize("m", [80, 2500])
def test_a_selection_of_30_is_the_beginning_of_one_of_50(m: int) -> None:
    features = cases(m, 16)["random"]
    assert torch.equal(select_by_mmd(features, 30).indices, select_by_mmd(features, 50).indices[:30])
    assert torch.equal(select_by_mean(features, 30).indices, select_by_mean(features, 50).indices[:30])


def test_the_first_pick_has_the_greatest_row_sum() -> None:
    features = gaussian(90, 5)
    assert int(select_by_mmd(features, 1).indices) == int(dense_kernel(features).sum(1).argmax())


def test_of_equal_images_the_first_is_taken_first() -> None:
    place = select_by_mmd(gaussian(600, 6).repeat(2, 1), 1200).indices.argsort()
    assert bool((place[:600] < place[600:]).all())


def test_herding_is_greedy_mmd_with_the_linear_kernel_on_unit_vectors() -> None:
    features = torch.nn.functional.normalize(gaussian(70, 6).double(), dim=1)
    assert select_by_mean(features, 70).indices.tolist() == dense_greedy(features @ features.T, 70)


def test_herding_brings_the_mean_nearest_at_every_step_and_is_blind_to_shift_and_size() -> None:
    features, chosen = gaussian(40, 4).double().square(), list[int]()
    picks = select_by_mean(features, 40).indices.tolist()
    for size, index in enumerate(picks, start=1):
        distance = (features.mean(0) - (features + features[chosen].sum(0)) / size).norm(dim=1)
        distance[chosen] = math.inf
        assert index == int(distance.argmin())
        chosen.append(index)
    assert select_by_mean(1e-3 * features + 50, 40).indices.tolist() == picks


@pytest.mark.parametrize("name", CASES)
def test_all_images_in_greedy_order_have_no_discrepancy_left(name: str) -> None:
    features = cases(300, 6)[name]
    selection = select_by_mmd(features, 1000)
    assert sorted(selection.indices.tolist()) == list(range(300))
    assert float(present(selection.mmd2)[-1]) <= 1e-12


@pytest.mark.parametrize("name", CASES)
def test_greedy_mmd_never_picks_an_image_twice_and_stays_below_the_bound_of_the_paper(name: str) -> None:
    selection = select_by_mmd(cases(2500, 6)[name], 60)
    assert len(set(selection.indices.tolist())) == 60
    bounds = torch.tensor([mmd_bound(size) for size in range(1, 61)])
    assert [round(float(bounds[n - 1]), 3) for n in (30, 40, 50)] == [1.467, 1.172, 0.982]
    measured = present(selection.mmd2)
    assert bool(((measured >= 0) & (measured <= bounds)).all())
    assert selection.bound == mmd_bound(60)


def test_order_and_rotation_of_the_features_do_not_change_what_is_selected() -> None:
    features = gaussian(200, 8).double()
    chosen = set(select_by_mmd(features, 25).indices.tolist())
    order = torch.randperm(200, generator=torch.Generator().manual_seed(5))
    assert {int(order[i]) for i in select_by_mmd(features[order], 25).indices} == chosen
    rotation = torch.linalg.qr(gaussian(8, 8).double()).Q
    assert set(select_by_mmd(features @ rotation, 25).indices.tolist()) == chosen


def test_any_selection_is_measured_with_the_same_kernel() -> None:
    features, generator = cases(2600, 16)["random"], torch.Generator().manual_seed(0)
    greedy, drawn = select_by_mmd(features, 40), select_at_random(2600, 40, generator)
    assert squared_mmd(features, greedy.indices) == pytest.approx(float(present(greedy.mmd2)[-1]), abs=1e-12)
    herded = squared_mmd(features, select_by_mean(features, 40).indices)
    assert float(present(greedy.mmd2)[-1]) < herded < squared_mmd(features, drawn.indices)


@pytest.mark.parametrize("m", [1, 2, 7])
def test_equal_features_are_taken_in_order(m: int) -> None:
    features = torch.full((m, 3), 0.1)
    for selection in (select_by_mmd(features, 5), select_by_mean(features, 5)):
        assert selection.indices.tolist() == list(range(min(m, 5)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])
def test_features_of_any_number_type_are_used_as_given(dtype: torch.dtype) -> None:
    features = (10 * gaussian(60, 5).abs()).to(dtype)
    selection = select_by_mmd(features, 12)
    assert (selection.indices.dtype, present(selection.mmd2).dtype) == (torch.int64, torch.float64)
    assert selection.indices.tolist() == dense_greedy(dense_kernel(features), 12)


def test_random_selection_repeats_with_its_generator_and_only_then() -> None:
    draws = [select_at_random(50, 20, torch.Generator().manual_seed(seed)).indices for seed in (1, 1, 2)]
    assert draws[0].tolist() == draws[1].tolist() != draws[2].tolist()
    assert (len(draws[0].unique()), len(select_at_random(5, 20, torch.Generator()).indices)) == (20, 5)


def test_scores_select_the_least_certain_first_and_the_lower_index_of_equals() -> None:
    scores = torch.tensor([[9.0, 0, 0], [1, 0, 2], [0, 0, 0], [2, 1, 0], [900, 0, 0], [5, 5, 4]])
    assert select_by_entropy(scores, 9).indices.tolist() == [2, 5, 1, 3, 0, 4]
    assert select_by_distance(scores, 5).indices.tolist() == [2, 5, 1, 3, 0]


@pytest.mark.parametrize("select", [select_by_mmd, select_by_mean, select_by_entropy, select_by_distance])
def test_what_cannot_be_selected_from_is_refused(select: Callable[[Tensor, int], Selection]) -> None:
    with pytest.raises(ValueError, match="n, the number of rows to choose, must be at least 1; got 0"):
        select(torch.zeros(4, 2), 0)
    for shape in [(0, 2), (4,), (4, 0)]:
        with pytest.raises(ValueError, match=re.escape(f"one row per image; got shape {shape}")):
            select(torch.zeros(shape), 1)
    with pytest.raises(ValueError, match="2 of 3 rows hold NaN or Inf"):
        select(torch.tensor([[1.0, math.nan], [0, 0], [math.inf, 0]]), 1)


def test_other_impossible_requests_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"kernels": 0},
        {"kernels": 101},
        {"scale": 0.5},
        {"scale": 1e9},
        {"scale": math.nan},
        {"bandwidth": "median"},
        {"block_bytes": 0},
    ]
    for options in [*wrong, {"refine": "search"}]:
        with pytest.raises(ValueError, match=next(iter(options))):
            select_by_mmd(gaussian(5, 2), 2, **options)
    with pytest.raises(ValueError, match="too large"):
        select_by_mmd(torch.tensor([[1e200], [-1e200]], dtype=torch.float64), 1)
    with pytest.raises(ValueError, match="rows of features, 0 to 4"):
        squared_mmd(gaussian(5, 2), torch.tensor([5]))
    with pytest.raises(ValueError, match="two classes"):
        select_by_distance(gaussian(5, 1), 2)
    with pytest.raises(ValueError, match="m, the number"):
        select_at_random(0, 2, torch.Generator())


def test_the_component_imports_torch_and_the_standard_library_alone() -> None:
    allowed = sys.stdlib_module_names | {"torch", "endocil.components.mmd"}
    for name in ("mmd.py", "selection.py"):
        source = Path(mmd.__file__).with_name(name).read_text()
        imported = re.findall(r"^(?:from|import) (\S+)", source, flags=re.MULTILINE)
        assert {name if name.startswith("endocil") else name.split(".")[0] for name in imported} <= allowed


MEASURE_MEMORY = """
import torch
from endocil.components.selection import select_by_mmd
def memory(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024
select_by_mmd(torch.rand(2500, 8), 2)  # what the libraries keep for themselves
features = torch.rand(12_000, 512, generator=torch.Generator().manual_seed(0))
before = memory("VmRSS")
assert len(set(select_by_mmd(features, 50).indices.tolist())) == 50
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_extra_memory_for_12000_images_is_a_fraction_of_their_kernel_matrix() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE_MEMORY], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 200  # megabytes; 600 for 34,000 images; the matrix in float32 has 576
