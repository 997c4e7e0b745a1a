-- Schedules: how apps declare them, how they fire, and what operators do with them.
--
-- SQLSTATEs: OL003 there is no such schedule, or the verb makes no sense for it.

create or replace function outlive.schedule_changed() returns trigger language plpgsql as $$
-- Its firings from now on follow the new times. The ones before are not made up for. If the clock was set back
-- since the last firing, they begin after that one.
begin
  new.next_at := null;
  new.trouble := null;
  new.changed_at := greatest(outlive.now(), old.last_tick);
  return new;
end $$;

create or replace trigger schedule_changed before update on outlive.schedules for each row
when ((old.cron, old.every_s, old.timezone, old.starts_at, old.ends_at) is distinct from
      (new.cron, new.every_s, new.timezone, new.starts_at, new.ends_at))
execute function outlive.schedule_changed();

create or replace function outlive.changes(s outlive.schedules) returns jsonb language sql stable
-- The columns in which a schedule differs from what its app declares, with their present values.
begin atomic
  select coalesce(jsonb_object_agg(c.name, r.now -> c.name), '{}')
  from (
      select to_jsonb(s) as now, to_jsonb(json_populate_record(null::outlive.schedules, s.declared)) as declared
      offset 0) r,
    unnest('{task,args,queue,priority,cron,every_s,timezone,missed,overlap,jitter_s,starts_at,
      ends_at}'::text[]) c(name)
  where r.now -> c.name <> r.declared -> c.name;
end;

create or replace function outlive.declared_by_living(s outlive.schedules) returns boolean language sql stable
-- Of any app: the other one has the same name, or declared it before its present app took it over.
return exists (
  select from outlive.workers k
  where s.name = any(k.schedules) and k.state in ('active', 'stale', 'draining'));

create or replace function outlive.declare_schedules(declarations json, app text)
returns table (schedule text, outcome text) language plpgsql as $$
-- Write the schedules of an app, and withdraw those that it no longer declares. A living worker may still declare
-- them: one of an older version, or of another service. What an operator has changed stays as it is, until the
-- schedule is reset. A row is a schedule that was withdrawn, one that another app had declared (taken), or an
-- operator's own, which is left alone (refused). One that has a former name and exists under that is renamed.
declare
  declaration json;
  d outlive.schedules;
  s outlive.schedules;
  kept jsonb;
begin
  perform pg_advisory_xact_lock(hashtextextended('outlive declare_schedules', 0));  -- One at a time: no deadlocks.
  for declaration in select e from json_array_elements(declarations) e where e -> 'was' ->> 0 is not null loop
    update outlive.schedules t set name = declaration ->> 'name'
    where t.declared is not null
      and t.name = (
        select w.name from json_array_elements_text(declaration -> 'was') with ordinality w(name, at)
        where exists (select from outlive.schedules o where o.name = w.name) order by w.at limit 1)
      and not exists (select from outlive.schedules o where o.name = declaration ->> 'name');
  end loop;
  return query update outlive.schedules t set withdrawn_at = outlive.now()
    where t.declared_by = app and t.withdrawn_at is null and not outlive.declared_by_living(t)
      and t.name not in (select e ->> 'name' from json_array_elements(declarations) e)
    returning t.name, 'withdrawn';
  for declaration in select e from json_array_elements(declarations) e loop
    d := json_populate_record(null::outlive.schedules, declaration);
    insert into outlive.schedules (name, task, args, queue, priority, cron, every_s, timezone, missed, overlap,
      jitter_s, starts_at, ends_at, declared, declared_by)
    values (d.name, d.task, d.args, d.queue, d.priority, d.cron, d.every_s, d.timezone, d.missed, d.overlap,
      d.jitter_s, d.starts_at, d.ends_at, declaration, app)
    on conflict do nothing;
    continue when found;
    select t.* into s from outlive.schedules t where t.name = d.name for update;
    if s.declared_by is distinct from app then
      schedule := s.name;
      outcome := case when s.declared is null then 'refused' else 'taken' end;
      return next;
    end if;
    continue when s.declared is null;
    kept := outlive.changes(s);
    if kept ?| '{cron,every_s}' then
      kept := kept || jsonb_build_object('cron', s.cron, 'every_s', s.every_s);
    end if;
    if kept ? 'args' then  -- As an operator wrote them: jsonb would write some numbers in another way.
      d.args := s.args;
    end if;
    update outlive.schedules t set
      (task, args, queue, priority, cron, every_s, timezone, missed, overlap, jitter_s, starts_at, ends_at,
       declared, declared_by, withdrawn_at) =
      (k.task, d.args, k.queue, k.priority, k.cron, k.every_s, k.timezone, k.missed, k.overlap, k.jitter_s,
       k.starts_at, k.ends_at, declaration, app, null)
    from jsonb_populate_record(d, kept) k where t.name = d.name;
  end loop;
