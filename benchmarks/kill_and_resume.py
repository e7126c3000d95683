"""Kill commands with SIGKILL, at file-system calls and at random moments, until they end: the same bits?

    python benchmarks/kill_and_resume.py --kills 1000 --log kills.jsonl  # over all commands and six methods
    python benchmarks/kill_and_resume.py --first 400 --kills 300         # the lives from number 400 on
    python benchmarks/kill_and_resume.py --kills 20 --commands learn --methods foster --seed 3

A life is one command (run, learn, bundle, publish, sweep) of one method, with a fresh or a warm cache of images. It is
killed some times, each time started again as a user would, and let go to its end. Two of three kills come just before a
chosen call that opens, renames, removes or makes a file or folder in its place (counted by an audit hook of Python);
the others at a random moment. Of a sweep the process that plans is killed, half the times together with the run that it
has started. Afterwards the result is compared with that of the same command that was never killed, and its place is
searched for anything else. Every command is a process of its own, forked from this one, which has loaded the libraries:
a kill costs no start of Python. The same seed and number kill at the same calls.
"""

import argparse
import hashlib
import importlib
import json
import os
import pkgutil
import random
import resource
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads could not be forked

import numpy as np
import tomli_w
from PIL import Image

import endocil
from endocil.model.file import read_archive

METHODS = "endocil,icarl,bic,foster,ewc,ranpac"
COMMANDS = "run,learn,bundle,publish,sweep"
CALLS = frozenset(
    {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree"}
)
# imported when a command needs them
LAZY = ("lightning_fabric", "torch._dynamo", "scipy.stats", "rich.traceback", "rich._emoji_codes", "sympy")
KILLS_OF_A_LIFE = 8  # at most
HANG = 600.0  # seconds, on a busy machine
KILLED = -signal.SIGKILL
POPEN = subprocess.Popen


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


# --- processes


def load_libraries() -> None:
    Image.init()
    names = (module.name for module in pkgutil.walk_packages(endocil.__path__, "endocil."))
    for name in (*LAZY, *(name for name in names if not name.endswith("__main__"))):
        importlib.import_module(name)


@dataclass
class Moment:
    """When a process is killed: before this call in its place, or after these seconds; if neither, never."""

    call: int | None = None
    seconds: float | None = None
    with_runs: bool = False  # of a sweep, also what it has started


class Commands:
    """Starts commands in forked processes, and for a sweep its runs, which Python would have to be started for."""

    def __init__(self) -> None:
        self.runs = dict[int, socket.socket]()  # to whom their end is told

    def status(self, arguments: Sequence[object], place: Path, cache: Path, moment: Moment) -> int:
        """How a command ended. If it was not killed, the file `calls` beside the place has the number of its calls."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if not child:
            ours.close()
            self._be_command(arguments, place, cache, moment, theirs)
        theirs.close()
        deadline = time.monotonic() + (HANG if moment.seconds is None else moment.seconds)
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                if moment.seconds is None:
                    raise SystemExit(f"{arguments} did not end within {HANG:.0f} seconds")
                break
            self._reap()
            self._start_run(ours)
        if status and moment.with_runs:
            for run in self.runs:
                os.kill(run, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status)

    def _be_command(
        self, arguments: Sequence[object], place: Path, cache: Path, moment: Moment, line: socket.socket
    ) -> None:
        status = 1
        try:
            os.environ["ENDOCIL_CACHE"] = str(cache)
            for stream in (1, 2):
                os.dup2(os.open(place.parent / f"said-{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            sys.argv = ["endocil", *map(str, arguments)]
            subprocess.Popen = partial(popen, line)  # type: ignore[assignment,misc]
            calls = 0

            def count(event: str, details: tuple[Any, ...]) -> None:
                nonlocal calls
                if event in CALLS and details and str(details[0]).startswith((str(place), str(cache))):
                    calls += 1
                    if calls == moment.call:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            status = exit_status("endocil")
            (place.parent / "calls").write_text(str(calls))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Tell a sweep how its runs ended."""
        for run, line in list(self.runs.items()):
            done, status = os.waitpid(run, os.WNOHANG)
            if done:
                del self.runs[run]
                with suppress(BrokenPipeError):  # the sweep was killed
                    line.send(struct.pack("i", os.waitstatus_to_exitcode(status)))

    def _start_run(self, line: socket.socket) -> None:
        """Fork a run if a sweep asks for it."""
        line.settimeout(0.005)
        try:
            asked, descriptors, _, _ = socket.recv_fds(line, 1_000_000, 2)
        except TimeoutError:
            return
        if not asked:  # the sweep has ended
            return
        run = os.fork()
        if not run:
            line.close()
            _be_run(json.loads(asked), descriptors)
        self.runs[run] = line
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(BrokenPipeError):
            line.send(struct.pack("i", run))

    def end_runs(self) -> None:
        """Of a sweep that was killed; they stop by themselves."""
        deadline = time.monotonic() + HANG
        while self.runs and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)


