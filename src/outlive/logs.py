"""How outlive's log lines look: text for people or one JSON object a line, always to stderr, times in UTC.

Passwords in URLs never get into a line, and what a job or a client said can't forge one: control characters
are written as escapes.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal

import msgspec

Format = Literal["text", "json"]

_IN_URL = re.compile(r"(\w://[^\s:/@]*:)\S*@")
_IN_SETTING = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&']+)", re.IGNORECASE)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def redacted(text: str) -> str:
    """The text without the passwords of the database URLs and connection strings in it."""
    return _IN_SETTING.sub(r"\1***", _IN_URL.sub(r"\1***@", text))


def configure(format: Format = "text", *, level: int = logging.INFO) -> None:
    """Let the log lines of outlive go to stderr in this form. Called again, the last call counts."""
    logger = logging.getLogger("outlive")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Stderr)]:
        logger.removeHandler(handler)
    handler = _Stderr()
    handler.setFormatter(_Json() if format == "json" else _Text())
    logger.addHandler(handler)
    logger.setLevel(level)


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at that moment: it may have been replaced since."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = "".join(char if char.isprintable() else _escape(char) for char in redacted(record.getMessage()))
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {message}"
        return f"{line}\n{redacted(self.formatException(record.exc_info))}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return msgspec.json.encode(line, enc_hook=str).decode()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()