end $$;

create or replace function outlive.check_schedules()
returns table (schedule text, app text, withdrawn boolean) language plpgsql as $$
-- Withdraw the schedules that their app, which runs, no longer declares: the last worker that did is gone. Put
-- back in force those that a living worker declares, for example one that was declared dead. If that is a worker
-- of another app, it declares them again (`orphaned_schedules`). A row that is locked waits for the next check.
begin
  return query
    update outlive.schedules t set withdrawn_at = case when t.withdrawn_at is null then outlive.now() end
    where t.name = any(array(
      select s.name from outlive.schedules s
      where s.declared is not null and case when s.withdrawn_at is not null then outlive.declared_by_living(s)
        else not outlive.declared_by_living(s) and exists (
          select from outlive.workers k
          where k.app = s.declared_by and k.state in ('active', 'stale', 'draining')) end
      order by s.name for update skip locked))
    returning t.name, t.declared_by, t.withdrawn_at is not null;
end $$;

create or replace function outlive.tick_hash(schedule text, tick timestamptz) returns bytea language sql stable
-- The same firing always has the same id and jitter.
return sha256(convert_to(schedule || ' ' || extract(epoch from tick), 'UTF8'));

create or replace function outlive.tick_id(schedule text, tick timestamptz) returns uuid language sql stable
-- A version 7 uuid: it starts with the milliseconds of the tick, and the rest is a hash.
begin atomic
  select encode(overlay(overlay(overlay(substring(h.hash for 16)
    placing substring(int8send((extract(epoch from tick) * 1000)::bigint) from 3) from 1 for 6)
    placing set_byte('\x00'::bytea, 0, 112 | (get_byte(h.hash, 6) & 15)) from 7 for 1)
    placing set_byte('\x00'::bytea, 0, 128 | (get_byte(h.hash, 8) & 63)) from 9 for 1), 'hex')::uuid
  from (select outlive.tick_hash(schedule, tick) as hash) h;
end;

create or replace function outlive.fire(
  schedule text, seen_next timestamptz, seen_changed timestamptz, ticks timestamptz[], following timestamptz)
returns table (jobs int, busy uuid) language plpgsql as $$
-- (none) -> pending, one job for each tick; and `following`, the tick after them, is written. Zero rows: another
-- worker fires it, or an operator has changed or paused it since it was read. `busy` is the unfinished job of an
-- earlier firing because of which this one is skipped. A tick that was fired before makes no second job: it is
-- left out, and if the row was made again since, its id is the same.
declare
  s outlive.schedules;
  ids uuid[];
  ready timestamptz[];
