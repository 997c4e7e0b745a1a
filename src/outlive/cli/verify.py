"""verify: looks through all jobs for what must never be, and says for how many of them it holds that none was lost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, app, command
from outlive.cli.screen import Column, count_of, of, time_of
from outlive.humanize import number

BATCH = 50_000
"""How many jobs a statement looks at: its snapshot is soon over."""
FIRST = UUID(int=0)
OF_JOBS = ("lost", "in two places", "ended twice", "begun again after a later attempt", "charged without a cause")
OVER_LIMIT, NOT_CALLED = "over the limit of its key", "done, but not called back"

LINES = (
    Column("none was", of("what")),
    Column("looked at", count_of("looked_at", "", zero=""), "right"),
    Column("since", time_of("since")),
    Column("found", count_of("found", "bold red", zero="green"), "right"),
)


@command(app, example="verify --json")
def verify(context: CommandContext, json: Json = False) -> None:
    """Look through all jobs for what must never be: a job that was lost, ended twice, or charged without a cause.

    It only reads, a portion of the jobs at a time, and may run from cron beside busy workers. Exit code 1 if something
    was found.
    """
    with _counting() as count:
        wrong, jobs, since = _look_at_jobs(context, count)
    keys, batches = context.run(store.verify_keys()), context.run(store.verify_batches())
    wrong += [(OVER_LIMIT, job) for _, job in keys.wrong] + [(NOT_CALLED, batch) for (batch,) in batches.wrong]
    found = Counter(what for what, _ in wrong)
    lines: list[dict[str, Any]] = [
        {"what": what, "looked_at": looked_at, "since": since, "found": found[what]}
        for what, looked_at in [
            *((what, jobs) for what in OF_JOBS),
            (OVER_LIMIT, keys.rows),
            (NOT_CALLED, batches.rows),
        ]
    ]
    if json:
        screen.print_json({"lines": lines, "wrong": [{"what": what, "id": one} for what, one in wrong]})
    else:
        screen.console().print(screen.table(LINES, lines))
        for what, one in wrong:
            where = "outlive batches" if what == NOT_CALLED else f"outlive show {one}"
            screen.say(
                (f"{one} ", "bold red"), f"is {what}: look at it with `{where}`, and report it with what that says"
            )
    raise typer.Exit(int(bool(wrong)))


def _look_at_jobs(
    context: CommandContext, count: Callable[[int], None]
) -> tuple[list[tuple[str, UUID]], int, datetime | None]:
    """What is wrong with which job, how many jobs there are, and since when."""
    wrong: list[tuple[str, UUID]] = []
    after, jobs, since = FIRST, 0, None
    while True:
        portion = context.run(store.verify_jobs(after, batch=BATCH))
        wrong += portion.wrong
        jobs += portion.jobs
        since = min(filter(None, (since, portion.since)), default=None)
        if portion.jobs < BATCH:
            return wrong, jobs, since
        after = portion.upto
        count(jobs)


@contextmanager
def _counting() -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how many jobs were looked at."""
    shown = sys.stderr.isatty()

    def count(jobs: int) -> None:
        if shown:
            print(f"\r{number(jobs)} jobs", end="", file=sys.stderr, flush=True)

    yield count
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
