-- Sources: whose turn it is at an outside service, and whether the service is well. The caller of admits and spend
-- has locked the source's row.

create or replace function outlive.know_sources(sources text[], tasks text[]) returns void language plpgsql as $$
-- A source that a job names and no app declares gets a row, with the limits of its task's source. Without a task
-- it has no limits.
begin
  insert into outlive.sources (
    name, like_task, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s)
  select distinct on (a.source)
    a.source, a.task, d.rate_limit_per_minute, coalesce(d.burst, 1), d.max_concurrency,
    coalesce(d.breaker_failures, 5), coalesce(d.breaker_pause_s, 300)
  from unnest(sources, tasks) a(source, task)
    left join outlive.tasks t on t.name = a.task left join outlive.sources d on d.name = t.source
  where a.source <> '' and not exists (select from outlive.sources e where e.name = a.source)
  order by a.source
  on conflict do nothing;
end $$;

create or replace function outlive.full_by(rate_limit_per_minute double precision, burst int)
returns timestamptz language sql stable
-- When an empty bucket is full. A change of limits lowers full_at to this; otherwise the old limits would go on.
return outlive.now() + burst * 60 / rate_limit_per_minute * interval '1 second';

create or replace function outlive.set_limits(wanted json) returns setof text language sql as $$
-- Give known sources these limits. What operators have set stays. It returns the sources that another transaction
-- has locked: these keep their old limits.
with changed as materialized (
  select w.* from json_populate_recordset(null::outlive.sources, wanted) w join outlive.sources s using (name)
  where (s.like_task, s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s)
    is distinct from
    (w.like_task, w.rate_limit_per_minute, w.burst, w.max_concurrency, w.breaker_failures, w.breaker_pause_s)),
free as materialized (
  select s.name from outlive.sources s where s.name = any(array(select name from changed))
  order by s.name for update skip locked),
updated as (
  update outlive.sources s set
    (like_task, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s, full_at) =
    (c.like_task, c.rate_limit_per_minute, c.burst, c.max_concurrency, c.breaker_failures, c.breaker_pause_s,
     least(s.full_at, outlive.full_by(
       coalesce(s.set_rate_limit_per_minute, c.rate_limit_per_minute), coalesce(s.set_burst, c.burst))))
  from changed c where s.name = c.name and s.name = any(array(select name from free)))
select c.name from changed c where not exists (select from free f where f.name = c.name);
$$;

create or replace function outlive.admits_all(s outlive.sources) returns boolean language sql immutable
-- Whether it need not be asked: it has no limits, and its last call did not fail. Its jobs are claimed like those
-- without a source, many at a time and without a lock.
return s.enabled and s.paused_until is null and s.failure_streak = 0 and num_nonnulls(
  s.rate_limit_per_minute, s.set_rate_limit_per_minute, s.max_concurrency, s.set_max_concurrency) = 0;

create or replace function outlive.admits(
  s outlive.sources, own_token bigint, begins boolean,
  out free int, out wait_s double precision, out open boolean)
language plpgsql stable as $$
-- How many more may begin at a source now. If none may: in how many seconds to ask again, and whether the breaker
-- is the reason. `own_token` is the attempt that asks from inside: its own slot as a job of this source is not
-- counted, and as the probe it may go on. A job that only `begins` lets requests of running jobs go first.
declare
  every_s double precision := 60 / coalesce(s.set_rate_limit_per_minute, s.rate_limit_per_minute, 'infinity');
  owed_s double precision := greatest(0, extract(epoch from s.full_at - outlive.now()));
  most int := coalesce(s.set_burst, s.burst);
  at_once int := coalesce(s.set_max_concurrency, s.max_concurrency);
  used bigint;
