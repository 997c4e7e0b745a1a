"""What people see of the demo: a table that lives, or plain lines where nobody watches; then evidence and summary."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from rich.console import Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from outlive.cli import screen
from outlive.cli.life import evidence_of
from outlive.cli.screen import Column, Row
from outlive.model import Attempt
from outlive.states import Outcome, State

WIDTH = 10


@dataclass(frozen=True, slots=True)
class Seen:
    """A job at one moment; the attempts that ended, of those that are worth a line each."""

    id: UUID
    role: str
    state: State
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Accused:
    """A job that took processes down, and the last of those attempts."""

    id: UUID
    role: str
    state: str
    details: str | None
    times: int
    attempt: Attempt


class Audience(Protocol):
    """Who is told what happens."""

    def say(self, words: str, /) -> None: ...
    def see(self, seen: Sequence[Seen], /) -> None: ...


class Nobody:
    """Wants only the summary."""

    def say(self, words: str) -> None: ...
    def see(self, seen: Sequence[Seen]) -> None: ...


class Reader:
    """Reads line by line: each attempt that ended badly or at last well, and how many are done."""

    def __init__(self) -> None:
        self._told: Counter[UUID] = Counter()
        self._done = 0

    def say(self, words: str) -> None:
        screen.say(words)

    def see(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            for attempt in one.attempts[self._told[one.id] :]:
                screen.say(Text(f"{one.role:<{WIDTH}}attempt {attempt.attempt}  ").append_text(_ending(attempt)))
            self._told[one.id] = len(one.attempts)
        done = sum(one.state is State.SUCCEEDED for one in seen)
        if done // 10 > self._done // 10 or (done == len(seen) > self._done):
            screen.say(f"{done} of {len(seen)} have succeeded")
        self._done = done


class Watcher:
    """Watches a table that changes in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, words: str) -> None:
        self._live.console.print(words)

    def see(self, seen: Sequence[Seen]) -> None:
        self._live.update(_board(seen), refresh=True)


@contextmanager
def audience(*, json: bool) -> Iterator[Audience]:
    if json:
        yield Nobody()
    elif not sys.stdout.isatty():
        yield Reader()
    else:
        with Live(Text(), console=screen.console(), auto_refresh=False) as live:
            yield Watcher(live)


def _board(seen: Sequence[Seen]) -> RenderableType:
    """How many jobs are in each state, the healthy ones as dots, and a line for each of the others."""
    counts = Counter(one.state for one in seen)
    healthy = [one for one in seen if one.role == "resize"]
    dots = Text(f"{len(healthy)} healthy  ").append_text(
        Text().join(Text("●", style=str(screen.state(one.state).style)) for one in healthy)
    )
    head = Text("  ").join(Text(f"{counts[state]} ").append_text(screen.state(state)) for state in State)
    rows = [{"seen": one} for one in seen if one.role != "resize"]
    return Group(Text(), head, Text(), dots, Text(), screen.table(_COLUMNS, rows), Text())


def _of(cell: Callable[[Seen], Text]) -> Callable[[Row], Text]:
    return lambda row: cell(row["seen"])


_COLUMNS = (
    Column("job", _of(lambda one: Text(one.role, style="bold"))),
    Column("state", _of(lambda one: screen.state(one.state))),
    Column("ended", _of(lambda one: Text(str(len(one.attempts)))), "right"),
    Column("the last attempt", _of(lambda one: _ending(one.attempts[-1]) if one.attempts else Text()), shrink="fold"),
)


def _ending(attempt: Attempt) -> Text:
    text = screen.state(attempt.outcome)
    return text.append(f": {screen.plain(screen.one_line(attempt.error))}", style="not bold") if attempt.error else text


def evidence(accused: Sequence[Accused]) -> None:
    """Who did it, and what speaks for that."""
    out = screen.console()
    out.print(Rule("what took processes down, with the evidence"))
    for one in accused:
        head = Text(one.role, style="bold").append(f"  {one.id}  ", style="not bold dim")
        head.append_text(screen.state(one.state)).append(f"  {one.details or ''}", style="not bold")
        bad = Text(f"  {one.times} × ").append_text(screen.state(one.attempt.outcome))
        if one.attempt.outcome is Outcome.CRASHED and one.state == State.SUCCEEDED:
            bad.append(", then run again", style="not bold")
        out.print(head, bad, *evidence_of(one.attempt), Text(), sep="\n")


def summary(told: Mapping[str, object]) -> None:
    out = screen.console()
    out.print(Rule("summary"))
    for name, value in told.items():
        if name != "right":
            shown = ", ".join(_cause(one) for one in value) if isinstance(value, list) else value
            out.print(
                Text(f"{name.replace('_', ' '):<16}", style="dim").append(screen.plain(shown), style="not dim bold")
            )
    words = "every job is where it must be" if told["right"] else "the database says something else"
    out.print(Text(words, style="bold green" if told["right"] else "bold red"))


def _cause(killer: Mapping[str, object]) -> str:
    return f"{str(killer['task']).rpartition('.')[2]} ({killer['outcome']}, {killer['signal']}: {killer['details']})"
