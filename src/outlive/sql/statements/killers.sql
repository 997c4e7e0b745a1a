-- Statements about jobs that kill their processes or their workers: suspects, quarantine, and alerts.

-- name: claim_suspect
-- pending (suspect) -> running: one suspect, alone, or more that share a process: of the first one's task, queue
-- and source, which have lost as many workers, as many as outlive.crowd says. :most has, for each of :tasks, how
-- many the worker can begin at once; null: one. None may wait there, because all are charged with its death. They
-- have the worker to themselves for as many seconds as the last column says. Or -> quarantined, if one is over its
-- crash limit by now. Zero rows: no suspect for this worker, or those found need a slot of their key, for which
-- they queue now. With :after_s it is not alone: a suspect that has waited for so long begins beside other jobs.
-- returns table (
--   token bigint, id uuid, attempt int, queue text, source text, task text, priority smallint,
--   ready_at timestamptz, failures smallint, crashes smallint, losses smallint, args json, options jsonb,
--   alone_s double precision)
with first as (
  select h.*, h as suspect from outlive.held h
  where h.why = 'suspect'
    and h.task = any(:tasks::text[])
    and (:queues::text[] is null or h.queue = any(:queues::text[]))
    and h.ready_at <= outlive.now()
    and (:after_s::double precision is null
      or h.since <= outlive.now() - :after_s::double precision * interval '1 second')
    and not exists (select from outlive.workers k where k.id = :worker::uuid and k.state = 'dead')
    and not exists (select from outlive.queues q where q.name = h.queue and q.paused_at is not null)
    and (h.source = '' or outlive.admits_one(h.source))
    and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued')
    and outlive.in_time(h.id)
  order by h.since limit 1 for update skip locked),
pick as (
  select p.id
  from first f,
    lateral (
      select h.id from outlive.held h
      where h.why = 'suspect' and h.queue = f.queue and h.source = f.source and h.task = f.task
        and h.losses = f.losses
        and (h.id = f.id or h.crashes = 0 and f.crashes = 0)  -- Others need a process of their own.
        and h.ready_at <= outlive.now()
        and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued')
        and outlive.in_time(h.id)
      order by h.since limit least(
        coalesce((:most::int[])[array_position(:tasks::text[], f.task)], 1), outlive.crowd(f.suspect), (
          select (outlive.admits(s, null, true)).free from outlive.sources s where s.name = f.source))
      for update skip locked) p),
free as materialized (
  select t.id from outlive.take_slots(array(select p.id from pick p)) t(id)),
taken as (
  delete from outlive.held h where h.id in (select f.id from free f) returning h.*),
started as (
  insert into outlive.running (
    id, attempt, worker, lease_until, heartbeat_at, started_at, alone, queue, source, task, priority, ready_at,
    failures, crashes, losses)
  select
    t.id, t.attempt + 1, :worker::uuid, outlive.now() + :lease_s::double precision * interval '1 second',
    outlive.now(), outlive.now(), :after_s::double precision is null and (select count(*) from free) = 1, t.queue,
    t.source, t.task, t.priority, t.ready_at, t.failures, t.crashes, t.losses
  from taken t
  where case when t.crashes = 0 then true else not outlive.keep_back(row(t.queue, t.source, t.task, t.priority,
    t.ready_at, t.id, t.attempt, t.failures, t.crashes, t.losses, null)::outlive.waiting) end
  returning token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses),
paid as materialized (
  select outlive.spend(o, n.jobs::int, n.token)
  from (select s.source, count(*) as jobs, max(s.token) as token from started s group by s.source) n
  join outlive.sources o on o.name = n.source)
select s.*, outlive.carried(j.args), j.options,
  case when :after_s::double precision is null then outlive.alone_s(s.id) else 0 end
from started s join outlive.jobs j on j.id = s.id where (select count(*) from paid) <= 1;

-- name: suspects_wait
-- Whether a suspect that this worker can run has waited so long that a worker must make room for it. None does for
-- one whose source will admit nothing for as long as that.
-- returns boolean
select exists (
  select from outlive.held h
  where h.why = 'suspect'
    and h.task = any(:tasks::text[])
    and (:queues::text[] is null or h.queue = any(:queues::text[]))
    and h.ready_at <= outlive.now()
    and h.since <= outlive.now() - :after_s::double precision * interval '1 second'
    and not exists (select from outlive.queues q where q.name = h.queue and q.paused_at is not null)
    and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued')
    and not exists (
      select from outlive.sources s, lateral outlive.admits(s, null, true) a
      where s.name = h.source and a.free < 1 and (a.open or a.wait_s > :after_s::double precision)));

-- name: make_room
-- This worker will claim nothing for :for_s at most, so that a suspect can run alone. Zero rows: another one does.
-- The time is in the row, and not a lock of a session, so that it holds behind a pooler too.
update outlive.workers k set room_until = outlive.now() + :for_s::double precision * interval '1 second'
where k.id = :worker::uuid and not exists (
  select from outlive.workers o
  where o.room_until > outlive.now() and o.state in ('active', 'stale', 'draining') and o.id <> k.id)
