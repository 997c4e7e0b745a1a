-- The audit: who did what to jobs, queues, sources, schedules, batches and workers.

create or replace function outlive.write_audit(entry uuid, who text, action text, what jsonb, jobs bigint)
returns void language sql
-- An action on many jobs takes several transactions. Each adds its jobs to the same entry, with up to 1,000 ids.
begin atomic
  insert into outlive.audit as a (id, at, who, action, what, jobs)
  values (entry, outlive.now(), who, action, what, jobs)
  on conflict (id) do update set jobs = a.jobs + excluded.jobs,
    what = case when a.what ? 'ids' then jsonb_set(a.what, '{ids}',
      jsonb_path_query_array((a.what -> 'ids') || (excluded.what -> 'ids'), '$[0 to 999]')) else a.what end;
end;

create or replace function outlive.act(verb text, ids uuid[], who text, what jsonb, entry uuid)
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- cancel, retry, repeat, release or prune jobs, and write that to the audit, whose ids are those that it changed.
-- Zero rows: no such job. A job that is pruned has the state pruned.
declare
  one record;
  known uuid[];
  done uuid[] := '{}';
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
    done := case when changed then done || id else done end;
    return next;
  end loop;
  if done <> '{}' then
    if what ? 'ids' then
      done := array(select u from unnest(ids) u where u = any(done));
      what := jsonb_set(what, '{ids}', to_jsonb(done[:1000]));
    end if;
    perform outlive.write_audit(entry, who, verb, what, cardinality(done));
  end if;
end $$;
