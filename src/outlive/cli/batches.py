"""batches: lists the batches and how far they are; shows, closes and cancels one."""

from typing import Annotated
from uuid import UUID

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from outlive import store
from outlive.cli import screen
from outlive.cli.choosing import found_id
from outlive.cli.command import LOOK, CommandContext, Json, ManyRows, Watch, app, command
from outlive.cli.screen import Column, Row, count_of, of, table_or, time_of
from outlive.errors import no_batch
from outlive.operations.controls import cancel_jobs_of

Id = Annotated[str, typer.Argument(help="The batch; the first digits of its id are enough.")]
_STYLES = {"open": "yellow", "closed": "bold blue"}

batches_app = typer.Typer()
app.add_typer(batches_app, name="batches", rich_help_panel=LOOK)


def _state(row: Row) -> Text:
    style = _STYLES.get(row["state"])
    return screen.state(row["state"]) if style is None else Text(row["state"], style=style)


def _percent(row: Row) -> Text:
    """Rounded down: 100 % means that no job is left."""
    return Text(f"{int(row['progress'] * 100)} %")


BATCHES = (
    Column("batch", of("id")),
    Column("name", of("name"), shrink="fold"),
    Column("state", _state),
    Column("jobs", count_of("jobs"), "right", spare=2),
    Column("ended", _percent, "right"),
    Column("failed", count_of("failed", "bold red"), "right", spare=1),
    Column("cancelled", count_of("cancelled"), "right", luxury=True),
    Column("quarantined", count_of("quarantined", "bold magenta"), "right", spare=3),
    Column("opened", time_of("created_at"), luxury=True),
)


@command(batches_app, callback=True)
def batches(
    context: CommandContext, group: typer.Context, limit: ManyRows = 100, json: Json = False, watch: Watch = False
) -> None:
    """List the batches, the newest first; show, close and cancel one.

    Example: outlive batches --watch
    """
    if not context.has_subcommand(group):
        show = table_or("there are no batches", BATCHES)
        screen.listing(lambda: context.run(store.list_batches(limit=limit)), show, json=json, watch=watch)


@command(batches_app)
def show(context: CommandContext, id: Id, json: Json = False, watch: Watch = False) -> None:
    """Show one batch: how many of its jobs have ended in which way, and its callbacks.

    Example: outlive batches show ID
    """
    batch = found_id(context, "batch", id)
    screen.listing(lambda: _batch(context, batch), _facts, json=json, watch=watch)


@command(batches_app)
def close(context: CommandContext, id: Id) -> None:
    """Close a batch whose block has failed: it is done when its jobs have ended, and calls back.

    Example: outlive batches close ID
    """
    batch = _batch(context, found_id(context, "batch", id))["id"]
    context.audited(store.close_batch(batch), "close batch", {"batch": batch})
    _tell(_batch(context, batch))


@command(batches_app)
def cancel(context: CommandContext, id: Id) -> None:
    """Close a batch and cancel its jobs. Running jobs are stopped by their workers.

    Example: outlive batches cancel ID
    """
    batch = found_id(context, "batch", id)
    jobs = _batch(context, batch)["unfinished"]
    context.audited(store.close_batch(batch, cancelling=True), "cancel batch", {"batch": batch}, jobs=jobs)
    context.do(cancel_jobs_of(batch))
    _tell(_batch(context, batch))


def _batch(context: CommandContext, id: UUID) -> Row:
    found = context.run(store.batch(id))
    if not found:
        raise no_batch(id)
    return found[0]


def _tell(row: Row) -> None:
    screen.say(Text(f"batch {row['id']} is {row['state']}; {row['unfinished']:,} of {row['jobs']:,} jobs are left"))


def _facts(row: Row) -> RenderableType:
    head = Text(screen.plain(row["name"]), style="bold").append(f"  {row['id']}  ", style="not bold")
    times = [("opened", "created_at"), ("closed", "closed_at"), ("cancelled", "cancelled_at"), ("done", "done_at")]
    ended = [f"{row[name]:,} {name}" for name in ("succeeded", "failed", "cancelled", "quarantined", "unfinished")]
    lines = [
        head.append_text(_state(row)),
        Text(", ".join(f"{word} {screen.moment(row[key])}" for word, key in times if row[key]), style="dim"),
        Text(f"{row['jobs']:,} jobs: {', '.join(ended)}"),
    ]
    for event in ("success", "failure", "done"):
        if row[f"on_{event}"]:
            at = row[f"{event}_called_at"]
            when = f"enqueued {screen.moment(at)}" if at else "not enqueued"
            lines.append(Text(f"on_{event}: job {row[f'on_{event}']}, {when}"))
    return Group(*lines)
