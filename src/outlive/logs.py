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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

Format = Literal["text", "json"]
Fields = Callable[[], Mapping[str, object]]
FieldsOf = Callable[[int], Mapping[str, object]]
Item = tuple[Any, ...]
Make = Callable[[list[Item]], list[str]]

MAX_QUEUED_CHARS = 4_000_000
"""How much text may wait for a slow stderr; about 30,000 lines."""
MADE_CHARS = 120
"""About how long a line is that is not made yet."""
GATHER_S = 0.02
"""How long the thread lets lines gather: waking it for a line costs more than writing the line."""
ATOMIC_BYTES = 4096
"""Linux writes this many bytes to a pipe in one piece, so lines of several processes don't mix."""
FLUSH_S = 1.0

MAX_SAID_LINES = 200
"""How many lines one log record of a job may have in the text form."""

_WORKER = "outlive.worker"
_JOB = "outlive.job"
_URL = re.compile(r"(?<!\S)\S*?://\S*")  # Each word is tried once: a long line of a job costs no more than its length.
_USER = re.compile(r"\w://[^\s:/@]*:")
_IN_SETTING = re.compile(
    r"([?&]\w*(?:password|secret)=)[^\s&]*"  # In a URL.
    r"|((?:password|secret)\s*=\s*)(?:'(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)+)",
    re.IGNORECASE | re.DOTALL,
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def redacted(text: str) -> str:
    """Replace the passwords of database URLs and connection strings in a text."""
    if "://" in text and "@" in text:
        text = _URL.sub(_without_password, text)
    if "=" in text and ("password" in (lower := text.lower()) or "secret" in lower):
        text = _IN_SETTING.sub(r"\1\2***", text)
    return text


def _without_password(url: re.Match[str]) -> str:
    """A password ends at the last @: one that is not escaped may be part of it."""
    text, at = url[0], url[0].rfind("@")
    user = _USER.search(text, 0, at) if at > 0 else None
    return f"{text[: user.end()]}***{text[at:]}" if user else text


def configure(format: Format = "text", *, level: str = "INFO") -> None:
    """Send outlive's log lines to stderr in this format. A later call replaces an earlier one."""
    logger = logging.getLogger("outlive")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Stderr)]:
        logger.removeHandler(handler)
    global _formatter
    _formatter = _Json() if format == "json" else _Text()
    handler, others = _Stderr(), _Stderr(logging.WARNING)
    for one in (handler, others):
        one.setFormatter(_formatter)
    logger.addHandler(handler)
    logger.setLevel(level)
    logging.lastResort = others  # Warnings of asyncio, psycopg and other libraries must not block either.
    _writer.gap_line = handler.gap_line


def write(level: str, message: str, fields: Fields, *, at: float | None = None) -> None:
    """Write a line of the worker without a LogRecord, which would cost more than the line. JSON has the fields too.

    `at`: when it happened, if that was before.
    """
    relay(_formatter.line(time.time() if at is None else at, level, _WORKER, _formatter.clean(message), fields))


def lines(created: float, level: str, messages: list[str], fields: FieldsOf) -> list[str]:
    """Lines of the worker with the same time, for `gather`.

    Their messages must be clean: no text of a job, and no password.
    """
    return _formatter.lines(created, level, _WORKER, messages, fields)


def relay(line: str) -> None:
    """Write a line unchanged, in order with the others."""
    stream = sys.stderr
    if stream is None:
        return
    if stream is sys.__stderr__:
        _writer.put(line)
    else:
        print(line, file=stream, flush=True)


def said(created: float, level: str, who: str, logger: str, message: str, fields: Mapping[str, object]) -> list[str]:
    """What a job says, for `gather`: as text one line for each of its lines, as JSON one object."""
    return _formatter.said(created, level, who, logger, message, fields)


def gather(make: Make, item: Item, *, lines: int = 1, size: int = 0) -> None:
    """Like `relay`, for lines of which there are many: `make` makes all that wait, in the thread that writes them.

    `lines`: how many the item makes. `size`: about how many characters more than usual they have.
    """
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        _writer.gather(make, item, lines, lines * MADE_CHARS + size)
    else:
        for line in make([item]):
            relay(line)


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


class _Unmade:
    """Lines that the thread makes, and how long they are taken to be."""

    __slots__ = ("chars", "items", "make")

    def __init__(self, make: Make) -> None:
        self.make, self.items, self.chars = make, list[Item](), 0


_Queue = list[str | _Unmade | int | threading.Event]
_Piece = bytes | int | threading.Event
"""Whole lines that are written together, or something of the queue that is not a line."""


