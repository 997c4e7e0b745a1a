"""worker and up start a worker. reap runs the reaper of a worker as a command of its own."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlive import db, migrate
from outlive.cli import screen
from outlive.cli.command import CommandContext, LogFormat, Target, app, command
from outlive.config import Config

if TYPE_CHECKING:
    from outlive.worker.fleet.leftovers import Leftovers
    from outlive.worker.fleet.reaper import Reaper

Slots = Annotated[int | None, typer.Option(help="How many jobs to run at once. Default: one per core.")]
Queues = Annotated[str | None, typer.Option(help="Which queues to serve, separated by commas. Default: all.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", help="What this machine has, for tasks that need it. Give it once for each label."),
]
Batch = Annotated[bool, typer.Option("--batch", help="Stop when no job is left that can run now.")]
MaxTasks = Annotated[int | None, typer.Option(min=1, help="Stop after this many jobs.")]
Name = Annotated[str | None, typer.Option(help="The name of this worker. Default: host name and pid.")]
LogLevel = Annotated[
    str | None,
    typer.Option(
        metavar="LEVEL",
        help="debug (of jobs only with job_log_level=debug), info (a line for each job, at its end), warning or error. "
        "After it, levels of the worker's own lines or of what jobs say: info,outlive.worker=warning.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Log only warnings and errors: --log-level warning.")]


@command(app, example="worker shop.tasks:app --slots 8")
def worker(
    context: CommandContext,
    target: Target,
    slots: Slots = None,
    queues: Queues = None,
    label: Labels = None,
    name: Name = None,
    batch: Batch = False,
    max_tasks: MaxTasks = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    quiet: Quiet = False,
) -> None:
    """Run jobs, each in its own process, until SIGTERM or Ctrl-C."""
    logging: dict[str, Any] = {"quiet": quiet, "log_level": log_level, "log_format": log_format}
    own: dict[str, Any] = {"slots": slots, "queues": queues, "labels": label or None, "name": name}
    work(context, target, batch=batch, max_tasks=max_tasks, **own, **logging)


@command(app, example="up shop.tasks:app")
def up(
    context: CommandContext,
    target: Target,
    slots: Slots = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    quiet: Quiet = False,
) -> None:
    """Start everything on this machine: the database (embedded if none is configured), its schema, a worker, and the
    dashboard, if its extra is installed.
    """
    from outlive.cli.dashboard import beside_worker

    with ExitStack() as stack:
        dashboard = functools.cache(lambda *of: stack.enter_context(beside_worker(context, *of)))
        logging: dict[str, Any] = {"quiet": quiet, "log_level": log_level, "log_format": log_format}
        work(context, target, slots=slots, dashboard=dashboard, **logging)


def work(
    context: CommandContext,
    target: str,
    *,
    quiet: bool,
    log_level: str | None,
    dashboard: Callable[[str, str], None] | None = None,
    batch: bool = False,
    max_tasks: int | None = None,
    **flags: int | str | list[str] | None,
) -> None:
    """Run a worker until it is told to stop or has done its jobs; with a dashboard, bring the schema up to date."""
    from outlive.worker import supervisor
    from outlive.worker.claiming.bounds import Bounds

    def configure(settings: Mapping[str, object]) -> Config:
        """The configuration with the settings of the app, once it is imported."""
        config = context.config_of(settings, log_level="warning" if quiet else log_level, **flags)
        context.log_from(config.log_level, config.log_format)
        return config

    def database(config: Config) -> str:
        """The address of the database, once its schema is right."""
        with db.translated_errors():
            if dashboard is not None:
                with db.connect(migrate.address(config)) as connection:
                    migrate.migrate(connection)
            url = migrate.ready(config)
        if dashboard is not None:
            dashboard(url, config.log_format)
        return url

    if context.config_file is not None:
        os.environ["OUTLIVE_CONFIG"] = str(context.config_file.absolute())  # Jobs read it too.
    raise typer.Exit(supervisor.work(target, configure, database, Bounds(max_tasks, until_empty=batch)))


@command(app, example="reap --once")
def reap(
    context: CommandContext,
    once: Annotated[bool, typer.Option("--once", help="Reap once and exit, for cron.")] = False,
    log_format: LogFormat = None,
) -> None:
    """Free the jobs of dead workers and of expired leases, until Ctrl-C. Workers do this too."""
    config = context.config_of({}, log_format=log_format)
    context.log_from(config.log_level, config.log_format)
    with db.translated_errors():
        url = migrate.ready(config)
        freed = asyncio.run(_reap(config, url, once=once))
    if once:
        note = "a single run can't notice a jump of the database clock, and trusts it"
        screen.say(f"{freed} attempts of dead workers ended; {note}")


async def _reap(config: Config, url: str, *, once: bool) -> int:
    """Returns how many attempts were ended."""
    from outlive.worker.fleet.absences import MISSING_S
    from outlive.worker.fleet.leftovers import Leftovers
    from outlive.worker.fleet.reaper import Reaper
    from outlive.worker.reporting.alerts import LIMIT_S, Alerts
    from outlive.worker.reporting.telemetry import Telemetry
    from outlive.worker.session import Session
    from outlive.worker.wakeup import Wakeup

    reaper = Reaper(session := Session(url), config, Alerts())
    leftovers = Leftovers(session, Wakeup())
    telemetry = reaper.telemetry = Telemetry(config, config.name or "reaper")
    if once:
        await reaper.check()
        await asyncio.sleep(MISSING_S)
        await reaper.check()
        await leftovers.follow_up()
        await reaper.sweep(anyway=True)
    else:
        await _reap_until_stopped(config, reaper, leftovers)
    await reaper.alerts.finish(LIMIT_S if once else 2.0)
    await reaper.session.close()
    await telemetry.close()
    return reaper.attempts_ended


async def _reap_until_stopped(config: Config, reaper: Reaper, leftovers: Leftovers) -> None:
    from outlive.worker.limits import running_time
    from outlive.worker.loops import RETRY_SOON_S, forever
    from outlive.worker.reporting.monitoring import ReaperVitals, Systemd, monitored
    from outlive.worker.session import Session

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    scraped = Session(reaper.session.url, db.METRICS)
    vitals = ReaperVitals(reaper, scraped)
    systemd = Systemd(vitals)
    async with monitored(config, vitals, systemd):
        loops = {"reap": reaper.check_once, "follow": leftovers.run_once, "sweep": reaper.sweep_once}
        loops["clock"] = running_time.tick_once
        services = [asyncio.create_task(forever(name, loop, RETRY_SOON_S)) for name, loop in loops.items()]
        systemd.notify("READY=1")
        await stopping.wait()
        vitals.stopping = True
        systemd.notify("STOPPING=1")
        for service in services:
            service.cancel()
        reaper.session.hang_up()
        scraped.hang_up()
        await asyncio.wait(services)
    await vitals.database.close()
    await scraped.close()
