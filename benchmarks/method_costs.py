"""What an epoch of a later task costs in each method, as a ratio to iCaRL, measured in turns.

    python benchmarks/method_costs.py [--settings demo] [--rounds 5] [--seconds 1.0]

Every method is grown to the middle of its tasks and trains a few real steps of each of its phases; an epoch of the
task is an epoch of all its phases. The methods take turns, so that a busy machine slows all alike; the ratio is the
median over the rounds. Parameters are those that predict, and those held while training (teachers included).
"""

import argparse
import statistics

import torch

from endocil.methods import METHODS
from endocil.runs.parts import RunParts, assemble
from endocil.runs.preflight import speed, trial
from endocil.settings.settings import load_settings

VARIANTS = [(name, ()) for name in sorted(METHODS)] + [("foster", ("method.evaluate=student",))]


def parts_of(settings: str, name: str, changes: tuple[str, ...]) -> RunParts:
    return assemble(load_settings(settings, [f"method.name={name}", *changes]))


def seconds_per_epoch(parts: RunParts, seconds: float) -> float:
    method, phases = trial(parts)
    return sum(len(phase.images) / speed(parts.settings, method, phase, seconds) for phase in phases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="demo", help="a preset or a settings file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="spent on each phase in each round")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    methods = {
        " ".join([name, *changes]): parts_of(chosen.settings, name, changes)
        for name, changes in VARIANTS
        if not METHODS[name].joint
    }
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(chosen.rounds):
        taken = {name: seconds_per_epoch(parts, chosen.seconds) for name, parts in methods.items()}
        for name, value in taken.items():
            ratios[name].append(value / taken["icarl"])
    print(f"{'method':32} {'time / iCaRL':>12} {'range':>13} {'predicting':>12} {'training':>12}")
    for name, parts in methods.items():
        method, _ = trial(parts)
        predicting = {p for module in method.predictors for p in module.parameters()}
        print(
            f"{name:32} {statistics.median(ratios[name]):12.2f} "
            f"{min(ratios[name]):6.2f}-{max(ratios[name]):.2f} "
            f"{sum(p.numel() for p in predicting):12,} {sum(p.numel() for p in method.parameters()):12,}"
        )


if __name__ == "__main__":
    main()
