-- Statements that claim, keep, end and read attempts. What a worker writes is fenced by token and worker. The
-- reaper (expire, reap) locks the rows first.
-- call: inputs(:token::bigint, :first::int, :skip::int)

-- name: end_and_claim
-- Ends attempts, and claims jobs from the lanes, or, with :asks, as many as their sources admit. The first column
-- of each row has the tokens that the worker has lost. A row without a token: nothing was claimed, or its source
-- admits none, and the last column says when to ask again.
select ended.lost, claimed.*
from outlive.end_attempts(
    :worker::uuid, :tokens::bigint[], :outcomes::text[], :errors::text[], :exit_codes::int[], :signals::text[],
    :peaks_bytes::bigint[], :cpus_s::double precision[], :outputs::text[], :stacks::text[], :results::json[],
    :kills::boolean[], :finals::boolean[], :afters_s::double precision[], :memories::json[], true,
    :tooks_s::double precision[]) ended(lost)
  left join lateral (
    select c.*, null::double precision from outlive.claim_lanes(
      :worker::uuid, :queues::text[], :sources::text[], :tasks::text[], :priorities::smallint[],
      :marks::timestamptz[], :quotas::int[], :limit::int, :lease_s::double precision, :begun::boolean) c
    where not :asks::boolean
    union all
    select c.* from outlive.claim_sourced(
      :worker::uuid, :queues::text[], :sources::text[], :tasks::text[], :priorities::smallint[], :limit::int,
      :lease_s::double precision) c
    where :asks::boolean) claimed on true;

-- name: complete_with_records
-- running -> succeeded, with the job's records and the jobs that it spawns. An error: the worker has lost the
-- attempt, or waited 100 ms for a dedupe key or the key of a record; other ends wait for this connection.
select set_config('lock_timeout', '100ms', true), outlive.complete_with_records(
  :token::bigint, :worker::uuid, :result::json, :records::json, :spawns::json, :peak_memory_bytes::bigint,
  :cpu_s::double precision, :output::text, :memory::json, true, :took_s::double precision);

-- name: restart
-- running -> pending, cancelled: the job begins again with new arguments. An error: as above.
select set_config('lock_timeout', '100ms', true), outlive.restart(
  :token::bigint, :worker::uuid, :restart::json, :error::text, :peak_memory_bytes::bigint,
  :cpu_s::double precision, :output::text, :memory::json);

-- name: add_evidence
-- Add what the worker measured to an attempt that succeeded in its own transaction. Zero rows: it did not.
update outlive.attempts a
set peak_memory_bytes = :peak_memory_bytes::bigint, cpu_s = :cpu_s::double precision, output = :output::text,
  memory = :memory::json
where a.token = :token::bigint and a.worker = :worker::uuid and a.outcome = 'succeeded';

-- name: locked_ends
-- The attempts that can't end now: their row, their job's key or batch, or a job that waits for it is locked.
-- returns table (token bigint)
with free as materialized (
  select r.token, r.id from outlive.running r
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid
  order by r.token for update skip locked),
keys as materialized (
  select k.id from outlive.dedupe_keys k where k.id = any(array(select id from free))
  order by k.task, k.key for update skip locked),
dependents as materialized (
  select h.id from outlive.held h
  where h.id = any(array(
    select d.job_id from outlive.dependencies d where d.needs = any(array(select id from free)) and not d.met))
  order by h.id for update skip locked),
batches as materialized (
  select b.id from outlive.batches b
  where b.id in (select j.batch from outlive.jobs j where j.id = any(array(select id from free)))
  order by b.id for no key update skip locked)
select r.token from outlive.running r
where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid and (
  not exists (select from free f where f.token = r.token)
  or exists (
    select from outlive.dedupe_keys k where k.id = r.id and not exists (select from keys l where l.id = k.id))
  or exists (
    select from outlive.dependencies d
    where d.needs = r.id and not d.met and not exists (select from dependents l where l.id = d.job_id))
  or exists (
    select from outlive.jobs j join outlive.batches b on b.id = j.batch
    where j.id = r.id and not exists (select from batches l where l.id = b.id)));

-- name: ended
-- The attempts that have ended, and how. A token without a row is still running, or was never claimed.
select a.token, a.job_id, a.outcome, a.state from outlive.attempts a where a.token = any(:tokens::bigint[]);

-- name: take_back
-- This worker gave up these attempts although it was alive, and their jobs are not the cause. The losses that a
-- reaper has made of them are taken back. Returns how many.
select outlive.take_back_losses(array(
  select a.token from outlive.attempts a
  where a.token = any(:tokens::bigint[]) and a.worker = :worker::uuid and a.outcome = 'lost'));

-- name: next_tries
-- What these attempts have made of their jobs, and when the next one may begin. A token without a row is running.
-- outlive.retry makes the attempts of a failed job pending. After a failure or a crash nothing else does.
select a.token, s.state, (
  select w.ready_at from outlive.waiting w where w.id = a.job_id and w.attempt = a.attempt and s.state <> 'failed')
from outlive.attempts a, lateral (
  select case when a.state = 'pending' and a.outcome in ('failed', 'timed_out', 'out_of_memory', 'crashed')
    then 'failed' else a.state end) s(state)
where a.token = any(:tokens::bigint[]);

-- name: lost_runs
-- Attempts that a reaper has just ended, for those who watch from outside. A released one was not lost.
select a.token, a.job_id, a.attempt, j.queue, j.source, j.task, j.priority, j.ready_at, a.failures, a.crashes,
  a.losses, null, j.options, a.error, coalesce(a.started_at, a.ended_at), a.ended_at
