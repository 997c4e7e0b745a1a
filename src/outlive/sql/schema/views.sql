-- The views. Every migration makes them again. Most are for people: dashboards, psql, the command line. The
-- statements use `ended_attempts`, `open_queues` and `missing_locks`.

-- Every job: its state, its counters, its times, the worker that has it, and how its last attempt ended.
create view outlive.job_states as
select j.id, j.task, j.queue, j.source,
  case when r.id is not null then 'running'
       when w.id is not null then case when w.failures + w.crashes > 0 then 'retryable' else 'pending' end
       when h.id is not null then outlive.held_state(h.why, h.failures + h.crashes > 0)
       else a.state end as status,
  j.priority,
  coalesce(r.attempt, w.attempt, h.attempt, a.attempt, 0) as attempt,
  coalesce(r.failures, w.failures, h.failures, a.failures, 0::smallint) as failures,
  coalesce(r.crashes, w.crashes, h.crashes, a.crashes, 0::smallint) as crashes,
  coalesce(r.losses, w.losses, h.losses, a.losses, 0::smallint) as losses,
  j.created_at,
  coalesce(w.ready_at, nullif(h.ready_at, 'infinity'), r.ready_at, j.ready_at) as ready_at,
  case when w.failures + w.crashes > 0 then w.ready_at
       when h.why = 'key' and h.failures + h.crashes > 0 then h.ready_at end as next_retry_at,
  -- For a finished job, the worker that ran it last.
  coalesce(k.name, r.worker::text,
    case when w.id is null and h.id is null then coalesce(a.worker_name, a.worker::text) end) as locked_by,
  r.started_at as locked_at,
  r.heartbeat_at,
  outlive.now() - r.heartbeat_at as time_since_heartbeat,
  r.lease_until,
  coalesce(r.cancel_requested, false) as cancel_requested,
  case when r.id is null and w.id is null and h.id is null then a.ended_at end as completed_at,
  a.outcome as last_outcome,
  a.error as error_message,
  h.since as held_since,
  coalesce(h.details, outlive.waits_for(h, case
    when h.unmet is null then null
    when h.step is null then cardinality(j.after)
    else (  -- The step of a gather has the ids of all.
      select case when json_typeof(s.value) = 'array' then json_array_length(s.value) end
      from outlive.steps s where s.job_id = h.id and s.name = h.step) end)) as held_details,
  j.dedupe_key,
  coalesce(j.fingerprint, outlive.fingerprint(j.task, j.args)) as fingerprint,
  j.batch
from outlive.jobs j
  left join outlive.waiting w on w.id = j.id
  left join outlive.running r on r.id = j.id
  left join outlive.held h on h.id = j.id
  left join outlive.workers k on k.id = r.worker
  left join lateral (
    select t.attempt, t.state, t.outcome, t.error, t.ended_at, t.failures, t.crashes, t.losses, t.worker,
      t.worker_name
    from outlive.attempts t where t.job_id = j.id order by t.attempt desc limit 1) a on true;

-- The hundred jobs that were enqueued last, newest first.
create view outlive.recent_jobs as
select s.*
from (select id from outlive.jobs order by id desc limit 100) recent join outlive.job_states s using (id)
order by s.created_at desc, s.id desc;

-- A running job whose lease has expired: no renewal came in time, and no reaper has ended it yet.
create view outlive.stuck_jobs as
select s.*
from outlive.job_states s
where s.id in (select r.id from outlive.running r where r.heartbeat_at is null or r.lease_until < outlive.now());

-- The jobs that wait for one that has ended without success, and is not under way again. The id of that one is
-- where outlive.unmet_because has put it.
create view outlive.unmet_jobs as
select h.id, h.task, h.queue, h.details, h.since
from outlive.held h, lateral (select substr(h.details, 5, 36)::uuid as id) needed
where h.why = 'dependent' and h.details is not null
  and not exists (select from outlive.waiting w where w.id = needed.id)
  and not exists (select from outlive.running r where r.id = needed.id)
  and not exists (select from outlive.held o where o.id = needed.id and o.why <> 'quarantined');

-- Every ended attempt with its evidence, and the name of its worker.
create view outlive.ended_attempts as
select a.job_id, a.attempt, a.outcome, a.error, a.exit_code, a.signal, a.peak_memory_bytes, a.cpu_s, a.output,
  a.stack, coalesce(a.worker_name, k.name, a.worker::text) as worker, a.hostname, a.started_at, a.ended_at,
  a.result, a.memory
