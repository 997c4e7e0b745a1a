-- Statements about schedules: what apps declare, which are due, how they fire, and what operators change.
-- call: declare_schedules(:schedules::json, :app::text)
-- call: check_schedules()
-- call: fire(:schedule::text, :seen_next::timestamptz, :seen_changed::timestamptz, :ticks::timestamptz[],
--   :following::timestamptz)
-- call: pause_schedule(:name::text)
-- call: resume_schedule(:name::text)
-- call: run_schedule(:name::text)
-- call: reset_schedule(:name::text)
-- call: remove_schedule(:name::text)

-- name: orphaned_schedules
-- What this worker declares and another app has taken over, of which no living worker declares it any more. Of the
-- living workers that do, the one that started last gets it.
select s.name from outlive.workers me join outlive.schedules s on s.name = any(me.schedules)
where me.id = :worker::uuid and s.declared is not null and s.declared_by <> me.app and not exists (
  select from outlive.workers k
  where s.name = any(k.schedules) and k.state in ('active', 'stale', 'draining')
    and (k.app = s.declared_by or (k.started_at, k.id) > (me.started_at, me.id)));

-- name: prune_schedules
-- Delete schedules that were withdrawn long enough ago.
delete from outlive.schedules s
where s.withdrawn_at < outlive.now() - :keep_s::double precision * interval '1 second';

-- name: due_schedules
-- The schedules that are due, or whose next firing must be computed, those in trouble last. There is always a row:
-- without a name, none is due. `upcoming`: when the next of the others is due.
select c.now,
  (select nullif(min(u.next_at), 'infinity') from outlive.schedules u
   where u.next_at > c.now and u.paused_at is null and u.withdrawn_at is null) as upcoming,
  s.name, s.cron, s.every_s, s.timezone, s.missed, s.starts_at, s.ends_at, s.next_at, s.changed_at, s.trouble
from (select outlive.now() as now) c
  left join outlive.schedules s
    on s.paused_at is null and s.withdrawn_at is null and (s.next_at is null or s.next_at <= c.now)
order by s.trouble is not null, s.next_at limit :limit::int;

-- name: note_trouble
-- Say why a schedule can't fire. Its next firing clears this. Zero rows: it was changed meanwhile, another worker
-- has fired it or said so, or a transaction has locked it, and the other schedules don't wait for that.
with seen as (
  select name from outlive.schedules
  where name = :schedule::text and next_at is not distinct from :seen_next::timestamptz
    and changed_at = :seen_changed::timestamptz and trouble is distinct from :trouble::text
  for update skip locked)
update outlive.schedules s set trouble = :trouble::text from seen where s.name = seen.name
returning s.name;

-- name: list_schedules
-- Every schedule, with the state of its last job, and the database's time.
select s.*, t.args, outlive.now() as now
from outlive.schedule_states s join outlive.schedules t on t.name = s.name order by s.name limit :limit::int;

-- name: schedule_infos
-- The schedules of these names, null for all, for programs, and the database's time. They are JSON as text: a
-- caller's connection may read other types in its own way.
select row_to_json(s)::text, outlive.now()
from (
  select s.*, t.args from outlive.schedule_states s join outlive.schedules t on t.name = s.name
  where :names::text[] is null or s.name = any(:names::text[])) s
order by s.name;

-- name: add_schedule
-- An operator makes a schedule. Zero rows: there is one of this name.
insert into outlive.schedules (
  name, task, args, cron, every_s, timezone, missed, overlap, jitter_s, starts_at, ends_at, queue, priority)
select :name::text, v.task, coalesce(v.args, '{}'), v.cron, v.every_s, coalesce(v.timezone, 'UTC'),
  coalesce(v.missed, 'once'), coalesce(v.overlap, 'queue'), coalesce(v.jitter_s, 0), v.starts_at, v.ends_at,
  v.queue, v.priority
from json_populate_record(null::outlive.schedules, :values::json) v
on conflict do nothing
returning name;

-- name: set_schedule
-- An operator changes a schedule. A column that is not named stays. One that is withdrawn and is given a task
-- belongs to no app any more, and is in force again. Zero rows: there is no such schedule.
with changed as (
  select (json_populate_record(s, :values::json)).*,
    s.withdrawn_at is not null and :values::json ->> 'task' is not null as owned
  from outlive.schedules s where s.name = :name::text for update)
update outlive.schedules s set
  (task, args, cron, every_s, timezone, missed, overlap, jitter_s, starts_at, ends_at, queue, priority) =
  (c.task, c.args, c.cron, c.every_s, c.timezone, c.missed, c.overlap, c.jitter_s, c.starts_at, c.ends_at, c.queue,
    c.priority),
  declared = case when not c.owned then s.declared end,
  declared_by = case when not c.owned then s.declared_by end,
  withdrawn_at = case when not c.owned then s.withdrawn_at end
from changed c where s.name = c.name
returning s.name;
