-- Claims: how jobs that wait begin. Suspects do not wait in lanes: the statement claim_suspect claims them.
--
-- A lane is a queue, a source, a task and a priority: the jobs that have these in common, ordered by when they are
-- ready. A worker names the lanes that it wants in parallel arrays, one element of each for each lane, the most
-- wanted lane first: those four, its mark (no job that was ready before is left; null: look at all) and its quota
-- (how many jobs to take from it at most; null: any number).

create or replace function outlive.claim_lanes(
  by_worker uuid, queues text[], sources text[], tasks text[], priorities smallint[], marks timestamptz[],
  quotas int[], most int, lease_s double precision, begun boolean, asked boolean default false)
returns table (
  token bigint, id uuid, attempt int, queue text, source text, task text, priority smallint, ready_at timestamptz,
  failures smallint, crashes smallint, losses smallint, args json, options jsonb)
language plpgsql as $$
-- pending, retryable -> running, for at most `most` jobs, and from each lane at most its quota, from its mark on.
-- Refused: a worker that was declared dead claims nothing; a job that has reached its crash limit is quarantined,
-- and one that has no slot of its key queues for it.
-- A lane without a row has no ready job, or its jobs are locked or have expired, or its source must be asked.
-- `asked`: the caller has asked the sources.
-- `begun` is false for jobs that will wait behind others in their worker: its death is not charged to them. A job
-- that was claimed before is begun in any case: its mere arrival may kill.
declare
  some_expired boolean := exists (select from outlive.expiring e where e.expires_at <= outlive.now());
  -- Other claims hold most rows that are locked. To try each lock costs far more than to know who has it.
  others xid[] := array(
    select (x::text::bigint & 4294967295)::text::xid from pg_snapshot_xip(pg_current_snapshot()) x);
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
            and w.xmax <> all(others) and (not some_expired or outlive.in_time(w.id))
          order by w.ready_at, w.id limit coalesce(lane.quota, most) for update skip locked) w
      where not exists (select from outlive.workers d where d.id = by_worker and d.state = 'dead')
        and (lane.source = '' or asked or exists (
          select from outlive.sources s where s.name = lane.source and outlive.admits_all(s)))
      limit most),
    taken as (
      delete from outlive.waiting w where w.id = any(array(select p.id from picked p)) returning w.*),
    kept_back as (  -- A case keeps the order: keep_back writes, and costs too much for jobs without crashes.
      select t.id from taken t
      where case when t.crashes > 0 then outlive.keep_back(row(t.*)::outlive.waiting) else false end),
    kept_out as (
      select unnest(outlive.keep_out(u.jobs)) as id
      from (
        select array_agg(row(t.*)::outlive.waiting) as jobs from taken t where t.unsure having count(*) > 0) u),
    started as (
      insert into outlive.running (
        id, attempt, worker, lease_until, heartbeat_at, started_at, queue, source, task, priority, ready_at,
        failures, crashes, losses, begun)
      select
        t.id, t.attempt + 1, by_worker, outlive.now() + lease_s * interval '1 second', outlive.now(),
        outlive.now(), t.queue, t.source, t.task, t.priority, t.ready_at, t.failures, t.crashes, t.losses,
        claim_lanes.begun or t.attempt > 0
      from taken t where t.id not in (select k.id from kept_back k union all select k.id from kept_out k)
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
  insert into outlive.held (
    id, why, since, details, queue, source, task, priority, ready_at, attempt, failures, crashes, losses)
  select
    w.id, 'quarantined', outlive.now(), outlive.charge(w.id, w.crashes, 0, p.max_crashes), w.queue, w.source,
    w.task, w.priority, w.ready_at, w.attempt, w.failures, w.crashes, w.losses
  from outlive.policy_of(w.id, w.task) p where w.crashes >= p.max_crashes;
  if not found then
    return false;
  end if;
  perform outlive.follow_up(array[w.id], array['quarantined']);
  return true;
exception when lock_not_available then
  insert into outlive.waiting (
    queue, source, task, priority, ready_at, id, attempt, failures, crashes, losses)
  values (
    w.queue, w.source, w.task, w.priority, outlive.now() + interval '10 seconds', w.id, w.attempt, w.failures,
    w.crashes, w.losses);
  return true;
end $$;

create or replace function outlive.carried(args json) returns json language sql stable
-- The arguments, if a claim may carry them. The process that runs the job fetches large ones in parts. Arguments
-- that are stored in few bytes are not unpacked to measure them. Stable like what it calls, so that the claim
-- inlines it.
return case when pg_column_size(args) > 2000 and octet_length(args::text) > 65536 then null else args end;
