"""worker and up: start a worker."""

import logging
import os
from typing import Annotated, cast

import typer

from outlive import db, logs, migrate
from outlive.cli.command import CommandContext, app, command

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is, e.g. shop.tasks:app.")]
Slots = Annotated[int | None, typer.Option("--slots", help="How many jobs to run at once. Default: one per core.")]
Queues = Annotated[
    str | None, typer.Option("--queues", help="Which queues to serve, separated by commas. Default: all.")
]
Name = Annotated[str | None, typer.Option("--name", help="The name of this worker. Default: host name and pid.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Log only warnings and errors.")]


@command(app)
def worker(
    context: CommandContext,
    target: Target,
    slots: Slots = None,
    queues: Queues = None,
    name: Name = None,
    quiet: Quiet = False,
) -> None:
    """Run jobs, each in its own process, until SIGTERM or Ctrl-C."""
    work(context, target, slots=slots, queues=queues, name=name, quiet=quiet)


@command(app)
def up(context: CommandContext, target: Target, slots: Slots = None, quiet: Quiet = False) -> None:
    """Start everything on this machine: the database (embedded if none is configured), its schema, and a worker."""
    work(context, target, slots=slots, queues=None, name=None, quiet=quiet, migrating=True)


def work(
    context: CommandContext,
    target: str,
    *,
    slots: int | None,
    queues: str | None,
    name: str | None,
    quiet: bool,
    migrating: bool = False,
) -> None:
    from outlive.worker import supervisor

    def database(app_url: str | None) -> str:
        """The address of the database. The worker asks after it has imported the app, which may name its own."""
        config = context.config_of(app_url)
        with db.translated_errors():
            if migrating:
                with db.connect(migrate.address(config)) as connection:
                    migrate.migrate(connection)
            return migrate.ready(config)

    if context.config_file is not None:
        os.environ["OUTLIVE_CONFIG"] = str(context.config_file.absolute())  # Jobs read it too.
    level = logging.WARNING if quiet else logging.INFO
    config = context.reconfigured(slots=slots, queues=queues, name=name)
    logs.configure(cast("logs.Format", config.log_format), level=level)
    raise typer.Exit(supervisor.work(target, config, database))