begin
  free := 2147483647; wait_s := 0;
  open := not s.enabled or coalesce(s.paused_until > outlive.now(), false);
  if open then
    free := 0;
    wait_s := case when s.enabled then extract(epoch from s.paused_until - outlive.now()) else 1 end;
    return;
  end if;
  if begins and s.wanted_until > outlive.now() then
    free := 0;
    wait_s := extract(epoch from s.wanted_until - outlive.now());
    return;
  end if;
  -- Half-open: one attempt, the probe, tries.
  if s.paused_until is not null and (own_token is null or s.probe is distinct from own_token) then
    open := exists (select from outlive.running r where r.token = s.probe);
    free := case when open then 0 else 1 end;
    wait_s := 0.5;
  end if;
  if every_s > 0 then
    free := least(free, greatest(0, floor(most - owed_s / every_s)));
    if free = 0 and not open then
      wait_s := greatest(0.001, owed_s - (most - 1) * every_s);
    end if;
  end if;
  if at_once is not null and free > 0 then
    select (select count(*) from outlive.running r where r.source = s.name and r.token is distinct from own_token)
      + (select count(*) from outlive.requests q join outlive.running r on r.token = q.token
         where q.source = s.name)
    into used;
    free := least(free, greatest(0, at_once - used));
    if free = 0 then
      wait_s := 0.25;
    end if;
  end if;
end $$;

create or replace function outlive.spend(s outlive.sources, tokens int, by_token bigint) returns void
language plpgsql as $$
-- Take tokens out of a source's bucket. The attempt that takes one while the breaker is half-open is the probe.
declare
  every_s double precision := 60 / coalesce(s.set_rate_limit_per_minute, s.rate_limit_per_minute, 'infinity');
begin
  update outlive.sources t
  set full_at = greatest(t.full_at, outlive.now()) + tokens * every_s * interval '1 second',
    probe = case when s.paused_until is not null then by_token else t.probe end
  where t.name = s.name and (every_s > 0 or s.paused_until is not null);
end $$;

create or replace function outlive.admits_one(named text) returns boolean language plpgsql as $$
-- Whether a source admits one more. Its row stays locked, so that the answer holds. False if its row is locked.
declare
  s outlive.sources;
begin
  select t.* into s from outlive.sources t where t.name = named for update skip locked;
  if not found then
    perform outlive.know_sources(array[named], '{null}');
    return false;
  end if;
  return (outlive.admits(s, null, true)).free > 0;
end $$;

create or replace function outlive.claim_sourced(
  by_worker uuid, queues text[], sources text[], tasks text[], priorities smallint[], most int,
  lease_s double precision)
returns table (
  token bigint, id uuid, attempt int, queue text, source text, task text, priority smallint, ready_at timestamptz,
  failures smallint, crashes smallint, losses smallint, args json, options jsonb, wait_s double precision)
language plpgsql as $$
-- pending, retryable -> running, for at most `most` jobs of the lanes offered, as far as their sources admit them.
-- A row without an id names a source that admits none, and when to ask again. A locked source is skipped.
#variable_conflict use_column
declare
  offered record;
  s outlive.sources;
  may record;
  begun int;
  left_over int := most;
  last_token bigint;
begin
  for offered in
    select o.source, array_agg(o.queue order by o.n) as queues, array_agg(o.source) as sources,
      array_agg(o.task order by o.n) as tasks, array_agg(o.priority order by o.n) as priorities
    from unnest(queues, sources, tasks, priorities) with ordinality o(queue, source, task, priority, n)
    group by o.source order by min(o.n)
  loop
    exit when left_over < 1;
    token := null; id := null; source := offered.source; wait_s := null;
    select t.* into s from outlive.sources t where t.name = offered.source for update skip locked;
    if not found then
      perform outlive.know_sources(array[offered.source], offered.tasks[1:1]);
      wait_s := 0.02;
      return next;
      continue;
    end if;
    may := outlive.admits(s, null, true);
    if may.free < 1 then
      wait_s := may.wait_s;
      return next;
      continue;
    end if;
    begun := 0;
    for token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses, args, options in
      select * from outlive.claim_lanes(
        by_worker, offered.queues, offered.sources, offered.tasks, offered.priorities, null, null,
        least(may.free, left_over), lease_s, true, asked => true)
    loop
      begun := begun + 1;
      last_token := token;
      return next;
    end loop;
    if begun > 0 then
      perform outlive.spend(s, begun, last_token);
      left_over := left_over - begun;
    end if;
  end loop;
end $$;

create or replace function outlive.ask_source(
  named text, by_token bigint,
  out granted boolean, out wait_s double precision, out open boolean, out slot bigint)
