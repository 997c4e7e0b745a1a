-- Statements about workers: how one registers, shows that it is alive, is declared dead by others, and stops.
--
-- Lock order: `workers` by id, then `liveness`, then `sleepers`, then `watchers`. The statements that declare
-- workers dead skip locked rows of `workers`: another transaction writes a heartbeat of that worker, or declares
-- it dead too.

-- name: register_tasks
-- Write the limits of this worker's tasks, so that any reaper can apply them. The last worker to register wins.
insert into outlive.tasks (
  name, queue, source, max_attempts, max_crashes, max_losses, on_worker_death, quarantine_by, backoff_s,
  keep_finished_s, app_keep_finished_s, app_keep_failed_s, expires_s, deadline_s, on_failed, function, priority,
  signature, share, needs, updated_at)
select p.name, p.queue, p.source, p.max_attempts, p.max_crashes, p.max_losses, p.on_worker_death, p.quarantine_by,
  p.backoff_s, p.keep_finished_s, p.app_keep_finished_s, p.app_keep_failed_s, p.expires_s, p.deadline_s,
  p.on_failed, p.function, p.priority, p.signature, p.share, p.needs, outlive.now()
from json_populate_recordset(null::outlive.tasks, :policies::json) p order by p.name
on conflict (name) do update set
  (queue, source, max_attempts, max_crashes, max_losses, on_worker_death, quarantine_by, backoff_s,
   keep_finished_s, app_keep_finished_s, app_keep_failed_s, expires_s, deadline_s, on_failed, function, priority,
   signature, share, needs, updated_at) =
  (excluded.queue, excluded.source, excluded.max_attempts, excluded.max_crashes, excluded.max_losses,
   excluded.on_worker_death, excluded.quarantine_by, excluded.backoff_s, excluded.keep_finished_s,
   excluded.app_keep_finished_s, excluded.app_keep_failed_s, excluded.expires_s, excluded.deadline_s,
   excluded.on_failed, excluded.function, excluded.priority, excluded.signature, excluded.share, excluded.needs,
   excluded.updated_at);

-- name: register_worker
-- A worker registers under a new id; repeating it changes nothing. If it was declared dead under another id, it
-- says which, and the losses that this cost its jobs are taken back. Others judge it by its settings.
-- returns void
with registered as (
  insert into outlive.workers (id, name, hostname, pid, version, queues, slots, secret, started_at, last_seen,
    heartbeat_s, renew_s, stale_s, dead_s, alerts, labels, connections)
  values (:id::uuid, :name::text, :hostname::text, :pid::int, :version::text, :queues::text[], :slots::int,
    coalesce(:secret::uuid, gen_random_uuid()), outlive.now(), outlive.now(),
    coalesce(:heartbeat_s::double precision, 30), coalesce(:renew_s::double precision, 20),
    coalesce(:stale_s::double precision, 60), coalesce(:dead_s::double precision, 120), :alerts::text[],
    :labels::text[], :connections::int)
  on conflict (id) do nothing returning id)
select outlive.take_back(:formerly::uuid) from registered where :formerly::uuid is not null;

-- name: tell_tasks
-- A worker has imported its app, which has these tasks and declares these schedules.
-- returns void
update outlive.workers set tasks = :tasks::text[], app = :app::text, schedules = :schedules::text[]
where id = :worker::uuid;

-- name: rival_tasks
-- Those of these tasks that active workers of other apps have too, by app, those with another function first. It
-- is the same if one app runs under two names, as each backend of a project of Django does.
select k.app, bool_and(coalesce(d.function = t.function, true)) as same, array_agg(distinct t.name order by t.name)
from outlive.worker_states k join unnest(:tasks::text[], :functions::text[]) t(name, function)
    on t.name = any(k.tasks)
  left join outlive.tasks d on d.name = t.name
where k.state = 'active' and k.app <> :app::text
group by k.app, d.function = t.function order by same;

-- name: taken_over_tasks
-- Those of these tasks that have unfinished jobs, and another function than registered, by the other app whose
-- worker was the last to have them. It may be this app before a move, or a rival whose workers stopped.
with changed as materialized (
  select t.name from unnest(:tasks::text[], :functions::text[]) t(name, function)
    join outlive.tasks d on d.name = t.name and d.function <> t.function),
