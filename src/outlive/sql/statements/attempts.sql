-- Statements that begin, keep and end attempts. Each is one transition, fenced by token and worker.

-- name: end_and_claim
-- running -> succeeded, failed, retryable, pending, quarantined, cancelled   for each token that is still this worker's
-- pending, retryable -> running                                              for at most :limit jobs of the lanes offered
-- Tokens must be sorted. A row without an id is a token that deleted nothing: the attempt was given up, and nothing
-- of it is written. No other row for a lane: nothing in it is ready, or somebody else has it.
--
-- The pick scans each offered lane from its watermark, limits inside and out, and orders nothing above: so it locks
-- just what it takes. It is deleted by ctid because waiting's rows are never updated. A job over its crash limit
-- (the limit may have been lowered) is put into quarantine instead of being started. A worker that was given up
-- claims nothing: others would end what it has. Jobs that are claimed to wait behind others are not :begun, so that the
-- death of their worker is not charged to them; but a job that was claimed before may be what kills workers.
with me as materialized (
  select k.state = 'dead' as given_up, k.name, k.hostname from outlive.workers k where k.id = :worker::uuid),
ended as (
  delete from outlive.running r
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid
  returning r.*, width_bucket(r.token, :tokens::bigint[]) as n),
done as (
  insert into outlive.attempts (job_id, attempt, token, worker, outcome, state, peak_memory_bytes, cpu_s, output, result,
    started_at, ended_at, failures, crashes, losses, worker_name, hostname)
  select e.id, e.attempt, e.token, e.worker, 'succeeded', 'succeeded', (:peaks_bytes::bigint[])[e.n],
    (:cpus_s::double precision[])[e.n], (:outputs::text[])[e.n], (:results::json[])[e.n],
    e.started_at, (select outlive.now()), e.failures, e.crashes, e.losses, (select name from me), (select hostname from me)
  from ended e where coalesce((:outcomes::text[])[e.n], 'succeeded') = 'succeeded'
  returning job_id),
keys as (
  delete from outlive.dedupe_keys k where k.id = any(array(select job_id from done))),
undone as materialized (
  select outlive.settle(
    row(e.token, e.id, e.attempt, e.worker, e.lease_until, e.heartbeat_at, e.started_at, e.cancel_requested, e.alone,
      e.queue, e.source, e.task, e.priority, e.ready_at, e.failures, e.crashes, e.losses, e.begun)::outlive.running,
    (:outcomes::text[])[e.n], (:errors::text[])[e.n], (:exit_codes::int[])[e.n], (:signals::text[])[e.n],
    (:peaks_bytes::bigint[])[e.n], (:cpus_s::double precision[])[e.n], (:outputs::text[])[e.n], (:stacks::text[])[e.n],
    (:results::json[])[e.n], coalesce((:finals::boolean[])[e.n], false), (:afters_s::double precision[])[e.n]) as state
  from ended e where (:outcomes::text[])[e.n] <> 'succeeded'),
pick as materialized (
  select s.tid
  from unnest(:queues::text[], :sources::text[], :tasks::text[], :priorities::smallint[], :marks::timestamptz[], :quotas::int[])
         lane(queue, source, task, priority, mark, quota),
    lateral (
      select w.ctid as tid from outlive.waiting w
      where w.queue = lane.queue and w.source = lane.source and w.task = lane.task and w.priority = lane.priority
        and w.ready_at >= lane.mark and w.ready_at <= (select outlive.now())
      order by w.ready_at, w.id limit lane.quota for update skip locked) s
  where not coalesce((select given_up from me), false)
  limit :limit::int),
taken as (
  delete from outlive.waiting w where w.ctid = any(array(select tid from pick)) returning w.*),
started as (
  insert into outlive.running (id, attempt, worker, lease_until, heartbeat_at, started_at, queue, source, task, priority,
    ready_at, failures, crashes, losses, begun)
  select t.id, t.attempt + 1, :worker::uuid, (select outlive.now()) + :lease_s::double precision * interval '1 second',
    (select outlive.now()), (select outlive.now()), t.queue, t.source, t.task, t.priority,
    t.ready_at, t.failures, t.crashes, t.losses, :begun::boolean or t.attempt > 0
  from taken t where t.crashes = 0 or not outlive.caught(row(t.queue, t.source, t.task, t.priority, t.ready_at, t.id,
    t.attempt, t.failures, t.crashes, t.losses)::outlive.waiting)
  returning token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses)
select s.token, s.id, s.attempt, s.queue, s.source, s.task, s.priority, s.ready_at, s.failures, s.crashes, s.losses,
  outlive.carried(j.args), j.options
from started s join outlive.jobs j on j.id = s.id
union all
select g.token, null, null, null, null, null, null, null, null, null, null, null, null
from unnest(:tokens::bigint[]) g(token)
where cardinality(:tokens::bigint[]) <> (select count(*) from ended) and not exists (select from ended e where e.token = g.token)
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null from undone where state is null;

-- name: complete_with_records
-- running -> succeeded, with what the job has found and what it asks for next. The attempt may be stale: an error. So is
-- a key that somebody has written and not committed yet: others wait for this connection.
select set_config('lock_timeout', '100ms', true), outlive.complete_with_records(:token::bigint, :worker::uuid, :result::json, :records::json, :spawns::json,
  :peak_memory_bytes::bigint, :cpu_s::double precision, :output::text);

-- name: add_evidence
-- Keep what the worker knows of an attempt that has succeeded in its own transaction. Zero rows: it did not.
update outlive.attempts a
set peak_memory_bytes = :peak_memory_bytes::bigint, cpu_s = :cpu_s::double precision, output = :output::text
where a.token = :token::bigint and a.worker = :worker::uuid and a.outcome = 'succeeded';

