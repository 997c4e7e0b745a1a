"""The handler of log records that find no other: `records.py` says when it is installed."""

from __future__ import annotations

import logging
import os

from outlive import output

STDERR = 2


class ToSupervisor(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            data = output.encode_record(record.levelname, record.name, self.format(record))
            while data:
                data = data[os.write(STDERR, data) :]
        except Exception:  # As every handler of `logging` does: the job goes on.
            self.handleError(record)


def install(level: str) -> None:
    """Send records that find no handler to the supervisor, from this level on."""
    root = logging.getLogger()
    if root.handlers:  # The app has configured it, level included.
        return
    if root.level == logging.WARNING:  # As it is unless the app has set it.
        root.setLevel(level.upper())
    logging.lastResort = ToSupervisor(level.upper())
