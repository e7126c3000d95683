"""What operators see: a log of JSON lines on standard error, and metrics for Prometheus.

The log never holds an image, a file name, a query or a token: logs are often kept longer than they are protected.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from endocil.model import DISCLAIMER

SERVER_LOGGER = "uvicorn.error"  # its messages never repeat what a client sent


class Log:
    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream

    def __call__(self, event: str, **fields: object) -> None:
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
        stream = self.stream or sys.stderr
        stream.write(json.dumps(record) + "\n")  # one call: several threads write
        stream.flush()

    def error(self, error: BaseException) -> None:
        """The kind of an error and where it was raised; its message could repeat what a client sent."""
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        self("error", kind=type(error).__name__, at=[f"{frame.name}, line {frame.lineno}" for frame in frames])


class LibraryLogHandler(logging.Handler):
    """Log records of other packages in the same format; only the HTTP server's with their message."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.log.error(record.exc_info[1])
            return
        message = {"message": record.getMessage()} if record.name == SERVER_LOGGER else {}
        self.log("server", level=record.levelname.lower(), source=record.name, **message)


@contextmanager
def exclusive_stderr(log: Log) -> Iterator[None]:
    """Meanwhile only the log writes to standard error: C libraries print parts of images there, Python warnings."""
    root, stream = logging.getLogger(), log.stream
    handlers = root.handlers
    sys.stderr.flush()
    with open(os.dup(2), "w", encoding="utf-8") as stderr, open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), 2)
        log.stream, root.handlers = stream or stderr, [LibraryLogHandler(log)]
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            log.stream, root.handlers = stream, handlers
            sys.stderr.flush()
            os.dup2(stderr.fileno(), 2)


class Metrics:
    """In a registry of its own, so that several servers can live in one process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("endocil_requests", "Requests.", ["route", "status"], registry=registry)
        self.images = Counter("endocil_images", "Images sent, predicted or unreadable.", ["outcome"], registry=registry)
        self.swaps = Counter("endocil_swaps", "Exchanges of a model, done or refused.", ["outcome"], registry=registry)
        self.forward_passes = Counter("endocil_forward_passes", "Forward passes.", registry=registry)
        self.forward_images = Counter("endocil_forward_images", "Images in forward passes.", registry=registry)
        waiting = "Images being decoded or waiting for a model."
        self.waiting_images = Gauge("endocil_waiting_images", waiting, registry=registry)
        self.upload_bytes = Gauge("endocil_upload_bytes", "Bytes of uploads in memory.", registry=registry)
        self.predict_seconds = Histogram(
            "endocil_predict_seconds",
            "Seconds from a predict request to its response.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
            registry=registry,
        )

    def count_pass(self, n_images: int) -> None:
        self.forward_passes.inc()
        self.forward_images.inc(n_images)

    def text(self) -> bytes:
        return f"# {DISCLAIMER}\n".encode() + generate_latest(self.registry)
