-- The audit: who did what to jobs, queues, sources, schedules, batches and workers.

create or replace function outlive.write_audit(entry uuid, who text, action text, what jsonb, jobs bigint)
returns void language sql
-- An action on many jobs takes several transactions, and each adds its jobs to the same entry.
begin atomic
  insert into outlive.audit as a (id, at, who, action, what, jobs)
  values (entry, outlive.now(), who, action, what, jobs)
  on conflict (id) do update set jobs = a.jobs + excluded.jobs;
end;

create or replace function outlive.act(verb text, ids uuid[], who text, what jsonb, entry uuid)
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- cancel, retry, repeat, release or prune jobs, and write that to the audit. Zero rows: no such job. A job that is
-- pruned has the state pruned.
declare
  one record;
  known uuid[];
  jobs bigint := 0;
begin
  if verb = 'prune' then
    known := array(select j.id from outlive.jobs j where j.id = any(ids));
    perform outlive.prune(known);
  end if;
  for one in
    select c.* from outlive.cancel(ids) c where verb = 'cancel'
    union all
    select r.* from outlive.retry(ids) r where verb = 'retry'
    union all
    select a.* from outlive.repeat(ids) a where verb = 'repeat'
    union all
    select f.* from outlive.release(ids) f where verb = 'release'
    union all
    select k.id, coalesce(s.state, 'pruned'), s.state is null,
      case when s.state in ('succeeded', 'failed', 'cancelled', 'quarantined')
        then 'another job needs its result, or another transaction has locked it'
        when s.state is not null then 'only finished and quarantined jobs can be pruned' end
    from unnest(known) k(id), lateral (select outlive.state_of(k.id) as state) s where verb = 'prune'
  loop
    id := one.id; state := one.state; changed := one.changed; note := one.note;
    jobs := jobs + changed::int;
    return next;
  end loop;
  if jobs > 0 then
    perform outlive.write_audit(entry, who, verb, what, jobs);
  end if;
end $$;
