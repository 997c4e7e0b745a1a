-- Statements by which `outlive verify` looks for what must never be. They read, and change nothing.

-- name: verify_jobs
-- Look at the next :batch jobs by id. Each row is what is wrong with a job. There is always one, with the last id
-- and how many jobs were looked at, without a job if nothing is wrong. All tables are read in one snapshot, in the
-- order of the ids, from the part of their indexes between two ids.
with upto as materialized (
  select coalesce(
    (select j.id from outlive.jobs j where j.id > :after::uuid order by j.id offset :batch::int - 1 limit 1),
    'ffffffff-ffff-ffff-ffff-ffffffffffff') as id),
tried as (
  select a.job_id, max(a.attempt) as last,
    count(*) filter (where a.state in ('succeeded', 'failed', 'cancelled')) as ends,
    max(a.crashes) > count(*) filter (where a.outcome in ('crashed', 'out_of_memory'))
      or max(a.losses) > count(*) filter (where a.outcome = 'lost')
      or max(a.failures) > count(*) filter (where a.outcome in ('failed', 'timed_out', 'out_of_memory')) as charged
  from outlive.attempts a where a.job_id > :after::uuid and a.job_id <= (select u.id from upto u)
  group by a.job_id),
placed as (
  select j.id, coalesce(t.ends, 0) as ends, coalesce(t.charged, false) as charged,
    (w.id is not null)::int + (r.id is not null)::int + (h.id is not null)::int as places,
    coalesce(greatest(w.attempt, r.attempt - 1, h.attempt) < t.last, false) as behind
  from outlive.jobs j
    left join tried t on t.job_id = j.id
    left join outlive.waiting w on w.id = j.id and w.id > :after::uuid and w.id <= (select u.id from upto u)
    left join outlive.running r on r.id = j.id and r.id > :after::uuid and r.id <= (select u.id from upto u)
    left join outlive.held h on h.id = j.id and h.id > :after::uuid and h.id <= (select u.id from upto u)
  where j.id > :after::uuid and j.id <= (select u.id from upto u)),
wrong as (
  select p.id, w.what from placed p, lateral (values
    ('lost', p.places + p.ends = 0),
    ('in two places', p.places > 1 or p.places = 1 and p.ends > 0),
    ('ended twice', p.ends > 1),
    ('begun again after a later attempt', p.behind),
    ('charged without a cause', p.charged)) w(what, holds)
  where (p.places + p.ends <> 1 or p.behind or p.charged) and w.holds limit 100)
select u.id, l.jobs, (
    select j.created_at from outlive.jobs j where j.id > :after::uuid order by j.id limit 1) as since, w.what, w.id
from upto u cross join (
    select count(*) as jobs from outlive.jobs j where j.id > :after::uuid and j.id <= (select u.id from upto u)) l
  left join wrong w on true;

-- name: verify_keys
-- Keys of which more jobs ran at once than each of these allowed when it began, for more than a second, with the
-- job that was too many. The first row says how many attempts with a key were looked at.
with ran as materialized (
  select j.concurrency_key as key, j.concurrency as most, j.id, a.started_at, a.ended_at
  from outlive.jobs j join outlive.attempts a on a.job_id = j.id
  where j.concurrency_key is not null and a.started_at is not null
  union all
  select j.concurrency_key, j.concurrency, j.id, r.started_at, 'infinity'
  from outlive.jobs j join outlive.running r on r.id = j.id where j.concurrency_key is not null),
changed as (
  select n.key, n.most, n.id, n.started_at + interval '1 second' as at, 1 as change from ran n
  where n.ended_at > n.started_at + interval '1 second'
  union all
  select n.key, null, n.id, n.ended_at, -1 from ran n where n.ended_at > n.started_at + interval '1 second'),
swept as (
  select c.*, sum(c.change) over (partition by c.key order by c.at, c.change, c.id) as running from changed c)
select null::text as key, null::uuid as id, (select count(*) from ran) as looked_at
union all
(select s.key, s.id, null from swept s where s.change = 1 and s.running > s.most limit 100);

-- name: verify_batches
-- Batches that are done, and whose callback for that was never enqueued. The first row says how many there are.
select null::uuid as id, (select count(*) from outlive.batches) as looked_at
union all
(select b.id, null from outlive.batches b join outlive.callbacks c on c.batch = b.id and c.event = 'done'
 where b.done_at is not null and c.called_at is null limit 100);
