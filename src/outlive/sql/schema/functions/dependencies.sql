-- Dependencies: jobs that wait for other jobs.
--
--     depend              new jobs wait for the jobs that they need
--     take_along          jobs were replaced: those that waited for them wait for the new ones
--     lock_dependents     locks the jobs that wait for jobs which end, and finds those that are to be cancelled
--     leave_ends          leaves ends for later
--     release_dependents  jobs have ended: releases or cancels the jobs that wait for them
--     inputs              the results of the jobs that a running job has waited for
--
-- What is left for later is done by worker/fleet/leftovers.py, in watchers and in `outlive reap`, with the
-- functions of late_releases.sql.
--
-- A job only waits for jobs that exist or come before it in the same call, so jobs never wait in a circle.
--
-- Why no release is lost. Two jobs that another one waits for may end at the same time: each of the two
-- transactions updates the row in `held` of the job that waits, so the second sees what the first has done. And a
-- job may end while the transaction that enqueues another one to wait for it is open: its end does not see the
-- dependency, and the enqueue, which locks no row of another job, does not see the end. So that transaction leaves
-- a note in `end_checks`, which is there from its commit on. outlive.check_late_ends then locks the row of the job
-- in its place. Either the job has ended by then, and its end is applied; or it ends later, and
-- outlive.follow_up, which looks for dependencies after the end has deleted that row, sees the dependency; or the
-- row is locked, because the job is moved or ends just now, and the note stays.
-- Two more kinds of ends are left for later. Those that a transaction at the isolation level repeatable read
-- or serializable has written: it sees only what was committed before it began. And those that concern many jobs:
-- an end is written soon, however many jobs wait for it. outlive.follow_late_ends follows these up, some jobs at
-- a time.

create or replace function outlive.many_dependents() returns int language sql immutable
-- How many jobs are released or cancelled at once.
return 500;

create or replace function outlive.depend(ids uuid[], on_failures text[]) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
-- pending -> blocked, for the new jobs that need others: `jobs` says which. An id that is null was not made. One
-- on_failure is that of all jobs. The jobs that they need can't be pruned before this commits.
declare
  places jsonb := (
    select jsonb_object_agg(i.id, i.at) from unnest(ids) with ordinality i(id, at) where i.id is not null);
  wrong record;
  needed uuid[];
  states text[];
begin
  perform from outlive.jobs k where k.id = any(array(
    select n.id from outlive.jobs j, unnest(j.after) n(id) where j.id = any(ids) and not places ? n.id::text))
  order by k.id for key share;
  select j.id, n.needs into wrong
  from outlive.jobs j, unnest(j.after) n(needs)
  where j.id = any(ids) and (
    (places ->> n.needs::text)::int >= (places ->> j.id::text)::int
    or not exists (select from outlive.jobs k where k.id = n.needs))
  limit 1;
  if found then
    raise exception using errcode = 'OL003', message = case
      when wrong.id = wrong.needs then format('job %s can''t wait for itself', wrong.id)
      else format('job %s can''t wait for job %s: a job can only wait for jobs that exist or come before it in '
        'the same call', wrong.id, wrong.needs) end;
  end if;
  insert into outlive.held (
    id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes, losses, unmet)
  select j.id, 'dependent', outlive.now(), j.queue, j.source, j.task, j.priority, j.ready_at, 0, 0, 0, 0,
    (select count(distinct n) from unnest(j.after) n)
  from outlive.jobs j where j.id = any(ids) and j.after is not null order by j.id;
  insert into outlive.dependencies (needs, job_id, on_failure)
  select distinct n.needs, j.id, coalesce(
    case when cardinality(on_failures) = 1 then on_failures[1] else on_failures[(places ->> j.id::text)::int] end,
    'block')
  from outlive.jobs j, unnest(j.after) n(needs) where j.id = any(ids);
  -- Jobs of this call can't have ended: no other transaction sees them yet.
  insert into outlive.end_checks (needed, dependents)
  select array_agg(distinct d.needs), array_agg(distinct d.job_id)
  from outlive.dependencies d where d.job_id = any(ids) and not places ? d.needs::text having count(*) > 0;
  select array_agg(e.id), array_agg(e.state) into needed, states
  from (
    select n.id, outlive.state_of(n.id) as state
    from (select distinct d.needs as id from outlive.dependencies d where d.job_id = any(ids)) n) e
  where e.state in ('succeeded', 'failed', 'cancelled', 'quarantined');
  if needed is not null then
    perform outlive.apply_past_ends(needed, states, ids);
  end if;
end $$;

