"""Reading many images at once, in threads or in processes. No torch here, so that a process starts quickly."""

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from PIL import Image

from endocil.data.decode import dimensions_of, file_of
from endocil.data.table import Reader, UnreadableImageError, WholeReader
from endocil.errors import DataError, ResourceError
from endocil.io.process import STOP

Chunk = tuple[np.ndarray, list[tuple[str, str]]]  # pixels (n, size, size, 3), and (id, reason) of the unreadable

_CHUNK = 32  # images a worker reads at a time: few for smooth progress, many to be cheap to hand over
_MIN_FOR_PROCESSES = 256  # images; fewer are read sooner than processes have started


@dataclass(frozen=True)
class WrappedReader:
    """A reader by means of another one."""

    reader: Reader

    @property
    def in_processes(self) -> bool:
        return bool(getattr(self.reader, "in_processes", False))

    def inner_id(self, image_id: str) -> str:
        return image_id

    def dimensions(self, image_id: str) -> tuple[int, int]:
        return dimensions_of(self.reader, self.inner_id(image_id))

    def path(self, image_id: str) -> Path | None:
        return file_of(self.reader, self.inner_id(image_id))


@dataclass(frozen=True)
class Renamed(WrappedReader):
    """Another reader whose images have other ids here; an id that is not in `names` is the same in both."""

    names: Mapping[str, str]  # id here -> id of the reader

    def inner_id(self, image_id: str) -> str:
        return self.names.get(image_id, image_id)

    def read(self, image_id: str, size: int) -> np.ndarray:
        return self.reader.read(self.inner_id(image_id), size)

    def whole(self, image_id: str) -> Image.Image:
        if not isinstance(self.reader, WholeReader):
            raise DataError(f"{type(self.reader).__name__} gives no image in its own size")
        return self.reader.whole(self.inner_id(image_id))

    def fingerprint(self, ids: Sequence[str]) -> str:
        return self.reader.fingerprint([self.inner_id(image_id) for image_id in ids])


def read_in_chunks(reader: Reader, ids: Sequence[str], size: int, workers: int) -> Iterator[Chunk]:
    """All images in their order, chunk by chunk; only a few chunks are held at a time."""
    chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
    waiting: deque[Future[Chunk]] = deque()
    with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        read = _chunk_reader(reader, len(ids), size, workers, stack)
        try:
            for chunk in chunks:
                waiting.append(pool.submit(read, chunk))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)  # a failure does not wait for the rest of the images


def _chunk_reader(
    reader: Reader, n: int, size: int, workers: int, stack: ExitStack
) -> Callable[[Sequence[str]], Chunk]:
    """The function that reads a chunk: in the calling thread, or in a process that is free."""
    in_processes = getattr(reader, "in_processes", False) and not _is_of_main_script(reader)
    if not in_processes or workers < 2 or n < _MIN_FOR_PROCESSES:
        return lambda ids: read_many(reader, ids, size)
    free: SimpleQueue[_Process] = SimpleQueue()
    for _ in range(workers):
        free.put(stack.enter_context(closing(_Process(reader, size))))

    def read(ids: Sequence[str]) -> Chunk:
        process = free.get()
        try:
            return process.read(ids)
        finally:
            free.put(process)

    return read


def _is_of_main_script(reader: object) -> bool:
    """Another process cannot import a class of the user's main script; a reader may contain another one."""
    if type(reader).__module__ == "__main__":
        return True
    inner = getattr(reader, "reader", None)
    return inner is not None and _is_of_main_script(inner)


def read_many(reader: Reader, ids: Sequence[str], size: int) -> Chunk:
    """The pixels of these images, black where unreadable, and (id, reason) of the unreadable ones."""
    pixels = np.empty((len(ids), size, size, 3), np.uint8)
    unreadable = []
    for row, image_id in enumerate(ids):
        try:
            image = reader.read(image_id, size)
        except UnreadableImageError as error:
            unreadable.append((image_id, str(error)))
            pixels[row] = 0
            continue
        if image.shape != (size, size, 3) or image.dtype != np.uint8:
            raise DataError(
                f"the reader gave {image_id!r} as {image.dtype} of shape {image.shape}; "
                f"expected uint8 of shape {(size, size, 3)}"
            )
        pixels[row] = image
    return pixels, unreadable


def serve() -> None:
    """The main function of a reading process: receives a reader, then ids until its input ends.

    A job's signal to stop reaches every process of it (Slurm); only the parent handles it."""
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    requests, results = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a reader that prints must not disturb the results
    reader, size = pickle.load(requests)
    try:
        while True:
            ids = pickle.load(requests)
            try:
                result: object = read_many(reader, ids, size)
            except Exception as error:
                result = error
            pickle.dump(result, results, pickle.HIGHEST_PROTOCOL)
            results.flush()
    except (EOFError, BrokenPipeError):
        return


class _Process:
    """A process that reads images. It ends with its parent, even a killed one, because its input ends."""

    def __init__(self, reader: Reader, size: int) -> None:
        from endocil.registry import code_folders  # here, as a reading process has no use for what it loads

        # -P: without it a random.py of the working folder would stand in for Python's own
        command = [sys.executable, "-P", "-c", "from endocil.data.readers import serve; serve()"]
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        paths = [*filter(None, sys.path), *code_folders()]  # a reader may be of a trusted 'my_module:load'
        environment = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths)}
        # a session of its own: only the parent handles Ctrl-C
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.results = self.process.stdin, self.process.stdout
        self._send((reader, size))

    def read(self, ids: Sequence[str]) -> Chunk:
        self._send(ids)
        try:
            result: Chunk | Exception = pickle.load(self.results)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._ended() from error
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.results.close()
        with suppress(BrokenPipeError):
            self.requests.close()

    def _send(self, message: object) -> None:
        try:
            pickle.dump(message, self.requests, pickle.HIGHEST_PROTOCOL)
            self.requests.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def _ended(self) -> ResourceError:
        return ResourceError(f"a process that read images ended with code {self.process.wait()}; run again")
