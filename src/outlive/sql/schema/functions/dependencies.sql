-- Dependencies: jobs that wait for other jobs.
--
--     check_links         refuses links that make no sense
--     depend              new jobs wait for the jobs that they need
--     release_dependents  jobs have ended: releases or cancels the jobs that wait for them
--     heed_ends           the same for jobs that had ended before others were to wait for them
--     check_dependency    sees at commit whether a job has ended while another was enqueued to wait for it
--     inputs              the results of the jobs that a running job has waited for
--
-- A job only waits for jobs that exist or come before it in the same call, so jobs never wait in a circle.
--
-- Why no release is lost. Two jobs that another one waits for may end at the same time: each of the two
-- transactions updates the row in `held` of the job that waits, so the second sees what the first has done. And a
-- job may end while the transaction that enqueues another one to wait for it is open: its end does not see the
-- dependency. So that transaction locks the row of the job in its place when it commits, in a deferred trigger.
-- Either the job has ended by then, and the trigger applies its end; or the end waits for the lock, and
-- outlive.follow_up, which looks for dependencies after the end has deleted that row, sees the dependency. A row
-- in `running` is updated rather than locked, so that a job which ends in its own transaction at the isolation
-- level repeatable read, and does not see the dependency, fails to end and is repeated.

create or replace function outlive.check_links(links jsonb[]) returns void language plpgsql as $$
begin
  if exists (
    select from unnest(links) l
    where jsonb_typeof(l) <> 'object' or jsonb_typeof(l -> 'after') not in ('array', 'null'))
  then
    raise exception using errcode = 'OL003', message =
      'links are objects, and after is an array of the ids of jobs';
  end if;
  if exists (select from unnest(links) l where l ->> 'on_failure' not in ('block', 'proceed', 'cancel')) then
    raise exception using errcode = 'OL003', message = 'on_failure can be block, proceed or cancel';
  end if;
  if exists (select from unnest(links) l where jsonb_array_length(l -> 'after') > 100000) then
    raise exception using errcode = 'OL003', message =
      'a job can wait for at most 100,000 jobs: let some of them wait for the others';
  end if;
  if exists (
    select from unnest(links) l where (l ? 'concurrency' or l ? 'key') and not coalesce(
      octet_length(l ->> 'key') between 1 and 1000 and jsonb_typeof(l -> 'key') = 'string'
      and coalesce(l ->> 'concurrency', '1') ~ '^([1-9][0-9]{0,2}|1000)$', false))
  then
    raise exception using errcode = 'OL003', message =
      'concurrency_key is a text of 1 to 1000 bytes, and concurrency, which needs a key, is from 1 to 1000';
  end if;
end $$;

create or replace function outlive.depend(ids uuid[], on_failures text[]) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
-- pending -> blocked, for the new jobs that need others: `jobs` says which. An id that is null was not made. One
-- on_failure is that of all jobs.
declare
  places jsonb := (
    select jsonb_object_agg(i.id, i.at) from unnest(ids) with ordinality i(id, at) where i.id is not null);
  wrong record;
  needed uuid[];
  states text[];
begin
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
  -- In the order in which the trigger is to lock them.
  insert into outlive.dependencies (needs, job_id, on_failure)
  select distinct n.needs, j.id, coalesce(
    case when cardinality(on_failures) = 1 then on_failures[1] else on_failures[(places ->> j.id::text)::int] end,
    'block')
  from outlive.jobs j, unnest(j.after) n(needs) where j.id = any(ids) order by 1, 2;
  select array_agg(e.id), array_agg(e.state) into needed, states
  from (
    select n.id, outlive.state_of(n.id) as state
    from (select distinct d.needs as id from outlive.dependencies d where d.job_id = any(ids)) n) e
  where e.state in ('succeeded', 'failed', 'cancelled', 'quarantined');
  if needed is not null then
    perform outlive.heed_ends(needed, states);
  end if;
end $$;

create or replace function outlive.unmet_because(needs uuid) returns text language sql stable
-- Why a job stays blocked by a job that has ended without success, in words; null for any other job.
return format(case outlive.state_of(needs)
  when 'failed' then 'job %s failed: retry it, or release this job'
  when 'cancelled' then 'job %s was cancelled: retry it, or release this job'
  when 'quarantined' then 'job %s is in quarantine: release it, or release this job' end, needs);

