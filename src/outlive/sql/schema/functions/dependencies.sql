-- Dependencies: jobs that wait for other jobs.
--
--     check_links         refuses links that make no sense
--     depend              new jobs wait for the jobs that they need
--     lock_dependents     locks the jobs that wait for jobs which end, and finds those that are to be cancelled
--     release_dependents  jobs have ended: releases or cancels the jobs that wait for them
--     heed_ends           the same for jobs that had ended before others were to wait for them
--     lock_needed         locks jobs in their places, so that they can't end
--     check_ends          sees at commit whether a job has ended while another was enqueued to wait for it
--     check_late_ends     sees the same later, where a transaction could not see it
--     inputs              the results of the jobs that a running job has waited for
--
-- A job only waits for jobs that exist or come before it in the same call, so jobs never wait in a circle.
--
-- Why no release is lost. Two jobs that another one waits for may end at the same time: each of the two
-- transactions updates the row in `held` of the job that waits, so the second sees what the first has done. And a
-- job may end while the transaction that enqueues another one to wait for it is open: its end does not see the
-- dependency. So that transaction locks the row of the job in its place when it commits, in a deferred trigger.
-- Either the job has ended by then, and the trigger applies its end; or the end waits for the lock, and
-- outlive.follow_up, which looks for dependencies after the end has deleted that row, sees the dependency.
-- Two kinds of ends are left to the reaper, in `end_checks`, because only a later transaction sees both sides.
-- Those that a transaction at the isolation level repeatable read or serializable has written: it sees only what
-- was committed before it began. And those of a job that another transaction moves or retries while an enqueue
-- commits: the job may end, or end again, before that is seen.

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
  insert into outlive.dependencies (needs, job_id, on_failure)
  select distinct n.needs, j.id, coalesce(
    case when cardinality(on_failures) = 1 then on_failures[1] else on_failures[(places ->> j.id::text)::int] end,
    'block')
  from outlive.jobs j, unnest(j.after) n(needs) where j.id = any(ids);
  insert into outlive.end_checks (xid, needed, dependents)
  select pg_current_xact_id(), array_agg(distinct d.needs), array_agg(distinct d.job_id)
  from outlive.dependencies d where d.job_id = any(ids) having count(*) > 0;
  select array_agg(e.id), array_agg(e.state) into needed, states
  from (
    select n.id, outlive.state_of(n.id) as state
    from (select distinct d.needs as id from outlive.dependencies d where d.job_id = any(ids)) n) e
  where e.state in ('succeeded', 'failed', 'cancelled', 'quarantined');
  if needed is not null then
    perform outlive.heed_ends(needed, states, ids);
  end if;
end $$;

create or replace function outlive.unmet_because(needs uuid) returns text language sql stable
-- Why a job stays blocked by a job that has ended without success, in words; null for any other job.
-- Each begins with 'job ' and the id: release_dependents reads it from there.
return format(case outlive.state_of(needs)
  when 'failed' then 'job %s failed: retry it, or release this job'
  when 'cancelled' then 'job %s was cancelled: retry it, or release this job'
  when 'quarantined' then 'job %s is in quarantine: release it, or release this job' end, needs);

create or replace function outlive.lock_dependents(
  good uuid[], bad uuid[], mine uuid[] default '{}', among uuid[] default null, out doomed uuid[])
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan as $$
-- Lock in `held`, in the order of their ids, all that the ends of these jobs concern, and `mine`: the jobs that
-- wait for them; those that are doomed, because they wait for a bad one, or for one another, with on_failure
-- cancel; and the jobs that wait for these. While it waits for a lock, more jobs may be enqueued to wait for the
-- doomed ones, so it looks again until it finds no more. With `among`, other jobs are left alone.
declare
  locked uuid[] := '{}';
  fresh uuid[];
