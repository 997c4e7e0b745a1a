-- Statements about watchers: how a worker learns that a seat is vacant, takes it, keeps it and gives it up.

-- name: tick
-- What every worker asks once a second, and all that an idle one asks: the time, whether it was declared dead,
-- whether a seat is vacant, whether jobs are ready for its :tasks, whether there are alerts to send, and whether
-- transactions have left something to do (leftovers.sql). Nothing is asked that does not concern the caller: a
-- watcher needs no seat, and only watchers do what is left; a busy worker names no tasks and searches by itself.
-- The first part of `look` is the scan of `unsourced_lanes`.
with recursive mine as materialized (
  select q.name from outlive.open_queues q
  where cardinality(:tasks::text[]) > 0 and (:queues::text[] is null or q.name = any(:queues::text[]))),
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
select
  extract(epoch from outlive.now())::double precision as now,
  exists (select from outlive.workers k where k.id = :worker::uuid and k.state = 'dead') as dead,
  current_setting('transaction_read_only') = 'on' as read_only,
  not :watching::boolean and (select count(*) from outlive.watchers s where not outlive.vacant(s)) < 3 as vacant,
  exists (select from lane l where l.task = any(:tasks::text[]) and l.ready_at <= outlive.now())
    or exists (
      select from mine q, lateral (
        select from outlive.waiting w where w.queue = q.name and w.source > '' limit 1) s)
    or exists (
      select from outlive.held h
      where h.why = 'suspect' and h.task = any(:tasks::text[]) and h.ready_at <= outlive.now()) as look,
  :alerts::boolean and (
    exists (
      select from outlive.workers k
      where k.state = 'dead' and not k.told and k.died_at > outlive.now() - interval '1 minute')
    or exists (select from outlive.held h where h.why = 'quarantined' and not h.told)
    or exists (
      select from outlive.sources s
      where (s.paused_until is not null or s.told_paused_until is not null)
        and s.paused_until is distinct from s.told_paused_until)) as untold,
  :watching::boolean and (
    exists (select from outlive.key_turns)
    or exists (select from outlive.end_checks)
    or exists (select from outlive.keyed_jobs k where k.state = 'later' and k.ready_at <= outlive.now())
    or exists (select from outlive.expiring e where e.expires_at <= outlive.now())
    or exists (select from outlive.held h where h.why = 'suspended' and h.ready_at <= outlive.now())
    or exists (select from outlive.held h where h.why = 'suspect')) as leftover;

-- name: take_seat
-- A worker becomes a watcher, for :term_s. Zero rows: no seat is vacant any more, or the seat is left to workers
-- of other hosts, unless the caller takes it :anyway.
insert into outlive.watchers (seat, worker, key, until)
select n.seat, :worker::uuid, l.key, outlive.now() + :term_s::double precision * interval '1 second'
from generate_series(1, 3) n(seat) left join outlive.watchers s on s.seat = n.seat
  left join outlive.liveness l on l.worker = :worker::uuid and l.postmaster_started = pg_postmaster_start_time()
where (s.seat is null or outlive.vacant(s)) and (:anyway::boolean or not outlive.crowded(:worker::uuid, 4))
order by n.seat limit 1
on conflict (seat) do update set (worker, key, until) = (excluded.worker, excluded.key, excluded.until)
where outlive.vacant(watchers)
returning seat;

-- name: keep_seat
-- A watcher goes on for another term. Zero rows: another worker has its seat.
update outlive.watchers s set until = outlive.now() + :term_s::double precision * interval '1 second', key = (
  select l.key from outlive.liveness l
  where l.worker = :worker::uuid and l.postmaster_started = pg_postmaster_start_time())
where s.worker = :worker::uuid
returning s.seat;

-- name: leave_crowd
-- A watcher gives up its seat to a worker of another host, if it is not the first watcher of its own. Zero rows:
-- it keeps its seat.
delete from outlive.watchers s where s.worker = :worker::uuid and outlive.crowded(:worker::uuid, s.seat)
returning s.seat;
