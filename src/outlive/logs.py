"""outlive's log lines: text for people or one JSON object per line, always to stderr, with times in UTC.

Passwords in URLs are removed. Control characters are escaped, so text of a job or a client can't forge a line. A stderr
that is not read blocks nothing: a thread writes the lines, and when its queue is full, further lines are dropped and
counted.
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
"""How much text may wait for a slow stderr; about 30,000 lines."""
GATHER_S = 0.005
"""How long the thread lets lines gather: waking it for a line costs more than writing the line."""
ATOMIC_BYTES = 4096
"""Linux writes this many bytes to a pipe in one piece, so lines of several processes don't mix."""
FLUSH_S = 1.0

_IN_URL = re.compile(r"(\w://[^\s:/@]*:)\S*@")
_IN_SETTING = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&']+)", re.IGNORECASE)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def redacted(text: str) -> str:
    """Replace the passwords of database URLs and connection strings in a text."""
    if "://" in text:
        text = _IN_URL.sub(r"\1***@", text)
    return _IN_SETTING.sub(r"\1***", text) if "password" in text.lower() else text


def configure(format: Format = "text", *, level: int = logging.INFO) -> None:
    """Send outlive's log lines to stderr in this format. A later call replaces an earlier one."""
    logger = logging.getLogger("outlive")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Stderr)]:
        logger.removeHandler(handler)
    handler, others = _Stderr(), _Stderr(logging.WARNING)
    for one in (handler, others):
        one.setFormatter(_Json() if format == "json" else _Text())
    logger.addHandler(handler)
    logger.setLevel(level)
    logging.lastResort = others  # Warnings of asyncio, psycopg and other libraries must not block either.
    _writer.gap_line = handler.gap_line


def relay(line: str) -> None:
    """Write a line of another process unchanged, in order with the others."""
    stream = sys.stderr
    if stream is None:
        return
    if stream is sys.__stderr__:
        _writer.put(line)
    else:
        print(line, file=stream, flush=True)


def flush(within_s: float = FLUSH_S) -> bool:
    """Wait until all lines so far are written to stderr; False if that takes too long."""
    return _writer.flush(within_s)


class _Stderr(logging.Handler):
    """Writes to the current sys.stderr. One that was replaced, as tests do, is written to directly."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:
            line = self.format(_warning(f"a log line is lost: it can't be formatted: {record.msg!r}: {error!r}"))
        relay(line)

    def gap_line(self, dropped: int) -> str:
        """The line in place of lines that were dropped."""
        lines = "1 log line was" if dropped == 1 else f"{dropped:,} log lines were"
        return self.format(_warning(f"{lines} dropped here: stderr did not take more"))


def _warning(text: str) -> logging.LogRecord:
    return logging.LogRecord("outlive.logs", logging.WARNING, __file__, 0, text, None, None)


class _Writer:
    """A thread that writes lines to stderr. Code that logs only appends to its queue."""

    def __init__(self) -> None:
        self.gap_line: Callable[[int], str] = str
        self.begin()

    def begin(self) -> None:
        """Start with an empty queue and no thread, also after a fork. The first line starts the thread."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # Never held during a write.
        self._queue: deque[str | int | threading.Event] = deque()  # A number stands for lines that were dropped.
        self._chars = 0
        self._missing = 0
        self._has_lines = threading.Event()

    def put(self, line: str) -> None:
        with self._lock:
            if self._chars < MAX_QUEUED_CHARS:
                self._chars += len(line)
                self._queue.append(line)
            else:
                self._drop_line()
        self._wake()

    def _drop_line(self) -> None:
        last = self._queue[-1] if self._queue else None
        if isinstance(last, int):
            self._queue[-1] = last + 1
        else:
            self._queue.append(1)

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
            except RuntimeError:  # No thread can be started now. The next line tries again.
                return
            self._thread = thread
        if not self._has_lines.is_set():
            self._has_lines.set()

    def _run(self) -> None:
        while True:
            self._has_lines.wait()
            time.sleep(GATHER_S)
            self._has_lines.clear()  # Before the queue is emptied: a line that is added meanwhile sets it again.
            while self._queue:
                self._write_next()
            if self._missing and _write(self._encoded_gap()):
                self._missing = 0

    def _write_next(self) -> None:
        """Write the first line of the queue, and as many more as fit into ATOMIC_BYTES."""
        match first := self._pop():
            case threading.Event():
                first.set()
            case int():
                self._missing += first
            case str():
                data, lines, chars = _encoded(first), 1, len(first)
                while self._queue and isinstance(line := self._queue[0], str) and len(data) + len(line) < ATOMIC_BYTES:
                    self._pop()
                    data += _encoded(line)
                    lines += 1
                    chars += len(line)
                if _write((self._encoded_gap() if self._missing else b"") + data):
                    self._missing = 0
                else:
                    self._missing += lines
                with self._lock:
                    self._chars -= chars

    def _pop(self) -> str | int | threading.Event:
        with self._lock:
            return self._queue.popleft()

    def _encoded_gap(self) -> bytes:
        return _encoded(self.gap_line(self._missing))


def _encoded(line: str) -> bytes:
    stream = sys.__stderr__
    return f"{line}\n".encode(stream.encoding if stream else "utf-8", "backslashreplace")


def _write(data: bytes) -> bool:
    """Write to stderr, however slowly it is read. False if it is broken, full or closed."""
    try:
        stderr = sys.__stderr__.fileno()  # type: ignore[union-attr]  # Lines are queued only if there is one.
        while data:
            try:
                data = data[os.write(stderr, data) :]
            except BlockingIOError:  # Another process that shares this stderr has made it non-blocking.
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