from outlive.attempts a left join outlive.workers k on k.id = a.worker;

-- The jobs in quarantine, with the evidence of the last kill.
create view outlive.killers as
select h.id, h.task, h.queue, h.source, h.since as quarantined_at, h.details, h.crashes, h.losses, a.attempt,
  a.outcome, a.signal, a.exit_code, a.peak_memory_bytes, a.cpu_s, a.error as error_message, a.stack, a.output,
  a.worker as killed_on, a.hostname as killed_on_host, a.ended_at as last_kill_at
from outlive.held h
  left join lateral (
    select t.* from outlive.ended_attempts t
    where t.job_id = h.id and t.outcome in ('crashed', 'out_of_memory', 'lost')
    order by t.attempt desc limit 1) a on true
where h.why = 'quarantined';

-- Every worker, live or dead, how many jobs it runs, and in how many slots: jobs that share a process have one
-- together, and are counted in as few as can hold them. Jobs beyond all slots wait in it (`claimed_ahead`).
-- `trouble` says why a worker can't begin any job. An active worker whose session is gone shows as stale, also
-- while no other worker is there to declare it dead.
create view outlive.worker_states as
select k.id, k.name, k.hostname, k.pid, k.version, k.queues,
  case when k.state = 'active' and k.id in (select s.worker from outlive.silent_workers() s(worker)) then 'stale'
       else k.state end as state,
  k.started_at, k.last_seen,
  outlive.now() - k.last_seen as time_since_heartbeat, k.died_at, k.slots, k.stop_requested_at,
  k.drain_requested_at, k.tasks,
  case when k.state in ('active', 'stale', 'draining') then k.trouble end as trouble,
  coalesce(r.jobs, 0)::bigint as running, least(coalesce(r.slots, 0), k.slots)::int as busy_slots,
  greatest(coalesce(r.slots, 0) - k.slots, 0)::bigint as claimed_ahead,
  case when k.state in ('active', 'stale', 'draining') then k.memory_bytes end as memory_bytes,
  k.app, k.reload_requested_at,
  case when k.state in ('active', 'stale', 'draining') then k.reload_error end as reload_error, k.labels,
  case when k.state in ('active', 'stale', 'draining') then k.connections end as connections
from outlive.workers k
  left join (
    select n.worker, sum(n.jobs) as jobs, sum(ceil(n.jobs / coalesce(t.share, 1))) as slots
    from (select worker, task, count(*)::numeric as jobs from outlive.running group by worker, task) n
      left join outlive.tasks t on t.name = n.task
    group by n.worker) r on r.worker = k.id;

-- Every queue that has unfinished jobs, was paused, is that of a task, or is served by name: whether it is paused,
-- how many jobs it has, and since when the oldest is ready. Large counts are estimated.
create view outlive.queue_states as
select c.name, q.paused_at is not null as paused, q.paused_at,
  sum(c.waiting)::bigint as waiting, sum(c.ready)::bigint as ready, sum(c.running)::bigint as running,
  sum(c.blocked)::bigint as blocked, sum(c.suspended)::bigint as suspended,
  sum(c.quarantined)::bigint as quarantined,
  min(c.oldest_ready_at) as oldest_ready_at, bool_or(c.estimated) as estimated,
  bool_or(c.ready_estimated) as ready_estimated
from (
  select queue as name, pending + retryable as waiting, ready, 0 as running, 0 as blocked, 0 as suspended,
    0 as quarantined, oldest_ready_at, estimated, ready_estimated
  from outlive.count_lanes()
  union all
  select queue, 0, 0, count(*), 0, 0, 0, null, false, false from outlive.running group by queue
  union all
  select queue, case when state in ('pending', 'retryable') then jobs else 0 end, 0, 0,
    case when state = 'blocked' then jobs else 0 end, case when state = 'suspended' then jobs else 0 end,
    case when state = 'quarantined' then jobs else 0 end, null, estimated, false
  from outlive.count_held()
  union all
  select name, 0, 0, 0, 0, 0, 0, null, false, false from outlive.queues
  union all
  select queue, 0, 0, 0, 0, 0, 0, null, false, false from outlive.tasks group by queue
  union all
  select n.name, 0, 0, 0, 0, 0, 0, null, false, false from outlive.workers k, unnest(k.queues) n(name)
  where k.state in ('active', 'stale', 'draining')) c
  left join outlive.queues q on q.name = c.name
