"""batches: lists the batches and how far they are; shows, closes and cancels one."""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, ManyRows, command, group
from outlive.cli.job_filter import found_id
from outlive.cli.screen import Column, Drawn, Listing, Row, Text, count_of, of, text, time_of
from outlive.errors import no_batch
from outlive.operations import controls, facts

Id = Annotated[str, typer.Argument(help="The batch; the first digits of its id are enough.")]
_STYLES = {"open": "yellow", "closed": "bold blue"}


def _state(row: Row) -> Text:
    style = _STYLES.get(row["state"])
    return screen.state(row["state"]) if style is None else text((row["state"], style))


BATCHES = (
    Column("batch", of("id")),
    Column("name", of("name"), shrink="fold"),
    Column("state", _state),
    Column("jobs", count_of("jobs"), "right", spare=2),
    Column("ended", lambda row: text(facts.percent(row["progress"])), "right"),
    Column("failed", count_of("failed", "bold red"), "right", spare=1),
    Column("cancelled", count_of("cancelled"), "right", wide=True),
    Column("quarantined", count_of("quarantined", "bold magenta"), "right", spare=3),
    Column("opened", time_of("created_at"), wide=True),
)
batches_app = group("batches")


@command(batches_app, callback=True, example="batches --watch")
def batches(context: CommandContext, limit: ManyRows = 100) -> Listing[Sequence[Row]]:
    """List the batches, the newest first; show, close and cancel one."""
    return context.rows(store.list_batches(limit=limit), BATCHES, "there are no batches")


@command(batches_app, example="batches show ID")
def show(context: CommandContext, id: Id) -> Listing[Row]:
    """Show one batch: how many of its jobs have ended in which way, and its callbacks."""
    batch = found_id(context, "batch", id)
    return Listing(lambda: _batch(context, batch), _shown)


@command(batches_app, example="batches close ID")
def close(context: CommandContext, id: Id) -> None:
    """Close a batch whose block has failed: it is done when its jobs have ended, and calls back."""
    batch = _batch(context, found_id(context, "batch", id))["id"]
    context.audited(store.close_batch(batch), "close batch", {"batch": batch})
    _print_left(_batch(context, batch))


@command(batches_app, example="batches cancel ID")
def cancel(context: CommandContext, id: Id) -> None:
    """Close a batch and cancel its jobs. Running jobs are stopped by their workers."""
    batch = found_id(context, "batch", id)
    jobs = _batch(context, batch)["unfinished"]
    context.audited(store.close_batch(batch, cancelling=True), "cancel batch", {"batch": batch}, jobs=jobs)
    context.do(controls.cancel_jobs_of(batch))
    _print_left(_batch(context, batch))


def _batch(context: CommandContext, id: UUID) -> Row:
    found = context.run(store.batch(id))
    if not found:
        raise no_batch(id)
    return found[0]


def _print_left(row: Row) -> None:
    screen.say(f"batch {row['id']} is {row['state']}; {row['unfinished']:,} of {row['jobs']:,} jobs are left")


def _shown(row: Row) -> Drawn:
    lines = [text(f"{name}: {facts.words(parts)}") for name, parts in facts.of_batch(row)]
    return screen.stacked(text((row["name"], "bold"), f"  {row['id']}  ", _state(row)), *lines)
