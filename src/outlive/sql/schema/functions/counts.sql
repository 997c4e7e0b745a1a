-- Counts: how many jobs there are, without reading them all. One rule holds for every figure that people see:
-- small counts are exact, and large ones are estimated and say so.
--
--     exact_up_to     how many rows of a lane are counted
--     sample_pages    which pages of a table are read for an estimate
--     count_lanes     the jobs that wait, by lane and priority
--     count_ready     the jobs among these that could run now, for autoscalers: quick, and up to a bound
--     count_held      the jobs that are held, by state, queue, source and task
--     count_waits     the suspended ones among these, by what they wait for
--     count_finished  the jobs that have succeeded, failed or were cancelled, likewise
--     count_jobs      all jobs, likewise
--     end_rates       how many attempts ended per second lately
--     queue_rates     how many jobs of each queue ended per minute lately, and how long they had waited
--     ends_by_task    how the jobs of each task ended in the last hour
--
-- An index by lane finds every lane, and up to 10,000 rows of each are counted. What a lane has beyond that is
-- estimated from a sample of pages that are evenly spread over the table: the same table gives the same figure,
-- whichever command or page asks. The functions run with their owner's rights, so that a viewer can count what it
-- may not read. Their plans are pinned: a table that was filled a moment ago has no statistics.

create or replace function outlive.exact_up_to(lanes bigint) returns int language sql immutable
-- Fewer where there are many lanes, so that no more than some 200,000 rows are counted in all.
return least(10000, greatest(1000, 200000 / greatest(1, lanes)));

create or replace function outlive.sample_pages(name regclass, most int default 400)
returns table (first tid, past tid, weight double precision) language sql stable
-- Where the pages begin and end, and how many pages of the table each of them stands for.
begin atomic
  with size as (
    select pg_relation_size(name) / current_setting('block_size')::int as pages),
  step as (select s.pages, greatest(1, ceil(s.pages / most::double precision))::bigint as step from size s)
  select format('(%s,0)', n)::tid, format('(%s,0)', n + 1)::tid,
    s.pages / ceil((s.pages - s.step / 2) / s.step::double precision)
  from step s, generate_series(s.step / 2, s.pages - 1, s.step) n;
end;