def exit_status(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=False)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1 if end.code else 0
    return 0


def _be_run(asked: dict[str, Any], descriptors: Sequence[int]) -> None:
    status = 1
    try:
        os.setsid()
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        for stream, descriptor in ((0, descriptors[0]), (1, descriptors[1]), (2, descriptors[1])):
            os.dup2(descriptor, stream)
        sys.argv = asked["command"]
        status = exit_status("endocil.cli.sweep_run")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def popen(line: socket.socket, command: list[str], **options: Any) -> "StartedRun | subprocess.Popen[bytes]":
    if "endocil.cli.sweep_run" in command:
        return StartedRun(line, command[command.index("endocil.cli.sweep_run") :], **options)
    return POPEN(command, **options)


class StartedRun:
    """What runs/sweep/executors.py needs of a Popen, of a process that the benchmark has forked."""

    def __init__(
        self, line: socket.socket, command: list[str], *, stdout: IO[bytes], cwd: str, env: Mapping[str, str], **_: Any
    ) -> None:
        self.line, self.returncode = line, None
        read, write = os.pipe()
        asked = {"command": command, "cwd": str(cwd), "env": dict(env)}
        socket.send_fds(line, [json.dumps(asked).encode()], [read, stdout.fileno()])
        os.close(read)
        self.stdin = os.fdopen(write, "wb")
        line.settimeout(HANG)
        (self.pid,) = struct.unpack("i", line.recv(4))

    def poll(self) -> int | None:
        try:
            return self.wait(0.001)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float = HANG) -> int:
        if self.returncode is None:
            self.line.settimeout(timeout)
            try:
                (self.returncode,) = struct.unpack("i", self.line.recv(4))
            except TimeoutError:
                raise subprocess.TimeoutExpired("run", timeout) from None
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


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
    """One command: what is typed, and what it leaves."""

    kind: str
    method: str
    typed: Callable[[Path], list[object]]  # at first, or again, in this place
    over: Callable[[Path], bool]  # whether a process that was killed, or refused because of one, had written everything
    result: Callable[[Path], dict[str, str]]


@dataclass
class Reference:
    """The same life, never killed."""

    life: Life
    expected: dict[str, str]
    calls: int
    seconds: float


@dataclass
class Ended:
    """What became of a life."""

    number: int
    kind: str
    method: str
    cache: str
    kills: int = 0
    at_calls: int = 0
    different: str = ""
    stranded: str = ""
    left: str = ""


def lives_of(method: str, sources: Path) -> dict[str, Life]:
    """`sources`: the folder with settings, new images and the straight lives of this method."""
    settings, run, model = (
        sources / "settings.toml",
        sources / "run" / "place" / "out",
        sources / "bundle" / "place" / "out",
    )

    def run_or_resume(place: Path) -> list[object]:
        begun = (place / "out" / "settings.toml").exists()
        return ["resume", place / "out"] if begun else ["run", settings, "-o", place / "out"]

    def never(place: Path) -> bool:
        return False

    lives = [
        Life("run", method, run_or_resume, never, lambda place: of_run(place / "out")),
        Life(
            "bundle",
            method,
            lambda place: ["bundle", run, "-o", place / "out"],
            lambda place: (place / "out").exists(),
            lambda place: of_model(place / "out"),
        ),
        Life(
            "learn",
            method,
            lambda place: ["learn", model, sources / "new", "-o", place / "out"],
            lambda place: (place / "out").exists() and not (place / "out.learning").exists(),
            lambda place: of_model(place / "out"),
        ),
        Life(
            "publish",
            method,
            lambda place: ["publish", run, "-o", place / "out", "--no-figures"],
            never,
            lambda place: of_folder(place / "out"),
        ),
        Life(
            "sweep",
            method,
            lambda place: ["sweep", sources / "sweep.toml", "-o", place / "out", "--workers", "1"],
            never,
            lambda place: of_sweep(place / "out"),
        ),
    ]
    return {life.kind: life for life in lives}


