"""What is wrong with the server, the jobs, the workers and the schedules, from what the database has answered.

`doctor` and the overview of the dashboard judge by these rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Literal, NamedTuple

import msgspec

from outlive import program, store
from outlive.humanize import brief, counted, duration, few, size, unserved
from outlive.operations import facts
from outlive.operations.selection import Count

OLDEST_POSTGRES = 14
NAPTIME_S = 15.0
SNAPSHOT_S = 60.0
LOCK_S = 1.0
CLOCK_S = 2.0
DEAD_ROWS = 100_000
MUCH_WAL_BYTES = 1024**3
MOST_NAMED = 5
HOUR_S, DAY_S = 3600.0, 86_400.0
FULL_S = 300.0
"""Jobs may be ready for so long while their workers are busy with the same others, before it is a finding."""
KEPT_CONNECTIONS = 2
"""Those that a worker has while it has nothing to do."""
_RELOAD = "select pg_reload_conf()"
FEW_BYTES, LITTLE = 10 * 1024**3, 0.1
"""How much of a disk is free at least; less of a small one."""
Level = Literal["fine", "unknown", "advice", "problem"]
"""unknown: it could not be seen. Without a next step, it can't be seen from here at all."""
Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


class Finding(NamedTuple):
    level: Level
    what: str
    next: str | None = None
    """What to do about it."""
    page: str | None = None
    """The page of the dashboard that shows it; None: the overview leaves it out."""
    query: Mapping[str, str] = {}


def checked(
    fine: bool, what: str, otherwise: tuple[str, str], level: Level = "advice", page: str | None = None
) -> Finding:
    """What is found if all is well, or otherwise what is wrong and what to do about it."""
    return Finding("fine", what) if fine else Finding(level, *otherwise, page)


def judge_server(health: Row) -> Iterator[Finding]:
    """Findings about the server: its version, settings and sessions."""
    if health["standby"]:
        what = "this server is a standby: no job can be enqueued or run here"
        cure = "give the address of the primary, or several with target_session_attrs=read-write"
        yield Finding("problem", what, cure)
    version = health["server_version"] // 10000
    old = (f"Postgres {version} is too old", f"use {OLDEST_POSTGRES} or newer")
    yield checked(version >= OLDEST_POSTGRES, f"Postgres {version}", old, "problem")
    for setting, loss in (
        ("fsync", "a crash of the machine can lose or damage all data"),
        ("synchronous_commit", "a crash can lose jobs that were enqueued"),
    ):
        off = (f"{setting} is off: {loss}", f"alter system set {setting} = on; {_RELOAD}")
        yield checked(health[setting] != "off", f"{setting} is {health[setting]}", off, "problem")
    if health["autovacuum"] == "off":
        what, cure = "autovacuum is off: claims get slower and slower", "alter system reset autovacuum"
        yield Finding("problem", what, f"{cure}; {_RELOAD}")
    else:
        naptime_s = health["autovacuum_naptime_s"]
        seldom = f"autovacuum runs only every {duration(naptime_s)}: a busy queue needs it every 10 s"
        cure = f"alter system set autovacuum_naptime = '10s'; {_RELOAD}"
        yield checked(naptime_s <= NAPTIME_S, f"autovacuum runs every {duration(naptime_s)}", (seldom, cure))
    used, most = health["connections"], health["max_connections"]
    what = f"{used} of {most} connections are used"
    cure = "use fewer, or alter system set max_connections = … and restart Postgres"
    level: Level = "problem" if used > 0.95 * most else "advice"
    yield checked(used <= 0.8 * most, what, (f"{what}: a worker needs two", cure), level)


