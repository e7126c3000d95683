"""Which functions of the package a command walks through, in the order of their first calls.

    python benchmarks/trace_command.py [--count load_settings] [--files] -- learn model.endocil folder -o out.endocil
    python benchmarks/trace_command.py --walk -- run smoke -o run

Everything after `--` is a command of endocil, which runs as usual. Then the functions are listed with their files,
the files outside io, data, methods and networks are counted, and how often the function of `--count` was called.
`--walk` prints a list in Markdown instead, which is short enough to be read: of the public functions that one
subpackage calls in another, those through which at least six more functions are first reached, with what each says of
itself. Code that runs because a module is imported does not count, nor do other processes that the command starts. (It
is not called trace.py because that is a module of the standard library.)
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

BASE_SUBPACKAGES = ("io", "data", "methods", "networks")
TOOLS = ("io", "html", "registry.py")  # what every subpackage uses; no step of a walk
LEAST = 6  # functions that are first reached through a step of a walk


@dataclass
class Trace:
    """Calls of functions below a folder; `functions` in the order of their first calls."""

    folder: Path
    calls: Counter[CodeType] = field(default_factory=Counter)
    first_caller: dict[CodeType, CodeType | None] = field(default_factory=dict)  # of the folder's functions
    importing: Counter[int] = field(default_factory=Counter)  # thread -> modules being imported

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(f"{self.folder}/"):
            return
        if code.co_name == "<module>":
            self.importing[threading.get_ident()] += 1 if event == "call" else -1
        elif event == "call" and not self.importing[threading.get_ident()]:
            self.calls[code] += 1
            if code not in self.first_caller:
                caller = frame.f_back
                while caller is not None and not caller.f_code.co_filename.startswith(f"{self.folder}/"):
                    caller = caller.f_back
                self.first_caller[code] = caller.f_code if caller else None

    def run(self, function: Any) -> None:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            function()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def functions(self) -> list[tuple[str, str]]:
        """File and qualified name; class bodies, lambdas and comprehensions are left out."""
        return [
            (self.file(code), code.co_qualname)
            for code in self.calls
            if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        ]

    def file(self, code: CodeType) -> str:
        return str(Path(code.co_filename).relative_to(self.folder))

    def callers(self, code: CodeType) -> list[CodeType]:
        """Who called it first, who called that one first, and so on."""
        found: list[CodeType] = []
        while (caller := self.first_caller[code]) is not None and caller not in found:
            found.append(caller)
            code = caller
        return found

    def steps(self, least: int = LEAST) -> list[CodeType]:
        """Public functions that another subpackage called, and through which `least` others were first reached."""
        reached = Counter(caller for code in self.calls for caller in self.callers(code))
        return [
            code
            for code, caller in self.first_caller.items()
            if reached[code] >= least
            and caller is not None
            and self.file(code).endswith(".py")  # templates of pages are code too
            and not any(part.startswith(("_", "<")) for part in code.co_qualname.split("."))
            and self.file(code).split("/")[0] not in (*TOOLS, self.file(caller).split("/")[0])
        ]

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.functions))

    def count(self, name: str) -> int:
        """How often functions of this name were called."""
        return sum(n for code, n in self.calls.items() if code.co_name == name)


def outside(files: Sequence[str], subpackages: Sequence[str] = BASE_SUBPACKAGES) -> list[str]:
    return [file for file in files if file.split("/")[0] not in subpackages]


def report(trace: Trace, counted: str, *, files_alone: bool = False) -> str:
    lines = trace.files if files_alone else [f"{file}: {name}" for file, name in trace.functions]
    elsewhere = outside(trace.files)
    return "\n".join(
        [
            *(f"{number:4}  {line}" for number, line in enumerate(lines, 1)),
            "",
            f"{len(trace.functions)} functions in {len(trace.files)} files",
            f"{len(elsewhere)} files outside {', '.join(BASE_SUBPACKAGES)}: {', '.join(elsewhere)}",
            f"{trace.count(counted)} calls of {counted}",
        ]
    )


def walk(trace: Trace) -> str:
    """The steps as a list in Markdown; a step inside another one is indented."""
    steps = trace.steps()
    lines = []
    for code in steps:
        depth = sum(caller in steps for caller in trace.callers(code))
        text = code.co_consts[0] if code.co_consts and isinstance(code.co_consts[0], str) else ""
        says = " ".join(text.strip().split("\n\n")[0].split())
        lines.append(f"{'  ' * depth}- `{trace.file(code)}` `{code.co_qualname}`{': ' if says else ''}{says}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="The functions that a command of endocil walks through.")
    parser.add_argument("--count", default="load_settings", metavar="FUNCTION", help="also count calls of this one")
    parser.add_argument("--files", action="store_true", help="list files, not functions")
    parser.add_argument("--walk", action="store_true", help="only the steps from subpackage to subpackage, as Markdown")
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
    print(walk(trace) if options.walk else report(trace, options.count, files_alone=options.files))
    return status


if __name__ == "__main__":
    sys.exit(main())
