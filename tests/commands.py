"""`endocil` as it is typed: in this process, which has its libraries loaded, or in one of its own."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from endocil.cli.main import main


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def endocil(*arguments: object, cwd: Path | None = None) -> Done:
    """The command in this process: to start one for each takes longer than what it does."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), chdir(cwd or Path.cwd()):
        patch.setattr(sys, "argv", ["endocil", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as ended:
            main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def command(*arguments: object) -> list[str]:
    """What starts the command in a process of its own."""
    return [sys.executable, "-m", "endocil", *map(str, arguments)]


def stoppable() -> None:
    """Before a child's program starts: Ctrl-C reaches it also when the tests were started in the background, where a
    shell leaves SIGINT ignored and programs leave it so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments: object, before: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
    """The command in a process that Ctrl-C stops, still running; `before`: a program that starts it."""
    return subprocess.Popen([*before, *command(*arguments)], text=True, preexec_fn=stoppable, **options)