from outlive.attempts a join outlive.jobs j on j.id = a.job_id
where a.token = any(:tokens::bigint[]) and a.outcome = 'lost';

-- name: renew
-- running -> running, with a new lease. A token without a row has ended, or is locked by the transaction that ends
-- it, which must not block a renewal: read `ended` before judging.
-- returns table (token bigint, cancel_requested boolean)
with mine as (
  select r.token from outlive.running r
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid
  order by r.token for update skip locked)
update outlive.running r
set lease_until = outlive.now() + :lease_s::double precision * interval '1 second', heartbeat_at = outlive.now()
from mine where r.token = mine.token
returning r.token, r.cancel_requested;

-- name: mark_begun
-- running -> running: these jobs waited behind others in their worker, and their code starts now. A token without
-- a row has ended, or another transaction has locked it, to end it or to wait for it: try again.
with due as (
  select r.token from outlive.running r
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid
  order by r.token for update skip locked)
update outlive.running r set begun = true from due where r.token = due.token returning r.token;

-- name: held_attempts
-- The attempts that the database has under this worker's id, all or some. A worker reads them after a statement of
-- unknown outcome, before it claims anything else.
select r.token, r.id, r.attempt, r.queue, r.source, r.task, r.priority, r.ready_at, r.failures, r.crashes,
  r.losses, outlive.carried(j.args), j.options, case when r.alone then outlive.alone_s(r.id) else 0 end
from outlive.running r join outlive.jobs j on j.id = r.id
where r.worker = :worker::uuid and (:tokens::bigint[] is null or r.token = any(:tokens::bigint[]))
order by r.token;

-- name: tokens_of
-- The tokens of this worker's attempts, without the jobs, which may be unreadable.
-- returns table (token bigint)
select r.token from outlive.running r where r.worker = :worker::uuid order by r.token;

-- name: arguments
-- One part of the arguments of a running job, if a claim does not carry them. Zero rows: the attempt has ended.
select substring(convert_to(j.args::text, 'UTF8') from :part::int * :part_bytes::int + 1 for :part_bytes::int)
from outlive.running r join outlive.jobs j on j.id = r.id where r.token = :token::bigint;

-- name: cancels
-- This worker's attempts that an operator wants stopped.
select r.token from outlive.running r where r.cancel_requested and r.worker = :worker::uuid;

-- name: write_progress
-- The progress that jobs report, only for attempts that still run in this worker. A report without a field keeps
-- the attempt's earlier one. The next attempt starts without progress.
with reported as (
  select p.*, r.id, r.attempt from json_to_recordset(:progress::json)
    p(token bigint, current double precision, total double precision, message text)
  join outlive.running r on r.token = p.token and r.worker = :worker::uuid)
insert into outlive.progress (job_id, attempt, current, total, message, updated_at)
select p.id, p.attempt, p.current, p.total, p.message, outlive.now() from reported p
on conflict (job_id) do update set
  attempt = excluded.attempt,
  current = coalesce(excluded.current, case when progress.attempt = excluded.attempt then progress.current end),
  total = coalesce(excluded.total, case when progress.attempt = excluded.attempt then progress.total end),
  message = coalesce(excluded.message, case when progress.attempt = excluded.attempt then progress.message end),
  updated_at = excluded.updated_at;

-- name: kept_by_jobs
-- The steps that these jobs have kept; null if they are large. No row: the job has kept none.
select s.job_id, case when sum(coalesce(octet_length(s.value::text), 0) + octet_length(s.name)) <= 65536
  then json_agg(json_build_array(s.name, s.value, s.arguments)) end
from outlive.steps s where s.job_id = any(:ids::uuid[]) group by s.job_id;

-- name: expire
-- running -> pending, retryable, quarantined, failed, cancelled: attempts whose lease has expired are lost.
-- Zero rows: no lease has expired. `by` is the time as the caller has reckoned it, so that a jump of the clock
-- since then ends no attempt; null trusts the clock. If the server has run for less than `young_s`, only leases
-- that were renewed since it started may have expired.
select l.token, l.id, j.task, l.worker, l.locked_by, l.state from outlive.end_lost(array(
  select r.token from outlive.running r
  where r.lease_until < least(outlive.now(), to_timestamp(:by::double precision)) and r.token > :after::bigint
    and (r.heartbeat_at >= pg_postmaster_start_time()
      or clock_timestamp() > pg_postmaster_start_time() + :young_s::double precision * interval '1 second')
  order by r.token limit :batch::int for update skip locked)) l
  left join outlive.jobs j on j.id = l.id;

-- name: reap
-- running -> pending, retryable, quarantined, failed, cancelled: the attempts of dead workers are lost, and those
-- that a worker left behind when it stopped are released. Zero rows: such workers have no attempts. `lately_s`:
-- only of those that ended in these last seconds. Without such a worker, `running` is not read: it may have a
-- million dead rows while another transaction holds a snapshot.
select l.token, l.id, j.task, l.worker, l.locked_by, l.state from outlive.end_lost(array(
  with gone as materialized (
    select k.id from outlive.workers k
    where k.state in ('dead', 'stopped') and (:lately_s::double precision is null
      or coalesce(k.died_at, k.last_seen) > outlive.now() - :lately_s::double precision * interval '1 second'))
  select r.token from outlive.running r
  where exists (select from gone) and r.worker in (select g.id from gone g) and r.token > :after::bigint
  order by r.token limit :batch::int for update skip locked)) l
  left join outlive.jobs j on j.id = l.id;
