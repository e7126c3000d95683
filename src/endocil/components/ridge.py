"""Ridge regression from sums over images: packed symmetric matrices, the solution, and the choice of its penalty.

    A = (X^T X + lambda I)^-1 X^T Y

X^T X and X^T Y are sums over images. Images may come in any order and in any number of tasks, and may be subtracted
again: the solution depends on nothing but which images are in the sums. All of it in float64.

A symmetric matrix is kept packed, as block rows up to the diagonal, and is added to and factorised where it lies: with
RanPAC's 10,000 dimensions a whole one takes 800 MB.
"""

import torch
from torch import Tensor

BLOCK = 256  # rows of a packed matrix that lie together
FIFTH = 5  # one image in five is held back to choose a penalty


def packed_length(n: int) -> int:
    """Numbers that a packed symmetric (n, n) matrix takes: a little over half of them."""
    return sum(min(BLOCK, n - row) * min(row + BLOCK, n) for row in range(0, n, BLOCK))


def block_rows(packed: Tensor, n: int) -> list[Tensor]:
    """Views of a packed matrix: of each BLOCK rows, (BLOCK, columns), the columns up to and with the diagonal block."""
    shapes = [(min(BLOCK, n - row), min(row + BLOCK, n)) for row in range(0, n, BLOCK)]
    parts = torch.split(packed, [rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def add_products(packed: Tensor, x: Tensor, weight: float = 1.0) -> None:
    """Add weight X^T X to a packed (d, d) matrix in place; x is (n, d)."""
    for block in block_rows(packed, x.shape[1]):
        rows, columns = block.shape
        block.addmm_(x[:, columns - rows : columns].T, x[:, :columns], alpha=weight)


def unpacked(packed: Tensor, n: int) -> Tensor:
    """The whole symmetric (n, n) matrix."""
    whole, row = packed.new_zeros(n, n), 0
    for block in block_rows(packed, n):
        whole[row : row + len(block), : block.shape[1]] = block
        row += len(block)
    return whole.tril() + whole.tril(-1).T


def trace(packed: Tensor, n: int) -> float:
    return sum(float(diagonal_block(block).trace()) for block in block_rows(packed, n))


def diagonal_block(block: Tensor) -> Tensor:
    """The last, square part of a block row."""
    return block[:, block.shape[1] - len(block) :]


def solve(packed: Tensor, moments: Tensor, penalty: float) -> Tensor:
    """(X^T X + lambda I)^-1 X^T Y by Cholesky; `packed` X^T X is overwritten by the factor, `moments` is (d, C).

    A penalty below the rounding of the matrix is raised to it: without that a singular one has no factor."""
    n = len(moments)
    rounding = n * torch.finfo(packed.dtype).eps * trace(packed, n)
    blocks = block_rows(packed, n)
    for block in blocks:
        diagonal_block(block).diagonal().add_(max(penalty, rounding, torch.finfo(packed.dtype).tiny))
    _factorise(blocks)
    solution = moments.clone(memory_format=torch.contiguous_format)
    for block in blocks:  # L z = X^T Y
        known, own = solution[: block.shape[1] - len(block)], solution[block.shape[1] - len(block) : block.shape[1]]
        own.addmm_(block[:, : len(known)], known, alpha=-1.0)
        own.copy_(torch.linalg.solve_triangular(diagonal_block(block), own, upper=False))
    for block in reversed(blocks):  # L^T A = z
        others, own = solution[: block.shape[1] - len(block)], solution[block.shape[1] - len(block) : block.shape[1]]
        own.copy_(torch.linalg.solve_triangular(diagonal_block(block).T, own, upper=True))
        others.addmm_(block[:, : len(others)].T, own, alpha=-1.0)
    return solution


def _factorise(blocks: list[Tensor]) -> None:
    """L with L L^T = G, in place of G: as fast as LAPACK's, which would need three whole matrices beside it."""
    for place, block in enumerate(blocks):
        for above in blocks[:place]:
            start, end = above.shape[1] - len(above), above.shape[1]
            block[:, start:end].addmm_(block[:, :start], above[:, :start].T, alpha=-1.0)
            right = diagonal_block(above).T
            block[:, start:end] = torch.linalg.solve_triangular(right, block[:, start:end], upper=True, left=False)
        own, before = diagonal_block(block), block[:, : block.shape[1] - len(block)]
        own.copy_(torch.linalg.cholesky(own.addmm_(before, before.T, alpha=-1.0)))


def fit_and_held_back(n: int, random: torch.Generator, most: int) -> tuple[Tensor, Tensor]:
    """Places among n things: four fifths to fit, a fifth to compare penalties on; at most `most` together."""
    order = torch.randperm(n, generator=random)[:most]
    held = max(1, len(order) // FIFTH)
    return order[held:], order[:held]


def squared_errors(x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor, penalties: Tensor) -> Tensor:
    """The sum of squared errors on held-back images of the fit with each penalty: (len(penalties),).

    One eigendecomposition serves all penalties; of X X^T where there are fewer images than features."""
    few = len(x) <= x.shape[1]
    values, vectors = torch.linalg.eigh(x @ x.T if few else x.T @ x)
    # few: held X^T (X X^T + lambda)^-1 Y; else: held (X^T X + lambda)^-1 X^T Y
    left = (held_x @ x.T if few else held_x) @ vectors
    right = vectors.T @ (y if few else x.T @ y)
    values = values.clamp_min(len(values) * torch.finfo(values.dtype).eps * float(values.max().clamp_min(0.0)))
    predicted = (left @ (right / (values[:, None] + penalty)) for penalty in penalties)
    return torch.stack([(held_y - one).square().sum() for one in predicted])
