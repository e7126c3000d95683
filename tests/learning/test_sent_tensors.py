"""Tensors that rank 0 alone has, such as the Fisher of EWC: sent from its GPU, they come to that GPU on every rank."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from endocil.learning.parallel import tensors_of_rank_zero


class OnFirstGpu:
    """Stands for a tensor of the first GPU: it can be copied to the processor, and must not be sent as it is."""

    def cpu(self) -> Tensor:
        return torch.tensor([1.0, 2.0])

    def __reduce__(self) -> Any:
        raise AssertionError("pickled on the first GPU")


class TwoProcesses:
    """One of two processes, with a device of its own; what is sent is kept."""

    world_size, device = 2, torch.device("meta")

    def __init__(self, rank: int, received: Any = None) -> None:
        self.global_rank, self.received, self.sent = rank, received, list[Any]()

    def broadcast(self, value: Any) -> Any:
        self.sent.append(value)
        return self.received or value


@pytest.mark.parametrize("rank", [0, 1])
def test_tensors_of_rank_zero_are_sent_from_the_processor_and_come_to_the_own_device(rank: int) -> None:
    sent = ({"fisher/weight": torch.tensor([1.0, 2.0])}, None)
    fabric = TwoProcesses(rank, None if rank == 0 else sent)
    own = cast("dict[str, Tensor]", {"fisher/weight": OnFirstGpu()})
    got = tensors_of_rank_zero(cast("Any", fabric), own)
    (value,) = fabric.sent
    if rank == 0:
        assert value[0]["fisher/weight"].device == torch.device("cpu")
    else:
        assert value == (None, None)
    assert got["fisher/weight"].device == fabric.device
