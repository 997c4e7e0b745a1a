"""verify: looks through all jobs for what must never be, and says for how many of them it holds that none was lost."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any
from uuid import UUID

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, app, command
from outlive.cli.screen import Column, count_of, of, time_of

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
    wrong, jobs, since = _look_at_jobs(context)
    keys, batches = context.run(store.verify_keys()), context.run(store.verify_batches())
    wrong += [(OVER_LIMIT, job) for _, job in keys.wrong] + [(NOT_CALLED, batch) for (batch,) in batches.wrong]
    found = Counter(what for what, _ in wrong)
    looked_at = {**dict.fromkeys(OF_JOBS, jobs), OVER_LIMIT: keys.rows, NOT_CALLED: batches.rows}
    lines: list[dict[str, Any]] = [
        {"what": what, "looked_at": rows, "since": since, "found": found[what]} for what, rows in looked_at.items()
    ]
    if json:
        screen.print_json({"lines": lines, "wrong": [{"what": what, "id": one} for what, one in wrong]})
    else:
        screen.console().print(screen.table(LINES, lines))
        for what, one in wrong:
            where = "outlive batches" if what == NOT_CALLED else f"outlive show {one}"
            cure = f"look at it with `{where}`, and report it with what that says"
            screen.say((f"{one} ", "bold red"), f"is {what}: {cure}")
    raise typer.Exit(int(bool(wrong)))


def _look_at_jobs(context: CommandContext) -> tuple[list[tuple[str, UUID]], int, datetime | None]:
    """What is wrong with which job, how many jobs there are, and since when. A terminal shows how far it is."""
    wrong: list[tuple[str, UUID]] = []
    after, jobs, since = FIRST, 0, None
    with screen.progress("verify", None) as advance:
        while True:
            portion = context.run(store.verify_jobs(after, batch=BATCH))
            wrong += portion.wrong
            jobs += portion.jobs
            since = min(filter(None, (since, portion.since)), default=None)
            if portion.jobs < BATCH:
                return wrong, jobs, since
            after = portion.upto
            advance(portion.jobs)
