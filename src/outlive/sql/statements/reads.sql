-- Statements that only read.

-- name: statuses
-- The state of each job. No row: no such job.
select j.id, outlive.state_of(j.id) as state from outlive.jobs j where j.id = any(:ids::uuid[]);

-- name: job_progress
-- The state of a job, and what its last attempt that reported anything has reported. No row: no such job.
select outlive.state_of(j.id), p.attempt, p.current, p.total, p.message
from outlive.jobs j left join outlive.progress p on p.job_id = j.id where j.id = :id::uuid;

-- name: outcomes
-- The task and state of each job, and its last attempt. No row: no such job.
select j.id, j.task, outlive.state_of(j.id), a.*
from outlive.jobs j left join lateral (
  select t.* from outlive.ended_attempts t where t.job_id = j.id order by t.attempt desc limit 1) a on true
where j.id = any(:ids::uuid[]);

-- name: job
-- One job's life except for its attempts, with some of the jobs that it waits for, and of those that wait for it.
select s.*, s.status as state, j.args,
  nullif(j.options - '{schedule,repeats,gathered_by}'::text[], '{}') as options,
  j.options ->> 'schedule' as schedule, j.options ->> 'repeats' as repeats,
  j.options ->> 'gathered_by' as gathered_by,
  p.current, p.total, p.message,
  (select t.value from outlive.steps t where t.job_id = j.id and t.name = 'checkpoint') as checkpoint,
  p.updated_at as progress_at, p.attempt as progress_attempt, k.*, j.concurrency_key, j.concurrency,
  q.state = 'queued' as queues, j.after[:100] as after, j.on_failed ->> 'task' as on_failed,
  (select x.expires_at from outlive.expiring x where x.job_id = j.id and not x.whole) as expires_at,
  (select x.expires_at from outlive.expiring x where x.job_id = j.id and x.whole) as deadline,
  (select h.step from outlive.held h where h.id = j.id) as waits_in,
  (select nullif(h.ready_at, 'infinity') from outlive.held h
   where h.id = j.id and h.why = 'suspended' and h.details is null) as waits_until, outlive.now() as seen_at,
  s.status not in ('pending', 'retryable') or exists (
    select from outlive.workers w
    where w.state = 'active' and (w.tasks is null or s.task = any(w.tasks))
      and (w.queues is null or s.queue = any(w.queues))) as served,
  case when s.status in ('pending', 'retryable') and s.ready_at <= outlive.now() then (
    select sum(w.slots) from outlive.worker_states w
    where w.state = 'active' and (w.tasks is null or s.task = any(w.tasks))
      and (w.queues is null or s.queue = any(w.queues))
    having sum(w.busy_slots) = sum(w.slots)) end as busy_slots,
  (select nullif(t.needs, '{}') from outlive.tasks t where t.name = s.task) as needs,
  outlive.lacking(s.task) as lacking,
  case when s.status in ('pending', 'retryable') then case
    when exists (select from outlive.queues u where u.name = s.queue and u.paused_at is not null) then 'queue'
    when exists (select from outlive.sources u where u.name = s.source and not u.enabled) then 'source'
    end end as paused,
  case when s.status in ('pending', 'retryable') then (
    select u.paused_until from outlive.sources u
    where u.name = s.source and u.paused_until > outlive.now()) end as breaker_open_until,
  (select count(*) from outlive.keyed_jobs a where a.key = q.key and a.state = 'admitted') as slots_taken,
  (select count(*) from outlive.dependencies d where d.job_id = j.id and not d.met) as waits_for,
  (select json_agg(json_build_object('id', n.needs, 'state', n.state)) from (
     select d.needs, e.state
     from outlive.dependencies d, lateral (select outlive.state_of(d.needs) as state) e
     where d.job_id = j.id and not d.met
     order by e.state in ('failed', 'cancelled', 'quarantined') desc, d.needs limit 5) n) as waits_for_first,
  cardinality(w.ids) as waited_for,
  (select json_agg(json_build_object('id', n.id, 'state', coalesce(outlive.state_of(n.id), 'deleted')))
   from unnest(w.ids[:5]) n(id)) as waited_for_first,
  (select count(*) from outlive.dependencies d where d.needs = j.id and not d.met) as needed_by,
  (select json_agg(n.job_id) from (
     select d.job_id from outlive.dependencies d where d.needs = j.id and not d.met
     order by d.job_id limit 5) n) as needed_by_first
