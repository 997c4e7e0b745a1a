"""doctor: checks this machine, the server's settings, the schema, jobs and workers. Each problem has a next step."""

import os
import time
from collections.abc import Iterator

import typer
from rich.text import Text

from outlive import config, db, migrate, store
from outlive.cli import screen
from outlive.cli.command import SET_UP, CommandContext, Json, app, command
from outlive.cli.machine import judge_machine
from outlive.errors import SchemaMismatch
from outlive.operations import findings, selection
from outlive.operations.findings import Finding
from outlive.states import State
from outlive.worker import cgroups

_MARKS = {"fine": ("✓", "green"), "advice": ("!", "yellow"), "problem": ("✗", "bold red")}


@command(app, panel=SET_UP)
def doctor(context: CommandContext, json: Json = False) -> None:
    """Check this machine, the database, the jobs and the workers. Exit code 1 if there is a problem.

    Example: outlive doctor --json
    """
    found = list(examine(context))
    if json:
        screen.print_json([{"level": one.level, "what": one.what, "next": one.next} for one in found])
    else:
        for finding in found:
            screen.say(_line(finding))
    if any(finding.level == "problem" for finding in found):
        raise typer.Exit(1)


def _line(finding: Finding) -> Text:
    mark, style = _MARKS[finding.level]
    line = Text(f"{mark} ", style=style).append(screen.plain(finding.what), style="default")
    return line.append(f"\n    → {screen.plain(finding.next)}", style="not bold cyan") if finding.next else line


def examine(context: CommandContext) -> Iterator[Finding]:
    """All findings. A database that can't be reached is no finding but an error (exit code 4)."""
    file = config.file_in_force(context.config_file)
    yield Finding("fine", f"settings are read from {file.absolute()}" if file else "no outlive.toml is in use")
    connection = context.connection
    with db.translated_errors():
        if context.config.database_url is None:
            yield Finding(
                "advice",
                f"jobs are in {context.place}",
                "set OUTLIVE_DATABASE_URL to share the jobs with other machines",
            )
            migrate.migrate(connection)
        else:
            yield Finding("fine", f"{context.place}, answers as {connection.info.user}")
        try:
            migrate.check_encoding(connection)
            migrate.check(connection, context.config.database_url)
        except SchemaMismatch as error:
            what, _, hint = str(error).partition(": ")
            yield Finding("problem", what, hint)
            return
        yield Finding("fine", f"the schema has version {migrate.VERSION}")
    if db.pooled(connection):
        yield Finding(
            "advice",
            "a pooler in transaction mode is between here and the server: a worker notices jobs and deaths later",
            "give workers the address of the server itself, or a pool in session mode",
        )
    [health] = context.run(store.health())
    yield _compared_clocks(context)
    yield from findings.judge_server(health)
    yield from findings.judge_vacuum(health)
    queues, workers = context.run(store.list_queues()), context.run(store.list_workers())
    lanes, sources = context.run(store.list_lanes(limit=10_000)), context.run(store.list_sources())
    schedules = context.run(store.list_schedules())
    yield from findings.judge_work(health, queues, workers, lanes, sources, schedules)
    failed = store.JobFilter(states=(State.FAILED,), since_s=findings.DAY_S)
    yield findings.judge_failures(context.do(selection.count(failed)))
    yield from judge_machine(context.config.slots or os.cpu_count() or 1)
    yield judge_limits(cgroups.find())


def _compared_clocks(context: CommandContext) -> Finding:
    before = time.time()
    there = context.run(store.clock())
    after = time.time()
    return findings.judge_clock(there - (before + after) / 2, doubt_s=(after - before) / 2)


def judge_limits(place: cgroups.Place | None) -> Finding:
    """How a worker that is started like this command enforces memory limits."""
    if place is None:
        return Finding("fine", "memory is measured every 50 ms: no cgroup is writable here")
    return Finding("fine", f"memory is limited by {place} for a worker started like this, and measured every 50 ms")
