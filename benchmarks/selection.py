"""Time and memory of select_by_mmd beside a plain greedy MMD that stores the whole kernel matrix in float32.

Features are synthetic: unit, non-negative, in 40 loose clusters, as a ResNet gives them. Repeats of both are
interleaved and the best counts, so that a busy machine disturbs both alike. Prints a Markdown table.
"""

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import Tensor

from endocil._mmd import CACHE_BYTES, KernelMatrix, one_thread_each
from endocil.selection import select_by_mmd


def features_like_a_network(m: int, d: int) -> Tensor:
    generator = torch.Generator().manual_seed(m)
    centres = torch.randn(40, d, generator=generator)
    rows = torch.randn(m, d, generator=generator)
    rows += centres[torch.randint(40, (m,), generator=generator)]
    return torch.nn.functional.normalize(rows.relu_(), dim=1)


def dense_selection(features: Tensor, n: int) -> list[int]:
    """Algorithm 1 with the kernel matrix in memory: five exponentials of a full float32 distance matrix."""
    squares = features.square().sum(1)
    distances = (squares[:, None] + squares - 2 * features @ features.T).clamp_(min=0)  # (m, m)
    mean = distances.sum() / (len(features) * (len(features) - 1))
    kernel = torch.zeros_like(distances)
    for i in range(5):
        kernel += torch.exp(distances / (-mean * 2.0 ** (i - 2)))
    near, sums, chosen = torch.zeros(len(features)), kernel.sum(1), list[int]()
    for size in range(1, n + 1):
        score = near - size / len(features) * sums
        score[chosen] = math.inf
        chosen.append(int(score.argmin()))
        near += kernel[chosen[-1]]
    return chosen


def row_sums(features: Tensor) -> None:
    with one_thread_each() as workers:
        KernelMatrix(features, 5, 2.0, "index", False, workers).all_sums(torch.float32, CACHE_BYTES)


def seconds(job: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor time of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - processor


def best(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, tuple[float, float]]:
    runs = [{name: seconds(job) for name, job in jobs.items()} for _ in range(repeats)]
    return {name: (min(run[name][0] for run in runs), min(run[name][1] for run in runs)) for name in jobs}


def status(field: str) -> float:
    """Megabytes, from Linux."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def extra_memory(m: int, d: int, n: int) -> float:
    """Peak beyond the features; to be called in a process of its own."""
    select_by_mmd(torch.rand(2500, 8), 2)  # what the libraries keep for themselves
    features = features_like_a_network(m, d)
    before = status("VmRSS")
    select_by_mmd(features, n)
    return max(0.0, status("VmHWM") - before)


def line(m: int, args: argparse.Namespace) -> str:
    features = features_like_a_network(m, args.d)
    block = features_like_a_network(4096, args.d)
    jobs: dict[str, Callable[[], object]] = {
        "ours": lambda: select_by_mmd(features, args.n),
        "row sums": lambda: row_sums(features),
        "product": lambda: block @ block.T,
    }
    if 16 * m * m <= args.dense_gigabytes * 2**30:
        jobs["dense"] = lambda: dense_selection(features, args.n)
    took = best(jobs, args.repeats)
    limit = (
        took["product"][1] / len(block) ** 2 * m * m / 2
    )  # processor time of the products alone, by symmetry
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        extra = pool.submit(extra_memory, m, args.d, args.n).result()
    ratio = f"{took['dense'][1] / took['ours'][1]:.1f}" if "dense" in jobs else "-"
    wall, processor = took["ours"]
    return (
        f"| {m} | {wall:.3f} | {processor:.3f} | {ratio} | {limit / took['row sums'][1]:.2f} | {extra:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", type=int, nargs="+", default=[500, 2000, 8000, 34000], help="class sizes")
    parser.add_argument("-n", type=int, default=50, help="images to select")
    parser.add_argument("-d", type=int, default=512, help="length of the features")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dense-gigabytes", type=float, default=4.0, help="most the stored matrix may take")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, d = {args.d}, n = {args.n}\n")
    print("| m | wall s | CPU s | stored matrix / ours (CPU) | row sums / sgemm limit | extra MB |")
    print("|---|---|---|---|---|---|")
    for m in args.m:
        print(line(m, args), flush=True)


if __name__ == "__main__":
    main()