from outlive.job_states s join outlive.jobs j on j.id = s.id left join outlive.progress p on p.job_id = s.id
  left join outlive.keyed_jobs q on q.job_id = s.id
  left join lateral (  -- The kills of other jobs with the same task and arguments.
    select
      count(*) as kills,
      count(distinct c.job_id) as killers,
      max(c.at) as last_kill_at,
      (array_agg(c.job_id order by c.at desc))[1] as last_killer,
      (array_agg(c.cause order by c.at desc))[1] as last_cause
    from outlive.crashes c where c.task = j.task and c.fingerprint = s.fingerprint and c.job_id <> j.id) k on true
  cross join lateral (select nullif(j.after || array(select outlive.gathered(j.id)), '{}') as ids) w
where s.id = :id::uuid;

-- name: linked_jobs
-- A job and the jobs that are linked with it: those that it waits for, those that wait for it, and so on, the
-- nearest first. `after` are those among them that each waits for, or has waited for.
with recursive linked as (
  select :id::uuid as id
  union
  select n.id from linked l, lateral (
    select unnest(j.after[:51]) from outlive.jobs j where j.id = l.id
    union all (select g.id from outlive.gathered(l.id) g(id) limit 51)
    union all
    select p.id from outlive.jobs j, outlive.as_uuid(j.options ->> 'gathered_by') p(id)
    where j.id = l.id and p.id is not null
    union all (select d.needs from outlive.dependencies d where d.job_id = l.id limit 51)
    union all (select d.job_id from outlive.dependencies d where d.needs = l.id limit 51)) n(id)),
shown as materialized (select l.id from linked l limit :limit::int)
select j.id, j.task, outlive.state_of(j.id) as state, array(
  select s.id from shown s where s.id = any(j.after)
  union select g.id from outlive.gathered(j.id) g(id) join shown s on s.id = g.id
  union select d.needs from outlive.dependencies d join shown s on s.id = d.needs where d.job_id = j.id) as after
from shown s join outlive.jobs j on j.id = s.id
order by j.id;

-- name: list_attempts
-- The last ended attempts of one job, in order; all of them if :most is null.
select l.* from (
  select a.* from outlive.ended_attempts a where a.job_id = :id::uuid
  order by a.attempt desc limit :most::int) l
order by l.attempt;

-- name: list_jobs
-- Some jobs, in the order of their ids here, with the beginning of their arguments. A job that is in none of these
-- states any more is left out; an empty array takes all. `since` is the time of the state; `ran_s` is how long the
-- last attempt of a finished job took, or that of a running one so far. `served` is false if the job waits and no
-- active worker has its task and serves its queue.
select s.id, s.task, s.queue, s.source, s.status as state, s.priority, s.attempt, s.failures, s.crashes, s.losses,
  s.created_at, s.ready_at, s.next_retry_at, s.locked_by, s.locked_at, s.heartbeat_at, s.completed_at,
  s.last_outcome, s.error_message, s.batch,
  (select left(j.args::text, 200) from outlive.jobs j where j.id = s.id) as short_args,
  coalesce(s.completed_at, s.held_since, s.locked_at, s.ready_at) as since,
  extract(epoch from case when s.completed_at is null then outlive.now() - s.locked_at else (
    select a.ended_at - a.started_at from outlive.attempts a
    where a.job_id = s.id and a.attempt = s.attempt) end)::double precision as ran_s,
  s.status not in ('pending', 'retryable') or exists (
    select from outlive.workers k
    where k.state = 'active' and (k.tasks is null or s.task = any(k.tasks))
      and (k.queues is null or s.queue = any(k.queues))) as served
