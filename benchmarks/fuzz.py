"""Thousands of damaged and hostile files and requests: does each end in a result or in a reason?

    python benchmarks/fuzz.py --cases 100000 --log fuzz.jsonl               # of all kinds together
    python benchmarks/fuzz.py --kinds checkpoints --cases 1 --first 4711    # one case again

Every case is the same for the same kind and number (tests/damaged*.py). Hundreds of them are
tried in a process of its own, with 2 GiB of memory beyond what the libraries need and ten seconds of the processor for
each. Images go through the decoder and the cache; archives through the extraction, with a look at what lies outside the
folder; folders have pipes, devices, link loops and odd names among their pictures, each of which has to count once.
Lists, settings and files of runs are changed in their bytes, cells and values. Bits are flipped in caches, also of
unreadable images (skipped), and checkpoints: what is read then must be what was written. Checkpoints made by hand have
a right checksum and wrong values: a resume learns from them or refuses them (made). Requests go to a server on a
socket, which must answer below 500 and stay as it was. Prints a Markdown table; the exit code is 1 where anything else
happened. Model files have a benchmark of their own (fuzz_model_files.py). The processes are forked from this one, which
has loaded the libraries.
"""

import argparse
import json
import os
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads could not be forked
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import torch  # noqa: F401  (once, for all processes)
from damaged import KINDS, Job, serve

import endocil.reports.page
import endocil.runs.run
import endocil.serve.server  # noqa: F401

# of 100 cases
SHARES = {
    "images": 17,
    "dicom": 6,
    "archives": 2,
    "folders": 1,
    "lists": 18,
    "settings": 15,
    "runs": 1,
    "cache": 16,
    "skipped": 5,
    "checkpoints": 10,
    "made": 4,
    "requests": 5,
}
CHUNK = 1000  # cases of one process
LARGE_CHUNK = 5000  # where a process first makes a run


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tried(job: Job) -> dict[str, Any]:
    """What became of the files of a job, in a forked process; one that died is a failure."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            silent = os.open(os.devnull, os.O_WRONLY)  # libtiff and others speak for themselves
            os.dup2(write, 1)
            os.dup2(silent, 2)
            warnings.simplefilter("ignore")
            serve([job])
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        failures = [f"{job}: the process ended with {os.waitstatus_to_exitcode(status)}"]
        return {"good": 0, "refused": 0, "failures": failures, "slowest": 0.0, "megabytes": 0.0}
    summaries: list[dict[str, Any]] = json.loads(said)
    return summaries[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="of all kinds together")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--first", type=int, default=0, help="the number of each kind's first case")
    parser.add_argument("--chunk", type=int, default=0, help="cases of one process")
    parser.add_argument("--log", type=Path, help="append a line of JSON for each process")
    args = parser.parse_args()
    kinds, failures = args.kinds.split(","), list[str]()
    total = sum(SHARES[kind] for kind in kinds)
    print(
        "| kind | tried | read | refused with a reason | anything else | slowest, processor s | peak memory, MB "
        "| processor s |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for kind in kinds:
        n, began = max(1, args.cases * SHARES[kind] // total), processor_seconds()
        chunk = args.chunk or (LARGE_CHUNK if kind in ("runs", "checkpoints", "made") else CHUNK)
        end, found = args.first + n, list[dict[str, Any]]()
        for start in range(args.first, end, chunk):
            job = (kind, start, min(end, start + chunk))
            found.append(tried(job))
            if args.log:
                with args.log.open("a") as log:
                    log.write(json.dumps({"job": job, **found[-1]}) + "\n")
        bad = [f"{kind} {failure}" for one in found for failure in one["failures"]]
        good, refused = (sum(one[key] for one in found) for key in ("good", "refused"))
        slowest, memory = (max(one[key] for one in found) for key in ("slowest", "megabytes"))
        took = processor_seconds() - began
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
