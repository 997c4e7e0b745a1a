-- Limits by key: at most so many jobs with the same concurrency key run at a time, wherever they run.
-- outlive.check_links (dependencies.sql) refuses keys that make no sense.
--
-- A job that has a slot is admitted: it is in `waiting` or runs. All others are in `held`, where they slow
-- nothing. A job that is the only one of its key is admitted when it is enqueued, but is unsure: another may be
-- enqueued at the same time. The claim looks for that (outlive.keep_out), and knows nothing else of keys.
-- Only a job that can run at once is admitted. One that is due later, whose queue
-- is paused, or that is a suspect, for which a worker must be idle, waits as `later` and holds up no other.
-- (The functions don't ask for why = 'key': Postgres would read the index by why, and with it all jobs that
-- queue.)
--
-- A transaction that gives back a slot or queues a job leaves a row in `key_turns`, and notifies
-- worker/fleet/leftovers.py, which runs in watchers and in `outlive reap` and calls admit_due. That locks the
-- keys and then sees all that was committed before, so a free slot and a job that queues for it never miss each
-- other. Only the statements of workers lock keys: these commit at once. The transactions of clients and jobs may
-- stay open for long. A worker's statement that ends jobs admits the next ones itself, and leaves only the keys
-- that are locked. If no job queues for a key, it locks nothing.

create or replace function outlive.park_keyed(ids uuid[]) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- (none) -> pending: these jobs were just made and have no place yet. Those that have a key queue for a slot,
-- except those that wait for other jobs, which queue when they are released. If a key allows one job at a time and
-- this transaction sees no other job of it, the job is admitted here, unsure: keep_out decides.
begin
  with made as materialized (
    select j.id, j.queue, j.source, j.task, j.priority, j.ready_at, j.concurrency_key, j.concurrency
    from outlive.jobs j where j.id = any(ids) and j.concurrency_key is not null and j.after is null),
  first as materialized (
    select distinct on (m.concurrency_key) m.*
    from made m
    where m.concurrency = 1 and m.ready_at <= outlive.now()
      and not exists (select from outlive.keyed_jobs k where k.key = m.concurrency_key)
      and not exists (select from outlive.queues q where q.name = m.queue and q.paused_at is not null)
    order by m.concurrency_key, m.priority, m.ready_at, m.id),
  admitted as (
    insert into outlive.keyed_jobs
    select f.id, f.concurrency_key, 1, 'admitted', f.priority, outlive.now() from first f),
  placed as (
    insert into outlive.waiting (queue, source, task, priority, ready_at, id, unsure)
    select f.queue, f.source, f.task, f.priority, f.ready_at, f.id, true from first f),
  parked as (
    insert into outlive.held
    select m.id, 'key', outlive.now(), null, m.queue, m.source, m.task, m.priority, m.ready_at, 0, 0, 0, 0
    from made m where m.id not in (select f.id from first f)
    returning held.id)
  select array_agg(p.id) into ids from parked p;
  if ids is not null then
    perform outlive.leave_turns(outlive.queue_keyed(ids));
  end if;
end $$;

