"""How people read times, sizes and the text of jobs, on a terminal and on a page. Nothing here knows either of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

RESTART = "restart workers that started before the task was added"  # The usual cure where no active worker has a task.
RENAMED = "if the task was renamed, name the old one in was=… of the new one"


def unserved(task: str, queue: str, lacking: Sequence[str] | None) -> tuple[str, str]:
    """Why no active worker takes the jobs of a task, and what to do. `lacking` are labels that none of them has."""
    if not lacking:
        serve = f"if all have --queues, let one serve {queue}"
        return f"no active worker has the task {task} and serves the queue {queue}", f"{RESTART}; {serve}; {RENAMED}"
    start = " ".join(f"--label {label}" for label in lacking)
    return f"no active worker has {labelled(lacking)}, which the task {task} needs", f"start one with {start}"


def labelled(labels: Sequence[str]) -> str:
    return f"the label{'s' if len(labels) > 1 else ''} {' and '.join(labels)}"


_COMMANDS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


def plain(text: object) -> str:
    """Safe text: without control characters and escape sequences, but with its line breaks."""
    whole = str(text)
    if whole.isprintable():  # Nearly all names are, and the rest is slow.
        return whole
    bare = _COMMANDS.sub("", whole).replace("\r\n", "\n").expandtabs(4)
    return "".join(char if char.isprintable() or char == "\n" else "�" for char in bare)


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def tail(text: str, lines: int) -> str:
    return "\n".join(plain(text).rstrip().splitlines()[-lines:])


def moment(value: datetime | None) -> str:
    """A time in the local time zone, and which that is."""
    return "" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def brief(value: datetime | None) -> str:
    """A time without its year and its zone, for tables whose header names the zone."""
    return "" if value is None else value.astimezone().strftime("%m-%d %H:%M:%S")


EXACT = 10_000  # Jobs are counted up to this number. Beyond it, a count is estimated.


def number(count: int, *, estimated: bool = False) -> str:
    """A count. An estimated one has three digits that mean something."""
    return f"≈{round(count, 3 - len(str(count))) if count > 999 else count:,}" if estimated else f"{count:,}"


def figure(value: float) -> str:
    """A number that a person or a job has given: never with an exponent where people count, as pages of a crawl."""
    return f"{value:,.0f}" if 100_000 <= abs(value) < 1e15 else f"{value:g}"


def rate(often: float) -> str:
    """How often something happens in a second or a minute: three digits, or all of a whole number. What is rare is
    only said to be so."""
    if 0 < often < 0.1:
        return "<0.1"
    return f"{often:,.0f}" if often >= 99.95 else f"{often:.3g}"


def duration(seconds: float) -> str:
    if not 0 <= seconds < 1e12:  # Clients in other languages can write any number, also NaN.
        return f"{seconds:g} s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def roughly(seconds: float) -> str:
    """A time in its largest unit: 2 h."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number and its noun: 1 crash, 2 crashes."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {many or one + 's'}"


def few(values: Sequence[object], most: int = 3) -> str:
    """The first of these values, and whether there are more."""
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")


def short_id(id: object) -> str:
    """The beginning of an id, which commands and searches take for the whole: its time, and some bits that tell ids of
    the same time apart. A line about a job with it has 120 characters."""
    return str(id)[:22]


def size(number: int) -> str:
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