begin
  select t.* into s from outlive.schedules t
  where t.name = schedule and t.next_at is not distinct from seen_next and t.changed_at = seen_changed
    and t.paused_at is null and t.withdrawn_at is null
  for update skip locked;
  if not found then
    return;
  end if;
  ticks := array(select u.tick from unnest(ticks) u(tick) where u.tick > coalesce(s.last_tick, '-infinity')
    order by u.tick);
  if s.overlap <> 'queue' and cardinality(ticks) > 0 then
    ticks := ticks[cardinality(ticks):];  -- The others would overlap with each other.
    if s.overlap = 'cancel' then  -- An operator may hold it back just now.
      perform from outlive.jobs j where j.id = s.last_job for no key update;
    end if;
    if outlive.state_of(s.last_job) in ('pending', 'retryable', 'running', 'suspended') then
      if s.overlap = 'skip' then
        ticks := '{}';
        busy := s.last_job;
      else
        perform outlive.cancel(array[s.last_job]);
      end if;
    end if;
  end if;
  jobs := cardinality(ticks);
  if jobs > 0 then
    select array_agg(outlive.tick_id(schedule, t.tick) order by t.tick),
      array_agg(t.tick + (get_byte(t.hash, 16) * 256 + get_byte(t.hash, 17)) / 65536.0 * s.jitter_s
        * interval '1 second' order by t.tick)
      into ids, ready
    from (select u.tick, outlive.tick_hash(schedule, u.tick) as hash from unnest(ticks) u(tick)) t;
    perform outlive.enqueue(ids, array[s.task], array[s.queue], null, array_fill(s.args, array[jobs]),
      array_fill(coalesce(s.priority, 5::smallint), array[jobs]), null, ready, null, null,
      array_fill(jsonb_build_object('schedule', s.name), array[jobs]), 65536, true);
    s.last_tick := ticks[jobs];
    s.last_job := ids[jobs];
  end if;
  update outlive.schedules t
  set (next_at, last_tick, last_job, trouble) = (coalesce(following, 'infinity'), s.last_tick, s.last_job, null)
  where t.name = schedule;
  return next;
end $$;

create or replace function outlive.the_schedule(name text) returns outlive.schedules language plpgsql as $$
-- Lock the row of a schedule. OL003: there is no such schedule.
#variable_conflict use_variable
declare
  s outlive.schedules;
begin
  select t.* into s from outlive.schedules t where t.name = name for update;
  perform outlive.refuse_unless(
    found, format('there is no schedule %s: `outlive schedules` lists the schedules', name));
  return s;
end $$;

create or replace function outlive.pause_schedule(name text) returns void language sql as $$
-- It fires no more until it is resumed.
select outlive.the_schedule(pause_schedule.name);
update outlive.schedules t set paused_at = coalesce(t.paused_at, outlive.now()) where t.name = pause_schedule.name;
$$;

create or replace function outlive.resume_schedule(name text) returns void language sql as $$
-- It fires again. The firings that were due meanwhile follow `missed`.
select outlive.the_schedule(resume_schedule.name);
update outlive.schedules t set paused_at = null where t.name = resume_schedule.name;
$$;

create or replace function outlive.run_schedule(name text) returns uuid language plpgsql as $$
-- (none) -> pending: a job of this schedule, now, whether it is paused or not. Its next firing stays as it is. The
-- next one overlaps with this job only if no earlier job is unfinished.
#variable_conflict use_variable
declare
  s outlive.schedules := outlive.the_schedule(name);
  job uuid;
begin
  job := outlive.enqueue(s.task, s.args, queue => s.queue, priority => s.priority::int,
    options => jsonb_build_object('schedule', s.name));
  if outlive.state_of(s.last_job) in ('pending', 'retryable', 'running', 'suspended') is not true then
    update outlive.schedules t set last_job = job where t.name = name;
  end if;
  return job;
end $$;

create or replace function outlive.reset_schedule(name text) returns void language plpgsql as $$
-- Take back what operators have changed: the declaration of the app applies again.
#variable_conflict use_variable
declare
  s outlive.schedules := outlive.the_schedule(name);
begin
  perform outlive.refuse_unless(s.declared is not null, format(
    'no app has declared the schedule %s: change it with `outlive schedules set`, or remove it', name));
  update outlive.schedules t set
    (task, args, queue, priority, cron, every_s, timezone, missed, overlap, jitter_s, starts_at, ends_at) =
    (d.task, d.args, d.queue, d.priority, d.cron, d.every_s, d.timezone, d.missed, d.overlap, d.jitter_s,
     d.starts_at, d.ends_at)
  from json_populate_record(null::outlive.schedules, s.declared) d where t.name = name;
end $$;

create or replace function outlive.remove_schedule(name text) returns void language sql as $$
-- Delete a schedule. If an app declares it, the next worker of that app to start makes it again.
select outlive.the_schedule(remove_schedule.name);
delete from outlive.schedules t where t.name = remove_schedule.name;
$$;
