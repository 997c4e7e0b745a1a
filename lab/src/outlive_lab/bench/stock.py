"""Jobs to measure with. Plain SQL writes them, because this is not where enqueueing is measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from outlive import db

TASK = "outlive.bench.noop"

# Ids grow as a client's do. The jobs become ready a microsecond apart, like those of one batch.
_PUT = """
with fresh as materialized (
  select (lpad(to_hex(clock.start + i), 16, '0') || substr(md5(i::text), 1, 16))::uuid as id,
    clock.now + %(ahead_s)s * interval '1 second' - (%(count)s - i) * interval '1 microsecond' as ready_at,
    %(source)s || case when %(lanes)s > 1 then lpad((i %% %(lanes)s)::text, 6, '0') else '' end as source,
    'bench' || case when %(queues)s > 1 then lpad((i %% %(queues)s)::text, 6, '0') else '' end as queue
  from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as start, statement_timestamp() as now) clock,
    generate_series(1, %(count)s::bigint) i),
asked as (
  insert into outlive.jobs (id, task, queue, source, args, priority, ready_at, fingerprint, created_at)
  select id, %(task)s, queue, source, json_build_object('url', %(url)s::text, 'number', 12345), %(priority)s, ready_at,
    '0123456789abcdef', ready_at
  from fresh),
known as (
  insert into outlive.sources (name, enabled, rate_limit_per_minute, burst)
  select distinct source, not %(paused)s, %(rate_per_minute)s::double precision, 1000 from fresh where source <> ''
  on conflict do nothing),
finished as (
  insert into outlive.attempts (job_id, attempt, token, worker, outcome, state, result, started_at, ended_at,
    failures, crashes, losses, queue, source, task)
  select id, 1, nextval(pg_get_serial_sequence('outlive.running', 'token')), '00000000-0000-4000-8000-000000000000',
    'succeeded', 'succeeded', 'true', ready_at, ready_at, 0, 0, 0, queue, source, %(task)s
  from fresh where %(finished)s),
sleeping as (
  insert into outlive.held (id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes, losses,
    step)
  select id, 'suspended', now(), queue, source, %(task)s, %(priority)s, ready_at, 1, 0, 0, 0, 'sleep'
  from fresh where %(sleeping)s)
insert into outlive.waiting (queue, source, task, priority, ready_at, id)
select queue, source, %(task)s, %(priority)s, ready_at, id from fresh
where not %(finished)s and not %(sleeping)s
order by source, ready_at
"""
_READY = """
select count(*) from outlive.waiting
where task = %(task)s and source = %(source)s and priority = %(priority)s and ready_at <= now()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """Jobs of one kind. With several lanes, each lane has its own source; several queues make lanes, too."""

    count: int
    task: str = TASK
    source: str = ""
    priority: int = 5
    ahead_s: float = 0.0
    lanes: int = 1
    queues: int = 1
    url: str = "https://example.org/page"
    finished: bool = False
    sleeping: bool = False
    """They are durable jobs that sleep until they become ready."""
    paused: bool = False
    """An operator has paused the source."""
    rate_per_minute: float | None = None
    """The rate of the source, with a burst of 1,000; None: it has no limits."""

    def put(self, connection: db.Connection, count: int | None = None) -> None:
        """Add all of the jobs, or only `count`."""
        connection.execute(_PUT, asdict(self) | ({} if count is None else {"count": count}))

    def fill_up(self, connection: db.Connection) -> int:
        """Add as many jobs as are missing in the lane. Returns how many are ready then."""
        [(ready,)] = connection.execute(_READY, asdict(self)).fetchall()
        if ready < self.count:
            self.put(connection, self.count - ready)
        return max(int(ready), self.count)
