"""A file that grows at its end, past the system's memory of files where the system lets it.

Pixels that were just decoded are not read again soon. Through the system's memory they cost a copy into pages
that have to be found first, and on a virtual machine fetched from its host: more than a tenth of the time of
decoding them. Linux writes straight from ours (O_DIRECT), in whole pages from page-aligned memory: what is not
aligned goes through a buffer. Elsewhere, and on file systems that cannot, the same writes go the ordinary way.
"""

import errno
import mmap
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from math import prod
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from endocil.data.table import Reader, UnreadableImageError
from endocil.errors import EndocilError

PAGE = 4096  # bytes: a multiple of every disk's block
_BUFFER = 2**20
_DIRECT = getattr(os, "O_DIRECT", 0)


class GrowingFile:
    """Everything up to the last whole page is in the file after `append`, the rest after `close`."""

    def __init__(self, path: Path, end: int) -> None:
        """Write behind byte `end`; what stood there is gone."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            os.ftruncate(self._file, end)
            self._memory = np.frombuffer(mmap.mmap(-1, _BUFFER), np.uint8)  # page-aligned
            self._held = end % PAGE  # bytes of the buffer that are not in the file yet
            os.lseek(self._file, end - self._held, os.SEEK_SET)
            self._memory[: self._held] = np.frombuffer(os.read(self._file, self._held), np.uint8)
            os.lseek(self._file, end - self._held, os.SEEK_SET)
            self._set_direct(True)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, data: np.ndarray) -> None:
        """uint8, one-dimensional."""
        if not self._held and data.ctypes.data % PAGE == 0:
            whole = len(data) // PAGE * PAGE
            self._write(data[:whole])
            data = data[whole:]
        while len(data):
            part = data[: _BUFFER - self._held]
            self._memory[self._held : self._held + len(part)] = part
            self._held += len(part)
            data = data[len(part) :]
            self._write_pages()

    def close(self) -> None:
        """Onto the disk, to the last byte."""
        if self._file < 0:
            return
        try:
            self._set_direct(False)  # the rest is no whole page
            self._write(self._memory[: self._held])
            os.fsync(self._file)
        finally:
            os.close(self._file)
            self._file = -1

    def _write_pages(self) -> None:
        whole = self._held // PAGE * PAGE
        self._write(self._memory[:whole])
        self._memory[: self._held - whole] = self._memory[whole : self._held].copy()
        self._held -= whole

    def _write(self, data: np.ndarray) -> None:
        done = 0
        while done < len(data):
            try:
                done += os.write(self._file, data[done:].data)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)  # a file system that takes the flag, but not the write
            if done % PAGE:  # a short write, as before a full disk
                self._set_direct(False)

    def _set_direct(self, wanted: bool) -> None:
        self._direct = wanted and bool(_DIRECT)
        if not _DIRECT:
            return
        import fcntl  # where there is O_DIRECT, there is fcntl

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | _DIRECT if wanted else flags & ~_DIRECT)
        except OSError:
            self._direct = False


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """uint8 memory that begins with a page; its values are whatever was there."""
    n = prod(shape)
    memory = np.empty(n + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + n].reshape(shape)


# Reading many images at once, in threads or in processes. No torch here, so that a process starts quickly.

Chunk = tuple[
    np.ndarray, list[tuple[str, str]]
]  # pixels (n, size, size, 3), and (id, reason) of the unreadable

_CHUNK = 32  # images a worker reads at a time: few for smooth progress, many to be cheap to hand over
_WORTH_PROCESSES = 256  # images; fewer are read sooner than processes have started


def read_in_chunks(reader: Reader, ids: Sequence[str], size: int, workers: int) -> Iterator[Chunk]:
    """All images in their order, chunk by chunk; only a few chunks are held at a time."""
    chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
    waiting: deque[Future[Chunk]] = deque()
    with ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        read = _reading(reader, len(ids), size, workers, stack)
        try:
            for chunk in chunks:
                waiting.append(pool.submit(read, chunk))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)  # a failure does not wait for the rest of the images


def _reading(
    reader: Reader, n: int, size: int, workers: int, stack: ExitStack
) -> Callable[[Sequence[str]], Chunk]:
    """How a thread of the pool reads a chunk: itself, or through a process that is free."""
    wanted = getattr(reader, "in_processes", False) and not _of_script(reader)
    if not wanted or workers < 2 or n < _WORTH_PROCESSES:
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


def _of_script(reader: object) -> bool:
    """A class of the user's script itself cannot be imported by another process; readers may hold others."""
    if type(reader).__module__ == "__main__":
        return True
    inner = getattr(reader, "reader", None)
    return inner is not None and _of_script(inner)


def read_many(reader: Reader, ids: Sequence[str], size: int) -> Chunk:
    """The pixels of these images, black where unreadable, and (id, reason) of the unreadable ones."""
    pixels = aligned((len(ids), size, size, 3))
    unreadable = []
    for row, image_id in enumerate(ids):
        try:
            image = reader.read(image_id, size)
        except UnreadableImageError as error:
            unreadable.append((image_id, str(error)))
            pixels[row] = 0
            continue
        if image.shape != (size, size, 3) or image.dtype != np.uint8:
            raise EndocilError(
                f"the reader gave {image_id!r} as {image.dtype} of shape {image.shape}; "
                f"expected uint8 of shape {(size, size, 3)}"
            )
        pixels[row] = image
    return pixels, unreadable


def serve() -> None:
    """What a process of its own does: gets a reader, then ids again and again, until nobody asks any more."""
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # a reader that prints must not disturb the answers
    reader, size = pickle.load(questions)
    try:
        while True:
            ids = pickle.load(questions)
            try:
                answer: object = read_many(reader, ids, size)
            except Exception as error:
                answer = error
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
    except (EOFError, BrokenPipeError):
        return


class _Process:
    """A process that reads images. It ends with its parent, even a killed one, because its questions end."""

    def __init__(self, reader: Reader, size: int) -> None:
        command = [sys.executable, "-c", "from endocil.data.readers import serve; serve()"]
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # a session of its own: Ctrl-C is answered by the parent alone
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions, self.answers = self.process.stdin, self.process.stdout
        self._ask((reader, size))

    def read(self, ids: Sequence[str]) -> Chunk:
        self._ask(ids)
        try:
            answer: Chunk | Exception = pickle.load(self.answers)
        except (EOFError, pickle.UnpicklingError) as error:
            raise self._ended() from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        with suppress(BrokenPipeError):
            self.questions.close()

    def _ask(self, question: object) -> None:
        try:
            pickle.dump(question, self.questions, pickle.HIGHEST_PROTOCOL)
            self.questions.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def _ended(self) -> EndocilError:
        return EndocilError(f"a process that read images ended with code {self.process.wait()}; run again")
