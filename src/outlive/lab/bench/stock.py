"""Jobs to measure with, written by plain SQL: what enqueues them is not what is measured here."""

from __future__ import annotations

from dataclasses import dataclass

from outlive import db

TASK = "outlive.lab.bench.noop"
MOST_SOURCES = 1_000_000

# Ids grow as a client's do; the moments of readiness lie a microsecond apart, as those of one batch do.
_PUT = """
with fresh as materialized (
  select (lpad(to_hex(clock.start + i), 16, '0') || substr(md5(i::text), 1, 16))::uuid as id,
    clock.now + %(ahead_s)s * interval '1 second' - (%(count)s - i) * interval '1 microsecond' as ready_at,
    %(source)s || case when %(lanes)s > 1 then lpad((i %% %(lanes)s)::text, 6, '0') else '' end as source
  from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as start, statement_timestamp() as now) clock,
    generate_series(1, %(count)s::bigint) i),
asked as (
  insert into outlive.jobs (id, task, queue, source, args, priority, ready_at, fingerprint, created_at)
  select id, %(task)s, 'bench', source, '{"url": "https://example.org/page", "number": 12345}', %(priority)s, ready_at,
    '0123456789abcdef', ready_at
  from fresh),
finished as (
  insert into outlive.attempts (job_id, attempt, token, worker, outcome, state, result, started_at, ended_at,
    failures, crashes, losses)
  select id, 1, nextval(pg_get_serial_sequence('outlive.running', 'token')), '00000000-0000-4000-8000-000000000000',
    'succeeded', 'succeeded', 'true', ready_at, ready_at, 0, 0, 0
  from fresh where %(finished)s)
insert into outlive.waiting (queue, source, task, priority, ready_at, id)
select 'bench', source, %(task)s, %(priority)s, ready_at, id from fresh where not %(finished)s
order by source, ready_at
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """Jobs of one kind. With several lanes, each is a source of its own."""

    count: int
    task: str = TASK
    source: str = ""
    priority: int = 5
    ahead_s: float = 0.0
    lanes: int = 1
    finished: bool = False

    def put(self, connection: db.Connection, count: int | None = None) -> None:
        """Add them, or only so many of them."""
        values = {
            "count": self.count if count is None else count,
            "task": self.task,
            "source": self.source,
            "priority": self.priority,
            "ahead_s": self.ahead_s,
            "lanes": self.lanes,
            "finished": self.finished,
        }
        connection.execute(_PUT, values)