unfinished as (
  select l.task from outlive.waiting_lanes() l where exists (select from changed)
  union select l.task from outlive.held_lanes() l where exists (select from changed)
  union select r.task from outlive.running r where exists (select from changed))
select k.app, false as same, array_agg(c.name order by c.name)
from changed c join unfinished u on u.task = c.name, lateral (
  select w.app from outlive.workers w where c.name = any(w.tasks) order by w.started_at desc limit 1) k
where k.app <> :app::text
group by k.app;

-- name: heartbeat
-- A worker is alive. Zero rows: it was declared dead, and must register under a new id. A heartbeat that a crash
-- of the server loses costs nothing, so it need not wait for the disk. A worker that drains was told to stop: from
-- now on its death is not charged to its jobs. :reloaded is the request to reload that it has answered. The row
-- says whether an operator wants it to drain, when one last asked for a reload that is not answered, and how many
-- slots and which queues it is to have.
-- returns table (drain_requested boolean, reload_requested_at timestamptz, slots int, queues text[])
with hurry as (select set_config('synchronous_commit', 'off', true))
update outlive.workers k set
  last_seen = outlive.now(),
  state = :state::text,
  trouble = :trouble::text,
  memory_bytes = coalesce(:memory_bytes::bigint, k.memory_bytes),
  missed_at = null,
  reload_requested_at = nullif(k.reload_requested_at, :reloaded::timestamptz),
  reload_error = :reload_error::text,
  stop_requested_at = case when :state::text = 'draining' then coalesce(k.stop_requested_at, outlive.now()) end
from hurry
where k.id = :worker::uuid and k.state in ('active', 'stale', 'draining')
returning k.drain_requested_at is not null, k.reload_requested_at, k.slots, k.queues;

-- name: drain_workers
-- An operator wants the workers of a name to finish their jobs and stop. Zero rows: no such worker is alive.
with wanted as (
  update outlive.workers k set drain_requested_at = coalesce(k.drain_requested_at, outlive.now())
  where k.name = :name::text and k.state in ('active', 'stale', 'draining')
  returning k.id)
select w.id, pg_notify('outlive', 'drain') from wanted w;

-- name: set_worker
-- An operator gives the workers of a name other slots, or other queues; null: those that they have. No queues at
-- all: every queue. Zero rows: no such worker is alive.
with wanted as (
  update outlive.workers k set slots = coalesce(:slots::int, k.slots),
    queues = case when :queues::text[] is null then k.queues else nullif(:queues::text[], '{}') end
  where k.name = :name::text and k.state in ('active', 'stale', 'draining')
  returning k.id)
select w.id, pg_notify('outlive', 'set') from wanted w;

-- name: reload_workers
-- An operator wants the workers of a name to import their apps again. Zero rows: no such worker is active, or it
-- has no app of Python.
with wanted as (
  update outlive.workers k set reload_requested_at = outlive.now()
  where k.name = :name::text and k.state in ('active', 'stale') and k.app is not null
  returning k.id)
select w.id, pg_notify('outlive', 'reload') from wanted w;

-- name: stop_worker
-- A worker has stopped on purpose: no reaper looks for it, no enqueue notifies it, and it is no watcher. Attempts
-- that it could not end, because another transaction had locked them, are reaped, and are not charged.
-- returns void
with unwatched as (delete from outlive.liveness where worker = :worker::uuid),
woken as (delete from outlive.sleepers where worker = :worker::uuid),
left_seat as (delete from outlive.watchers where worker = :worker::uuid)
update outlive.workers set
  state = 'stopped', last_seen = outlive.now(), stop_requested_at = coalesce(stop_requested_at, outlive.now())
where id = :worker::uuid and state <> 'dead';

-- name: hold_liveness_lock
-- This session takes the advisory lock that proves a worker alive. Each session has a new key, so that an old one,
-- which the server may still hold open, is not in the way. Zero rows: the key is taken, try another one.
-- returns setof uuid
with watched as (
  update outlive.workers set watched = true, missed_at = null
  where id = :worker::uuid and (not watched or missed_at is not null))
