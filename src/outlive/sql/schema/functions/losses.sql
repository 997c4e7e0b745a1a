-- Losses: attempts whose worker died or whose lease expired.

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
-- The same, for all of them or none.
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
  select outlive.follow_up(array_agg(s.id), array_agg(s.state), true) as changed
  from settled s having count(*) > 0)
select s.token, s.id, s.worker, s.name, s.state from settled s
-- Always true: it makes Postgres run `followed`.
where (select changed from followed) is not null;
$$;

create or replace function outlive.take_back_losses(tokens bigint[]) returns bigint language plpgsql as $$
-- These attempts were lost, and their jobs did not cause it: take back the loss that each of them cost its job, if
-- that is not finished and its losses were not cleared since. Each is marked, so it is taken back once, however
-- often this is called. Jobs that are held because of that loss wait again, or are suspects again. Returns how
-- many losses were taken back.
-- As in outlive.cancel, every wait for a lock comes before the first lock on `running`. After that, locked rows
-- are skipped and tried again for a quarter of a second: they are being renewed or moved, or end in their own
-- transaction.
declare
  rest bigint[];
  one bigint;
  lost record;
  w record;
  had int;
  now_has int;
  quarantined uuid[] := '{}';
  gained bigint := 0;
begin
  perform from outlive.jobs j
  where j.id in (select a.job_id from outlive.attempts a where a.token = any(tokens))
  order by j.id for no key update;
  rest := array(
    select a.token from outlive.attempts a
    where a.token = any(tokens) and a.outcome = 'lost' and a.loss is distinct from 'taken back' order by a.token);
  perform from outlive.waiting t
  where t.id in (select a.job_id from outlive.attempts a where a.token = any(rest)) order by t.id for update;
  perform from outlive.held t
  where t.id in (select a.job_id from outlive.attempts a where a.token = any(rest)) order by t.id for update;
  for look in 1..50 loop
    foreach one in array rest loop
      -- The last losses of a job count, as many as its counter says. It may have been cleared since this one.
      select a.job_id as job, a.attempt, (
          select count(*) from outlive.attempts b
          where b.job_id = a.job_id and b.attempt > a.attempt and b.outcome = 'lost'
            and b.loss is distinct from 'taken back') as later
      into lost from outlive.attempts a where a.token = one;
      had := null;
      delete from outlive.waiting t where t.id =
        (select l.id from outlive.waiting l where l.id = lost.job for update skip locked) returning t.* into w;
      if found then
        had := w.losses;
        now_has := had - (had > lost.later)::int;
        insert into outlive.waiting values (w.queue, w.source, w.task, w.priority, w.ready_at, w.id, w.attempt,
          w.failures, w.crashes, now_has);
      end if;
      -- A suspect is held for its losses, and so is a job whose last attempt says so; a job that was convicted
      -- or has crashed since is not.
      select h.*, p.max_losses as most into w from outlive.held h, lateral outlive.policy_of(h.id, h.task) p
      where h.id = lost.job and (h.why = 'key' or h.losses > 0 and (h.why = 'suspect' or h.why = 'quarantined'
        and exists (
          select from outlive.attempts a
          where a.job_id = h.id and a.attempt = h.attempt and a.outcome = 'lost' and a.state = 'quarantined')))
      for update of h skip locked;
      if found then
        had := w.losses;
        now_has := had - (had > lost.later)::int;
        if now_has = had or w.why = 'key' then
          update outlive.held h set losses = now_has where h.id = lost.job;
        else
          if w.why = 'quarantined' then
            quarantined := quarantined || lost.job;
          end if;
          if now_has > 0 and now_has >= w.most - 1 then
            update outlive.held h set
              why = 'suspect',
              since = outlive.now(),
              losses = now_has,
              ready_at = least(h.ready_at, outlive.now()),
              details = outlive.suspicion(now_has, w.most, outlive.share_of(w.task))
            where h.id = lost.job;
            perform outlive.requeue_keyed(array[lost.job], array[lost.job]);
          else
            delete from outlive.held h where h.id = lost.job;
            insert into outlive.waiting values (w.queue, w.source, w.task, w.priority,
              least(w.ready_at, outlive.now()), w.id, w.attempt, w.failures, w.crashes, now_has);
            perform outlive.requeue_keyed(array[lost.job], array[lost.job]);
            perform outlive.wake();
          end if;
        end if;
      end if;
      if had is null then
        select r.token, r.losses into w from outlive.running r where r.id = lost.job for update skip locked;
        had := w.losses;
        now_has := had - (had > lost.later)::int;
        update outlive.running r set losses = now_has where r.token = w.token and now_has < had;
      end if;
      -- The job is in no place and not finished: another transaction is moving it.
      continue when had is null and outlive.state_of(lost.job) in ('pending', 'retryable', 'running');
      rest := array_remove(rest, one);
      continue when had is null;
      update outlive.attempts a set
        loss = case when a.token = one then 'taken back' else a.loss end,
        error = case when a.token = one then a.error || '; its worker was alive: taken back' else a.error end,
        losses = a.losses - (now_has < had)::int
      where a.token = one or a.job_id = lost.job and a.attempt > lost.attempt and now_has < had;
      gained := gained + (now_has < had)::int;
    end loop;
    exit when cardinality(rest) = 0;
    perform pg_sleep(0.005);
  end loop;
  perform outlive.uncount_in_batches(quarantined, 'quarantined');
  return gained;
end $$;

create or replace function outlive.take_back(formerly uuid) returns bigint language sql
-- The worker `formerly` was declared dead and is alive: take back the losses that this cost its jobs. Losses from
-- before the worker's last heartbeat stay: the worker reported them itself, because its zygote died.
return outlive.take_back_losses(array(
  select a.token from outlive.attempts a join outlive.workers k on k.id = a.worker
  where a.worker = formerly and a.outcome = 'lost' and a.ended_at >= k.last_seen));

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

create or replace function outlive.lacking(task text) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp
-- The labels that a task needs, if no active worker has them all; else null.
return (
  select t.needs from outlive.tasks t
  where t.name = lacking.task and t.needs <> '{}' and not exists (
    select from outlive.workers k where k.state = 'active' and k.labels @> t.needs));
