-- Late ends: what waits for jobs that have ended, and could not be released at once. dependencies.sql says why.
-- worker/fleet/leftovers.py calls check_late_ends and follow_late_ends, in watchers and in `outlive reap`.

create or replace function outlive.apply_past_ends(needed uuid[], states text[], among uuid[]) returns void
language plpgsql as $$
-- These jobs had ended before: apply that to the jobs of `among` that wait for them. Their own ends were followed
-- up then. What waits for those that are cancelled is left for later.
declare
  others uuid[];
begin
  others := (select r.ids[cardinality(needed) + 1:] from outlive.release_dependents(needed, states, among) r);
  if cardinality(others) > 0 then
    perform outlive.leave_ends(others);
    perform outlive.follow_through(others, array_fill('cancelled'::text, array[cardinality(others)]));
  end if;
end $$;

create or replace function outlive.find_ended(
  needed uuid[], out ended uuid[], out states text[], out moving uuid[])
language plpgsql set enable_seqscan = off as $$
-- Those of these jobs that have ended, with their states, in their order; and those that another transaction moves
-- or ends just now. A job that was pruned is neither: no other one needs it. The others can't end before this
-- transaction does: it locks them in their places.
declare
  rest uuid[];
begin
  rest := array(select w.id from outlive.waiting w where w.id = any(needed) for key share skip locked);
  rest := rest || array(select r.id from outlive.running r where r.id = any(needed) for key share skip locked);
  rest := rest || array(
    select h.id from outlive.held h where h.id = any(needed) and h.why <> 'quarantined' for key share skip locked);
  rest := array(select unnest(needed) except select unnest(rest));
  select
    coalesce(array_agg(r.id order by r.at) filter (where r.has_ended), '{}'),
    coalesce(array_agg(r.state order by r.at) filter (where r.has_ended), '{}'),
    coalesce(array_agg(r.id) filter (where r.has_ended is not true), '{}')
  into ended, states, moving
  from (
    select s.id, s.at, s.state, s.state in ('succeeded', 'failed', 'cancelled', 'quarantined') as has_ended
    from (
      select i.id, i.at, outlive.state_of(i.id) as state from unnest(needed) with ordinality i(id, at)
      where i.id in (select unnest(rest))) s
    where s.state is not null) r;
end $$;

create or replace function outlive.check_late_ends(batch int) returns int
language plpgsql set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
-- blocked -> pending, cancelled: for jobs that were enqueued to wait for others, which ended before that was
-- committed. Returns how many notes of enqueues it has checked. Notes that need the same jobs are checked
-- together. What another transaction has locked or moves is left for the next time, behind all others; after one
-- wait in vain it hardly waits for a lock.
declare
  notes bigint[];
  late record;
  ends record;
  behind bigint[] := '{}';
  checked int := 0;
begin
  notes := array(
    select c.id from outlive.end_checks c where c.dependents is not null
    order by c.id limit batch for update skip locked);
  if notes = '{}' then
    return 0;
  end if;
  select f.* into ends from outlive.find_ended(array(
    select distinct n.id from outlive.end_checks c, unnest(c.needed) n(id) where c.id = any(notes))) f;
  for late in
    select c.needed, array_agg(c.id) as ids,
      exists (select from unnest(c.needed) n(id) where n.id in (select unnest(ends.moving))) as moves,
      exists (select from unnest(c.needed) n(id) where n.id in (select unnest(ends.ended))) as some_ended
    from outlive.end_checks c where c.id = any(notes) group by c.needed
  loop
    begin
      if late.some_ended then
        perform outlive.apply_past_ends(
          array_agg(e.id), array_agg(e.state),
          array(select unnest(c.dependents) from outlive.end_checks c where c.id = any(late.ids)))
        from unnest(ends.ended, ends.states) e(id, state) where e.id = any(late.needed);
      end if;
      if not late.moves then
        delete from outlive.end_checks c where c.id = any(late.ids);
        checked := checked + cardinality(late.ids);
        continue;
      end if;
    exception when others then
      perform outlive.note_trouble(late.needed, sqlstate, sqlerrm);
    end;
    behind := behind || late.ids;
  end loop;
  perform set_config('lock_timeout', '100ms', true);
  update outlive.end_checks c set id = default where c.id = any(behind);
  return checked;
end $$;

create or replace function outlive.follow_late_ends(batch int) returns int
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '100ms' as $$
-- blocked -> pending, cancelled: for the jobs that wait for jobs whose ends were left for later, some at a
-- time. `past` is the last one of those that wait for the first of the needed jobs. Returns how many notes of ends
-- it has followed up, or a part of them. What is left goes behind all others, as in check_late_ends.
declare
  late record;
  ends record;
  part record;
  among uuid[];
  behind bigint[] := '{}';
  followed int := 0;
  concerned int := 0;
begin
  for late in
    select c.* from outlive.end_checks c where c.dependents is null
    order by c.id limit batch for update skip locked
  loop
    among := null;
    begin
      select f.* into ends from outlive.find_ended(late.needed) f;
      select array_agg(e.needs order by e.at, e.job_id) as needs,
        array_agg(e.job_id order by e.at, e.job_id) as jobs,
        array_agg(e.falls order by e.at, e.job_id) as fall, count(*) >= outlive.many_dependents() as more
      into part
      from (
        select n.id as needs, n.at, d.job_id, n.state <> 'succeeded' and d.on_failure = 'cancel' as falls
        from unnest(ends.ended, ends.states) with ordinality n(id, state, at), lateral (
          select l.job_id, l.on_failure from outlive.dependencies l
          where l.needs = n.id and not l.met and (n.id <> late.needed[1] or l.job_id > late.past)
          order by l.job_id limit outlive.many_dependents()) d
        order by n.at, d.job_id limit outlive.many_dependents()) e;
      if part.jobs is not null then
        -- With those that wait for the ones to be cancelled, so that a long chain is not cancelled link by link.
        among := array(
          with recursive concerned(id, falls) as (
            select p.id, p.falls from unnest(part.jobs, part.fall) p(id, falls)
            union
            select d.job_id, d.on_failure = 'cancel' from concerned c, lateral (
              select l.job_id, l.on_failure from outlive.dependencies l
              where c.falls and l.needs = c.id and not l.met offset 0) d)
          select c.id from concerned c limit 2 * outlive.many_dependents());
        perform outlive.apply_past_ends(ends.ended, ends.states, among);
      end if;
      if ends.moving = '{}' then
        followed := followed + 1;
        if not part.more then
          delete from outlive.end_checks c where c.id = late.id;
        else
          update outlive.end_checks c set id = default, past = part.jobs[cardinality(part.jobs)],
            needed = c.needed[array_position(c.needed, part.needs[cardinality(part.needs)]):]
          where c.id = late.id;
        end if;
        concerned := concerned + coalesce(cardinality(among), 0);
        exit when concerned >= outlive.many_dependents();
        continue;
      end if;
    exception when others then
      perform outlive.note_trouble(late.needed, sqlstate, sqlerrm);
    end;
    behind := behind || late.id;
  end loop;
  perform set_config('lock_timeout', '100ms', true);
  update outlive.end_checks c set id = default where c.id = any(behind);
  return followed;
end $$;

create or replace function outlive.note_trouble(needed uuid[], state text, message text) returns void
language plpgsql as $$
-- The ends of these jobs can't be followed up now: the next locks are hardly waited for.
begin
  perform set_config('lock_timeout', '1ms', true);
  if state not in ('55P03', '40P01', '40001') then
    raise warning 'the ends of jobs % can''t be followed up: %', needed[:5], message;
  end if;
end $$;