def judge_fleet(health: Row, workers: Rows) -> Iterator[Finding]:
    """Whether there are connections enough if each worker that is alive uses as many as it may."""
    living = [row["connections"] or 1 for row in workers if row["state"] in ("active", "stale", "draining")]
    if not living:
        return
    others = max(0, health["connections"] - KEPT_CONNECTIONS * len(living))
    needed, allowed = sum(living) + others, health["allowed_connections"]
    fleet = f"{counted(len(living), 'worker')} may use {sum(living)} connections and {others} others are used now"
    raising = "raise max_connections and restart Postgres (or raise the limit of the database)"
    cure = f"{raising}, lower the setting `connections` of the workers, or put a pooler in front of clients"
    short = (f"{fleet}, but only {allowed} are allowed", cure)
    yield checked(needed <= allowed, f"{fleet}: {allowed} are allowed", short)


def judge_roles(limited: Rows) -> Iterator[Finding]:
    """The same for each role that has a limit of its own and is that of workers."""
    for one in limited:
        role, wanted, used, allowed = one["role"], one["wanted"], one["used"], one["allowed"]
        others = max(0, used - KEPT_CONNECTIONS * one["workers"])
        fleet = f"{counted(one['workers'], 'worker')} of the role {role} may use {wanted} connections"
        what = f"{fleet} and {others} others of it are used now"
        cure = (
            f'alter role "{role}" connection limit {wanted + others}, or lower the setting `connections` of the workers'
        )
        short = f"{what}, but only {allowed} are allowed" + (": all of them are used" if used >= allowed else "")
        level: Level = "problem" if used >= allowed else "advice"
        yield checked(wanted + others <= allowed, f"{what}: {allowed} are allowed", (short, cure), level)


def _session(one: Row) -> str:
    return f"backend {one['pid']} ({one['program']} of user {one['role']})"


def judge_vacuum(health: Row) -> Iterator[Finding]:
    """Findings about what keeps vacuum from removing dead rows, and about tables in which they pile up."""
    found = list(_held_back(health))
    for table in msgspec.json.decode(health["dead_rows"] or b"[]"):
        if table["dead"] > max(DEAD_ROWS, table["live"]):
            vacuumed = f"vacuumed {table['vacuumed']}" if table["vacuumed"] else "never vacuumed"
            what = f"outlive.{table['name']} has {table['dead']:,} dead rows and {table['live']:,} live ones"
            cure = f"vacuum outlive.{table['name']}"
            found.append(Finding("advice", f"{what} ({vacuumed}): claims get slower", cure))
    if not health["sees_all"]:
        what = "could not look whether a transaction keeps vacuum from removing rows: this role does not see others"
        found.append(Finding("unknown", what, f'grant pg_monitor to "{health["role"]}"'))
    yield from found or [Finding("fine", "vacuum keeps up")]


def judge_locks(holders: Rows) -> Iterator[Finding]:
    """Findings about sessions that keep others from the tables. A lock of a moment does not count."""
    for one in holders:
        if one["for_s"] is None or one["for_s"] > LOCK_S:
            open_for = "" if one["for_s"] is None else f", in a transaction that is open for {duration(one['for_s'])}"
            what = f"{_session(one)} holds a lock on {one['tables']}{open_for}: workers and clients wait for it"
            yield Finding("problem", what, f"end its transaction, or: select pg_terminate_backend({one['pid']})")


def judge_disk(health: Row, free: tuple[int, int] | None) -> Finding:
    """Whether the disk of the server has room. `free`: how many bytes of how many; None: it is on another machine, or
    Postgres hides where its data is.
    """
    has = f"the database has {size(health['database_bytes'])}"
    if free is None:
        return Finding("unknown", f"could not look how much of the server's disk is free, which SQL can't say; {has}")
    left, whole = free
    what = f"the server's disk has {size(left)} free of {size(whole)}, and {has}"
    cure = f"make room below {health['data_directory']}, or shorten keep_finished_s and keep_failed_s"
    return checked(left >= min(FEW_BYTES, LITTLE * whole), what, (f"{what}: a full one stops all work", cure))


