"""Thousands of damaged and hostile images, DICOM files, archives and folders: does each end in pixels or in a reason?

    python benchmarks/fuzz.py --images 5000 --dicom 600 --archives 1000 --folders 400

Every file is the same for the same number (tests/damaged.py). Each hundred or so is read in a process of its own, with
2 GiB of memory beyond what the libraries need and a minute for each file. Images go through the decoder and
the cache, archives through the extraction, with a look at what lies outside the folder; folders have pipes, devices,
link loops and odd names among their pictures, each of which has to count once. Prints a Markdown table; the
exit code is 1 where anything else happened.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from damaged import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--dicom", type=int, default=600)
    parser.add_argument("--archives", type=int, default=1000)
    parser.add_argument("--folders", type=int, default=400)
    parser.add_argument("--chunk", type=int, default=500, help="files of one process")
    args = parser.parse_args()
    failures: list[str] = []
    print("| files | tried | pixels or files | refused with a reason | anything else | seconds |")
    print("|---|---|---|---|---|---|")
    for what in ("images", "dicom", "archives", "folders"):
        n, began = getattr(args, what), time.perf_counter()
        found = [run((what, start, min(n, start + args.chunk)))[0] for start in range(0, n, args.chunk)]
        bad = [failure for one in found for failure in one["failures"]]
        good, refused = (sum(one[key] for one in found) for key in ("good", "refused"))
        took = time.perf_counter() - began
        print(f"| {what} | {n} | {good} | {refused} | {len(bad)} | {took:.0f} |", flush=True)
        failures += bad
    for failure in failures[:10]:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