create or replace function outlive.take_along(replaced uuid[], replacing uuid[], made uuid[]) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- blocked -> blocked: the jobs that wait for jobs which were just replaced wait for the new ones instead. Not so
-- those for which a new one waits itself, and jobs of the same call: to them the old one was cancelled.
declare
  pair record;
  moved uuid[];
  locked uuid[];
begin
  locked := array(
    select h.id from outlive.held h where h.id = any(array(
      select d.job_id from outlive.dependencies d where d.needs = any(replaced) and not d.met))
    order by h.id for update);
  for pair in
    select p.* from unnest(replaced, replacing) p(old, new)
    where exists (select from outlive.dependencies d where d.needs = p.old and not d.met)
  loop
    moved := array(
      with recursive above(id) as (
        select pair.new
        union
        select n.needs from above a, lateral (
          select d.needs from outlive.dependencies d where d.job_id = a.id offset 0) n)
      select unnest(locked) except (select a.id from above a union all select unnest(made)));
    with changed as (
      update outlive.dependencies d set needs = pair.new
      where d.needs = pair.old and d.job_id = any(moved) and not d.met returning d.job_id)
    select array_agg(c.job_id) into moved from changed c;
    update outlive.jobs j set after = array_replace(j.after, pair.old, pair.new) where j.id = any(moved);
    -- The new one may have ended already, if it waits for others.
    insert into outlive.end_checks (needed, dependents) select array[pair.new], moved where moved is not null;
  end loop;
  perform outlive.apply_past_ends(replaced, array_fill('cancelled'::text, array[cardinality(replaced)]), locked);
end $$;

create or replace function outlive.unmet_because(needs uuid, state text) returns text language sql immutable
-- Why a job stays blocked by a job that has ended without success, in words; null for any other job.
-- Each begins with 'job ' and the id: release_dependents reads it from there.
return format(case state
  when 'failed' then 'job %s failed: retry it, or release this job'
  when 'cancelled' then 'job %s was cancelled: retry it, or release this job'
  when 'quarantined' then 'job %s is in quarantine: release it, or release this job' end, needs);

create or replace function outlive.span(among uuid[], out first uuid, out last uuid)
language plpgsql immutable as $$
-- The smallest and the largest of these ids; null stands for all ids. Who looks for some of very many jobs that
-- wait for one need not read the others.
begin
  first := '00000000-0000-0000-0000-000000000000';
  last := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  if among is not null then
    select a.id into first from unnest(among) a(id) order by a.id limit 1;
    select a.id into last from unnest(among) a(id) order by a.id desc limit 1;
  end if;
end $$;

create or replace function outlive.lock_dependents(
  good uuid[], bad uuid[], mine uuid[] default '{}', among uuid[] default null, out doomed uuid[],
  out locked uuid[], out too_many boolean)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
-- Lock in `held`, in the order of their ids, all that the ends of these jobs concern, and `mine`: the jobs that
-- wait for them; those that are doomed, because they wait for a bad one, or for one another, with on_failure
-- cancel; and the jobs that wait for these. Without `among`, if these are too many to be changed at once, only
-- `mine` are locked. With `among`, other jobs are left alone.
-- While it waits for a lock, more jobs may be enqueued to wait for those it locks, so it looks again until it
-- finds no more. It does not wait for those, nor for those of `among`: the caller may have locked others, and two
-- such waits could be for each other. If one of `among` is locked, it fails. The others are left for later.
declare
  fresh uuid[];
  fallen boolean[];
  tried uuid[] := '{}';
  refused uuid[] := '{}';
  first uuid;
  last uuid;