def _held_back(health: Row) -> Iterator[Finding]:
    if health["oldest_snapshot_s"] > SNAPSHOT_S:
        one, held = msgspec.json.decode(health["oldest_snapshot"]), duration(health["oldest_snapshot_s"])
        what = f"the transaction of {_session(one)} has kept vacuum from removing rows for {held}: claims get slower"
        yield Finding("advice", what, f"end the transaction, or: select pg_terminate_backend({one['pid']})")
    for one in msgspec.json.decode(health["prepared"] or b"[]"):
        if one["for_s"] > SNAPSHOT_S:
            what = f"the prepared transaction {one['gid']} keeps vacuum from removing rows since {one['since']}"
            cure = f"rollback prepared '{one['gid']}', or commit it, in database {one['database']}"
            yield Finding("advice", what, cure)
    for one in msgspec.json.decode(health["slots"] or b"[]"):
        what = f"the replication slot {one['name']} has no reader, and keeps {size(one['wal_bytes'])} of WAL"
        what += " and old rows" if one["rows"] else ""
        level: Level = "problem" if one["wal_bytes"] > MUCH_WAL_BYTES else "advice"
        yield Finding(level, what, f"start its reader, or: select pg_drop_replication_slot('{one['name']}')")


def judge_work(
    health: Row | None,
    queues: Rows | None,
    workers: Rows | None,
    lanes: Rows | None,
    unserved_lanes: Sequence[tuple[Any, ...]] | None,
    sources: Rows | None,
    schedules: Rows | None,
    *,
    within_s: float = DAY_S,
) -> Iterator[Finding]:
    """Findings about jobs, and about all that keeps them from running. A death is one for so long. None: not seen."""
    if health is not None and queues is not None:
        yield from judge_jobs(health, _ready_by([row for row in queues if not row["paused"]])[()])
    if workers is not None:
        yield from judge_workers(workers, within_s=within_s)
    if lanes is not None and unserved_lanes is not None and any(row["state"] == "active" for row in workers or []):
        yield from _judge_tasks(lanes, unserved_lanes)
    if lanes is not None and queues is not None:
        yield from _judge_paused(lanes, "queue", {row["name"]: row["paused_at"] for row in queues if row["paused"]})
    if lanes is not None and sources is not None:
        yield from _judge_paused(lanes, "source", {row["name"]: None for row in sources if not row["enabled"]})
    if queues is not None and workers is not None:
        yield from _judge_full(queues, workers)
    yield from _judge_sources(sources or [])
    yield from _judge_schedules(schedules or [])


def judge_jobs(health: Row, ready: Count) -> Iterator[Finding]:
    """Findings about jobs that an operator must look at."""
    if stuck := health["stuck"]:
        what = f"{counted(stuck, 'job is', 'jobs are')} stuck: no reaper has freed the jobs of a silent worker"
        look = program.command("stuck")
        yield Finding("problem", what, f"{look}; then start a worker, which frees them", "jobs", {"state": "running"})
    else:
        yield Finding("fine", "no job is stuck")
    quarantined, look = health["quarantined"], f"{program.command('killers')}; then release or prune them"
    many = (f"{counted(quarantined, 'job is', 'jobs are')} in quarantine", look)
    yield checked(not quarantined, "no job is in quarantine", many, page="killers")
    if unmet := health["unmet"]:
        more = "≥" if unmet >= store.MANY_UNMET else ""
        jobs = counted(unmet, "job is", "jobs are")
        what = f"{more}{jobs} blocked by jobs that ended without success, and can't begin"
        look = f"{program.command('jobs --state blocked')}; then retry what they wait for, or release or cancel them"
        yield Finding("advice", what, look, "jobs", {"state": "blocked"})
    active = health["active_workers"]
    if ready.jobs and not active:
        yield Finding("problem", f"{_jobs_are(ready)} ready and no worker is active", program.worker(), "workers")
    else:
        none = ("no worker is active", f"{program.worker()}, once there are jobs")
        yield checked(active, f"{counted(active, 'worker is', 'workers are')} active", none)


