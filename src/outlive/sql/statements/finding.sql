-- Statements that find the jobs that match a filter, and the full ids of those that begin with some digits.

-- name: find_jobs
-- A page of the jobs that match a filter.
select f.place, f.ids, f.matched, f.looked_at, f.next_at, f.next_id from outlive.find_jobs(
  :place::text, :past_at::timestamptz, :past_id::uuid, :oldest::boolean, :look::int, :limit::int,
  :counting::boolean, :states::text[], :task::text, :queue::text, :source::text, :worker::text, :batch::uuid,
  coalesce(:since::timestamptz, outlive.now() - :since_s::double precision * interval '1 second'),
  coalesce(:before::timestamptz, outlive.now() - :older_s::double precision * interval '1 second'), :text::text) f;

-- name: longest_jobs
-- Those of some jobs that ran the longest, in the attempt that has finished them or in the one under way.
select w.id from unnest(:ids::uuid[]) w(id), lateral (
  select a.ended_at - a.started_at as ran from outlive.attempts a
  where a.job_id = w.id and a.state in ('succeeded', 'failed', 'cancelled') and a.started_at is not null
  union all
  select outlive.now() - r.started_at from outlive.running r where r.id = w.id offset 0) t
order by t.ran desc, w.id desc limit :limit::int;

-- name: group_errors
-- The failed ones of some jobs, by task and error. Of the error it is the first line, in which … stands for each
-- word with a digit. The first word, as a rule the type of an exception, stays as it is.
select e.task, e.error, count(*) as jobs, min(e.ended_at) as first_at, max(e.ended_at) as last_at
from unnest(:ids::uuid[]) w(id), lateral (
  select a.task, a.ended_at, split_part(l.line, ' ', 1)
    || regexp_replace(substr(l.line, length(split_part(l.line, ' ', 1)) + 1), '\S*\d\S*', '…', 'g') as error
  from outlive.attempts a, lateral (select split_part(left(coalesce(a.error, ''), 200), E'\n', 1) as line) l
  where a.job_id = w.id and a.state = 'failed' offset 0) e
group by 1, 2 order by jobs desc, last_at desc limit :limit::int;

-- name: jobs_with_prefix
-- The first ids that are in a range: the jobs whose id begins with some digits.
select j.id from outlive.jobs j where j.id between :low::uuid and :high::uuid order by j.id limit :limit::int;

-- name: batches_with_prefix
-- The first ids that are in a range: the batches whose id begins with some digits.
select b.id from outlive.batches b where b.id between :low::uuid and :high::uuid order by b.id limit :limit::int;
