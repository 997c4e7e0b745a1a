"""The tables of a game, the statements that the game runs, and reading what the database holds after it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from outlive import db, store
from outlive.errors import ConfigError
from outlive.worker.limits import cgroups
from outlive_lab.gameday import jobs, journal
from outlive_lab.gameday.history import Attempt, Callback, Effect, Found, History, Kept, Mark, Sent, Start, Tick

MODULE = jobs.__name__ + "."
OURS = MODULE.replace("_", r"\_") + "%"
BATCH = "gameday"
"""The name of its batches."""
SHARING = [MODULE + task for task in jobs.SHARING]
VERIFIED = 50_000
"""How many jobs are verified at once."""
MOST_LOCKED = 2
"""How many jobs a foreign transaction locks: few, so that most jobs go on."""

_DROP = "drop schema if exists outlive_gameday cascade"
_MAKE = """
create schema outlive_gameday;
create table outlive_gameday.starts (
  token bigint not null, pid int not null, job_id uuid not null, at timestamptz not null default clock_timestamp());
create index on outlive_gameday.starts (token);
create table outlive_gameday.effects (
  job_id uuid not null, token bigint not null, spawned uuid, at timestamptz not null default clock_timestamp());
create table outlive_gameday.fenced (token bigint not null);
create table outlive_gameday.marks (
  job_id uuid not null, token bigint not null, pid int not null, kind text not null, step text not null, value json,
  at timestamptz not null default clock_timestamp());
create table outlive_gameday.ledger (job_id uuid not null);
create table outlive_gameday.sent (
  job_id uuid not null, value text not null, at timestamptz not null default clock_timestamp());
"""

# Only jobs of the game's own tasks, and what belongs to them, are deleted.
_FORGET = """
with gone as (delete from outlive.jobs where task like %(ours)s returning id, batch),
  waiting as (delete from outlive.waiting where id in (select id from gone)),
  running as (delete from outlive.running where id in (select id from gone)),
  held as (delete from outlive.held where id in (select id from gone)),
  progress as (delete from outlive.progress where job_id in (select id from gone)),
  keys as (delete from outlive.dedupe_keys where id in (select id from gone)),
  keyed as (delete from outlive.keyed_jobs where job_id in (select id from gone)),
  links as (delete from outlive.dependencies where job_id in (select id from gone)),
  crashes as (delete from outlive.crashes where job_id in (select id from gone)),
  steps as (delete from outlive.steps where job_id in (select id from gone)),
  signals as (delete from outlive.signals where job_id in (select id from gone)),
  schedules as (delete from outlive.schedules where task like %(ours)s),
  batches as (delete from outlive.batches where name = %(batch)s returning id),
  callbacks as (delete from outlive.callbacks where batch in (select id from batches)),
  sources as (delete from outlive.sources where name = 'gameday'),
  queues as (delete from outlive.queues where name = %(aside)s)
delete from outlive.attempts where job_id in (select id from gone)
"""
_FOREIGN = "select task from outlive.jobs where task not like %(ours)s limit 1"
_JOBS = "select id, task || coalesce(' ' || nullif(args ->> 'harm', ''), ''), batch from outlive.jobs "
_JOBS += "where task like %(ours)s"
_CALLBACKS = "select id, (args ->> 'batch')::uuid, args ->> 'event' from outlive.jobs where task = %(task)s"
_TICKS = "select id, args ->> 'schedule', extract(epoch from ready_at)::float8 from outlive.jobs where task = %(task)s"
_PAUSE = "select outlive.pause_schedule(name), extract(epoch from clock_timestamp())::float8 from outlive.schedules "
_PAUSE += "where task like %(ours)s"
_STARTS = "select token, pid, job_id, extract(epoch from at)::float8 from outlive_gameday.starts order by at"
_EFFECTS = "select job_id, token, spawned, extract(epoch from at)::float8 from outlive_gameday.effects"
_MARKS = "select job_id, token, kind, step, value, extract(epoch from at)::float8, pid from outlive_gameday.marks"
_SENT = "select job_id, value, extract(epoch from {at})::float8 from outlive_gameday.sent"
_KEPT = """
select s.job_id, s.name, s.value, extract(epoch from s.at)::float8
from outlive.steps s join outlive.jobs j on j.id = s.job_id where j.task like %(ours)s
"""
_PLACES = """
select id, 'waiting' from outlive.waiting where task like %(ours)s
union all select r.id, 'running on ' || coalesce(k.name, r.worker::text)
  from outlive.running r left join outlive.workers k on k.id = r.worker where r.task like %(ours)s
