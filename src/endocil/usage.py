"""How much memory this process has needed so far."""

import sys

import torch


def peak_megabytes(device: torch.device) -> float:
    """The most memory in use at any one time: of the accelerator, or of the whole process on a CPU; 0 if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        import resource
    except ImportError:  # not on every system
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