def straight(method: str, sources: Path, cache: Path, kinds: Sequence[str]) -> Iterator[Reference]:
    """Each command once, to its end; the others need what `run` and `bundle` make."""
    sources.mkdir(parents=True)
    (sources / "settings.toml").write_text(tomli_w.dumps(settings_of(method)))
    (sources / "sweep.toml").write_text(tomli_w.dumps({"settings": "settings.toml", "vary": {"seed": [0, 1]}}))
    new_class(sources / "new")
    for kind, life in lives_of(method, sources).items():
        if kind not in {"run", "bundle", *kinds}:
            continue
        place, began = sources / kind / "place", time.monotonic()
        place.mkdir(parents=True)
        if status := Commands().status(life.typed(place), place, cache, Moment()):
            said = "".join(path.read_text()[-2000:] for path in sorted(place.parent.glob("said-*")))
            raise SystemExit(f"{kind} of {method} ended with {status}, it cannot be compared: {said}")
        calls = int((place.parent / "calls").read_text())
        yield Reference(life, life.result(place), calls, time.monotonic() - began)


def live(reference: Reference, ended: Ended, seed: int, folder: Path, cache: Path) -> None:
    """Kill a life some times, let it end, and compare."""
    life, place, commands = reference.life, folder / "place", Commands()
    moments = random.Random(f"{life.kind} {life.method} {seed} {ended.number}")
    place.mkdir(parents=True)
    status, wanted = KILLED, moments.randint(1, KILLS_OF_A_LIFE)
    while status == KILLED and not life.over(place):
        moment = Moment()
        if ended.kills < wanted:
            by_call = moments.random() < 2 / 3
            call, after = moments.randint(1, max(1, reference.calls)), moments.uniform(0.0, reference.seconds)
            moment = Moment(call if by_call else None, None if by_call else after, moments.random() < 1 / 2)
        status = commands.status(life.typed(place), place, cache, moment)
        ended.kills += status == KILLED
        ended.at_calls += status == KILLED and moment.call is not None
    commands.end_runs()
    if status not in (0, KILLED) and not life.over(place):
        said = "".join(path.read_text()[-300:] for path in sorted(folder.glob("said-*")))
        ended.stranded = f"status {status} {said}"
        return
    if life.result(place) != reference.expected:
        found = life.result(place)
        ended.different = str(sorted(name for name, _ in found.items() ^ reference.expected.items())[:5])
    others = {path.name for path in place.iterdir()} - {"out"}
    hidden = [path for path in (*place.rglob(".*"), *cache.rglob(".*")) if path.name != ".lock"]
    if others or hidden:
        ended.left = f"{sorted(others)} {[str(path.name) for path in hidden[:3]]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of all commands and methods together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--first", type=int, default=0, help="the number of the first life")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after these")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--commands", default=COMMANDS)
    parser.add_argument("--log", type=Path, help="append a line of JSON for each life")
    options = parser.parse_args()
    deadline, kinds = time.monotonic() + 60 * options.minutes, options.commands.split(",")
    load_libraries()
    lives, kills, number = list[Ended](), 0, options.first
    with tempfile.TemporaryDirectory() as name:
        top = Path(name).resolve()
        of_method = [
            [one for one in straight(method, top / method, top / "warm", kinds) if one.life.kind in kinds]
            for method in options.methods.split(",")
        ]
        references = [one for same_kind in zip(*of_method, strict=True) for one in same_kind]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        while kills < options.kills and time.monotonic() < deadline:
            reference = references[number % len(references)]
            warm = number // len(references) % 2 == 1
            ended = Ended(number, reference.life.kind, reference.life.method, "warm" if warm else "fresh")
            folder = top / f"life-{number}"
            live(reference, ended, options.seed, folder, top / "warm" if warm else folder / "cache")
            shutil.rmtree(folder)
            lives.append(ended)
            kills, number = kills + ended.kills, number + 1
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps({"seed": options.seed, **asdict(ended)}) + "\n")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report(lives, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def report(lives: Sequence[Ended], seconds: float) -> None:
    print("| command | lives | kills | at file-system calls | not the same bits | stranded | something left behind |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for kind in dict.fromkeys(life.kind for life in lives):
        same = [life for life in lives if life.kind == kind]
        counts = [sum(bool(getattr(life, what)) for life in same) for what in ("different", "stranded", "left")]
        kills, at_calls = sum(life.kills for life in same), sum(life.at_calls for life in same)
        print(f"| {' | '.join(map(str, (kind, len(same), kills, at_calls, *counts)))} |")
    kills = sum(life.kills for life in lives)
    print(f"{seconds:.0f} seconds of the processor, {seconds / max(1, kills):.2f} for a kill", file=sys.stderr)
    bad = [life for life in lives if life.different or life.stranded or life.left]
    for life in bad[:20]:
        print(json.dumps(asdict(life)), file=sys.stderr)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
