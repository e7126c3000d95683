"""Random features, kernels and numbers of picks: does select_by_mmd choose the rows of a dense float64 reference?

    python benchmarks/selection_cases.py --cases 800

Every case is the same for the same number. All have more than 1024 rows, where picks are computed in float32 and
candidates scored in float64: plain, with doubles, tight clusters, whole numbers, unit vectors, norms of many sizes.
Prints each case that differs and one line at the end; the exit code is 1 where any did.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

from endocil import select_by_mmd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from dense_mmd import dense_greedy, dense_kernel

KINDS = ("plain", "doubles", "tight", "whole numbers", "unit", "many norms")
SCALES = (2.0, 4.0, 1.5)
MOST_KERNELS = 7


class Case:
    """Features and what is asked of them, drawn from one number."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self.kind = KINDS[self._whole(0, len(KINDS))]
        rows, width = self._whole(1025, 2600), self._whole(2, 200)
        self.n = self._whole(1, 64)
        self.kernels, self.scale = self._whole(1, MOST_KERNELS + 1), SCALES[self._whole(0, len(SCALES))]
        self.features = self._features(torch.randn(rows, width, generator=self._random))

    def _whole(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=self._random))

    def _features(self, drawn: Tensor) -> Tensor:
        rows = len(drawn)
        if self.kind == "doubles":
            few = rows // self._whole(2, 50) + 1
            return drawn[torch.randint(few, (rows,), generator=self._random)]
        if self.kind == "tight":
            centres = torch.randn(self._whole(1, 9), drawn.shape[1], generator=self._random)
            place = torch.randint(len(centres), (rows,), generator=self._random)
            return centres[place] + drawn * 10.0 ** -self._whole(0, 6)
        if self.kind == "whole numbers":
            return drawn.round()
        if self.kind == "unit":
            return torch.nn.functional.normalize(drawn.relu(), dim=1)
        if self.kind == "many norms":
            return drawn * torch.exp(2 * torch.randn(rows, 1, generator=self._random))
        return drawn

    def differs(self) -> bool:
        found = select_by_mmd(self.features, self.n, kernels=self.kernels, scale=self.scale)
        kernel = dense_kernel(self.features, self.kernels, self.scale)
        return found.indices.tolist() != dense_greedy(kernel, self.n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=800)
    cases, different = parser.parse_args().cases, 0
    for seed in range(cases):
        case = Case(seed)
        if case.differs():
            different += 1
            print(
                f"{seed}: {case.kind}, {tuple(case.features.shape)}, {case.n} of {case.kernels} kernels, {case.scale}"
            )
    print(f"{cases} cases, {different} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
