-- Results: the clients that wait for them, and how long they are kept.

create or replace function outlive.tell_waiters(ids uuid[], states text[]) returns void language plpgsql as $$
-- Notify the clients that wait for one of these jobs, which have just reached these states. The caller has found
-- that some of them are awaited: most jobs are not, and a commit with a notification waits for others of its kind.
-- A row that is locked is being written again by a client, which looks at its job afterwards.
declare
  ended uuid[];
begin
  with told as (
    delete from outlive.awaited a where a.job_id = any(array(
      select w.job_id from outlive.awaited w join unnest(ids, states) e(id, state) on e.id = w.job_id
      where e.state not in ('pending', 'retryable') for update of w skip locked))
    returning a.job_id)
  select array_agg(t.job_id) into ended from told t;
  -- A notification holds 8,000 bytes.
  perform pg_notify('outlive_ended', array_to_string(ended[n : n + 199], ','))
  from generate_series(1, cardinality(ended), 200) n;
end $$;

create or replace function outlive.expiry(task_name text) returns timestamptz language sql stable
-- When a job of this task that succeeds or is cancelled now may be pruned. Null: the task does not say.
return (
  select outlive.now() + t.keep_finished_s * interval '1 second' from outlive.tasks t where t.name = task_name);
