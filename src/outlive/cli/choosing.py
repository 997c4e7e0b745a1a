"""Which jobs a command means: the options of a filter, and ids by their first digits. Questions, and long work."""

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
from outlive.cli.command import CommandContext
from outlive.errors import GONE, BadArguments, BatchNotFound, ConfigError, JobNotFound
from outlive.operations.selection import TEXTS
from outlive.states import State
from outlive.store import JobFilter
from outlive.wording import few

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
            batch=None if self.batch is None else found_id(context, "batch", self.batch),
            since_s=validation.optional(validation.seconds)("--since", self.since),
            older_s=older_s,
            **{name: getattr(self, name) or None for name in TEXTS},
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


def json_arguments(text: str) -> bytes:
    """The arguments of a job: by name, or in order."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadArguments(f"the arguments are not JSON ({error}); quote them like '{{\"a\": 1}}'") from None
    if not isinstance(value, dict | list):
        raise BadArguments(f"the arguments must be a JSON object or array, not {text[:50]}")
    return text.encode()


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal, and end the command if the answer is no. Without a terminal, --yes is the answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question}: this is not a terminal, so nothing was changed; give --yes if you mean it")
    if not typer.confirm(f"{question}?", err=True):
        screen.complain("nothing was changed")
        raise typer.Exit(1)


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
