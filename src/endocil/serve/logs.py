"""One JSON object per line on standard error: what happened and how long it took, never of whom or what.

No image, no name of a file, no query, no token gets here: a log is kept longer than it is looked after.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO


class Log:
    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream

    def __call__(self, event: str, **facts: object) -> None:
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        print(json.dumps(record), file=self.stream or sys.stderr, flush=True)

    def error(self, error: BaseException) -> None:
        """Where it happened and what kind it is; its message could hold what was sent."""
        places = traceback.extract_tb(error.__traceback__)[-8:]
        self(
            "error",
            kind=type(error).__name__,
            at=[f"{place.name}, line {place.lineno}" for place in places],
        )


class ServerRecords(logging.Handler):
    """What the HTTP server itself has to say, in the same form."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.log.error(record.exc_info[1])
        else:
            self.log("server", level=record.levelname.lower(), message=record.getMessage())
