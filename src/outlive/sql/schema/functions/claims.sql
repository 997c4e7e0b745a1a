-- Claims: how jobs that wait begin. Suspects do not wait in lanes: the statement claim_suspect claims them.

create or replace function outlive.claim_lanes(
  by_worker uuid, queues text[], sources text[], tasks text[], priorities smallint[], marks timestamptz[],
  quotas int[], most int, lease_s double precision, begun boolean)
returns table (
  token bigint, id uuid, attempt int, queue text, source text, task text, priority smallint, ready_at timestamptz,
  failures smallint, crashes smallint, losses smallint, args json, options jsonb)
language plpgsql as $$
-- pending, retryable -> running, for at most `most` jobs, and from each lane at most its quota, from its mark on.
-- Refused: a worker that was declared dead claims nothing; a job that has reached its crash limit is quarantined.
-- A lane without a row has no ready job, or its jobs are locked or have expired.
-- `begun` is false for jobs that will wait behind others in their worker: its death is not charged to them. A job
-- that was claimed before is begun in any case: its mere arrival may kill.
declare
  some_expired boolean := exists (select from outlive.expiring e where e.expires_at <= outlive.now());
begin
  return query
    with picked as materialized (
      select w.id
      from unnest(queues, sources, tasks, priorities, marks, quotas)
          lane(queue, source, task, priority, mark, quota),
        lateral (
          select w.id from outlive.waiting w
          where w.queue = lane.queue and w.source = lane.source and w.task = lane.task
            and w.priority = lane.priority
            and w.ready_at between coalesce(lane.mark, '-infinity') and outlive.now()
            and (not some_expired or outlive.in_time(w.id))
          order by w.ready_at, w.id limit coalesce(lane.quota, most) for update skip locked) w
      where not exists (select from outlive.workers d where d.id = by_worker and d.state = 'dead')
      limit most),
    taken as (
      delete from outlive.waiting w where w.id = any(array(select p.id from picked p)) returning w.*),
    kept_back as (
      select t.id from taken t where t.crashes > 0 and outlive.keep_back(row(t.*)::outlive.waiting)),
    started as (
      insert into outlive.running (
        id, attempt, worker, lease_until, heartbeat_at, started_at, queue, source, task, priority, ready_at,
        failures, crashes, losses, begun)
      select
        t.id, t.attempt + 1, by_worker, outlive.now() + lease_s * interval '1 second', outlive.now(),
        outlive.now(), t.queue, t.source, t.task, t.priority, t.ready_at, t.failures, t.crashes, t.losses,
        claim_lanes.begun or t.attempt > 0
      from taken t where t.id not in (select k.id from kept_back k)
      returning *)
    select s.token, s.id, s.attempt, s.queue, s.source, s.task, s.priority, s.ready_at, s.failures, s.crashes,
      s.losses, outlive.carried(j.args), j.options
    from started s join outlive.jobs j on j.id = s.id;
end $$;

create or replace function outlive.keep_back(w outlive.waiting) returns boolean language plpgsql as $$
-- waiting -> quarantined, if the job has reached its crash limit (the limit may have been lowered since). Returns
-- whether it must not begin. The caller has just deleted its row from `waiting`. If another transaction has locked
-- what follows from its quarantine, it waits on, and comes up again ten seconds later.
begin
  insert into outlive.held
  select w.id, 'quarantined', outlive.now(), outlive.charge(w.crashes, 0, p.max_crashes), w.queue, w.source,
    w.task, w.priority, w.ready_at, w.attempt, w.failures, w.crashes, w.losses
  from outlive.policy_of(w.id, w.task) p where w.crashes >= p.max_crashes;
  if not found then
    return false;
  end if;
  perform outlive.follow_up(array[w.id], array['quarantined']);
  return true;
exception when lock_not_available then
  w.ready_at := outlive.now() + interval '10 seconds';
  insert into outlive.waiting values (w.*);
  return true;
end $$;

create or replace function outlive.carried(args json) returns json language sql stable
-- The arguments, if a claim may carry them. The process that runs the job fetches large ones in parts. Arguments
-- that are stored in few bytes are not unpacked to measure them. Stable like what it calls, so that the claim
-- inlines it.
return case when pg_column_size(args) > 2000 and octet_length(args::text) > 65536 then null else args end;
