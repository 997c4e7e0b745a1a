"""outlive's log lines: text for people or one JSON object per line, always to stderr, with times in UTC.

Passwords in URLs are removed. Control characters are escaped, so text of a job or a client can't forge a line. A stderr
that is not read blocks nothing: a thread writes the lines, and what its queue can't take is dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from outlive.output import Record

Format = Literal["text", "json"]
Fields = Callable[[], Mapping[str, object]]
Make = Callable[[], list[str]]

MAX_QUEUED_CHARS = 4_000_000
"""How much text may wait for a slow stderr; about 30,000 lines."""
LINE_CHARS = 120
"""About how long a line is that is not made yet."""
ATOMIC_BYTES = 4096
"""Linux writes this many bytes to a pipe in one piece, so lines of several processes don't mix."""
FLUSH_S = 1.0
MAX_SAID_LINES = 200
"""How many lines one log record or one traceback of a job may have in the text form."""

_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""The numbers of syslog, which journald reads."""
WORKER = "outlive.worker"
"""The lines of the worker itself."""
JOB = "outlive.job"
"""What jobs print and log, whatever the loggers of their records."""
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


def redacted_within(value: object, levels: int = 50) -> object:
    """The same for all texts in a value of JSON. What is nested more deeply than `levels` is left out."""
    match value:
        case str():
            return redacted(value)
        case list() | dict() if not levels:
            return "…"
        case list():
            return [redacted_within(one, levels - 1) for one in value]
        case dict():
            return {redacted(key): redacted_within(one, levels - 1) for key, one in value.items()}
    return value


def _without_password(url: re.Match[str]) -> str:
    """A password ends at the last @: one that is not escaped may be part of it."""
    text, at = url[0], url[0].rfind("@")
    user = _USER.search(text, 0, at) if at > 0 else None
    return f"{text[: user.end()]}***{text[at:]}" if user else text


def configure(format: Format = "text", *, level: str = "INFO") -> None:
    """Send outlive's log lines to stderr in this format. A later call replaces an earlier one.

    `level`: as the setting log_level, such as `info` or `info,outlive.worker=warning`.
    """
    global _formatter
    _formatter = _Json() if format == "json" else _Text()
    logger = logging.getLogger("outlive")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _Stderr)]:
        logger.removeHandler(handler)
    logger.addHandler(_Stderr())
    overall, *others = level.upper().split(",")
    logger.setLevel(overall)
    levels = dict(one.split("=") for one in others)
    for name in (WORKER, JOB):
        logging.getLogger(name).setLevel(levels.get(name.upper(), logging.NOTSET))
    logging.lastResort = _Stderr(logging.WARNING)  # Warnings of asyncio, psycopg and others must not block either.


def write(level: str, message: str, fields: Fields, *, stack: str | None = None) -> None:
    """Write a line of the worker without a LogRecord, which would cost more than the line. JSON has the fields too.

    `stack`: a traceback, of a job. As text it is indented, so that no line of it looks like one of the log.
    """
    relay(_formatter.line(time.time(), level, WORKER, _formatter.clean(message), fields, stack))


def lines(created: float, level: str, messages: list[str], fields: Callable[[int], Mapping[str, object]]) -> list[str]:
    """Lines of the worker with one time, for `later`. The messages must be clean: no text of a job, no password."""
    if isinstance(_formatter, _Json):
        each = enumerate(messages)
        return [_formatter.line(created, level, WORKER, words, functools.partial(fields, n)) for n, words in each]
    head = _formatter.line(created, level, WORKER, "")
    return [head + words for words in messages]


def lines_of_job(created: float, said: Record, who: str, fields: Mapping[str, object]) -> list[str]:
    """What a job prints or logs, for `later`: as text one line for each of its lines, as JSON one object."""
    level, logger, message, _, exception = said
    if isinstance(_formatter, _Json):
        return [_formatter.line(created, level, logger or JOB, redacted(message), lambda: fields, exception)]
    if said.extra and not logger:  # It was printed, with these fields.
        said = said._replace(message=f"{message} {said.extra}")
    lines = said.text.split("\n")
    if (more := len(lines) - MAX_SAID_LINES) > 0:
        lines[MAX_SAID_LINES:] = [f"({more:,} more lines of this record are left out)"]
    head = f"[{who}] {logger}: " if logger else f"[{who}] "
    clean = _formatter.clean
    return [_formatter.line(created, clean(level), JOB, clean(head + line)) for line in lines]


def relay(line: str) -> None:
    """Write a line unchanged, in order with the others."""
    _put(lambda: [line], 1, len(line))


def later(make: Make, *, lines: int = 1, size: int = 0) -> None:
    """Write lines that the writing thread makes. `size`: about how many characters more than usual they have."""
    _put(make, lines, lines * LINE_CHARS + size)


def _put(make: Make, lines: int, chars: int) -> None:
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        _writer.put(make, lines, chars)
    elif sys.stderr is not None:  # It was replaced, as tests do.
        print("\n".join(make()), file=sys.stderr, flush=True)


def flush(within_s: float = FLUSH_S) -> bool:
    """Wait until all lines so far are written to stderr; False if that takes too long."""
    return _writer.flush(within_s)


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = _formatter.format(record)
        except Exception as error:
            line = _formatter.format(_warning(f"a log line is lost: it can't be formatted: {record.msg!r}: {error!r}"))
        relay(line)


def _warning(text: str) -> logging.LogRecord:
    return logging.LogRecord("outlive.logs", logging.WARNING, __file__, 0, text, None, None)


class _Writer:
    """A thread that writes lines to stderr. Code that logs only appends to its queue.

    An item of the queue makes some lines; a number stands for lines that were dropped, an event for a `flush`.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Make, int] | int | threading.Event] = SimpleQueue()
        self._lock = threading.Lock()  # Never held during a write.
        self._started = False
        self._chars = self._dropped = 0

    def put(self, make: Make, lines: int, chars: int) -> None:
        with self._lock:
            if self._chars >= MAX_QUEUED_CHARS:
                self._dropped += lines
                return
            self._chars += chars
            self._put_gap()
            self._queue.put((make, chars))
            self._start()

    def _put_gap(self) -> None:
        if self._dropped:
            self._queue.put(self._dropped)
            self._dropped = 0

    def flush(self, within_s: float) -> bool:
        if not self._started:
            return True
        done = threading.Event()
        with self._lock:
            self._put_gap()
            self._queue.put(done)
        return done.wait(within_s)

    def _start(self) -> None:
        """Start the thread with the first line. If no thread can be started now, the next line tries again."""
        if not self._started:
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._run, name="outlive-logs", daemon=True).start()
                self._started = True

    def _run(self) -> None:
        while True:
            match self._queue.get():
                case threading.Event() as done:
                    done.set()
                case int() as lost:
                    lines = "1 log line was" if lost == 1 else f"{lost:,} log lines were"
                    gap = _formatter.format(_warning(f"{lines} dropped here: stderr did not take more"))
                    self._wrote(0, 0 if _write(_encoded(gap)) else lost)
                case (make, chars):
                    pieces = _cut(_encoded("\n".join(make())))
                    self._wrote(chars, sum(piece.count(b"\n") for piece in pieces if not _write(piece)))

    def _wrote(self, chars: int, lost: int) -> None:
        with self._lock:
            self._chars -= chars
            self._dropped += lost
            if not lost and not self._chars:  # No line waits that would say so.
                self._put_gap()


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
        stack = self.formatException(record.exc_info) if record.exc_info else None
        message = self.clean(record.getMessage())
        return self.line(record.created, record.levelname, record.name, message, lambda: _extra(record), stack)

    def clean(self, message: str) -> str:
        message = redacted(message)
        if message.isprintable():
            return message
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)

    def line(
        self, created: float, level: str, logger: str, message: str, fields: Fields = dict, stack: str | None = None
    ) -> str:
        head = _priority(level)
        named = "" if logger == WORKER else f"{logger}: "  # Most lines are the worker's own.
        line = f"{head}{_time(int(created * 1000))} {level:<7} {named}{message}"
        below = redacted(stack or "").splitlines()
        if (more := len(below) - MAX_SAID_LINES) > 0:  # The end says the most.
            below[:more] = [f"({more:,} earlier lines are left out)"]
        return "\n".join([line, *(f"{head}    {self.clean(one)}" for one in below)]) if below else line


class _Json(_Text):
    def clean(self, message: str) -> str:
        return redacted(message)

    def line(
        self, created: float, level: str, logger: str, message: str, fields: Fields = dict, stack: str | None = None
    ) -> str:
        line = {"time": _time(int(created * 1000)), "level": level.lower(), "logger": logger, "message": message}
        exception = {"exception": redacted(stack)} if stack else {}
        return _priority(level) + msgspec.json.encode({**line, **exception, **fields()}, enc_hook=str).decode()


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _priority(level: str) -> str:
    """What begins a line for journald."""
    return f"<{_PRIORITIES.get(level, 6)}>" if _is_journal() else ""


@functools.cache
def _is_journal() -> bool:
    """Whether stderr is the stream that journald has opened: programs inherit the variable, but not always that."""
    try:
        stat = os.fstat(sys.__stderr__.fileno())  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


@functools.lru_cache(maxsize=2)
def _time(milliseconds: int) -> str:
    second, rest = divmod(milliseconds, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{rest:03}Z"


_formatter = _Text()
_writer = _Writer()
os.register_at_fork(after_in_child=_writer.__init__)  # type: ignore[misc]  # With an empty queue and no thread.
atexit.register(flush)
