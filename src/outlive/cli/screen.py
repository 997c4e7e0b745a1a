"""Prints to the screen: safe text, tables, JSON, and lists that refresh every second.

Text of jobs and clients is never trusted. It is printed as `Text`, so that rich finds no markup in it, and without
control characters, so that a terminal finds no commands in it.

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
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from outlive import logs
from outlive.wording import brief as brief
from outlive.wording import counted as counted
from outlive.wording import duration as duration
from outlive.wording import moment as moment
from outlive.wording import number as number
from outlive.wording import one_line as one_line
from outlive.wording import plain as plain
from outlive.wording import roughly as roughly
from outlive.wording import size as size
from outlive.wording import tail as tail

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")
Row = Mapping[str, Any]
Cell = Callable[[Row], "Text"]
PIPE_WIDTH = 160
"""The width of tables in a pipe: `| grep` needs each job on one line."""

LUXURY_WIDTH = 110
GAP = 2
SHRUNK_WIDTH = 12
"""A column that shrinks is at least as wide as this, or as its widest cell."""

REFRESH_S = 1.0

_STATE_STYLES = {
    "pending": "cyan",
    "retryable": "yellow",
    "running": "bold blue",
    "blocked": "dim yellow",
    "quarantined": "bold magenta",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "dim",
    "crashed": "bold magenta",
    "out_of_memory": "bold magenta",
    "timed_out": "red",
    "lost": "yellow",
    "released": "dim",
}

BREAKER_STYLES = {"closed": "green", "half-open": "yellow", "open": "bold red"}
WORKER_STYLES = {"active": "green", "draining": "yellow", "stale": "yellow", "dead": "bold red", "stopped": "dim"}


def console() -> Console:
    """A console for the current width of the screen."""
    from rich.console import Console

    plain_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    made = Console(width=plain_width, highlight=False, emoji=False)  # A table of all emoji is slow to load.
    made.on_broken_pipe = _pass_on  # type: ignore[method-assign]
    return made


def draw_soon() -> None:
    """Import what draws a table in another thread, while this one waits for the database."""
    threading.Thread(target=table, args=((), ()), daemon=True).start()


def _pass_on() -> None:
    raise  # noqa: PLE0704  # Called while the BrokenPipeError is handled: pass it on, so that the command ends quietly.


def styled(words: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(words, style=style)


def say(*words: RenderableType) -> None:
    console().print(*words, soft_wrap=True)


def complain(message: str) -> None:
    """Print one line to stderr, without passwords."""
    from rich.console import Console

    line = styled("outlive: ", style="bold red").append(plain(logs.redacted(one_line(message))), style="not bold")
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def print_json(value: object, *, indent: int = 2) -> None:
    """Print JSON. Characters that a terminal might obey are written as escapes."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode(errors="replace")
    print(re.sub(r"[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text), flush=True)


class Column(msgspec.Struct, frozen=True):
    """One column. On a narrow screen a column that shrinks is cut or folded; the others keep their width."""

    title: str
    cell: Cell
    justify: Literal["left", "right"] = "left"
    shrink: Literal["cut", "fold"] | None = None
    luxury: bool = False
    """Left out where the screen is narrower than LUXURY_WIDTH."""
    spare: int = 0
    """Left out where the others would have no room, the highest number first. 0: never."""


def is_narrow() -> bool:
    """Whether columns that are a luxury have no room."""
    return console().width < LUXURY_WIDTH


def fitting(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns that have room on this screen."""
    width = console().width
    kept = [column for column in columns if width >= LUXURY_WIDTH or not column.luxury]
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


def table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    columns = fitting(columns, rows)
    for column in columns:
        made.add_column(column.title, justify=column.justify, no_wrap=column.shrink is None, overflow="fold")
    for row in rows:
        made.add_row(*(_fitted(column, row) for column in columns))
    return made


def group(*parts: RenderableType, style: str) -> RenderableType:
    """These parts below each other. Sentences among them have this style."""
    from rich.console import Group

    return Group(*(styled(plain(part), style) if isinstance(part, str) else part for part in parts))


def _fitted(column: Column, row: Row) -> Text:
    text = column.cell(row)
    if column.shrink == "cut":
        text.no_wrap, text.overflow = True, "ellipsis"
    return text


def table_or(empty: str, columns: Sequence[Column]) -> Callable[[Sequence[Row]], RenderableType]:
    """Shows rows as a table, or this sentence if the list is empty."""
    return lambda rows: table(columns, rows) if rows else empty


def listing(
    look: Callable[[], T],
    show: Callable[[T], RenderableType],
    *,
    json: bool,
    watch: bool,
    shape: Callable[[T], object] = lambda found: found,
    line: Callable[[T], str] | None = None,
) -> None:
    """Print what `look` returns, once or every second until q or Ctrl-C. `shape` converts it for JSON.

    `line` puts it on one line, for a pipe that is watched; without it, `show` does.
    """

    def tell(indent: int = 2) -> None:
        if json:
            print_json(shape(look()), indent=indent)
        elif watch and line is not None:
            print(line(look()), flush=True)
        elif isinstance(shown := show(look()), str):
            print(shown, flush=True)
        else:
            console().print(shown)

    if not watch:
        tell()
        return
    with contextlib.suppress(KeyboardInterrupt):
        while json or not sys.stdout.isatty():
            tell(indent=-1)
            time.sleep(REFRESH_S)
        _watch(look, show)


def _watch(look: Callable[[], T], show: Callable[[T], RenderableType]) -> None:
    """Draw every second on the terminal. What does not fit is cut at the bottom."""
    from rich.live import Live  # Not at the top: it is slow to import, and few commands watch.

    with _keys() as pressed, Live(show(look()), console=console(), auto_refresh=False) as live:
        while not pressed(b"qQ", REFRESH_S):
            live.update(show(look()), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[bytes, float], bool]]:
    """Gives a function that waits for some seconds, and says whether one of these keys was pressed."""
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


# Cells


def of(key: str, style: str = "") -> Cell:
    return lambda row: styled("" if row[key] is None else plain(one_line(row[key])), style=style)


def state(word: object) -> Text:
    return styled(plain(word or ""), style=_STATE_STYLES.get(str(word), ""))


def time_of(key: str) -> Cell:
    return lambda row: styled(brief(row[key]), style="dim")


def count_of(key: str, style: str = "bold") -> Cell:
    return lambda row: styled(f"{row[key]:,}", style=style if row[key] else "dim")


def estimate_of(key: str) -> Cell:
    """A count, which the row may say is estimated."""
    return lambda row: styled(number(row[key], estimated=row["estimated"]), style="bold" if row[key] else "dim")