from unnest(:ids::uuid[]) with ordinality w(id, place) join outlive.job_states s on s.id = w.id
where :states::text[] = '{}' or s.status = any(:states::text[])
order by w.place;

-- name: job_infos
-- The same for programs, with all of their arguments: as many jobs as have :most_bytes of these, and one more. A
-- job asks its worker for them, whose memory they must not fill. Worker and start are those of the last attempt.
with found as (
  select s.*, j.args, w.place,
    sum(octet_length(j.args::text)) over (order by w.place) - octet_length(j.args::text) as before
  from unnest(:ids::uuid[]) with ordinality w(id, place)
    join outlive.job_states s on s.id = w.id join outlive.jobs j on j.id = w.id
  where :states::text[] = '{}' or s.status = any(:states::text[]))
select s.id, s.task, s.queue, s.args::text, s.status, s.attempt, coalesce(s.locked_by, a.worker_name),
  s.created_at, s.ready_at, coalesce(s.locked_at, a.started_at), s.completed_at, s.error_message
from found s left join outlive.attempts a on a.job_id = s.id and a.attempt = s.attempt
where s.before <= :most_bytes::bigint order by s.place;

-- name: unfinished
-- The tasks and states of the unfinished ones among some jobs, why they are held, and in how many seconds they are
-- due. `served`: if it is to run, an active worker has its task and serves its queue.
select s.task, s.status, s.held_details,
  extract(epoch from s.ready_at - outlive.now())::double precision as due_in_s,
  s.status not in ('pending', 'retryable') or exists (
    select from outlive.workers k
    where k.state = 'active' and (k.tasks is null or s.task = any(k.tasks))
      and (k.queues is null or s.queue = any(k.queues))) as served
from outlive.job_states s where s.id = any(:ids::uuid[]) and s.completed_at is null
order by s.task, s.id;

-- name: unserved_lanes
-- The tasks and queues of all jobs that wait while active workers exist and none of them has the task and serves
-- the queue, and the labels that they lack: a loose index scan, one step for each source and task of a queue. A
-- stale worker counts too: after an outage it may only not have sent its heartbeat yet.
with recursive lane as (
  (select w.queue, w.source, w.task from outlive.waiting w order by w.queue, w.source, w.task limit 1)
  union all
  select n.* from lane l, lateral (
    select w.queue, w.source, w.task from outlive.waiting w
    where (w.queue, w.source, w.task) > (l.queue, l.source, l.task) order by w.queue, w.source, w.task limit 1) n)
select distinct l.task, l.queue, outlive.lacking(l.task) from lane l
where exists (select from outlive.workers k where k.state = 'active') and not exists (
  select from outlive.workers k
  where k.state in ('active', 'stale') and (k.tasks is null or l.task = any(k.tasks))
    and (k.queues is null or l.queue = any(k.queues)));

-- name: list_stuck
-- Running jobs whose lease has expired and that no reaper has ended yet.
select id, task, queue, source, status as state, attempt, locked_by, locked_at, heartbeat_at,
  extract(epoch from time_since_heartbeat)::double precision as time_since_heartbeat_s, lease_until
from outlive.stuck_jobs order by lease_until limit :limit::int;

-- name: count_unmet
-- How many jobs wait for jobs that have ended without success, up to 1000: a person must decide about them.
select count(*)::int from (select from outlive.unmet_jobs limit 1000) u;

-- name: count_stuck
-- How many running jobs have a lease that has expired.
select count(*) from outlive.running r where r.lease_until < outlive.now();

-- name: list_killers
-- Quarantined jobs, with the evidence of the last kill.
select * from outlive.killers order by quarantined_at desc limit :limit::int;

