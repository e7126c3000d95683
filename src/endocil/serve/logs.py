"""One JSON object per line on standard error: what happened and how long it took, never of whom or what.

No image, no name of a file, no query, no token gets here: a log is kept longer than it is looked after.
"""

import json
import logging
import os
import sys
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import TextIO

from endocil.model.disclaimer import NOTICE

OWN_WORDS = "uvicorn.error"  # the HTTP server's: none of its messages repeats what was sent


class Log:
    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream

    def __call__(self, event: str, **facts: object) -> None:
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        stream = self.stream or sys.stderr
        stream.write(json.dumps(record) + "\n")  # at once: several threads write
        stream.flush()

    def error(self, error: BaseException) -> None:
        """Where it happened and what kind it is; its message could hold what was sent."""
        places = traceback.extract_tb(error.__traceback__)[-8:]
        self(
            "error",
            kind=type(error).__name__,
            at=[f"{place.name}, line {place.lineno}" for place in places],
        )


class ServerRecords(logging.Handler):
    """What the HTTP server and other packages have to say, in the same form; of the others only that they did."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.log.error(record.exc_info[1])
            return
        facts = {"message": record.getMessage()} if record.name == OWN_WORDS else {}
        self.log("server", level=record.levelname.lower(), source=record.name, **facts)


@contextmanager
def alone_on_standard_error(log: Log) -> Iterator[None]:
    """Meanwhile nothing else gets there: libraries in C write what they find in images, Python its warnings."""
    root, before = logging.getLogger(), log.stream
    handlers = root.handlers
    sys.stderr.flush()
    with open(os.dup(2), "w", encoding="utf-8") as kept, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        log.stream, root.handlers = before or kept, [ServerRecords(log)]
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            log.stream, root.handlers = before, handlers
            sys.stderr.flush()
            os.dup2(kept.fileno(), 2)


# What a server has done, counted for Prometheus.

EDGES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


@dataclass
class Metrics:
    """Counted from several threads."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)  # by route and status
    images: Counter[str] = field(default_factory=Counter)  # answered, unreadable
    passes: int = 0  # forward passes
    passed: int = 0  # images in them
    swaps: Counter[str] = field(default_factory=Counter)  # done, refused
    _seconds: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))
    _total: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def request(self, route: str, status: int, seconds: float) -> None:
        with self._lock:
            self.requests[route, status] += 1
            if route.endswith("/predict"):
                self._seconds[bisect_left(EDGES, seconds)] += 1
                self._total += seconds

    def passed_through(self, n_images: int) -> None:
        with self._lock:
            self.passes += 1
            self.passed += n_images

    def count(self, counter: Counter[str], what: str, n: int = 1) -> None:
        with self._lock:
            counter[what] += n

    def text(self, waiting: int, held: int) -> str:
        """In the form that Prometheus reads."""
        with self._lock:
            by_route = {
                f'route="{route}",status="{status}"': n
                for (route, status), n in sorted(self.requests.items())
            }
            parts = [
                f"# {NOTICE}",
                *_counter("requests_total", "Requests.", by_route),
                *_counter("images_total", "Images sent.", _labelled("outcome", self.images)),
                *_counter("swaps_total", "Models exchanged.", _labelled("outcome", self.swaps)),
                *_counter("passes_total", "Forward passes.", {"": self.passes}),
                *_counter("passed_images_total", "Images in forward passes.", {"": self.passed}),
                *_of(
                    "gauge", "waiting_images", "Images that are decoded or wait for a model.", {"": waiting}
                ),
                *_of("gauge", "held_bytes", "Bytes of uploads in memory.", {"": held}),
                *self._histogram(),
            ]
        return "\n".join(parts) + "\n"

    def _histogram(self) -> list[str]:
        name, below = "endocil_predict_seconds", 0
        lines = [f"# HELP {name} Seconds from a predict request to its answer.", f"# TYPE {name} histogram"]
        for edge, n in zip((*EDGES, "+Inf"), self._seconds, strict=True):
            below += n
            lines.append(f'{name}_bucket{{le="{edge}"}} {below}')
        return [*lines, f"{name}_sum {self._total:.6f}", f"{name}_count {below}"]


def _labelled(label: str, counter: Mapping[str, int]) -> dict[str, int]:
    return {f'{label}="{value}"': n for value, n in sorted(counter.items())}


def _counter(name: str, what: str, values: Mapping[str, float]) -> list[str]:
    return _of("counter", name, what, values)


def _of(kind: str, name: str, what: str, values: Mapping[str, float]) -> list[str]:
    full = f"endocil_{name}"
    samples = [
        f"{full}{{{labels}}} {value}" if labels else f"{full} {value}" for labels, value in values.items()
    ]
    return [f"# HELP {full} {what}", f"# TYPE {full} {kind}", *samples]
