"""The output of the demo: live tables on a terminal, plain lines elsewhere; then the evidence and the summary."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from outlive import db, store
from outlive.cli import screen
from outlive.cli.demo.snapshot import Snapshot
from outlive.cli.screen import Column, Row
from outlive.cli.show import evidence_of
from outlive.cli.sources import SOURCES
from outlive.states import Outcome, State

FEWEST_EVENTS = 6
"""Tables that leave less room for events are left out."""
STEPS = 10
SIDE_BY_SIDE = 120
_WORKER_STYLES = {"active": "green", "dead": "bold red"}


class Audience(Protocol):
    def say(self, words: str | Text, /, *, routine: bool = False) -> None: ...
    def see(self, seen: Snapshot, total: int, /) -> None: ...


class Lines:
    """Prints a line for each event, and for every tenth part of the work; nothing if only the summary is wanted."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._step = 0

    def say(self, words: str | Text, *, routine: bool = False) -> None:
        if not self._silent:
            screen.say(words)

    def see(self, seen: Snapshot, total: int) -> None:
        step = STEPS * seen.finished() // max(1, total)
        if step > self._step:
            self._step = step
            self.say(f"{seen.finished()} of {total} jobs are done")


class Board:
    """Shows tables that change in place, and below them as many of the last events as fit."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._events: list[tuple[Text, bool]] = []
        """Each with whether it is routine."""
        self._tables: list[RenderableType] = []

    def say(self, words: str | Text, *, routine: bool = False) -> None:
        line = words if isinstance(words, Text) else Text(words)
        line.no_wrap, line.overflow = True, "ellipsis"
        self._events.append((line, routine))
        self._live.update(self.whole(), refresh=True)

    def see(self, seen: Snapshot, total: int) -> None:
        self._tables = _tables(seen, total, wide=self._live.console.width >= SIDE_BY_SIDE)
        self._live.update(self.whole(), refresh=True)

    def whole(self) -> RenderableType:
        """As many tables as leave room for some events, and the events: the newest, and those that are not routine."""
        console = self._live.console
        left = console.height - 2  # The rule between them, and the line of the cursor.
        tables: list[RenderableType] = []
        for table in self._tables:
            left -= (lines := len(console.render_lines(table)))
            if left < FEWEST_EVENTS:
                left += lines
                break
            tables.append(table)
        while len(self._events) > left:
            routine = (n for n, (_, routine) in enumerate(self._events[:-1]) if routine)
            del self._events[next(routine, 0)]
        return Group(*tables, Rule("what happens", style="dim"), *(line for line, _ in self._events))


@contextmanager
def audience(*, json: bool) -> Iterator[Audience]:
    if json or not sys.stdout.isatty():
        yield Lines(silent=json)
    else:
        with Live(Text(), console=screen.console(), auto_refresh=False) as live:
            yield Board(live)


def _tables(seen: Snapshot, total: int, *, wide: bool) -> list[RenderableType]:
    """What the demo shows of the database, the most important first."""
    bar = Table.grid(padding=(0, 1))
    head = Text(f"{seen.finished()} of {total} jobs  ", style="bold")
    bar.add_row(head, ProgressBar(total=max(1, total), completed=seen.finished(), width=50))
    jobs = screen.table(
        _JOBS, [{"task": task, **dict.fromkeys(_SHOWN, 0), **counts} for task, counts in sorted(seen.counts.items())]
    )
    workers = screen.table(_WORKERS, seen.workers[-3:])
    sources = screen.table(_SOURCES, seen.sources)
    first = Group(Rule("outlive: coin prices, while things go wrong"), bar)
    if not wide:
        return [first, jobs, workers, sources]
    pair = Table.grid(padding=(0, 6))
    pair.add_row(jobs, workers)
    return [first, Text(), pair, Text(), sources]


_SHOWN = (State.PENDING, State.RUNNING, State.RETRYABLE, State.SUCCEEDED, State.QUARANTINED)


def _slots(row: Row) -> Text:
    """A dot for each slot, filled while the slot runs a job."""
    if row["state"] != "active":
        return Text()
    return Text("●" * row["running"], style="bold blue").append(
        "○" * max(0, row["slots"] - row["running"]), style="dim"
    )


_JOBS = (
    Column("jobs of", screen.of("task", "bold")),
    *(Column(state, screen.count_of(state, str(screen.state(state).style)), "right") for state in _SHOWN),
)
_WORKERS = (
    Column("worker", lambda row: Text(f"pid {row['pid']}")),
    Column("state", lambda row: Text(row["state"], style=_WORKER_STYLES.get(row["state"], "dim"))),
    Column("jobs", _slots),
)
_SOURCES = (
    Column("source", screen.of("name", "bold")),
    *(column for column in SOURCES if column.title in ("breaker", "rate", "tokens", "failures")),
)


def bad_end(row: Row) -> Text:
    """A line about an attempt that did not succeed."""
    text = Text(screen.plain(f"{row['job']}, attempt {row['attempt']}: ")).append_text(screen.state(row["outcome"]))
    if row["error"] and row["outcome"] != Outcome.LOST:
        text.append(f" ({screen.plain(screen.one_line(row['error']))})", style="dim")
    return text.append(", in quarantine", style="bold magenta") if row["state"] == State.QUARANTINED else text


def is_routine(row: Row) -> bool:
    """Whether it is a failure that is simply retried."""
    return row["outcome"] in (Outcome.FAILED, Outcome.LOST) and row["state"] != State.QUARANTINED


def breaker(name: str, *, opened: bool) -> Text:
    words = "opens: its jobs wait, and other jobs go on" if opened else "closes: the probe was answered"
    return Text(f"the breaker of {name} ").append(words, style="bold red" if opened else "green")


def kill(pid: int, jobs: int) -> Text:
    return Text(f"kill -9 {pid}", style="bold red").append(f": a worker that runs {jobs} jobs", style="not bold")


def ending(connection: db.Connection, found: Mapping[str, Any], *, json: bool, keep: bool) -> None:
    """What the demo has found, and where to see more of it."""
    if json:
        screen.print_json(found)
        return
    evidence(connection)
    summary(found)
    if not keep:
        screen.say(Text("`outlive demo --keep` keeps all this until Ctrl-C, and shows it on a dashboard", "dim"))


def link(line: str) -> None:
    """The address of the dashboard. Standard output may be read by a program."""
    print(f"everything stays until Ctrl-C; see what happened, or release a killer:\n{line}", file=sys.stderr)


def evidence(connection: db.Connection) -> None:
    """The jobs in quarantine, with their last attempts."""
    out = screen.console()
    out.print(Rule("in quarantine, with the evidence"))
    for row in db.run(connection, store.list_killers()):
        head = Text(f"{row['task'].rpartition('.')[2]} {row['source']}", style="bold")
        head.append(f"  {row['id']}  ", style="not bold dim").append(row["details"] or "", style="not bold magenta")
        bad = [one for one in db.run(connection, store.list_attempts(row["id"])) if one.outcome == row["outcome"]]
        out.print(head, *evidence_of(bad[-1]), Text(), sep="\n")


def summary(found: Mapping[str, Any]) -> None:
    out = screen.console()
    out.print(Rule("summary"))
    for name, value in found.items():
        if name not in ("right", "wrong"):
            shown = screen.plain(_shown(name, value))
            out.print(Text(f"{name.replace('_', ' '):<20}", style="dim").append(shown, style="not dim bold"))
    for words in found["wrong"]:
        out.print(Text(f"wrong: {screen.plain(words)}", style="bold red"))
    if found["right"]:
        out.print(Text("checked against the database: every job and every price is as it must be", "bold green"))


def _shown(name: str, value: Any) -> object:
    match name:
        case "quarantined":
            jobs = [(one["task"].rpartition(".")[2], one) for one in value]
            return ", ".join(f"{task} {one['source']} ({one['outcome']}, {one['signal']})" for task, one in jobs)
        case "workers_lost":
            words = "1 with {jobs} running, noticed in {noticed_s} s, replaced in {replaced_s} s"
            return ", ".join(words.format(**one) for one in value)
        case "breaker":
            return "{source}: opened {opened}, closed {closed}".format(**value)
    return value
