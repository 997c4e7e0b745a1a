-- Statements about results: clients that wait for them, and those that are kept no longer.

-- name: await_jobs
-- This client wants to be notified when these jobs end. It looks at them after this, before it waits. A row that
-- is young enough stays as it is: to write it would lock it, and the end of the job would skip it.
insert into outlive.awaited (job_id, since)
select i.id, outlive.now() from unnest(:ids::uuid[]) i(id)
where not exists (
  select from outlive.awaited a
  where a.job_id = i.id and a.since > outlive.now() - :renew_s::double precision * interval '1 second')
order by i.id
on conflict (job_id) do update set since = excluded.since;

-- name: awaited_ends
-- Those of these jobs that have ended or don't exist. No client need be notified of them any more: one that wrote
-- its wish after the end sees the end when it looks.
with over as materialized (
  select i.id from unnest(:ids::uuid[]) i(id) left join outlive.jobs j on j.id = i.id
  where j.id is null or outlive.state_of(j.id) in ('succeeded', 'failed', 'cancelled', 'quarantined')),
gone as (
  delete from outlive.awaited a where a.job_id = any(array(
    select w.job_id from outlive.awaited w where w.job_id = any(array(select o.id from over o))
    for update skip locked)))
select o.id from over o;

-- name: prune_awaited
-- Delete the rows of clients that have gone. Those that still wait renew theirs.
delete from outlive.awaited a where a.job_id = any(array(
  select w.job_id from outlive.awaited w
  where w.since < outlive.now() - :keep_s::double precision * interval '1 second'
  for update skip locked));

-- name: prune_expired
-- succeeded, cancelled -> (none), for jobs that are older than their task keeps them. There may be more if `seen`
-- is as high as the batch.
with old as (
  select f.job_id from outlive.attempts f
  where f.expires_at <= outlive.now() and f.state in ('succeeded', 'failed', 'cancelled')
    and not exists (
      select from outlive.dependencies d where d.needs = f.job_id and (f.state = 'succeeded' or not d.met))
  order by f.expires_at limit :batch::int),
ids as (select array_agg(job_id) as ids, count(*) as seen from old)
select outlive.prune(ids.ids), ids.seen from ids;
