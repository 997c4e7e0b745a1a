-- Statements by which a worker finds work and goes to sleep.

-- name: lanes
-- The lanes that have something, with the earliest moment something in each is ready: a loose index scan, one step per
-- lane and priority. Paused queues and sources that are closed are left out, and tasks that this worker does not have.
with recursive lane as (
  (select w.queue, w.source, w.task, w.priority, w.ready_at from outlive.waiting w
   order by w.queue, w.source, w.task, w.priority, w.ready_at, w.id limit 1)
  union all
  select n.queue, n.source, n.task, n.priority, n.ready_at
  from lane l, lateral (
    select w.queue, w.source, w.task, w.priority, w.ready_at from outlive.waiting w
    where (w.queue, w.source, w.task, w.priority) > (l.queue, l.source, l.task, l.priority)
    order by w.queue, w.source, w.task, w.priority, w.ready_at, w.id limit 1) n)
select l.queue, l.source, l.task, l.priority, l.ready_at, l.ready_at <= outlive.now() as ready
from lane l
where l.task = any(:tasks::text[]) and (:queues::text[] is null or l.queue = any(:queues::text[]))
  and not exists (select from outlive.queues q where q.name = l.queue and q.paused_at is not null)
  and not exists (select from outlive.sources s where s.name = l.source
                  and (not s.enabled or coalesce(s.paused_until > outlive.now(), false)));

-- name: sleep
-- This worker wants to be notified. It looks for work once more after this and before it sleeps.
insert into outlive.sleepers (worker) values (:worker::uuid) on conflict do nothing;

-- name: wake
-- This worker is busy: enqueuing need not notify it.
delete from outlive.sleepers where worker = :worker::uuid;

-- name: register_tasks
-- What this worker's tasks are like, so that a reaper anywhere can decide. The last word counts.
insert into outlive.tasks (name, queue, source, max_attempts, max_crashes, max_losses, on_worker_death, quarantine_by,
  backoff_s, updated_at)
select p.name, p.queue, p.source, p.max_attempts, p.max_crashes, p.max_losses, p.on_worker_death, p.quarantine_by,
  array(select value::double precision from json_array_elements_text(p.backoff_s) value), outlive.now()
from json_to_recordset(:policies::json) p(name text, queue text, source text, max_attempts int, max_crashes int, max_losses int,
  on_worker_death text, quarantine_by text, backoff_s json)
order by p.name
on conflict (name) do update set queue = excluded.queue, source = excluded.source, max_attempts = excluded.max_attempts,
  max_crashes = excluded.max_crashes, max_losses = excluded.max_losses, on_worker_death = excluded.on_worker_death,
  quarantine_by = excluded.quarantine_by, backoff_s = excluded.backoff_s, updated_at = excluded.updated_at;

-- name: cancels
-- Which of this worker's attempts a person wants stopped.
select r.token from outlive.running r where r.cancel_requested and r.worker = :worker::uuid;

-- name: write_progress
-- What jobs say of themselves; only while the attempt is still under way, and this worker's. Nothing here goes backwards
-- in its attempt.
with said as (
  select p.*, r.id, r.attempt from json_to_recordset(:progress::json)
    p(token bigint, current double precision, total double precision, message text, checkpoint json)
  join outlive.running r on r.token = p.token and r.worker = :worker::uuid)
insert into outlive.progress (job_id, attempt, current, total, message, checkpoint, updated_at)
select s.id, s.attempt, s.current, s.total, s.message, s.checkpoint, outlive.now() from said s
on conflict (job_id) do update set
  attempt = excluded.attempt,
  current = coalesce(excluded.current, progress.current), total = coalesce(excluded.total, progress.total),
  message = coalesce(excluded.message, progress.message), checkpoint = coalesce(excluded.checkpoint, progress.checkpoint),
  updated_at = excluded.updated_at;

-- name: checkpoints
-- What earlier attempts of these jobs have left for the next.
select p.job_id, p.checkpoint from outlive.progress p where p.job_id = any(:ids::uuid[]) and p.checkpoint is not null;