-- name: group_killers
-- The newest quarantined jobs by task and fingerprint, with the evidence of the last kill of each group.
with newest as (
  select h.id, h.task, h.since, h.details,
    coalesce(j.fingerprint, outlive.fingerprint(j.task, j.args)) as fingerprint
  from outlive.held h join outlive.jobs j on j.id = h.id
  where h.why = 'quarantined' order by h.since desc limit :limit::int)
select g.*, k.details, k.crashes, k.losses, k.outcome, k.signal, k.exit_code, k.peak_memory_bytes, k.cpu_s,
  k.error_message, k.stack, k.output, k.killed_on, k.killed_on_host, k.last_kill_at,
  (select left(j.args::text, 300) from outlive.jobs j where j.id = g.last_job) as args
from (
    select n.task, n.fingerprint, count(*) as jobs, max(n.since) as quarantined_at,
      (array_agg(n.id order by n.since desc))[1] as last_job,
      (array_agg(n.id order by n.since desc))[1:20] as ids
    from newest n group by 1, 2) g
  join lateral (select * from outlive.killers k where k.id = g.last_job) k on true
order by g.quarantined_at desc;

-- name: list_running
-- What runs now, by worker, the longest first, with the progress that it reports.
select r.worker, r.id, r.task, r.attempt, r.started_at, r.heartbeat_at, r.cancel_requested, p.current, p.total,
  p.message
from outlive.running r left join outlive.progress p on p.job_id = r.id and p.attempt = r.attempt
order by r.started_at limit :limit::int;

-- name: list_workers
-- Every worker that is not pruned yet, the living first.
select id, name, hostname, pid, version, queues, state, started_at, last_seen,
  extract(epoch from time_since_heartbeat)::double precision as time_since_heartbeat_s, died_at, slots, running,
  busy_slots, claimed_ahead, trouble, drain_requested_at, tasks, memory_bytes, app, reload_requested_at,
  reload_error, labels, connections, r.last_claim_at,
  (select w.heartbeat_s from outlive.workers w where w.id = worker_states.id) as heartbeat_s
from outlive.worker_states left join (
  select worker, max(started_at) as last_claim_at from outlive.running group by worker) r on r.worker = id
order by state in ('dead', 'stopped'), name, started_at desc limit :limit::int;

-- name: list_queues
-- Every queue that has unfinished jobs, was paused, or is named by a task or a worker. More than 10,000 jobs of a
-- lane are estimated.
select * from outlive.queue_states order by name;

-- name: queues_with_rates
-- The same, and queues of which only finished jobs are left, with how many jobs ended per minute lately, and how
-- long these had waited: p50 and p95.
select coalesce(q.name, r.queue) as name, coalesce(q.paused, false) as paused, q.paused_at,
  coalesce(q.waiting, 0) as waiting, coalesce(q.ready, 0) as ready, coalesce(q.running, 0) as running,
  coalesce(q.blocked, 0) as blocked, coalesce(q.suspended, 0) as suspended,
  coalesce(q.quarantined, 0) as quarantined, q.oldest_ready_at,
  coalesce(q.estimated, false) as estimated, coalesce(q.ready_estimated, false) as ready_estimated,
  coalesce(r.per_minute, 0) as per_minute, coalesce(r.estimated, false) as rate_estimated, r.waited_s
from outlive.queue_states q full join outlive.queue_rates() r on r.queue = q.name order by 1;

-- name: list_sources
-- The sources whose names begin so, with the limits that hold now; those in trouble first.
select * from outlive.source_health h
where starts_with(h.name, :begins::text)
order by h.enabled and h.breaker = 'closed' and h.failure_streak = 0, h.name limit :limit::int;

-- name: list_records
-- The records of a scope, a source and a key, null for all, in this order, :after the last one of another page.
select scope, source, dedupe_key, data, strength, job_id, created_at, updated_at from outlive.records r
where (:scope::text is null or r.scope = :scope::text) and (:source::text is null or r.source = :source::text)
  and (:key::text is null or r.dedupe_key = :key::text)
  and (r.scope, r.source, r.dedupe_key) > ((:after::text[])[1], (:after::text[])[2], (:after::text[])[3])
