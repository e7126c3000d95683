"""Thousands of damaged and hostile models: does each end in predictions or in one line, with nothing run or written?

    python benchmarks/fuzz_model_files.py --cases 2400

Half are a sound model cut, flipped and overwritten; half hold changed content under the right digest
(tests/model/hostile.py): first what someone with bad intent would try, then random changes of manifest, tables,
pictures, weights and names. Each hundred is loaded in a process of its own with 1 GiB of memory beyond what the
libraries need and a minute for each file, which is then asked to predict two pictures. Of those that predict, all that
were thought out and every second of the others are also listed and drawn (memory), made to forget a picture, and to
learn a class from files. A module of a name that some of
them mention lies on the path and must not be imported; the folders around are looked at after each. Prints a Markdown
table; the exit code is 1 where anything else happened.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "model"))
import hostile
from packed import packed
from tiny_runs import tiny

from endocil.runs.run import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2400)
    parser.add_argument("--chunk", type=int, default=100, help="model files of one process")
    parser.add_argument("--methods", default="icarl,foster,der", help="whose model files, in turn")
    parser.add_argument("--reasons", action="store_true", help="show the most frequent refusals")
    args = parser.parse_args()
    methods = args.methods.split(",")
    each = -(-args.cases // len(methods))
    failures: list[str] = []
    print(
        "| model file of | tried | predict | refused in one line | learned too | learning refused | anything else | s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for method in methods:
            sound, began = _sound(Path(folder), method), time.perf_counter()
            found = [
                hostile.run(sound, start, min(each, start + args.chunk), share=2)
                for start in range(0, each, args.chunk)
            ]
            bad = [failure for one in found for failure in one["failures"]]
            good, refused, more = (sum(one[key] for one in found) for key in ("good", "refused", "learned"))
            less = sum(n for one in found for _, n in one["not_learned"])
            took = time.perf_counter() - began
            told = (method, each, good, refused, more, less, len(bad), f"{took:.0f}")
            print(f"| {' | '.join(map(str, told))} |", flush=True)
            failures += bad
            for one in found if args.reasons else ():
                reasons = (*one["reasons"], *one["not_learned"])
                print(*(f"{n:5} {reason}" for reason, n in reasons), sep="\n", file=sys.stderr)
    for failure in failures[:10]:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


def _sound(folder: Path, method: str) -> Path:
    run(tiny(method), folder / method)
    path = folder / f"{method}.endocil"
    packed(folder / method).save(path)
    return path


if __name__ == "__main__":
    main()
