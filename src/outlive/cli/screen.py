"""Prints to the screen: safe text, tables, JSON, and lists that refresh every second.

Text of jobs and clients is never trusted: `text` removes control characters, so that a terminal finds no commands in
it, and rich finds no markup.

rich is imported when something is drawn. Its import takes a tenth of a command that prints JSON or an empty list.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, Union

import msgspec

from outlive import logs
from outlive.errors import ConfigError
from outlive.humanize import brief, duration, number, one_line, plain
from outlive.operations import facts

if TYPE_CHECKING:
    import rich.console
    import rich.table
    import rich.text

Text: TypeAlias = "rich.text.Text"
Drawn: TypeAlias = "rich.console.RenderableType"
T = TypeVar("T")
Row = Mapping[str, Any]
Part = Union[str, tuple[object, str], "rich.text.Text"]
"""Words, or words with their style."""
Cell = Callable[[Row], "rich.text.Text"]
PIPE_WIDTH = 160
"""The width of tables in a pipe: `| grep` needs each job on one line."""
NARROW = 110
"""A screen with fewer columns is narrow."""
GAP = 2
SHRUNK_WIDTH = 12
"""A column that shrinks is at least as wide as this, or as its widest cell."""
REFRESH_S = 1.0

_KILLED, _WAITS = "bold magenta", "yellow"
STATE_STYLES = {
    "pending": "cyan",
    "retryable": _WAITS,
    "running": "bold blue",
    "blocked": "dim yellow",
    "suspended": "dim cyan",
    "quarantined": _KILLED,
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "dim",
    "crashed": _KILLED,
    "out_of_memory": _KILLED,
    "timed_out": "red",
    "lost": _WAITS,
    "released": "dim",
}
BREAKER_STYLES = {"closed": "green", "half-open": "yellow", "open": "bold red"}
WORKER_STYLES = {"active": "green", "draining": "yellow", "stale": "yellow", "dead": "bold red", "stopped": "dim"}


def seen(worker: Row) -> str:
    """When a worker was last seen. An active one holds its lock at this moment: its heartbeats are rarer than that, but
    a late one shows its age.
    """
    connected = worker["state"] == "active"
    if connected and not facts.late(worker):
        return "now"
    return f"{'connected, ' if connected else ''}{duration(max(0.0, worker['time_since_heartbeat_s']))} ago"


def console() -> rich.console.Console:
    """A console for the current width of the screen."""
    from rich.console import Console

    plain_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    made = Console(width=plain_width, highlight=False, emoji=False)  # A table of all emoji is slow to load.
    made.on_broken_pipe = _pass_on  # type: ignore[method-assign]
    return made


def _pass_on() -> None:
    raise  # noqa: PLE0704  # Called while the BrokenPipeError is handled: pass it on, so that the command ends quietly.


def draw_soon() -> None:
    """Import what draws a table in another thread, while this one waits for the database."""
    threading.Thread(target=table, args=((), ()), daemon=True).start()


def text(*parts: Part) -> Text:
    """These parts after each other, safe to print."""
    from rich.text import Text

    made = Text()
    for part in parts:
        if isinstance(part, Text):
            made.append_text(part)
        else:
            words, style = (part, "") if isinstance(part, str) else part
            made.append(plain(words), style)
    return made


def stacked(*parts: Drawn) -> Drawn:
    """These parts below each other."""
    from rich.console import Group

    return Group(*parts)


def say(*parts: Part) -> None:
    console().print(text(*parts), soft_wrap=True)


def complain(message: str) -> None:
    """Print one line to stderr, without passwords."""
    from rich.console import Console

    line = text(("outlive: ", "bold red"), logs.redacted(one_line(message)))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def print_json(value: object, *, indent: int = 2) -> None:
    """Print JSON. Characters that a terminal might obey are written as escapes."""
    shown = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode(errors="replace")
    print(re.sub(r"[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", shown), flush=True)


class Column(msgspec.Struct, frozen=True):
    """One column. Where there is no room, a column that shrinks is cut or folded; the others keep their width."""

    title: str
    cell: Cell
    justify: Literal["left", "right"] = "left"
    shrink: Literal["cut", "fold"] | None = None
    wide: bool = False
    """Left out on a narrow screen."""
    narrow: Cell | None = None
    """What a narrow screen shows instead."""
    spare: int = 0
    """Left out where the others would have no room, the highest number first. 0: never."""


def fitting(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns that have room on this screen."""
    columns = [
        msgspec.structs.replace(one, title=f"{one.title} {time.strftime('%Z')}") if isinstance(one.cell, Times) else one
        for one in columns
    ]
    if (width := console().width) < NARROW:
        kept = [msgspec.structs.replace(one, cell=one.narrow or one.cell) for one in columns if not one.wide]
    else:
        kept = list(columns)
    least = {column.title: _least(column, rows) for column in kept}
    while sum(least[column.title] + GAP for column in kept) - GAP > width:
        spare = max(kept, key=lambda column: column.spare)
        if not spare.spare:
            break
        kept.remove(spare)
    return kept