order by r.scope, r.source, r.dedupe_key limit :limit::int;

-- name: count_jobs
-- How many jobs there are of each state, queue, source and task. More than 10,000 of these are estimated.
select state, queue, source, task, jobs, estimated from outlive.count_jobs() order by 1, 2, 3, 4;

-- name: list_tasks
-- Every task that a worker has registered, or of which jobs ended in the last hour, with how these ended.
select coalesce(t.name, e.task) as name, t.signature is not null as described, e.succeeded_per_min,
  e.failed_per_min, e.ran_s, e.peak_memory_bytes
from outlive.tasks t full join outlive.ends_by_task() e on e.task = t.name
order by 1 limit :limit::int;

-- name: task
-- A task as the last worker to register it described it. No row: none has.
select t.name, t.queue, t.priority, t.signature from outlive.tasks t where t.name = :name::text;

-- name: signature
-- The parameters of a task, as the last worker to register it described them. Null or no row: none has.
select t.signature::text from outlive.tasks t where t.name = :task::text;

-- name: queue_info
-- A queue for programs. No row: it has no unfinished job, is not paused, and is named by no task and no worker.
select q.name, q.paused, q.paused_at, q.waiting, q.ready, q.running, q.blocked, q.suspended, q.quarantined,
  q.oldest_ready_at
from outlive.queue_states q where q.name = :name::text;

-- name: list_lanes
-- How many jobs wait in each lane, and since when the first of them could run. More than 10,000 are estimated.
select l.queue, l.source, l.task, l.priority, l.pending + l.retryable as waiting, l.ready, l.oldest_ready_at,
  l.estimated, l.ready_estimated, outlive.lacking(l.task) as lacking
from outlive.count_lanes() l
order by l.ready desc, l.pending + l.retryable desc, 1, 2, 3, 4 limit :limit::int;

-- name: rates
-- How many attempts ended per second lately, by the state that they gave their job. No row: none ended.
select state, per_s from outlive.end_rates();

-- name: metrics
-- The figures that describe the whole database, for Prometheus.
select name, label, value from outlive.metrics;

-- name: latencies
-- How long attempts took that ended in the last minute, and how long jobs waited for their first attempt: the
-- median, the 95th and the 99th percentile, in seconds. At most 500 attempts of each state count.
select
  percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
    order by extract(epoch from r.ended_at - r.started_at)) as run_s,
  percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
    order by extract(epoch from r.started_at - j.ready_at)) filter (where r.attempt = 1) as wait_s
from unnest('{succeeded,retryable,failed,quarantined,cancelled}'::text[]) s(state), lateral (
    select a.job_id, a.attempt, a.started_at, a.ended_at from outlive.attempts a
    where a.state = s.state and a.ended_at > outlive.now() - interval '1 minute'
    order by a.ended_at desc limit 500) r
  join outlive.jobs j on j.id = r.job_id
where r.started_at is not null;

