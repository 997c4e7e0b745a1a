"""The output of jobs: how a log record travels to the supervisor, and in which form an output is stored.

Prints and log records share one pipe, so they stay in order. A record is one line there: SIGN, its level, the name of
its logger, its extra fields as JSON, its traceback after another SIGN, each followed by SEPARATOR, and its message,
with SIGN for each line break. A job can print such a line itself, which does no harm to others.

A stored output is the tail of all that an attempt has written, headed by a line that says how much was dropped.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from outlive.model import MemoryCourse
from outlive.states import State

SIGN = "\x1e"
SEPARATOR = "\x1f"
MAX_RECORD_CHARS = 16_000
MAX_NAME_CHARS = 200
MAX_EXTRA_BYTES = 4_000  # With the longest message and names, a record still is one line for the supervisor.
_SIGN = SIGN.encode()
_LEFT_OUT = re.compile(r"\[([\d,]{1,30}) earlier lines? (?:is|are) not kept\]\n")


class OutputPart(msgspec.Struct, frozen=True):
    """The output of an attempt, from some line on."""

    state: State  # The job's state. While it is not finished, more lines may come.
    attempt: int | None  # None: the job has no such attempt yet.
    live: bool  # Whether the attempt still runs.
    before: int  # How many lines come before these. The first of these has the next number.
    lines: list[str]
    memory: MemoryCourse | None = None  # How its memory has changed, if that is known.
    asked: bool = False  # Its worker was asked for the output just now, and has written none yet.
    steps: str = ""  # The names of the steps that are under way, as far as that is known.


class LiveOutput(msgspec.Struct, frozen=True):
    """The output and the memory of a followed attempt so far, and the steps that are under way."""

    token: int
    lines: int  # How many lines it has written.
    output: str | None  # The last of them. None: the database has them already.
    memory: MemoryCourse | None = None
    steps: str = ""


class Record(NamedTuple):
    level: str
    logger: str
    message: str
    extra: str = ""  # The fields that were given as `extra`, as a JSON object; empty without `extra`.
    exception: str = ""  # Its traceback, and what else stands below its message.

    @property
    def text(self) -> str:
        return f"{self.message}\n{self.exception}" if self.exception else self.message


def encode_record(level: str, logger: str, message: str, extra: str = "", exception: str = "") -> bytes:
    """A log record as one line of the output. The middle of a long text is left out, and so are long fields."""
    exception = _cut(exception, MAX_RECORD_CHARS - min(len(message), MAX_RECORD_CHARS // 2))
    message = _cut(message, MAX_RECORD_CHARS - len(exception))
    names = [" ".join(name[:MAX_NAME_CHARS].split()) for name in (level, logger)]
    below = SIGN + _one_line(exception).replace(SEPARATOR, " ") if exception else ""
    fields = extra if len(extra.encode()) <= MAX_EXTRA_BYTES else ""
    line = SIGN + SEPARATOR.join((*names, fields, below, _one_line(message))) + "\n"
    return line.encode(errors="backslashreplace")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}\n…\n{text[-(most // 2) :]}"


def _one_line(text: str) -> str:
    return text.replace(SIGN, " ").replace("\n", SIGN)


def read_record(line: bytes) -> Record | None:
    """The record that a line of the output holds; None if it was printed."""
    if not line.startswith(_SIGN):
        return None
    parts = line[1:].decode(errors="replace").split(SEPARATOR, 4)
    if len(parts) < 5:
        return None
    level, logger, extra, below, message = parts
    return Record(level, logger, message.replace(SIGN, "\n"), extra, below[1:].replace(SIGN, "\n"))


def count_in(lines: bytes) -> int:
    """How many lines of text these lines of the output are. A record may have several."""
    if _SIGN not in lines:
        return lines.count(b"\n")
    *whole, _ = lines.split(b"\n")
    return sum(line.count(_SIGN) if read_record(line) else 1 for line in whole)


def kept(tail: bytes, lines: int) -> str:
    """The tail of an output as stored, headed by how many of its `lines` were dropped. Records become lines of text."""
    text = tail.decode(errors="replace").replace("\0", "")
    if SIGN in text:
        text = "\n".join(map(as_text, text.split("\n")))
    missing = lines - text.count("\n") - bool(text and not text.endswith("\n"))
    if missing <= 0:
        return text
    return f"[{missing:,} earlier line{' is' if missing == 1 else 's are'} not kept]\n{text}"


def as_text(line: str) -> str:
    """A line of the output as people read it."""
    record = read_record(line.encode()) if line.startswith(SIGN) else None
    return line if record is None else f"{record.level} {record.logger}: {record.text}"


def split(output: str) -> tuple[int, list[str]]:
    """How many earlier lines are not kept, and the lines that are."""
    missing = 0
    if (found := _LEFT_OUT.match(output)) is not None:
        missing, output = int(found[1].replace(",", "")), output[found.end() :]
    lines = output.split("\n")
    return missing, lines[:-1] if not lines[-1] else lines
