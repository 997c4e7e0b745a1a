"""doctor: checks the server's settings, the schema, jobs and workers. Each problem comes with the next step."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import typer
from rich.text import Text

from outlive import config, db, migrate, store
from outlive.cli import screen
from outlive.cli.command import CommandContext, Json, app, command
from outlive.errors import SchemaMismatch
from outlive.worker import cgroups

OLDEST_POSTGRES = 14
NAPTIME_S = 15.0
SNAPSHOT_S = 60.0
DEAD_ROWS = 500_000
_MARKS = {"fine": ("✓", "green"), "advice": ("!", "yellow"), "problem": ("✗", "bold red")}


class Finding(NamedTuple):
    level: Literal["fine", "advice", "problem"]
    what: str
    next: str | None = None


@command(app)
def doctor(context: CommandContext, json: Json = False) -> None:
    """Check the database, the jobs and the workers. Exit code 1 if there is a problem."""
    findings = list(examine(context))
    if json:
        screen.print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            screen.say(_line(finding))
    if any(finding.level == "problem" for finding in findings):
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
            migrate.check(connection)
        except SchemaMismatch as error:
            what, _, hint = str(error).partition(": ")
            yield Finding("problem", what, hint)
            return
        yield Finding("fine", f"the schema has version {migrate.VERSION}")
    [health] = context.run(store.health())
    ready = sum(row["ready"] for row in context.run(store.list_queues()) if not row["paused"])
    yield from judge_server(health)
    yield from judge_jobs(health, ready)
    yield from judge_workers(context.run(store.list_workers()))
    yield from judge_schedules(context.run(store.list_schedules()))
    yield judge_limits(cgroups.find())


def judge_server(health: dict[str, Any]) -> Iterator[Finding]:
    """Findings about the server: its version, settings and sessions."""
    version = health["server_version"] // 10000
    if version < OLDEST_POSTGRES:
        yield Finding("problem", f"Postgres {version} is too old", f"use {OLDEST_POSTGRES} or newer")
    else:
        yield Finding("fine", f"Postgres {version}")
    for setting, loss in (
        ("fsync", "a crash of the machine can lose or damage all data"),
        ("synchronous_commit", "a crash can lose jobs that were enqueued"),
    ):
        if health[setting] == "off":
            yield Finding("problem", f"{setting} is off: {loss}", f"alter system set {setting} = on; {_RELOAD}")
        else:
            yield Finding("fine", f"{setting} is {health[setting]}")
    naptime_s = health["autovacuum_naptime_s"]
    if health["autovacuum"] == "off":
        yield Finding(
            "problem", "autovacuum is off: claims get slower and slower", f"alter system reset autovacuum; {_RELOAD}"
        )
    elif naptime_s > NAPTIME_S:
        what = f"autovacuum runs only every {screen.duration(naptime_s)}: a busy queue needs it every 10 s"
        yield Finding("advice", what, f"alter system set autovacuum_naptime = '10s'; {_RELOAD}")
    else:
        yield Finding("fine", f"autovacuum runs every {screen.duration(naptime_s)}")
    if health["oldest_snapshot_s"] > SNAPSHOT_S:
        pid, held = health["oldest_snapshot_pid"], screen.duration(health["oldest_snapshot_s"])
        what = f"the transaction of backend {pid} has kept vacuum from removing rows for {held}: claims get slower"
        yield Finding("advice", what, f"end the transaction, or: select pg_terminate_backend({pid})")
    if health["dead_rows"] > DEAD_ROWS:
        what = f"{health['dead_rows']:,} dead rows slow down claims: vacuum does not keep up"
        yield Finding("advice", what, "vacuum outlive.waiting, outlive.running")
    used, most = health["connections"], health["max_connections"]
    if used > 0.8 * most:
        level: Literal["advice", "problem"] = "problem" if used > 0.95 * most else "advice"
        what = f"{used} of {most} connections are used: a worker needs three"
        yield Finding(level, what, "use fewer, or alter system set max_connections = … and restart Postgres")
    else:
        yield Finding("fine", f"{used} of {most} connections are used")


_RELOAD = "select pg_reload_conf()"


def judge_jobs(health: dict[str, Any], ready: int) -> Iterator[Finding]:
    """Findings about jobs that an operator must look at."""
    if stuck := health["stuck"]:
        what = f"{_are(stuck, 'job')} stuck: no reaper has freed the jobs of a silent worker"
        yield Finding("problem", what, "outlive stuck; then start a worker, which frees them")
    else:
        yield Finding("fine", "no job is stuck")
    if quarantined := health["quarantined"]:
        yield Finding(
            "advice", f"{_are(quarantined, 'job')} in quarantine", "outlive killers; then release or prune them"
        )
    else:
        yield Finding("fine", "no job is in quarantine")
    workers = health["active_workers"]
    if workers:
        yield Finding("fine", f"{_are(workers, 'worker')} active")
    elif ready:
        yield Finding("problem", f"{_are(ready, 'job')} ready and no worker is active", "outlive worker pkg.module:app")
    else:
        yield Finding("advice", "no worker is active", "outlive worker pkg.module:app, once there are jobs")


def judge_workers(workers: list[dict[str, Any]]) -> Iterator[Finding]:
    """Findings about workers that are alive and can't start jobs."""
    for worker in workers:
        if worker["trouble"]:
            yield Finding(
                "problem",
                f"worker {worker['name']} can't start any job: {worker['trouble']}",
                f"read its log on {worker['hostname']}; the worker continues by itself once the cause is removed",
            )


def judge_schedules(schedules: list[dict[str, Any]]) -> Iterator[Finding]:
    """Findings about schedules that can't fire."""
    for schedule in schedules:
        if schedule["trouble"]:
            yield Finding(
                "problem",
                f"schedule {schedule['name']} can't fire: {schedule['trouble']}",
                f"outlive schedules set {schedule['name']}, or reset it",
            )


def judge_limits(place: cgroups.Place | None) -> Finding:
    """How a worker that is started like this command enforces memory limits."""
    if place is None:
        return Finding("fine", "memory is measured every 50 ms: no cgroup is writable here")
    return Finding("fine", f"memory is limited by {place} for a worker started like this, and measured every 50 ms")


def _are(count: int, thing: str) -> str:
    return f"1 {thing} is" if count == 1 else f"{count:,} {thing}s are"
