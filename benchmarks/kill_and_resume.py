"""Kill commands with SIGKILL, at file-system calls and at random moments, until they end: the same bits?

    python benchmarks/kill_and_resume.py --kills 200                     # over all commands and six methods
    python benchmarks/kill_and_resume.py --kills 20 --commands learn --methods foster --seed 3

A life is one command (run, learn, bundle, publish, sweep) of one method, with a fresh or a warm cache of images. It is
killed some times, each time started again as a user would, and let go to its end. Two of three kills come just before a
chosen call that opens, renames, removes or makes a file or folder in its place (counted by an audit hook of Python);
the others at a random moment. Afterwards its result is compared with that of the same command that was never killed,
and its place is searched for anything else. Commands are forked from this process, which has loaded the libraries, so
that a kill costs no start of Python; sweeps and their runs are processes of their own. The same seed kills at the same
calls.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads could not be forked

import numpy as np
import tomli_w
from PIL import Image

import endocil.cli.main
import endocil.learning.learner
import endocil.model.model
import endocil.release.learn
import endocil.reports.publish
import endocil.runs.run
from endocil.model.file import read_archive

METHODS = "endocil,icarl,bic,foster,ewc,ranpac"
COMMANDS = "run,learn,bundle,publish,sweep"
CALLS = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree"}
)
KILLS_OF_A_LIFE = 5  # at most
HANG = 600.0  # seconds, on a busy machine


def settings_of(method: str) -> dict[str, Any]:
    frozen = {"freeze": ["all"]} if method == "ranpac" else {}
    return {
        "data": {"name": "synthetic", "images": 60, "classes": 4, "size": 16, "imbalance": 1.5},
        "scenario": {"increments": [2, 2], "validation": 0.2},
        "network": {"width": 8, **frozen},
        "memory": {"per_class": 4},
        "method": {"name": method, **({"projected": 40} if method == "ranpac" else {})},
        "train": {"epochs": 2, "batch_size": 16},
        "run": {"threads": 1, "checkpoint_seconds": 0.0},
    }


def new_class(folder: Path) -> Path:
    """A class that no model knows yet."""
    random_pixels = np.random.default_rng(0)
    (folder / "swelling").mkdir(parents=True)
    for number in range(10):
        pixels = random_pixels.integers(0, 256, (20, 20, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "swelling" / f"{number}.png")
    return folder


def in_child(arguments: Sequence[object], place: Path, cache: Path, at: int | None, seconds: float | None) -> int:
    """Status of a command in a forked process; -9: killed before call `at` in this place, or after some seconds.

    With neither, the number of calls is in the file CALLS of the cache's folder."""
    child = os.fork()
    if child:
        return _waited(child, seconds)
    status = 1
    try:
        os.environ["ENDOCIL_CACHE"] = str(cache)
        for stream in (1, 2):
            os.dup2(os.open(place.parent / f"said-{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        sys.argv = ["endocil", *map(str, arguments)]
        calls = 0

        def count(event: str, details: tuple[Any, ...]) -> None:
            nonlocal calls
            if event in CALLS and details and str(details[0]).startswith((str(place), str(cache))):
                calls += 1
                if calls == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            endocil.cli.main.main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        if at is None and seconds is None:
            (place.parent / "calls").write_text(str(calls))
    finally:
        os._exit(status)


def _waited(child: int, seconds: float | None) -> int:
    deadline = time.monotonic() + (HANG if seconds is None else seconds)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if seconds is None:
                raise SystemExit(f"a command did not end within {HANG:.0f} seconds")
            return -signal.SIGKILL
        time.sleep(0.005)


# --- what is compared


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def of_model(path: Path) -> dict[str, str]:
    """Without the manifest, which names times and folders."""
    return {name: digest(data) for name, data in read_archive(path)[0].items() if name != "manifest.json"}


def of_run(folder: Path) -> dict[str, str]:
    """Every file by its name; of those that hold times, the name alone."""
    times = {"events.jsonl", "environment.json", "report.html", "data.json", "settings.toml", ".lock", "model.endocil"}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    same = {str(path.relative_to(folder)): "" if path.name in times else digest(path.read_bytes()) for path in files}
    return same | of_model(folder / "model.endocil")


def of_folder(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def of_sweep(folder: Path) -> dict[str, str]:
    runs = sorted(path.parent for path in folder.glob("*/metrics.json"))
    return {f"{run.name}/{name}": value for run in runs for name, value in of_run(run).items()}


@dataclass
class Life:
    """One command: what is typed, what it leaves, and what else may lie beside that."""

    kind: str
    method: str
    typed: Callable[[Path], list[object]]  # at first, or again, in this place
    over: Callable[[Path], bool]  # whether a process that was killed had written everything
    result: Callable[[Path], dict[str, str]]
    forked: bool = True


@dataclass
class Tally:
    lives: int = 0
    kills: int = 0
    at_calls: int = 0
    different: list[str] = field(default_factory=list)
    stranded: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def lives_of(method: str, commands: Sequence[str], sources: Path) -> list[Life]:
    """`sources`: the folder with settings, runs, a model and new images of this method."""
    settings, run, model = sources / "settings.toml", sources / "run", sources / "model.endocil"

    def run_or_resume(place: Path) -> list[object]:
        begun = (place / "out" / "settings.toml").exists()
        return ["resume", place / "out"] if begun else ["run", settings, "-o", place / "out"]

    def publish(place: Path) -> list[object]:
        return ["publish", run, "-o", place / "out", "--no-figures"]

    known = {
        "run": Life("run", method, run_or_resume, lambda place: False, lambda place: of_run(place / "out")),
        "learn": Life(
            "learn",
            method,
            lambda place: ["learn", model, sources / "new", "-o", place / "out"],
            lambda place: (place / "out").exists() and not (place / "out.learning").exists(),
            lambda place: of_model(place / "out"),
        ),
        "bundle": Life(
            "bundle",
            method,
            lambda place: ["bundle", run, "-o", place / "out"],
            lambda place: (place / "out").exists(),
            lambda place: of_model(place / "out"),
        ),
        "publish": Life("publish", method, publish, lambda place: False, lambda place: of_folder(place / "out")),
        "sweep": Life(
            "sweep",
            method,
            lambda place: ["sweep", sources / "sweep.toml", "-o", place / "out", "--workers", "1"],
            lambda place: False,
            lambda place: of_sweep(place / "out"),
            forked=False,
        ),
    }
    return [known[name] for name in commands]


def started(life: Life, place: Path, cache: Path, at: int | None = None, seconds: float | None = None) -> int:
    if life.forked:
        return in_child(life.typed(place), place, cache, at, seconds)
    command = [sys.executable, "-m", "endocil", *map(str, life.typed(place))]
    environment, silent = {**os.environ, "ENDOCIL_CACHE": str(cache)}, subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdout=silent, stderr=silent)
    try:
        return process.wait(HANG if seconds is None else seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def one(life: Life, folder: Path, cache: Path, expected: dict[str, str], calls: int, took: float, tally: Tally) -> None:
    """Kill a life some times, let it end, and compare."""
    moments = random.Random(f"{life.kind} {life.method} {tally.lives} {folder.name}")
    place = folder / "place"
    place.mkdir(parents=True)
    kills, status = 0, -signal.SIGKILL
    wanted = moments.randint(1, KILLS_OF_A_LIFE)
    while status != 0 and kills < wanted:
        at_call = life.forked and moments.random() < 2 / 3
        at, seconds = (moments.randint(1, max(1, calls)), None) if at_call else (None, moments.uniform(0.0, took))
        status = started(life, place, cache, at, seconds)
        if status == -signal.SIGKILL:
            kills += 1
            tally.at_calls += at_call
            if life.over(place):
                status = 0
        elif status:
            break
    name = f"{life.kind} of {life.method}, {folder.name}"
    if status and (status := started(life, place, cache)):
        said = "".join(path.read_text()[-300:] for path in sorted(folder.glob("said-*")))
        tally.stranded.append(f"{name}: status {status} {said}")
    else:
        if life.result(place) != expected:
            tally.different.append(name)
        others = {path.name for path in place.iterdir()} - {"out"}
        hidden = [path for path in (*place.rglob(".*"), *cache.rglob(".*")) if path.name not in (".lock",)]
        if others or hidden:
            tally.left.append(f"{name}: {sorted(others)} {[str(path.name) for path in hidden[:3]]}")
    tally.lives += 1
    tally.kills += kills


def prepare(method: str, folder: Path, cache: Path) -> None:
    """A finished run, its model, a new class, and a sweep."""
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text(tomli_w.dumps(settings_of(method)))
    sweep = {"settings": "settings.toml", "vary": {"seed": [0, 1]}}
    (folder / "sweep.toml").write_text(tomli_w.dumps(sweep))
    new_class(folder / "new")
    for typed in (["run", folder / "settings.toml", "-o", folder / "run"],):
        if in_child(typed, folder / "none", cache, None, None):
            raise SystemExit((folder / "said-2").read_text())
    if in_child(["bundle", folder / "run", "-o", folder / "model.endocil"], folder / "none", cache, None, None):
        raise SystemExit((folder / "said-2").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of all commands and methods together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--commands", default=COMMANDS)
    options = parser.parse_args()
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as name:
        top = Path(name).resolve()
        warm, methods = top / "warm", options.methods.split(",")
        share = -(-options.kills // len(methods))
        for method in methods:
            prepare(method, top / method / "sources", warm)
            references = []
            for life in lives_of(method, options.commands.split(","), top / method / "sources"):
                place = top / method / f"straight-{life.kind}" / "place"
                place.mkdir(parents=True)
                began = time.monotonic()
                if status := started(life, place, warm):
                    raise SystemExit(f"{life.kind} of {method} ended with {status}: it cannot be compared")
                calls = int((place.parent / "calls").read_text()) if life.forked else 0
                references.append((life, life.result(place), calls, time.monotonic() - began))
            done, number = 0, 0
            while done < share:
                life, expected, calls, took = references[number % len(references)]
                tally = tallies.setdefault(life.kind, Tally())
                before = tally.kills
                folder = top / method / f"{options.seed}-{number}"
                cache = warm if number % 2 else folder / "cache"
                one(life, folder, cache, expected, calls, took, tally)
                done, number = done + tally.kills - before, number + 1
            print(f"{method}: {json.dumps({kind: tally.kills for kind, tally in tallies.items()})}", file=sys.stderr)
    report(tallies)


def report(tallies: dict[str, Tally]) -> None:
    print("| command | lives | kills | at file-system calls | not the same bits | stranded | something left behind |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    failed = False
    for kind, tally in tallies.items():
        problems = (tally.different, tally.stranded, tally.left)
        figures = (kind, tally.lives, tally.kills, tally.at_calls, *map(len, problems))
        print(f"| {' | '.join(map(str, figures))} |")
        for problem in (one for some in problems for one in some[:5]):
            print(problem, file=sys.stderr)
        failed = failed or any(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
