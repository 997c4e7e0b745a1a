"""reap: runs the reaper of a worker as a command of its own, beside the workers or from cron."""

import asyncio
import logging
import signal
from typing import Annotated, cast

import typer
from rich.text import Text

from outlive import db, logs, migrate
from outlive.cli import screen
from outlive.cli.command import CommandContext, app, command
from outlive.config import Config

Once = Annotated[bool, typer.Option("--once", help="Reap once and exit, for cron.")]


@command(app)
def reap(context: CommandContext, once: Once = False) -> None:
    """Free the jobs of dead workers and of expired leases, until Ctrl-C. Every worker does this too."""
    logs.configure(cast("logs.Format", context.config.log_format), level=logging.INFO)
    with db.translated_errors():
        url = migrate.ready(context.config)
        freed = asyncio.run(_once(context.config, url) if once else _for_ever(context.config, url))
    if once:
        note = "a single run can't notice a jump of the database clock, and trusts it"
        screen.say(Text(f"{freed} attempts of dead workers ended; {note}"))


async def _once(config: Config, url: str) -> int:
    from outlive.worker.alerts import LIMIT_S, Alerts
    from outlive.worker.reaper import SECOND_LOOK_S, Reaper
    from outlive.worker.session import Session

    reaper = Reaper(Session(url), config, Alerts())
    await reaper.check()
    await asyncio.sleep(SECOND_LOOK_S)
    await reaper.check()
    await reaper.sweep(anyway=True)
    await reaper.alerts.finish(LIMIT_S)
    await reaper.session.close()
    return reaper.freed


async def _for_ever(config: Config, url: str) -> int:
    from outlive.worker.alerts import Alerts
    from outlive.worker.loops import RETRY_SOON_S, forever
    from outlive.worker.reaper import Reaper
    from outlive.worker.session import Session

    reaper = Reaper(Session(url), config, Alerts())
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    services = [
        asyncio.create_task(forever(name, run_once, RETRY_SOON_S))
        for name, run_once in (("reap", reaper.check_once), ("sweep", reaper.sweep_once))
    ]
    await stopping.wait()
    for service in services:
        service.cancel()
    reaper.session.hang_up()
    await asyncio.wait(services)
    await reaper.alerts.finish(2.0)
    await reaper.session.close()
    return reaper.freed