group by c.name, q.paused_at;

-- Every source: the limits that hold, the tokens that are left, the failures in a row, and the breaker. `changed`:
-- an operator has set a limit.
create view outlive.source_health as
select s.name, s.enabled, e.rate_limit_per_minute, e.burst, e.max_concurrency,
  case when e.rate_limit_per_minute is not null then greatest(0, floor(e.burst - extract(epoch from
    greatest(s.full_at, outlive.now()) - outlive.now()) * e.rate_limit_per_minute / 60))::int end as tokens,
  s.failure_streak, s.last_success_at, s.last_failure_at, s.paused_until,
  case when s.paused_until is null then 'closed'
       when s.paused_until > outlive.now() then 'open'
       else 'half-open' end as breaker,
  not s.enabled or coalesce(s.paused_until > outlive.now(), false) as paused,
  coalesce(s.set_breaker_failures, s.breaker_failures) as breaker_failures,
  coalesce(s.set_breaker_pause_s, s.breaker_pause_s) as breaker_pause_s,
  num_nonnulls(s.set_rate_limit_per_minute, s.set_burst, s.set_max_concurrency, s.set_breaker_failures,
    s.set_breaker_pause_s) > 0 as changed
from outlive.sources s, lateral (
  select
    nullif(coalesce(s.set_rate_limit_per_minute, s.rate_limit_per_minute), 'infinity') as rate_limit_per_minute,
    coalesce(s.set_burst, s.burst) as burst,
    coalesce(s.set_max_concurrency, s.max_concurrency) as max_concurrency) e;

-- `changed`: an operator has changed what the app declares. `next_at` is null if there are no more firings.
create view outlive.schedule_states as
select s.name, s.task, s.queue, s.priority, s.cron, s.every_s, s.timezone, s.missed, s.overlap, s.jitter_s,
  s.starts_at, s.ends_at, s.paused_at is not null as paused, s.paused_at, s.declared_by, s.withdrawn_at,
  s.declared is not null and outlive.changes(s) <> '{}' as changed,
  case when s.next_at < 'infinity' then s.next_at end as next_at,
  s.last_tick, s.last_job, j.status as last_state, s.trouble, s.created_at, s.changed_at
from outlive.schedules s left join outlive.job_states j on j.id = s.last_job;

-- What an autoscaler asks for, in milliseconds however many jobs wait: for each queue, and the labels that tasks
-- need, how many jobs could run now, for how long the oldest could, how many slots are busy, how many there would
-- be if the ready jobs ran too, and how many slots the active workers have that could run them. Paused queues and
-- sources have no ready jobs. Jobs beyond all slots of a worker wait in it, and take none.
create view outlive.scaling as
with ready as materialized (
  select n.queue, coalesce(t.needs, '{}') as needs, n.jobs, ceil(n.jobs / coalesce(t.share, 1)::numeric) as slots,
    n.oldest_at
  from outlive.count_ready() n left join outlive.tasks t on t.name = n.task
  where not exists (select from outlive.queues q where q.name = n.queue and q.paused_at is not null)
    and not exists (select from outlive.source_health s where s.name = n.source and s.paused)),
taken as materialized (
  select n.queue, coalesce(t.needs, '{}') as needs, ceil(n.jobs / coalesce(t.share, 1)) as slots,
    k.slots / sum(ceil(n.jobs / coalesce(t.share, 1))) over (partition by n.worker) as room
  from (select worker, queue, task, count(*)::numeric as jobs from outlive.running group by 1, 2, 3) n
    join outlive.workers k on k.id = n.worker and k.state in ('active', 'stale')
    left join outlive.tasks t on t.name = n.task),
place as (
  select p.queue, p.needs, sum(p.ready)::bigint as ready, min(p.oldest_at) as oldest_at,
    ceil(sum(p.busy))::int as busy_slots, ceil(sum(p.busy + p.wanted))::int as wanted_slots
  from (
    select queue, needs, jobs as ready, oldest_at, 0 as busy, slots as wanted from ready
    union all
    select queue, needs, 0, null, slots * least(1, room), 0 from taken
    union all
    select queue, coalesce(needs, '{}'), 0, null, 0, 0 from outlive.tasks) p
  group by p.queue, p.needs)
