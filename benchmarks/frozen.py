"""One class is learned into a frozen model: how many seconds, and what happens to the recall of the others?

    export HYPER_KVASIR_PART=/where/the/subset/is
    export PYTHONPATH=tests/model OMP_NUM_THREADS=1
    python benchmarks/frozen.py -o results.jsonl [--methods simplecil ranpac analytic multistage] [--seeds 0]

As learn_one_class.py: a run on all classes but the last, its model, `endocil learn` of that class, and the recall of
every class on the same test images before and after. All images are decoded before the clock starts. The step is
timed twice, to the written model file: without stored features (`run.features=false`: the new images go through the
network) and with them, by the clock and by the processor's time, which is what counts on a busy machine. The target
of the first is 5 seconds on one core.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from learn_one_class import held_back, recalls, settings_of, summary, write_list

from endocil.learning.build import complete
from endocil.model.model import Model
from endocil.release.learn import learn, read_new_images
from endocil.runs.parts import images_and_scenario
from endocil.runs.run import run
from endocil.settings.settings import Settings

SETTINGS = Path(__file__).parents[1] / "experiments" / "hyper-kvasir-part-pretrained.toml"
METHODS = ("simplecil", "ranpac", "analytic", "multistage")


def result_of(settings: Settings, folder: Path) -> dict[str, Any]:
    _, scenario = images_and_scenario(complete(settings))
    name = held_back(scenario)
    first = settings.scenario.model_copy(update={"leave_out": (*settings.scenario.leave_out, name)})
    began = time.monotonic()
    before = run(settings.model_copy(update={"scenario": first}), folder / "run").folder
    seconds, processor = {"run": time.monotonic() - began}, {}
    listing, root = write_list(scenario, name, folder / "new.csv")
    reading = [f"data.root={root}"]
    new = read_new_images(listing, Model.load(before), changes=reading)  # decoded now
    for kind, stored in (("learn", "false"), ("fill the store", "true"), ("learn from stored features", "true")):
        after = folder / f"{kind.replace(' ', '-')}.endocil"
        began, busy = time.monotonic(), time.process_time()
        learn(before, listing, after, changes=[*reading, f"run.features={stored}"])
        seconds[kind], processor[kind] = time.monotonic() - began, time.process_time() - busy
    old = [one for one in scenario.table.classes if one != name]
    measured = {"before": recalls(before, scenario, old), "after": recalls(after, scenario, [*old, name])}
    return {
        "method": settings.method.name,
        "seed": settings.seed,
        "held_back": name,
        "new_images": len(new.images.table),
        "threads": torch.get_num_threads(),
        **summary(measured, old, name),
        "recall": measured,
        "seconds": seconds,
        "processor_seconds": processor,
        "model_megabytes": after.stat().st_size / 1e6,
        "settings": json.loads(settings.model_dump_json(exclude_none=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a line of JSON for each result")
    parser.add_argument("--work", type=Path, help="a new folder for runs and models; by default beside the output")
    parser.add_argument("--settings", default=str(SETTINGS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    options = parser.parse_args()
    work = options.work or options.output.with_suffix(".work")
    for seed in options.seeds:
        for method in options.methods:
            settings = settings_of(options.settings, method, seed, options.changes)
            found = result_of(settings, work / f"{method}-{seed}")
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            recall, seconds, processor = found["softmax"], found["seconds"], found["processor_seconds"]
            print(
                f"{method} seed {seed}, {found['held_back']} ({found['new_images']} images) learned in "
                f"{seconds['learn']:.1f} s (processor {processor['learn']:.1f} s), from stored features "
                f"{seconds['learn from stored features']:.1f} s ({processor['learn from stored features']:.1f} s): old "
                f"classes {recall['old_before']:.1f} -> {recall['old_after']:.1f}, new class {recall['new']:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
