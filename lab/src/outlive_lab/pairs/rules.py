"""What must hold whatever has happened, read from the tables. `outlive verify` has its own way to look.

Everything that is left for later is done when this is looked at: so no job may wait for what has happened.
"""

from __future__ import annotations

from outlive import states

_PLACES = """
with placed as (
  select id, 'waiting' as place, attempt from outlive.waiting
  union all select id, 'running', attempt - 1 from outlive.running
  union all select id, why, attempt from outlive.held),
ended as (
  select a.job_id as id, count(*) filter (where a.state in ('succeeded', 'failed', 'cancelled')) as times,
    max(a.attempt) as last from outlive.attempts a group by 1),
stated as (
  select j.*, p.place, p.attempt, coalesce(e.times, 0) as ends, coalesce(e.last, 0) as last, case
    when p.place is null then (
      select a.state from outlive.attempts a where a.job_id = j.id order by a.attempt desc limit 1)
    when p.place = 'quarantined' then 'quarantined' else 'unfinished' end as state
  from outlive.jobs j left join placed p on p.id = j.id left join ended e on e.id = j.id)
"""
_BROKEN = {
    "is in two places": "select id from placed group by id having count(*) > 1",
    "is lost": "select id from stated where place is null and ends = 0",
    "has ended, and has a place": "select id from stated where place is not null and ends > 0",
    "has ended twice": "select id from stated where ends > 1",
    "is not there, and has a place": "select id from placed where id not in (select id from outlive.jobs)",
    "is not there, and has attempts": "select id from ended where id not in (select id from outlive.jobs)",
    "begins again with the number of an earlier attempt": "select id from stated where attempt < last",
    "runs under a token that has ended": "select r.id from outlive.running r join outlive.attempts a using (token)",
    "has no dedupe key, and is not finished": """select id from stated where dedupe_key is not null
      and state in ('unfinished', 'quarantined') and id not in (select k.id from outlive.dedupe_keys k)""",
    "has its dedupe key, and is finished": """select k.id from outlive.dedupe_keys k
      where k.id not in (select id from placed)""",
    "waits or runs without a slot of its key": """select id from stated where concurrency_key is not null
      and place in ('waiting', 'running')
      and id not in (select job_id from outlive.keyed_jobs where state = 'admitted')""",
    "has a slot of its key, and does not run": """select job_id from outlive.keyed_jobs where state = 'admitted'
      and job_id not in (select id from placed where place in ('waiting', 'running', 'suspect'))""",
    "queues for a slot, and is not held": """select job_id from outlive.keyed_jobs where state <> 'admitted'
      and job_id not in (select id from placed where place in ('key', 'suspect'))""",
    "is held for its key, and queues for no slot": """select id from placed where place = 'key'
      and id not in (select job_id from outlive.keyed_jobs)""",
    "runs, and is one too many of its key": """select max(r.id::text)::uuid from outlive.running r
      join outlive.jobs j using (id) where j.concurrency_key is not null
      group by j.concurrency_key having count(*) > max(j.concurrency)""",
    "queues for a slot that is free": """select q.job_id from outlive.keyed_jobs q where q.state = 'queued'
      and q.most > (select count(*) from outlive.keyed_jobs a where a.key = q.key and a.state = 'admitted')
      and not exists (select from outlive.keyed_jobs f where f.key = q.key and f.state = 'queued'
        and (f.priority, f.ready_at, f.job_id) < (q.priority, q.ready_at, q.job_id))""",
    "runs or waits to be claimed although it waits for others": """select d.job_id from outlive.dependencies d
      join placed p on p.id = d.job_id where not d.met and p.place not in ('dependent', 'suspended')""",
    "waits for another number of jobs than it says": """select h.id from outlive.held h where h.unmet is distinct from (
      select count(*) from outlive.dependencies d where d.job_id = h.id and not d.met) and h.why = 'dependent'""",
    "waits for no job, and is not released": """select h.id from outlive.held h
      where h.why = 'dependent' and h.unmet = 0""",
    "waits for a job that has ended": """select d.job_id from outlive.dependencies d join stated s on s.id = d.needs
      where not d.met and (s.state = 'succeeded'
        or d.on_failure <> 'block' and s.state in ('failed', 'cancelled', 'quarantined'))""",
    "waits for a job that is not there": """select d.job_id from outlive.dependencies d
      where not d.met and d.needs not in (select id from outlive.jobs)""",
    "has succeeded, and its dependencies are kept": """select d.job_id from outlive.dependencies d
      left join stated s on s.id = d.job_id where coalesce(s.state, 'succeeded') = 'succeeded'""",
    # A note that is due may be left: an end passes by notes that a sweep has locked, and the next sweep deletes them.
    "has a deadline, and is finished": """select e.job_id from outlive.expiring e
      where e.job_id not in (select id from placed) and e.expires_at > outlive.now()""",
    "is a batch that counts wrongly": """select b.id from outlive.batches b, lateral (
        select count(*) filter (where s.state = 'unfinished') as unfinished,
          count(*) filter (where s.state = 'succeeded') as succeeded,
          count(*) filter (where s.state = 'failed') as failed,
          count(*) filter (where s.state = 'cancelled') as cancelled,
          count(*) filter (where s.state = 'quarantined') as quarantined
        from stated s where s.batch = b.id) n
      where b.succeeded < n.succeeded or b.failed < n.failed or b.cancelled < n.cancelled
        or b.quarantined < n.quarantined or b.closed_at is not null
        and b.jobs - (b.succeeded + b.failed + b.cancelled + b.quarantined) <> n.unfinished""",
    "is a batch that is done, or not, without a cause": """select b.id from outlive.batches b
      where (b.done_at is not null) <> (b.closed_at is not null
        and b.jobs = b.succeeded + b.failed + b.cancelled + b.quarantined)""",
    "is a callback that was not called": """select c.job
      from outlive.callbacks c join outlive.batches b on b.id = c.batch
      where b.done_at is not null and c.called_at is null
        and c.event in ('done', case when b.succeeded = b.jobs then 'success' else 'failure' end)""",
    "is a callback that was called, and not made, or the reverse": """select c.job from outlive.callbacks c
      where (c.called_at is not null) <> exists (select from outlive.jobs j where j.id = c.job)""",
    "has failed, and what it calls for that is missing": """select s.id from stated s
      where s.on_failed is not null and s.state in ('failed', 'quarantined')
        and not exists (select from outlive.jobs j where j.task = s.on_failed ->> 'task')""",
    "is left for later": "select needed[1] from outlive.end_checks",
    "has more failures, crashes or losses than attempts that ended so": """select c.id from (
      select id, failures, crashes, losses from outlive.waiting
      union all select id, failures, crashes, losses from outlive.running
      union all select id, failures, crashes, losses from outlive.held) c
      where c.failures > (select count(*) from outlive.attempts a where a.job_id = c.id
          and a.outcome in ('failed', 'timed_out', 'out_of_memory'))
        or c.crashes > (select count(*) from outlive.attempts a where a.job_id = c.id
          and a.outcome in ('crashed', 'out_of_memory'))
        or c.losses > (select count(*) from outlive.attempts a where a.job_id = c.id
          and a.outcome = 'lost' and a.loss is distinct from 'taken back')""",
}
QUERY = _PLACES + " union all ".join(
    f"select 'broken', q.id::text || ' {what}' from ({found}) q(id)" for what, found in _BROKEN.items()
)
STATES = "select 'state', j.id::text || ' ' || outlive.state_of(j.id) from outlive.jobs j"


_FOLLOWING = {"enqueue", "enqueue_after", "unblock", "abandon", "end_wait"}
"""Events that follow from others."""


def reachable(before: states.State | None, events: set[str]) -> set[states.State | None]:
    """Where a job can be after some of these events, by the page of all transitions."""
    found = {before}
    while more := {to for event in events | _FOLLOWING for one in found for to in states.legal(event, one)} - found:
        found |= more
    return found