language plpgsql as $$
-- One request of a running job, or, without a token, of a program outside any job. It is granted, or told when to
-- ask again and whether the breaker is the reason. Where concurrency is limited, `slot` is given back after the
-- request.
declare
  s outlive.sources;
  may record;
  own boolean := exists (select from outlive.running r where r.token = by_token and r.source = named);
begin
  select t.* into s from outlive.sources t where t.name = named for update;
  if not found then
    perform outlive.know_sources(array[named], '{null}');
    select t.* into s from outlive.sources t where t.name = named for update;
  end if;
  may := outlive.admits(s, by_token, false);
  granted := may.free > 0; wait_s := may.wait_s; open := may.open and not granted;
  if not s.enabled then
    wait_s := 30;  -- An operator paused it, for an unknown time, and each time that a job asks costs an attempt.
  end if;
  if granted then
    perform outlive.spend(s, 1, by_token);
    if not own and by_token is not null and coalesce(s.set_max_concurrency, s.max_concurrency) is not null then
      delete from outlive.requests q
      where q.source = named and not exists (select from outlive.running r where r.token = q.token);
      insert into outlive.requests (source, token) values (named, by_token) returning id into slot;
    end if;
  elsif by_token is not null and not open then
    -- The job asks again when it was told to, or after five seconds; until then it goes first.
    update outlive.sources t set wanted_until =
      greatest(t.wanted_until, outlive.now() + interval '1 second' * (least(wait_s, 5) + 0.25))
    where t.name = named;
  end if;
end $$;

create or replace function outlive.count_outcomes(
  names text[], tokens bigint[], oks boolean[], slots bigint[] default null, patient boolean default true)
returns int[] language plpgsql as $$
-- Count how requests went. While the breaker is closed, enough failures in a row open it. While it is half-open,
-- the probe alone decides, and requests that began earlier count for nothing. An outcome that is null gives back a
-- slot and the role of the probe. Sources are locked in the order of their names, so that two workers never
-- deadlock; one that is well and hears only of more successes is written once a second. If it is not `patient`,
-- it returns the numbers of the outcomes whose source another transaction has locked.
declare
  heard record;
  o record;
  s outlive.sources;
  fails boolean;
  uncounted int[] := '{}';
begin
  delete from outlive.requests q where q.id = any(slots) and q.token = any(tokens);
  for heard in
    select u.name, array_agg(u.n::int order by u.n) as places
    from unnest(names, oks) with ordinality u(name, ok, n) group by u.name
    having not (bool_and(coalesce(u.ok, false)) and exists (
      select from outlive.sources w
      where w.name = u.name and w.paused_until is null and w.failure_streak = 0
        and w.last_success_at > outlive.now() - interval '1 second'))
    order by u.name
  loop
    if patient then
      select t.* into s from outlive.sources t where t.name = heard.name for update;
    else
      select t.* into s from outlive.sources t where t.name = heard.name for update skip locked;
    end if;
    if not found then
      if exists (select from outlive.sources t where t.name = heard.name) then
        uncounted := uncounted || heard.places;
      end if;
      continue;
    end if;
    for o in select tokens[p] as token, oks[p] as ok from unnest(heard.places) p loop
      if o.ok then
        s.last_success_at := outlive.now();
      elsif not o.ok then
        s.last_failure_at := outlive.now();
      end if;
      if o.ok is null then
        s.probe := nullif(s.probe, o.token);
      elsif s.paused_until is null or s.paused_until > outlive.now() or s.probe is not distinct from o.token then
        s.failure_streak := case when o.ok then 0 else s.failure_streak + 1 end;
        fails := not o.ok and (s.paused_until is not null
          or s.failure_streak >= coalesce(s.set_breaker_failures, s.breaker_failures));
        s.probe := null;
        s.paused_until := case
          when s.paused_until > outlive.now() then s.paused_until
          when fails then
            outlive.now() + coalesce(s.set_breaker_pause_s, s.breaker_pause_s) * interval '1 second' end;
      end if;
    end loop;
    update outlive.sources t set
      (last_success_at, last_failure_at, failure_streak, paused_until, probe) =
      (s.last_success_at, s.last_failure_at, s.failure_streak, s.paused_until, s.probe)
    where t.name = heard.name;
  end loop;
  return uncounted;
end $$;
