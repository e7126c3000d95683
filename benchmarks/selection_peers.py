"""Other packages' greedy selection by MMD, for benchmarks/selection.py; runs in a Python of its own that has them.

    python benchmarks/selection_peers.py PEER features.npy N DBAR

The kernel is ours: five Gaussians around DBAR, the mean squared distance. coreax sums five of its own; the others take
any function and get one with a single exponential, MMD-critic and goodpoints with distances by a matrix product. Each
line read from the standard input runs the selection once on one core; a line of JSON with its seconds and indices
answers. What has to be compiled is run once before.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Run = Callable[[], list[int]]
COMPILED = ("coreax", "coreax_in_blocks", "kernax")


def gaussians(exp: Callable[[Any], Any], squared: Any, dbar: float) -> Any:  # arrays of numpy, JAX or torch
    """The kernel from squared distances, with one exponential: e + e^2 + e^4 + e^8 + e^16."""
    value = exp(squared / (-4.0 * dbar))
    total = value
    for _ in range(4):
        value = value * value
        total = total + value
    return total


def with_numpy(left: np.ndarray, right: np.ndarray, dbar: float) -> np.ndarray:
    squares = (left * left).sum(1)[:, None] + (right * right).sum(1)
    values: np.ndarray = gaussians(np.exp, np.maximum(squares - 2.0 * left @ right.T, 0.0), dbar)
    return values


def coreax(features: np.ndarray, n: int, dbar: float, block: int | None = None) -> Run:
    import equinox
    import jax.numpy as jnp
    from coreax import Data
    from coreax.kernels import SquaredExponentialKernel
    from coreax.solvers import KernelHerding

    widths = [math.sqrt(dbar * 2.0**i / 2) for i in range(-2, 3)]  # its kernel is exp(-|x-y|^2 / (2 width^2))
    kernel = SquaredExponentialKernel(widths[0])
    for width in widths[1:]:
        kernel = kernel + SquaredExponentialKernel(width)
    solver = KernelHerding(n, kernel=kernel, unique=True, block_size=block)
    reduce, data = equinox.filter_jit(solver.reduce), Data(jnp.asarray(features))
    return lambda: np.asarray(reduce(data)[0].unweighted_indices).tolist()


def coreax_in_blocks(features: np.ndarray, n: int, dbar: float) -> Run:
    return coreax(features, n, dbar, block=64)  # the fastest of 64, 256, 1024 at m = 8000


def kernax(features: np.ndarray, n: int, dbar: float) -> Run:
    import equinox
    import jax.numpy as jnp
    from kernax import KernelHerding

    def kernel(x: Any, y: Any) -> Any:
        return gaussians(jnp.exp, jnp.sum((x - y) ** 2), dbar)

    select = equinox.filter_jit(lambda rows: KernelHerding(rows, kernel)(n))
    rows = jnp.asarray(features)
    return lambda: np.asarray(select(rows)).tolist()


def mmd_critic(features: np.ndarray, n: int, dbar: float) -> Run:
    from mmd_critic import MMDCritic

    def kernel(x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
        return with_numpy(x, x if y is None else y, dbar)

    numbers = np.arange(len(features))
    return lambda: MMDCritic(features, kernel, labels=numbers).select_prototypes(n)[1].tolist()


def goodpoints(features: np.ndarray, n: int, dbar: float) -> Run:
    from goodpoints.herding import herding

    thinning = math.log2(len(features) / (n + 0.5))  # its size is that of the class by 2^thinning, rounded down

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        row: np.ndarray = with_numpy(x, y, dbar)[0]
        return row

    return lambda: herding(features, thinning, kernel, unique=True).tolist()


PEERS = {peer.__name__: peer for peer in (coreax, coreax_in_blocks, kernax, mmd_critic, goodpoints)}


def main() -> None:
    if hasattr(os, "sched_setaffinity"):  # jax has threads of its own
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # packages that print must not print among the answers
    name, path, n, dbar = sys.argv[1:]
    try:
        run = PEERS[name](np.load(path), int(n), float(dbar))
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=answers, flush=True)
        return
    if name in COMPILED:
        run()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        indices = run()
        seconds = time.perf_counter() - wall, time.process_time() - processor
        print(json.dumps({"seconds": seconds, "indices": indices}), file=answers, flush=True)


if __name__ == "__main__":
    main()
