"""Batch norm over a batch that several processes share: the statistics are those of the whole batch.

torch's SyncBatchNorm needs a GPU; this one is the same on every device, so that N processes train as one does.
"""

from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn


class SharedBatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d with the same parameters and buffers; in eval mode it is one."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        values = images.to(torch.promote_types(images.dtype, torch.float32))
        n = values.new_tensor([values.numel() // values.shape[1]])
        sums = _over_processes(torch.cat([values.sum((0, 2, 3)), n]))  # (C + 1,)
        n = sums[-1].detach()
        mean = sums[:-1] / n  # (C,)
        centred = values - mean[:, None, None]
        variance = _over_processes(centred.square().sum((0, 2, 3))) / n
        self._remember(mean.detach(), variance.detach(), n)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(images.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, n: Tensor) -> None:
        self.num_batches_tracked += 1
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_((variance * (n / (n - 1))).to(self.running_var), share)


def _over_processes(values: Tensor) -> Tensor:
    total: Tensor = _OverProcesses.apply(values)  # type: ignore[no-untyped-call]
    return total


class _OverProcesses(torch.autograd.Function):
    """The sum over the processes; every process's loss depends on it, so gradients are summed as well."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        total = values.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        torch.distributed.all_reduce(total)
        return total


def share_batch_norm(network: nn.Module) -> None:
    """From now on the batch norms of a network see the batches of all processes."""
    for module in network.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SharedBatchNorm2d  # parameters, buffers and all references to it stay
