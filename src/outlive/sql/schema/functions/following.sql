-- What follows from the end of a job.
--
--     follow_up  called once, at the end of each statement that has ended jobs, with all of them

create or replace function outlive.follow_up(ids uuid[], states text[]) returns int language plpgsql as $$
-- These jobs have just reached these states. Some go on by themselves (pending, retryable).
-- Volatile, so that it sees what was committed since the snapshot of its caller. Returns how many other jobs it
-- has changed.
declare
  changed int;
begin
  -- First, because it adds the jobs that it cancels.
  select r.* into ids, states, changed from outlive.release_dependents(ids, states) r;
  perform outlive.count_in_batches(ids, states);
  perform outlive.follow_keys(ids, states);
  if exists (select from outlive.awaited a where a.job_id = any(ids)) then
    perform outlive.tell_waiters(ids, states);
  end if;
  return changed;
end $$;
