-- Statements about batches: how they are opened, closed and cancelled, and what people read of them.
-- call: open_batch(:name::text, :on_success::json, :on_failure::json, :on_done::json, :id::uuid)
-- call: close_batch(:id::uuid, :cancelling::boolean)
-- call: cancel_batch(:id::uuid, :past::uuid, :most::int)

-- name: batch_counts
-- How far a batch is. Zero rows: there is no such batch.
select jobs, succeeded, failed, cancelled, quarantined, unfinished, done_at is not null
from outlive.batch_states where id = :id::uuid;

-- name: batch_done
-- Whether all jobs of a batch have ended. It does not count them. Zero rows: there is no such batch.
select done_at is not null from outlive.batches where id = :id::uuid;

-- name: batch
-- One batch. Zero rows: there is no such batch.
select * from outlive.batch_states where id = :id::uuid;

-- name: list_batches
-- The batches, the newest first. The jobs of those that are open are counted.
select * from outlive.batch_states order by created_at desc, id desc limit :limit::int;

-- name: batch_of
-- The batch of a running job, or null. Zero rows: the attempt has ended.
select j.batch from outlive.running r join outlive.jobs j on j.id = r.id where r.token = :token::bigint;

-- name: prune_batches
-- Delete batches that were done long enough ago and whose jobs are pruned.
with old as (
  select b.id from outlive.batches b
  where b.done_at < outlive.now() - interval '1 second' * least(1e10, greatest(:keep_s::double precision, (
      select max(greatest(t.app_keep_finished_s, t.app_keep_failed_s)) from outlive.tasks t)))
    and not exists (select from outlive.jobs j where j.batch = b.id)
  order by b.done_at limit :batch::int for update skip locked),
uncalled as (
  delete from outlive.callbacks c where c.batch = any(array(select id from old)))
delete from outlive.batches b where b.id = any(array(select id from old));