insert into outlive.liveness (worker, key, postmaster_started, backend_pid, backend_started)
select :worker::uuid, :key::bigint, pg_postmaster_start_time(), pg_backend_pid(), a.backend_start
from pg_stat_get_activity(pg_backend_pid()) a, (select pg_try_advisory_lock(:key::bigint) as taken) t where t.taken
on conflict (worker) do update set
  (key, postmaster_started, backend_pid, backend_started) =
  (excluded.key, excluded.postmaster_started, excluded.backend_pid, excluded.backend_started)
returning worker;

-- name: limited_roles
-- The roles that have a limit of connections and have logged in as workers, by the sessions that show their lives:
-- the limit, what these workers may use, and how many connections of the role are used.
select r.rolname as role, r.rolconnlimit as allowed, count(*)::int as workers,
  sum(coalesce(w.connections, 1))::int as wanted,
  (select count(*) from pg_stat_activity u where u.usesysid = r.oid)::int as used
from outlive.worker_states w join outlive.liveness l on l.worker = w.id
  join pg_stat_activity a on a.pid = l.backend_pid join pg_roles r on r.oid = a.usesysid
where w.state in ('active', 'stale', 'draining') and r.rolconnlimit >= 0
group by r.oid, r.rolname, r.rolconnlimit order by 1;

-- name: absent
-- Workers that should hold their lock and don't: their sessions are gone; or they have taken no lock since the
-- server started or crashed, though they had before. One check proves nothing. The reaper checks again in the
-- same session, half a second later; those that have taken no lock have much longer (`note_missed`). A read-only
-- check finds none missing: no worker of a standby shows its life.
select m.worker, 'lock missing', m.key from outlive.missing_locks m
where current_setting('transaction_read_only') = 'off'
union all
select k.id, 'never locked', 0 from outlive.workers k
where k.watched and k.state in ('active', 'stale', 'draining') and not exists (
    select from outlive.liveness l where l.worker = k.id and l.postmaster_started = pg_postmaster_start_time())
  and current_setting('transaction_read_only') = 'off';

-- name: note_missed
-- Those of these workers that any reaper has missed for :for_s since the server started or crashed. The time is
-- kept here: reapers may die sooner than it passes, and a server that keeps crashing must not hide a death.
with found as materialized (
  select k.id, k.missed_at from outlive.workers k where k.id = any(:workers::uuid[])),
noted as (
  update outlive.workers k set missed_at = outlive.now() where k.id = any(array(
    select u.id from outlive.workers u
    where u.id = any(:workers::uuid[]) and u.missed_at is null and not exists (
      select from outlive.liveness l where l.worker = u.id and l.postmaster_started = pg_postmaster_start_time())
    order by u.id for update skip locked)))
select f.id from found f
where f.missed_at <= outlive.now() - :for_s::double precision * interval '1 second';

-- name: declare_dead
-- active, stale, draining -> dead: workers whose lock was missing in two checks and is missing now, or, with the
-- key 0, that have shown no life for long and show none now. Zero rows: they are alive, or another reaper declares
-- them dead. Their attempts are reaped after this. A worker that has stopped, or never registered, only leaves
-- `liveness`.
with known as (
  select k.id from outlive.workers k where k.id = any(:workers::uuid[]) order by k.id for update skip locked),
gone as (
  delete from outlive.liveness l
  using unnest(:workers::uuid[], :keys::bigint[]) g(worker, key) join outlive.missing_locks m using (worker, key)
  where l.worker = g.worker and l.key = g.key
    and (l.worker in (select k.id from known k)
      or not exists (select from outlive.workers k where k.id = l.worker))
  returning l.worker),
unseen as (
  select g.worker from unnest(:workers::uuid[], :keys::bigint[]) g(worker, key)
  where g.key = 0 and g.worker in (select k.id from known k) and not exists (
    select from outlive.liveness l
    where l.worker = g.worker and l.postmaster_started = pg_postmaster_start_time())),
outdated as (
  delete from outlive.liveness l where l.worker in (select u.worker from unseen u)),
dead as (
  select g.worker from gone g union all select u.worker from unseen u),
woken as (
  delete from outlive.sleepers s where s.worker in (select d.worker from dead d))