begin
  loop
    doomed := array(
      with recursive fallen(id) as (
        select b.id from unnest(bad) b(id)
        union
        select d.job_id from fallen f, lateral (
          select l.job_id from outlive.dependencies l
          where l.needs = f.id and not l.met and l.on_failure = 'cancel'
            and (among is null or l.job_id in (select unnest(among))) offset 0) d)
      select f.id from fallen f except select unnest(bad));
    fresh := array(
      (select unnest(mine)
       union
       select d.job_id from outlive.dependencies d
       where d.needs = any(good || bad || doomed) and not d.met
         and (among is null or d.job_id in (select unnest(among))))
      except select unnest(locked));
    exit when fresh = '{}';
    perform from outlive.held h where h.id = any(fresh) order by h.id for update;
    exit when doomed = '{}';
    locked := locked || fresh;
  end loop;
end $$;

create or replace function outlive.release_dependents(
  inout ids uuid[], inout states text[], among uuid[] default null, out changed int)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
-- blocked -> pending, cancelled: these jobs have just reached these states, and others wait for them. It adds the
-- jobs that it cancels. Returns how many jobs it has released or cancelled. With `among`, other jobs are left
-- alone.
-- There are no joins, because a plan that was made for empty tables could join in the wrong order: width_bucket
-- finds a job in a sorted array.
declare
  good uuid[];
  bad uuid[];
  finished uuid[];
  doomed uuid[];
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
  if exists (select from outlive.dependencies d where d.needs = any(good || bad) and not d.met) then
    doomed := outlive.lock_dependents(good, bad, among => among);
  end if;
  -- Now `doomed` is null if no job waits for these, and empty if none of those that wait is to be cancelled.
  if doomed <> '{}' then
    bad := bad || doomed;
    with reasons as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'cancel' group by d.job_id) s),
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
  delete from outlive.dependencies d where d.job_id = any(finished);
  if doomed is null then
    return;
  end if;
  with met as (
    update outlive.dependencies d set met = true
    where d.needs = any(good || bad) and not d.met
      and (bad = '{}' or d.on_failure = 'proceed' or d.needs = any(good))
      and (among is null or d.job_id in (select unnest(among)))
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
      details = case  -- The id is where unmet_because has put it.
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
  if bad <> '{}' then
    with stuck as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'block'
          and (among is null or d.job_id in (select unnest(among)))
        group by d.job_id) s)
    update outlive.held h set
      since = outlive.now(),
      details = outlive.unmet_because(((select needs from stuck))[width_bucket(h.id, (select jobs from stuck))])
    where h.id = any((select jobs from stuck)::uuid[]);
  end if;
end $$;

create or replace function outlive.heed_ends(needed uuid[], states text[], among uuid[] default null)
returns void language plpgsql as $$
-- These jobs had ended before others were to wait for them: `among` these, or null for all. Their own ends were
-- followed up then.
declare
  others uuid[];
begin
  others := (select r.ids[cardinality(needed) + 1:] from outlive.release_dependents(needed, states, among) r);
  if cardinality(others) > 0 then
    perform outlive.follow_up(others, array_fill('cancelled'::text, array[cardinality(others)]));
  end if;
end $$;

create or replace function outlive.lock_needed(
  needed uuid[], out ended uuid[], out states text[], out moving uuid[])
language plpgsql set enable_seqscan = off as $$
-- Lock these jobs in their places until the transaction ends, and return those that have ended, with their states,
-- and those that were moved from one place to another meanwhile, so that it has found them in none. It does not
-- look for these again: a lock that is taken out of order could lead to a deadlock.
-- The lock on the row in `jobs` keeps a job from being pruned.
declare
  rest uuid[];
begin
  rest := array(select j.id from outlive.jobs j where j.id = any(needed) order by j.id for key share);
  with found as materialized (
    select w.id from outlive.waiting w where w.id = any(rest) order by w.id for key share)
  select array(select unnest(rest) except select f.id from found f) into rest;
  with found as materialized (
    select r.id from outlive.running r where r.id = any(rest) order by r.token for key share)
  select array(select unnest(rest) except select f.id from found f) into rest;
  with found as materialized (
    select h.id, h.why from outlive.held h where h.id = any(rest) order by h.id for key share)
  select array(select unnest(rest) except select f.id from found f where f.why <> 'quarantined') into rest;
  select
    coalesce(array_agg(r.id) filter (where r.has_ended), '{}'),
    coalesce(array_agg(r.state) filter (where r.has_ended), '{}'),
    coalesce(array_agg(r.id) filter (where r.has_ended is not true), '{}')
  into ended, states, moving
  from (
    select s.id, s.state, s.state in ('succeeded', 'failed', 'cancelled', 'quarantined') as has_ended
    from (select i.id, outlive.state_of(i.id) as state from unnest(rest) i(id)) s) r;
