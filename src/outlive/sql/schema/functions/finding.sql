-- Finding jobs: the operators' filter.

create or replace function outlive.find_jobs(
  place text, past_at timestamptz, past_id uuid, look int, most int, counting boolean, states text[], of_task text,
  in_queue text, of_source text, on_worker text, in_batch uuid, since_s double precision, older_s double precision,
  words text, out ids uuid[], out matched bigint, out looked_at bigint, out next_at timestamptz, out next_id uuid)
language plpgsql stable set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_custom_plan as $$
-- The jobs that match a filter, the newest first, a page at a time. A part of the filter that is null takes every
-- job. The place says where to look: in all jobs or those of a batch, by id; in the unfinished ones, by id; or in
-- the finished ones, by the time of their end.
-- It looks at no more than `look` jobs past a position, so its time is bounded however rare a match is. It returns
-- the ids of the first jobs that match (none if only their number is wanted), how many these are, how many jobs it
-- has looked at, and the position where the next page begins. No position: the place has no more jobs.
-- The plan is pinned: a table that was filled a moment ago has no statistics. `offset 0` keeps Postgres from
-- reading a whole table instead of looking up each job. One function lowers the words and what they are looked for
-- in: the locale of the database says which letters it knows, and a client may know others.
begin
  words := lower(words);
  with seen as materialized (
    (select '-infinity'::timestamptz as at, j.id, j.task, j.queue, j.source, null as state, null::int as attempt
     from outlive.jobs j where place = 'jobs' and j.id < past_id order by j.id desc limit look)
    union all
    (select '-infinity', j.id, j.task, j.queue, j.source, null, null
     from outlive.jobs j where place = 'batch' and j.batch = in_batch and j.id < past_id
     order by j.id desc limit look)
    union all
    (select '-infinity', u.id, u.task, u.queue, u.source, u.state, null from (
       (select w.id, w.task, w.queue, w.source,
          case when w.failures + w.crashes > 0 then 'retryable' else 'pending' end as state
        from outlive.waiting w
        where place = 'unfinished' and states && '{pending,retryable}' and w.id < past_id
        order by w.id desc limit look)
       union all
       (select r.id, r.task, r.queue, r.source, 'running' from outlive.running r
        where place = 'unfinished' and 'running' = any(states) and r.id < past_id
        order by r.id desc limit look)
       union all
       (select h.id, h.task, h.queue, h.source, outlive.held_state(h.why, h.failures + h.crashes > 0)
        from outlive.held h
        where place = 'unfinished' and states && '{pending,retryable,blocked,quarantined}'
          and h.id < past_id
        order by h.id desc limit look)) u
     order by u.id desc limit look)
    union all
    (select e.ended_at, e.job_id, j.task, j.queue, j.source, e.state, e.attempt from (
       select a.* from unnest(states) s(state), lateral (
         select t.job_id, t.attempt, t.state, t.ended_at from outlive.attempts t
         where place = 'finished' and t.state = s.state
           and t.ended_at <= past_at and (t.ended_at, t.job_id) < (past_at, past_id)
           and t.ended_at >= coalesce(outlive.now() - since_s * interval '1 second', '-infinity')
           and t.ended_at < coalesce(outlive.now() - older_s * interval '1 second', 'infinity')
         order by t.ended_at desc, t.job_id desc limit look) a
       order by a.ended_at desc, a.job_id desc limit look) e left join outlive.jobs j on j.id = e.job_id)),
  few as materialized (
    select s.at, s.id from seen s
    where (of_task is null or s.task = of_task) and (in_queue is null or s.queue = in_queue)
      and (of_source is null or s.source = of_source)
      and (states is null or coalesce(s.state, outlive.state_of(s.id)) = any(states))
      and (s.attempt is null or exists (
        select from outlive.finished() f where f.job_id = s.id and f.attempt = s.attempt offset 0))
      and (since_s is null or s.attempt is not null or (
        select coalesce(t.completed_at, t.created_at) from outlive.job_states t where t.id = s.id
        ) >= outlive.now() - since_s * interval '1 second')
      and (older_s is null or s.attempt is not null or (
        select coalesce(t.completed_at, t.held_since, t.locked_at, t.ready_at)
        from outlive.job_states t where t.id = s.id
        ) < outlive.now() - older_s * interval '1 second')
      and (on_worker is null
        or exists (select from outlive.attempts a
          where a.job_id = s.id and on_worker in (a.worker_name, a.worker::text) offset 0)
        or exists (select from outlive.running r join outlive.workers k on k.id = r.worker
          where r.id = s.id and on_worker in (k.name, k.id::text) offset 0))
      and (words is null or strpos(lower(s.task), words) > 0
        or exists (select from outlive.jobs j
          where j.id = s.id
            and strpos(replace(lower(j.args::text), ' ', ''), nullif(replace(words, ' ', ''), '')) > 0 offset 0)
        or exists (select from outlive.attempts a
          where a.job_id = s.id and strpos(lower(a.error), words) > 0 offset 0))
    limit most),  -- `seen` is in order.
  counted as (select (select count(*) from few) as few, (select count(*) from seen) as seen),
  last as (
    (select f.at, f.id from few f, counted c where c.few = most order by f.at, f.id limit 1)
    union all
    (select s.at, s.id from seen s, counted c where c.few < most and c.seen = look
     order by s.at, s.id limit 1))
  select case when counting then '{}' else array(select f.id from few f order by f.at desc, f.id desc) end,
    c.few, case when c.few = most then
      (select count(*) from seen s, last l where (s.at, s.id) >= (l.at, l.id)) else c.seen end,
    (select nullif(l.at, '-infinity') from last l), (select l.id from last l)
  into ids, matched, looked_at, next_at, next_id
  from counted c;
end $$;