update outlive.workers k set
  state = 'dead', died_at = outlive.now(), died_of = :why::text,
  died_with = (select count(*) from outlive.running r where r.worker = k.id)
from dead where k.id = dead.worker and k.state in ('active', 'stale', 'draining')
returning k.id, k.name, k.hostname, k.pid, k.last_seen, k.died_of as why, k.died_with as running;

-- name: give_up_silent
-- active, draining -> stale: workers without a heartbeat for their stale_s. active, stale, draining -> dead: those
-- without a heartbeat for their dead_s that have renewed no lease since. A row is a worker that is dead now. `by`
-- is as for `expire`. :reconnected_s is how long one knows that the server was there: before that perhaps no
-- heartbeat could arrive, so no worker is dead that did not have the time for one and a half, and ten seconds to
-- reconnect. The server's age counts too, for one that did not wait itself; null: neither counts. Clients in
-- other languages can write any number: one that reaches back to before the first timestamp would be an error.
with reckoned as materialized (
  select least(outlive.now(), to_timestamp(:by::double precision)) as now),
silent as (
  select k.id, k.last_seen < c.now - least(k.dead_s, 1e10) * interval '1 second' and not exists (
      select from outlive.running r
      where r.worker = k.id and r.heartbeat_at >= c.now - least(k.dead_s, 1e10) * interval '1 second')
    and (:reconnected_s::double precision is null
      or 10 + 1.5 * k.heartbeat_s < least(:reconnected_s::double precision, case
        when k.last_seen < pg_postmaster_start_time()
        then extract(epoch from clock_timestamp() - pg_postmaster_start_time()) end)) as dead
  from outlive.workers k cross join reckoned c
  where k.state in ('active', 'stale', 'draining')
    and k.last_seen < c.now - least(k.stale_s, 1e10) * interval '1 second'
  order by k.id for update of k skip locked),
changed as (
  update outlive.workers k set
    state = case when s.dead then 'dead' else 'stale' end,
    died_at = case when s.dead then outlive.now() end,
    died_of = case when s.dead then format(:why::text, k.dead_s) end,
    died_with = case when s.dead then (select count(*) from outlive.running r where r.worker = k.id) end
  from silent s where k.id = s.id and (s.dead or k.state <> 'stale')
  returning k.*),
unwatched as (
  delete from outlive.liveness l where l.worker in (select c.id from changed c where c.state = 'dead')),
woken as (
  delete from outlive.sleepers s where s.worker in (select c.id from changed c where c.state = 'dead'))
select c.id, c.name, c.hostname, c.pid, c.last_seen, c.died_of as why, c.died_with as running
from changed c where c.state = 'dead';

-- name: untold_deaths
-- Workers that any reaper has declared dead lately, and for which no command was run. Only one caller gets each.
with untold as (
  select k.id from outlive.workers k
  where k.state = 'dead' and not k.told
    and k.died_at > outlive.now() - :within_s::double precision * interval '1 second'
  order by k.id limit :batch::int for update skip locked)
update outlive.workers k set told = true from untold u where k.id = u.id
returning k.id, k.name, k.hostname, k.pid, k.last_seen, k.died_of as why, k.died_with as running;

-- name: slowest
-- How long the slowest living worker may take until it renews its leases and beats again, at least :own_s.
select greatest(:own_s::double precision, max(greatest(k.renew_s, k.heartbeat_s))) from outlive.workers k
where k.state in ('active', 'stale', 'draining');

-- name: place
-- The server, since its start, and the database: what two addresses that reach the same one have in common.
select pg_postmaster_start_time()::text, d.oid::bigint from pg_database d where d.datname = current_database();

-- name: try_lock
-- Take an advisory lock in this session, if it is free.
select pg_try_advisory_lock(hashtextextended(:name::text, 0));

-- name: unlock
-- Give it back.
select pg_advisory_unlock(hashtextextended(:name::text, 0));

-- name: prune_workers
-- Delete workers that died or stopped long enough ago.
delete from outlive.workers k
where k.state in ('dead', 'stopped')
  and k.last_seen < outlive.now() - :keep_s::double precision * interval '1 second'
  and not exists (select from outlive.running r where r.worker = k.id);