end $$;

create or replace function outlive.check_ends() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
-- The head of this file says why. The first row of a transaction stands for all, so that everything is locked in
-- one order.
declare
  needed uuid[];
  mine uuid[];
  wrong record;
  ends record;
begin
  if not exists (select from outlive.end_checks c where c.id = new.id) then
    return null;
  end if;
  with checks as (
    delete from outlive.end_checks c where c.xid = pg_current_xact_id() returning c.needed, c.dependents)
  select
    array(select distinct n.id from checks c, unnest(c.needed) n(id)),
    array(select d.id from checks c, unnest(c.dependents) d(id))
  into needed, mine;
  perform from outlive.jobs j where j.id = any(needed) order by j.id for key share;
  select d.job_id, d.needs into wrong from unnest(needed) n(id), lateral (
    select l.job_id, l.needs from outlive.dependencies l where l.needs = n.id limit 1) d
  where not exists (select from outlive.jobs j where j.id = n.id) limit 1;
  if found then
    raise exception using errcode = 'OL003', message =
      format('job %s can''t wait for job %s, which was deleted meanwhile', wrong.job_id, wrong.needs);
  end if;
  select l.* into ends from outlive.lock_needed(array(
    select n.id from unnest(needed) n(id)
    where exists (select from outlive.dependencies d where d.needs = n.id and not d.met))) l;
  if ends.ended <> '{}' then
    perform outlive.heed_ends(ends.ended, ends.states, mine);
  end if;
  insert into outlive.end_checks (needed, dependents)
  select array_agg(distinct d.needs), array_agg(distinct d.job_id)
  from unnest(mine) m(id), lateral (
    select l.needs, l.job_id from outlive.dependencies l where l.job_id = m.id and not l.met offset 0) d
  where d.needs in (select unnest(ends.ended || ends.moving)) having count(*) > 0;
  return null;
end $$;

create or replace function outlive.check_late_ends(batch int) returns int
language plpgsql set enable_seqscan = off set lock_timeout = '100ms' as $$
-- Release or cancel what waits for jobs whose ends were left to the reaper: the head of this file says which.
-- Returns of how many rows. Rows that need the same jobs are checked together. What another transaction has locked
-- or moves is left for the next time, behind all others; after one wait in vain it hardly waits for a lock.
declare
  late record;
  ends record;
  checked int := 0;
begin
  for late in
    with notes as materialized (
      select c.* from outlive.end_checks c where c.xid is null order by c.id limit batch for update skip locked)
    select n.needed, n.dependents is null as of_all, array_agg(n.id) as ids from notes n group by 1, 2
  loop
    begin
      select l.* into ends from outlive.lock_needed(late.needed) l;
      if ends.ended <> '{}' then
        perform outlive.heed_ends(ends.ended, ends.states, case when not late.of_all then array(
          select unnest(c.dependents) from outlive.end_checks c where c.id = any(late.ids)) end);
      end if;
      if ends.moving = '{}' then
        delete from outlive.end_checks c where c.id = any(late.ids);
        checked := checked + cardinality(late.ids);
        continue;
      end if;
    exception when others then
      perform set_config('lock_timeout', '1ms', true);
      if sqlstate not in ('55P03', '40P01', '40001') then
        raise warning 'the ends of jobs % can''t be checked: %', late.needed, sqlerrm;
      end if;
    end;
    update outlive.end_checks c set id = default where c.id = any(late.ids);
  end loop;
  return checked;
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

drop trigger if exists check_ends on outlive.end_checks;
create constraint trigger check_ends after insert on outlive.end_checks deferrable initially deferred for each row
when (new.xid is not null) execute function outlive.check_ends();
