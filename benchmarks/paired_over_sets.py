"""One method against others on several data sets: paired tests on test images, Holm's correction over all of them.

    python benchmarks/paired_over_sets.py RUN... --against multistage [--metric acc_last --metric f1_last]

RUN are folders of finished runs of all sets. The test is that of `endocil versus`, which knows one data set. A metric
is a family of its own: its p values are corrected for all sets and methods together.
"""

import argparse
from collections import defaultdict
from pathlib import Path

from endocil.metrics.statistics import holm
from endocil.reports.comparisons import SIGNIFICANT, comparable_runs, versus
from endocil.runs.experiments import split_title
from endocil.runs.records import RunRecord, read_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--against", required=True, help="method.name of the one that is compared with all others")
    parser.add_argument("--metric", action="append", dest="metrics", help="default: acc_last and f1_last")
    options = parser.parse_args()
    sets: dict[str, list[RunRecord]] = defaultdict(list)
    for folder in options.runs:
        record = read_run(folder)
        sets[split_title(record.settings)].append(record)
    compared = {name: comparable_runs(records) for name, records in sets.items()}
    for metric in options.metrics or ("acc_last", "f1_last"):
        found = []
        for name, runs in compared.items():
            own = [one for one in runs.groups if one.first.settings["method"]["name"] == options.against]
            if len(own) != 1:
                raise SystemExit(f"{name}: expected one setting of {options.against} among the runs, found {len(own)}")
            found += [(name, one) for one in versus(runs, own[0], [metric])]
        print(f"\n| {metric}, {options.against} minus | data | seeds | difference | 95 % interval | p | p (Holm) |")
        print("|---|---|---|---|---|---|---|")
        for (name, one), p in zip(found, holm([one.p for _, one in found]), strict=True):
            low, high = (-end for end in reversed(one.interval))
            told = f"**{p:.4f}**" if p < SIGNIFICANT else f"{p:.4f}"
            print(
                f"| {one.group.label} | {name} | {len(one.group.seeds)} | {-one.difference:+.2f} | {low:+.1f} to "
                f"{high:+.1f} | {one.p:.4f} | {told} |"
            )


if __name__ == "__main__":
    main()