create or replace function outlive.count_lanes()
returns table (
  queue text, source text, task text, priority smallint, pending bigint, retryable bigint, ready bigint,
  oldest_ready_at timestamptz, estimated boolean, retryable_estimated boolean, ready_estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_mergejoin = off set jit = off as $$
-- The jobs that wait, by lane and priority, and those among them that could run now. Ready jobs come first in the
-- index of a lane, so they are counted however many are scheduled behind them.
#variable_conflict use_column
declare
  bound int := outlive.exact_up_to((select count(*) from outlive.waiting_lanes()));
  present timestamptz := outlive.now();
begin
  return query
  with sampled as materialized (
    select w.queue, w.source, w.task, w.priority, sum(p.weight) as jobs,
      coalesce(sum(p.weight) filter (where w.failures + w.crashes > 0), 0) as retryable,
      coalesce(sum(p.weight) filter (where w.ready_at <= present), 0) as ready
    from outlive.sample_pages('outlive.waiting') p, lateral (
      select t.* from outlive.waiting t where t.ctid >= p.first and t.ctid < p.past offset 0) w
    group by 1, 2, 3, 4),
  lane as materialized (
    select l.queue, l.source, l.task, l.priority, c.jobs, c.ready, c.oldest, s.sampled, s.retryable,
      s.ready as sampled_ready, coalesce(s.sampled > 2 * bound, false) or c.jobs > bound as large,
      coalesce(s.ready > 2 * bound, false) or c.ready > bound as many_ready
    from outlive.waiting_lanes() l
      left join lateral (
        select n.jobs as sampled, n.retryable, n.ready from sampled n
        where n.queue = l.queue and n.source = l.source and n.task = l.task and n.priority = l.priority) s on true
      cross join lateral (
        select count(*) as jobs, count(*) filter (where w.ready_at <= present) as ready,
          min(w.ready_at) filter (where w.ready_at <= present) as oldest
        from (
          select t.ready_at from outlive.waiting t
          where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
            and t.ready_at <= case when s.sampled > 2 * bound then present else 'infinity' end
          order by t.ready_at limit case when s.ready > 2 * bound then 1 else bound + 1 end) w) c),
  failed as materialized (
    select l.queue, l.source, l.task, w.priority, count(*) as jobs,
      sum(count(*)) over (partition by l.queue, l.source, l.task) > bound as large
    from outlive.retryable_lanes() l, lateral (
      select t.priority from outlive.waiting t
      where t.queue = l.queue and t.source = l.source and t.task = l.task and t.failures + t.crashes > 0
      limit bound + 1) w
    group by 1, 2, 3, 4)
  select l.queue, l.source, l.task, l.priority, greatest(0, n.jobs - n.retryable), n.retryable,
    case when l.many_ready then greatest(l.ready, l.sampled_ready::bigint) else l.ready end, l.oldest, l.large,
    coalesce(f.large, false), l.many_ready
  from lane l
    left join failed f on f.queue = l.queue and f.source = l.source and f.task = l.task and f.priority = l.priority
    cross join lateral (
      select case when l.large then greatest(l.jobs, l.sampled::bigint) else l.jobs end as jobs,
        case when f.large then greatest(f.jobs, l.retryable::bigint) else coalesce(f.jobs, 0) end as retryable) n;
end $$;

create or replace function outlive.count_ready()
returns table (queue text, source text, task text, jobs bigint, oldest_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
-- The jobs that could run now, by queue, source and task. Some 5,000 are counted in all, and at least 10 of each
-- lane: an autoscaler needs no more.
#variable_conflict use_column
declare
  present timestamptz := outlive.now();
begin
  return query
  with lane as materialized (
    select l.*, greatest(10, 5000 / count(*) over ()) as bound from outlive.waiting_lanes() l)
  select l.queue, l.source, l.task, sum(c.jobs)::bigint, min(c.oldest_at)
  from lane l cross join lateral (
    select count(*) as jobs, min(w.ready_at) as oldest_at from (
      select t.ready_at from outlive.waiting t
      where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
        and t.ready_at <= present
      order by t.ready_at limit l.bound) w) c
  where c.jobs > 0 group by 1, 2, 3;
end $$;

create or replace function outlive.count_held()
returns table (state text, queue text, source text, task text, why text, jobs bigint, estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_mergejoin = off set jit = off as $$
-- The jobs that are held, by state, queue, source, task and the reason.
#variable_conflict use_column
declare
  bound int := outlive.exact_up_to((select count(*) from outlive.held_lanes()));
begin
  return query
  with lane as materialized (
    select l.*, (
      select count(*) from (
        select from outlive.held t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.why = l.why
          and (t.failures + t.crashes > 0) = l.failed limit bound + 1) few) as jobs
    from outlive.held_lanes() l),
  sampled as (
    select h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0 as failed, sum(p.weight) as jobs
    from outlive.sample_pages('outlive.held') p, lateral (
      select t.* from outlive.held t where t.ctid >= p.first and t.ctid < p.past offset 0) h
    where exists (select from lane l where l.jobs > bound)
    group by 1, 2, 3, 4, 5)
  select l.state, l.queue, l.source, l.task, l.why,
    case when l.jobs > bound then greatest(l.jobs, s.jobs::bigint) else l.jobs end, l.jobs > bound
  from lane l left join sampled s on s.queue = l.queue and s.source = l.source and s.task = l.task
    and s.why = l.why and s.failed = l.failed;
end $$;

create or replace function outlive.count_waits() returns table (kind text, jobs bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
-- The suspended jobs, by what they wait for. Many are estimated from a sample of pages.
#variable_conflict use_column
begin
  return query
  select case when h.signal is not null then 'signal' when h.unmet is not null then 'jobs' else 'time' end,
    sum(p.weight)::bigint
  from outlive.sample_pages('outlive.held') p, lateral (
    select t.* from outlive.held t where t.ctid >= p.first and t.ctid < p.past offset 0) h
  where h.why = 'suspended' group by 1;
end $$;

create or replace function outlive.count_finished()
returns table (state text, queue text, source text, task text, jobs bigint, estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_mergejoin = off set jit = off as $$
-- The finished jobs, by state, queue, source and task.
#variable_conflict use_column
declare
  bound int := outlive.exact_up_to((select count(*) from outlive.finished_lanes()));
begin
  return query
  with sampled as materialized (
    select a.queue, a.source, a.task, a.state, sum(p.weight) as jobs
    from outlive.sample_pages('outlive.attempts') p, lateral (
      select t.queue, t.source, t.task, t.state from outlive.attempts t
      where t.ctid >= p.first and t.ctid < p.past offset 0) a
    where a.state in ('succeeded', 'failed', 'cancelled')
    group by 1, 2, 3, 4),
  lane as materialized (
    select l.queue, l.source, l.task, l.state, s.jobs as sampled, (
      select count(*) from (
        select from outlive.attempts t
        where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
        limit case when s.jobs > 2 * bound then 0 else bound + 1 end) few) as jobs
    from outlive.finished_lanes() l left join sampled s on s.queue = l.queue and s.source = l.source
      and s.task = l.task and s.state = l.state)
  select l.state, l.queue, l.source, l.task,
    case when n.large then greatest(l.jobs, l.sampled::bigint) else l.jobs end, n.large
  from lane l, lateral (select coalesce(l.sampled > 2 * bound, false) or l.jobs > bound as large) n;
end $$;

create or replace function outlive.count_jobs()
returns table (state text, queue text, source text, task text, jobs bigint, estimated boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp
-- All jobs, by state, queue, source and task.
begin atomic
  select n.state, n.queue, n.source, n.task, sum(n.jobs)::bigint, bool_or(n.estimated)
  from (
    select w.state, l.queue, l.source, l.task, w.jobs, w.estimated
    from outlive.count_lanes() l, lateral (values
      ('pending', l.pending, l.estimated),
      ('retryable', l.retryable, l.retryable_estimated)) w(state, jobs, estimated)
    union all
    select h.state, h.queue, h.source, h.task, h.jobs, h.estimated from outlive.count_held() h
    union all
    select 'running', r.queue, r.source, r.task, 1, false from outlive.running r
    union all
    select f.state, f.queue, f.source, f.task, f.jobs, f.estimated from outlive.count_finished() f) n
  where n.jobs > 0 group by 1, 2, 3, 4;
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

create or replace function outlive.queue_rates()
returns table (queue text, per_minute double precision, estimated boolean, waited_s double precision[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
-- How many jobs of each queue ended per minute in the last five minutes, and how long the newest 200 of them had
-- waited for their first attempt: p50 and p95. Of a lane in which more ended than are counted, the newest say how
-- often jobs end. A queue that has finished jobs has a row.
#variable_conflict use_column
begin
  return query
  with lane as materialized (
    select l.queue, l.hash, least(1000, greatest(20, 20000 / count(*) over ())) as most
    from outlive.finished_lanes() l),
  ended as materialized (
    select l.queue, l.hash, l.most, a.* from lane l left join lateral (
      select t.job_id, t.attempt, t.started_at, t.ended_at from outlive.attempts t
      where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
        and t.ended_at > outlive.now() - interval '5 minutes'
      order by t.ended_at desc limit l.most) a on true),
  rated as (
    select e.queue, count(e.ended_at) = e.most as large, count(e.ended_at)
      / case when count(e.ended_at) < e.most then 5
        else greatest(extract(epoch from outlive.now() - min(e.ended_at)) / 60, 0.0001) end as per_minute
    from ended e group by e.queue, e.hash, e.most),
  begun as (
    select e.queue, e.job_id, e.started_at, row_number() over (partition by e.queue order by e.ended_at desc) as n
    from ended e where e.attempt = 1 and e.started_at is not null),
  waited as (
    select b.queue, percentile_cont('{0.5,0.95}'::double precision[]) within group (
        order by greatest(0, extract(epoch from b.started_at - j.ready_at))::double precision) as waited_s
    from begun b cross join lateral (select i.ready_at from outlive.jobs i where i.id = b.job_id) j
    where b.n <= 200 group by b.queue)
  select r.queue, sum(r.per_minute)::double precision, bool_or(r.large), w.waited_s
  from rated r left join waited w on w.queue = r.queue group by r.queue, w.waited_s;
end $$;

create or replace function outlive.ends_by_task(most int default 4000)
returns table (
  task text, succeeded_per_min double precision, failed_per_min double precision, ran_s double precision[],
  peak_memory_bytes bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off
-- How the jobs of each task ended in the last hour: how many a minute succeeded, and failed for good or were
-- quarantined; how long those ran that succeeded, p50 and p95; and the most memory that one of all these used.
-- About `most` ends are read, the newest of each lane, and `most` quarantined ones. Where these are not all of the
-- hour, the rates of a task are those of the time for which all of its ends were read.
begin atomic
  with lane as materialized (
    select l.task, l.state, l.hash, greatest(10, most / (count(*) over ())) as most
    from outlive.finished_lanes() l where l.state in ('succeeded', 'failed')),
  ended as (
    select l.task, l.state, a.*,
      case when count(*) over same = l.most then min(a.ended_at) over same end as all_since
    from lane l, lateral (
      select t.started_at, t.ended_at, t.peak_memory_bytes from outlive.attempts t
      where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
        and t.ended_at > outlive.now() - interval '1 hour'
      order by t.ended_at desc limit l.most) a
    window same as (partition by l.hash)
    union all
    select q.*, case when count(*) over () = most then min(q.ended_at) over () end
    from (
      select t.task, t.state, t.started_at, t.ended_at, t.peak_memory_bytes from outlive.attempts t
      where t.state = 'quarantined' and t.ended_at > outlive.now() - interval '1 hour'
      order by t.ended_at desc limit most) q),
  timed as (
    select e.*, max(e.all_since) over (partition by e.task) as from_at from ended e),
  weighed as (
    select t.*, case when t.ended_at < t.from_at then 0 else 60 / greatest(
      0.001, coalesce(extract(epoch from outlive.now() - t.from_at), 3600))::double precision end as per_min
    from timed t)
  select w.task, coalesce(sum(w.per_min) filter (where w.state = 'succeeded'), 0),
    coalesce(sum(w.per_min) filter (where w.state in ('failed', 'quarantined')), 0),
    percentile_cont('{0.5,0.95}'::double precision[]) within group (
      order by extract(epoch from w.ended_at - w.started_at)::double precision)
      filter (where w.state = 'succeeded'),
    max(w.peak_memory_bytes)
  from weighed w group by w.task;
end;