select p.queue, p.needs, p.ready,
  coalesce(greatest(0, extract(epoch from outlive.now() - p.oldest_at)), 0)::double precision as oldest_ready_s,
  p.busy_slots, p.wanted_slots, coalesce(k.slots, 0)::int as slots, k.workers::int as workers
from place p cross join lateral (
  select sum(k.slots) as slots, count(*) as workers from outlive.workers k
  where k.state = 'active' and (k.queues is null or p.queue = any(k.queues))
    and coalesce(k.labels, '{}') @> p.needs) k;

-- The figures that describe the whole database, as Prometheus wants them: the name of the metric without
-- `outlive_`, the value of its label, and the figure. docs/reference/metrics.md explains them. Jobs are counted by
-- the functions in counts.sql. Labels are bounded: beyond 200 queues the emptiest are summed up as `other`, and of
-- the sources and schedules 200 have figures of their own, those in trouble first.
create view outlive.metrics as
with lane as materialized (
  select l.queue, l.pending, l.retryable, l.ready, l.oldest_ready_at as oldest
  from outlive.count_lanes() l),
live as materialized (
  select 'running' as state, r.queue, count(*) as jobs,
    count(*) filter (where r.lease_until < outlive.now()) as odd
  from outlive.running r group by r.queue
  union all
  select h.state, h.queue, h.jobs, case when h.why = 'suspect' then h.jobs else 0 end from outlive.count_held() h),
active as materialized (
  select k.queues from outlive.worker_states k where k.state = 'active'),
scaled as materialized (
  select s.queue, max(s.slots) as slots, sum(s.busy_slots) as busy, sum(s.wanted_slots) as wanted
  from outlive.scaling s group by s.queue),
queue as (
  select case when row_number() over (order by sum(c.waiting + c.running) desc, c.name) <= 200
      then c.name else 'other' end as name,
    sum(c.waiting) as waiting, sum(c.ready) as ready, sum(c.running) as running, min(c.oldest) as oldest,
    min(c.paused_at) as paused_at, max(s.slots) as slots, max(s.busy) as busy, max(s.wanted) as wanted,
    (select count(*) from active k where k.queues is null or c.name = any(k.queues)) as workers
  from (
    select queue as name, pending + retryable as waiting, ready, 0 as running, oldest,
      null::timestamptz as paused_at
    from lane
    union all
    select queue, case when state in ('pending', 'retryable') then jobs else 0 end, 0,
      case when state = 'running' then jobs else 0 end, null, null from live
    union all
    select name, 0, 0, 0, null, paused_at from outlive.queues
    union all
    select queue, 0, 0, 0, null, null from outlive.tasks group by queue) c
    left join scaled s on s.queue = c.name
  group by c.name),
source as (
  select s.* from outlive.source_health s order by s.paused desc, s.breaker <> 'closed' desc, s.name limit 200),
schedule as (
  select s.name, coalesce(greatest(0, extract(epoch from outlive.now() - s.next_at)), 0) as behind_s
  from outlive.schedules s
  where s.paused_at is null and s.withdrawn_at is null and (s.next_at < 'infinity' or s.next_at is null)
  order by 2 desc, 1 limit 200)
select 'jobs' as name, j.state as label, sum(j.jobs)::double precision as value
from (
  select 'pending' as state, sum(pending) as jobs from lane
  union all
  select 'retryable', sum(retryable) from lane
  union all
  select state, jobs from live
  union all
  select state, jobs from outlive.count_finished()) j
where j.jobs > 0 group by j.state
union all
select 'waits', w.kind, w.jobs from outlive.count_waits() w
union all
select 'stuck_jobs', '', coalesce(sum(odd), 0) from live where state = 'running'
union all
select 'suspect_jobs', '', coalesce(sum(odd), 0) from live where state <> 'running'
union all
select n.name, q.name, n.value from (
  select name, sum(waiting) as waiting, sum(ready) as ready, sum(running) as running, min(oldest) as oldest,
    min(paused_at) as paused_at, min(workers) as workers, min(slots) as slots, sum(busy) as busy,
    sum(wanted) as wanted
  from queue group by name) q, lateral (values
  ('queue_waiting_jobs', q.waiting),
  ('queue_ready_jobs', q.ready),
  ('queue_running_jobs', q.running),
  ('queue_oldest_ready_seconds', coalesce(greatest(0, extract(epoch from outlive.now() - q.oldest)), 0)),
  ('queue_paused', (q.paused_at is not null)::int),
  ('queue_paused_seconds', coalesce(greatest(0, extract(epoch from outlive.now() - q.paused_at)), 0)),
  ('queue_workers', q.workers),
  ('queue_slots', coalesce(q.slots, 0)),
  ('queue_busy_slots', coalesce(q.busy, 0)),
  ('queue_wanted_slots', coalesce(q.wanted, 0))) n(name, value)
