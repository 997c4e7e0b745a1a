-- Finding jobs: the operators' filter.
--
--     waiting_lanes, retryable_lanes, held_lanes, finished_lanes   the lanes that have such jobs
--     jobs_by_lane     jobs by state, task, queue and source, in the order of the time of their state
--     jobs_of_workers  jobs that workers run or have run
--     find_jobs        jobs by any filter, a page at a time
--
-- The time of a job's state is when it is ready, while it waits; when its attempt began, while it runs; since when
-- it is held; or when it ended. Each index by lane has this time last, so the jobs that match are read in order
-- from the lanes that match, and no other job is read. Lanes are found by a loose index scan, one step for each.
-- A filter by time leaves out the jobs whose time is yet to come.

create or replace function outlive.waiting_lanes()
returns table (queue text, source text, task text, priority smallint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select w.queue, w.source, w.task, w.priority from outlive.waiting w order by 1, 2, 3, 4 limit 1)
    union all
    select n.* from lane l, lateral (
      select w.queue, w.source, w.task, w.priority from outlive.waiting w
      where (w.queue, w.source, w.task, w.priority) > (l.queue, l.source, l.task, l.priority)
      order by 1, 2, 3, 4 limit 1) n)
  select l.queue, l.source, l.task, l.priority from lane l;
end;

create or replace function outlive.retryable_lanes() returns table (queue text, source text, task text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select w.queue, w.source, w.task from outlive.waiting w where w.failures + w.crashes > 0
     order by w.queue, w.source, w.task, w.ready_at limit 1)
    union all
    select n.* from lane l, lateral (
      select w.queue, w.source, w.task from outlive.waiting w
      where w.failures + w.crashes > 0 and (w.queue, w.source, w.task) > (l.queue, l.source, l.task)
      order by w.queue, w.source, w.task, w.ready_at limit 1) n)
  select l.queue, l.source, l.task from lane l;
end;

create or replace function outlive.held_lanes()
returns table (queue text, source text, task text, why text, failed boolean, state text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0 as failed from outlive.held h
     order by 1, 2, 3, 4, 5 limit 1)
    union all
    select n.* from lane l, lateral (
      select h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0 from outlive.held h
      where (h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0)
        > (l.queue, l.source, l.task, l.why, l.failed)
      order by 1, 2, 3, 4, 5 limit 1) n)
  select l.queue, l.source, l.task, l.why, l.failed, outlive.held_state(l.why, l.failed) from lane l;
end;

create or replace function outlive.finished_lanes()
returns table (queue text, source text, task text, state text, hash bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select a.queue, a.source, a.task, a.state, a.lane as hash
     from outlive.attempts a where a.state in ('succeeded', 'failed', 'cancelled') order by 5 limit 1)
    union all
    select n.* from lane l, lateral (
      select a.queue, a.source, a.task, a.state, a.lane from outlive.attempts a
      where a.state in ('succeeded', 'failed', 'cancelled') and a.lane > l.hash
      order by 5 limit 1) n)
  select l.queue, l.source, l.task, l.state, l.hash from lane l;
end;

create or replace function outlive.jobs_by_lane(
  states text[], of_task text, in_queue text, of_source text, from_at timestamptz, until_at timestamptz,
  past_at timestamptz, past_id uuid, oldest boolean, most int)
returns table (at timestamptz, id uuid, state text)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off set plan_cache_mode = force_custom_plan as $$
-- The first jobs past a position that are in one of these states, and came into it in this time. Null takes every
-- task, queue or source. Finished jobs of all lanes are read by their state: there may be many lanes.
#variable_conflict use_column
declare
  every_lane boolean := of_task is null and in_queue is null and of_source is null;
  ended text[] := array(select unnest(states) intersect select unnest('{succeeded,failed,cancelled}'::text[]));