union all select id, why from outlive.held where task like %(ours)s
"""

# The time of the commit is when other sessions can see the row; its statement began earlier. Workers add evidence to
# successes later, so the time of their statement must do.
_COMMITTED = """
case when a.outcome = 'succeeded' or exists (
  select from outlive.attempts t where t.job_id = a.job_id and t.attempt <= a.attempt and t.loss = 'taken back')
then a.ended_at else pg_xact_commit_timestamp(a.xmin) end
"""
"""When the end of an attempt was committed. The row is written again if a loss is taken back."""
_ATTEMPTS = """
select a.job_id, a.attempt, a.token, coalesce(k.name, '?'), a.outcome, a.state, a.signal,
  extract(epoch from a.started_at)::float8, extract(epoch from {ended})::float8, a.failures, a.crashes, a.losses,
  a.error
from outlive.attempts a join outlive.jobs j on j.id = a.job_id
  left join outlive.workers k on k.id = a.worker and k.name like %(names)s
where j.task like %(ours)s
"""
# Each job that shares a process prints its id, and returns it.
_MIXED = """
select a.job_id from outlive.attempts a join outlive.jobs j on j.id = a.job_id
where j.task = any(%(sharing)s) and (a.outcome = 'succeeded' and a.result #>> '{}' is distinct from j.id::text
  or replace(a.output, j.id::text, '') ~ '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-')
"""
_VISIBLE = "pg_xact_commit_timestamp(xmin)"
_WORKERS = "select name, state from outlive.workers where name like %(names)s"

_IDS = "select id from outlive.workers where name like %(names)s"

# Jobs in quarantine stay there. A dependent job is released with the end of another one, or it stays blocked.
_STANDING = """
select (select count(*) from outlive.waiting where task like %(ours)s)
     + (select count(*) from outlive.running where task like %(ours)s)
     + (select count(*) from outlive.held where task like %(ours)s and why not in ('dependent', 'quarantined')),
  extract(epoch from clock_timestamp())::float8,
  array(select name from outlive.workers where name like %(names)s and state in ('active', 'stale', 'draining')),
  array(
    select name from outlive.workers
    where name like %(names)s and state in ('active', 'stale', 'draining') and watched)
"""
_LEFT_OVER = """
with going as (
  select id from outlive.waiting union all select id from outlive.running union all select id from outlive.held),
over as (
  select j.id from outlive.jobs j where j.task like %(ours)s and not exists (select from going g where g.id = j.id)),
gone as (select id from outlive.workers where name like %(names)s and state in ('dead', 'stopped'))
select 'slot of a key', job_id::text from outlive.keyed_jobs where job_id in (select id from over)
union all select 'turn of a key', keys::text from outlive.key_turns where keys::text like '%%gameday %%'
union all select 'dedupe key', id::text from outlive.dedupe_keys where id in (select id from over)
union all select 'permit', id::text from outlive.requests where source = %(source)s
union all select 'note of an end', id::text from outlive.end_checks where needed && array(
  select id from outlive.jobs where task like %(ours)s)
union all select 'deadline', job_id::text from outlive.expiring where job_id in (select id from over)
union all select 'signal', job_id::text from outlive.signals where job_id in (select id from over)
union all select 'attempt', id::text from outlive.running where worker in (select id from gone)
union all select 'parked process', id::text from outlive.held where parked_by in (select id from gone)
union all select 'lock', worker::text from outlive.liveness where worker in (select id from gone)
union all select 'sleeper', worker::text from outlive.sleepers where worker in (select id from gone)
"""
_AT_WORK = """
select distinct on (s.pid) s.pid, k.name
from outlive.running r join outlive_gameday.starts s on s.token = r.token join outlive.workers k on k.id = r.worker
where k.name like %(names)s and r.task <> all(%(spared)s) order by s.pid, s.token desc
"""
# A job that runs alone because it may harm others is the only one in its process.
_SHARED = """
select pid, name from (
  select distinct on (r.token) s.pid, k.name
  from outlive.running r join outlive_gameday.starts s on s.token = r.token join outlive.workers k on k.id = r.worker
  where k.name like %(names)s and r.task = any(%(sharing)s) order by r.token, s.at desc) last
