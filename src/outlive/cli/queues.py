"""queues: lists the queues, pauses and resumes them."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, Watch, app, command
from outlive.cli.screen import Column, Row, count_of, of, time_of
from outlive.errors import ConfigError

queues_app = typer.Typer(help="List the queues, pause and resume them.")
app.add_typer(queues_app, name="queues")
QUEUES = (
    Column("queue", of("name")),
    Column("state", lambda row: Text("paused", "yellow") if row["paused"] else Text("open", "green")),
    Column("waiting", count_of("waiting"), "right"),
    Column("ready", count_of("ready"), "right"),
    Column("running", count_of("running"), "right"),
    Column("blocked", count_of("blocked"), "right"),
    Column("quarantined", count_of("quarantined", "bold magenta"), "right"),
    Column("oldest ready", time_of("oldest_ready_at"), luxury=True),
)


@command(queues_app, how="callback")
def queues(context: CommandContext, group: typer.Context, json: Json = False, watch: Watch = False) -> None:
    """List the queues, pause and resume them."""

    def show(rows: Sequence[Row]) -> RenderableType:
        return screen.table(QUEUES, rows) if rows else Text("no queue has a job", style="dim")

    if group.invoked_subcommand is None:
        screen.listing(lambda: context.run(store.list_queues()), show, json=json, watch=watch)
    elif context.chosen:
        raise ConfigError(f"put the options after {group.invoked_subcommand}, not before it")


@command(queues_app)
def pause(context: CommandContext, name: Annotated[str, typer.Argument(help="The queue.")]) -> None:
    """Stop claiming the jobs of a queue. Running jobs continue."""
    known = {row["name"] for row in context.run(store.list_queues())}
    context.run(store.pause_queue(name))
    shown = screen.plain(name)
    hint = "" if name in known else " (it has no jobs: check the name)"
    screen.say(Text(f"queue {shown} is paused{hint}; `outlive queues resume {shown}` resumes it"))


@command(queues_app)
def resume(context: CommandContext, name: Annotated[str, typer.Argument(help="The queue.")]) -> None:
    """Claim the jobs of a queue again."""
    if not context.run(store.resume_queue(name)):
        paused = [row["name"] for row in context.run(store.list_queues()) if row["paused"]]
        screen.complain(f"queue {name} was not paused; the paused queues: {', '.join(paused) or 'none'}")
        raise typer.Exit(1)
    screen.say(Text(f"queue {screen.plain(name)} is resumed"))