begin
  -- The scan of an index begins where the position says, whatever the time. So the time bounds the position.
  if (oldest and from_at > past_at) or (not oldest and until_at <= past_at) then
    past_at := case when oldest then from_at else until_at end;
    past_id := '00000000-0000-0000-0000-000000000000';
  end if;
  if oldest then
    return query
    select n.at, n.id, n.state from (
      select w.at, w.id, 'pending' as state from outlive.waiting_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) > (past_at, past_id)
          and t.failures + t.crashes = 0
        order by t.ready_at, t.id limit most) w
      where 'pending' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select w.at, w.id, 'retryable' from outlive.retryable_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.failures + t.crashes > 0
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) > (past_at, past_id)
        order by t.ready_at, t.id limit most) w
      where 'retryable' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select h.at, h.id, l.state from outlive.held_lanes() l, lateral (
        select t.since as at, t.id from outlive.held t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.why = l.why
          and t.since >= from_at and t.since < until_at and (t.since, t.id) > (past_at, past_id)
          and (t.failures + t.crashes > 0) = l.failed
        order by t.since, t.id limit most) h
      where l.state = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select r.started_at, r.id, 'running' from outlive.running r
      where 'running' = any(states) and r.task = coalesce(of_task, r.task)
        and r.queue = coalesce(in_queue, r.queue) and r.source = coalesce(of_source, r.source)
        and r.started_at >= from_at and r.started_at < until_at and (r.started_at, r.id) > (past_at, past_id)
      union all
      select a.at, a.id, a.state from unnest(ended) s(state), lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.state = s.state and t.ended_at >= greatest(from_at, past_at) and t.ended_at < until_at
          and (t.ended_at, t.job_id) > (past_at, past_id)
        order by t.ended_at, t.job_id limit most) a
      where every_lane
      union all
      select a.at, a.id, a.state from outlive.finished_lanes() l, lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
          and t.ended_at >= greatest(from_at, past_at) and t.ended_at < until_at
          and (t.ended_at, t.job_id) > (past_at, past_id)
        order by t.ended_at, t.job_id limit most) a
      where not every_lane and l.state = any(ended) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)) n
    order by n.at, n.id limit most;
  else
    return query
    select n.at, n.id, n.state from (
      select w.at, w.id, 'pending' as state from outlive.waiting_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) < (past_at, past_id)
          and t.failures + t.crashes = 0
        order by t.ready_at desc, t.id desc limit most) w
      where 'pending' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select w.at, w.id, 'retryable' from outlive.retryable_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.failures + t.crashes > 0
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) < (past_at, past_id)
        order by t.ready_at desc, t.id desc limit most) w
      where 'retryable' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select h.at, h.id, l.state from outlive.held_lanes() l, lateral (
        select t.since as at, t.id from outlive.held t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.why = l.why
          and t.since >= from_at and t.since < until_at and (t.since, t.id) < (past_at, past_id)
          and (t.failures + t.crashes > 0) = l.failed
        order by t.since desc, t.id desc limit most) h
      where l.state = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select r.started_at, r.id, 'running' from outlive.running r
      where 'running' = any(states) and r.task = coalesce(of_task, r.task)
        and r.queue = coalesce(in_queue, r.queue) and r.source = coalesce(of_source, r.source)
        and r.started_at >= from_at and r.started_at < until_at and (r.started_at, r.id) < (past_at, past_id)
      union all
      select a.at, a.id, a.state from unnest(ended) s(state), lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.state = s.state and t.ended_at >= from_at and t.ended_at < until_at and t.ended_at <= past_at
          and (t.ended_at, t.job_id) < (past_at, past_id)
        order by t.ended_at desc, t.job_id desc limit most) a
      where every_lane
      union all
      select a.at, a.id, a.state from outlive.finished_lanes() l, lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
          and t.ended_at >= from_at and t.ended_at < until_at and t.ended_at <= past_at
          and (t.ended_at, t.job_id) < (past_at, past_id)
        order by t.ended_at desc, t.job_id desc limit most) a
      where not every_lane and l.state = any(ended) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)) n
    order by n.at desc, n.id desc limit most;
  end if;
end $$;

create or replace function outlive.jobs_of_workers(
  names text[], ended_in text[], from_at timestamptz, until_at timestamptz, past_at timestamptz, past_id uuid,
  oldest boolean, most int)