begin
  locked := '{}';
  select s.* into first, last from outlive.span(among) s;
  loop
    with recursive concerned(id, falls) as (
      select d.job_id, e.bad and d.on_failure = 'cancel'
      from (select unnest(good), false union all select unnest(bad), true) e(id, bad), lateral (
        select l.job_id, l.on_failure from outlive.dependencies l
        where l.needs = e.id and not l.met and l.job_id between first and last
          and (among is null or l.job_id in (select unnest(among)))
          and l.job_id not in (select unnest(refused)) offset 0) d
      union
      select d.job_id, d.on_failure = 'cancel' from concerned c, lateral (
        select l.job_id, l.on_failure from outlive.dependencies l
        where c.falls and l.needs = c.id and not l.met and l.job_id between first and last
          and (among is null or l.job_id in (select unnest(among)))
          and l.job_id not in (select unnest(refused)) offset 0) d)
    select coalesce(array_agg(c.id), '{}'), array_agg(c.falls) into fresh, fallen
    from (
      select f.* from concerned f
      limit case when among is null then outlive.many_dependents() + 1 end) c;
    too_many := among is null and cardinality(fresh) > outlive.many_dependents();
    doomed := case when too_many then '{}' else array(
      select f.id from unnest(fresh, fallen) f(id, falls) where f.falls except select unnest(bad)) end;
    fresh := array(
      (select unnest(mine) union select unnest(fresh) where not too_many) except select unnest(tried));
    exit when fresh = '{}';
    if tried = '{}' and among is null then
      locked := array(select h.id from outlive.held h where h.id = any(fresh) order by h.id for update);
    elsif tried = '{}' then
      locked := array(select h.id from outlive.held h where h.id = any(fresh) for update nowait);
    else
      locked := locked || array(
        select h.id from outlive.held h where h.id = any(fresh) for update skip locked);
      refused := refused || array(select unnest(fresh) except select unnest(locked));
    end if;
    exit when doomed = '{}' and mine = '{}';
    tried := tried || fresh;
  end loop;
  if refused <> '{}' then
    perform outlive.leave_ends(good || bad || doomed, refused);
  end if;
end $$;

create or replace function outlive.leave_ends(ids uuid[], dependents uuid[] default null) returns void
language plpgsql set enable_seqscan = off as $$
-- Leave the ends of these jobs for later; with `dependents`, only what they mean to those.
begin
  insert into outlive.end_checks (needed, dependents)
  select array_agg(e.id order by e.id), leave_ends.dependents from unnest(ids) e(id)
  where exists (
    select from outlive.dependencies d where d.needs = e.id and not d.met
      and (leave_ends.dependents is null or d.job_id = any(leave_ends.dependents)))
  having count(*) > 0;
  if found then
    perform pg_notify('outlive', 'follow');
  end if;
end $$;

create or replace function outlive.release_dependents(
  inout ids uuid[], inout states text[], among uuid[] default null, out changed int)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
-- blocked -> pending, cancelled: these jobs have just reached these states, and others wait for them. It adds the
-- jobs that it cancels. Returns how many jobs it has released or cancelled. With `among`, other jobs are left
-- alone. Without it, what concerns too many jobs is left for later.
-- There are no joins, because a plan that was made for empty tables could join in the wrong order: width_bucket
-- finds a job in a sorted array.
declare
  good uuid[];
  bad uuid[];
  finished uuid[];
  doomed uuid[];
  too_many boolean;
  released uuid[];
  gathered uuid[];
  reasons text[];
  first uuid;
  last uuid;
