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

-- name: claim_suspect
-- pending (suspect) -> running, alone: one job that must have a worker to itself; or -> quarantined, if it is over its
-- crash limit by now. The last column is for how many seconds it keeps the worker to itself. Zero rows: no suspect for
-- this worker.
with pick as (
  select h.id from outlive.held h
  where h.why = 'suspect' and h.task = any(:tasks::text[]) and (:queues::text[] is null or h.queue = any(:queues::text[]))
    and h.ready_at <= outlive.now()
    and not exists (select from outlive.workers k where k.id = :worker::uuid and k.state = 'dead')
    and not exists (select from outlive.queues q where q.name = h.queue and q.paused_at is not null)
    and (h.source = '' or outlive.admits_one(h.source))
  order by h.since, h.id limit 1 for update skip locked),
taken as (
  delete from outlive.held h where h.id in (select id from pick) returning h.*),
started as (
  insert into outlive.running (id, attempt, worker, lease_until, heartbeat_at, started_at, alone, queue, source, task, priority,
    ready_at, failures, crashes, losses)
  select t.id, t.attempt + 1, :worker::uuid, outlive.now() + :lease_s::double precision * interval '1 second', outlive.now(),
    outlive.now(), true, t.queue, t.source, t.task, t.priority, t.ready_at, t.failures, t.crashes, t.losses
  from taken t where t.crashes = 0 or not outlive.caught(row(t.queue, t.source, t.task, t.priority, t.ready_at, t.id,
    t.attempt, t.failures, t.crashes, t.losses)::outlive.waiting)
  returning token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses),
paid as materialized (
  select outlive.spend(o, 1, s.token) from started s join outlive.sources o on o.name = s.source)
select s.token, s.id, s.attempt, s.queue, s.source, s.task, s.priority, s.ready_at, s.failures, s.crashes, s.losses,
  outlive.carried(j.args), j.options, outlive.alone_s(s.id)
from started s join outlive.jobs j on j.id = s.id where (select count(*) from paid) <= 1;

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

-- name: ended
-- Which of these attempts have ended, and how. A token that is not here is still running, or was never claimed.
select a.token, a.job_id, a.outcome, a.state from outlive.attempts a where a.token = any(:tokens::bigint[]);

-- name: add_evidence
-- Keep what the worker knows of an attempt that has succeeded in its own transaction. Zero rows: it did not.
update outlive.attempts a
set peak_memory_bytes = :peak_memory_bytes::bigint, cpu_s = :cpu_s::double precision, output = :output::text
where a.token = :token::bigint and a.worker = :worker::uuid and a.outcome = 'succeeded';

-- name: adopt
-- What this worker has, or some of it, as the database sees it: read after an unknown outcome, before anything else is
-- claimed.
select r.token, r.id, r.attempt, r.queue, r.source, r.task, r.priority, r.ready_at, r.failures, r.crashes, r.losses,
  outlive.carried(j.args), j.options, case when r.alone then outlive.alone_s(r.id) else 0 end
from outlive.running r join outlive.jobs j on j.id = r.id
where r.worker = :worker::uuid and (:tokens::bigint[] is null or r.token = any(:tokens::bigint[])) order by r.token;

-- name: arguments
-- One part of the arguments of a job that runs, for those that a claim does not carry. Zero rows: it does not run any more.
select substring(convert_to(j.args::text, 'UTF8') from :part::int * :part_bytes::int + 1 for :part_bytes::int)
from outlive.running r join outlive.jobs j on j.id = r.id where r.token = :token::bigint;

-- name: tokens_of
-- The attempts that this worker has: what is in their rows may be unreadable.
select r.token from outlive.running r where r.worker = :worker::uuid order by r.token;

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

