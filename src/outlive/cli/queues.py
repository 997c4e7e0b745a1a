"""queues: lists the queues, pauses and resumes them."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from outlive import store
from outlive.cli import job_filter, screen
from outlive.cli.command import CommandContext, Yes, command, confirm, group
from outlive.cli.screen import Column, Listing, Row, Text, count_of, of, text, time_of
from outlive.errors import OutliveError
from outlive.humanize import brief
from outlive.validation import identifier

MOST_NAMED = 10
Name = Annotated[str, typer.Argument(help="The queue.", autocompletion=job_filter.QUEUES)]


def _state(row: Row, since: str = "") -> Text:
    return text((f"paused{since}", "yellow") if row["paused"] else ("open", "green"))


QUEUES = (
    Column("queue", of("name")),
    Column("state", lambda row: _state(row, f" since {brief(row['paused_at'])}"), narrow=lambda row: _state(row)),
    Column("waiting", count_of("waiting", rough="estimated"), "right"),
    Column("ready", count_of("ready", rough="ready_estimated"), "right"),
    Column("running", count_of("running"), "right"),
    Column("blocked", count_of("blocked"), "right"),
    Column("suspended", count_of("suspended", rough="estimated"), "right", spare=1),
    Column("quarantined", count_of("quarantined", "bold magenta"), "right"),
    Column("oldest ready", time_of("oldest_ready_at"), wide=True),
)
queues_app = group("queues")


@command(queues_app, callback=True, example="queues --watch")
def queues(context: CommandContext) -> Listing[Sequence[Row]]:
    """List the queues; pause and resume them."""
    return context.rows(store.list_queues(), QUEUES, "no queue is known yet")


@command(queues_app, example="queues pause slow")
def pause(context: CommandContext, name: Name, yes: Yes = False) -> None:
    """Stop claiming the jobs of a queue, within three seconds on every worker. Running jobs continue."""
    identifier("the name of a queue", name)
    if warn_of_unknown(context, name) and sys.stdin.isatty():  # A script may pause a queue before its first job.
        confirm(f"pause {name} all the same", yes=yes)
    context.control("pause_queue", name)


def warn_of_unknown(context: CommandContext, *names: str) -> bool:
    """Say which of these queues have no job, and are those of no task and no worker."""
    known = {row["name"] for row in context.run(store.list_queues())}
    others = f"; there are {', '.join(sorted(known)[:MOST_NAMED])}" if known else ""
    for name in (unknown := [one for one in names if one not in known]):
        screen.say(f"no job is in a queue {name} yet, and no worker names it: check the name{others}")
    return bool(unknown)


@command(queues_app, example="queues resume slow")
def resume(context: CommandContext, name: Name) -> None:
    """Claim the jobs of a queue again."""
    if not context.control("resume_queue", name):
        paused = [row["name"] for row in context.run(store.list_queues()) if row["paused"]]
        raise OutliveError(f"queue {name} was not paused; the paused queues: {', '.join(paused) or 'none'}")
