"""One of two processes of tests/test_processes.py: one fails or is killed, the other is busy or waits for it.

python failing_rank.py RANK PORT CASE
"""

import os
import signal
import sys
import time

from endocil.errors import EndocilError
from endocil.learning.parallel import all_gather, learning_on, on_rank_zero


def fail() -> None:
    raise OSError("the disk of process 0 is full")


def main(rank: int, port: str, case: str) -> None:
    os.environ |= {"NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with learning_on("cpu", 1, 2) as fabric:
        all_gather(fabric, rank)
        print(time.time(), flush=True)
        if case == "killed":
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            all_gather(fabric, rank)
        if case == "alone":
            on_rank_zero(fabric, fail)
        elif rank == int(case):
            raise EndocilError(f"process {rank} cannot go on: no space left")
        time.sleep(600)  # far away from any collective


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
