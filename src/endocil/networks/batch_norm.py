"""Synchronised batch norm: the statistics are those of the whole batch, which several processes share.

torch's SyncBatchNorm needs a GPU; this one works on every device, so that N processes train as one does. Passes over
the images are torch's own kernels; a layer sends one message forward and one backward.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class SyncBatchNorm2d(nn.BatchNorm2d):
    """nn.BatchNorm2d with the same parameters and buffers; in eval mode it is one."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        values = images.to(torch.promote_types(images.dtype, torch.float32))
        mean, variance, n = _batch_statistics(values.detach())
        self._update_running_statistics(mean, variance, n)
        out: Tensor = _Normalise.apply(values, self.weight, self.bias, mean, variance, n, self.eps)  # type: ignore[no-untyped-call]
        return out.to(images.dtype)

    @torch.no_grad()
    def _update_running_statistics(self, mean: Tensor, variance: Tensor, n: Tensor) -> None:
        self.num_batches_tracked += 1
        momentum = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), momentum)
        self.running_var.lerp_((variance * (n / (n - 1))).to(self.running_var), momentum)


def _batch_statistics(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance per channel over the batches of all processes, and the number of values per channel.

    Means and variances are merged, not sums of squares, which would cancel where a mean is large.
    """
    c = values.shape[1]
    local = values.new_zeros(3, c)
    if len(values):  # a process may be left without images in the last batch
        local[0], local[1] = torch.batch_norm_update_stats(values, None, None, 0.0)
        local[2] = values.numel() // c
    gathered = [torch.empty_like(local) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(gathered, local)
    means, variances, counts = torch.stack(gathered, 1)  # (processes, C) each
    n = counts.sum(0)
    mean = (counts * means).sum(0) / n
    variance = (counts * (variances + (means - mean).square())).sum(0) / n
    return mean, variance, n[0]


class _Normalise(torch.autograd.Function):
    """Normalisation by the statistics of all processes, with their gradient."""

    @staticmethod
    def forward(
        context: Any,
        values: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        n: Tensor,
        eps: float,
    ) -> Tensor:
        context.save_for_backward(values, weight, mean, variance, n)
        context.eps = eps
        if not len(values):  # torch's kernels divide by the number of images
            return values.clone()
        return torch.nn.functional.batch_norm(values, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, mean, variance, n = context.saved_tensors
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(weight)
        if len(values):
            _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
                gradient, values, weight, mean, variance, None, None, False, context.eps, [False, True, True]
            )
        # Every process's loss depends on the statistics: their gradient is made of the sums over all processes.
        over_weight, over_bias = _sum_over_processes(torch.stack([of_weight, of_bias])) / n
        spread = torch.rsqrt(variance + context.eps)
        scale = weight * spread
        slope = -scale * spread * over_weight
        shift = -scale * over_bias - slope * mean
        of_values = torch.addcmul(_by_channel(shift), values, _by_channel(slope))
        of_values.addcmul_(gradient, _by_channel(scale))
        return of_values, of_weight, of_bias, None, None, None, None


def _by_channel(values: Tensor) -> Tensor:
    return values[None, :, None, None]


def _sum_over_processes(values: Tensor) -> Tensor:
    torch.distributed.all_reduce(values)
    return values


def sync_batch_norm(network: nn.Module) -> None:
    """Make the batch norms of a network use the whole batch, over all processes."""
    for module in network.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d  # parameters, buffers and all references stay


@contextmanager
def unsynced_batch_norm(network: nn.Module) -> Iterator[None]:
    """A context for batches that every process has as a whole: synchronised, they would be counted once per process."""
    synced: list[nn.Module] = [module for module in network.modules() if type(module) is SyncBatchNorm2d]
    for module in synced:
        module.__class__ = nn.BatchNorm2d
    try:
        yield
    finally:
        for module in synced:
            module.__class__ = SyncBatchNorm2d
