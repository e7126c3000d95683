"""One JSON object per line on standard error: what happened and how long it took, never of whom or what.

No image, no name of a file, no query, no token gets here: a log is kept longer than it is looked after.
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
