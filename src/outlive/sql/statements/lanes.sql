-- Statements by which a worker finds work and goes to sleep.

-- name: unsourced_lanes
-- The lanes without a source that have jobs, with the earliest time at which a job in each is ready. A loose index
-- scan reads the part of each queue without a source, one step per lane and priority. Sources cost it nothing, nor
-- do queues that are paused or not this worker's. Tasks that this worker does not have are left out. A row without
-- a lane: a suspect waits. A row without a task: the queue is paused.
-- returns table (
--   queue text, source text, task text, priority smallint, ready_at timestamptz, ready boolean)
with recursive mine as materialized (
  select q.name from outlive.open_queues q where :queues::text[] is null or q.name = any(:queues::text[])),
lane as (
  select q.name as queue, n.task, n.priority, n.ready_at
  from mine q, lateral (
    select w.task, w.priority, w.ready_at from outlive.waiting w where w.queue = q.name and w.source = ''
    order by w.task, w.priority, w.ready_at, w.id limit 1) n
  union all
  select l.queue, n.task, n.priority, n.ready_at
  from lane l, lateral (
    select w.task, w.priority, w.ready_at from outlive.waiting w
    where w.queue = l.queue and w.source = '' and (w.task, w.priority) > (l.task, l.priority)
    order by w.task, w.priority, w.ready_at, w.id limit 1) n)
select l.queue, '' as source, l.task, l.priority,
  least(greatest(l.ready_at, '2000-01-01Z'), '9000-01-01Z') as ready_at, l.ready_at <= outlive.now() as ready
from lane l where l.task = any(:tasks::text[])
union all
select null, null, null, null, null, null
where exists (
  select from outlive.held h
  where h.why = 'suspect' and h.task = any(:tasks::text[]) and h.ready_at <= outlive.now()
    and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued'))
union all
select q.name, null, null, null, null, null from outlive.queues q where q.paused_at is not null;

-- name: sourced_lanes
-- The lanes of the next :batch sources that have jobs, after a queue and source: a loose index scan, in which a
-- source that admits nothing costs one step. A row without a task names a source that is closed, or whose bucket
-- is empty, and in how many seconds to ask again. `admits_all`: the source need not be asked. If the last
-- column stays below :batch, no source follows. A queue without sources is no step: there may be thousands.
-- returns table (
--   queue text, source text, task text, priority smallint, ready_at timestamptz, ready boolean,
--   admits_all boolean, wait_s double precision, n int)
with recursive mine as materialized (
  select q.name from outlive.open_queues q
  where (:queues::text[] is null or q.name = any(:queues::text[])) and q.name >= :after_queue::text collate "C"
    and exists (select from outlive.waiting w where w.queue = q.name and w.source > '')
  order by q.name limit :batch::int + 1),
pair as (
  select :after_queue::text collate "C" as queue, :after_source::text collate "C" as source, 0 as n
  union all
  -- The next source of the same queue, or else the beginning of the next queue.
  select s.queue, s.source, p.n + 1
  from pair p, lateral (
    (select w.queue, w.source from outlive.waiting w where w.queue = p.queue and w.source > p.source
       and exists (select from mine q where q.name = p.queue)
     order by w.queue, w.source limit 1)
    union all
    (select q.name, '' from mine q where q.name > p.queue order by q.name limit 1)
    limit 1) s
  where p.n < :batch::int)
select p.queue, p.source, l.task, l.priority, least(greatest(l.ready_at, '2000-01-01Z'), '9000-01-01Z'),
  l.ready_at <= outlive.now(), coalesce(outlive.admits_all(s), false), c.wait_s, p.n
from pair p
  left join outlive.sources s on s.name = p.source
  cross join lateral (
    select coalesce(greatest(
      case when not s.enabled then 30 end,
      extract(epoch from s.paused_until - outlive.now()),
      extract(epoch from s.wanted_until - outlive.now()),
      extract(epoch from s.full_at - outlive.now()) - (coalesce(s.set_burst, s.burst) - 1) * 60
        / coalesce(s.set_rate_limit_per_minute, s.rate_limit_per_minute)), 0)::double precision as wait_s) c
  left join lateral (
    with recursive lane as (
      (select w.task, w.priority, w.ready_at from outlive.waiting w
       where p.source <> '' and c.wait_s <= 0 and w.queue = p.queue and w.source = p.source
       order by w.task, w.priority, w.ready_at, w.id limit 1)
      union all
      select n.task, n.priority, n.ready_at
      from lane l, lateral (
        select w.task, w.priority, w.ready_at from outlive.waiting w
        where w.queue = p.queue and w.source = p.source and (w.task, w.priority) > (l.task, l.priority)
        order by w.task, w.priority, w.ready_at, w.id limit 1) n)
    select a.* from lane a where a.task = any(:tasks::text[])) l on true
where p.n > 0;

-- name: sleep
-- This worker wants to be notified. It looks for work once more after this, before it sleeps. One that was
-- declared dead and does not know it yet would be notified for ever, in place of a living one.
-- returns void
insert into outlive.sleepers (worker)
select :worker::uuid where not exists (
  select from outlive.workers k where k.id = :worker::uuid and k.state in ('dead', 'stopped'))
on conflict do nothing;

-- name: wake
-- This worker is busy: an enqueue need not notify it.
-- returns void
delete from outlive.sleepers where worker = :worker::uuid;
