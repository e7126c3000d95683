"""Thousands of damaged and hostile files and requests: does each end in a result or in a reason?

    python benchmarks/fuzz.py --cases 20000                  # of all kinds together
    python benchmarks/fuzz.py --kinds checkpoints --cases 1 --first 4711    # one case again

Every case is the same for the same kind and number (tests/damaged.py, tests/damaged_records.py). Hundreds of them are
tried in a process of its own, with 2 GiB of memory beyond what the libraries need and a minute for each. Images go
through the decoder and the cache; archives through the extraction, with a look at what lies outside the folder; folders
have pipes, devices, link loops and odd names among their pictures, each of which has to count once. Lists, settings and
files of runs are changed in their bytes, cells and values. Bits are flipped in caches and checkpoints: what is read
then must be what was written. Requests go to a server on a socket, which must answer below 500 and stay as it was.
Prints a Markdown table; the exit code is 1 where anything else happened. Model files have a benchmark of their own
(fuzz_model_files.py).
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from damaged import KINDS, run

# of the cases; the other kinds have one share each
SHARES = {
    "images": 8,
    "lists": 8,
    "settings": 8,
    "runs": 4,
    "cache": 8,
    "checkpoints": 8,
    "requests": 4,
}  # the others 1
CHUNK = 500  # cases of one process; more where it takes long until the first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="of all kinds together")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--first", type=int, default=0, help="the number of each kind's first case")
    parser.add_argument("--chunk", type=int, default=0, help="cases of one process")
    args = parser.parse_args()
    kinds, failures = args.kinds.split(","), list[str]()
    total = sum(SHARES.get(kind, 1) for kind in kinds)
    print("| kind | tried | read | refused with a reason | anything else | slowest, s | peak memory, MB | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kind in kinds:
        n, began = max(1, args.cases * SHARES.get(kind, 1) // total), time.perf_counter()
        chunk = args.chunk or (5000 if kind in ("runs", "checkpoints", "cache", "requests", "settings") else CHUNK)
        end = args.first + n
        found = [run((kind, start, min(end, start + chunk)))[0] for start in range(args.first, end, chunk)]
        bad = [f"{kind} {failure}" for one in found for failure in one["failures"]]
        good, refused = (sum(one[key] for one in found) for key in ("good", "refused"))
        slowest, memory = (max(one.get(key, 0.0) for one in found) for key in ("slowest", "megabytes"))
        took = time.perf_counter() - began
        print(
            f"| {kind} | {n} | {good} | {refused} | {len(bad)} | {slowest:.1f} | {memory:.0f} | {took:.0f} |",
            flush=True,
        )
        failures += bad
    for failure in failures[:20]:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
