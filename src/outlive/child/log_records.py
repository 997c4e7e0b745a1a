"""The log records of jobs: they go to the supervisor, unless the app has said that they should go elsewhere.

Records that find no handler come here, in place of Python's own last resort. So nothing is written twice. A handler
that the app has given to a logger to write to stderr or stdout is set aside for one of ours: the supervisor reads these
streams, and a line that is printed there has lost its level. Its formatter goes on to count if it is more than a format
string: it may mask what must not be logged, so nothing but what it returns leaves the process. `logging` is not
imported for this: every fork would pay for it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

import msgspec

from outlive import json_lines, output

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from types import ModuleType

LOGGING = "logging"
SAID = "outlive_said"
"""An attribute of records that say what the worker's own line about the end of the job says."""
STDERR = 2
_TRACEBACK = "Traceback (most recent call last):\n"


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(STDERR, data) :]


write: Callable[[bytes], None] = _write
"""Where records go. A shared child puts a function in its place that knows whose they are."""


def send(level: str) -> None:
    """From now on, send the log records of this level and above to the supervisor."""
    if LOGGING in sys.modules:
        _install(level)
    else:
        sys.meta_path.insert(0, _OnImport(level))


class _OnImport:
    """Finds `logging` once, and installs the handler after its import."""

    def __init__(self, level: str) -> None:
        self._level = level

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != LOGGING:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _install(self._level)

            loader.exec_module = exec_module
        return spec


def _install(level: str) -> None:
    import logging

    standard = {*vars(logging.makeLogRecord({})), "message", "asctime"}

    class ToSupervisor(logging.Handler):
        formatted_by_app: Callable[[logging.LogRecord], str] | None = None

        def emit(self, record: logging.LogRecord) -> None:
            if hasattr(record, SAID):
                return
            try:
                theirs = self.formatted_by_app
                said = _shown(record, theirs) if theirs else _said(record, self.format, standard)
                write(output.encode_record(record.levelname, record.name, *said))
            except Exception:  # As every handler of `logging` does: the job goes on.
                self.handleError(record)

    root = logging.getLogger()
    streams = [id(one) for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)]
    for logger in (root, *logging.Logger.manager.loggerDict.values()):
        handlers: list[logging.Handler] = getattr(logger, "handlers", [])
        for place, theirs in enumerate(handlers):
            if id(getattr(getattr(theirs, "console", theirs), "file", getattr(theirs, "stream", root))) in streams:
                handlers[place] = ours = ToSupervisor(level.upper())
                ours.setLevel(max(ours.level, theirs.level))
                ours.filters = theirs.filters
                of_logging = type(theirs).format is logging.Handler.format
                if not of_logging or type(theirs.formatter) not in (type(None), logging.Formatter):
                    ours.formatted_by_app = theirs.format
    if root.handlers:  # The app has configured it, level included.
        return
    configure = logging.basicConfig
    # Python calls it without arguments for `logging.error(…)`, and would print the record.
    logging.basicConfig = lambda **given: configure(**given) if given else None
    if root.level == logging.WARNING:  # As it is unless the app has set it.
        root.setLevel(level.upper())
    logging.lastResort = ToSupervisor(level.upper())


def _said(record: Any, format: Callable[[Any], str], standard: Collection[str]) -> tuple[str, str, str]:
    """The message of a record, its fields (those that not every record has) as JSON, and what stands below it."""
    record, fields = _unpacked(record) if isinstance(record.msg, dict) else (record, vars(record))
    extra = _span() | {name: value for name, value in fields.items() if name not in standard}
    text = format(record)
    message = text.partition(f"\n{record.exc_text}")[0] if record.exc_text else text
    return message, _json(extra), text[len(message) + 1 :]


def _shown(record: Any, format: Callable[[Any], str]) -> tuple[str, str, str]:
    """The same as the app's own formatter shows it. What that leaves out is not logged."""
    text, below = format(record).rstrip(), ""
    if "\x1b" in text:  # Colours, as on a terminal.
        import re

        text = re.sub(r"\x1b\[[\d;]*m", "", text)
    for stack in filter(None, (record.exc_text, _TRACEBACK)):
        if (at := text.find(f"\n{stack}")) >= 0:
            text, below = text[:at], text[at + 1 :]
            break
    if (line := json_lines.read(text)) is None:
        return text, _json(_span()), below
    below = line.exception or below
    if line.fields.pop("exc_info", None) and not below:  # The formatter shows that there is one, and no traceback.
        below = _traceback(record)
    return line.message, _json(_span() | line.fields), below


def _traceback(record: Any) -> str:
    error = (_unpacked(record)[0] if isinstance(record.msg, dict) else record).exc_info
    return sys.modules[LOGGING].Formatter().formatException(error) if error and error[0] else ""


def _unpacked(record: Any) -> tuple[Any, dict[str, object]]:
    """A record of structlog, whose message is a dict for its ProcessorFormatter: the event as the message."""
    fields = dict(record.msg)
    error = fields.pop("exc_info", None) or record.exc_info
    if isinstance(error, BaseException):
        error = type(error), error, error.__traceback__
    elif error and not isinstance(error, tuple):  # True, or 1.
        error = sys.exc_info()
    given = {"msg": str(fields.pop("event", "")), "args": (), "exc_info": error}
    if isinstance(fields.get("exception"), str):  # As its processor `format_exc_info` has rendered it.
        given["exc_text"] = fields.pop("exception")
    return sys.modules[LOGGING].makeLogRecord(vars(record) | given), fields


def _span() -> dict[str, object]:
    """The span of OpenTelemetry around the code that logs."""
    if (trace := sys.modules.get("opentelemetry.trace")) is None:
        return {}
    span = trace.get_current_span().get_span_context()
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"} if span.is_valid else {}


def _json(extra: dict[str, object]) -> str:
    try:
        return msgspec.json.encode(extra, enc_hook=str).decode() if extra else ""
    except Exception:  # An object's own __str__ may raise anything, and must not cost the record its message.
        return ""
