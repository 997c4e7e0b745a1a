-- What follows from the end of a job.

create or replace function outlive.follow_up(
  ids uuid[], states text[], at_once boolean default false, among uuid[] default null) returns int
language plpgsql set enable_seqscan = off as $$
-- These jobs have just reached these states. Some go on by themselves (pending, retryable). `at_once`: the next
-- jobs of their concurrency keys are admitted here, because this transaction commits soon. To enter a function
-- with settings takes microseconds, so here and below the rare ones are entered only if there is something to do.
-- Volatile, so that it sees what was committed since the snapshot of its caller. With `among`, of the jobs that
-- wait for these only some are released or cancelled. Returns how many other jobs it has changed.
declare
  changed int := 0;
begin
  -- First, because it adds the jobs that it cancels.
  if exists (select from outlive.dependencies d where d.needs = any(ids))
     or exists (select from outlive.dependencies d where d.job_id = any(ids)) then
    select r.* into ids, states, changed from outlive.release_dependents(ids, states, among) r;
  end if;
  perform outlive.follow_through(ids, states, at_once => at_once);
  return changed;
end $$;

create or replace function outlive.follow_through(
  ids uuid[], states text[], joined uuid[] default '{}', at_once boolean default false)
returns void language plpgsql set enable_seqscan = off as $$
-- `joined` are the batches of jobs that were just made, once for each job.
begin
  if not outlive.sees_all() then
    insert into outlive.end_checks (needed)
    select array_agg(e.id) from unnest(ids, states) e(id, state)
    where e.state in ('succeeded', 'failed', 'cancelled', 'quarantined') having count(*) > 0;
  end if;
  if joined <> '{}' or exists (select from outlive.batches b where b.done_at is null) then
    perform outlive.count_in_batches(ids, states, joined);
  end if;
  if exists (select from outlive.keyed_jobs k where k.job_id = any(ids)) then
    perform outlive.follow_keys(ids, states, coalesce(at_once, false));
  end if;
  if states && '{failed,quarantined}' then
    perform outlive.call_on_failed(array(
      select e.id from unnest(ids, states) e(id, state) where e.state in ('failed', 'quarantined')));
  end if;
  if exists (select from outlive.awaited a where a.job_id = any(ids)) then
    perform outlive.tell_waiters(ids, states);
  end if;
  if exists (select from outlive.expiring e where e.job_id = any(ids)) then
    delete from outlive.expiring e where (e.job_id, e.whole) in (
      select l.job_id, l.whole from unnest(ids, states) d(id, state) join outlive.expiring l on l.job_id = d.id
      where d.state in ('succeeded', 'failed', 'cancelled') for update of l skip locked);
  end if;
end $$;

create or replace function outlive.call_on_failed(ids uuid[]) returns void language plpgsql as $$
-- These jobs have just failed or were quarantined: enqueue the job that each of them, or else its app, names for
-- that, with the array of its own id and error. The new job has the id of the old one with other last bytes. So it
-- is made once, also if the old one is retried and fails again. The first of these bytes is 16 higher, so that the
-- ids differ also as pages and logs shorten them. An app's own callback calls itself for no failure. The new job
-- carries the baggage of the old one. `once_for` is
-- taken in place of the old one's id: of all jobs that have the same there, the first to fail makes the new one.
declare
  due json;
begin
  select json_agg(c.job) into due from (
    select distinct on (i.id) f.job || jsonb_build_object('id', i.id, 'args', jsonb_build_array(j.id, coalesce(
        (select h.details from outlive.held h where h.id = j.id),
        (select coalesce(a.error, a.outcome) from outlive.attempts a where a.job_id = j.id
         order by a.attempt desc limit 1)))) || case when j.options ? 'baggage' then jsonb_build_object(
        'options', coalesce(f.job -> 'options', '{}') || jsonb_build_object('baggage', j.options -> 'baggage'))
        else '{}' end as job
    from outlive.jobs j
      left join outlive.tasks t on t.name = j.task and t.on_failed ->> 'task' <> j.task
      cross join lateral (select coalesce(j.on_failed, t.on_failed)) f(job)
      cross join lateral (select uuid_send(coalesce((f.job ->> 'once_for')::uuid, j.id))) b(id)
      cross join lateral (select encode(
        overlay(set_byte(b.id, 9, (get_byte(b.id, 9) + 16) % 256) placing substring(sha256(b.id) for 6) from 11),
        'hex')::uuid) i(id)
    where j.id = any(ids) and f.job is not null
    order by i.id, j.id) c;
  if due is not null then
    perform outlive.spawn(due);
  end if;
end $$;

create or replace function outlive.try_callbacks(callbacks jsonb[]) returns void language plpgsql as $$
-- No end of a job may fail because of a callback, so each is enqueued here on trial, before it is needed.
begin
  perform outlive.spawn(to_json(callbacks));
  raise exception using errcode = 'OL005';
exception when sqlstate 'OL005' then
end $$;

create or replace function outlive.sees_all() returns boolean language sql stable
-- Whether each statement of this transaction sees what others have committed before it.
return current_setting('transaction_isolation') not in ('repeatable read', 'serializable');
