"""Which functions of the package a command walks through, in the order of their first calls.

    python benchmarks/trace_command.py [--count load_settings] [--files] -- learn model.endocil folder -o out.endocil

Everything after `--` is a command of endocil, which runs as usual. Then the functions are listed with their files,
the files outside io, data, methods and networks are counted, and how often the function of `--count` was called.
Code that runs because a module is imported does not count, nor do other processes that the command starts. (It is not
called trace.py because that is a module of the standard library.)
"""

import argparse
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

GROUND_ROOMS = ("io", "data", "methods", "networks")


@dataclass
class Trace:
    """Calls of functions below a folder; `functions` in the order of their first calls."""

    folder: Path
    calls: Counter[CodeType] = field(default_factory=Counter)
    importing: Counter[int] = field(default_factory=Counter)  # thread -> modules being imported

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(f"{self.folder}/"):
            return
        if code.co_name == "<module>":
            self.importing[threading.get_ident()] += 1 if event == "call" else -1
        elif event == "call" and not self.importing[threading.get_ident()]:
            self.calls[code] += 1

    def run(self, function: Any) -> None:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            function()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    @property
    def functions(self) -> list[tuple[str, str]]:
        """File and qualified name; class bodies, lambdas and comprehensions are left out."""
        return [
            (str(Path(code.co_filename).relative_to(self.folder)), code.co_qualname)
            for code in self.calls
            if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        ]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.functions))

    def count(self, name: str) -> int:
        """How often functions of this name were called."""
        return sum(n for code, n in self.calls.items() if code.co_name == name)


def outside(files: Sequence[str], rooms: Sequence[str] = GROUND_ROOMS) -> list[str]:
    return [file for file in files if file.split("/")[0] not in rooms]


def report(trace: Trace, counted: str, *, files_alone: bool = False) -> str:
    lines = trace.files if files_alone else [f"{file}: {name}" for file, name in trace.functions]
    elsewhere = outside(trace.files)
    return "\n".join(
        [
            *(f"{number:4}  {line}" for number, line in enumerate(lines, 1)),
            "",
            f"{len(trace.functions)} functions in {len(trace.files)} files",
            f"{len(elsewhere)} files outside {', '.join(GROUND_ROOMS)}: {', '.join(elsewhere)}",
            f"{trace.count(counted)} calls of {counted}",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="The functions that a command of endocil walks through.")
    parser.add_argument(
        "--count", default="load_settings", metavar="FUNCTION", help="also count calls of this one"
    )
    parser.add_argument("--files", action="store_true", help="list files, not functions")
    parser.add_argument("command", nargs="+", help="a command of endocil, after --")
    options = parser.parse_args()

    import endocil
    from endocil.cli import main as cli

    sys.argv = ["endocil", *options.command]
    trace, status = Trace(Path(endocil.__file__).parent), 0
    try:
        trace.run(cli.main)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    print(report(trace, options.count, files_alone=options.files))
    return status


if __name__ == "__main__":
    sys.exit(main())