-- name: health
-- What `outlive doctor` judges of the server. Any role may ask. `sees_all`: whether this one sees what the
-- sessions of others do; Postgres hides that from most.
select
  pg_is_in_recovery() as standby,
  current_user as role,
  pg_has_role('pg_read_all_stats', 'usage') as sees_all,
  inet_server_addr() is null as beside,
  (select s.setting from pg_settings s where s.name = 'data_directory') as data_directory,
  pg_database_size(current_database()) as database_bytes,
  current_setting('server_version_num')::int as server_version,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('fsync') as fsync,
  current_setting('autovacuum') as autovacuum,
  extract(epoch from current_setting('autovacuum_naptime')::interval)::double precision as autovacuum_naptime_s,
  (select coalesce(extract(epoch from max(
     clock_timestamp() - coalesce(a.xact_start, a.query_start))), 0)::double precision
   from pg_stat_activity a
   where a.backend_xmin is not null and a.pid <> pg_backend_pid()
     and coalesce(a.datname, current_database()) = current_database()  -- Others hold up no vacuum here.
  ) as oldest_snapshot_s,
  (select json_build_object('pid', a.pid, 'role', a.usename, 'program',
     coalesce(nullif(a.application_name, ''), 'a session'))
   from pg_stat_activity a
   where a.backend_xmin is not null and a.pid <> pg_backend_pid()
     and coalesce(a.datname, current_database()) = current_database()
   order by coalesce(a.xact_start, a.query_start) limit 1) as oldest_snapshot,
  (select count(*) from pg_stat_activity a where a.datname is not null)::int as connections,
  current_setting('max_connections')::int as max_connections,
  least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
      - coalesce(current_setting('reserved_connections', true)::int, 0),
    (select nullif(d.datconnlimit, -1) from pg_database d where d.datname = current_database())
  ) as allowed_connections,
  (select json_agg(json_build_object('name', t.relname, 'dead', t.n_dead_tup, 'live', t.n_live_tup, 'vacuumed',
     to_char(greatest(t.last_vacuum, t.last_autovacuum), 'YYYY-MM-DD HH24:MI')) order by t.n_dead_tup desc)
   from pg_stat_user_tables t where t.schemaname = 'outlive' and t.n_dead_tup > 0) as dead_rows,
  (select json_agg(json_build_object('gid', p.gid, 'database', p.database, 'since',
     to_char(p.prepared, 'YYYY-MM-DD HH24:MI'), 'for_s', extract(epoch from clock_timestamp() - p.prepared)))
   from pg_prepared_xacts p) as prepared,
  (select json_agg(json_build_object('name', s.slot_name, 'rows', s.xmin is not null or s.catalog_xmin is not null,
     'wal_bytes', case when pg_is_in_recovery() then 0
       else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint end))
   from pg_replication_slots s where not s.active) as slots;

-- name: lock_holders
-- The sessions that keep others from writing to a table of outlive, or from reading it: those with a lock that
-- writers wait for, and those for whose end such a lock waits. Any role may ask; `for_s` is null if it sees no
-- times.
select
  a.pid, a.usename::text as role, coalesce(nullif(a.application_name, ''), 'a session') as program,
  string_agg(distinct h.name, ', ' order by h.name) as tables,
  extract(epoch from clock_timestamp() - a.xact_start)::double precision as for_s
from (
  select 'outlive.' || c.relname,
    unnest(case when k.granted then array[k.pid] else pg_blocking_pids(k.pid) end)
  from pg_locks k join pg_class c on c.oid = k.relation
  where k.database = (select d.oid from pg_database d where d.datname = current_database())
    and c.relnamespace = to_regnamespace('outlive') and c.relkind = 'r'
    and k.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) h(name, pid)
join pg_stat_activity a on a.pid = h.pid
where a.pid <> pg_backend_pid()
group by 1, 2, 3, a.xact_start order by a.xact_start, a.pid;

-- name: job_health
-- What `outlive doctor` judges of the jobs, beside the lists.
select
  (select count(*) from outlive.stuck_jobs)::int as stuck,
  (select count(*) from outlive.killers)::int as quarantined,
  (select count(*) from (select from outlive.unmet_jobs limit 1000) u)::int as unmet,
  (select count(*) from outlive.worker_states where state = 'active')::int as active_workers;

-- name: write_some
-- Write a megabyte where temporary tables are, and drop it again: an error says that the server can't.
create temporary table outlive_doctor on commit drop as select md5(n::text) from generate_series(1, 20000) n;

-- name: clock
-- The database's clock, for callers that compare it with their own.
select extract(epoch from outlive.now())::double precision;

-- name: schema_version
-- The version of the schema for a program that was made for version :mine: a newer one that serves it counts as
-- that. Null: no version is installed. Version 1 did not say what it serves.
select case when v.version > :mine::int and (to_jsonb(v) ->> 'serves')::int <= :mine::int then :mine::int
  else v.version end
from outlive.schema_version v order by v.version desc limit 1;