def judge_failures(failed: Count, *, within_s: float = DAY_S) -> Finding:
    """Whether jobs have failed for good lately."""
    time, since = ("hour", "1h") if within_s == HOUR_S else ("day", "1d")
    if not failed.jobs:
        return Finding("fine", f"no job has failed in the last {time}")
    look = f"{program.command(f'jobs --state failed --since {since}')}; then retry or prune them"
    query = {"state": "failed", "since": since}
    return Finding("advice", f"{failed} failed for good in the last {time}", look, "jobs", query)


def _judge_paused(
    lanes: Rows, thing: Literal["queue", "source"], paused: Mapping[str, datetime | None]
) -> Iterator[Finding]:
    """Findings about jobs that wait because an operator has paused their queue, or their source."""
    held = [lane for lane in lanes if lane["ready"] and lane[thing] in paused]
    for (name,), ready in sorted(_ready_by(held, thing).items(), key=lambda one: -one[1].jobs)[:MOST_NAMED]:
        since = f" since {brief(paused[name])}" if paused[name] else ""
        what = f"{_jobs_are(ready)} ready, but the {thing} {name} is paused{since}"
        yield Finding("advice", what, program.command(f"{thing}s resume {name}"), f"{thing}s")


def _judge_full(queues: Rows, workers: Rows) -> Iterator[Finding]:
    """Findings about jobs that are ready while all slots of their workers have been busy with the same others."""
    for queue in (row for row in queues if row["ready"] and not row["paused"]):
        serving = serving_queue(queue["name"], workers)
        if not serving or any(row["busy_slots"] < row["slots"] for row in serving):
            continue
        now = max(row["last_seen"] + timedelta(seconds=row["time_since_heartbeat_s"]) for row in serving)
        since = max(queue["oldest_ready_at"], *(row["last_claim_at"] or now for row in serving))
        if (for_s := (now - since).total_seconds()) >= FULL_S:
            ready = _jobs_are(Count(queue["ready"], estimated=queue["ready_estimated"]))
            slots = sum(row["slots"] for row in serving)
            what = f"{ready} ready in the queue {queue['name']}, and none has begun for {duration(for_s // 60 * 60)}"
            look = f"{program.command('workers')}; then cancel what takes too long, or start more workers"
            busy = f"all slots of its workers are busy ({slots} of {slots})"
            yield Finding("advice", f"{what}: {busy}", look, "workers")


def serving_queue(name: str, workers: Rows) -> Rows:
    """The active workers that take jobs of a queue."""
    return [row for row in workers if row["state"] == "active" and (row["queues"] is None or name in row["queues"])]


def judge_workers(workers: Rows, *, within_s: float = DAY_S) -> Iterator[Finding]:
    """Findings about workers that have died lately, and about those that are silent or can't start jobs."""
    if died := [row["name"] for row in workers if has_died(row, within_s=within_s)]:
        time = "hour" if within_s == HOUR_S else "day"
        what = f"{counted(len(died), 'worker')} died in the last {time}: {few(died, MOST_NAMED)}"
        look = program.command("workers")
        yield Finding("advice", what, f"{look}; the log of the worker, or of the kernel, may say why", "workers")
    for worker in workers:
        if worker["state"] == "stale" or facts.late(worker):
            silent, usual = duration(worker["time_since_heartbeat_s"]), duration(worker["heartbeat_s"])
            what = f"worker {worker['name']} has sent no heartbeat for {silent}, and sends one every {usual}"
            cure = f"look on {worker['hostname']} whether pid {worker['pid']} is stopped, or starved of CPU or network"
            yield Finding("advice", what, cure, "workers")
        if worker["trouble"]:
            what = f"worker {worker['name']} can't start any job: {worker['trouble']}"
            cure = f"read its log on {worker['hostname']}; the worker continues by itself once the cause is removed"
            yield Finding("problem", what, cure, "workers")
        if worker["reload_error"]:
            what = f"worker {worker['name']} has old code, because its reload failed: {worker['reload_error']}"
            cure = f"mend it on {worker['hostname']}, then {program.command('reload ' + worker['name'])}"
            yield Finding("problem", what, cure, "workers")