create or replace function outlive.keep_out(unsure outlive.waiting[]) returns uuid[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- A claim has just taken these jobs from `waiting`. Those whose key another job may have queue for a slot and must
-- not begin: they are returned. A job that is the only one of its key, in any state, needs no lock: an open
-- transaction that gives the slot to another job has found a row of the key that is seen here too, of that job or
-- of the one before it. And a job that is enqueued later, unsure too, sees this one when it is claimed.
declare
  others uuid[] := array(
    select w.id from unnest(unsure) w join outlive.keyed_jobs k on k.job_id = w.id
    where exists (select from outlive.keyed_jobs o where o.key = k.key and o.job_id <> k.job_id));
  locked text[] := '{}';
begin
  if others = '{}' then
    return others;
  end if;
  if outlive.sees_all() then
    locked := outlive.lock_keys(array(select k.key from outlive.keyed_jobs k where k.job_id = any(others)));
  end if;
  others := array(
    select k.job_id from outlive.keyed_jobs k
    where k.job_id = any(others) and (k.key <> all(locked) or exists (
      select from outlive.keyed_jobs o
      where o.key = k.key and o.state = 'admitted' and o.job_id <> k.job_id)));
  insert into outlive.held
  select w.id, 'key', outlive.now(), null, w.queue, w.source, w.task, w.priority, w.ready_at, w.attempt,
    w.failures, w.crashes, w.losses
  from unnest(unsure) w where w.id = any(others);
  perform outlive.requeue_keyed(others, others);
  return others;
end $$;

create or replace function outlive.follow_keys(ids uuid[], states text[], at_once boolean) returns void
language plpgsql set enable_seqscan = off as $$
-- These jobs have just reached these states. Those that hold a slot give it back, also if they are to run again: a
-- job that waits for its next attempt is in the way of no other.
begin
  if exists (select from outlive.keyed_jobs k where k.job_id = any(ids)) then
    perform outlive.requeue_keyed(ids, array(
      select j.id from unnest(ids, states) j(id, state) where j.state in ('pending', 'retryable')), at_once);
  end if;
end $$;

create or replace function outlive.requeue_keyed(
  ids uuid[], going uuid[] default '{}', at_once boolean default false) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- These jobs were moved. Those that have a slot give it back. Those of `going` that have a key and are in
-- `waiting` or suspects queue for one. Every function that puts an old job into `waiting` calls this. `at_once`:
-- the jobs whose turn it is are admitted now.
declare
  keys text[];
begin
  with gone as (delete from outlive.keyed_jobs k where k.job_id = any(ids) returning k.key)
  select coalesce(array_agg(distinct g.key), '{}') into keys from gone g;
  if cardinality(going) > 0 then
    with moved as (
      delete from outlive.waiting w using outlive.jobs j
      where w.id = any(going) and j.id = w.id and j.concurrency_key is not null returning w.*)
    insert into outlive.held
    select m.id, 'key', outlive.now(), null, m.queue, m.source, m.task, m.priority, m.ready_at, m.attempt,
      m.failures, m.crashes, m.losses
    from moved m;
    keys := keys || outlive.queue_keyed(going);
  end if;
  if at_once and keys <> '{}' then
    keys := array(
      select k.key from unnest(keys) k(key)
      where not outlive.sees_all() or exists (
        select from outlive.keyed_jobs q where q.key = k.key and q.state = 'queued')
      group by k.key order by outlive.key_bucket(k.key));
    keys := outlive.admit(keys);
  end if;
  perform outlive.leave_turns(keys);
end $$;

create or replace function outlive.queue_keyed(ids uuid[]) returns text[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- Those of these jobs that are held, have a key and are to run queue for a slot of it, or wait until they may.
-- Returns the keys for which jobs queue now. Nothing else decides whether a job may have a slot.
declare
  keys text[];
begin
  with going as (
    select h.id, j.concurrency_key, j.concurrency, h.priority, case
        when h.why = 'suspect' or exists (
          select from outlive.queues q where q.name = h.queue and q.paused_at is not null) then 'infinity'
        else h.ready_at end as ready_at
    from outlive.held h join outlive.jobs j on j.id = h.id
    where h.id = any(ids) and h.why not in ('blocked', 'quarantined', 'dependent', 'suspended')
      and j.concurrency_key is not null),
  queued as (
    insert into outlive.keyed_jobs
    select g.id, g.concurrency_key, g.concurrency,
      case when g.ready_at <= outlive.now() then 'queued' else 'later' end, g.priority, g.ready_at
    from going g returning key, state)
  select coalesce(array_agg(distinct q.key), '{}') into keys from queued q where q.state = 'queued';
  return keys;
end $$;

create or replace function outlive.requeue_queue(name text) returns void language plpgsql as $$
-- A queue was paused: its jobs give back their slots, and queue no more. Or it was resumed: they queue again. Jobs
-- that are being claimed or moved just now are left alone: the reaper comes back to them.
declare
  paused boolean := exists (
    select from outlive.queues q where q.name = requeue_queue.name and q.paused_at is not null);
  mine uuid[];
begin
  mine := array(
    select w.id from outlive.keyed_jobs k join outlive.waiting w on w.id = k.job_id
    where paused and k.state = 'admitted' and w.queue = name for update of w skip locked);
  mine := mine || array(
    select h.id from outlive.keyed_jobs k join outlive.held h on h.id = k.job_id
    where case when paused then k.state = 'queued' else k.state = 'later' and k.ready_at = 'infinity' end
      and h.queue = name and h.why = 'key'
    for update of h skip locked);
  perform outlive.requeue_keyed(mine, mine);
end $$;

create or replace function outlive.pause_queue(name text) returns void language plpgsql as $$
-- The queue's jobs are not claimed any more, and hold no slot of a key. Running jobs go on.
begin
  insert into outlive.queues (name, paused_at) values (pause_queue.name, outlive.now())
  on conflict on constraint queues_pkey do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);
  perform outlive.requeue_queue(name);
end $$;

create or replace function outlive.resume_queue(name text) returns boolean language plpgsql as $$
-- The queue's jobs are claimed again. False: it was not paused.
begin
  update outlive.queues q set paused_at = null where q.name = resume_queue.name and q.paused_at is not null;
  if not found then
    return false;
  end if;
  perform outlive.requeue_queue(name), outlive.wake();
  return true;
end $$;

create or replace function outlive.leave_turns(keys text[], notify boolean default true) returns void
language plpgsql as $$
-- Leave these keys for later. Keys that share a lock are neighbours, so that a part of many keys locks few.
begin
  if keys = '{}' then
    return;
  end if;
  insert into outlive.key_turns (keys)
  select array_agg(k.key order by k.n)
  from (
    select d.key, row_number() over (order by outlive.key_bucket(d.key)) as n
    from (select distinct unnest(keys) as key) d) k
  group by (k.n - 1) / 500;
  if notify and exists (select from outlive.sleepers) then
    perform pg_notify('outlive', 'follow');
  end if;
end $$;

create or replace function outlive.key_bucket(key text) returns int language sql immutable
-- All keys share 256 locks, so that a transaction with many keys takes no more than a few.
return (hashtextextended(key, 0) & 255)::int;

create or replace function outlive.lock_keys(keys text[]) returns text[]
language plpgsql set enable_seqscan = off set lock_timeout = '100ms' as $$
-- Lock these keys until the transaction ends, and return those that it has locked. After it has waited in vain for
-- one, it waits for no other.
declare
  wanted int[] := array(select distinct outlive.key_bucket(k.key) from unnest(keys) k(key));
  locked int[];
  refused int[];
begin
  locked := array(
    select l.bucket from outlive.key_locks l where l.bucket = any(wanted)
    order by l.bucket for no key update skip locked);
  refused := array(select unnest(wanted) except select unnest(locked) order by 1);
  if refused <> '{}' then
    begin
      insert into outlive.key_locks select unnest(refused) on conflict do nothing;  -- They are made as needed.
      perform from outlive.key_locks l where l.bucket = refused[1] for no key update;
      locked := locked || refused[1] || array(
        select l.bucket from outlive.key_locks l where l.bucket = any(refused[2:])
        order by l.bucket for no key update skip locked);
    exception when lock_not_available or deadlock_detected then
      null;
    end;
  end if;
  return array(select k.key from unnest(keys) k(key) where outlive.key_bucket(k.key) = any(locked));
end $$;

create or replace function outlive.admit(keys text[]) returns text[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
-- Admit the jobs that queue for these keys, as far as slots are free: by priority, then by ready_at. The first job
-- of a key is admitted if fewer jobs are than its own limit says, and none is admitted before it. Jobs whose rows
-- are locked are skipped. Returns the keys that need another look: they or their jobs are locked, or they are too
-- many for one transaction, or another transaction is giving back a slot. That has set xmax of its row, and may
-- not have seen the jobs that queue. If xmax is set later, it has: it looks for them after that.
declare
  most_at_once constant int := 500;
  locked text[];
  free text[];
  admitted int;
  any_admitted boolean := false;
begin
  if not outlive.sees_all() then
    return keys;  -- It would not see who was admitted since it began.
  end if;
  locked := outlive.lock_keys(keys[:most_at_once]);
  free := locked;
  loop
    with fitting as materialized (
      select s.job_id
      from unnest(free) n(key), lateral (
          select q.most from outlive.keyed_jobs q where q.key = n.key and q.state = 'queued'
          order by q.priority, q.ready_at, q.job_id limit 1) first, lateral (
          select count(*) as jobs from outlive.keyed_jobs k
          where k.key = n.key and k.state = 'admitted') taken, lateral (
          select l.job_id, bool_and(taken.jobs + l.n <= l.most) over (order by l.n) as fits
          from (
            select r.job_id, r.most, row_number() over (order by r.priority, r.ready_at, r.job_id) as n
            from (
              select q.job_id, q.most, q.priority, q.ready_at
              from outlive.keyed_jobs q join outlive.held h on h.id = q.job_id
              where q.key = n.key and q.state = 'queued'
              order by q.priority, q.ready_at, q.job_id limit greatest(0, first.most - taken.jobs)
              for update of q, h skip locked) r) l) s
      where s.fits),
    freed as (
      delete from outlive.held h where h.id = any(array(select f.job_id from fitting f)) and h.why <> 'suspect'
      returning h.*),
    placed as (
      insert into outlive.waiting
      select f.queue, f.source, f.task, f.priority, f.ready_at, f.id, f.attempt, f.failures, f.crashes, f.losses
      from freed f)
    update outlive.keyed_jobs k set state = 'admitted', ready_at = outlive.now()
    where k.job_id = any(array(select f.job_id from fitting f));
    get diagnostics admitted = row_count;
    any_admitted := any_admitted or admitted > 0;
    free := array(
      select n.key from unnest(free) n(key), lateral (
        select q.most from outlive.keyed_jobs q where q.key = n.key and q.state = 'queued'
        order by q.priority, q.ready_at, q.job_id limit 1) first
      where first.most > (
        select count(*) from (
          select from outlive.keyed_jobs k
          where k.key = n.key and k.state = 'admitted' and (k.xmax = '0' or k.xmax = k.xmin)
          limit first.most) taken));
    exit when free = '{}' or admitted = 0;
  end loop;
  if any_admitted then
    perform outlive.wake();
  end if;
  return keys[most_at_once + 1:] || free || array(
    select unnest(keys[:most_at_once]) except select unnest(locked));
end $$;

create or replace function outlive.take_slots(jobs uuid[]) returns setof uuid language plpgsql as $$
-- A worker is ready to run these suspects: each gets a slot of its key, or queues for one. Then it is admitted in
-- its turn, and keeps the slot for six seconds, so that a worker can ask again. Returns those that have a slot or
-- need none.
declare
  keys text[];
begin
  update outlive.keyed_jobs k set state = 'queued', ready_at = (
    select h.ready_at from outlive.held h where h.id = k.job_id)
  where k.job_id = any(jobs) and k.state = 'later';
  keys := array(select distinct k.key from outlive.keyed_jobs k where k.job_id = any(jobs) and k.state = 'queued');
  if keys <> '{}' then
    perform outlive.leave_turns(outlive.admit(keys));
  end if;
  return query select j.id from unnest(jobs) j(id) where not exists (
    select from outlive.keyed_jobs k where k.job_id = j.id and k.state <> 'admitted');
end $$;

create or replace function outlive.admit_due(batch int) returns int
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
-- Take the turns of jobs whose time has come, and those that others have left; and take back the slots of suspects
-- that no worker has claimed. Returns how many jobs and keys that concerns. If it is less than `batch`, no more is
-- due. A job is locked in `held` too: a verb that moves it at the same time must find its row here.
declare
  idle uuid[];
  due uuid[];
  keys text[];
begin
  idle := array(select h.id from outlive.held h where h.why = 'suspect');
  if idle <> '{}' then
    idle := array(
      select k.job_id from outlive.keyed_jobs k
      where k.job_id = any(idle) and k.state = 'admitted'
        and k.ready_at <= outlive.now() - interval '6 seconds');
    idle := array(select h.id from outlive.held h where h.id = any(idle) for update skip locked);
    perform outlive.requeue_keyed(idle, idle);
  end if;
  with ready as (
    delete from outlive.keyed_jobs k where k.job_id = any(array(
      select l.job_id from outlive.keyed_jobs l join outlive.held h on h.id = l.job_id
      where l.state = 'later' and l.ready_at <= outlive.now()
      order by l.ready_at limit batch for update of l, h skip locked))
    returning k.job_id)
  select array_agg(r.job_id) into due from ready r;
  with left_over as (
    delete from outlive.key_turns t where t.id = any(array(
      select l.id from (
        select r.id, sum(r.keys) over (order by r.id) - r.keys as before from (
          select t.id, cardinality(t.keys) as keys from outlive.key_turns t
          order by t.id limit batch for update skip locked) r) l
      where l.before < batch))
    returning t.keys)
  select coalesce(array_agg(k.key), '{}') into keys from left_over l, unnest(l.keys) k(key);
  batch := cardinality(keys) + coalesce(cardinality(due), 0);
  if batch > 0 then
    keys := keys || outlive.queue_keyed(due);
    -- What is locked now is looked at again in a second, without a notification.
    perform outlive.leave_turns(outlive.admit(array(
      select k.key from unnest(keys) k(key) group by k.key order by outlive.key_bucket(k.key))), notify => false);
  end if;
  return batch;
end $$;
