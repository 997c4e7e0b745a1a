-- Limits by key: at most so many jobs with the same concurrency key run at a time, wherever they run.
--
--     park_keyed     new jobs queue for a slot of their key
--     follow_keys    jobs have ended or go on: their slots are given back
--     requeue_keyed  jobs were moved: they give back their slots, and queue again if they are to run
--     lock_keys      locks keys
--     admit          gives free slots to the jobs that queue
--     take_turn      trigger: at commit, admits jobs of the keys that the transaction has freed or queued for
--     admit_due      admits the jobs whose time has come, and what commits have left
--
-- outlive.check_links (dependencies.sql) refuses keys that make no sense.
--
-- A job that has a slot is admitted: it is in `waiting` or runs. So claims know nothing of keys. All others are in
-- `held`, where they slow nothing. A suspect stays there when it is admitted. (The functions don't ask for why =
-- 'key': Postgres would read the index by why, and with it all jobs that queue.)
--
-- A transaction that gives back a slot or queues a job inserts a row into `key_turns`. The trigger on it runs when
-- the transaction commits. It locks the keys and then sees all that was committed before, so a free slot and a job
-- that queues for it never miss each other, and no long transaction holds the lock of a key. What can't be
-- admitted then stays in `key_turns`.

create or replace function outlive.park_keyed(ids uuid[]) returns void language plpgsql as $$
-- (none) -> pending: these jobs were just made and have no place yet. Those that have a key queue for a slot,
-- except those that wait for other jobs, which queue when they are released.
begin
  with parked as (
    insert into outlive.held
    select j.id, 'key', outlive.now(), null, j.queue, j.source, j.task, j.priority, j.ready_at, 0, 0, 0, 0
    from outlive.jobs j where j.id = any(ids) and j.concurrency_key is not null and j.after is null),
  queued as (
    insert into outlive.keyed_jobs
    select j.id, j.concurrency_key, j.concurrency,
      case when j.ready_at <= outlive.now() then 'queued' else 'later' end, j.priority, j.ready_at
    from outlive.jobs j where j.id = any(ids) and j.concurrency_key is not null and j.after is null
    returning key, state)
  insert into outlive.key_turns (xid, keys)
  select pg_current_xact_id(), array_agg(distinct q.key) from queued q where q.state = 'queued'
  having count(*) > 0;
end $$;

create or replace function outlive.follow_keys(ids uuid[], states text[]) returns void
language plpgsql set enable_seqscan = off as $$
-- These jobs have just reached these states. Those that hold a slot give it back, also if they are to run again: a
-- job that waits for its next attempt is in the way of no other.
begin
  if exists (select from outlive.keyed_jobs k where k.job_id = any(ids)) then
    perform outlive.requeue_keyed(ids, array(
      select j.id from unnest(ids, states) j(id, state) where j.state in ('pending', 'retryable')));
  end if;
end $$;

create or replace function outlive.requeue_keyed(ids uuid[], going uuid[] default '{}') returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- These jobs were moved. Those that have a slot give it back. Those of `going` that have a key and are in
-- `waiting` or suspects queue for one. Every function that puts an old job into `waiting` calls this.
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
    with queued as (
      insert into outlive.keyed_jobs
      select h.id, j.concurrency_key, j.concurrency,
        case when h.ready_at <= outlive.now() then 'queued' else 'later' end, h.priority, h.ready_at
      from outlive.held h join outlive.jobs j on j.id = h.id
      where h.id = any(going) and h.why not in ('blocked', 'quarantined', 'dependent')
        and j.concurrency_key is not null
      returning key, state)
    select keys || coalesce(array_agg(distinct q.key), '{}') into keys from queued q where q.state = 'queued';
  end if;
  if cardinality(keys) > 0 then
    insert into outlive.key_turns (xid, keys) values (pg_current_xact_id(), keys);
  end if;
end $$;

create or replace function outlive.key_bucket(key text) returns int language sql immutable
-- All keys share 256 locks, so that a transaction with many keys takes no more than the server has room for.
return (hashtextextended(key, 0) & 255)::int;

create or replace function outlive.lock_keys(keys text[]) returns text[]
language plpgsql set lock_timeout = '100ms' as $$
-- Lock these keys until the transaction ends, and return those that it has locked. After it has waited in vain for
-- one, it waits for no other.
declare
  class constant int := 1869968492;  -- "outl"
  bucket int;
  refused int[] := '{}';
