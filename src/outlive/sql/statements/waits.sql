-- Statements about jobs that wait (schema/functions/waits.sql).
-- call: suspend(:token::bigint, :worker::uuid, :step::text, :after_s::double precision, :signal::text,
--   :spawns::json, :needs::uuid[], :may_park::boolean)
-- call: send(:job::uuid, :signal::text, :value::json)
-- call: end_due(:batch::int)

-- name: resume
-- suspended -> running: jobs whose processes this worker has parked, and whose waits are over. Zero rows: none, or
-- it was declared dead, or the job is past its deadline. The step is kept, if it is not yet: the time of the
-- wait was over. The last columns are whether it has received what it waited for, and the value.
with pick as (
  select h.id from outlive.held h
  where h.parked_by = :worker::uuid and h.why = 'suspended' and h.ready_at <= outlive.now()
    and not exists (select from outlive.workers k where k.id = :worker::uuid and k.state = 'dead')
    and not exists (select from outlive.queues q where q.name = h.queue and q.paused_at is not null)
    and outlive.in_time(h.id)
  order by h.ready_at limit :limit::int for update skip locked),
over as (
  delete from outlive.held h where h.id = any(array(select p.id from pick p)) returning h.*),
kept as (
  insert into outlive.steps (job_id, name, arguments, attempt, at)
  select o.id, o.step, case when o.signal is not null then 'timed out' end, o.attempt, outlive.now() from over o
  on conflict do nothing),
started as (
  insert into outlive.running (
    id, attempt, worker, lease_until, heartbeat_at, started_at, queue, source, task, priority, ready_at, failures,
    crashes, losses)
  select
    o.id, o.attempt + 1, :worker::uuid, outlive.now() + :lease_s::double precision * interval '1 second',
    outlive.now(), outlive.now(), o.queue, o.source, o.task, o.priority, o.ready_at, 0,
    o.crashes, o.losses
  from over o
  returning token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses)
select s.*, outlive.carried(j.args), j.options, o.signal is null as received, outlive.received(s.id, o.step)
from started s join over o on o.id = s.id join outlive.jobs j on j.id = s.id;

-- name: blocks_itself
-- Whether this attempt can't be suspended because of nothing but an open transaction of its own, in which it has
-- called `once`: that alone shares the row of an attempt for long. It writes nothing.
with free as (
  select from outlive.running r where r.token = :token::bigint for update skip locked),
shared as (
  select r.id from outlive.running r where r.token = :token::bigint for no key update skip locked),
job as (
  select from outlive.jobs j where j.id = (select s.id from shared s) for no key update skip locked)
select not exists (select from free) and exists (select from job);

-- name: unpark
-- This worker has ended the parked processes of these jobs: any worker may claim them when their waits are over.
update outlive.held h set parked_by = null where h.id = any(:ids::uuid[]) and h.parked_by = :worker::uuid;
