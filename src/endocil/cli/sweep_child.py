"""`python -m endocil.cli.sweep_child run ...`: the command `endocil`, which ends when the sweep that started it does.

Its standard input is a pipe that nothing is written to. It closes when the sweep closes it or dies, however that
happens; then the run stops as by Ctrl-C, and goes on from its last checkpoint when it is started again.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress

from endocil.cli.main import main as command

GRACE = 5.0  # seconds to stop in


def _stop_with_the_sweep() -> None:
    with suppress(OSError):
        while os.read(sys.stdin.fileno(), 1):
            pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os._exit(130)


if __name__ == "__main__":
    # a sweep in the background hands SIGINT on ignored; no terminal sends it here (worker.py), so it is ours alone
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_stop_with_the_sweep, daemon=True).start()
    command()
