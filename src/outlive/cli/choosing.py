"""Which jobs a command means: the options of a filter, ids by their first digits, and actions on all that match.

An action on many jobs takes them in portions. Each portion is a transaction, which also writes the audit.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import typer

from outlive import store, validation
from outlive.cli import completion, screen
from outlive.cli.command import CommandContext, operator
from outlive.errors import GONE, BadArguments, BatchNotFound, ConfigError, JobNotFound
from outlive.model import Change, new_job_id
from outlive.states import State
from outlive.store import JobFilter
from outlive.wording import few

PORTION = 500
NAMED = 20
"""How many unchanged jobs are listed by id; the rest are counted."""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


class Filter(msgspec.Struct, frozen=True):
    """Options that choose jobs. A command with a parameter `filter` has them all."""

    state: Annotated[list[State] | None, _only("of this state; may be given several times.")] = None
    task: Annotated[str | None, _only("of this task.", completion.tasks)] = None
    queue: Annotated[str | None, _only("of this queue.", completion.queues)] = None
    source: Annotated[str | None, _only("of this source.", completion.sources)] = None
    worker: Annotated[str | None, _only("that this worker runs or has run.", completion.workers)] = None
    batch: Annotated[str | None, _only("of this batch.")] = None
    since: Annotated[str | None, _only("that ended within this time, e.g. 2h, and unfinished ones made in it.")] = None
    text: Annotated[
        str | None,
        _only("with this text in task, error or arguments, among the newest 100,000. Blanks don't count."),
    ] = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)

    def resolved(self, context: CommandContext, *, older_s: float | None = None) -> JobFilter:
        return JobFilter(
            states=tuple(dict.fromkeys(self.state or ())),
            task=self.task,
            queue=self.queue,
            source=self.source,
            worker=self.worker,
            batch=None if self.batch is None else found_id(context, "batch", self.batch),
            since_s=validation.optional(validation.seconds)("--since", self.since),
            older_s=older_s,
            text=self.text or None,
        )


def _only(what: str, complete: Callable[[str], list[str]] | None = None) -> Any:
    return typer.Option(help=f"Only jobs {what}", autocompletion=complete)


def found_id(context: CommandContext, thing: Literal["job", "batch"], text: str) -> UUID:
    """The id of a job or batch that these digits begin. A whole id may be unknown; the caller says so."""
    digits = text.replace("-", "").lower()
    if not re.fullmatch("[0-9a-f]{1,32}", digits):
        raise BadArguments(
            f"{text!r} is not the id of a {thing}, nor its beginning: it has other characters than 0-9a-f"
        )
    if len(digits) == 32:
        return UUID(digits)
    several: Literal["jobs", "batches"] = "jobs" if thing == "job" else "batches"
    match context.run(store.with_prefix(several, digits)):
        case [one]:
            return one
        case []:
            missing = JobNotFound if thing == "job" else BatchNotFound
            raise missing(f"there is no {thing} whose id begins with {text}: {GONE}")
        case many:
            raise BadArguments(f"several {several} begin with {text}: {few(many)}; give more digits")


def matching(
    context: CommandContext, wanted: JobFilter, *, limit: int, most: int | None = None, counting: bool = False
) -> Iterator[store.Found]:
    """The jobs that match, page by page, of `limit` jobs each and `most` in all."""
    past, left = None, sys.maxsize if most is None else most
    while left > 0:
        found = context.run(store.find_jobs(wanted, past=past, limit=min(limit, left), counting=counting))
        yield found
        left -= found.count
        past = found.next
        if past is None:
            return


def first(context: CommandContext, wanted: JobFilter, *, limit: int) -> list[UUID]:
    return [id for found in matching(context, wanted, limit=limit, most=limit) for id in found.ids]


def count(context: CommandContext, wanted: JobFilter) -> int:
    """How many jobs match; more than `MOST_COUNTED`: there are more than that."""
    most = store.MOST_COUNTED + 1
    return sum(found.count for found in matching(context, wanted, limit=most, most=most, counting=True))


def counted(jobs: int) -> str:
    if jobs > store.MOST_COUNTED:
        return f"more than {store.MOST_COUNTED:,} jobs"
    return screen.counted(jobs, "job")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal, and end the command if the answer is no. Without a terminal, --yes is the answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question}: this is not a terminal, so nothing was changed; give --yes if you mean it")
    if not typer.confirm(f"{question}?", err=True):
        screen.complain("nothing was changed")
        raise typer.Exit(1)


class Done(msgspec.Struct):
    """What an action has done so far. All changes are kept only for JSON."""

    keeps_all: bool
    jobs: int = 0
    changed: int = 0
    stopping: int = 0
    interrupted: bool = False
    changes: list[Change] = []
    unchanged: list[Change] = []

    def add(self, changes: list[Change]) -> None:
        self.jobs += len(changes)
        self.changed += sum(one.changed for one in changes)
        self.stopping += sum(one.changed and one.state == State.RUNNING for one in changes)
        self.changes += changes if self.keeps_all else []
        self.unchanged += [one for one in changes if not one.changed][: NAMED - len(self.unchanged)]


def act(
    context: CommandContext,
    verb: store.Verb,
    portions: Iterator[list[UUID]],
    *,
    what: object = None,
    total: int | None,
    json: bool,
) -> Done:
    """Apply a verb, a portion of jobs at a time. Ctrl-C ends it after the portion that is under way."""
    done, entry, who = Done(json), new_job_id(), operator()
    with progress(verb, total) as advance, interruptible() as asked_to_stop:
        for ids in portions:
            changes = context.run(store.act(verb, ids, who=who, what=what, entry=entry)) if ids else []
            by_id = {change.id: change for change in changes}
            done.add([by_id.get(id, Change(id, "unknown", False, "there is no such job")) for id in ids])
            advance(len(ids))
            if asked_to_stop():
                done.interrupted = True
                break
    return done


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed. The second Ctrl-C interrupts as usual."""
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
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
