"""Time and memory of select_by_mmd beside other packages, plain references, and the limit of the matrix product.

    python benchmarks/selection.py [--quick] [--peers-python ~/peers/bin/python] [--output table.md]

The peers need an environment of their own: `python -m venv ~/peers`, then
`~/peers/bin/pip install coreax kernax mmd-critic goodpoints`.

Features are synthetic: unit, non-negative, d = 512, in 40 loose clusters, as a ResNet gives them. Everything runs with
one thread, one after the other in each round, and the best of the rounds counts, so that a busy machine disturbs all
alike; ratios are of processor time. What takes longer than 20 s is run once. "Limit" is the processor time of the
products alone: m^2 / 2 of the float32 products of a 4096 x 4096 matrix product, against the pass that sums the rows.
"""

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from endocil.components.mmd import CACHE_BYTES, KernelMatrix, centred, mean_squared_distance, one_thread_each
from endocil.components.selection import select_by_mmd

WIDTH = 512
SIZES = ((500, 30), (2000, 30), (8000, 50), (34000, 50))  # rows of the class, rows to select
QUICK_SIZES = SIZES[:2]
OTHERS_ROWS = 8000  # the others hold the whole matrix or take minutes beyond
PATIENCE = 20.0  # seconds of processor time; a run that takes more is not repeated
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_MAX_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
PEERS = ("coreax", "coreax_in_blocks", "kernax", "mmd_critic", "goodpoints")

HEAD = """| m | n | selection | wall s | CPU s | CPU s / ours | same rows | |
|---|---|---|---|---|---|---|---|"""

Run = tuple[float, float, list[int]]  # wall and processor seconds, and the selection
Job = Callable[[], Run]


@dataclass(frozen=True)
class Row:
    """One way to select at one size."""

    m: int
    n: int
    what: str
    wall: float | None = None  # seconds; None: not installed
    processor: float | None = None
    ratio: float | None = None  # of processor time, to ours
    same: bool | None = None  # the same rows in the same order
    note: str = ""


def features_like_a_network(m: int, d: int = WIDTH) -> Tensor:
    generator = torch.Generator().manual_seed(m)
    centres = torch.randn(40, d, generator=generator)
    rows = torch.randn(m, d, generator=generator)
    rows += centres[torch.randint(40, (m,), generator=generator)]
    return torch.nn.functional.normalize(rows.relu_(), dim=1)


def dense_kernel(features: Tensor) -> Tensor:
    """(m, m) float32: five exponentials of the distances."""
    squares = features.square().sum(1)
    distances = (squares[:, None] + squares - 2 * features @ features.T).clamp_(min=0)
    mean = distances.sum() / (len(features) * (len(features) - 1))
    kernel = torch.zeros_like(distances)
    for i in range(5):
        kernel += torch.exp(distances / (-mean * 2.0 ** (i - 2)))
    return kernel


def with_a_dense_kernel(features: Tensor, n: int) -> list[int]:
    """Greedy selection, vectorised, with the matrix in memory."""
    kernel = dense_kernel(features)
    near, sums, chosen = torch.zeros(len(features)), kernel.sum(1), list[int]()
    for size in range(1, n + 1):
        score = near - size / len(features) * sums
        score[chosen] = math.inf
        chosen.append(int(score.argmin()))
        near += kernel[chosen[-1]]
    return chosen


def with_literal_loops(features: Tensor, n: int) -> list[int]:
    """Algorithm 1 as printed: for each pick, MMD^2 with every image that is left."""
    kernel = dense_kernel(features)
    means, near, chosen = kernel.mean(1).tolist(), [0.0] * len(features), list[int]()
    inside = across = 0.0
    for size in range(1, n + 1):
        best, lowest = -1, math.inf
        for j in range(len(features)):
            if j not in chosen:
                value = (inside + 2 * near[j] + 5) / size**2 - 2 * (across + means[j]) / size
                if value < lowest:
                    best, lowest = j, value
        inside, across = inside + 2 * near[best] + 5, across + means[best]
        chosen.append(best)
        near = [a + b for a, b in zip(near, kernel[best].tolist(), strict=True)]
    return chosen


def row_sums(features: Tensor) -> list[int]:
    with one_thread_each() as workers:
        KernelMatrix(features, 5, 2.0, "index", False, workers).all_sums(torch.float32, CACHE_BYTES)
    return []


def timed(select: Callable[[], list[int]]) -> Run:
    wall, processor = time.perf_counter(), time.process_time()
    chosen = select()
    return time.perf_counter() - wall, time.process_time() - processor, chosen


