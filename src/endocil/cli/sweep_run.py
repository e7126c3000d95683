"""`python -m endocil.cli.sweep_run run ...`: the command `endocil`, which ends when the sweep that started it does.

Its standard input is a pipe that nothing is written to. It closes when the sweep closes it or ends in any way; then the
run stops as by SIGTERM, and resumes from its last checkpoint when it is started again. Not by SIGINT: Slurm signals
the sweep and its runs, and a Ctrl-C that comes second does not wait for a checkpoint.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress

from endocil.cli.main import main as command

GRACE_SECONDS = 5.0  # for a run that is told to stop


def _stop_when_input_closes() -> None:
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_when_input_closes, daemon=True).start()
    command()
