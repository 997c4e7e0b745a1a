-- Losses: attempts whose worker died or whose lease expired.
--
--     end_lost           ends such attempts; the reaper says which
--     end_lost_together  the same, all of them or none
--     take_back          undoes the losses of a worker that was declared dead and is alive
--     silent_workers     workers that have lost their session, for people who look before a reaper does

create or replace function outlive.end_lost(tokens bigint[])
returns table (token bigint, id uuid, worker uuid, locked_by text, state text)
language plpgsql set lock_timeout = '100ms' as $$
-- running -> pending, retryable, quarantined, failed, cancelled. The caller has locked these rows of `running`.
-- An attempt that can't end now, because it needs what another transaction has locked (a dedupe key, a batch, a
-- job that waits for it), is left for the next time, and delays no other. Its row comes back without a state.
declare
  one bigint;
  refused int := 0;
begin
  return query select l.* from outlive.end_lost_together(tokens) l;
exception when others then
  perform set_config('lock_timeout', '5ms', true);
  foreach one in array tokens loop
    begin
      return query select l.* from outlive.end_lost_together(array[one]) l;
    exception when others then
      if sqlstate not in ('55P03', '40P01') then
        raise warning 'the lost attempt % can''t end: %', one, sqlerrm;
      end if;
      refused := refused + 1;
      if refused = 20 then
        perform set_config('lock_timeout', '1ms', true);
      end if;
      return query select r.token, r.id, r.worker, null::text, null::text
        from outlive.running r where r.token = one;
    end;
  end loop;
end $$;

create or replace function outlive.end_lost_together(tokens bigint[])
returns table (token bigint, id uuid, worker uuid, locked_by text, state text) language sql as $$
with ended as (
  delete from outlive.running r where r.token = any(tokens)
  returning r as had, r.token, r.id, r.worker),
settled as materialized (
  select e.token, e.id, e.worker, coalesce(k.name, e.worker::text) as name,
    outlive.settle(e.had, 'lost', error => case k.state
      when 'dead' then 'Worker died unexpectedly'
      when 'stopped' then 'its worker stopped'
      else 'its lease expired' end) as state
  from ended e left join outlive.workers k on k.id = e.worker),
followed as materialized (
  select outlive.follow_up(array_agg(s.id), array_agg(s.state)) as changed from settled s having count(*) > 0)
select s.token, s.id, s.worker, s.name, s.state from settled s
-- Always true: it makes Postgres run `followed`.
where (select changed from followed) is not null;
$$;

create or replace function outlive.take_back(formerly uuid) returns bigint language plpgsql as $$
-- The worker `formerly` was declared dead and is alive: take back the one loss that this cost each unfinished job.
-- Jobs that are held because of that loss wait again, or are suspects again. Returns how many jobs gained.
-- Losses from before the worker's last heartbeat stay: the worker reported them itself, because its zygote died.
-- As in outlive.cancel, every wait for a lock comes before the first lock on `running`. After that, locked rows
-- are skipped and tried again for a quarter of a second: they are being renewed or moved, or end in their own
-- transaction.
declare
  rest uuid[];
  job uuid;
  w record;
  had int;
  quarantined uuid[] := '{}';
  gained bigint := 0;
begin
  rest := array(
    select j.id from outlive.jobs j
    where j.id in (
      select a.job_id from outlive.attempts a join outlive.workers k on k.id = a.worker
      where a.worker = formerly and a.outcome = 'lost' and a.ended_at >= k.last_seen)
    order by j.id for no key update);
  perform from outlive.waiting t where t.id = any(rest) order by t.id for update;
  perform from outlive.held t where t.id = any(rest) order by t.id for update;
  for look in 1..50 loop
    foreach job in array rest loop
      had := null;
      delete from outlive.waiting t where t.id =
        (select l.id from outlive.waiting l where l.id = job for update skip locked) returning t.* into w;
      if found then
        had := w.losses;
        insert into outlive.waiting values (w.queue, w.source, w.task, w.priority, w.ready_at, w.id, w.attempt,
          w.failures, w.crashes, greatest(had - 1, 0));
      end if;
      -- A suspect is held for its losses, and so is a job whose last attempt says so; a job that was convicted
      -- or has crashed since is not.
      select h.*, p.max_losses as most into w from outlive.held h, lateral outlive.policy_of(h.id, h.task) p
      where h.id = job and (h.why = 'key' or h.losses > 0 and (h.why = 'suspect' or h.why = 'quarantined'
        and exists (
          select from outlive.attempts a
          where a.job_id = h.id and a.attempt = h.attempt and a.outcome = 'lost' and a.state = 'quarantined')))
      for update of h skip locked;
      if found then
        had := w.losses;
        if w.why = 'quarantined' then
          quarantined := quarantined || job;
        end if;
        if w.why = 'key' then
          update outlive.held h set losses = greatest(had - 1, 0) where h.id = job;
        elsif had > 1 and had >= w.most then
          update outlive.held h set
            why = 'suspect',
            since = outlive.now(),
            losses = had - 1,
            details = outlive.suspicion(had - 1, w.most)
          where h.id = job;
          perform outlive.requeue_keyed(array[job], array[job]);
        else
          delete from outlive.held h where h.id = job;
          insert into outlive.waiting values (w.queue, w.source, w.task, w.priority, w.ready_at, w.id, w.attempt,
            w.failures, w.crashes, had - 1);
          perform outlive.requeue_keyed(array[job], array[job]);
          perform outlive.wake();
        end if;
      end if;
      if had is null then
        select r.token, r.losses into w from outlive.running r where r.id = job for update skip locked;
        had := w.losses;
        update outlive.running r set losses = had - 1 where r.token = w.token and had > 0;
      end if;
      -- The job is in no place and not finished: another transaction is moving it.
      continue when had is null and outlive.state_of(job) in ('pending', 'retryable', 'running');
      gained := gained + coalesce(had > 0, false)::int;
      rest := array_remove(rest, job);
    end loop;
    exit when cardinality(rest) = 0;
    perform pg_sleep(0.005);
  end loop;
  perform outlive.uncount_in_batches(quarantined, 'quarantined');
  return gained;
end $$;

create or replace function outlive.silent_workers() returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
-- The workers whose session is gone although they did not stop: most likely they are dead. Workers and
-- `outlive reap` find out and declare them dead; while neither runs, views show them as stale. None on a standby,
-- where no worker shows its life.
begin
  if not pg_is_in_recovery() then
    return query select m.worker from outlive.missing_locks m;
  end if;
end $$;
