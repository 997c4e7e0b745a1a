-- Statements of clients and operators. The verbs are functions of the schema, because they take several
-- statements.
-- call: cancel(:ids::uuid[])
-- call: retry(:ids::uuid[])
-- call: repeat(:ids::uuid[])
-- call: release(:ids::uuid[])
-- call: block(:ids::uuid[], :reason::text)
-- call: pause_queue(:name::text)
-- call: resume_queue(:name::text)

-- name: enqueue
-- (none) -> pending. A row is a job that was not made, with the unfinished job that holds its dedupe key.
select asked, existing from outlive.enqueue(
  :id::uuid[], :task::text[], :queue::text[], :source::text[], :args::json[], :priority::smallint[],
  :delay_s::double precision[], :run_at::timestamptz[], :dedupe_key::text[], :on_conflict::text[],
  :options::jsonb[], :max_args_bytes::int, :notify::boolean, :links::jsonb[]);

-- name: enqueue_one
-- (none) -> pending, for one job. Returns its id, or that of the unfinished job that holds its dedupe key.
select outlive.enqueue(
  :task::text, :args::json, :queue::text, :source::text, :priority::int,
  :delay_s::double precision * interval '1 second', :run_at::timestamptz, :dedupe_key::text, :on_conflict::text,
  :options::jsonb, :id::uuid, :max_args_bytes::int, :notify::boolean);

-- name: enqueue_plain
-- (none) -> pending, for one job without key, options, delay and run_at, whose arguments the client has measured.
-- No row, and no column: to read the id of a job takes as long as to pack its arguments.
select where outlive.enqueue_plain(
  :task::text, :args::json, :queue::text, :source::text, :priority::int, :id::uuid) is null;

-- name: prune_jobs
-- succeeded, failed, cancelled, quarantined -> (none), by hand. Other jobs are left alone.
select outlive.prune(:ids::uuid[]);

-- name: prune_finished
-- succeeded, failed or cancelled -> (none), for the oldest jobs of one state that ended long enough ago, by what
-- the worker of their task has registered; :keep_s is for tasks that none has. Jobs that their task keeps for less
-- than its app does are found by `prune_expired`. There may be more if `seen` is as high as the batch. Jobs that
-- stay are in front of others: the next call begins :after the end of the last one that this call has seen.
-- With ties, because jobs whose ends were written together have one time.
with seen as materialized (
  select f.job_id, f.task, f.ended_at from outlive.attempts f
  where f.state = :state::text and :state::text in ('succeeded', 'failed', 'cancelled')
    and f.ended_at > coalesce(:after::timestamptz, '-infinity')
    and f.ended_at < outlive.now() - interval '1 second' * least(1e10, :keep_s::double precision, (
      select min(case when :state::text = 'failed' then t.app_keep_failed_s else t.app_keep_finished_s end)
      from outlive.tasks t))
  order by f.ended_at fetch first (:batch::int) rows with ties),
old as (
  select s.job_id from seen s left join outlive.tasks t on t.name = s.task
  where s.ended_at < outlive.now() - interval '1 second' * least(1e10, coalesce(
    case when :state::text = 'failed' then t.app_keep_failed_s
      else coalesce(t.keep_finished_s, t.app_keep_finished_s) end, :keep_s::double precision)))
select outlive.prune(array(select o.job_id from old o)), count(*), max(s.ended_at) from seen s;
