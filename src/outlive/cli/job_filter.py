"""Which jobs a command means: the options of a filter, and ids by their first digits; and what the shell completes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import typer

from outlive import config, migrate, store
from outlive.cli.command import CommandContext
from outlive.errors import GONE, BadArguments, BatchNotFound, JobNotFound
from outlive.humanize import few, plain
from outlive.operations.selection import TEXTS, times
from outlive.states import State
from outlive.store import JobFilter

SOON = "connect_timeout=2 options='-c statement_timeout=500 -c search_path=pg_catalog'"


def names(query: str) -> Callable[[str], list[str]]:
    """Completes the names that a query finds. A database that does not answer soon completes nothing."""

    def complete(incomplete: str) -> list[str]:
        import psycopg  # Not at the top: only the shell needs it here.
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        try:
            settings = config.load()
            if settings.database_url is None:
                return []  # To start the embedded server takes too long.
            url = make_conninfo(migrate.address(settings), **conninfo_to_dict(SOON))
            with psycopg.connect(url) as connection:
                found = [name for (name,) in connection.execute(query.encode()).fetchall()]
        except Exception:  # The shell would print it into the line that a person is writing.
            return []
        return sorted(name for name in found if name.startswith(incomplete))[:100]

    return complete


TASKS = names("select name from outlive.tasks")
QUEUES = names("select name from outlive.queue_states")
SOURCES = names("select name from outlive.sources")
WORKERS = names("select distinct name from outlive.workers where state in ('active', 'stale', 'draining')")
SCHEDULES = names("select name from outlive.schedules")


class Filter(msgspec.Struct, frozen=True):
    """Options that choose jobs. A command with a parameter `filter` has them all."""

    state: Annotated[list[State] | None, _only("of this state; may be given several times.")] = None
    task: Annotated[str | None, _only("of this task.", TASKS)] = None
    queue: Annotated[str | None, _only("of this queue.", QUEUES)] = None
    source: Annotated[str | None, _only("of this source.", SOURCES)] = None
    worker: Annotated[str | None, _only("that this worker runs or has run.", WORKERS)] = None
    batch: Annotated[str | None, _only("of this batch.")] = None
    since: Annotated[str | None, _only("that came into their state within this time, e.g. 2h, or since 14:05.")] = None
    older_than: Annotated[
        str | None, _only("that have been in their state for this long, e.g. 30d, or since before 14:07.")
    ] = None
    text: Annotated[str | None, _only("with this text in task, error or arguments. Blanks don't count.")] = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)

    def resolved(self, context: CommandContext) -> JobFilter:
        return JobFilter(
            states=tuple(dict.fromkeys(self.state or ())),
            batch=None if self.batch is None else found_id(context, "batch", self.batch),
            **context.do(times({"--since": self.since, "--older-than": self.older_than})),
            **{name: getattr(self, name) or None for name in TEXTS},
        )


def unknown_name(context: CommandContext, wanted: JobFilter) -> str:
    """That there is no such task, queue or source, and which one may be meant. Empty: there is, or none was named."""
    from difflib import get_close_matches  # Not at the top: it is slow to import, and rarely needed.

    jobs = context.run(store.count_jobs())
    for option, listed in (
        ("task", store.list_tasks(limit=10_000)),
        ("queue", store.list_queues()),
        ("source", store.list_sources(limit=10_000)),
    ):
        name: str | None = getattr(wanted, option)
        if name is None:
            continue
        known = sorted({row["name"] for row in context.run(listed)} | {row[option] or "" for row in jobs})
        if name not in known:
            near = [one for one in known if one.endswith(f".{name}")] or get_close_matches(name, known, n=1)
            meant = f"; did you mean --{option} {plain(near[0])}?" if near else ""
            return f"there is no {option} {plain(name)}{meant}"
    return ""


def _only(what: str, complete: Callable[[str], list[str]] | None = None) -> Any:
    return typer.Option(help=f"Only jobs {what}", autocompletion=complete)


def found_id(context: CommandContext, thing: Literal["job", "batch"], text: str) -> UUID:
    """The id of a job or batch that begins with these digits. A whole id may be unknown; the caller says so."""
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