def _least(column: Column, rows: Sequence[Row]) -> int:
    """The width that a column needs."""
    from rich.cells import cell_len

    widest = max(map(cell_len, [column.title, *(line for row in rows for line in column.cell(row).plain.split("\n"))]))
    return min(widest, max(SHRUNK_WIDTH, len(column.title))) if column.shrink else widest


def table(columns: Sequence[Column], rows: Sequence[Row]) -> rich.table.Table:
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    columns = fitting(columns, rows)
    for column in columns:
        made.add_column(column.title, justify=column.justify, no_wrap=column.shrink is None, overflow="fold")
    for row in rows:
        made.add_row(*(cut(column.cell(row)) if column.shrink == "cut" else column.cell(row) for column in columns))
    return made


def cut(line: Text) -> Text:
    """A line whose end is left out where it has no room."""
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """What a command shows once, or every second with --watch. `shape` converts it for JSON.

    `line` puts it on one line, for a pipe that is watched; without it, `show` does. `once` is an option that excludes
    --watch.
    """

    look: Callable[[], T]
    show: Callable[[T], Drawn]
    shape: Callable[[T], object] = lambda found: found
    line: Callable[[T], str] | None = None
    once: str = ""

    def print(self, *, json: bool, watch: bool) -> None:
        if watch and self.once:
            raise ConfigError(f"{self.once} and --watch are both given: give only one of them")
        if not watch:
            self._print_once(json=json)
            return
        with contextlib.suppress(KeyboardInterrupt):
            while json or not sys.stdout.isatty():
                self._print_once(json=json, line=self.line, indent=-1)
                time.sleep(REFRESH_S)
            self._draw_until_key()

    def _print_once(self, *, json: bool, line: Callable[[T], str] | None = None, indent: int = 2) -> None:
        if json:
            print_json(self.shape(self.look()), indent=indent)
        elif isinstance(shown := (line or self.show)(self.look()), str):
            print(shown, flush=True)
        else:
            console().print(shown)

    def _draw_until_key(self) -> None:
        """Draw every second on the terminal, until q. What does not fit is cut at the bottom."""
        from rich.live import Live  # Not at the top: it is slow to import, and few commands watch.

        with _keys() as pressed, Live(self.show(self.look()), console=console(), auto_refresh=False) as live:
            while not pressed(b"qQ", REFRESH_S):
                live.update(self.show(self.look()), refresh=True)


@contextlib.contextmanager
def progress(word: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, only on a terminal, which is removed at the end. Gives the function that moves it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task(word, total=total)
        yield lambda jobs: shown.advance(bar, jobs)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[bytes, float], bool]]:
    """Gives a function that waits for some seconds, and returns whether one of these keys was pressed."""
    if not sys.stdin or not sys.stdin.isatty():
        yield lambda _, wait_s: time.sleep(wait_s) is not None  # type: ignore[func-returns-value]
        return
    import select
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def pressed(keys: bytes, wait_s: float) -> bool:
        ready, _, _ = select.select([terminal], [], [], wait_s)
        return bool(ready) and os.read(terminal, 1) in (b"", *(bytes([key]) for key in keys))

    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def of(key: str, style: str = "") -> Cell:
    return lambda row: text(("" if row[key] is None else one_line(row[key]), style))


def state(word: object) -> Text:
    return text((word or "", STATE_STYLES.get(str(word), "")))


@dataclass(frozen=True, slots=True)
class Times:
    """The cells of a column of times, whose title gets the name of the local zone."""

    find: Callable[[Row], datetime | None]

    def __call__(self, row: Row) -> Text:
        return text((brief(self.find(row)), "dim"))


def time_of(key: str) -> Cell:
    return Times(lambda row: row[key])


def count_of(key: str, style: str = "bold", *, zero: str = "dim", rough: str = "") -> Cell:
    """A count. `rough` is the column that says whether it is estimated."""
    return lambda row: text((number(row[key], estimated=bool(rough) and row[rough]), style if row[key] else zero))
