-- Expiry: a job that does not start in time is cancelled.
--
--     in_time         whether a job may start now
--     let_expire      notes when new jobs expire
--     cancel_expired  cancels the jobs that have expired
--
-- A claim takes no job whose time is up, by the clock of the database. That alone keeps it from running. The rest
-- is tidying: worker/fleet/leftovers.py calls cancel_expired every second, in every worker and in `outlive reap`.

create or replace function outlive.in_time(job uuid) returns boolean language sql stable
-- Whether this job may start now.
return coalesce((select e.expires_at > outlive.now() from outlive.expiring e where e.job_id = job), true);

create or replace function outlive.let_expire(ids uuid[], links jsonb[]) returns void language sql as $$
-- Note when those of these new jobs expire whose links say so, or else whose tasks do.
insert into outlive.expiring (job_id, expires_at)
select e.id, outlive.now() + e.expires_s * interval '1 second'
from (
  select j.id, nullif(coalesce(
      (coalesce(a.links, case when cardinality(let_expire.links) = 1 then let_expire.links[1] end)
        ->> 'expires_s')::double precision,
      (select t.expires_s from outlive.tasks t where t.name = j.task)), 0) as expires_s
  from unnest(let_expire.ids, let_expire.links) a(id, links) join outlive.jobs j on j.id = a.id) e
where e.expires_s is not null
on conflict do nothing
$$;

create or replace function outlive.cancel_expired(batch int) returns int
language plpgsql set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
-- pending, retryable, blocked by other jobs -> cancelled: for jobs that did not start in time. An attempt under
-- way goes on; a retry is a start too. What a person holds or retries later does not expire any more. Returns how
-- many notes it has looked at. Locked jobs are left for the next time.
declare
  due uuid[];
  ended uuid[];
begin
  due := array(
    select e.job_id from outlive.expiring e
    where e.expires_at <= outlive.now() and not exists (select from outlive.running r where r.id = e.job_id)
    order by e.expires_at limit batch for update skip locked);
  if due = '{}' then
    return 0;
  end if;
  with waited as (
    delete from outlive.waiting w where w.id = any(array(
      select l.id from outlive.waiting l where l.id = any(due) order by l.id for update skip locked))
    returning w.id, w.attempt, w.failures, w.crashes, w.losses),
  blocked as (
    delete from outlive.held h where h.id = any(array(
      select l.id from outlive.held l where l.id = any(due) and l.why in ('dependent', 'key', 'suspect')
      order by l.id for update skip locked))
    returning h.id, h.attempt, h.failures, h.crashes, h.losses)
  select outlive.finish_unclaimed(
    array_agg(g.id), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes), array_agg(g.losses),
    array_agg('expired: it had to start by ' || to_char(
      (select e.expires_at from outlive.expiring e where e.job_id = g.id) at time zone 'UTC',
      'YYYY-MM-DD HH24:MI:SS "UTC"')))
  into ended from (table waited union all table blocked) g;
  if cardinality(ended) > 0 then
    update outlive.dependencies d set met = true where d.job_id = any(ended) and not d.met;
    perform outlive.leave_ends(ended);
    perform outlive.follow_through(ended, array_fill('cancelled'::text, array[cardinality(ended)]));
  end if;
  delete from outlive.expiring e
  where e.job_id = any(due)
    and not exists (select from outlive.waiting w where w.id = e.job_id)
    and not exists (select from outlive.running r where r.id = e.job_id)
    and not exists (
      select from outlive.held h where h.id = e.job_id and h.why in ('dependent', 'key', 'suspect'));
  return cardinality(due);
end $$;
