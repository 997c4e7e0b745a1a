"""queues: lists the queues, pauses and resumes them."""

import sys
from typing import Annotated

import typer
from rich.text import Text

from outlive import store
from outlive.cli import choosing, completion, screen
from outlive.cli.command import LOOK, CommandContext, Json, Watch, app, command
from outlive.cli.screen import Column, count_of, estimate_of, of, table_or, time_of
from outlive.validation import identifier

Name = Annotated[str, typer.Argument(help="The queue.", autocompletion=completion.queues)]

MOST_NAMED = 10

queues_app = typer.Typer()
app.add_typer(queues_app, name="queues", rich_help_panel=LOOK)
QUEUES = (
    Column("queue", of("name")),
    Column("state", lambda row: Text("paused", "yellow") if row["paused"] else Text("open", "green")),
    Column("waiting", estimate_of("waiting"), "right"),
    Column("ready", estimate_of("ready"), "right"),
    Column("running", count_of("running"), "right"),
    Column("blocked", count_of("blocked"), "right"),
    Column("quarantined", count_of("quarantined", "bold magenta"), "right"),
    Column("oldest ready", time_of("oldest_ready_at"), luxury=True),
)


@command(queues_app, callback=True)
def queues(context: CommandContext, group: typer.Context, json: Json = False, watch: Watch = False) -> None:
    """List the queues; pause and resume them.

    Example: outlive queues --watch
    """
    if not context.has_subcommand(group):
        show = table_or("no queue has a job", QUEUES)
        screen.listing(lambda: context.run(store.list_queues()), show, json=json, watch=watch)


@command(queues_app)
def pause(context: CommandContext, name: Name, yes: choosing.Yes = False) -> None:
    """Stop claiming the jobs of a queue. Running jobs continue.

    Example: outlive queues pause slow
    """
    known = {row["name"] for row in context.run(store.list_queues())}
    known |= {queue for row in context.run(store.list_workers()) for queue in row["queues"] or ()}
    shown = screen.plain(name)
    if name not in known:
        identifier("the name of a queue", name)
        others = f"; there are {', '.join(sorted(known)[:MOST_NAMED])}" if known else ""
        screen.complain(f"no job is in a queue {shown}, and no worker names it: check the name{others}")
        if sys.stdin.isatty():  # A script may pause a queue before its first job.
            choosing.confirm(f"pause {shown} all the same", yes=yes)
    context.control("pause_queue", name)


@command(queues_app)
def resume(context: CommandContext, name: Name) -> None:
    """Claim the jobs of a queue again.

    Example: outlive queues resume slow
    """
    if not context.control("resume_queue", name):
        paused = [row["name"] for row in context.run(store.list_queues()) if row["paused"]]
        screen.complain(f"queue {name} was not paused; the paused queues: {', '.join(paused) or 'none'}")
        raise typer.Exit(1)