group by pid, name having count(*) > 1
"""

_ALONE = """
select k.name, array_agg(r.id) from outlive.running r join outlive.workers k on k.id = r.worker
where k.name like %(names)s and r.task = %(task)s and r.alone group by 1
"""

# Jobs that have written their effect and are not completed yet, as their open transactions show.
_READY = """
select r.token, r.id
from outlive.running r join outlive_gameday.starts s on s.token = r.token join outlive.workers k on k.id = r.worker
  join pg_stat_activity a on a.application_name = 'gameday ' || s.pid
where k.name = %(name)s and a.state = 'idle in transaction' and a.query like 'insert into outlive_gameday.effects %%'
"""
_BEGUN_AGAIN = """
select late.token from unnest(%(tokens)s::bigint[], %(jobs)s::uuid[]) late (token, id)
where exists (select from outlive.running r where r.id = late.id and r.token > late.token)
   or exists (select from outlive.attempts a where a.job_id = late.id and a.token > late.token)
"""

# Each statement locks rows until its transaction ends, and returns the jobs whose ends wait for that. The last one is
# an operator's cancel that never commits.
_LOCKS = (
    "select id from outlive.running where task like %(ours)s limit %(most)s for update skip locked",
    "select j.id from outlive.jobs j join outlive.running r on r.id = j.id where j.task like %(ours)s limit %(most)s "
    "for update of j skip locked",
    "select id from outlive.waiting where task like %(ours)s limit %(most)s for update skip locked",
    "select id from outlive.dedupe_keys where task like %(ours)s limit %(most)s for update skip locked",
    "select null::uuid from outlive.sources where name = %(source)s for update skip locked",
    "select null::uuid from outlive.schedules where task like %(ours)s limit 1 for update skip locked",
    "with locked as (select id from outlive.held where why = 'dependent' and task like %(ours)s limit %(most)s "
    "for update skip locked) select needs from outlive.dependencies where job_id in (select id from locked)",
    "with locked as (select id from outlive.batches where name = %(batch)s and done_at is null limit 1 "
    "for update skip locked) select id from outlive.jobs where batch in (select id from locked)",
    "select id from outlive.cancel(array(select id from outlive.running where task like %(ours)s limit %(most)s))",
)


def _rows(connection: psycopg.Connection[Any], query: str, **values: object) -> list[Any]:
    return connection.execute(query.encode(), {"ours": OURS, **values}).fetchall()


def make(connection: db.Connection, *, force: bool) -> None:
    """Make the tables, and delete an earlier game. Refuses a database that has other jobs, unless `force` is set."""
    foreign = _rows(connection, _FOREIGN)
    if foreign and not force:
        raise ConfigError(
            f"the database {connection.info.dbname} has other jobs (of {foreign[0][0]}): a game kills sessions and "
            "slows the machine down; name another database, or give --force"
        )
    forget(connection)
    connection.execute(_MAKE)
    journal.make(connection)


def forget(connection: db.Connection) -> None:
    """Delete a game and its tables."""
    with connection.transaction():
        connection.execute(_DROP)
        connection.execute(_FORGET, {"ours": OURS, "batch": BATCH, "aside": jobs.ASIDE})


def pause_schedules(connection: db.Connection) -> float:
    """Let no schedule fire any more. Returns when that was."""
    return max(float(now_s) for _, now_s in _rows(connection, _PAUSE))


def standing(connection: db.Connection, names: str) -> tuple[int, float, list[str], list[str]]:
    """How many jobs are unfinished, the database's clock, which workers are up, and which of these hold a lock."""
    [found] = _rows(connection, _STANDING, names=f"{names}%")
    return found  # type: ignore[no-any-return]


def left_over(connection: db.Connection, names: str) -> list[tuple[str, str]]:
    """What no job and no worker has any more."""
    return _rows(connection, _LEFT_OVER, names=f"{names}%", source=jobs.shop.name)


def groups(connection: db.Connection, names: str) -> list[Path]:
    """The control groups of the game's workers."""
    place = cgroups.find()
    ids = {str(id) for (id,) in _rows(connection, _IDS, names=f"{names}%")} if place else set()
    found = place.path.glob(f"{cgroups.PREFIX}*") if place else ()
    return [path for path in found if path.name.removeprefix(cgroups.PREFIX)[:36] in ids]


def at_work(connection: db.Connection, names: str, *, spared: Sequence[str] = ()) -> set[tuple[int, str]]:
    """The children that run a job, but none of the tasks that are spared, and the names of their workers."""
    return set(_rows(connection, _AT_WORK, names=f"{names}%", spared=list(spared)))


