-- Counts: how many jobs there are, without reading them all.
--
--     count_lanes     the jobs that wait, by lane and priority
--     count_finished  the jobs that have succeeded, failed or were cancelled, by state, queue and task
--     count_jobs      all jobs, by state, queue and task
--     end_rates       how many attempts ended per second lately
--
-- Up to 5,000 rows are counted. More are estimated from a sample of so many pages, and `estimated` says so. The
-- functions run with their owner's rights, so that a viewer can count what it may not read. Their plans are
-- pinned: a table that was filled a moment ago has no statistics.

-- The jobs that wait, by lane and priority.
create or replace function outlive.count_lanes(most_pages int default 400)
returns table (
  queue text, source text, task text, priority smallint, pending bigint, retryable bigint, ready bigint,
  oldest_ready_at timestamptz, estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  percent double precision := 100;  -- of the pages
  present timestamptz := outlive.now();
begin
  if (select count(*) from (select from outlive.waiting limit 5001) few) > 5000 then
    percent := least(100, 100.0 * most_pages * current_setting('block_size')::int
      / pg_relation_size('outlive.waiting'));
  end if;
  return query
  with recursive lane as (  -- A loose index scan finds also those that the sample misses.
    (select w.queue, w.source, w.task, w.priority, w.ready_at from outlive.waiting w
     order by w.queue, w.source, w.task, w.priority, w.ready_at, w.id limit 1)
    union all
    select n.* from lane l, lateral (
      select w.queue, w.source, w.task, w.priority, w.ready_at from outlive.waiting w
      where (w.queue, w.source, w.task, w.priority) > (l.queue, l.source, l.task, l.priority)
      order by w.queue, w.source, w.task, w.priority, w.ready_at, w.id limit 1) n),
  sampled as (
    select w.queue, w.source, w.task, w.priority, count(*) as waiting,
      count(*) filter (where w.failures + w.crashes > 0) as retryable,
      count(*) filter (where w.ready_at <= present) as ready
    from outlive.waiting w tablesample system (percent) group by 1, 2, 3, 4),
  counted as (
    select l.queue, l.source, l.task, l.priority, 0 as waiting, 0 as retryable, 0 as ready, l.ready_at from lane l
    union all
    select s.*, null from sampled s)
  select c.queue, c.source, c.task, c.priority,
    case when sum(c.waiting) = 0 then 1 else (sum(c.waiting - c.retryable) * 100 / percent)::bigint end,
    (sum(c.retryable) * 100 / percent)::bigint,
    case when sum(c.waiting) = 0 then (min(c.ready_at) <= present)::int
      else (sum(c.ready) * 100 / percent)::bigint end,
    min(c.ready_at), percent < 100
  from counted c group by 1, 2, 3, 4;
end $$;

-- The finished jobs, by state, queue and task.
create or replace function outlive.count_finished(most_pages int default 100)
returns table (state text, queue text, task text, jobs bigint, estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  many text[] := array(
    select s from unnest('{succeeded,failed,cancelled}'::text[]) s
    where (select count(*) from (select from outlive.attempts a where a.state = s limit 5001) few) > 5000);
  few text[] := array(select unnest('{succeeded,failed,cancelled}'::text[]) except select unnest(many));
  pages double precision := pg_relation_size('outlive.jobs') / current_setting('block_size')::double precision;
  percent double precision := least(100, 100.0 * most_pages / greatest(1, pages));
begin
  return query
  select f.state, j.queue, j.task, count(*), false
  from outlive.finished() f join outlive.jobs j on j.id = f.job_id
  where f.state = any(few) group by 1, 2, 3;
  if many <> '{}' then
    return query
    with sampled as materialized (
      -- A job that has failed or was cancelled may have been retried.
      select j.queue, j.task, case when a.state = 'succeeded' or coalesce(
        (select w.id from outlive.waiting w where w.id = j.id),
        (select r.id from outlive.running r where r.id = j.id),
        (select h.id from outlive.held h where h.id = j.id)) is null then a.state end as state
      from outlive.jobs j tablesample system (percent) left join lateral (
        select t.state from outlive.attempts t where t.job_id = j.id order by t.attempt desc limit 1) a on true),
    sample as (
      -- How many jobs a sampled one stands for. A table that was never analysed does not know its rows.
      select case when percent < 100 and c.reltuples > 0 and c.relpages > 0
        then c.reltuples / c.relpages * pages / greatest(1, (select count(*) from sampled))
        else 100 / percent end as weight
      from pg_class c where c.oid = 'outlive.jobs'::regclass)
    select s.state, s.queue, s.task, (count(*) * sample.weight)::bigint, percent < 100
    from sampled s, sample where s.state = any(many) group by 1, 2, 3, sample.weight;
  end if;
end $$;

-- All jobs, by state, queue and task.
create or replace function outlive.count_jobs()
returns table (state text, queue text, task text, jobs bigint, estimated boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp
begin atomic
  select n.state, l.queue, l.task, sum(n.jobs)::bigint, bool_or(l.estimated)
  from outlive.count_lanes() l, lateral (values ('pending', l.pending), ('retryable', l.retryable)) n(state, jobs)
  where n.jobs > 0 group by 1, 2, 3
  union all
  select 'running', r.queue, r.task, count(*), false from outlive.running r group by 2, 3
  union all
  select outlive.held_state(h.why, h.failures + h.crashes > 0), h.queue, h.task, count(*), false
  from outlive.held h group by 1, 2, 3
  union all
  select f.state, f.queue, f.task, f.jobs, f.estimated from outlive.count_finished() f;
end;

create or replace function outlive.end_rates() returns table (state text, per_s double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp
-- How many attempts ended per second in the last minute, or since the newest 2,000 of them.
begin atomic
  select s, count(*) / case when count(*) < 2000 then 60
    else greatest(extract(epoch from outlive.now() - min(a.ended_at)), 0.001) end::double precision
  from unnest('{succeeded,retryable,failed,quarantined,cancelled}'::text[]) s, lateral (
    select t.ended_at from outlive.attempts t
    where t.state = s and t.ended_at > outlive.now() - interval '1 minute' order by t.ended_at desc limit 2000) a
  group by s;
end;
