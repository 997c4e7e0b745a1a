"""How outlive's log lines look: text for people or one JSON object a line, always to stderr, times in UTC.

Passwords in URLs never get into a line, and what a job or a client said can't forge one: control characters
are written as escapes. A stderr that is not read stops nothing: a thread writes the lines, and those that find
its queue full are dropped and counted.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

Format = Literal["text", "json"]

MAX_QUEUED_CHARS = 4_000_000
"""How much waits for a stderr that is not read; about 30,000 lines."""
GATHER_S = 0.005
"""How long the writing thread lets lines come together: waking it for each costs more than writing it."""
ATOMIC_BYTES = 4096
"""Linux writes so many bytes to a pipe in one piece, so that lines of several processes don't mix."""
FLUSH_S = 1.0

_IN_URL = re.compile(r"(\w://[^\s:/@]*:)\S*@")
_IN_SETTING = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&']+)", re.IGNORECASE)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def redacted(text: str) -> str:
    """The text without the passwords of the database URLs and connection strings in it."""
    if "://" in text:
        text = _IN_URL.sub(r"\1***@", text)
    return _IN_SETTING.sub(r"\1***", text) if "password" in text.lower() else text


def configure(format: Format = "text", *, level: int = logging.INFO) -> None:
    """Let the log lines of outlive go to stderr in this form. Called again, the last call counts."""
    logger = logging.getLogger("outlive")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Stderr)]:
        logger.removeHandler(handler)
    handler, others = _Stderr(), _Stderr(logging.WARNING)
    for one in (handler, others):
        one.setFormatter(_Json() if format == "json" else _Text())
    logger.addHandler(handler)
    logger.setLevel(level)
    logging.lastResort = others  # What asyncio, psycopg and other libraries warn of must not block either.
    _writer.note = handler.note


def relay(line: str) -> None:
    """Write a line of another process as it is, in the same way."""
    stream = sys.stderr
    if stream is None:
        return
    if stream is sys.__stderr__:
        _writer.put(line)
    else:
        print(line, file=stream, flush=True)


def flush(within_s: float = FLUSH_S) -> bool:
    """Wait until stderr has all lines so far; False if it does not take them in time."""
    return _writer.flush(within_s)


class _Stderr(logging.Handler):
    """Writes to what sys.stderr is at that moment: it may have been replaced since, and is then written at once."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:
            line = self.format(_record(f"a log line was lost, it can't be formatted: {record.msg!r}: {error!r}"))
        relay(line)

    def note(self, dropped: int) -> str:
        """What tells of lines that are missing."""
        lines = "1 log line was" if dropped == 1 else f"{dropped:,} log lines were"
        return self.format(_record(f"{lines} dropped here: stderr did not take more"))


def _record(said: str) -> logging.LogRecord:
    return logging.LogRecord("outlive.logs", logging.WARNING, __file__, 0, said, None, None)


class _Gap:
    """Where lines were dropped, because the queue was full."""

    def __init__(self) -> None:
        self.lines = 0


class _Writer:
    """A thread that writes lines to stderr. Code that logs only appends to its queue, whatever stderr does."""

    def __init__(self) -> None:
        self.note: Callable[[int], str] = str
        self.begin()

    def begin(self) -> None:
        """Also for a process that was forked: it has none of its parent's threads, and its first line starts one."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # Never held while something is written.
        self._queue: deque[str | _Gap | threading.Event] = deque()
        self._chars = 0
        self._missing = 0
        self._wanted = threading.Event()

    def put(self, line: str) -> None:
        with self._lock:
            if self._chars < MAX_QUEUED_CHARS:
                self._chars += len(line)
                self._queue.append(line)
            else:
                self._widen_gap()
        self._wake()

    def _widen_gap(self) -> None:
        gap = self._queue[-1] if self._queue else None
        if not isinstance(gap, _Gap):
            gap = _Gap()
            self._queue.append(gap)
        gap.lines += 1

    def flush(self, within_s: float) -> bool:
        if self._thread is None:
            return True
        done = threading.Event()
        with self._lock:
            self._queue.append(done)
        self._wake()
        return done.wait(within_s)

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="outlive-logs", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # No thread can be made now; the next line tries again.
                return
            self._thread = thread
        if not self._wanted.is_set():
            self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(GATHER_S)
            self._wanted.clear()  # Before the queue is emptied: a line that comes meanwhile sets it again.
            while self._queue:
                self._write_next()
            if self._missing and _written(self._told()):
                self._missing = 0

    def _write_next(self) -> None:
        """What is first in the queue; of lines as many as one piece may have."""
        match first := self._pop():
            case threading.Event():
                first.set()
            case _Gap():
                self._missing += first.lines
            case str():
                lines = [_encoded(first)]
                size = len(lines[0])
                chars = len(first)
                while self._queue and isinstance(line := self._queue[0], str) and size + len(line) < ATOMIC_BYTES:
                    self._pop()
                    lines.append(_encoded(line))
                    size += len(lines[-1])
                    chars += len(line)
                if _written((self._told() if self._missing else b"") + b"".join(lines)):
                    self._missing = 0
                else:
                    self._missing += len(lines)
                with self._lock:
                    self._chars -= chars

    def _pop(self) -> str | _Gap | threading.Event:
        with self._lock:
            return self._queue.popleft()

    def _told(self) -> bytes:
        return _encoded(self.note(self._missing))


def _encoded(line: str) -> bytes:
    stream = sys.__stderr__
    return f"{line}\n".encode(stream.encoding if stream else "utf-8", "backslashreplace")


def _written(data: bytes) -> bool:
    """Waits for a stderr that is read slowly; False if it is broken, full or closed."""
    try:
        stderr = sys.__stderr__.fileno()  # type: ignore[union-attr]  # Lines come here only if there is one.
        while data:
            try:
                data = data[os.write(stderr, data) :]
            except BlockingIOError:  # Another process that shares it has made it non-blocking.
                poll = select.poll()
                poll.register(stderr, select.POLLOUT)
                poll.poll()
    except (OSError, ValueError):
        return False
    return True


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = redacted(record.getMessage())
        if not message.isprintable():
            message = "".join(char if char.isprintable() else _escape(char) for char in message)
        line = f"{_time(record.created)} {record.levelname:<7} {record.name}: {message}"
        return f"{line}\n{redacted(self.formatException(record.exc_info))}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        return msgspec.json.encode(line, enc_hook=str).decode()


def _time(created: float) -> str:
    second = int(created)
    return f"{_second(second)}.{int((created - second) * 1000):03}Z"


@functools.lru_cache(maxsize=2)
def _second(since_epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since_epoch))


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


_writer = _Writer()
os.register_at_fork(after_in_child=_writer.begin)
atexit.register(flush)
