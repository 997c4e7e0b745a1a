"""A past to measure beside: jobs that ended in the last month, as a worker would have left them.

Plain SQL writes them, so that ten million take minutes. `outlive verify` finds nothing wrong with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlive import db
from outlive_lab.bench.databases import Database

DAYS = 30
CHUNK = 250_000
_WORKERS = """
insert into outlive.workers (id, name, hostname, pid, version, slots, state, started_at, last_seen)
select md5(n::text)::uuid, 'worker-' || n, 'host', n, '0.2', 8, 'stopped', now() - interval '31 days', now()
from generate_series(0, 99) n on conflict do nothing
"""
_BEGIN = "select extract(epoch from now()) - %s * 86400 - 60"
# Each kind of job has a part of a thousand, the outcomes of its attempts, and what these made of it. Of each job, what
# it is comes from hashes of its number, each with a seed of its own. A task has two jobs, whatever their number.
_PUT = """
with kind (parts, outcomes, states) as (values
  (int4range(0, 940), '{succeeded}'::text[], '{succeeded}'::text[]),
  (int4range(940, 960), '{failed,succeeded}', '{retryable,succeeded}'),
  (int4range(960, 965), '{lost,succeeded}', '{pending,succeeded}'),
  (int4range(965, 985), '{failed,failed,failed}', '{retryable,retryable,failed}'),
  (int4range(985, 999), '{cancelled}', '{cancelled}'),
  (int4range(999, 1000), '{crashed,crashed,crashed}', '{retryable,retryable,quarantined}')),
place as (
  select n, to_timestamp(%(began)s + %(days)s * 86400.0 * n / %(jobs)s) as at,
    abs(hashint8extended(n, 1) %% 1000)::int as part, abs(hashint8extended(n, 2) %% 100)::int as worker,
    abs(hashint8extended(n, 3) %% 100)::int as task, abs(hashint8extended(n, 4) %% 10000) / 10000.0 as luck
  from generate_series(%(first)s::bigint, %(last)s::bigint) n),
made as materialized (
  select p.*, k.*, p.luck * 10 * interval '1 second' as ran,
    overlay(overlay(lpad(to_hex((extract(epoch from p.at) * 1000)::bigint), 12, '0') || md5(p.n::text)
      placing '7' from 13) placing '8' from 17)::char(32)::uuid as id,
    case when p.n in (%(jobs)s / 3, %(jobs)s / 2) then 'pdf.render' when p.task < 60 then 'shop.fetch'
      when p.task < 85 then 'shop.parse' when p.task < 95 then 'shop.thumbnail' else 'mail.send' end as of_task,
    case when p.task %% 10 = 0 then 'slow' else 'bench' end as queue,
    case when p.task < 30 then 'source-' || p.task else '' end as source
  from place p join kind k on k.parts @> p.part),
jobs as (
  insert into outlive.jobs (id, task, queue, source, args, priority, ready_at, created_at)
  select id, of_task, queue, source, json_build_object('url', 'https://example.org/' || md5(n::text), 'number', n), 5,
    at, at
  from made order by n),
tried as materialized (
  select m.*, t.outcome, t.state, t.attempt::int as attempt, m.at + t.attempt * interval '11 seconds' as ended,
    cardinality(array_positions(m.outcomes[:t.attempt], 'failed')) as failures,
    cardinality(array_positions(m.outcomes[:t.attempt], 'crashed')) as crashes,
    cardinality(array_positions(m.outcomes[:t.attempt], 'lost')) as losses
  from made m, unnest(m.outcomes, m.states) with ordinality t(outcome, state, attempt)),
attempts as (
  insert into outlive.attempts (job_id, attempt, token, worker, outcome, state, error, signal, peak_memory_bytes, cpu_s,
    output, stack, result, started_at, ended_at, failures, crashes, losses, worker_name, hostname, queue, source, task)
  select id, attempt, nextval(pg_get_serial_sequence('outlive.running', 'token')), md5(worker::text)::uuid, outcome,
    state, case when outcome = 'failed' then 'ValueError: ' || md5(n::text) end,
    case when outcome = 'crashed' then 'SIGSEGV' end, (30 + 100 * luck)::bigint * 1000000, luck,
    case when outcome in ('failed', 'crashed') then repeat('a line of output ' || md5(n::text) || chr(10), 20)
      when luck < 0.2 then 'fetched ' || md5(n::text) || chr(10) end,
    case when outcome in ('failed', 'crashed') then repeat('  File "shop.py", line ' || part || chr(10), 10) end,
    case when outcome = 'succeeded' then json_build_object('bytes', part * 1000) end,
    ended - ran, ended, failures, crashes, losses,
    case of_task when 'pdf.render' then 'rare' else 'worker-' || worker end, 'host', queue, source, of_task
  from tried order by ended),
steps as (
  insert into outlive.steps (job_id, name, value, attempt, took_s, at)
  select id, 'step-' || s, json_build_object('row', part), 1, luck / 3, at
  from made, generate_series(1, 3) s where luck < 0.02)
insert into outlive.held (id, why, since, details, queue, source, task, priority, ready_at, attempt, failures, crashes,
  losses)
select id, 'quarantined', ended, 'killed its process 3 times', queue, source, of_task, 5, at, attempt, failures,
  crashes, losses
from tried where state = 'quarantined'
"""


@dataclass(frozen=True, slots=True)
class Past:
    """So many jobs, evenly spread over the last days; almost all are finished, one in a thousand is in quarantine."""

    jobs: int

    def put(self, database: Database) -> None:
        """Make them the only content of the database."""
        database.hold("emptied for a past", [])
        database.content = ""
        connection: db.Connection = database.connection
        connection.execute(_WORKERS)
        [(began,)] = connection.execute(_BEGIN, [DAYS]).fetchall()
        for first in range(0, self.jobs, CHUNK):
            last = min(first + CHUNK, self.jobs) - 1
            about = {"began": began, "days": DAYS, "jobs": self.jobs, "first": first, "last": last}
            connection.execute(_PUT, about)
        connection.execute("vacuum (analyze) outlive.steps, outlive.held")
        database.vacuum()
