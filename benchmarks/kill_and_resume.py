"""Kill a run with SIGKILL at random moments, resume it, again and again: is the result the same bit for bit?

    python benchmarks/kill_and_resume.py --kills 40 --set method.name=icarl

Checkpoints are written after every epoch here, and every second kill waits until one is being written.
"""

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from endocil.model.file import read_archive


def fingerprint(folder: Path) -> dict[str, str]:
    """Weights, memory, predictions and metrics; events are left out, because they hold times."""
    files = [
        *folder.glob("predictions/*.csv"),
        *folder.glob("memory/*.csv"),
        folder / "metrics.json",
        folder / "split.csv",
    ]
    content = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(files)}
    model, _ = read_archive(folder / "model.endocil")
    del model["manifest.json"]  # it names the folder
    return {name: hashlib.sha256(data).hexdigest() for name, data in (content | model).items()}


def endocil(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "endocil", *arguments]


def kill_until(folder: Path, start: list[str], kills: int, moments: random.Random) -> tuple[int, int]:
    """Start and kill; returns how many kills there were and how many left a half-written temporary file."""
    done, half_written = 0, 0
    while done < kills:
        going_on = (folder / "settings.toml").exists()
        command = endocil("resume", str(folder)) if going_on else start
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _wait(folder, moments.uniform(2.0, 9.0), for_writing=done % 2 == 1)
        if process.poll() is not None and (folder / "metrics.json").exists():
            break
        process.kill()
        process.wait()
        done += 1
        half_written += bool(list(folder.rglob("*.tmp")))
    return done, half_written


def _wait(folder: Path, seconds: float, *, for_writing: bool) -> None:
    """Until a random moment; or, every second time, from then on until a checkpoint is being written."""
    time.sleep(seconds)
    deadline = time.monotonic() + 5.0
    while for_writing and time.monotonic() < deadline and not any(folder.glob(".checkpoint*.tmp")):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--preset", default="smoke")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="KEY=VALUE")
    options = parser.parse_args()
    changes = [word for change in ["run.checkpoint_seconds=0", *options.changes] for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as place:
        straight, killed = Path(place, "straight"), Path(place, "killed")
        run = ["run", options.preset, *changes, "-o"]
        subprocess.run(endocil(*run, str(straight)), check=True, stdout=subprocess.DEVNULL)
        moments = random.Random(options.seed)
        kills, half = kill_until(killed, endocil(*run, str(killed)), options.kills, moments)
        subprocess.run(endocil("resume", str(killed)), check=True, stdout=subprocess.DEVNULL)
        expected, found = fingerprint(straight), fingerprint(killed)
    different = [name for name in expected if expected[name] != found.get(name)]
    print(f"{kills} kills, {half} of them while a file was being written; {len(expected)} files compared")
    print("all the same, bit for bit" if not different else f"different: {', '.join(different)}")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