returns table (at timestamptz, id uuid, attempt int) language plpgsql stable set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_custom_plan as $$
-- The first jobs past a position that workers of these names run, by the time at which their attempt began, or
-- have run, by the time at which it ended, if it ended in one of these states. A job is there once for each of its
-- attempts. Those that run or have finished their job are of this time, which is that of the job's state. Others
-- are of any time.
#variable_conflict use_column
begin
  return query
  select n.at, n.id, n.attempt from (
    select a.at, a.id, a.attempt from unnest(names) k(name), unnest(ended_in) e(state), lateral (
      select hashtextextended(e.state, hashtextextended(k.name, 0)) as hash,
        case when e.state = any('{succeeded,failed,cancelled}') then from_at else '-infinity' end as first_at,
        case when e.state = any('{succeeded,failed,cancelled}') then until_at else 'infinity' end as end_at) h,
    lateral (
      (select t.ended_at as at, t.job_id as id, t.attempt from outlive.attempts t
       where oldest and hashtextextended(t.state, hashtextextended(t.worker_name, 0)) = h.hash
         and t.ended_at >= greatest(h.first_at, past_at) and t.ended_at < h.end_at
         and (t.ended_at, t.job_id) > (past_at, past_id)
       order by t.ended_at, t.job_id limit most)
      union all
      (select t.ended_at, t.job_id, t.attempt from outlive.attempts t
       where not oldest and hashtextextended(t.state, hashtextextended(t.worker_name, 0)) = h.hash
         and t.ended_at >= h.first_at and t.ended_at < h.end_at
         and t.ended_at <= past_at and (t.ended_at, t.job_id) < (past_at, past_id)
       order by t.ended_at desc, t.job_id desc limit most)) a
    union all
    select r.started_at, r.id, r.attempt from outlive.running r join outlive.workers k on k.id = r.worker
    where k.name = any(names) and r.started_at >= from_at and r.started_at < until_at
      and case when oldest then (r.started_at, r.id) > (past_at, past_id)
      else (r.started_at, r.id) < (past_at, past_id) end) n
  order by case when oldest then n.at end, case when oldest then n.id end, n.at desc, n.id desc limit most;
end $$;

create or replace function outlive.find_jobs(
  inout place text, past_at timestamptz, past_id uuid, oldest boolean, look int, most int, counting boolean,
  states text[], of_task text, in_queue text, of_source text, on_worker text, in_batch uuid,
  since_at timestamptz, before_at timestamptz, words text,
  out ids uuid[], out matched bigint, out looked_at bigint, out next_at timestamptz, out next_id uuid)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off set plan_cache_mode = force_custom_plan as $$
-- The jobs that match a filter, the newest or the oldest first, a page at a time. A part of the filter that is
-- null takes every job. The place says where to look: in all jobs (`ids`) or those of a batch, by id; in what a
-- worker runs and has run (`worker`), by time, where each job counts with its last attempt; or in lanes, by the
-- time of their state. The first page, which has no position yet, looks in lanes if the batch or the worker has
-- many jobs that may not match.
-- It looks at no more than `look` jobs past a position, so its time is bounded however rare a match is. It returns
-- the ids of the first jobs that match (none if only their number is wanted), how many these are, how many jobs it
-- has looked at, and the position where the next page begins. No position: the place has no more jobs.
-- The plan is pinned: a table that was filled a moment ago has no statistics. `offset 0` keeps Postgres from
-- reading a whole table instead of looking up each job. One function lowers the words and what they are looked for
-- in: the locale of the database says which letters it knows, and a client may know others.
declare
  every_state text[] := coalesce(
    states, '{pending,retryable,running,blocked,suspended,quarantined,succeeded,failed,cancelled}');
  from_at timestamptz := coalesce(since_at, '-infinity');
  until_at timestamptz := coalesce(
    before_at, case when since_at is null then 'infinity' else outlive.now() + interval '1 microsecond' end);
  every_lane boolean := of_task is null and in_queue is null and of_source is null;
  every_time boolean := since_at is null and before_at is null;
  names text[] := array(
    select on_worker union select k.name from outlive.workers k where k.id::text = on_worker);
  finished constant text[] := '{succeeded,failed,cancelled}';
  ended_in text[] := array(  -- An attempt that has finished its job in another state is not one of these jobs'.
    select s from unnest('{succeeded,pending,retryable,failed,quarantined,cancelled}'::text[]) s
    where s <> all(finished) or s = any(every_state));
  in_vain text[] := array(  -- After attempts that ended so, a job may well not match.
    select s from unnest(ended_in) s
    where not every_lane or not coalesce(states && finished, true) or not every_time and s <> all(finished));
