"""The tables of a game, and reading what the database holds after it."""

from __future__ import annotations

from uuid import UUID

from outlive import db
from outlive.errors import ConfigError
from outlive.lab.gameday import jobs
from outlive.lab.gameday.history import Attempt, Effect, Found, Start, Worker

MODULE = jobs.__name__ + "."
OURS = MODULE.replace("_", r"\_") + "%"

_MAKE = """
drop schema if exists outlive_gameday cascade;
create schema outlive_gameday;
create table outlive_gameday.starts (token bigint not null, pid int not null);
create index on outlive_gameday.starts (token);
create table outlive_gameday.effects (job_id uuid not null, token bigint not null, spawned uuid);
create table outlive_gameday.fenced (token bigint not null);
"""

# Only jobs of the game's own tasks are deleted.
_FORGET = """
with gone as (delete from outlive.jobs where task like %(ours)s returning id),
  waiting as (delete from outlive.waiting where id in (select id from gone)),
  running as (delete from outlive.running where id in (select id from gone)),
  held as (delete from outlive.held where id in (select id from gone)),
  progress as (delete from outlive.progress where job_id in (select id from gone)),
  keys as (delete from outlive.dedupe_keys where id in (select id from gone)),
  sources as (delete from outlive.sources where name = 'gameday')
delete from outlive.attempts where job_id in (select id from gone)
"""

_PLACES = """
select id, 'waiting' from outlive.waiting where task like %(ours)s
union all select r.id, 'running on ' || coalesce(k.name, r.worker::text)
  from outlive.running r left join outlive.workers k on k.id = r.worker where r.task like %(ours)s
union all select id, 'held' from outlive.held where task like %(ours)s
"""

# The time of the commit is when other sessions can see the row; its statement began earlier.
_ATTEMPTS = """
select a.job_id, a.attempt, a.token, a.worker, a.outcome, a.state, a.signal,
  extract(epoch from a.started_at)::float8, extract(epoch from {committed})::float8, a.failures, a.crashes, a.losses
from outlive.attempts a join outlive.jobs j on j.id = a.job_id where j.task like %(ours)s
"""
_WORKERS = "select id, name, state from outlive.workers where name like %(names)s"
STANDING = """
select (select count(*) from outlive.waiting where task like %(ours)s)
     + (select count(*) from outlive.running where task like %(ours)s)
     + (select count(*) from outlive.held where task like %(ours)s),
  extract(epoch from clock_timestamp())::float8,
  array(select name from outlive.workers where name like %(names)s and state in ('active', 'stale', 'draining'))
"""

BUSY = """
select distinct on (s.pid) s.pid, k.name
from outlive.running r join outlive_gameday.starts s on s.token = r.token join outlive.workers k on k.id = r.worker
where k.name like %(names)s order by s.pid, s.token desc
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


def ready(connection: db.Connection, name: str) -> dict[int, UUID]:
    """The attempts of a worker that wait before their completion, and their jobs."""
    return dict(connection.execute(_READY, {"name": name}).fetchall())


def begun_again(connection: db.Connection, attempts: dict[int, UUID]) -> frozenset[int]:
    """The attempts whose jobs have begun again since."""
    late = {"tokens": list(attempts), "jobs": list(attempts.values())}
    return frozenset(token for (token,) in connection.execute(_BEGUN_AGAIN, late))


def make(connection: db.Connection, *, force: bool) -> None:
    """Make the tables, and delete an earlier game. Refuses a database that has other jobs, unless `force` is set."""
    ours = {"ours": OURS}
    foreign = connection.execute("select task from outlive.jobs where task not like %(ours)s limit 1", ours).fetchone()
    if foreign is not None and not force:
        raise ConfigError(
            f"the database {connection.info.dbname} has other jobs (of {foreign[0]}): a game kills sessions and "
            "slows the machine down; name another database, or give --force"
        )
    with connection.transaction():
        connection.execute(_MAKE)
        connection.execute(_FORGET, ours)


def forget(connection: db.Connection) -> None:
    """Delete the game from a configured database."""
    with connection.transaction():
        connection.execute("drop schema if exists outlive_gameday cascade")
        connection.execute(_FORGET, {"ours": OURS})


def read(connection: db.Connection, *, names: str) -> Found:
    """Read everything. `names` is the prefix of the names of the game's workers."""
    recorded = connection.execute("show track_commit_timestamp").fetchone() == ("on",)
    committed = "pg_xact_commit_timestamp(a.xmin)" if recorded else "a.ended_at"
    ours = {"ours": OURS, "names": f"{names}%"}
    tasks = connection.execute("select id, task from outlive.jobs where task like %(ours)s", ours)
    return Found(
        jobs={id: task.removeprefix(MODULE) for id, task in tasks},
        places=[(id, place) for id, place in connection.execute(_PLACES, ours)],
        attempts=[Attempt(*row) for row in connection.execute(_ATTEMPTS.format(committed=committed).encode(), ours)],
        starts=[Start(*row) for row in connection.execute("select token, pid from outlive_gameday.starts")],
        effects=[
            Effect(*row) for row in connection.execute("select job_id, token, spawned from outlive_gameday.effects")
        ],
        fenced=[token for (token,) in connection.execute("select token from outlive_gameday.fenced")],
        workers=[Worker(*row) for row in connection.execute(_WORKERS, ours)],
        completing=jobs.COMPLETING,
    )


def evidence(connection: db.Connection, ids: list[UUID]) -> list[dict[str, object]]:
    """The attempts of the jobs that break a rule."""
    rows = connection.execute(
        "select job_id, attempt, token, worker, outcome, state, error, signal, started_at, ended_at, failures, "
        "crashes, losses from outlive.attempts where job_id = any(%s) order by job_id, attempt",
        [ids],
    )
    names = [column.name for column in rows.description or ()]
    return [dict(zip(names, row, strict=True)) for row in rows]
