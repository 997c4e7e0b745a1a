"""A log line that is a JSON object, as structlog and the formatters of `logging` write it: its message, its level, its
traceback and its other fields.

A line that lacks the message, or that is no JSON, is text. A job can print what it likes: the fields stay in a place of
their own, so they never stand for what the worker says about the job.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

LEVELS = {name.lower(): name for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")}
LEVELS |= {"warn": "WARNING", "fatal": "CRITICAL"}
FIRST = b"{"
"""How such a line begins: no other is worth the time to read it."""
_LEVEL = ("level", "severity")
_EVENT = ("event", "message", "msg")
_EXCEPTION = ("exception", "exc_info")


class JsonLine(NamedTuple):
    level: str  # Empty, if it names none that is known.
    message: str
    fields: dict[str, object]
    exception: str


class _Head(msgspec.Struct):
    """What tells whether a line is one. Its other fields are skipped, which takes a quarter of the time."""

    level: Any = None
    severity: Any = None
    event: Any = None
    message: Any = None
    msg: Any = None


_heads = msgspec.json.Decoder(_Head)
_objects = msgspec.json.Decoder(dict[str, Any])


def level_of(line: bytes) -> str:
    """The level of a line with a message and a level that is known; empty for all other lines."""
    try:
        head = _heads.decode(line)
    except (ValueError, RecursionError):
        return ""
    if isinstance(head.event, str) or isinstance(head.message, str) or isinstance(head.msg, str):
        return _known(head.level) or _known(head.severity)
    return ""


def read(line: str) -> JsonLine | None:
    """What the line says; None: it is text."""
    if not line.startswith("{"):
        return None
    try:
        fields = _objects.decode(line)
    except (ValueError, RecursionError):
        return None
    message = next((key for key in _EVENT if isinstance(fields.get(key), str)), None)
    if message is None:
        return None
    level = next((key for key in _LEVEL if _known(fields.get(key))), None)
    exception = next((key for key in _EXCEPTION if _traceback(key, fields.get(key))), None)
    return JsonLine(
        level=_known(fields.pop(level)) if level else "",
        message=fields.pop(message),
        exception=_traceback(exception, fields.pop(exception)) if exception else "",
        fields=fields,
    )


def _known(level: object) -> str:
    return LEVELS.get(level.lower(), "") if isinstance(level, str) else ""


def _traceback(key: str, value: object) -> str:
    """As text also if it is not: structlog's `dict_tracebacks` makes objects of it. Empty: nothing has rendered it."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if key == "exc_info":  # Otherwise it is what was given: True, or the names of objects.
        return value if isinstance(value, str) and "Traceback (most recent call last)" in value else ""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value)).decode() if isinstance(value, list | dict) else ""