union all
select 'workers', k.state, count(*) from outlive.worker_states k group by k.state
union all
select 'recent_worker_deaths', '', count(*) from outlive.workers k
where k.state = 'dead' and coalesce(k.died_at, k.last_seen) > outlive.now() - interval '10 minutes'
union all
select 'recent_failures', '', count(*) from (
  select from outlive.attempts a where a.state = 'failed' and a.ended_at > outlive.now() - interval '10 minutes'
  limit 10000) f
union all
select 'recent_quarantines', '', count(*) from outlive.held h
where h.why = 'quarantined' and h.since > outlive.now() - interval '10 minutes'
union all
select 'sources', s.breaker, count(*) from outlive.source_health s group by s.breaker
union all
select n.name, s.name, n.value from source s, lateral (values
  ('source_tokens', s.tokens),
  ('source_breaker_open', (s.breaker <> 'closed')::int),
  ('source_paused', s.paused::int)) n(name, value)
where n.value is not null
union all
select 'schedule_behind_seconds', s.name, s.behind_s from schedule s
union all
select 'schedules_in_trouble', '', count(*) from outlive.schedules s where s.trouble is not null;

-- The jobs of an open batch are counted. `progress` goes from 0 to 1.
create view outlive.batch_states as
select b.id, b.name,
  case when b.done_at is null then case when b.closed_at is null then 'open' else 'closed' end
       when b.succeeded = n.jobs then 'succeeded'
       when b.cancelled_at is not null then 'cancelled'
       else 'failed' end as state,
  n.jobs, b.succeeded, b.failed, b.cancelled, b.quarantined, n.jobs - n.ended as unfinished,
  case when n.jobs > 0 then n.ended::double precision / n.jobs
       else (b.done_at is not null)::int end as progress,
  b.created_at, b.closed_at, b.cancelled_at, b.done_at,
  s.job as on_success, s.called_at as success_called_at,
  f.job as on_failure, f.called_at as failure_called_at,
  d.job as on_done, d.called_at as done_called_at
from outlive.batches b
  cross join lateral (
    select b.succeeded + b.failed + b.cancelled + b.quarantined as ended,
      b.jobs + case when b.closed_at is null
        then (select count(*) from outlive.jobs j where j.batch = b.id) else 0 end as jobs
    offset 0) n  -- Otherwise they would be counted once for each column that needs them.
  left join outlive.callbacks s on s.batch = b.id and s.event = 'success'
  left join outlive.callbacks f on f.batch = b.id and f.event = 'failure'
  left join outlive.callbacks d on d.batch = b.id and d.event = 'done';

-- The queues that have waiting jobs and are not paused: a loose index scan, one step per queue.
create view outlive.open_queues as
with recursive queue as (
  (select w.queue as name from outlive.waiting w order by w.queue limit 1)
  union all
  select n.name from queue q, lateral (
    select w.queue as name from outlive.waiting w where w.queue > q.name order by w.queue limit 1) n)
select q.name from queue q
where not exists (select from outlive.queues p where p.name = q.name and p.paused_at is not null);

-- The workers that took their lock since the server started and don't hold it now. A lock counts only in the
-- session in which the worker took it; the same key in another session proves nothing. A role that may not see
-- when other sessions started assumes that it is the right one.
create view outlive.missing_locks as
select l.worker, l.key from outlive.liveness l
where l.postmaster_started = pg_postmaster_start_time() and (
  -- Two hashed lookups, whatever the statistics say: a join was planned for a small fleet, and took its square.
  ((l.key, l.backend_pid) in (
    select k.classid::bigint << 32 | k.objid::bigint, k.pid from pg_locks k
    where k.locktype = 'advisory' and k.objsubid = 1 and k.granted and k.pid is not null
      and k.database = (select d.oid from pg_database d where d.datname = current_database()))) is false
  or ((l.backend_pid, l.backend_started) in (
    select pg_stat_get_backend_pid(b.id), pg_stat_get_backend_start(b.id)
    from pg_stat_get_backend_idset() b(id))) is false);