begin
  words := lower(words);
  if past_at is null then
    past_at := case when oldest then '-infinity' else 'infinity' end;
    past_id := case when oldest then '00000000-0000-0000-0000-000000000000'
      else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end::uuid;
    if place = 'batch' and not (states is null and every_lane and every_time)
        and exists (select from outlive.jobs j where j.batch = in_batch offset 1000)
      or place = 'worker'
        and exists (select from unnest(names) k(name), unnest(in_vain) e(state), lateral (
          select from outlive.attempts a
          where hashtextextended(a.state, hashtextextended(a.worker_name, 0))
            = hashtextextended(e.state, hashtextextended(k.name, 0)) limit 1001) a offset 1000) then
      place := 'lanes';
    end if;
  end if;
  with seen as materialized (
    select row_number() over () as n, p.* from (
      (select '-infinity'::timestamptz as at, j.id, null as state, null::int as attempt from outlive.jobs j
       where place = 'ids' and not oldest and j.id < past_id order by j.id desc limit look)
      union all
      (select '-infinity', j.id, null, null from outlive.jobs j
       where place = 'ids' and oldest and j.id > past_id order by j.id limit look)
      union all
      (select '-infinity', j.id, null, null from outlive.jobs j
       where place = 'batch' and not oldest and j.batch = in_batch and j.id < past_id
       order by j.id desc limit look)
      union all
      (select '-infinity', j.id, null, null from outlive.jobs j
       where place = 'batch' and oldest and j.batch = in_batch and j.id > past_id order by j.id limit look)
      union all
      (select w.at, w.id, null, w.attempt
       from outlive.jobs_of_workers(names, ended_in, from_at, until_at, past_at, past_id, oldest, look) w
       where place = 'worker')
      union all
      (select l.at, l.id, l.state, null from outlive.jobs_by_lane(every_state, of_task, in_queue, of_source,
         from_at, until_at, past_at, past_id, oldest, look) l
       where place = 'lanes')) p),
  few as materialized (
    select s.n, s.at, s.id from seen s
    where (place = 'lanes' or every_lane or exists (
        select from outlive.jobs j
        where j.id = s.id and j.task = coalesce(of_task, j.task) and j.queue = coalesce(in_queue, j.queue)
          and j.source = coalesce(of_source, j.source) offset 0))
      and (place = 'lanes' or states is null or outlive.state_of(s.id) = any(states))
      and (place = 'lanes' or every_time or (
        select coalesce(t.completed_at, t.held_since, t.locked_at, t.ready_at) >= from_at
          and coalesce(t.completed_at, t.held_since, t.locked_at, t.ready_at) < until_at
        from outlive.job_states t where t.id = s.id))
      and (place = 'batch' or in_batch is null or exists (
        select from outlive.jobs j where j.id = s.id and j.batch = in_batch offset 0))
      and (on_worker is null or (
        select max(t.attempt) = coalesce(s.attempt, max(t.attempt)) from (
          select a.attempt from outlive.attempts a
          where a.job_id = s.id and on_worker in (a.worker_name, a.worker::text)
          union all
          select r.attempt from outlive.running r join outlive.workers k on k.id = r.worker
          where r.id = s.id and on_worker in (k.name, k.id::text)) t))
      and (words is null
        or exists (select from outlive.jobs j
          where j.id = s.id and (strpos(lower(j.task), words) > 0
            or strpos(replace(lower(j.args::text), ' ', ''), nullif(replace(words, ' ', ''), '')) > 0) offset 0)
        or exists (select from outlive.attempts a
          where a.job_id = s.id and strpos(lower(a.error), words) > 0 offset 0))
    limit most),  -- `seen` is in order.
  counted as (select (select count(*) from few) as few, (select count(*) from seen) as seen),
  last as (
    (select f.n, f.at, f.id from few f, counted c where c.few = most order by f.n desc limit 1)
    union all
    (select s.n, s.at, s.id from seen s, counted c where c.few < most and c.seen = look
     order by s.n desc limit 1))
  select case when counting then '{}' else array(select f.id from few f order by f.n) end, c.few,
    coalesce(l.n, c.seen), nullif(l.at, '-infinity'), case when l.n < c.seen or c.seen = look then l.id end
  into ids, matched, looked_at, next_at, next_id
  from counted c left join last l on true;
end $$;
