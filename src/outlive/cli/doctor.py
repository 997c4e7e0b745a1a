"""doctor: is this database fit for outlive, and is anything wrong right now? Every finding says what to do next."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import typer
from rich.text import Text

from outlive import config, db, embedded, migrate, store
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
    """Look whether the database is fit and nothing is wrong. Exit code 1 if there is a problem."""
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
    """All that can be found out; a database that can't be reached is an error of its own (exit code 4)."""
    file = config.file_in_force(context.config_file)
    yield Finding("fine", f"settings are read from {file.absolute()}" if file else "there is no outlive.toml")
    connection = context.bare_connection
    info = connection.info
    with db.translated_errors():
        if context.config.database_url is None:
            yield Finding(
                "advice",
                f"the embedded server in {embedded.default_directory()} is used",
                "name a database of your own in OUTLIVE_DATABASE_URL before other machines shall share it",
            )
            migrate.migrate(connection)
        else:
            yield Finding("fine", f"{info.dbname} on {info.host}, port {info.port}, answers as {info.user}")
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
    yield judge_limits(cgroups.find())


def judge_server(health: dict[str, Any]) -> Iterator[Finding]:
    """What the server's settings and sessions mean for jobs."""
    version = health["server_version"] // 10000
    if version < OLDEST_POSTGRES:
        yield Finding("problem", f"Postgres {version} is too old", f"use {OLDEST_POSTGRES} or newer")
    else:
        yield Finding("fine", f"Postgres {version}")
    for setting, loss in (
        ("fsync", "a crash of the machine can lose or spoil everything"),
        ("synchronous_commit", "a crash can lose jobs that were acknowledged"),
    ):
        if health[setting] == "off":
            yield Finding("problem", f"{setting} is off: {loss}", f"alter system set {setting} = on; {_RELOAD}")
        else:
            yield Finding("fine", f"{setting} is {health[setting]}")
    naptime_s = health["autovacuum_naptime_s"]
    if health["autovacuum"] == "off":
        yield Finding(
            "problem", "autovacuum is off: claims get ever slower", f"alter system reset autovacuum; {_RELOAD}"
        )
    elif naptime_s > NAPTIME_S:
        what = f"autovacuum looks every {screen.duration(naptime_s)} only: a busy queue wants it every 10 s or so"
        yield Finding("advice", what, f"alter system set autovacuum_naptime = '10s'; {_RELOAD}")
    else:
        yield Finding("fine", f"autovacuum looks every {screen.duration(naptime_s)}")
    if health["oldest_snapshot_s"] > SNAPSHOT_S:
        pid, held = health["oldest_snapshot_pid"], screen.duration(health["oldest_snapshot_s"])
        what = f"the transaction of backend {pid} has held back vacuum for {held}: claims get slower meanwhile"
        yield Finding("advice", what, f"end it; if nobody else can: select pg_terminate_backend({pid})")
    if health["dead_rows"] > DEAD_ROWS:
        what = f"{health['dead_rows']:,} dead rows are in the way of claims: vacuum does not keep up"
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
    """What needs a person just now."""
    if stuck := health["stuck"]:
        what = f"{_are(stuck, 'job')} stuck: nobody has reaped what a silent worker left"
        yield Finding("problem", what, "outlive stuck; then start a worker")
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
    """Workers that live and can't begin any job."""
    for worker in workers:
        if worker["trouble"]:
            yield Finding(
                "problem",
                f"worker {worker['name']} can't begin any job: {worker['trouble']}",
                f"read its log on {worker['hostname']}; it goes on by itself once the cause is gone",
            )


def judge_limits(place: cgroups.Place | None) -> Finding:
    """How workers that are started as this command was hold jobs to their limits on memory."""
    if place is None:
        return Finding("fine", "memory is measured every 50 ms: no cgroup can be written here")
    return Finding(
        "fine", f"memory is limited by {place} where a worker is started as this was, and measured every 50 ms"
    )


def _are(count: int, thing: str) -> str:
    return f"1 {thing} is" if count == 1 else f"{count:,} {thing}s are"
