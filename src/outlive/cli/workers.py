"""workers: lists the workers, and sets their slots and queues while they run."""

from __future__ import annotations

from typing import Annotated

import typer

from outlive import store
from outlive.cli import screen
from outlive.cli.command import CommandContext, command, group
from outlive.cli.lists import Limit, Rows
from outlive.cli.operators import WorkerName, told
from outlive.cli.queues import warn_of_unknown
from outlive.cli.screen import Column, Drawn, Listing, text, time_of
from outlive.errors import ConfigError
from outlive.humanize import size
from outlive.operations import facts
from outlive.operations.controls import size_of_worker

WORKERS = (
    Column("worker", lambda row: text(row["name"], (f"\n{row['id']}", "dim"))),
    Column("state", lambda row: text((row["state"], screen.WORKER_STYLES[row["state"]]))),
    Column("where", lambda row: text(f"{row['hostname']}, pid {row['pid']}"), shrink="fold", wide=True),
    Column("queues", lambda row: text(", ".join(row["queues"] or ["all"])), shrink="fold", wide=True),
    Column("labels", lambda row: text(", ".join(row["labels"] or [])), shrink="fold", wide=True),
    Column("running", lambda row: text(facts.busy(row)), "right"),
    Column("memory", lambda row: text(size(row["memory_bytes"]) if row["memory_bytes"] else ""), "right", wide=True),
    Column("started", time_of("started_at"), wide=True),
    Column("last seen", lambda row: text(screen.seen(row))),
)


workers_app = group("workers")


@command(workers_app, callback=True, example="workers --watch")
def workers(context: CommandContext, limit: Limit = 1000) -> Listing[Rows]:
    """List the workers, live ones first: what they serve and run, and when they were last seen; set their slots and
    queues.
    """

    def show(rows: Rows) -> Drawn:
        troubled = [f"{row['name']} starts no job: {row['trouble']}" for row in rows if row["trouble"]]
        troubled += [f"{row['name']} has old code: {row['reload_error']}" for row in rows if row["reload_error"]]
        notes = [text((words, "bold red")) for words in troubled]
        return screen.stacked(screen.table(WORKERS, rows), *notes) if rows else "no worker has run lately"

    return Listing(lambda: context.run(store.list_workers(limit=limit)), show)


@command(workers_app, "set", example="workers set web-7 --slots 8 --queues mail,default")
def set_(
    context: CommandContext,
    name: WorkerName,
    slots: Annotated[
        str | None, typer.Option(help="How many jobs it runs at once; those that share a process count as one.")
    ] = None,
    queues: Annotated[str | None, typer.Option(help="Which queues it serves, with commas; '' is all.")] = None,
) -> None:
    """Give a worker other slots or queues while it runs, until it stops. Jobs that run go on.

    It learns of this at once, or with its next heartbeat behind a pooler.
    """
    values = size_of_worker(slots, queues)
    if not values:
        raise ConfigError("workers set needs --slots or --queues: say what the worker is to have")
    warn_of_unknown(context, *values.get("queues", ()))
    told(context, "set_worker", name, values)
