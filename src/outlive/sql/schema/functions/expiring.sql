-- Expiry and deadlines: a job that does not start in time, or does not end by its deadline, is cancelled.
--
--     in_time         whether a job may start now
--     lateness        why a job that is cancelled is too late, in words
--     let_expire      notes when new jobs expire, and their deadlines
--     cancel_expired  cancels the jobs whose time is up
--
-- A claim takes no job whose time is up, by the clock of the database. That alone keeps it from running. The rest
-- is tidying: worker/fleet/leftovers.py calls cancel_expired every second, in watchers and in `outlive reap`.

create or replace function outlive.in_time(job uuid) returns boolean language sql stable
-- Whether this job may start now.
return not exists (select from outlive.expiring e where e.job_id = job and e.expires_at <= outlive.now());

create or replace function outlive.lateness(job uuid, running boolean default false) returns text
language sql stable
-- Why a job is too late, in words; null: it is not. One that is running has started in time.
return (
  select case when e.whole then 'deadline: it had to end by ' else 'expired: it had to start by ' end
    || to_char(e.expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
  from outlive.expiring e
  where e.job_id = job and e.expires_at <= outlive.now() and (e.whole or not running)
  order by e.expires_at limit 1);

create or replace function outlive.let_expire(ids uuid[], links jsonb[]) returns void language sql as $$
-- Note when those of these new jobs expire, and their deadlines, whose links say so, or else whose tasks do.
insert into outlive.expiring (job_id, whole, expires_at)
select j.id, l.whole, outlive.now() + l.s * interval '1 second'
from unnest(let_expire.ids, let_expire.links) a(id, links) join outlive.jobs j on j.id = a.id
  left join outlive.tasks t on t.name = j.task
  cross join lateral (
    select coalesce(a.links, case when cardinality(let_expire.links) = 1 then let_expire.links[1] end)) o(links)
  cross join lateral (values
    (false, coalesce((o.links ->> 'expires_s')::double precision, t.expires_s)),
    (true, coalesce((o.links ->> 'deadline_s')::double precision, t.deadline_s))) l(whole, s)
where l.s > 0
on conflict do nothing
$$;

create or replace function outlive.cancel_expired(batch int) returns int
language plpgsql set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
-- pending, retryable, blocked by other jobs -> cancelled: for jobs that did not start in time. An attempt under
-- way goes on; a retry is a start too. Jobs past their deadline are cancelled also if they are suspended or an
-- operator has blocked them, and running ones are asked to stop. A job in quarantine stays there, and what an
-- operator releases or retries later is not too late any more. Returns how many notes it has looked at. Locked
-- jobs are left for the next time.
declare
  due uuid[];
  overdue uuid[];
  ended uuid[];
begin
  with late as materialized (
    select e.job_id, e.whole from outlive.expiring e
    where e.expires_at <= outlive.now() and not exists (
      select from outlive.running r where r.id = e.job_id and (r.cancel_requested or not e.whole))
    order by e.expires_at limit batch for update skip locked)
  select array_agg(l.job_id), array_agg(l.job_id) filter (where l.whole) into due, overdue from late l;
  if due is null then
    return 0;
  end if;
  with waited as (
    delete from outlive.waiting w where w.id = any(array(
      select l.id from outlive.waiting l where l.id = any(due) order by l.id for update skip locked))
    returning w.id, w.attempt, w.failures, w.crashes, w.losses),
  kept as (
    delete from outlive.held h where h.id = any(array(
      select l.id from outlive.held l
      where l.id = any(due) and (l.why in ('dependent', 'key', 'suspect')
        or l.why in ('suspended', 'blocked') and l.id = any(overdue))
      order by l.id for update skip locked))
    returning h.id, h.attempt, h.failures, h.crashes, h.losses)
  select outlive.finish_unclaimed(
    array_agg(g.id), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes), array_agg(g.losses))
  into ended from (table waited union all table kept) g;
  if cardinality(ended) > 0 then
    update outlive.dependencies d set met = true where d.job_id = any(ended) and not d.met;
    perform outlive.leave_ends(ended);
    perform outlive.follow_through(ended, array_fill('cancelled'::text, array[cardinality(ended)]));
  end if;
  update outlive.running r set cancel_requested = true where r.token = any(array(
    select l.token from outlive.running l where l.id = any(overdue) order by l.token for update skip locked));
  if found then
    perform pg_notify('outlive', 'cancel');  -- Their workers check for cancel requests at once.
  end if;
  delete from outlive.expiring e
  where e.job_id = any(due) and e.expires_at <= outlive.now()
    and not exists (select from outlive.waiting w where w.id = e.job_id)
    and not exists (select from outlive.running r where r.id = e.job_id)
    and not exists (
      select from outlive.held h where h.id = e.job_id and (h.why in ('dependent', 'key', 'suspect')
        or h.why in ('suspended', 'blocked') and e.whole));
  return cardinality(due);
end $$;
