"""drain: tells a worker to finish its jobs and stop, wherever it runs, and waits until it is gone."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from outlive import store
from outlive.cli import completion, screen
from outlive.cli.command import ACT, CommandContext, app, command
from outlive.errors import WorkerNotFound

EVERY_S = 0.5


@command(app, panel=ACT)
def drain(
    context: CommandContext,
    name: Annotated[
        str, typer.Argument(help="The worker, as `outlive workers` names it.", autocompletion=completion.workers)
    ],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the worker is gone.")] = True,
) -> None:
    """Tell a worker to take no more jobs, finish those that it runs, and stop.

    It learns of this at once, or with its next heartbeat behind a pooler. Ctrl-C only ends the waiting.

    Example: outlive drain web-7 --no-wait
    """
    ids = context.control("drain_worker", name)
    if not ids:
        rows = context.run(store.list_workers())
        alive = sorted({row["name"] for row in rows if row["state"] not in ("dead", "stopped")})
        raise WorkerNotFound(f"no worker {name} is alive; these are: {', '.join(alive[:10]) or 'no worker at all'}")
    told = None
    while wait:
        mine = [row for row in context.run(store.list_workers(limit=10_000)) if row["id"] in ids]
        left = [row for row in mine if row["state"] not in ("dead", "stopped")]
        if not left:
            if any(row["state"] == "dead" for row in mine):
                screen.complain(f"{name} died before it had finished; its jobs run elsewhere")
                raise typer.Exit(1)
            screen.say(screen.styled(f"{screen.plain(name)} has stopped"))
            return
        if (jobs := sum(row["running"] for row in left)) != told:
            screen.say(f"{screen.counted(jobs, 'job')} still running")
            told = jobs
        time.sleep(EVERY_S)