create or replace function outlive.release_dependents(inout ids uuid[], inout states text[], out changed int)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
-- blocked -> pending, cancelled: these jobs have just reached these states, and others wait for them. It adds the
-- jobs that it cancels, and goes on with those that wait for them, level by level. Returns how many jobs it has
-- released or cancelled.
-- The rows in `held` are locked in their order before they are changed. There are no joins, because a plan that
-- was made for empty tables could join in the wrong order: width_bucket finds a job in a sorted array.
declare
  good uuid[];
  bad uuid[];
  finished uuid[];
  released uuid[];
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
  loop
    delete from outlive.dependencies d where d.job_id = any(finished);
    exit when not exists (select from outlive.dependencies d where d.needs = any(good || bad) and not d.met);
    perform from outlive.held h
    where h.id = any(array(
      select d.job_id from outlive.dependencies d where d.needs = any(good || bad) and not d.met))
    order by h.id for update;
    with met as (
      update outlive.dependencies d set met = true
      where d.needs = any(good || bad) and not d.met
        and (bad = '{}' or d.on_failure = 'proceed' or d.needs = any(good))
      returning d.job_id, d.needs),
    progress as materialized (
      select array_agg(p.job_id order by p.job_id) as jobs, array_agg(p.met order by p.job_id) as met
      from (select m.job_id, count(*)::int as met from met m group by m.job_id) p),
    freed as (
      delete from outlive.held h
      where h.id = any((select jobs from progress)::uuid[])
        and h.unmet <= ((select met from progress))[width_bucket(h.id, (select jobs from progress))]
      returning h.*),
    released as (
      insert into outlive.waiting (queue, source, task, priority, ready_at, id)
      select f.queue, f.source, f.task, f.priority,
        -- Not before now, because watermarks are there already, and a microsecond apart, as in enqueue.
        greatest(f.ready_at, outlive.now() - interval '1 microsecond'
          * (count(*) over () - row_number() over (order by f.ready_at, f.id))), f.id
      from freed f returning id),
    advanced as (
      update outlive.held h set
        unmet = h.unmet - ((select met from progress))[width_bucket(h.id, (select jobs from progress))],
        details = case
          when substr(h.details, 5, 36)::uuid = any(array(select m.needs from met m)) then (
            select max(outlive.unmet_because(d.needs)) from outlive.dependencies d
            where d.job_id = h.id and not d.met)
          else h.details end
      where h.id = any((select jobs from progress)::uuid[])
        and h.unmet > ((select met from progress))[width_bucket(h.id, (select jobs from progress))])
    select coalesce(array_agg(r.id), '{}') into released from released r;
    if cardinality(released) > 0 then
      if exists (select from outlive.jobs j where j.id = any(released) and j.concurrency_key is not null) then
        perform outlive.requeue_keyed(released, released);
      end if;
      perform outlive.wake();
    end if;
    changed := changed + cardinality(released);
    exit when bad = '{}';
    with stuck as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'block' group by d.job_id) s)
    update outlive.held h set
      since = outlive.now(),
      details = outlive.unmet_because(((select needs from stuck))[width_bucket(h.id, (select jobs from stuck))])
    where h.id = any((select jobs from stuck)::uuid[]);
    with doomed as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'cancel' group by d.job_id) s),
    gone as (
      delete from outlive.held h where h.id = any((select jobs from doomed)::uuid[])
      returning h.*, ((select needs from doomed))[width_bucket(h.id, (select jobs from doomed))] as needs),
    cancelled as materialized (
      select g.id, outlive.finish_unclaimed(g.id, g.attempt, g.failures, g.crashes, g.losses,
        format('cancelled, because job %s ended without success', g.needs))
      from gone g)
    select coalesce(array_agg(c.id), '{}') into bad from cancelled c;
    exit when bad = '{}';
    good := '{}';
    finished := bad;
    ids := ids || bad;
    states := states || array_fill('cancelled'::text, array[cardinality(bad)]);
    changed := changed + cardinality(bad);
  end loop;
end $$;

create or replace function outlive.heed_ends(needed uuid[], states text[]) returns void language plpgsql as $$
-- These jobs had ended before others were to wait for them. Their own ends were followed up then.
declare
  others uuid[];
begin
  others := (select r.ids[cardinality(needed) + 1:] from outlive.release_dependents(needed, states) r);
  if cardinality(others) > 0 then
    perform outlive.follow_up(others, array_fill('cancelled'::text, array[cardinality(others)]));
  end if;
end $$;

create or replace function outlive.check_dependency() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- The head of this file says why. The lock on the row in `jobs` keeps the job from being pruned or retried
-- meanwhile. A job that moves from one place to another may be found in none: then it is looked for again.
declare
  place text;
begin
  perform from outlive.jobs j where j.id = new.needs for key share;
  if not found then
    raise exception using errcode = 'OL003', message =
      format('job %s can''t wait for job %s, which was deleted meanwhile', new.job_id, new.needs);
  end if;
  if not exists (
    select from outlive.dependencies d where d.needs = new.needs and d.job_id = new.job_id and not d.met)
  then
    return null;
  end if;
  loop
    perform from outlive.waiting w where w.id = new.needs for key share;
    exit when found;
    update outlive.running r set begun = r.begun where r.id = new.needs;
    exit when found;
    select h.why into place from outlive.held h where h.id = new.needs for key share;
    exit when found and place <> 'quarantined';
    place := outlive.state_of(new.needs);
    if place in ('succeeded', 'failed', 'cancelled', 'quarantined') then
      perform outlive.heed_ends(array[new.needs], array[place]);
      exit;
    end if;
  end loop;
  return null;
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

drop trigger if exists check_dependency on outlive.dependencies;
create constraint trigger check_dependency after insert on outlive.dependencies
  deferrable initially deferred for each row execute function outlive.check_dependency();