def shared(connection: db.Connection, names: str) -> set[tuple[int, str]]:
    """The children that run two jobs or more, and the names of their workers."""
    return set(_rows(connection, _SHARED, names=f"{names}%", sharing=SHARING))


def alone(connection: db.Connection, names: str) -> dict[str, frozenset[UUID]]:
    """The innocent jobs that run alone, by the name of their worker."""
    found = _rows(connection, _ALONE, names=f"{names}%", task=jobs.pace.name)
    return {name: frozenset(ids) for name, ids in found}


def ready(connection: db.Connection, name: str) -> dict[int, UUID]:
    """The attempts of a worker that wait before their completion, and their jobs."""
    return dict(_rows(connection, _READY, name=name))


def begun_again(connection: db.Connection, attempts: dict[int, UUID]) -> frozenset[int]:
    """The attempts whose jobs have begun again since."""
    found = _rows(connection, _BEGUN_AGAIN, tokens=list(attempts), jobs=list(attempts.values()))
    return frozenset(token for (token,) in found)


def lock(stranger: psycopg.Connection[Any], rng: random.Random) -> list[UUID | None]:
    """Lock some rows until the transaction ends. Returns their jobs, and None for the source or a schedule."""
    stranger.execute("set local lock_timeout = '500ms'")
    return [id for (id,) in _rows(stranger, rng.choice(_LOCKS), most=MOST_LOCKED, source=jobs.shop.name, batch=BATCH)]


def read(connection: db.Connection, history: History, *, names: str) -> Found:
    """Read everything. `names` is the prefix of the names of the game's workers."""
    recorded = _rows(connection, "show track_commit_timestamp") == [("on",)]
    attempts = _rows(connection, _ATTEMPTS.format(ended=_COMMITTED if recorded else "a.ended_at"), names=f"{names}%")
    made = _rows(connection, _JOBS)
    tasks = {id: task.removeprefix(MODULE) for id, task, _ in made}
    killers = [id for id, task in tasks.items() if jobs.FATES.get(task) == "quarantined"]
    return Found(
        jobs=tasks,
        places=_rows(connection, _PLACES),
        members={id: batch for id, _, batch in made if batch is not None},
        attempts=[Attempt(*row) for row in attempts],
        starts=[Start(*row) for row in _rows(connection, _STARTS)],
        effects=[Effect(*row) for row in _rows(connection, _EFFECTS)],
        fenced=[token for (token,) in _rows(connection, "select token from outlive_gameday.fenced")],
        workers=dict(_rows(connection, _WORKERS, names=f"{names}%")),
        callbacks=[Callback(*row) for row in _rows(connection, _CALLBACKS, task=jobs.tell.name)],
        ticks=[Tick(*row) for row in _rows(connection, _TICKS, task=jobs.tick.name)],
        completing=jobs.COMPLETING,
        fates=jobs.FATES,
        schedules=frozenset(jobs.app.declared_schedules),
        marks=[Mark(*row) for row in _rows(connection, _MARKS)],
        kept=[Kept(*row) for row in _rows(connection, _KEPT)],
        sent=[Sent(*row) for row in _rows(connection, _SENT.format(at=_VISIBLE if recorded else "at"))],
        ledger=[job for (job,) in _rows(connection, "select job_id from outlive_gameday.ledger")],
        sharing=jobs.SHARING,
        lines=journal.read(connection, history, killers, names),
        verified=_verified(connection),
        mixed=[job for (job,) in _rows(connection, _MIXED, sharing=SHARING)],
    )


def _verified(connection: db.Connection) -> list[tuple[UUID, str]]:
    """What `outlive verify` finds."""
    keys, batches = db.run(connection, store.verify_keys()), db.run(connection, store.verify_batches())
    wrong = [(job, "over its limit") for _, job in keys.wrong] + [(batch, "not called") for (batch,) in batches.wrong]
    after, portion = UUID(int=0), None
    while portion is None or portion.jobs == VERIFIED:
        portion = db.run(connection, store.verify_jobs(after, batch=VERIFIED))
        wrong += [(job, what) for what, job in portion.wrong]
        after = portion.upto
    return wrong


def evidence(connection: db.Connection, ids: list[UUID]) -> list[dict[str, object]]:
    """The attempts of the jobs that break a rule."""
    query = (
        "select job_id, attempt, token, worker, outcome, state, error, signal, started_at, ended_at, failures, "
        "crashes, losses from outlive.attempts where job_id = any(%s) order by job_id, attempt"
    )
    return connection.cursor(row_factory=dict_row).execute(query, [ids]).fetchall()
