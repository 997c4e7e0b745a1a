-- Statements about the steps of durable jobs.
-- call: rerun(:job::uuid, :step::text)
-- call: supply(:job::uuid, :step::text, :value::json, :who::text, :replacing::boolean)

-- name: keep_steps
-- Keep the steps of attempts that run in this worker, and return what is kept under each name: if another attempt
-- was first, its value. So two attempts of a job never go on from different values, and that needs no lock.
-- A job without a row: the attempt has ended. A step sets its job's failures to zero, and its crashes and losses
-- too, unless the job kills at nearly every step. Only the step `checkpoint` is replaced, by that of the latest
-- attempt. It forgives nothing: an attempt that gets nowhere may keep one too.
-- returns table (job_id uuid, name text, value json)
with given as materialized (
  select g.*, r.id, r.attempt, r.failures + r.crashes + r.losses as counted
  from unnest(:tokens::bigint[], :names::text[], :values::json[], :arguments::text[], :tooks_s::double precision[])
      with ordinality g(token, name, value, arguments, took_s, n)
    join outlive.running r on r.token = g.token and r.worker = :worker::uuid),
forgiven as (
  update outlive.running r set failures = 0, (crashes, losses) = (
    select r.crashes * (not f)::int, r.losses * (not f)::int from outlive.forgives_kills(r.id) f)
  where r.token = any(array(select g.token from given g where g.counted > 0 and g.name <> 'checkpoint'))
  returning r.token)
insert into outlive.steps as s (job_id, name, value, arguments, attempt, took_s, at)
select g.id, g.name, g.value, g.arguments, g.attempt, g.took_s,
  outlive.now() + g.n * interval '1 microsecond'  -- Their order decides what a rerun drops.
from given g
where g.counted = 0 or g.name = 'checkpoint'
  or g.token in (select f.token from forgiven f)  -- Its attempt goes on.
on conflict (job_id, name) do update set (value, attempt, at, supplied_by) = (
  select k.value, k.attempt, k.at, k.supplied_by
  from (select (case when s.name = 'checkpoint' and s.attempt <= excluded.attempt then excluded else s end).*) k)
returning s.job_id, s.name, s.value;

-- name: kept_steps
-- A part of the steps of a job, for its attempt: those after a name, as many as fit into some bytes, at least one.
-- Zero rows: there are no more, or the attempt has ended.
select p.name, p.value, p.arguments
from (
  select s.*, sum(coalesce(octet_length(s.value::text), 0)) over (order by s.name) as total,
    row_number() over (order by s.name) as place
  from outlive.running r join outlive.steps s on s.job_id = r.id
  where r.token = :token::bigint and s.name > :after::text
  order by s.name limit 1000) p
where p.place = 1 or p.total <= :most_bytes::int
order by p.name;

-- name: steps_of
-- The steps of a job, in the order in which they were kept.
-- returns table (name text, value json, attempt int, took_s double precision, at timestamptz, supplied_by text)
select s.name, s.value, s.attempt, s.took_s, s.at, s.supplied_by from outlive.steps s where s.job_id = :id::uuid
order by s.at, s.name;

-- name: list_steps
-- The last steps of a job, the oldest first, without their values. `place` is the number of each among all.
select l.name, l.attempt, l.took_s, l.at, l.supplied_by, octet_length(l.value::text) as value_bytes, l.place
from (
  select s.*, row_number() over (order by s.at, s.name) as place from outlive.steps s where s.job_id = :id::uuid
  order by s.at desc, s.name desc limit :limit::int) l
order by l.place;

-- name: step
-- The value of a step of a job. Zero rows: it has kept no such step.
select s.value from outlive.steps s where s.job_id = :id::uuid and s.name = :name::text;