-- name: convict
-- running -> quarantined, for jobs just claimed and not begun: the same task with the same arguments has killed as often
-- as it may, as other jobs; or -> cancelled, if a person has asked for that. Zero rows: none of them is known.
with known as (
  select r.token, p.kills, p.max_crashes from outlive.running r, lateral outlive.policy_of(r.id, r.task) p
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid and r.crashes + p.kills >= p.max_crashes
  order by r.token for update of r skip locked),
caught as (
  delete from outlive.running r using known k where r.token = k.token returning r.*, k.kills, k.max_crashes),
quarantined as (
  insert into outlive.held (id, why, since, details, queue, source, task, priority, ready_at, attempt, failures, crashes, losses)
  select c.id, 'quarantined', outlive.now(), outlive.charge(c.crashes, c.kills, c.max_crashes), c.queue, c.source, c.task,
    c.priority, c.ready_at, c.attempt - 1, c.failures, c.crashes, c.losses
  from caught c where not c.cancel_requested)
select c.id, case when c.cancel_requested
  then outlive.finish_unclaimed(c.id, c.attempt - 1, c.failures, c.crashes, c.losses) end
from caught c;

-- name: crashing_tasks
-- Tasks of which several jobs have crashed lately, and that nobody was alerted to since. Zero rows: there is none.
with bad as (
  select c.task, count(distinct c.job_id) as jobs, count(*) as crashes, max(c.at) as last_at from outlive.crashes c
  where c.at > outlive.now() - :within_s::double precision * interval '1 second'
  group by c.task having count(distinct c.job_id) >= :jobs::int),
due as (
  select t.name from outlive.tasks t
  where t.name in (select b.task from bad b)
    and coalesce(t.alerted_at <= outlive.now() - :within_s::double precision * interval '1 second', true)
  order by t.name for update skip locked)
update outlive.tasks t set alerted_at = outlive.now() from due join bad on bad.task = due.name
where t.name = due.name
returning t.name as task, bad.jobs, bad.crashes, bad.last_at;

-- name: suspects_wait
-- Whether a suspect that this worker could run has waited for so long that somebody must make room for it.
select exists (
  select from outlive.held h
  where h.why = 'suspect' and h.task = any(:tasks::text[]) and (:queues::text[] is null or h.queue = any(:queues::text[]))
    and h.ready_at <= outlive.now() and h.since <= outlive.now() - :after_s::double precision * interval '1 second'
    and not exists (select from outlive.queues q where q.name = h.queue and q.paused_at is not null)
    and not exists (select from outlive.sources s where s.name = h.source
                    and (not s.enabled or coalesce(s.paused_until > outlive.now(), false))));

-- name: quarantine_killers
-- pending, retryable -> quarantined: jobs that have crashed as often as they may. Zero rows: there is none.
with due as (
  select w.id from outlive.waiting w, lateral outlive.policy_of(w.id, w.task) p
  where w.crashes > 0 and w.crashes >= p.max_crashes
  order by w.id limit :batch::int for update of w skip locked),
gone as (
  delete from outlive.waiting w where w.id = any(array(select id from due)) returning w as had, w.id)
select g.id from gone g where outlive.caught(g.had);

-- name: untold_killers
-- What was quarantined since somebody was told, by whoever and however, with the evidence. Only one who asks gets to know.
with untold as (
  select h.id from outlive.held h
  where h.why = 'quarantined' and not h.told and h.since <= outlive.now() - :after_s::double precision * interval '1 second'
  order by h.id limit :batch::int for update skip locked),
told as (
  update outlive.held h set told = true from untold u where h.id = u.id returning h.id)
select k.* from outlive.killers k where k.id = any(array(select id from told)) order by k.quarantined_at, k.id;

-- name: let_others_in
-- running, alone -> running: from now on other jobs may run beside a suspect, and its loss would prove nothing. Zero rows:
-- the attempt has ended, or its own transaction is ending it: it is still alone.
with mine as (
  select r.token from outlive.running r
  where r.token = :token::bigint and r.worker = :worker::uuid for update skip locked)
update outlive.running r set alone = false from mine where r.token = mine.token
returning r.token;
