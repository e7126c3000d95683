"""Readers that tell which process has read an image. Apart, so that such a process imports little."""

import os
import signal
from collections.abc import Sequence

import numpy as np

from endocil.data.table import UnreadableImageError
from endocil.errors import EndocilError

IDS = [str(i) for i in range(300)]  # enough for processes to be used


class PythonReader:
    """Tells in its first pixel which process has read it."""

    in_processes = True

    def __init__(self, fail: str = "") -> None:
        self.fail = fail

    def read(self, image_id: str, size: int) -> np.ndarray:
        if image_id == "5":
            raise UnreadableImageError("five is unreadable")
        if image_id == "200" and self.fail == "exception":
            raise EndocilError("a reader's own error")
        if image_id == "200" and self.fail == "exit":
            os._exit(3)
        if image_id == "200" and self.fail == "told to stop":
            for number in (signal.SIGTERM, signal.SIGUSR1):
                os.kill(os.getpid(), number)
        print("a reader may print")
        pixels = np.full((size, size, 3), int(image_id) % 256, np.uint8)
        pixels[0, 0] = np.frombuffer(os.getpid().to_bytes(8, "little")[:3], np.uint8)
        return pixels

    def fingerprint(self, ids: Sequence[str]) -> str:
        return "python"


class ThreadReader(PythonReader):
    in_processes = False
