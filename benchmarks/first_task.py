"""What sharing the first task saves: the same sweep without and with, in turns, as a ratio of processor time.

    python benchmarks/first_task.py [--settings smoke] [--rounds 3] [--workers 1] [--set train.epochs=20]

Every sweep runs in a new folder, so that nothing is skipped; images are decoded before the first round. The results
of the two sweeps are compared byte for byte.
"""

import argparse
import resource
import statistics
import tempfile
from pathlib import Path

from rich.console import Console

from endocil.runs.parts import assemble
from endocil.runs.sweep.plan import PlannedRun, SweepFile, plan
from endocil.runs.sweep.runner import Execution, SweepFolder, run_all

METHODS = ["finetune", "lwf", "icarl", "wa", "bic", "mrfa"]
Row = dict[str, float | int | str]


def runs_of(settings: str, overrides: list[str]) -> list[PlannedRun]:
    """Methods that start alike; their later tasks cost about the same."""
    return plan(SweepFile(settings=settings, vary={"method": METHODS}), Path(), overrides)


def seconds_of(runs: list[PlannedRun], folder: Path, workers: int, *, share: bool) -> float:
    """Processor time of all runs: on a busy machine the wall says more about the others."""
    began = spent()
    with open("/dev/null", "w") as nowhere:
        failed = run_all(
            SweepFolder(folder), runs, Execution(workers=workers, share_first_task=share), Console(file=nowhere)
        )
    assert not failed, failed
    return spent() - began


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def results(folder: Path) -> dict[str, bytes]:
    kept = [*folder.glob("*/metrics.json"), *folder.glob("*/predictions/*"), *folder.glob("*/memory/*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def rows(settings: str = "smoke", rounds: int = 3, workers: int = 1, overrides: tuple[str, ...] = ()) -> list[Row]:
    """One row: how many times as fast the sweep is with a shared first task, median and range over the rounds."""
    runs = runs_of(settings, list(overrides))
    assemble(runs[0].settings)  # the images are decoded once, before anything is timed
    taken: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(rounds):
            for share in (True, False):
                folder = Path(place, f"{turn}-{share}")
                taken[share].append(seconds_of(runs, folder, workers, share=share))
            assert results(Path(place, f"{turn}-True")) == results(Path(place, f"{turn}-False"))
    ratios = [alone / shared for shared, alone in zip(taken[True], taken[False], strict=True)]
    return [
        {
            "sweep": f"{len(runs)} runs of {settings}, {workers} at a time",
            "processor seconds shared": round(statistics.median(taken[True]), 1),
            "processor seconds alone": round(statistics.median(taken[False]), 1),
            "ratio": round(statistics.median(ratios), 2),
            "range": f"{min(ratios):.2f}-{max(ratios):.2f}",
            "rounds": rounds,
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="smoke", help="a preset or a settings file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    chosen = parser.parse_args()
    for row in rows(chosen.settings, chosen.rounds, chosen.workers, tuple(chosen.overrides)):
        print("; ".join(f"{key}: {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
