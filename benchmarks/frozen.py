"""One class is learned into a frozen model: how many seconds, and what happens to the recall of the others?

    export HYPER_KVASIR_PART=/where/the/subset/is
    export PYTHONPATH=tests/model OMP_NUM_THREADS=1
    python benchmarks/frozen.py -o results.jsonl [--methods simplecil ranpac analytic multistage] [--seeds 0]

As learn_one_class.py: a run on all classes but the last, its model, `endocil learn` of that class, and the recall of
every class on the same test images before and after. All images are decoded before the clock starts. The step is
timed to the written model file: without stored features (`run.features=false`), where they are computed and stored, and
with them; then the command `endocil learn` with them, from the start of its process. By the clock and by the
processor's time, which is what counts on a busy machine, and that divided into parts. The target is 5 seconds on one
core once the features are stored.
"""

import argparse
import functools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from learn_one_class import held_back, recalls, settings_of, summary, write_list

from endocil.learning.build import complete
from endocil.methods import method_class
from endocil.model.model import Model
from endocil.release import learn as learning
from endocil.release.learn import learn, read_new_images
from endocil.runs.parts import images_and_scenario
from endocil.runs.run import run
from endocil.settings.settings import Settings

SETTINGS = Path(__file__).parents[1] / "experiments" / "hyper-kvasir-part-pretrained.toml"
METHODS = ("simplecil", "ranpac", "analytic", "multistage")
INSIDE = "inside"  # a part: what parts within it took
STEPS = (("learn", "false"), ("fill the store", "true"), ("learn from stored features", "true"))


@contextmanager
def divided(method: str, spent: dict[str, float]) -> Iterator[None]:
    """The processor's time of the parts of `learn`, each without the parts within it."""
    own = method_class(method)
    parts: tuple[tuple[str, Any, str], ...] = (
        ("read the model", Model, "load"),
        ("read the images", learning, "read_new_images"),
        ("network", own, "embed"),
        ("head", own, "choose"),
        ("head", own, "add"),
        ("head", own, "solve"),
        ("calibrate", Model, "calibrate"),
        ("cost report", learning, "learning_cost"),
        ("write the model", Model, "save"),
    )
    with ExitStack() as stack:
        for name, owner, attribute in parts:
            stack.enter_context(patch.object(owner, attribute, _timed(name, getattr(owner, attribute), spent)))
        yield


def _timed(name: str, function: Callable[..., Any], spent: dict[str, float]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*given: Any, **named: Any) -> Any:
        outside, spent[INSIDE], began = spent.get(INSIDE, 0.0), 0.0, time.process_time()
        try:
            return function(*given, **named)
        finally:
            took = time.process_time() - began
            spent[name] = spent.get(name, 0.0) + took - spent[INSIDE]
            spent[INSIDE] = outside + took

    return timed


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
    parts: dict[str, dict[str, float]] = {}
    for kind, stored in STEPS:
        after, spent = folder / f"{kind.replace(' ', '-')}.endocil", dict[str, float]()
        began, busy = time.monotonic(), time.process_time()
        with divided(settings.method.name, spent):
            learn(before, listing, after, changes=[*reading, f"run.features={stored}"])
        seconds[kind], processor[kind] = time.monotonic() - began, time.process_time() - busy
        spent["rest"] = processor[kind] - spent.pop(INSIDE)
        parts[kind] = spent
    began, busy = time.monotonic(), _of_processes()
    typed = ["learn", before, listing, "-o", folder / "command.endocil", *(f"--set={one}" for one in reading)]
    subprocess.run([sys.executable, "-m", "endocil", *map(str, typed)], check=True, capture_output=True)
    seconds["command"], processor["command"] = time.monotonic() - began, _of_processes() - busy
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
        "parts": parts,
        "model_megabytes": after.stat().st_size / 1e6,
        "settings": json.loads(settings.model_dump_json(exclude_none=True)),
    }


def _of_processes() -> float:
    """The processor's time of the processes that were started here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
                f"{seconds['learn from stored features']:.1f} s ({processor['learn from stored features']:.1f} s), the "
                f"command {seconds['command']:.1f} s ({processor['command']:.1f} s): old "
                f"classes {recall['old_before']:.1f} -> {recall['old_after']:.1f}, new class {recall['new']:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
