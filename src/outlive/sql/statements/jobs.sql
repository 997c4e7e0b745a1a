-- Statements of clients and operators. The verbs are functions of the schema, because they take several
-- statements.

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

-- name: cancel
-- pending, retryable, blocked, quarantined -> cancelled; running -> asked to stop. No row: no such job.
select id, state, changed, note from outlive.cancel(:ids::uuid[]);

-- name: retry
-- failed, cancelled, retryable -> pending. No row: no such job.
select id, state, changed, note from outlive.retry(:ids::uuid[]);

-- name: release
-- quarantined, blocked, suspect -> pending, retryable. No row: no such job.
select id, state, changed, note from outlive.release(:ids::uuid[]);

-- name: block
-- pending, retryable -> blocked. No row: no such job.
select id, state, changed, note from outlive.block(:ids::uuid[], :reason::text);

-- name: prune_jobs
-- succeeded, failed, cancelled, quarantined -> (none), by hand. Other jobs are left alone.
select outlive.prune(:ids::uuid[]);

-- name: prune_finished
-- succeeded, failed or cancelled -> (none), for the oldest jobs of one state that ended long enough ago. There may
-- be more if `seen` is as high as the batch.
with old as (
  select f.job_id from outlive.finished() f
  where f.state = :state::text and f.ended_at < outlive.now() - :keep_s::double precision * interval '1 second'
    and not exists (select from outlive.dependencies d where d.needs = f.job_id)
  order by f.ended_at limit :batch::int),
ids as (select array_agg(job_id) as ids, count(*) as seen from old)
select outlive.prune(ids.ids), ids.seen from ids;

-- name: pause_queue
-- The queue's jobs are not claimed any more. Running jobs go on.
insert into outlive.queues (name, paused_at) values (:name::text, outlive.now())
on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);

-- name: resume_queue
-- The queue's jobs are claimed again. Zero rows: it was not paused.
with resumed as (
  update outlive.queues set paused_at = null where name = :name::text and paused_at is not null returning name)
select r.name, outlive.wake() from resumed r;