begin
  changed := 0;
  if not exists (select from outlive.dependencies d where d.needs = any(ids))
     and not exists (select from outlive.dependencies d where d.job_id = any(ids)) then
    return;
  end if;
  select
    coalesce(array_agg(e.id) filter (where e.state = 'succeeded'), '{}'),
    coalesce(array_agg(e.id) filter (where e.state in ('failed', 'cancelled', 'quarantined')), '{}'),
    coalesce(array_agg(e.id) filter (where e.state in ('succeeded', 'failed', 'cancelled')), '{}')
  into good, bad, finished
  from unnest(ids, states) e(id, state);
  select s.* into first, last from outlive.span(among) s;
  if exists (
    select from outlive.dependencies d
    where d.needs = any(good || bad) and not d.met and d.job_id between first and last)
  then
    select l.* into doomed, among, too_many from outlive.lock_dependents(good, bad, among => among) l;
    -- A job that is seen only now is left alone. It was enqueued after these had left their places, or is locked:
    -- `end_checks` has a note of it.
    select s.* into first, last from outlive.span(among) s;
  end if;
  if too_many then
    perform outlive.leave_ends(good || bad);
    doomed := null;
  end if;
  -- Now `doomed` is null if no job waits for these or too many do, and empty if none of those that wait is to be
  -- cancelled.
  if doomed <> '{}' then
    bad := bad || doomed;
    with reasons as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'cancel' and d.job_id between first and last
        group by d.job_id) s),
    gone as (
      delete from outlive.held h where h.id = any(doomed)
      returning h.*, ((select needs from reasons))[width_bucket(h.id, (select jobs from reasons))] as needs)
    select outlive.finish_unclaimed(
      array_agg(g.id), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes), array_agg(g.losses),
      array_agg(format('cancelled, because job %s ended without success', g.needs)))
    into doomed from gone g;
    finished := finished || doomed;
    ids := ids || doomed;
    states := states || array_fill('cancelled'::text, array[cardinality(doomed)]);
    changed := cardinality(doomed);
  end if;
  delete from outlive.dependencies d where d.job_id = any(good);
  update outlive.dependencies d set met = true
  where d.job_id = any(finished) and not d.met
    and not exists (select from outlive.held h where h.id = d.job_id);  -- It was retried since, and waits again.
  if doomed is null then
    return;
  end if;
  with met as (
    update outlive.dependencies d set met = true
    where d.needs = any(good || bad) and not d.met and d.job_id between first and last
      and (bad = '{}' or d.on_failure = 'proceed' or d.needs = any(good))
      and d.job_id in (select unnest(among))
    returning d.job_id, d.needs),
  progress as materialized (
    select array_agg(p.job_id order by p.job_id) as jobs, array_agg(p.met order by p.job_id) as met
    from (select m.job_id, count(*)::int as met from met m group by m.job_id) p),
  freed as (
    delete from outlive.held h
    where h.id = any((select jobs from progress)::uuid[]) and h.why <> 'suspended'
      and h.unmet <= ((select met from progress))[width_bucket(h.id, (select jobs from progress))]
    returning h.*),
  released as (
    insert into outlive.waiting (queue, source, task, priority, ready_at, id, attempt)
    select f.queue, f.source, f.task, f.priority,
      -- Not before now, because watermarks are there already, and a microsecond apart, as in enqueue.
      greatest(f.ready_at, outlive.now() - interval '1 microsecond'
        * (count(*) over () - row_number() over (order by f.ready_at, f.id))), f.id, f.attempt
    from freed f returning id),
  advanced as (
    update outlive.held h set
      unmet = h.unmet - ((select met from progress))[width_bucket(h.id, (select jobs from progress))],
      details = case  -- The id is where unmet_because has put it.
        when substr(h.details, 5, 36)::uuid = any(array(select m.needs from met m)) then (
          select max(outlive.unmet_because(d.needs, outlive.state_of(d.needs))) from outlive.dependencies d
          where d.job_id = h.id and not d.met)
        else h.details end
    where h.id = any((select jobs from progress)::uuid[]) and (h.why = 'suspended'
      or h.unmet > ((select met from progress))[width_bucket(h.id, (select jobs from progress))])
    returning h.id, h.unmet, h.why)
  select coalesce(array_agg(r.id), '{}'),
    array(select a.id from advanced a where a.why = 'suspended' and a.unmet <= 0)
  into released, gathered from released r;
  if gathered <> '{}' then
    perform outlive.end_waits(gathered);
  end if;
  if cardinality(released) > 0 then
    if exists (select from outlive.jobs j where j.id = any(released) and j.concurrency_key is not null) then
      perform outlive.requeue_keyed(released, released);
    end if;
    perform outlive.wake();
  end if;
  changed := changed + cardinality(released) + cardinality(gathered);
  if bad <> '{}' then
    -- One reason for each job that has ended, not for each that waits.
    select array_agg(e.id order by e.id), array_agg(outlive.unmet_because(e.id, e.state) order by e.id)
    into bad, reasons
    from unnest(ids, states) e(id, state) where e.state in ('failed', 'cancelled', 'quarantined');
    with stuck as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'block' and d.job_id between first and last
          and d.job_id in (select unnest(among))
        group by d.job_id) s)
    update outlive.held h set
      since = outlive.now(),
      details = reasons[width_bucket(
        ((select needs from stuck))[width_bucket(h.id, (select jobs from stuck))], bad)]
    where h.id = any((select jobs from stuck)::uuid[]);
  end if;
end $$;

create or replace function outlive.inputs(token bigint, first int, skip int)
returns table (size int, part bytea) language plpgsql stable as $$
-- The results of the jobs that the job of this attempt has waited for, in the order of its `after`, as far as they
-- fit into a megabyte: from the one at `first` on, without the first `skip` bytes of that one. Each row has the
-- size of the whole result, or nulls if there is no result. No rows: there are no more. OL002: the attempt has
-- ended.
declare
  room int := 1048576;
  needed uuid[];
  result bytea;
begin
  select j.after into needed from outlive.running r join outlive.jobs j on j.id = r.id
  where r.token = inputs.token;
  if not found then
    raise exception using errcode = 'OL002', message = format('attempt %s is no longer under way', token);
  end if;
  for n in first + 1 .. coalesce(cardinality(needed), 0) loop
    select convert_to(a.result::text, 'UTF8') into result from outlive.attempts a
    where a.job_id = needed[n] order by a.attempt desc limit 1;
    size := octet_length(result);
    part := substring(result from skip + 1 for room);
    return next;
    room := room - coalesce(octet_length(part), 0) - 16;
    exit when room <= 0;
    skip := 0;
  end loop;
end $$;
