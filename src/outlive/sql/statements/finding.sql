-- Statements that find the jobs that match a filter, and the full ids of those that begin with some digits.

-- name: find_jobs
-- A page of the jobs that match a filter.
select f.place, f.ids, f.matched, f.looked_at, f.next_at, f.next_id from outlive.find_jobs(
  :place::text, :past_at::timestamptz, :past_id::uuid, :oldest::boolean, :look::int, :limit::int,
  :counting::boolean, :states::text[], :task::text, :queue::text, :source::text, :worker::text, :batch::uuid,
  :since_s::double precision, :older_s::double precision, :text::text) f;

-- name: jobs_with_prefix
-- The first ids that are in a range: the jobs whose id begins with some digits.
select j.id from outlive.jobs j where j.id between :low::uuid and :high::uuid order by j.id limit :limit::int;

-- name: batches_with_prefix
-- The first ids that are in a range: the batches whose id begins with some digits.
select b.id from outlive.batches b where b.id between :low::uuid and :high::uuid order by b.id limit :limit::int;
