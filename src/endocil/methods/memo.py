"""MEMO (Zhou et al., ICLR 2023) as in PyCIL: DER whose branches share all but the last block.

Differs from the authors' comparisons: no exemplars are given up for the memory that the blocks take.
"""

from typing import Any

from torch import nn

from endocil.methods.der import DER
from endocil.networks import LastBlocks


class MEMO(DER):
    """A new last block for each task beside the frozen older ones, on shared general blocks; aligned as DER."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        train_base: bool = True,  # PyCIL and the authors' command: the general blocks go on learning
        **inherited: Any,
    ) -> None:
        super().__init__(backbone, **inherited)
        LastBlocks.check_divisible(backbone)
        self.branches = LastBlocks(train_general=train_base)