begin
  for bucket in select distinct outlive.key_bucket(k.key) from unnest(keys) k(key) order by 1 loop
    continue when pg_try_advisory_xact_lock(class, bucket);
    begin
      if refused = '{}' then
        perform pg_advisory_xact_lock(class, bucket);
        continue;
      end if;
    exception when lock_not_available or deadlock_detected then
      null;
    end;
    refused := refused || bucket;
  end loop;
  return array(select k.key from unnest(keys) k(key) where outlive.key_bucket(k.key) <> all(refused));
end $$;

create or replace function outlive.admit(keys text[]) returns text[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
-- Admit the jobs that queue for these keys, as far as slots are free: by priority, then by ready_at. The first job
-- of a key is admitted if fewer jobs are than its own limit says, and none is admitted before it. Jobs whose rows
-- are locked are skipped. Returns the keys that need another look: they or their jobs are locked, or they are too
-- many for one transaction.
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
    update outlive.keyed_jobs k set state = 'admitted'
    where k.job_id = any(array(select f.job_id from fitting f));
    get diagnostics admitted = row_count;
    any_admitted := any_admitted or admitted > 0;
    free := array(
      select n.key from unnest(free) n(key), lateral (
        select q.most from outlive.keyed_jobs q where q.key = n.key and q.state = 'queued'
        order by q.priority, q.ready_at, q.job_id limit 1) first
      where first.most > (
        select count(*) from (
          select from outlive.keyed_jobs k where k.key = n.key and k.state = 'admitted' limit first.most) taken));
    exit when free = '{}' or admitted = 0;
  end loop;
  if any_admitted then
    perform outlive.wake();
  end if;
  return keys[most_at_once + 1:] || free || array(
    select unnest(keys[:most_at_once]) except select unnest(locked));
end $$;

create or replace function outlive.take_turn() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
-- Admit the jobs whose turn it is by what this transaction has done. The first of its rows stands for all. Keys
-- that share a lock are neighbours, so that what is left of many keys locks few at a time.
declare
  keys text[];
begin
  if new.id <= nullif(current_setting('outlive.turns_taken', true), '')::bigint then
    return null;
  end if;
  perform set_config('outlive.turns_taken', max(t.id)::text, true)
  from outlive.key_turns t where t.xid = pg_current_xact_id();
  keys := array(
    select k.key from outlive.key_turns t, unnest(t.keys) k(key) where t.xid = pg_current_xact_id()
    group by k.key order by outlive.key_bucket(k.key));
  if cardinality(keys) > 0 then
    keys := outlive.admit(keys);
    insert into outlive.key_turns (keys)
    select array_agg(k.key order by k.n) from unnest(keys) with ordinality k(key, n) group by (k.n - 1) / 500;
    delete from outlive.key_turns t where t.xid = pg_current_xact_id();
  end if;
  return null;
end $$;

drop trigger if exists take_turn on outlive.key_turns;
create constraint trigger take_turn after insert on outlive.key_turns deferrable initially deferred for each row
when (new.xid is not null) execute function outlive.take_turn();

create or replace function outlive.admit_due(batch int) returns int
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
-- Take the turns of jobs whose time has come, and those that commits have left. Returns how many jobs and keys
-- that concerns. If it is less than `batch`, no more is due.
declare
  keys text[];
  concerned int;
begin
  with due as (
    select k.job_id from outlive.keyed_jobs k where k.state = 'later' and k.ready_at <= outlive.now()
    order by k.ready_at limit batch for update skip locked),
  ready as (
    update outlive.keyed_jobs k set state = 'queued' where k.job_id = any(array(select d.job_id from due d))
    returning k.key),
  left_over as (
    delete from outlive.key_turns t where t.id = any(array(
      select l.id from (
        select r.id, sum(r.keys) over (order by r.id) - r.keys as before from (
          select t.id, cardinality(t.keys) as keys from outlive.key_turns t
          order by t.id limit batch for update skip locked) r) l
      where l.before < batch))
    returning t.keys)
  select array(select r.key from ready r union select unnest(l.keys) from left_over l),
    (select count(*) from ready) + (select coalesce(sum(cardinality(l.keys)), 0) from left_over l)
  into keys, concerned;
  if cardinality(keys) > 0 then
    insert into outlive.key_turns (xid, keys) values (pg_current_xact_id(), keys);
  end if;
  return concerned;
end $$;
