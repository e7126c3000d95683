"""Paths that the size of a class or the device decides: they differ in cost and in no pick."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from dense_mmd import CASES, cases
from present import present
from torch import Tensor

from endocil.components import mmd
from endocil.components.mmd import KernelMatrix
from endocil.components.selection import select_by_mmd, squared_mmd


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("m", "n", "refine"), [(700, 30, "none"), (700, 30, "swap"), (1900, 130, "none")])
def test_keeping_the_matrix_changes_no_pick(
    name: str, m: int, n: int, refine: Literal["none", "swap"], monkeypatch: pytest.MonkeyPatch
) -> None:
    features = cases(m, 16)[name]
    kept = select_by_mmd(features, n, refine=refine, block_bytes=2**16)
    monkeypatch.setattr(mmd, "KEPT_BYTES", 0)
    anew = select_by_mmd(features, n, refine=refine, block_bytes=2**16)
    assert torch.equal(kept.indices, anew.indices)
    torch.testing.assert_close(kept.mmd2, anew.mmd2, rtol=0, atol=1e-12)
    assert squared_mmd(features, kept.indices) == pytest.approx(float(present(anew.mmd2)[-1]), abs=1e-12)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_kept_matrix_is_the_matrix(workers: int) -> None:
    features = cases(500, 16)["tight"]
    matrix = KernelMatrix(features, 5, 2.0, "index", False, workers)
    computed = matrix.rows(torch.arange(500))
    sums = matrix.all_sums(torch.float64, 2**15, keep=True)  # tiles of 64 rows, the last ones smaller
    assert matrix.kept is not None
    torch.testing.assert_close(matrix.kept, computed, rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix.kept.sum(1), sums, rtol=0, atol=1e-10)
    assert torch.equal(matrix.rows(torch.tensor([3, 400])), matrix.kept[[3, 400]])


def test_the_matrix_is_kept_for_few_rows_or_many_picks_and_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeps(m: int, picks: int) -> bool:
        matrix = KernelMatrix(cases(m, 4)["random"], 5, 2.0, "index", False)
        mmd.RowMeans(matrix, picks, None)
        return matrix.kept is not None

    assert [keeps(1024, 1), keeps(1100, 60), keeps(1100, 70)] == [True, False, True]
    monkeypatch.setattr(mmd, "KEPT_BYTES", 8 * 1099**2)
    assert [keeps(1099, 70), keeps(1100, 70)] == [True, False]


def test_a_pick_multiplies_in_float32_and_scores_a_few_candidates_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = KernelMatrix(cases(2500, 16)["random"], 5, 2.0, "index", False)
    means = mmd.RowMeans(matrix, 20, None)
    rows, between = matrix.rows, matrix.between
    of_rows, scored = list[torch.dtype](), list[int]()

    def recorded_rows(indices: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        of_rows.append(dtype)
        return rows(indices, dtype)

    def recorded_between(rows: Tensor, columns: Tensor) -> Tensor:
        scored.append(len(rows))
        return between(rows, columns)

    monkeypatch.setattr(matrix, "rows", recorded_rows)
    monkeypatch.setattr(matrix, "between", recorded_between)
    mmd.greedy(20, means)
    assert of_rows.count(torch.float32) == len(scored) == 20
    assert max(scored) < 10


def test_where_float32_cannot_tell_rows_apart_the_sums_become_float64() -> None:
    near = {}
    for name in ("random", "tight"):
        matrix = KernelMatrix(cases(2500, 16)[name], 5, 2.0, "index", False)
        near[name] = mmd.KernelSums(mmd.RowMeans(matrix, 20, None), among=None)
        for _ in range(20):
            near[name].add(near[name].best()[0])
    assert not near["random"].exact
    assert near["tight"].exact
    expected = matrix.rows(near["tight"].chosen).sum(0).index_fill_(0, near["tight"].chosen, torch.inf)
    torch.testing.assert_close(near["tight"].values, expected, rtol=0, atol=1e-12)


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors stay in memory, but the code takes them for a graphics card's."""
    monkeypatch.setattr(KernelMatrix, "on_cpu", property(lambda matrix: False))


@pytest.mark.parametrize("name", CASES)
def test_the_path_of_a_device_chooses_the_same_rows(name: str, request: pytest.FixtureRequest) -> None:
    features = cases(2500, 16)[name]
    here = [select_by_mmd(features, 20, refine=refine) for refine in ("none", "swap")]
    request.getfixturevalue("as_on_a_device")
    there = [select_by_mmd(features, 20, refine=refine) for refine in ("none", "swap")]
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.indices, other.indices)
        torch.testing.assert_close(one.mmd2, other.mmd2, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("as_on_a_device")
def test_a_device_multiplies_in_float64_alone_with_one_worker_and_large_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    products, sides = set[torch.dtype](), set[int]()
    exact: Callable[..., Tensor] = torch.mm

    def recording(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        products.add(left.dtype)
        sides.add(len(left))
        return exact(left, right, out=out)

    monkeypatch.setattr(torch, "mm", recording)
    features = cases(3000, 8)["random"]
    select_by_mmd(features, 5)
    assert (products, sides) == ({torch.float64}, {1500})  # 64 MiB hold 2896 x 2896: two panels of 1500
    assert KernelMatrix(features, 5, 2.0, "index", False, workers=4).workers == 1