returning k.id;

-- name: end_room
-- It claims again.
update outlive.workers k set room_until = null where k.id = :worker::uuid;

-- name: end_time_alone
-- running, alone -> running: from now on other jobs may run beside the suspect, and its loss would prove nothing.
-- Zero rows: the attempt has ended, or its own transaction is ending it, and it is still alone.
-- returns setof bigint
with mine as (
  select r.token from outlive.running r
  where r.token = :token::bigint and r.worker = :worker::uuid for update skip locked)
update outlive.running r set alone = false from mine where r.token = mine.token
returning r.token;

-- name: convict
-- running -> quarantined, for jobs just claimed, before their code starts: other jobs with the same task and
-- arguments have killed up to the limit. Or -> cancelled, if an operator asked for that. Zero rows: none of them.
-- returns void
with known as (
  select r.token, p.kills, p.max_crashes from outlive.running r, lateral outlive.policy_of(r.id, r.task) p
  where r.token = any(:tokens::bigint[]) and r.worker = :worker::uuid and r.crashes + p.kills >= p.max_crashes
  order by r.token for update of r skip locked),
caught as (
  delete from outlive.running r using known k where r.token = k.token returning r.*, k.kills, k.max_crashes),
quarantined as (
  insert into outlive.held
  select c.id, 'quarantined', outlive.now(), outlive.charge(c.id, c.crashes, c.kills, c.max_crashes), c.queue,
    c.source, c.task, c.priority, c.ready_at, c.attempt - 1, c.failures, c.crashes, c.losses
  from caught c where not c.cancel_requested
  returning id)
select
  c.id,
  case when c.cancel_requested
    then outlive.finish_unclaimed(
      array[c.id], array[c.attempt - 1], array[c.failures], array[c.crashes], array[c.losses]) end,
  outlive.follow_up(array[c.id], array[case when c.cancel_requested then 'cancelled' else 'quarantined' end])
from caught c where (select count(*) from quarantined) >= 0;  -- First they are held: what follows reads why.

-- name: quarantine_killers
-- pending, retryable -> quarantined: jobs that have reached their crash limit. Zero rows: no job did.
with due as (
  select w.id from outlive.waiting w, lateral outlive.policy_of(w.id, w.task) p
  where w.crashes > 0 and w.crashes >= p.max_crashes
  order by w.id limit :batch::int for update of w skip locked),
gone as (
  delete from outlive.waiting w where w.id = any(array(select id from due)) returning w as had, w.id)
select g.id from gone g where outlive.keep_back(g.had);

-- name: untold_killers
-- Quarantined jobs that no alert has reported, with the evidence. Only one caller gets each. Without a :command
-- for it, the caller leaves them to a living worker that has one.
with untold as (
  select h.id from outlive.held h
  where h.why = 'quarantined' and not h.told
    and (:command::boolean or not exists (
      select from outlive.workers k where 'on_quarantine' = any(k.alerts) and k.state in ('active', 'draining')))
  order by h.id limit :batch::int for update skip locked),
told as (
  update outlive.held h set told = true from untold u where h.id = u.id returning h.id)
select k.*, (select a.worker from outlive.attempts a where a.job_id = k.id and a.attempt = k.attempt) as worker
from outlive.killers k where k.id = any(array(select id from told)) order by k.quarantined_at, k.id;

-- name: crashing_tasks
-- Tasks of which several jobs crashed lately, unless an alert reported them within this time. Zero rows: none. A
-- caller that has no :command for it leaves them to a living worker that has one.
with bad as (
  select c.task, count(distinct c.job_id) as jobs, count(*) as crashes, max(c.at) as last_at from outlive.crashes c
  where c.at > outlive.now() - :within_s::double precision * interval '1 second'
  group by c.task having count(distinct c.job_id) >= :jobs::int),
due as (
  select t.name from outlive.tasks t
  where t.name in (select b.task from bad b)
    and (:command::boolean or not exists (
      select from outlive.workers k where 'on_quarantine' = any(k.alerts) and k.state in ('active', 'draining')))
    and coalesce(t.alerted_at <= outlive.now() - :within_s::double precision * interval '1 second', true)
  order by t.name for update skip locked)
update outlive.tasks t set alerted_at = outlive.now() from due join bad on bad.task = due.name
where t.name = due.name
returning t.name as task, bad.jobs, bad.crashes, bad.last_at;

-- name: prune_crashes
-- Delete crashes that are old enough, by what the worker of their task has registered; :keep_s is for tasks that
-- none has. Those that a release has locked are left to it.
delete from outlive.crashes d where (d.task, d.fingerprint, d.token) in (
  select c.task, c.fingerprint, c.token from outlive.crashes c
  where c.at < outlive.now() - interval '1 second' * least(1e10, coalesce(
    (select t.app_keep_failed_s from outlive.tasks t where t.name = c.task), :keep_s::double precision))
  for update skip locked);
