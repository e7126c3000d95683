"""One class is held back: a model of the others learns it, without their training data. What is lost, what is won?

    export HYPER_KVASIR_PART=/where/the/subset/is
    python benchmarks/learn_one_class.py -o results.jsonl [--methods icarl dgr foster endocil] [--seeds 0 1 2]

For each method and seed: a run on all classes but one, its model, `endocil learn` of the class that was held back,
and the recall of every class on the test images before and after, by both heads. The test images are the same ones
throughout. The class is the last in alphabetical order, which was said before any result was seen. One process; a
line of JSON for each result. Stopped, the same command goes on: results that are there are not made again, and a
run or a step that was stopped is resumed. `--set train.epochs=2 --set train.milestones=[1]` makes it quick.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from packed import packed

from endocil.data.decode import FileReader
from endocil.data.scenario import Scenario
from endocil.data.splits import TEST
from endocil.data.table import ImageTable
from endocil.io.files import write_csv, write_json
from endocil.learning.build import complete
from endocil.model.model import Model
from endocil.release.learn import learn
from endocil.runs.parts import images_and_scenario
from endocil.runs.run import resume, run
from endocil.settings.settings import Settings, load_settings

SETTINGS = Path(__file__).parents[1] / "experiments" / "hyper-kvasir-part.toml"
METHODS = ("icarl", "dgr", "foster", "endocil")


def settings_of(source: str | Path, method: str, seed: int, changes: Sequence[str] = ()) -> Settings:
    own = ["scenario.validation=0.1", f"seed={seed}", f"method.name={method}"]
    return load_settings(source, [*own, *changes])


def held_back(scenario: Scenario) -> str:
    return scenario.table.classes[-1]


def result_of(settings: Settings, folder: Path) -> dict[str, Any]:
    """Run, model, learn, and measure before and after; what is there already is not made again."""
    _claim(folder, settings)
    _, scenario = images_and_scenario(complete(settings))
    name = held_back(scenario)
    first = settings.scenario.model_copy(update={"leave_out": (*settings.scenario.leave_out, name)})
    began = time.monotonic()
    _run(settings.model_copy(update={"scenario": first}), folder / "run")
    before, after = folder / "before.endocil", folder / "after.endocil"
    if not before.exists():
        packed(folder / "run").save(before)
    ran = time.monotonic()
    if not after.exists():
        listing, root = write_list(scenario, name, folder / "new.csv")
        learn(before, listing, after, changes=[f"data.root={root}"], train="all")  # as a run's next task
    learned = time.monotonic()
    old = [one for one in scenario.table.classes if one != name]
    labels, tests = scenario.table.labels, scenario.part == TEST
    held = labels == scenario.table.classes.index(name)
    write_shown(scenario, tests & ~held, folder / "known.csv")
    write_shown(scenario, held, folder / "unknown.csv")  # to the first model
    measured = {"before": recalls(before, scenario, old), "after": recalls(after, scenario, [*old, name])}
    return {
        "method": settings.method.name,
        "seed": settings.seed,
        "held_back": name,
        "test_images": dict(zip(scenario.table.classes, scenario.counts(TEST).tolist(), strict=True)),
        **summary(measured, old, name),
        "recall": measured,
        "seconds": {"run": ran - began, "learn": learned - ran},  # of this start alone, where it was resumed
        "settings": facts(settings),
    }


def _run(settings: Settings, folder: Path) -> None:
    """Begun, resumed or left as it is."""
    if (folder / "settings.toml").exists():
        resume(folder)
    else:
        run(settings, folder)


def folder_of(table: ImageTable) -> Path:
    """Where its images lie."""
    if not isinstance(table.reader, FileReader):
        raise SystemExit(f"expected image files; the data set is read by {type(table.reader).__name__}")
    return table.reader.root


def write_list(scenario: Scenario, name: str, path: Path) -> tuple[Path, Path]:
    """The images of one class with their parts, as `endocil learn` takes them, and where they lie."""
    table = scenario.table
    rows = np.flatnonzero(table.labels == table.classes.index(name)).tolist()
    told = [(table.ids[row], name, table.groups[row], scenario.part[row]) for row in rows]
    write_csv(path, ("path", "label", "group", "split"), told)
    return path, folder_of(table)


def write_shown(scenario: Scenario, wanted: np.ndarray, path: Path) -> None:
    """Some images, as `endocil predict` and benchmarks/out_of_distribution.py take them."""
    table, root = scenario.table, folder_of(scenario.table)
    rows = np.flatnonzero(wanted).tolist()
    told = [(root / table.ids[row], table.classes[table.labels[row]]) for row in rows]
    write_csv(path, ("path", "label"), told)


def recalls(model: Path, scenario: Scenario, classes: Sequence[str], part: str = TEST) -> dict[str, dict[str, float]]:
    """Of each class in percent, by the softmax head and by the nearest class mean."""
    labels, own = scenario.table.labels, scenario.table.classes
    wanted = np.isin(labels, [own.index(name) for name in classes]) & (scenario.part == part)
    shown: ImageTable = scenario.table.take(wanted)
    said = Model.load(model).predict(shown)
    assert not said.unreadable
    truth = [own[label] for label in shown.labels.tolist()]
    heads = {"softmax": said.probabilities, "mean": said.mean_probabilities}
    return {
        head: _by_class(scores, said.classes, truth, classes) for head, scores in heads.items() if scores is not None
    }


def _by_class(
    scores: np.ndarray, names: Sequence[str], truth: Sequence[str], classes: Sequence[str]
) -> dict[str, float]:
    said = np.array([names[i] for i in scores.argmax(axis=1).tolist()])
    true = np.array(truth)
    return {name: 100.0 * float((said[true == name] == name).mean()) for name in classes}


def summary(
    measured: dict[str, dict[str, dict[str, float]]], old: Sequence[str], new: str
) -> dict[str, dict[str, float]]:
    """By head: mean recall of the old classes before and after, and recall of the new one."""
    return {
        head: {
            "old_before": float(np.mean([measured["before"][head][name] for name in old])),
            "old_after": float(np.mean([found[name] for name in old])),
            "new": found[new],
        }
        for head, found in measured["after"].items()
    }


def done(output: Path, settings: Settings) -> bool:
    """Whether the result is there; one of the same method and seed with other settings is refused, never mixed in."""
    lines = output.read_text("utf-8").splitlines() if output.exists() else []
    for line in map(json.loads, lines):
        if (line["method"], line["seed"]) == (settings.method.name, settings.seed):
            _refuse_other(line["settings"], settings, output)
            return True
    return False


def _claim(folder: Path, settings: Settings) -> None:
    """A run that was begun with other settings must not be resumed as if it were this one."""
    file = folder / "wanted.json"
    if file.exists():
        _refuse_other(json.loads(file.read_text("utf-8")), settings, folder)
    else:
        write_json(file, facts(settings))


def _refuse_other(recorded: dict[str, Any], settings: Settings, place: Path) -> None:
    if recorded != facts(settings):
        raise SystemExit(f"{place} has {settings.method.name} seed {settings.seed} with other settings")


def facts(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(settings.model_dump_json(exclude_none=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a line of JSON for each result")
    parser.add_argument("--work", type=Path, help="folder of runs and model files; by default beside the output")
    parser.add_argument("--settings", default=str(SETTINGS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    options = parser.parse_args()
    work = options.work or options.output.with_suffix(".work")
    for seed in options.seeds:
        for method in options.methods:
            settings = settings_of(options.settings, method, seed, options.changes)
            if done(options.output, settings):
                continue
            found = result_of(settings, work / f"{method}-{seed}")
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            told = found["softmax"]
            print(
                f"{method} seed {seed}, {found['held_back']} held back: old classes {told['old_before']:.1f} -> "
                f"{told['old_after']:.1f}, new class {told['new']:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