-- name: locked_ends
-- Which of these attempts can't be ended now, because another transaction has locked their row or their job's dedupe key.
with free as materialized (
  select r.token, r.id from outlive.running r
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid
  order by r.token for update skip locked),
keys as materialized (
  select k.id from outlive.dedupe_keys k where k.id = any(array(select id from free))
  order by k.task, k.key for update skip locked)
select r.token from outlive.running r
where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid
  and (not exists (select from free f where f.token = r.token)
    or exists (select from outlive.dedupe_keys k where k.id = r.id and not exists (select from keys l where l.id = k.id)));

-- name: ended
-- Which of these attempts have ended, and how. A token that is not here is still running, or was never claimed.
select a.token, a.job_id, a.outcome, a.state from outlive.attempts a where a.token = any(:tokens::bigint[]);

-- name: renew
-- running -> running, with a new lease. A token that does not come back is gone, or locked by who is ending it:
-- read `ended` before judging. What is locked is skipped, so a job's own open transaction never blocks a renewal.
with mine as (
  select r.token from outlive.running r
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid
  order by r.token for update skip locked)
update outlive.running r
set lease_until = outlive.now() + :lease_s::double precision * interval '1 second', heartbeat_at = outlive.now()
from mine where r.token = mine.token
returning r.token, r.cancel_requested;

-- name: mark_begun
-- running -> running: these were claimed to wait behind others, and have begun. What is locked is just being ended.
with due as (
  select r.token from outlive.running r
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid and not r.begun
  order by r.token for update skip locked)
update outlive.running r set begun = true from due where r.token = due.token;

-- name: adopt
-- What this worker has, or some of it, as the database sees it: read after an unknown outcome, before anything else is
-- claimed.
select r.token, r.id, r.attempt, r.queue, r.source, r.task, r.priority, r.ready_at, r.failures, r.crashes, r.losses,
  outlive.carried(j.args), j.options, case when r.alone then outlive.alone_s(r.id) else 0 end
from outlive.running r join outlive.jobs j on j.id = r.id
where r.worker = :worker::uuid and (:tokens::bigint[] is null or r.token = any(:tokens::bigint[])) order by r.token;

-- name: tokens_of
-- The attempts that this worker has: what is in their rows may be unreadable.
select r.token from outlive.running r where r.worker = :worker::uuid order by r.token;

-- name: arguments
-- One part of the arguments of a job that runs, for those that a claim does not carry. Zero rows: it does not run any more.
select substring(convert_to(j.args::text, 'UTF8') from :part::int * :part_bytes::int + 1 for :part_bytes::int)
from outlive.running r join outlive.jobs j on j.id = r.id where r.token = :token::bigint;

-- name: cancels
-- Which of this worker's attempts a person wants stopped.
select r.token from outlive.running r where r.cancel_requested and r.worker = :worker::uuid;

-- name: write_progress
-- What jobs say of themselves; only while the attempt is still under way, and this worker's. Nothing here goes backwards
-- in its attempt; the next attempt begins without it, and keeps only the checkpoint.
with said as (
  select p.*, r.id, r.attempt from json_to_recordset(:progress::json)
    p(token bigint, current double precision, total double precision, message text, checkpoint json)
  join outlive.running r on r.token = p.token and r.worker = :worker::uuid)
insert into outlive.progress (job_id, attempt, current, total, message, checkpoint, updated_at)
select s.id, s.attempt, s.current, s.total, s.message, s.checkpoint, outlive.now() from said s
on conflict (job_id) do update set
  attempt = excluded.attempt,
  current = coalesce(excluded.current, case when progress.attempt = excluded.attempt then progress.current end),
  total = coalesce(excluded.total, case when progress.attempt = excluded.attempt then progress.total end),
  message = coalesce(excluded.message, case when progress.attempt = excluded.attempt then progress.message end),
  checkpoint = coalesce(excluded.checkpoint, progress.checkpoint),
  updated_at = excluded.updated_at;

-- name: checkpoints
-- What earlier attempts of these jobs have left for the next.
select p.job_id, p.checkpoint from outlive.progress p where p.job_id = any(:ids::uuid[]) and p.checkpoint is not null;

-- name: expire
-- running -> pending, retryable, quarantined, failed: attempts whose lease has ended are lost. Zero rows: none has.
with due as (
  select r.token from outlive.running r where r.lease_until < outlive.now()
  order by r.token limit :batch::int for update skip locked),
ended as (
  delete from outlive.running r where r.token = any(array(select token from due)) returning r as had, r.token, r.id, r.worker)
select e.token, e.id, e.worker, coalesce(k.name, e.worker::text) as locked_by,
  outlive.settle(e.had, 'lost', error => 'Worker died unexpectedly') as state
from ended e left join outlive.workers k on k.id = e.worker;

-- name: reap
-- running -> pending, retryable, quarantined, failed: the attempts of dead workers are lost. Zero rows: there are none.
with due as (
  select r.token from outlive.running r
  where r.worker in (select k.id from outlive.workers k where k.state = 'dead')
  order by r.token limit :batch::int for update skip locked),
ended as (
  delete from outlive.running r where r.token = any(array(select token from due)) returning r as had, r.token, r.id, r.worker)
select e.token, e.id, e.worker, coalesce(k.name, e.worker::text) as locked_by,
  outlive.settle(e.had, 'lost', error => 'Worker died unexpectedly') as state
from ended e left join outlive.workers k on k.id = e.worker;