class Peer:
    """A process that selects with another package whenever it is asked."""

    def __init__(self, python: str, name: str, path: Path, n: int, dbar: float) -> None:
        script = Path(__file__).with_name("selection_peers.py")
        self.process = subprocess.Popen(
            [python, str(script), name, str(path), str(n), repr(dbar)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | ONE_THREAD,
        )
        self.why_not = self._answer().get("missing")  # read now: nothing is measured while others start

    def __call__(self) -> Run:
        if self.why_not is None:
            assert self.process.stdin is not None
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            answer = self._answer()
            self.why_not = answer.get("missing")
        if self.why_not is not None:
            raise ImportError(self.why_not)
        return (*answer["seconds"], answer["indices"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"missing": "ended without an answer"}')
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def in_turns(jobs: dict[str, Job], rounds: int) -> dict[str, list[Run] | str]:
    """The runs of each, or why there are none."""
    runs: dict[str, list[Run] | str] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            done = runs[name]
            if isinstance(done, str) or (done and done[0][1] > PATIENCE):
                continue
            try:
                done.append(job())
            except ImportError as error:
                runs[name] = f"not run: {error}"
    return runs


def status(field: str) -> float:
    """Megabytes, from Linux."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def extra_memory(m: int, n: int) -> float:
    """Peak beyond the features; to be called in a process of its own."""
    select_by_mmd(torch.rand(2500, 8), 2)  # what the libraries keep for themselves
    features = features_like_a_network(m)
    before = status("VmRSS")
    select_by_mmd(features, n)
    return max(0.0, status("VmHWM") - before)


def in_process(features: Tensor, n: int) -> dict[str, Job]:
    block = features_like_a_network(4096)
    selections: dict[str, Callable[[], list[int]]] = {
        "ours": lambda: select_by_mmd(features, n).indices.tolist(),
        "ours, swaps after it": lambda: select_by_mmd(features, n, refine="swap").indices.tolist(),
        "row sums": lambda: row_sums(features),
        "product": lambda: [len(block @ block.T)],
    }
    if len(features) <= OTHERS_ROWS:
        selections["full float32 kernel"] = lambda: with_a_dense_kernel(features, n)
        selections["literal loops"] = lambda: with_literal_loops(features, n)
    return {name: partial(timed, select) for name, select in selections.items()}


def rows_of(m: int, n: int, rounds: int, peers_python: str | None) -> list[Row]:
    features = features_like_a_network(m)
    dbar = mean_squared_distance(centred(features), self_pairs=False)
    jobs, peers = in_process(features, n), dict[str, Peer]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "features.npy")
        np.save(path, features.numpy())
        if peers_python and m <= OTHERS_ROWS:
            peers = {name: Peer(peers_python, name, path, n, dbar) for name in PEERS}
        try:
            runs = in_turns(jobs | peers, rounds)
        finally:
            for peer in peers.values():
                peer.close()
    if not peers_python and m <= OTHERS_ROWS:
        runs |= dict.fromkeys(PEERS, "not installed: see the top of the file, --peers-python")
    return as_rows(m, n, runs)


def as_rows(m: int, n: int, runs: dict[str, list[Run] | str]) -> list[Row]:
    own = (runs.pop(name) for name in ("ours", "row sums", "product"))
    ours, sums, product = (done for done in own if not isinstance(done, str))
    least, limit = least_processor(ours), least_processor(product) / 4096**2 * m * m / 2
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        extra = pool.submit(extra_memory, m, n).result()
    note = f"row sums {limit / least_processor(sums):.2f} of the limit; {extra:.0f} MB extra"
    made = []
    for what, done in {"ours": ours, **runs}.items():
        if isinstance(done, str):
            made.append(Row(m, n, what, note=done))
            continue
        used = least_processor(done)
        same = None if what.startswith("ours, ") else done[0][2] == ours[0][2]
        remark = note if what == "ours" else ""
        made.append(Row(m, n, what, min(run[0] for run in done), used, used / least, same, remark))
    return made


def least_processor(runs: Sequence[Run]) -> float:
    return min(run[1] for run in runs)


def measured(quick: bool, peers_python: str | None, rounds: int) -> Iterator[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for m, n in QUICK_SIZES if quick else SIZES:
            yield from rows_of(m, n, rounds, peers_python)
    finally:
        torch.set_num_threads(threads)


def table(quick: bool = False, peers_python: str | None = None, rounds: int = 3) -> list[Row]:
    """All sizes, or the two smallest."""
    return list(measured(quick, peers_python, rounds))


def markdown(row: Row) -> str:
    same = {True: "yes", False: "no", None: "-"}[row.same]
    times = "- | - | -"
    if row.wall is not None:
        times = f"{row.wall:.3f} | {row.processor:.3f} | {row.ratio:.1f}"
    return f"| {row.m} | {row.n} | {row.what} | {times} | {same} | {row.note} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers-python", help="the Python of an environment that has the peers")
    parser.add_argument("--output", type=Path, help="write the table to this file too")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, one thread, d = {WIDTH}, best of {args.rounds} rounds\n\n{HEAD}", flush=True)
    lines = [HEAD]
    for row in measured(args.quick, args.peers_python, args.rounds):
        lines.append(markdown(row))
        print(lines[-1], flush=True)
    if args.output:
        args.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