class _Writer:
    """A thread that writes lines to stderr. Code that logs only appends to its queue."""

    def __init__(self) -> None:
        self.gap_line: Callable[[int], str] = str
        self.begin()

    def begin(self) -> None:
        """Start with an empty queue and no thread, also after a fork. The first line starts the thread."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # Never held during a write.
        self._queue: _Queue = []  # A number stands for lines that were dropped.
        self._chars = 0
        self._missing = 0
        self._has_lines = threading.Event()

    def put(self, line: str) -> None:
        with self._lock:
            if self._chars < MAX_QUEUED_CHARS:
                self._chars += len(line)
                self._queue.append(line)
            else:
                self._drop()
        if not self._has_lines.is_set():
            self._wake()

    def gather(self, make: Make, item: Item, lines: int, chars: int) -> None:
        with self._lock:
            if self._chars < MAX_QUEUED_CHARS:
                self._chars += chars
                last = self._queue[-1] if self._queue else None
                if not isinstance(last, _Unmade) or last.make is not make:
                    last = _Unmade(make)
                    self._queue.append(last)
                last.items.append(item)
                last.chars += chars
            else:
                self._drop(lines)
        if not self._has_lines.is_set():
            self._wake()

    def _drop(self, lines: int = 1) -> None:
        if self._queue and isinstance(dropped := self._queue[-1], int):
            self._queue[-1] = dropped + lines
        else:
            self._queue.append(lines)

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
        self._has_lines.set()

    def _run(self) -> None:
        while True:
            self._has_lines.wait()
            time.sleep(GATHER_S)
            self._has_lines.clear()  # Before the queue is emptied: a line that is added meanwhile sets it again.
            with self._lock:
                queue, self._queue = self._queue, []
            self._write_all(self._made(queue))
            if self._missing and _write(_encoded(self.gap_line(self._missing))):
                self._missing = 0

    def _made(self, queue: _Queue) -> list[_Piece]:
        """The queue, with every line made and encoded."""
        pieces, more = list[_Piece](), 0
        for one in queue:
            if isinstance(one, str):
                pieces.append(data := _encoded(one))
                more += len(data) - len(one)
            elif isinstance(one, _Unmade):
                data = _encoded("\n".join(one.make(one.items)))
                pieces += _cut(data)
                more += len(data) - one.chars
            else:
                pieces.append(one)
        with self._lock:
            self._chars += more
        return pieces

    def _write_all(self, pieces: list[_Piece]) -> None:
        """Write pieces, as many at once as fit into ATOMIC_BYTES."""
        data = b""
        for one in pieces:
            if data and (not isinstance(one, bytes) or len(data) + len(one) > ATOMIC_BYTES):
                self._write_lines(data)
                data = b""
            match one:
                case bytes():
                    data += one
                case int():
                    self._missing += one
                case threading.Event():
                    one.set()
        if data:
            self._write_lines(data)

    def _write_lines(self, data: bytes) -> None:
        gap = _encoded(self.gap_line(self._missing)) if self._missing else b""
        self._missing = 0 if _write(gap + data) else self._missing + data.count(b"\n")
        with self._lock:
            self._chars -= len(data)


def _encoded(lines: str) -> bytes:
    stream = sys.__stderr__
    return f"{lines}\n".encode(stream.encoding if stream else "utf-8", "backslashreplace")


def _cut(lines: bytes) -> Iterator[bytes]:
    """As many of the lines at once as fit into ATOMIC_BYTES. A longer line stays whole."""
    start = 0
    while start < len(lines):
        end = 1 + max(lines.rfind(b"\n", start, start + ATOMIC_BYTES), lines.find(b"\n", start))
        yield lines[start:end]
        start = end


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
        line = self.line(record.created, record.levelname, record.name, self.clean(record.getMessage()))
        return f"{line}\n{redacted(self.formatException(record.exc_info))}" if record.exc_info else line

    def clean(self, message: str) -> str:
        message = redacted(message)
        if message.isprintable():
            return message
        return "".join(char if char.isprintable() else _escape(char) for char in message)

    def line(self, created: float, level: str, logger: str, message: str, fields: Fields = dict) -> str:
        return f"{_time(created)} {level:<7} {logger}: {message}"

    def lines(self, created: float, level: str, logger: str, messages: list[str], fields: FieldsOf) -> list[str]:
        head = self.line(created, level, logger, "")
        return [head + message for message in messages]

    def said(
        self, created: float, level: str, who: str, logger: str, message: str, fields: Mapping[str, object]
    ) -> list[str]:
        lines = message.split("\n")
        if (more := len(lines) - MAX_SAID_LINES) > 0:
            lines[MAX_SAID_LINES:] = [f"({more:,} more lines of this record are left out)"]
        head = f"[{who}] {logger}: " if logger else f"[{who}] "
        return [self.line(created, self.clean(level), _JOB, self.clean(head + line)) for line in lines]


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            fields = {"exception": redacted(self.formatException(record.exc_info)), **fields}
        return self.line(record.created, record.levelname, record.name, self.clean(record.getMessage()), lambda: fields)

    def clean(self, message: str) -> str:
        return redacted(message)

    def line(self, created: float, level: str, logger: str, message: str, fields: Fields = dict) -> str:
        line = {"time": _time(created), "level": level.lower(), "logger": logger, "message": message}
        return msgspec.json.encode({**line, **fields()}, enc_hook=str).decode()

    def lines(self, created: float, level: str, logger: str, messages: list[str], fields: FieldsOf) -> list[str]:
        each = enumerate(messages)
        return [self.line(created, level, logger, message, functools.partial(fields, n)) for n, message in each]

    def said(
        self, created: float, level: str, who: str, logger: str, message: str, fields: Mapping[str, object]
    ) -> list[str]:
        return [self.line(created, level, logger or _JOB, self.clean(message), lambda: fields)]


def _time(created: float) -> str:
    return _millisecond(int(created * 1000))


@functools.lru_cache(maxsize=2)
def _millisecond(since_epoch: int) -> str:
    second, rest = divmod(since_epoch, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{rest:03}Z"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


_formatter: _Text | _Json = _Text()
_writer = _Writer()
os.register_at_fork(after_in_child=_writer.begin)
atexit.register(flush)
