-- What follows from the end of a job.
--
--     follow_up       called once, at the end of each statement that has ended jobs, with all of them
--     follow_through  the same, if the jobs that wait for them have been released already
--     sees_all        whether a transaction sees what others have committed since it began

create or replace function outlive.follow_up(ids uuid[], states text[]) returns int language plpgsql as $$
-- These jobs have just reached these states. Some go on by themselves (pending, retryable).
-- Volatile, so that it sees what was committed since the snapshot of its caller. Returns how many other jobs it
-- has changed.
declare
  changed int;
begin
  -- First, because it adds the jobs that it cancels.
  select r.* into ids, states, changed from outlive.release_dependents(ids, states) r;
  perform outlive.follow_through(ids, states);
  return changed;
end $$;

create or replace function outlive.follow_through(ids uuid[], states text[], joined uuid[] default '{}')
returns void language plpgsql as $$
-- `joined` are the batches of jobs that were just made, once for each job.
begin
  if not outlive.sees_all() then
    insert into outlive.end_checks (needed)
    select array_agg(e.id) from unnest(ids, states) e(id, state)
    where e.state in ('succeeded', 'failed', 'cancelled', 'quarantined') having count(*) > 0;
  end if;
  perform outlive.count_in_batches(ids, states, joined);
  perform outlive.follow_keys(ids, states);
  if exists (select from outlive.awaited a where a.job_id = any(ids)) then
    perform outlive.tell_waiters(ids, states);
  end if;
end $$;

create or replace function outlive.sees_all() returns boolean language sql stable
-- Whether each statement of this transaction sees what others have committed before it.
return current_setting('transaction_isolation') not in ('repeatable read', 'serializable');