def has_died(worker: Row, *, within_s: float) -> bool:
    """Whether a worker was declared dead lately."""
    if worker["state"] != "dead":
        return False
    until_declared = (worker["died_at"] or worker["last_seen"]) - worker["last_seen"]
    return bool(worker["time_since_heartbeat_s"] - until_declared.total_seconds() < within_s)


def _judge_sources(sources: Rows) -> Iterator[Finding]:
    """Findings about sources whose breaker is open."""
    for source in (one for one in sources if one["breaker"] != "closed"):
        name, streak = source["name"], source["failure_streak"]
        what = f"the breaker of the source {name} is {source['breaker']} after {streak:,} failures in a row"
        resume = program.command(f"sources resume {name}")
        yield Finding("advice", what, f"{resume}, once it works; later one job tries it anyway", "sources")


def _judge_schedules(schedules: Rows) -> Iterator[Finding]:
    """Findings about schedules that can't fire."""
    for schedule in schedules:
        if schedule["trouble"]:
            what = f"schedule {schedule['name']} can't fire: {schedule['trouble']}"
            change = program.command(f"schedules set {schedule['name']}")
            yield Finding("problem", what, f"{change}, or reset it", "schedules")
        if schedule["withdrawn_at"]:
            yield withdrawn(schedule)


def withdrawn(schedule: Row) -> Finding:
    name, app = schedule["name"], schedule["declared_by"]
    what = f"schedule {name} is withdrawn and fires nothing, because its app {app} no longer declares it"
    own = program.command(f"schedules set {quote(name)} --task {quote(schedule['task'])}")
    return Finding("advice", what, f"start a worker that declares it, or make it the operators' own: {own}")


def _judge_tasks(lanes: Rows, unserved_lanes: Sequence[tuple[Any, ...]]) -> Iterator[Finding]:
    """Findings about jobs that no active worker can run. Without an active worker, that is a finding of its own.

    The list of lanes begins with those that have most ready jobs. If it ends before those that have none, the lanes
    beyond it may have some.
    """
    ready = _ready_by(lanes, "task", "queue")
    beyond = bool(lanes and lanes[-1]["ready"])
    found = [lane for lane in unserved_lanes if (ready[lane[:2]].jobs if lane[:2] in ready else beyond)]
    for task, queue, lacking in sorted(found, key=lambda lane: -ready[lane[:2]].jobs)[:MOST_NAMED]:
        what, cure = unserved(task, queue, lacking)
        many = f"{_jobs_are(jobs)} ready" if (jobs := ready[task, queue]).jobs else "jobs wait"
        next = f"{cure}; {program.command('workers')}"
        yield Finding("problem", f"{what}: {many}", next, "jobs", {"task": task, "queue": queue})
    if not found:
        yield Finding("fine", "every job that is ready has a worker with its task")


def judge_clock(ahead_s: float, *, doubt_s: float) -> Finding:
    """Whether this machine and the database agree on the time, as far as the round trip lets one know."""
    how = "ahead of" if ahead_s > 0 else "behind"
    return checked(
        abs(ahead_s) - doubt_s <= CLOCK_S,
        "this machine and the database agree on the time",
        (
            f"the database's clock is {duration(abs(ahead_s))} {how} this machine's: log lines and job times differ",
            "run chrony or systemd-timesyncd on both; outlive itself goes by the database's clock",
        ),
    )


def _ready_by(rows: Rows, *columns: str) -> defaultdict[tuple[Any, ...], Count]:
    """How many jobs of these lanes or queues are ready, by some columns."""
    found: defaultdict[tuple[Any, ...], Count] = defaultdict(lambda: Count(0))
    for row in rows:
        before = found[key := tuple(row[column] for column in columns)]
        found[key] = Count(before.jobs + row["ready"], estimated=before.estimated or row["ready_estimated"])
    return found


def _jobs_are(count: Count) -> str:
    return f"{count} {'is' if count.jobs == 1 else 'are'}"
