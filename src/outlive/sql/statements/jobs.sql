-- Statements of clients and operators. The verbs are functions of the schema, because they look more than once.

-- name: enqueue
-- (none) -> pending. Only jobs come back that were not made, with the unfinished job that has their dedupe key.
select asked, existing from outlive.enqueue(:ids::uuid[], :tasks::text[], :queues::text[], :sources::text[], :args::json[],
  :priorities::smallint[], :delays_s::double precision[], :run_ats::timestamptz[], :keys::text[], :on_conflicts::text[],
  :options::jsonb[], :max_args_bytes::int, :notify::boolean);

-- name: enqueue_one
-- (none) -> pending, for one job. Its id comes back, or that of the unfinished job that has its dedupe key.
select outlive.enqueue(:task::text, :args::json, :queue::text, :source::text, :priority::int,
  :delay_s::double precision * interval '1 second', :run_at::timestamptz, :dedupe_key::text, :on_conflict::text,
  :options::jsonb, :id::uuid, :max_args_bytes::int, :notify::boolean);

-- name: enqueue_plain
-- (none) -> pending, for one job with neither key nor options nor a time of its own. Its id comes back.
select outlive.enqueue(:task::text, :args::json, :queue::text, :source::text, :priority::int, id => :id::uuid,
  max_args_bytes => :max_args_bytes::int, notify => :notify::boolean);

-- name: cancel
-- pending, retryable, blocked, quarantined -> cancelled; running -> asked to stop. A job without a row does not exist.
select id, state, changed, note from outlive.cancel(:ids::uuid[]);

-- name: retry
-- failed, cancelled, retryable -> pending. A job without a row does not exist.
select id, state, changed, note from outlive.retry(:ids::uuid[]);

-- name: release
-- quarantined, blocked, suspect -> pending, retryable. A job without a row does not exist.
select id, state, changed, note from outlive.release(:ids::uuid[]);

-- name: block
-- pending, retryable -> blocked. A job without a row does not exist.
select id, state, changed, note from outlive.block(:ids::uuid[], :reason::text);

-- name: prune_jobs
-- succeeded, failed, cancelled, quarantined -> (none), by hand. Others are left alone.
select outlive.prune(:ids::uuid[]);

-- name: prune_finished
-- succeeded, cancelled or failed -> (none), for the oldest of a state that ended long enough ago. `seen` tells whether
-- there may be more: as many as the batch were looked at.
with old as (
  select a.job_id from outlive.attempts a
  where a.state = :state::text and a.ended_at < outlive.now() - :keep_s::double precision * interval '1 second'
    and not exists (select from outlive.attempts b where b.job_id = a.job_id and b.attempt > a.attempt)
    and not exists (select from outlive.waiting w where w.id = a.job_id)
    and not exists (select from outlive.running r where r.id = a.job_id)
    and not exists (select from outlive.held h where h.id = a.job_id)
  order by a.ended_at limit :batch::int),
ids as (select array_agg(job_id) as ids, count(*) as seen from old)
select outlive.prune(ids.ids), ids.seen from ids;

-- name: pause_queue
-- Its jobs are not claimed any more; what runs goes on.
insert into outlive.queues (name, paused_at) values (:name::text, outlive.now())
on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);

-- name: resume_queue
-- Its jobs are claimed again. Zero rows: it was not paused.
with resumed as (
  update outlive.queues set paused_at = null where name = :name::text and paused_at is not null returning name)
select r.name, outlive.wake() from resumed r;
