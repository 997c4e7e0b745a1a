set search_path = pg_catalog, pg_temp;
-- The tables of outlive, version 2. An upgrade runs this too, after it has changed the tables that exist.
--
-- The place of a job's row is the state of the job. Every job has one row in `jobs`, which is hardly ever updated,
-- and, while it is not finished, exactly one row in one of three places:
--
--     waiting   it may be claimed         pending (or retryable, once it has failed or crashed)
--     running   an attempt is under way   running
--     held      it waits for a person     blocked, quarantined; a suspect shows as pending
--               it waits for other jobs   blocked
--               or for a slot of its key  pending (or retryable)
--               its code waits            suspended
--
-- Rows in `waiting` are inserted and deleted, never updated. A row in `running` is the right to end the attempt:
-- the worker deletes that row by token and worker, and a worker that deletes nothing has lost the attempt.
-- Every ended attempt appends one row to `attempts`; the last one of a finished job says how the job finished.
--
-- Lock order, for every statement that locks more than one row: `jobs` by id (operators' verbs and prune only),
-- then `dedupe_keys` by task and key, then `waiting` by id, `running` by token, `held` by id, then `dependencies`.
-- Claims skip locked rows. A firing locks its row of `schedules` before all of these. A release locks `crashes` by
-- their key after them. Rows of `batches`, by id, come last, and then what a callback of a batch needs.
-- A cancel and the end of a job lock, in `held`, all jobs that wait for it, and those that are cancelled in turn,
-- at once, unless these are too many. A transaction that enqueues a job to wait for others locks them in `jobs`
-- only, for key share: only prune waits for that. Three cases break the order: more jobs come to wait for one that
-- is cancelled while the cancel waits for a lock; a job that begins to wait for others locks them after itself,
-- for share (outlive.lock_needed); and a transaction calls several functions. So a deadlock is possible, if rare:
-- Postgres ends it within a second, and the statement that failed is repeated.
-- Keys (functions/keys.sql) are locked last, in the order of their buckets, and only by the statements of workers:
-- these wait for no row after that. No transaction waits for a key for longer than a tenth of a second.
-- There are no foreign keys: their checks would lock rows of `jobs` in the hot path.
--
-- Text that is compared is collated "C": people never see the order, and bytes compare faster.

do $$
begin
  if to_regnamespace('outlive') is null then  -- `if not exists` needs the right to create one even if it exists.
    create schema outlive;
  end if;
end $$;

-- The versions of the schema that were installed here. The highest one holds.
create table if not exists outlive.schema_version (
  version int primary key,
  applied_at timestamptz not null default now(),
  serves int  -- The earliest version whose workers and clients can work with it. Null: only its own can.
);

-- The only clock; Python never sends "now". Tests replace this function: no role could be kept from a setting.
create or replace function outlive.now() returns timestamptz language sql stable parallel safe
return statement_timestamp();

-- Every job, as it was enqueued. Rows are never updated, except for `after`, if a job that it names is replaced,
-- and for the arguments, if the job restarts with others.
create table if not exists outlive.jobs (
  id uuid primary key,
  task text collate "C" not null check (task <> ''),
  queue text collate "C" not null check (queue <> ''),
  source text collate "C" not null default '',
  args json not null check (json_typeof(args) in ('object', 'array')),
  options jsonb check (jsonb_typeof(options) = 'object'),  -- `schedule`, `repeats`, `gathered_by`: its origin.
  priority smallint not null check (priority between 0 and 9),
  ready_at timestamptz not null,
  dedupe_key text collate "C",
  fingerprint text collate "C",  -- Null: computed from the arguments when it is needed.
  created_at timestamptz not null,
  after uuid[],  -- The jobs that it waits for, in the order of its inputs.
  batch uuid,
  concurrency_key text collate "C",
  concurrency int,  -- How many jobs with its key may run when it starts, itself included.
  on_failed jsonb  -- The job that is enqueued when this one fails for good or is quarantined.
);

-- The jobs that may be claimed, at `ready_at` or later.
create table if not exists outlive.waiting (
  queue text collate "C" not null,
  source text collate "C" not null,
  task text collate "C" not null,
  priority smallint not null,
  ready_at timestamptz not null,
  id uuid not null,
  attempt int not null default 0,
  failures smallint not null default 0,
  crashes smallint not null default 0,
  losses smallint not null default 0,
  unsure boolean,  -- Another job may have the slot of its key: the claim looks (outlive.keep_out).
  primary key (queue, source, task, priority, ready_at, id),
  constraint waiting_id_key unique (id)
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);
create index if not exists waiting_crashed on outlive.waiting (task) where crashes > 0;
create index if not exists waiting_retryable on outlive.waiting (queue, source, task, ready_at, id)
  where failures + crashes > 0;

-- The attempts under way. The token is the right to end the attempt.
create table if not exists outlive.running (
  token bigint primary key generated always as identity (cache 1),
  id uuid not null,
  attempt int not null,
  worker uuid not null,
  lease_until timestamptz not null,
  heartbeat_at timestamptz not null,
  started_at timestamptz not null,
  cancel_requested boolean not null default false,
  alone boolean not null default false,
  queue text collate "C" not null,
  source text collate "C" not null,
  task text collate "C" not null,
  priority smallint not null,
  ready_at timestamptz not null,
  failures smallint not null,
  crashes smallint not null,
  losses smallint not null,
  begun boolean not null default true,  -- False while its code waits: a death of its worker does not count.
  constraint running_id_key unique (id)
) with (fillfactor = 70, autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);
create index if not exists running_to_cancel on outlive.running (worker) where cancel_requested;

-- The jobs that can't be claimed: `why` says what they wait for.
create table if not exists outlive.held (
  id uuid primary key,
  why text collate "C" not null check (
    why in ('blocked', 'quarantined', 'suspect', 'dependent', 'key', 'suspended')),
  since timestamptz not null,
  details text,
  queue text collate "C" not null,
  source text collate "C" not null,
  task text collate "C" not null,
  priority smallint not null,
  ready_at timestamptz not null,
  attempt int not null,
  failures smallint not null,
  crashes smallint not null,
  losses smallint not null,
  told boolean not null default false,
  unmet int,  -- Of a job that waits for others: how many of its dependencies are not met.
  -- Of a suspended job, which waits until `ready_at`: the step that it waits in, the signal that it waits for, and
  -- the worker that has kept its process.
  step text collate "C",
  signal text collate "C",
  parked_by uuid
);
create index if not exists held_why on outlive.held (why, since);
create index if not exists held_by_lane on outlive.held (
  queue, source, task, why, (failures + crashes > 0), since, id);
create index if not exists held_until on outlive.held (ready_at) where why = 'suspended';
create index if not exists held_unmet on outlive.held (since) where why = 'dependent' and details is not null;
create index if not exists held_parked on outlive.held (parked_by) where parked_by is not null;
create index if not exists held_suspects on outlive.held (queue, source, task, losses, since)
  where why = 'suspect';
create index if not exists held_untold on outlive.held (id) where why = 'quarantined' and not told;

-- The jobs with a concurrency key that wait, run or are suspects. A job that waits in `waiting` or runs is
-- admitted: it has a slot of its key. The others wait for one (queued), or until they may (later): for their time,
-- or, with `ready_at` infinity, for their queue to be resumed or for a worker that can run a suspect. `ready_at`
-- of an admitted job is when it was admitted.
create table if not exists outlive.keyed_jobs (
  job_id uuid primary key,
  key text collate "C" not null,
  most int not null,
  state text collate "C" not null check (state in ('later', 'queued', 'admitted')),
  priority smallint not null,
  ready_at timestamptz not null
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);
create index if not exists keyed_jobs_by_key on outlive.keyed_jobs (key, state, priority, ready_at, job_id);
create index if not exists keyed_jobs_later on outlive.keyed_jobs (ready_at) where state = 'later';

-- Keys of which a slot was given back, or for which a job queues, and which are left for later: at most 500 keys
-- in a row.
create table if not exists outlive.key_turns (
  id bigint generated always as identity primary key,
  keys text[] not null
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);

-- The locks of keys, each for many keys; they are made as needed. They are rows, because any login can take an
-- advisory lock.
create table if not exists outlive.key_locks (
  bucket int primary key
);

-- Every attempt that has ended, with its outcome, its evidence and its result. `state` is what it has made of its
-- job; if an operator retries that, the state becomes pending. So a job is finished if an attempt says so, and the
-- index by lane has the finished jobs only. The lane is that of the job.
create table if not exists outlive.attempts (
  job_id uuid not null,
  attempt int not null,
  token bigint not null,
  worker uuid,
  outcome text collate "C" not null check (outcome in (
    'succeeded', 'failed', 'timed_out', 'out_of_memory', 'crashed', 'lost', 'released', 'cancelled')),
  state text collate "C" not null check (state in (
    'succeeded', 'pending', 'retryable', 'failed', 'quarantined', 'cancelled')),
  error text,
  exit_code int,
  signal text,
  peak_memory_bytes bigint,
  cpu_s double precision,
  output text,
  stack text,
  result json,
  started_at timestamptz,
  ended_at timestamptz not null,
  failures smallint not null,
  crashes smallint not null,
  losses smallint not null,
  worker_name text,  -- Kept here, because the row in `workers` is pruned earlier.
  hostname text,
  expires_at timestamptz,  -- The job may be pruned then. Null: its task does not say, and the settings do.
  memory json,  -- How its memory changed, if it was measured and the attempt ran long or did not succeed.
  loss text collate "C" check (loss in ('alone', 'taken back')),
    -- Of a lost attempt: nothing ran beside it; or its worker was alive, and the loss does not count.
  queue text collate "C" not null,
  source text collate "C" not null,
  task text collate "C" not null,
  lane bigint generated always as (  -- The lane and `state` as a number, by which an index counts jobs.
    hashtextextended(state, hashtextextended(task, hashtextextended(source, hashtextextended(queue, 0))))) stored,
  primary key (job_id, attempt),
  constraint attempts_token_key unique (token)
);
create index if not exists attempts_by_state on outlive.attempts (state, ended_at);
-- By a number: to compare four texts would cost each end four times as much. It is stored, because with an index
-- of the expression Postgres would read each row that it counts.
create index if not exists attempts_by_lane on outlive.attempts (lane, ended_at)
  where state in ('succeeded', 'failed', 'cancelled');
create index if not exists attempts_by_worker on outlive.attempts (
  hashtextextended(state, hashtextextended(worker_name, 0)), ended_at);
create index if not exists attempts_by_expiry on outlive.attempts (expires_at) where expires_at is not null;
create index if not exists attempts_lost on outlive.attempts (worker) where outcome = 'lost';

-- Every kill, by task and fingerprint of the arguments, because a killer may come back under another id.
-- Rows are appended and deleted, never updated, so that two workers that report kills never deadlock.
create table if not exists outlive.crashes (
  task text collate "C" not null,
  fingerprint text collate "C" not null,
  token bigint not null,
  job_id uuid not null,
  cause text not null,
  at timestamptz not null,
  primary key (task, fingerprint, token)
);
create index if not exists crashes_by_time on outlive.crashes (at);

-- The keys of unfinished jobs, unique per task. A row goes when its job finishes.
create table if not exists outlive.dedupe_keys (
  task text collate "C" not null,
  key text collate "C" not null,
  id uuid not null,
  primary key (task, key),
  constraint dedupe_keys_id_key unique (id)
);

-- Every worker that has started, until it is pruned.
create table if not exists outlive.workers (
  id uuid primary key,
  name text not null,
  hostname text not null,
  pid int not null,
  version text not null,
  queues text[],  -- Those that it serves; null: all. Like its slots, an operator may change them while it runs.
  slots int not null,
  state text collate "C" not null default 'active'
    check (state in ('active', 'stale', 'dead', 'draining', 'stopped')),
  started_at timestamptz not null,
  last_seen timestamptz not null,
  died_at timestamptz,
  watched boolean not null default false,  -- It has shown life, so it must after every start of the server.
  missed_at timestamptz,  -- When a reaper first missed it after a start of the server; null once it shows life.
  stop_requested_at timestamptz,  -- It was told to stop: its death after that is not charged to its jobs.
  trouble text,  -- Why it can't run any job at present; null if it can.
  tasks text[],  -- The tasks of its app; null: unknown.
  drain_requested_at timestamptz,  -- An operator wants it to finish its jobs and stop.
  secret uuid not null default gen_random_uuid(),  -- The secrets of its attempts are derived from this one.
  memory_bytes bigint,  -- Of all its processes, as its last heartbeats told; null: not known yet.
  app text collate "C",  -- The service, or the app as it was started (pkg.module:app); null: no app of Python.
  schedules text[],  -- The schedules that its app declares.
  -- Its own settings, by which others judge whether it lives.
  heartbeat_s double precision not null default 30,
  renew_s double precision not null default 20,
  stale_s double precision not null default 60,
  dead_s double precision not null default 120,
  alerts text[],  -- The alerts for which it has a command, for example on_quarantine.
  died_of text,  -- Why it was declared dead.
  died_with int,  -- How many jobs it had then.
  told boolean not null default false,  -- A command was run for its death.
  reload_requested_at timestamptz,  -- An operator wants it to import its app again; null once it has tried.
  reload_error text,  -- Why it could not: it goes on with the old code. Null: it has the code of its last reload.
  labels text[],  -- What its machine has; it takes no job of a task that needs others.
  connections int,  -- How many connections to the database it has at most; null: unknown.
  room_until timestamptz  -- Until when it claims nothing, so that a suspect can run alone; null: it claims.
);
create index if not exists workers_by_last_seen on outlive.workers (last_seen);
create index if not exists workers_untold on outlive.workers (died_at) where state = 'dead' and not told;

-- The key of the advisory lock that each worker's session holds. A worker is dead if its row dates from this start
-- of the server and no session holds its lock. UNLOGGED: a crash of the server ends all sessions and empties this
-- table, so no worker is declared dead because of it.
create unlogged table if not exists outlive.liveness (
  worker uuid primary key,
  key bigint not null,
  postmaster_started timestamptz not null,
  backend_pid int not null,  -- The session that holds the lock; the same lock in another session proves nothing.
  backend_started timestamptz  -- Null: the function that took the lock may not see it.
);

-- The workers that look after all others: they declare workers dead, and do what is left to do. A watcher has its
-- seat until its term ends, unless it renews it, or until its lock is free. UNLOGGED: after a crash of the server
-- the first workers that come back take the seats.
create unlogged table if not exists outlive.watchers (
  seat smallint primary key check (seat between 1 and 3),
  worker uuid not null,
  key bigint,  -- That of its lock; null behind a pooler, where only the term counts.
  until timestamptz not null
);

-- Workers that have nothing to do and want to be notified. UNLOGGED: after a crash they poll and write their row
-- again.
create unlogged table if not exists outlive.sleepers (
  worker uuid primary key
);

-- The jobs whose end a client waits for. The statement that ends a job deletes its row and notifies the clients.
-- UNLOGGED: after a crash they connect and write their rows again.
create unlogged table if not exists outlive.awaited (
  job_id uuid primary key,
  since timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- The jobs that a person or a page follows, and what the running attempt has printed and used so far. A worker
-- writes that only for them. UNLOGGED: after a crash a follower asks again, and the worker writes it again.
create unlogged table if not exists outlive.watched (
  job_id uuid primary key,
  until timestamptz not null,
  attempt int,  -- The attempt that has printed it. Null: its worker has written nothing yet.
  lines bigint,  -- How many lines it has printed. `output` holds the last of them.
  output text,
  memory json,  -- How its memory has changed so far, if it was measured.
  steps text  -- The names of the steps that are under way.
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- The limits that a worker last registered for each task, so that any reaper can apply them in SQL.
create table if not exists outlive.tasks (
  name text collate "C" primary key,
  queue text collate "C" not null,
  source text collate "C" not null default '',
  max_attempts int not null,
  max_crashes int not null,
  max_losses int,
  on_worker_death text collate "C" not null check (on_worker_death in ('retry', 'fail')),
  quarantine_by text collate "C" not null check (quarantine_by in ('job', 'fingerprint')),
  backoff_s double precision[] not null check (cardinality(backoff_s) > 0),
  updated_at timestamptz not null,
  alerted_at timestamptz,
  keep_finished_s double precision check (keep_finished_s >= 0),  -- Null: as the settings say.
  app_keep_finished_s double precision,  -- What the settings of its worker say; null: not known yet.
  app_keep_failed_s double precision,
  expires_s double precision check (expires_s > 0),  -- How long after its enqueue a job may start. Null: always.
  deadline_s double precision check (deadline_s > 0),  -- How long after its enqueue a job must have ended.
  on_failed jsonb,  -- The job that is enqueued when a job of the task fails for good, unless that names another.
  function text,  -- Its function and the names of its parameters; null: not known.
  priority smallint,  -- That of its jobs, if they name none; null: not known yet.
  signature json,  -- The parameters of its function, for forms; null: not known.
  share int,  -- How many of its jobs run at once in one process, which has one slot; null: not known.
  needs text[]  -- The labels that a worker must have to run its jobs.
);
create index if not exists tasks_that_expire on outlive.tasks (name)
  where expires_s is not null or deadline_s is not null;
create index if not exists tasks_with_expiry on outlive.tasks (name) where keep_finished_s is not null;

-- The queues that were paused at some time. A queue needs no row.
create table if not exists outlive.queues (
  name text collate "C" primary key,
  paused_at timestamptz
);

-- A source is what its app declares (the last worker to register wins), what operators have set (set_…, which
-- override that), a bucket of tokens, and a breaker: closed without paused_until, open before it, half-open after
-- it. A source that no app declares has the limits of the source of the task whose job named it first.
create table if not exists outlive.sources (
  name text collate "C" primary key,
  like_task text collate "C",
  enabled boolean not null default true,
  rate_limit_per_minute double precision check (rate_limit_per_minute > 0),
  burst int not null default 1 check (burst > 0),
  max_concurrency int check (max_concurrency > 0),
  breaker_failures int not null default 5 check (breaker_failures > 0),
  breaker_pause_s double precision not null default 300 check (breaker_pause_s > 0),
  set_rate_limit_per_minute double precision check (set_rate_limit_per_minute > 0),
  set_burst int check (set_burst > 0),
  set_max_concurrency int check (set_max_concurrency > 0),
  set_breaker_failures int check (set_breaker_failures > 0),
  set_breaker_pause_s double precision check (set_breaker_pause_s > 0),
  full_at timestamptz not null default '2000-01-01Z',  -- When the bucket is full again, if nothing more is taken.
  wanted_until timestamptz not null default '2000-01-01Z',  -- Until then a running job waits and goes first.
  failure_streak int not null default 0,
  last_success_at timestamptz,
  last_failure_at timestamptz,
  paused_until timestamptz,
  probe bigint,  -- The attempt that tries whether the source is back; it counts only while it runs.
  told_paused_until timestamptz
) with (fillfactor = 50);
create index if not exists sources_to_tell on outlive.sources (name)
  where paused_until is not null or told_paused_until is not null;

-- Requests under way at sources with a limit on concurrency, by jobs that are not of that source. A row counts
-- only while its attempt runs.
create table if not exists outlive.requests (
  id bigint generated always as identity primary key,
  source text collate "C" not null,
  token bigint not null
);

-- The records that jobs have found, each written in the transaction that completes the job.
create table if not exists outlive.records (
  scope text collate "C" not null,
  source text collate "C" not null,
  dedupe_key text collate "C" not null,
  data json not null,
  strength double precision not null,
  job_id uuid not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (scope, source, dedupe_key)
);

-- Which job waits for which. A dependency is met when the job that is needed has succeeded, or has ended in
-- another way and on_failure is proceed. Only a job that is held as dependent has unmet ones, as many as `held`
-- says. All stay until the job that waits has succeeded or is deleted: if it is retried it may wait again, and the
-- results of the others are its inputs, so they are not pruned.
create table if not exists outlive.dependencies (
  needs uuid not null,
  job_id uuid not null,
  on_failure text collate "C" not null check (on_failure in ('block', 'proceed', 'cancel')),
  met boolean not null default false,
  primary key (needs, job_id)
) with (fillfactor = 50);
create index if not exists dependencies_by_job on outlive.dependencies (job_id, needs);

-- Left for later: jobs that may have ended while others were enqueued to wait for them, and jobs whose ends are
-- not followed up yet, because they concern many jobs or their transaction did not see all.
create table if not exists outlive.end_checks (
  id bigint generated always as identity primary key,
  needed uuid[] not null,
  dependents uuid[],  -- Those that were enqueued to wait; null: all that wait for them.
  past uuid not null default '00000000-0000-0000-0000-000000000000'
    -- Of those that wait for the first one, all up to this one are dealt with.
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);

-- The jobs that may not start after some time, and those that must have ended by then. No row outlives its job.
create table if not exists outlive.expiring (
  job_id uuid not null,
  whole boolean not null,  -- Whether it is the deadline of the whole job, and not of its start.
  expires_at timestamptz not null,
  primary key (job_id, whole)
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);
create index if not exists expiring_by_time on outlive.expiring (expires_at);

-- How far each job is.
create table if not exists outlive.progress (
  job_id uuid primary key,
  attempt int not null,
  current double precision,
  total double precision,
  message text,
  updated_at timestamptz not null
) with (fillfactor = 70);

-- The steps that jobs have taken, each once: a later attempt gets the value, and does not take the step again.
-- Attempts append rows, and replace the value of one, the step `checkpoint`. Only operators drop or replace others
-- (functions/steps.sql); the rest go with their job.
create table if not exists outlive.steps (
  job_id uuid not null,
  name text collate "C" not null,
  value json,  -- What the step returned; null for nothing.
  arguments text collate "C",  -- What it was called with; of long arguments the beginning and a hash.
  attempt int not null,
  took_s double precision,
  at timestamptz not null,
  supplied_by text,  -- Who has given the value in place of what the step returns; null: the step returned it.
  primary key (job_id, name)
);

-- The signals that were sent to jobs, until these receive them.
create table if not exists outlive.signals (
  number bigint generated always as identity primary key,
  job_id uuid not null,
  name text collate "C" not null,
  value json not null,
  at timestamptz not null
);
create index if not exists signals_by_job on outlive.signals (job_id, name, number);

-- A schedule is what its app declares, and what operators have changed of that: a column that differs from
-- `declared` keeps its value when a worker with a new declaration starts. A firing makes the job and moves next_at
-- in one transaction. Times that Python can't hold are refused, because workers read these rows.
create table if not exists outlive.schedules (
  name text collate "C" primary key check (name <> '' and octet_length(name) <= 200),
  task text collate "C" not null check (task <> '' and octet_length(task) <= 200),
  args json not null default '{}' check (
    json_typeof(args) in ('object', 'array') and octet_length(args::text) <= 65536 and args::jsonb is not null),
  queue text collate "C" check (queue <> '' and octet_length(queue) <= 200),  -- Null: that of its task.
  priority smallint check (priority between 0 and 9),
  cron text check (length(cron) <= 200),
  every_s double precision check (every_s between 1 and 1e9),
  timezone text not null default 'UTC' check (octet_length(timezone) <= 200),
  missed text collate "C" not null default 'once' check (missed in ('skip', 'once', 'all')),
  overlap text collate "C" not null default 'queue' check (overlap in ('skip', 'queue', 'cancel')),
  jitter_s double precision not null default 0 check (jitter_s between 0 and 86400),
  starts_at timestamptz check (starts_at between '2000-01-01Z' and '9000-01-01Z'),
  ends_at timestamptz check (ends_at between '2000-01-01Z' and '9000-01-01Z'),
  paused_at timestamptz check (paused_at between '2000-01-01Z' and '9000-01-01Z'),
  declared json,  -- The app's last declaration, by column; null: an operator has made this schedule.
  declared_by text collate "C",  -- As workers.app.
  withdrawn_at timestamptz,  -- Since when workers of its app run, and none of them declares it: it does not fire.
  next_at timestamptz check (next_at = 'infinity' or next_at between '2000-01-01Z' and '9000-01-01Z'),
    -- Null: to be computed. Infinity: it fires no more.
  last_tick timestamptz check (last_tick between '2000-01-01Z' and '9000-01-01Z'),
  last_job uuid,
  trouble text,  -- Why it can't fire; null if it can.
  created_at timestamptz not null default outlive.now()
    check (created_at between '2000-01-01Z' and '9000-01-01Z'),
  changed_at timestamptz not null default outlive.now()
    check (changed_at between '2000-01-01Z' and '9000-01-01Z'),
  constraint schedules_cron_or_every check ((cron is null) <> (every_s is null))
);
create index if not exists schedules_by_next on outlive.schedules (next_at);

-- A batch counts how its jobs have ended. Its row is small, because every end of its jobs writes it again.
create table if not exists outlive.batches (
  id uuid primary key,
  name text collate "C" not null check (name <> '' and octet_length(name) <= 200),
  created_at timestamptz not null,
  closed_at timestamptz,
  cancelled_at timestamptz,
  done_at timestamptz,  -- Null while a job is not finished, also one that an operator has retried.
  jobs bigint not null default 0,  -- While the batch is open: only those that were pruned.
  succeeded bigint not null default 0,
  failed bigint not null default 0,
  cancelled bigint not null default 0,
  quarantined bigint not null default 0,
  opened_by xid8 not null default pg_current_xact_id()  -- The transaction that has opened it.
) with (fillfactor = 50);
create index if not exists batches_by_done on outlive.batches (done_at);
create index if not exists jobs_by_batch on outlive.jobs (batch, id) where batch is not null;

-- The jobs that are enqueued when a batch is done.
create table if not exists outlive.callbacks (
  batch uuid not null,
  event text collate "C" not null check (event in ('success', 'failure', 'done')),
  job uuid not null,
  request json not null,
  called_at timestamptz,
  primary key (batch, event),
  constraint callbacks_job_key unique (job)
);

-- What operators have done.
create table if not exists outlive.audit (
  id uuid primary key,
  at timestamptz not null,
  who text not null,
  action text collate "C" not null,
  what jsonb not null,  -- The ids of jobs, a filter, or the name of what was changed.
  jobs bigint not null  -- How many jobs were changed.
);
create index if not exists audit_by_time on outlive.audit (at);

-- People who may log in to the dashboard with a token of their own. Only the SHA-256 of a token is stored.
create table if not exists outlive.dashboard_tokens (
  id uuid primary key default gen_random_uuid(),
  name text collate "C" not null check (name <> '' and octet_length(name) <= 200),
  role text collate "C" not null check (role in ('viewer', 'operator')),
  hash bytea not null,
  created_at timestamptz not null default outlive.now(),
  constraint dashboard_tokens_name_key unique (name),
  constraint dashboard_tokens_hash_key unique (hash)
);

-- Every migration makes the views again, because their columns may have changed.
do $$
declare
  name text;
begin
  for name in select viewname from pg_views where schemaname = 'outlive' loop
    execute format('drop view if exists outlive.%I cascade', name);
  end loop;
end $$;

-- The verdict: what becomes of a job whose attempt has ended. Nothing here writes: outlive.settle (completion.sql)
-- writes what the verdict says.

create or replace function outlive.fingerprint(task_name text, args json) returns text language sql stable
-- The same for the same task with the same arguments, however their JSON is written. It is stored with the
-- jobs of a batch whose task counts kills by fingerprint; for other jobs it is computed when it is needed.
return left(encode(sha256(convert_to(task_name || ' ' || args::jsonb::text, 'UTF8')), 'hex'), 16);

create or replace function outlive.policy_of(job uuid, task_name text)
returns table (
  max_attempts int, max_crashes int, max_losses int, on_worker_death text, backoff_s double precision[],
  kills bigint)
language sql stable
begin atomic
  -- The job's own options come first, then what a worker registered for its task, then the defaults.
  -- An explicit null of max_losses means no limit.
  select
    coalesce((j.options ->> 'max_attempts')::int, t.max_attempts, 5),
    coalesce((j.options ->> 'max_crashes')::int, t.max_crashes, 3),
    case
      when j.options ? 'max_losses' then (j.options ->> 'max_losses')::int
      when t.name is not null then t.max_losses
      else 3 end,
    coalesce(j.options ->> 'on_worker_death', t.on_worker_death, 'retry'),
    coalesce(t.backoff_s, '{60,120,240,480,960,1920,3840,7680,15360,30720,61440,86400}'),
    -- How often other jobs with the same task and arguments have killed, if the task counts that.
    case when t.quarantine_by = 'fingerprint' then (
      select count(*) from outlive.crashes c
      where c.task = j.task and c.job_id <> j.id
        and c.fingerprint = coalesce(j.fingerprint, outlive.fingerprint(j.task, j.args))) else 0 end
  from outlive.jobs j left join outlive.tasks t on t.name = task_name
  where j.id = job;
end;

create or replace function outlive.times(n bigint) returns text language sql immutable
-- How often, in words.
return case n when 1 then 'once' else format('%s times', n) end;

create or replace function outlive.killed_in(job uuid, crashes int) returns text language sql stable as $$
-- The step in which each of its last crashes happened, as their errors name it; null: they differ, or name none.
select min(c.step) from (
  select substring(a.error from '^[^:]*? in the step (.+?)(: |$)') as step from outlive.attempts a
  where a.job_id = job and a.outcome in ('crashed', 'out_of_memory')
  order by a.attempt desc limit killed_in.crashes) c
having count(c.step) = killed_in.crashes and min(c.step) = max(c.step);
$$;

create or replace function outlive.charge(job uuid, crashes int, kills bigint, max_crashes int) returns text
language sql stable
-- Why a job is quarantined for its crashes, in words. Its last attempt must be written before.
return format('killed its process %s%s%s (max_crashes = %s)', outlive.times(crashes),
  ' in the step ' || outlive.killed_in(job, crashes),
  case when kills > 0 then format(', and %s with the same arguments as other jobs', outlive.times(kills))
    else '' end,
  max_crashes);

create or replace function outlive.share_of(task_name text) returns int language sql stable
-- How many jobs of a task run at once in one process.
return coalesce((select t.share from outlive.tasks t where t.name = task_name), 1);

create or replace function outlive.suspicion(losses int, max_losses int, share int) returns text
language sql immutable
-- Why a job is a suspect, in words.
return format('%s workers vanished while running it: it runs alone%s next (max_losses = %s)', losses,
  case when share > 1 then ', or beside other suspects,' else '' end, max_losses);

create or replace function outlive.alone_s(job uuid) returns double precision language sql stable
-- How long a suspect has its worker to itself: twice as long as its longest lost attempt, because a job that kills
-- has killed by then. At least 5 and at most 60 seconds, because the worker's other jobs wait meanwhile.
return greatest(5, least(60, (
  select 2 * extract(epoch from max(a.ended_at - a.started_at)) from outlive.attempts a
  where a.job_id = job and a.outcome = 'lost')));

create or replace function outlive.charged(had outlive.running) returns boolean language sql stable
-- Whether the loss of this attempt counts. It does not if the job's code had not begun. It does not if the worker
-- was told to stop either: the worker was killed before it could give the job back.
return had.begun and not exists (
  select from outlive.workers w where w.id = had.worker and w.stop_requested_at is not null);

create or replace function outlive.lost_so_far(job uuid, times int, had outlive.running default null)
returns table (alone bigint, elsewhere bigint) language sql stable as $$
-- Of a job that was lost so many times before, and now in the attempt `had`: how many of these losses had nothing
-- beside it; and how many other workers have died since the first of them began, without the job and not told to
-- stop.
with counted as (
  select a.loss, a.started_at from outlive.attempts a
  where a.job_id = job and a.outcome = 'lost' and a.loss is distinct from 'taken back'
  order by a.attempt desc limit times),
summed as (
  select count(*) filter (where c.loss = 'alone') as alone, min(c.started_at) as first from counted c)
select s.alone + coalesce(had.alone, false)::int, (
  select count(*) from outlive.workers k
  where k.state = 'dead' and k.died_at >= least(s.first, had.started_at) and k.stop_requested_at is null
    and k.id is distinct from had.worker
    and not exists (
      select from outlive.attempts a where a.job_id = job and a.worker = k.id and a.outcome = 'lost'))
from summed s;
$$;

create or replace function outlive.excused(elsewhere bigint, max_losses int, share int) returns int
language sql immutable
-- How many losses of a job need no other explanation than that workers died without it too. A job that shares its
-- process has run beside so many suspects that this counts for it. All others run alone, and that says more.
return case when share > 1 then least(elsewhere, 2 * max_losses) else 0 end;

create or replace function outlive.crowd(suspect outlive.held) returns int language sql stable as $$
-- How many suspects of its task a worker may run at once, with nothing else beside them. One, unless they share
-- a process: one whose process has died gets its own. As many as that holds while all losses but `max_losses` - 2
-- are excused. With each further loss fewer by the same factor, so that they are cleared in a few rounds; and one
-- before the two losses that may convict it.
select case when n.share = 1 or suspect.crashes > 0 then 1 else (
  select ceil(n.share ^ least(1,
    (2 * p.max_losses - 2 - suspect.losses + outlive.excused(l.elsewhere, p.max_losses, n.share))
    / p.max_losses::double precision))::int
  from outlive.policy_of(suspect.id, suspect.task) p, outlive.lost_so_far(suspect.id, suspect.losses) l) end
from outlive.share_of(suspect.task) n(share);
$$;

create or replace function outlive.loss_charge(losses int, alone bigint, elsewhere bigint, max_losses int)
returns text language sql immutable
-- Why a job is quarantined for its losses, in words: what is known, and whether that is proof or a guess.
return format('%s%s; %s%s (max_losses = %s)',
  case losses when 1 then 'a worker vanished while running it'
    else format('%s workers vanished while running it', losses) end,
  case alone when 0 then '' when 1 then ', once with nothing beside it'
    when 2 then ', twice with nothing beside it'
    else format(', %s times with nothing beside it', alone) end,
  case elsewhere when 0 then 'no other worker vanished meanwhile' when 1 then 'one other vanished without it'
    else format('%s others vanished without it', elsewhere) end,
  case when alone >= 2 and alone > 2 * elsewhere then ': proven' else ': a guess' end,
  max_losses);

create or replace function outlive.verdict(
  had outlive.running, outcome text, killed boolean, final boolean, after_s double precision,
  jitter double precision)
returns table (
  state text, why text, details text, ready_at timestamptz, failures smallint, crashes smallint, losses smallint)
language plpgsql stable as $$
-- What becomes of a job whose attempt `had` ended with `outcome`. `why` is set if the job goes to `held`, and
-- `details` too, unless it is for its crashes (outlive.charge).
-- `killed` tells a kill for memory (a crash) from a MemoryError (a failure). `final` forbids a retry.
-- `after_s` replaces the backoff (30 years at most). `jitter` is between 0 and 1.
-- Not in SQL: Postgres would plan the function again for each end, which takes twenty times as long as to run it.
declare
  policy record;
  kind text := case
    when outcome in ('failed', 'timed_out') or (outcome = 'out_of_memory' and not killed) then 'failure'
    when outcome in ('crashed', 'out_of_memory') then 'crash'
    when outcome = 'lost' then 'loss'
    when outcome in ('succeeded', 'released', 'cancelled') then 'none' end;
  f int := had.failures + (kind = 'failure')::int;
  c int := had.crashes + (kind = 'crash')::int;
  l int;
  alone bigint;
  elsewhere bigint;
  excused int := 0;
  convicted boolean := false;
  fate text;
begin
  if kind is null then  -- It must not be retried for free, and so forever.
    raise exception 'there is no verdict for the outcome %', outcome;
  end if;
  select * into policy from outlive.policy_of(had.id, had.task);
  if not found then
    return;
  end if;
  l := case
    when kind = 'loss' then had.losses + 1
    -- A suspect that ended by itself is cleared.
    when kind <> 'none' and (had.alone or had.losses >= policy.max_losses - 1) then 0
    else had.losses end;
  if kind = 'loss' and l >= policy.max_losses then
    -- A worker that dies with one job in it looks the same whether the job or a stranger has killed it. So one
    -- loss alone proves nothing. Two do, unless other workers die as well: then a job must have been alone more
    -- than twice as often as that. A loss beside other jobs proves even less, but a job that kills only in company
    -- is caught at twice its limit while no other worker dies, and every job at four times its limit.
    select s.* into alone, elsewhere from outlive.lost_so_far(had.id, had.losses, had) s;
    excused := outlive.excused(elsewhere, policy.max_losses, outlive.share_of(had.task));
    convicted := had.losses = 0
      or alone >= 2 and alone > 2 * elsewhere
      or l >= 2 * policy.max_losses and elsewhere = 0
      or l - excused >= 4 * policy.max_losses;
  end if;
  fate := case
    when outcome in ('succeeded', 'cancelled') then outcome
    when had.cancel_requested then 'cancelled'
    when kind = 'failure' and (final or f >= policy.max_attempts) then 'failed'
    when kind = 'crash' and c + policy.kills >= policy.max_crashes then 'quarantined'
    when kind = 'loss' and policy.on_worker_death = 'fail' then 'failed'
    when convicted then 'quarantined'
    when kind in ('loss', 'none') and l > 0 and l >= policy.max_losses - 1 then 'suspect'
    else 'again' end;
  state := case
    when fate = 'suspect' then 'pending'
    when fate <> 'again' then fate
    when f + c > 0 then 'retryable'
    else 'pending' end;
  if fate in ('quarantined', 'suspect') then
    why := fate;
    details := case
      when fate = 'suspect' then outlive.suspicion(l, policy.max_losses, outlive.share_of(had.task))
      when kind = 'loss' then outlive.loss_charge(l, alone, elsewhere, policy.max_losses) end;
  end if;
  ready_at := case
    -- A suspect that goes on losing workers waits for longer and longer, so that what else kills them may pass.
    when kind = 'loss' and fate = 'suspect' and l - excused > policy.max_losses
      then outlive.now() + interval '15 seconds' * 2 ^ least(l - excused - policy.max_losses - 1, 8)
    when kind = 'loss' or (kind = 'none' and after_s is null) then had.ready_at
    else outlive.now() + interval '1 second' * least(1e9, coalesce(after_s,
      policy.backoff_s[least(greatest(f + c, 1), cardinality(policy.backoff_s))] * (0.5 + jitter / 2))) end;
  -- A counter without a limit stops at the end of its range, so that no job can stop the reaper.
  failures := least(f, 32767);
  crashes := least(c, 32767);
  losses := least(l, 32767);
  return next;
end $$;

-- Results: the clients that wait for them, and how long they are kept.

create or replace function outlive.tell_waiters(ids uuid[], states text[]) returns void language plpgsql as $$
-- Notify the clients that wait for one of these jobs, which have just reached these states. The caller has found
-- that some of them are awaited: most jobs are not, and a commit with a notification waits for others of its kind.
-- A row that is locked is being written again by a client, which looks at its job afterwards.
declare
  ended uuid[];
begin
  with told as (
    delete from outlive.awaited a where a.job_id = any(array(
      select w.job_id from outlive.awaited w join unnest(ids, states) e(id, state) on e.id = w.job_id
      where e.state not in ('pending', 'retryable') for update of w skip locked))
    returning a.job_id)
  select array_agg(t.job_id) into ended from told t;
  -- A notification holds 8,000 bytes.
  perform pg_notify('outlive_ended', array_to_string(ended[n : n + 199], ','))
  from generate_series(1, cardinality(ended), 200) n;
end $$;

create or replace function outlive.expiry(task_name text) returns timestamptz language sql stable
-- When a job of this task that succeeds or is cancelled now may be pruned. Null: the task does not say.
return (
  select outlive.now() + t.keep_finished_s * interval '1 second' from outlive.tasks t where t.name = task_name);

-- What follows from the end of a job.

create or replace function outlive.follow_up(
  ids uuid[], states text[], at_once boolean default false, among uuid[] default null) returns int
language plpgsql set enable_seqscan = off as $$
-- These jobs have just reached these states. Some go on by themselves (pending, retryable). `at_once`: the next
-- jobs of their concurrency keys are admitted here, because this transaction commits soon. To enter a function
-- with settings takes microseconds, so here and below the rare ones are entered only if there is something to do.
-- Volatile, so that it sees what was committed since the snapshot of its caller. With `among`, of the jobs that
-- wait for these only some are released or cancelled. Returns how many other jobs it has changed.
declare
  changed int := 0;
begin
  -- First, because it adds the jobs that it cancels.
  if exists (select from outlive.dependencies d where d.needs = any(ids))
     or exists (select from outlive.dependencies d where d.job_id = any(ids)) then
    select r.* into ids, states, changed from outlive.release_dependents(ids, states, among) r;
  end if;
  perform outlive.follow_through(ids, states, at_once => at_once);
  return changed;
end $$;

create or replace function outlive.follow_through(
  ids uuid[], states text[], joined uuid[] default '{}', at_once boolean default false)
returns void language plpgsql set enable_seqscan = off as $$
-- `joined` are the batches of jobs that were just made, once for each job.
begin
  if not outlive.sees_all() then
    insert into outlive.end_checks (needed)
    select array_agg(e.id) from unnest(ids, states) e(id, state)
    where e.state in ('succeeded', 'failed', 'cancelled', 'quarantined') having count(*) > 0;
  end if;
  if joined <> '{}' or exists (select from outlive.batches b where b.done_at is null) then
    perform outlive.count_in_batches(ids, states, joined);
  end if;
  if exists (select from outlive.keyed_jobs k where k.job_id = any(ids)) then
    perform outlive.follow_keys(ids, states, coalesce(at_once, false));
  end if;
  if states && '{failed,quarantined}' then
    perform outlive.call_on_failed(array(
      select e.id from unnest(ids, states) e(id, state) where e.state in ('failed', 'quarantined')));
  end if;
  if exists (select from outlive.awaited a where a.job_id = any(ids)) then
    perform outlive.tell_waiters(ids, states);
  end if;
  if exists (select from outlive.expiring e where e.job_id = any(ids)) then
    delete from outlive.expiring e where (e.job_id, e.whole) in (
      select l.job_id, l.whole from unnest(ids, states) d(id, state) join outlive.expiring l on l.job_id = d.id
      where d.state in ('succeeded', 'failed', 'cancelled') for update of l skip locked);
  end if;
end $$;

create or replace function outlive.call_on_failed(ids uuid[]) returns void language plpgsql as $$
-- These jobs have just failed or were quarantined: enqueue the job that each of them, or else its app, names for
-- that, with the array of its own id and error. The new job has the id of the old one with other last bytes. So it
-- is made once, also if the old one is retried and fails again. The first of these bytes is 16 higher, so that the
-- ids differ also as pages and logs shorten them. An app's own callback calls itself for no failure. The new job
-- carries the baggage of the old one. `once_for` is
-- taken in place of the old one's id: of all jobs that have the same there, the first to fail makes the new one.
declare
  due json;
begin
  select json_agg(c.job) into due from (
    select distinct on (i.id) f.job || jsonb_build_object('id', i.id, 'args', jsonb_build_array(j.id, coalesce(
        (select h.details from outlive.held h where h.id = j.id),
        (select coalesce(a.error, a.outcome) from outlive.attempts a where a.job_id = j.id
         order by a.attempt desc limit 1)))) || case when j.options ? 'baggage' then jsonb_build_object(
        'options', coalesce(f.job -> 'options', '{}') || jsonb_build_object('baggage', j.options -> 'baggage'))
        else '{}' end as job
    from outlive.jobs j
      left join outlive.tasks t on t.name = j.task and t.on_failed ->> 'task' <> j.task
      cross join lateral (select coalesce(j.on_failed, t.on_failed)) f(job)
      cross join lateral (select uuid_send(coalesce((f.job ->> 'once_for')::uuid, j.id))) b(id)
      cross join lateral (select encode(
        overlay(set_byte(b.id, 9, (get_byte(b.id, 9) + 16) % 256) placing substring(sha256(b.id) for 6) from 11),
        'hex')::uuid) i(id)
    where j.id = any(ids) and f.job is not null
    order by i.id, j.id) c;
  if due is not null then
    perform outlive.spawn(due);
  end if;
end $$;

create or replace function outlive.try_callbacks(callbacks jsonb[]) returns void language plpgsql as $$
-- No end of a job may fail because of a callback, so each is enqueued here on trial, before it is needed.
begin
  perform outlive.spawn(to_json(callbacks));
  raise exception using errcode = 'OL005';
exception when sqlstate 'OL005' then
end $$;

create or replace function outlive.sees_all() returns boolean language sql stable
-- Whether each statement of this transaction sees what others have committed before it.
return current_setting('transaction_isolation') not in ('repeatable read', 'serializable');

-- Batches: jobs that are counted together, and the jobs that are enqueued when all of them have ended.
--
-- While a batch is open, a transaction that adds jobs shares the row of the batch (for key share). It waits for
-- no other that adds jobs, and for no end. close_batch waits for all of these transactions (for update), and then
-- counts the jobs. From then on jobs that are added are counted under the lock of the row. Every end is counted
-- under that lock, so exactly one of them is the last.

create or replace function outlive.open_batch(
  name text, on_success json default null, on_failure json default null, on_done json default null,
  id uuid default null)
returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Make a batch, and return its id. Repeating it with the same id changes nothing. A callback is a job as an
-- object: task, args, queue, source, priority, delay_s, run_at, options, id. OL003: it could not be enqueued.
declare
  mine uuid := coalesce(id, outlive.uuid7());
  callback record;
  job uuid;
begin
  insert into outlive.batches (id, name, created_at) values (mine, name, outlive.now()) on conflict do nothing;
  if not found then
    return mine;
  end if;
  for callback in
    select c.event, c.request
    from unnest('{success,failure,done}'::text[], array[on_success, on_failure, on_done]) c(event, request)
    where c.request is not null
  loop
    perform outlive.refuse_unless(
      callback.request ->> 'task' is not null and callback.request ->> 'dedupe_key' is null
        and callback.request ->> 'links' is null,
      format('on_%s must be an object with a task, and can have neither a dedupe key nor a batch, a concurrency '
        'key or jobs to wait for', callback.event));
    job := coalesce((callback.request ->> 'id')::uuid, outlive.uuid7());
    insert into outlive.callbacks (batch, event, job, request) values (
      mine, callback.event, job, case when callback.request ->> 'id' is not null then callback.request
        else (callback.request::jsonb || jsonb_build_object('id', job))::json end)
    on conflict do nothing;
    perform outlive.refuse_unless(found, format(
      'job %s is a callback already: make another one for on_%s, because a job is enqueued once', job,
      callback.event));
  end loop;
  perform outlive.try_callbacks(array(select c.request::jsonb from outlive.callbacks c where c.batch = mine));
  return mine;
end $$;

create or replace function outlive.add_to_batch(batch uuid, made bigint) returns void language plpgsql as $$
-- Count `made` new jobs of a batch. OL003: there is no such batch, or it takes no more jobs.
declare
  b outlive.batches;
begin
  select t.* into b from outlive.batches t where t.id = add_to_batch.batch for key share;
  perform outlive.refuse_unless(found, format(
    'there is no batch %s: open it with app.batch(…) or outlive.open_batch(…), and commit that first', batch));
  if b.closed_at is not null then
    update outlive.batches t set jobs = t.jobs + made
    where t.id = add_to_batch.batch and t.done_at is null and t.cancelled_at is null;
    perform outlive.refuse_unless(found, format(
      'batch %s takes no more jobs, because it is done or was cancelled: open a new one', batch));
  end if;
end $$;

create or replace function outlive.is_done(b outlive.batches) returns boolean language sql immutable
-- Whether all jobs of a closed batch have ended.
return b.closed_at is not null and b.succeeded + b.failed + b.cancelled + b.quarantined = b.jobs;

create or replace function outlive.call_back(b outlive.batches) returns void language plpgsql as $$
-- The batch is done: enqueue the callbacks that apply, each once ever. The caller has locked its row.
declare
  due json;
begin
  update outlive.batches t set done_at = outlive.now() where t.id = b.id;
  with called as (
    update outlive.callbacks c set called_at = outlive.now()
    where c.batch = b.id and c.called_at is null
      and c.event in ('done', case when b.succeeded = b.jobs then 'success' else 'failure' end)
    returning c.request)
  select json_agg(c.request) into due from called c;
  if due is not null then
    perform outlive.spawn(due);
  end if;
end $$;

create or replace function outlive.close_batch(id uuid, cancelling boolean default false) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Only jobs of the batch may add to it from now on, or none, if it is to be cancelled. Repeating it changes
-- nothing. A transaction that does not see all would not count the jobs that others have added, unless it has
-- opened the batch itself. OL003: there is no such batch.
declare
  b outlive.batches;
begin
  select t.* into b from outlive.batches t where t.id = close_batch.id for update;
  perform outlive.refuse_unless(found, format('there is no batch %s', id));
  if cancelling and b.cancelled_at is null and b.done_at is null then
    update outlive.batches t set cancelled_at = outlive.now() where t.id = b.id;
  end if;
  if b.closed_at is not null then
    return;
  end if;
  perform outlive.refuse_unless(b.opened_by = pg_current_xact_id() or outlive.sees_all(),
    format('batch %s can be closed only in a transaction with the isolation level READ COMMITTED', id));
  update outlive.batches t set
    closed_at = outlive.now(),
    jobs = t.jobs + (select count(*) from outlive.jobs j where j.batch = b.id)
  where t.id = b.id returning t.* into b;
  if outlive.is_done(b) then
    perform outlive.call_back(b);
  end if;
end $$;

create or replace function outlive.cancel_batch(id uuid, past uuid default null, most int default null)
returns uuid language plpgsql as $$
-- Cancel the unfinished among the jobs of a batch, or among the first `most` whose ids follow `past`. Returns the
-- last id of these; null: none follow. Call outlive.close_batch(id, cancelling => true) first, in a transaction of
-- its own: then no job is added after that.
declare
  piece uuid[];
begin
  piece := array(
    select j.id from outlive.jobs j
    where j.batch = cancel_batch.id and j.id > coalesce(past, '00000000-0000-0000-0000-000000000000')
    order by j.id limit most);
  perform outlive.cancel(array(
    select p.id from unnest(piece) p(id)
    where exists (select from outlive.waiting w where w.id = p.id)
      or exists (select from outlive.running r where r.id = p.id)
      or exists (select from outlive.held h where h.id = p.id)));
  return piece[cardinality(piece)];
end $$;

create or replace function outlive.batches_of(ids uuid[]) returns uuid[] language plpgsql stable
set enable_seqscan = off as $$
-- The batch of each of these jobs, or null. Each is looked up by its id: a join could go through the jobs of all
-- batches, which seem to be few until the table is analysed.
begin
  return array(
    select (select j.batch from outlive.jobs j where j.id = i.id)
    from unnest(ids) with ordinality i(id, at) order by i.at);
end $$;

create or replace function outlive.sizes_in_batches(ids uuid[]) returns table (id uuid, jobs bigint)
language sql stable as $$
-- How many of these jobs are in each batch, in the order in which batches are locked.
select b.id, count(*) from unnest(outlive.batches_of(ids)) b(id) where b.id is not null group by b.id order by b.id
$$;

create or replace function outlive.count_in_batches(ids uuid[], states text[], joined uuid[] default '{}')
returns void language plpgsql as $$
-- These jobs have just reached these states, and for each of `joined` a job was just made. The batches are locked
-- in the order of their ids. A new job is counted first: it may have replaced the last one of its batch. A job
-- that is not finished is in a batch that is not done, so ends in a database without such a batch cost one look at
-- an index.
declare
  n record;
  b outlive.batches;
begin
  if joined = '{}' and not exists (select from outlive.batches t where t.done_at is null) then
    return;
  end if;
  for n in
    select
      e.batch,
      count(*) filter (where e.state = 'made') as made,
      count(*) filter (where e.state = 'succeeded') as succeeded,
      count(*) filter (where e.state = 'failed') as failed,
      count(*) filter (where e.state = 'cancelled') as cancelled,
      count(*) filter (where e.state = 'quarantined') as quarantined
    from (
      select * from unnest(outlive.batches_of(ids), states)
      union all
      select j.batch, 'made' from unnest(joined) j(batch)) e(batch, state)
    where e.batch is not null and e.state in ('made', 'succeeded', 'failed', 'cancelled', 'quarantined')
    group by e.batch order by e.batch
  loop
    if n.made > 0 then
      perform outlive.add_to_batch(n.batch, n.made);
    end if;
    continue when n.succeeded + n.failed + n.cancelled + n.quarantined = 0;
    update outlive.batches t set
      succeeded = t.succeeded + n.succeeded,
      failed = t.failed + n.failed,
      cancelled = t.cancelled + n.cancelled,
      quarantined = t.quarantined + n.quarantined
    where t.id = n.batch returning t.* into b;
    if outlive.is_done(b) then
      perform outlive.call_back(b);
    end if;
  end loop;
end $$;

create or replace function outlive.uncount_in_batches(ids uuid[], state text) returns void language plpgsql as $$
-- An operator or a worker has just moved these jobs out of this state. Their batches are not done any more.
declare
  n record;
begin
  for n in select * from outlive.sizes_in_batches(ids) loop
    update outlive.batches t set
      failed = t.failed - n.jobs * (state = 'failed')::int,
      cancelled = t.cancelled - n.jobs * (state = 'cancelled')::int,
      quarantined = t.quarantined - n.jobs * (state = 'quarantined')::int,
      done_at = null
    where t.id = n.id;
  end loop;
end $$;

create or replace function outlive.forget_in_batches(ids uuid[]) returns void language plpgsql as $$
-- These jobs are pruned. An open batch counts its jobs when it is closed, and these would be missing.
declare
  n record;
begin
  for n in
    select j.batch, count(*) as jobs from outlive.jobs j where j.id = any(ids) group by j.batch order by j.batch
  loop
    update outlive.batches t set jobs = t.jobs + n.jobs where t.id = n.batch and t.closed_at is null;
  end loop;
end $$;

-- Limits by key: at most so many jobs with the same concurrency key run at a time, wherever they run.
-- outlive.check_links (dependencies.sql) refuses keys that make no sense.
--
-- A job that has a slot is admitted: it is in `waiting` or runs. All others are in `held`, where they slow
-- nothing. A job that is the only one of its key is admitted when it is enqueued, but is unsure: another may be
-- enqueued at the same time. The claim looks for that (outlive.keep_out), and knows nothing else of keys.
-- Only a job that can run at once is admitted. One that is due later, whose queue
-- is paused, or that is a suspect, for which a worker must be idle, waits as `later` and holds up no other.
-- (The functions don't ask for why = 'key': Postgres would read the index by why, and with it all jobs that
-- queue.)
--
-- A transaction that gives back a slot or queues a job leaves a row in `key_turns`, and notifies
-- worker/fleet/leftovers.py, which runs in watchers and in `outlive reap` and calls admit_due. That locks the
-- keys and then sees all that was committed before, so a free slot and a job that queues for it never miss each
-- other. Only the statements of workers lock keys: these commit at once. The transactions of clients and jobs may
-- stay open for long. A worker's statement that ends jobs admits the next ones itself, and leaves only the keys
-- that are locked. If no job queues for a key, it locks nothing.

create or replace function outlive.park_keyed(ids uuid[]) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- (none) -> pending: these jobs were just made and have no place yet. Those that have a key queue for a slot,
-- except those that wait for other jobs, which queue when they are released. If a key allows one job at a time and
-- this transaction sees no other job of it, the job is admitted here, unsure: keep_out decides.
begin
  with made as materialized (
    select j.id, j.queue, j.source, j.task, j.priority, j.ready_at, j.concurrency_key, j.concurrency
    from outlive.jobs j where j.id = any(ids) and j.concurrency_key is not null and j.after is null),
  first as materialized (
    select distinct on (m.concurrency_key) m.*
    from made m
    where m.concurrency = 1 and m.ready_at <= outlive.now()
      and not exists (select from outlive.keyed_jobs k where k.key = m.concurrency_key)
      and not exists (select from outlive.queues q where q.name = m.queue and q.paused_at is not null)
    order by m.concurrency_key, m.priority, m.ready_at, m.id),
  admitted as (
    insert into outlive.keyed_jobs
    select f.id, f.concurrency_key, 1, 'admitted', f.priority, outlive.now() from first f),
  placed as (
    insert into outlive.waiting (queue, source, task, priority, ready_at, id, unsure)
    select f.queue, f.source, f.task, f.priority, f.ready_at, f.id, true from first f),
  parked as (
    insert into outlive.held
    select m.id, 'key', outlive.now(), null, m.queue, m.source, m.task, m.priority, m.ready_at, 0, 0, 0, 0
    from made m where m.id not in (select f.id from first f)
    returning held.id)
  select array_agg(p.id) into ids from parked p;
  if ids is not null then
    perform outlive.leave_turns(outlive.queue_keyed(ids));
  end if;
end $$;

create or replace function outlive.keep_out(unsure outlive.waiting[]) returns uuid[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- A claim has just taken these jobs from `waiting`. Those whose key another job may have queue for a slot and must
-- not begin: they are returned. A job that is the only one of its key, in any state, needs no lock: an open
-- transaction that gives the slot to another job has found a row of the key that is seen here too, of that job or
-- of the one before it. And a job that is enqueued later, unsure too, sees this one when it is claimed.
declare
  others uuid[] := array(
    select w.id from unnest(unsure) w join outlive.keyed_jobs k on k.job_id = w.id
    where exists (select from outlive.keyed_jobs o where o.key = k.key and o.job_id <> k.job_id));
  locked text[] := '{}';
begin
  if others = '{}' then
    return others;
  end if;
  if outlive.sees_all() then
    locked := outlive.lock_keys(array(select k.key from outlive.keyed_jobs k where k.job_id = any(others)));
  end if;
  others := array(
    select k.job_id from outlive.keyed_jobs k
    where k.job_id = any(others) and (k.key <> all(locked) or exists (
      select from outlive.keyed_jobs o
      where o.key = k.key and o.state = 'admitted' and o.job_id <> k.job_id)));
  insert into outlive.held
  select w.id, 'key', outlive.now(), null, w.queue, w.source, w.task, w.priority, w.ready_at, w.attempt,
    w.failures, w.crashes, w.losses
  from unnest(unsure) w where w.id = any(others);
  perform outlive.requeue_keyed(others, others);
  return others;
end $$;

create or replace function outlive.follow_keys(ids uuid[], states text[], at_once boolean) returns void
language plpgsql set enable_seqscan = off as $$
-- These jobs have just reached these states. Those that hold a slot give it back, also if they are to run again: a
-- job that waits for its next attempt is in the way of no other.
begin
  if exists (select from outlive.keyed_jobs k where k.job_id = any(ids)) then
    perform outlive.requeue_keyed(ids, array(
      select j.id from unnest(ids, states) j(id, state) where j.state in ('pending', 'retryable')), at_once);
  end if;
end $$;

create or replace function outlive.requeue_keyed(
  ids uuid[], going uuid[] default '{}', at_once boolean default false) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- These jobs were moved. Those that have a slot give it back. Those of `going` that have a key and are in
-- `waiting` or suspects queue for one. Every function that puts an old job into `waiting` calls this. `at_once`:
-- the jobs whose turn it is are admitted now.
declare
  keys text[];
begin
  with gone as (delete from outlive.keyed_jobs k where k.job_id = any(ids) returning k.key)
  select coalesce(array_agg(distinct g.key), '{}') into keys from gone g;
  if cardinality(going) > 0 then
    with moved as (
      delete from outlive.waiting w using outlive.jobs j
      where w.id = any(going) and j.id = w.id and j.concurrency_key is not null returning w.*)
    insert into outlive.held
    select m.id, 'key', outlive.now(), null, m.queue, m.source, m.task, m.priority, m.ready_at, m.attempt,
      m.failures, m.crashes, m.losses
    from moved m;
    keys := keys || outlive.queue_keyed(going);
  end if;
  if at_once and keys <> '{}' then
    keys := array(
      select k.key from unnest(keys) k(key)
      where not outlive.sees_all() or exists (
        select from outlive.keyed_jobs q where q.key = k.key and q.state = 'queued')
      group by k.key order by outlive.key_bucket(k.key));
    keys := outlive.admit(keys);
  end if;
  perform outlive.leave_turns(keys);
end $$;

create or replace function outlive.queue_keyed(ids uuid[]) returns text[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- Those of these jobs that are held, have a key and are to run queue for a slot of it, or wait until they may.
-- Returns the keys for which jobs queue now. Nothing else decides whether a job may have a slot.
declare
  keys text[];
begin
  with going as (
    select h.id, j.concurrency_key, j.concurrency, h.priority, case
        when h.why = 'suspect' or exists (
          select from outlive.queues q where q.name = h.queue and q.paused_at is not null) then 'infinity'
        else h.ready_at end as ready_at
    from outlive.held h join outlive.jobs j on j.id = h.id
    where h.id = any(ids) and h.why not in ('blocked', 'quarantined', 'dependent', 'suspended')
      and j.concurrency_key is not null),
  queued as (
    insert into outlive.keyed_jobs
    select g.id, g.concurrency_key, g.concurrency,
      case when g.ready_at <= outlive.now() then 'queued' else 'later' end, g.priority, g.ready_at
    from going g returning key, state)
  select coalesce(array_agg(distinct q.key), '{}') into keys from queued q where q.state = 'queued';
  return keys;
end $$;

create or replace function outlive.requeue_queue(name text) returns void language plpgsql as $$
-- A queue was paused: its jobs give back their slots, and queue no more. Or it was resumed: they queue again. Jobs
-- that are being claimed or moved just now are left alone: the reaper comes back to them.
declare
  paused boolean := exists (
    select from outlive.queues q where q.name = requeue_queue.name and q.paused_at is not null);
  mine uuid[];
begin
  mine := array(
    select w.id from outlive.keyed_jobs k join outlive.waiting w on w.id = k.job_id
    where paused and k.state = 'admitted' and w.queue = name for update of w skip locked);
  mine := mine || array(
    select h.id from outlive.keyed_jobs k join outlive.held h on h.id = k.job_id
    where case when paused then k.state = 'queued' else k.state = 'later' and k.ready_at = 'infinity' end
      and h.queue = name and h.why = 'key'
    for update of h skip locked);
  perform outlive.requeue_keyed(mine, mine);
end $$;

create or replace function outlive.pause_queue(name text) returns void language plpgsql as $$
-- The queue's jobs are not claimed any more, and hold no slot of a key. Running jobs go on.
begin
  insert into outlive.queues (name, paused_at) values (pause_queue.name, outlive.now())
  on conflict on constraint queues_pkey do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);
  perform outlive.requeue_queue(name);
end $$;

create or replace function outlive.resume_queue(name text) returns boolean language plpgsql as $$
-- The queue's jobs are claimed again. False: it was not paused.
begin
  update outlive.queues q set paused_at = null where q.name = resume_queue.name and q.paused_at is not null;
  if not found then
    return false;
  end if;
  perform outlive.requeue_queue(name), outlive.wake();
  return true;
end $$;

create or replace function outlive.leave_turns(keys text[], notify boolean default true) returns void
language plpgsql as $$
-- Leave these keys for later. Keys that share a lock are neighbours, so that a part of many keys locks few.
begin
  if keys = '{}' then
    return;
  end if;
  insert into outlive.key_turns (keys)
  select array_agg(k.key order by k.n)
  from (
    select d.key, row_number() over (order by outlive.key_bucket(d.key)) as n
    from (select distinct unnest(keys) as key) d) k
  group by (k.n - 1) / 500;
  if notify and exists (select from outlive.sleepers) then
    perform pg_notify('outlive', 'follow');
  end if;
end $$;

create or replace function outlive.key_bucket(key text) returns int language sql immutable
-- All keys share 256 locks, so that a transaction with many keys takes no more than a few.
return (hashtextextended(key, 0) & 255)::int;

create or replace function outlive.lock_keys(keys text[]) returns text[]
language plpgsql set enable_seqscan = off set lock_timeout = '100ms' as $$
-- Lock these keys until the transaction ends, and return those that it has locked. After it has waited in vain for
-- one, it waits for no other.
declare
  wanted int[] := array(select distinct outlive.key_bucket(k.key) from unnest(keys) k(key));
  locked int[];
  refused int[];
begin
  locked := array(
    select l.bucket from outlive.key_locks l where l.bucket = any(wanted)
    order by l.bucket for no key update skip locked);
  refused := array(select unnest(wanted) except select unnest(locked) order by 1);
  if refused <> '{}' then
    begin
      insert into outlive.key_locks select unnest(refused) on conflict do nothing;  -- They are made as needed.
      perform from outlive.key_locks l where l.bucket = refused[1] for no key update;
      locked := locked || refused[1] || array(
        select l.bucket from outlive.key_locks l where l.bucket = any(refused[2:])
        order by l.bucket for no key update skip locked);
    exception when lock_not_available or deadlock_detected then
      null;
    end;
  end if;
  return array(select k.key from unnest(keys) k(key) where outlive.key_bucket(k.key) = any(locked));
end $$;

create or replace function outlive.admit(keys text[]) returns text[]
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
-- Admit the jobs that queue for these keys, as far as slots are free: by priority, then by ready_at. The first job
-- of a key is admitted if fewer jobs are than its own limit says, and none is admitted before it. Jobs whose rows
-- are locked are skipped. Returns the keys that need another look: they or their jobs are locked, or they are too
-- many for one transaction, or another transaction is giving back a slot. That has set xmax of its row, and may
-- not have seen the jobs that queue. If xmax is set later, it has: it looks for them after that.
declare
  most_at_once constant int := 500;
  locked text[];
  free text[];
  admitted int;
  any_admitted boolean := false;
begin
  if not outlive.sees_all() then
    return keys;  -- It would not see who was admitted since it began.
  end if;
  locked := outlive.lock_keys(keys[:most_at_once]);
  free := locked;
  loop
    with fitting as materialized (
      select s.job_id
      from unnest(free) n(key), lateral (
          select q.most from outlive.keyed_jobs q where q.key = n.key and q.state = 'queued'
          order by q.priority, q.ready_at, q.job_id limit 1) first, lateral (
          select count(*) as jobs from outlive.keyed_jobs k
          where k.key = n.key and k.state = 'admitted') taken, lateral (
          select l.job_id, bool_and(taken.jobs + l.n <= l.most) over (order by l.n) as fits
          from (
            select r.job_id, r.most, row_number() over (order by r.priority, r.ready_at, r.job_id) as n
            from (
              select q.job_id, q.most, q.priority, q.ready_at
              from outlive.keyed_jobs q join outlive.held h on h.id = q.job_id
              where q.key = n.key and q.state = 'queued'
              order by q.priority, q.ready_at, q.job_id limit greatest(0, first.most - taken.jobs)
              for update of q, h skip locked) r) l) s
      where s.fits),
    freed as (
      delete from outlive.held h where h.id = any(array(select f.job_id from fitting f)) and h.why <> 'suspect'
      returning h.*),
    placed as (
      insert into outlive.waiting
      select f.queue, f.source, f.task, f.priority, f.ready_at, f.id, f.attempt, f.failures, f.crashes, f.losses
      from freed f)
    update outlive.keyed_jobs k set state = 'admitted', ready_at = outlive.now()
    where k.job_id = any(array(select f.job_id from fitting f));
    get diagnostics admitted = row_count;
    any_admitted := any_admitted or admitted > 0;
    free := array(
      select n.key from unnest(free) n(key), lateral (
        select q.most from outlive.keyed_jobs q where q.key = n.key and q.state = 'queued'
        order by q.priority, q.ready_at, q.job_id limit 1) first
      where first.most > (
        select count(*) from (
          select from outlive.keyed_jobs k
          where k.key = n.key and k.state = 'admitted' and (k.xmax = '0' or k.xmax = k.xmin)
          limit first.most) taken));
    exit when free = '{}' or admitted = 0;
  end loop;
  if any_admitted then
    perform outlive.wake();
  end if;
  return keys[most_at_once + 1:] || free || array(
    select unnest(keys[:most_at_once]) except select unnest(locked));
end $$;

create or replace function outlive.take_slots(jobs uuid[]) returns setof uuid language plpgsql as $$
-- A worker is ready to run these suspects: each gets a slot of its key, or queues for one. Then it is admitted in
-- its turn, and keeps the slot for six seconds, so that a worker can ask again. Returns those that have a slot or
-- need none.
declare
  keys text[];
begin
  update outlive.keyed_jobs k set state = 'queued', ready_at = (
    select h.ready_at from outlive.held h where h.id = k.job_id)
  where k.job_id = any(jobs) and k.state = 'later';
  keys := array(select distinct k.key from outlive.keyed_jobs k where k.job_id = any(jobs) and k.state = 'queued');
  if keys <> '{}' then
    perform outlive.leave_turns(outlive.admit(keys));
  end if;
  return query select j.id from unnest(jobs) j(id) where not exists (
    select from outlive.keyed_jobs k where k.job_id = j.id and k.state <> 'admitted');
end $$;

create or replace function outlive.admit_due(batch int) returns int
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
-- Take the turns of jobs whose time has come, and those that others have left; and take back the slots of suspects
-- that no worker has claimed. Returns how many jobs and keys that concerns. If it is less than `batch`, no more is
-- due. A job is locked in `held` too: a verb that moves it at the same time must find its row here.
declare
  idle uuid[];
  due uuid[];
  keys text[];
begin
  idle := array(select h.id from outlive.held h where h.why = 'suspect');
  if idle <> '{}' then
    idle := array(
      select k.job_id from outlive.keyed_jobs k
      where k.job_id = any(idle) and k.state = 'admitted'
        and k.ready_at <= outlive.now() - interval '6 seconds');
    idle := array(select h.id from outlive.held h where h.id = any(idle) for update skip locked);
    perform outlive.requeue_keyed(idle, idle);
  end if;
  with ready as (
    delete from outlive.keyed_jobs k where k.job_id = any(array(
      select l.job_id from outlive.keyed_jobs l join outlive.held h on h.id = l.job_id
      where l.state = 'later' and l.ready_at <= outlive.now()
      order by l.ready_at limit batch for update of l, h skip locked))
    returning k.job_id)
  select array_agg(r.job_id) into due from ready r;
  with left_over as (
    delete from outlive.key_turns t where t.id = any(array(
      select l.id from (
        select r.id, sum(r.keys) over (order by r.id) - r.keys as before from (
          select t.id, cardinality(t.keys) as keys from outlive.key_turns t
          order by t.id limit batch for update skip locked) r) l
      where l.before < batch))
    returning t.keys)
  select coalesce(array_agg(k.key), '{}') into keys from left_over l, unnest(l.keys) k(key);
  batch := cardinality(keys) + coalesce(cardinality(due), 0);
  if batch > 0 then
    keys := keys || outlive.queue_keyed(due);
    -- What is locked now is looked at again in a second, without a notification.
    perform outlive.leave_turns(outlive.admit(array(
      select k.key from unnest(keys) k(key) group by k.key order by outlive.key_bucket(k.key))), notify => false);
  end if;
  return batch;
end $$;

-- Completion: how the end of an attempt is written.
--
-- The fence: the right to end an attempt is its row in `running`. The caller deletes that row by token and worker;
-- a caller that deletes nothing has lost the attempt and writes nothing. The lease is not asked for here: expire
-- (statements/attempts.sql) ends those that have run out.
-- SQLSTATE OL002: the attempt belongs to this worker or job no longer.

create or replace function outlive.end_attempts(
  by_worker uuid, tokens bigint[], outcomes text[] default null, errors text[] default null,
  exit_codes int[] default null, signals text[] default null, peaks_bytes bigint[] default null,
  cpus_s double precision[] default null, outputs text[] default null, stacks text[] default null,
  results json[] default null, kills boolean[] default null, finals boolean[] default null,
  afters_s double precision[] default null, memories json[] default null, at_once boolean default false,
  tooks_s double precision[] default null)
returns bigint[] language plpgsql as $$
-- running -> succeeded, failed, retryable, pending, quarantined, cancelled, for each of these attempts that is
-- this worker's. Returns the tokens of the others: the worker has lost them, and nothing about them is written.
-- Tokens are sorted, and `n` is an attempt's place in all arrays. An outcome that is null is a success. Successes
-- are written together, all other ends by outlive.settle. `at_once`: as in outlive.follow_up.
-- `tooks_s`: how long each ran, because it may have waited behind others in its worker since the claim.
declare
  me outlive.workers;
  some_expire boolean := exists (select from outlive.tasks t where t.keep_finished_s is not null);
  succeeded uuid[];
  others uuid[];
  states text[];
  lost bigint[];
begin
  if tokens = '{}' then
    return tokens;
  end if;
  select k.* into me from outlive.workers k where k.id = by_worker;
  with ended as (
    delete from outlive.running r where r.token = any(tokens) and r.worker = by_worker
    returning r as had, r.*, width_bucket(r.token, tokens) as n),
  written as (
    insert into outlive.attempts (
      job_id, attempt, token, worker, outcome, state, peak_memory_bytes, cpu_s, output, result, started_at,
      ended_at, failures, crashes, losses, worker_name, hostname, memory, expires_at, queue, source, task)
    select
      e.id, e.attempt, e.token, by_worker, 'succeeded', 'succeeded', peaks_bytes[e.n], cpus_s[e.n], outputs[e.n],
      results[e.n], greatest(e.started_at, outlive.now() - tooks_s[e.n] * interval '1 second'), outlive.now(),
      e.failures, e.crashes, e.losses, me.name, me.hostname, memories[e.n],
      case when some_expire then outlive.expiry(e.task) end, e.queue, e.source, e.task
    from ended e where coalesce(outcomes[e.n], 'succeeded') = 'succeeded'
    returning job_id),
  settled as materialized (
    select e.id, outlive.settle(
      e.had, outcomes[e.n], errors[e.n], exit_codes[e.n], signals[e.n], peaks_bytes[e.n], cpus_s[e.n],
      outputs[e.n], stacks[e.n], results[e.n], coalesce(kills[e.n], false), coalesce(finals[e.n], false),
      afters_s[e.n], memories[e.n], tooks_s[e.n]) as state
    from ended e where outcomes[e.n] <> 'succeeded')
  select array(select w.job_id from written w), array(select s.id from settled s),
    array(select s.state from settled s), array(select unnest(tokens) except select e.token from ended e)
  into succeeded, others, states, lost;
  delete from outlive.dedupe_keys k where k.id = any(succeeded);
  perform outlive.follow_up(
    succeeded || others, array_fill('succeeded'::text, array[cardinality(succeeded)]) || states, at_once);
  return lost;
end $$;

create or replace function outlive.settle(
  had outlive.running, outcome text, error text default null, exit_code int default null,
  signal text default null, peak_memory_bytes bigint default null, cpu_s double precision default null,
  output text default null, stack text default null, result json default null, killed boolean default false,
  final boolean default false, after_s double precision default null, memory json default null,
  took_s double precision default null)
returns text language plpgsql as $$
-- Write the end of the attempt `had`, and return the job's new state. The caller has just deleted its row from
-- `running`, in the same statement, and calls outlive.follow_up when all ends of its statement are written.
-- A loss that is not charged becomes a release: it costs the job nothing, and nothing can be taken back later.
declare
  v record;
begin
  if outcome = 'lost' and not outlive.charged(had) then
    outcome := 'released';
    error := error || case when had.begun then ', after a request to stop' else ', before the job began' end;
  end if;
  select * into strict v from outlive.verdict(had, outcome, killed, final, after_s, random());
  if had.cancel_requested and v.state = 'cancelled' then
    error := coalesce(outlive.lateness(had.id, true), error);
  end if;
  insert into outlive.attempts values (
    had.id, had.attempt, had.token, had.worker, outcome, v.state, error, exit_code, signal, peak_memory_bytes,
    cpu_s, output, stack, result, greatest(had.started_at, outlive.now() - took_s * interval '1 second'),
    outlive.now(), v.failures, v.crashes, v.losses,
    (select k.name from outlive.workers k where k.id = had.worker),
    (select k.hostname from outlive.workers k where k.id = had.worker),
    case when v.state in ('succeeded', 'cancelled') then outlive.expiry(had.task) end, memory,
    case when outcome = 'lost' and had.alone then 'alone' end, had.queue, had.source, had.task);
  if v.crashes > had.crashes then
    insert into outlive.crashes
    select had.task, coalesce(j.fingerprint, outlive.fingerprint(j.task, j.args)), had.token, had.id,
      coalesce(signal, 'exit code ' || exit_code, outcome), outlive.now()
    from outlive.jobs j where j.id = had.id;
  end if;
  if v.why is not null then
    if v.details is null then
      select outlive.charge(had.id, v.crashes, p.kills, p.max_crashes) into v.details
      from outlive.policy_of(had.id, had.task) p;
    end if;
    insert into outlive.held values (had.id, v.why, outlive.now(), v.details, had.queue, had.source, had.task,
      had.priority, v.ready_at, had.attempt, v.failures, v.crashes, v.losses);
  elsif v.state in ('pending', 'retryable') then
    insert into outlive.waiting values (had.queue, had.source, had.task, had.priority, v.ready_at, had.id,
      had.attempt, v.failures, v.crashes, v.losses);
    if v.ready_at <= outlive.now() then
      perform outlive.wake();
    end if;
  else
    delete from outlive.dedupe_keys k where k.id = had.id;
  end if;
  return v.state;
end $$;

create or replace function outlive.finish_unclaimed(
  jobs uuid[], tries int[], failures smallint[], crashes smallint[], losses smallint[], errors text[] default null)
returns uuid[] language plpgsql as $$
-- Cancel jobs that no worker runs, and return them. Their rows in `attempts` have a new token and no worker. One
-- without an error says whether it was too late. The caller calls outlive.follow_up.
begin
  insert into outlive.attempts (
    job_id, attempt, token, outcome, state, error, ended_at, failures, crashes, losses, expires_at, queue, source,
    task)
  select j.id, j.tries + 1, nextval(pg_get_serial_sequence('outlive.running', 'token')), 'cancelled', 'cancelled',
    coalesce(j.error, outlive.lateness(j.id)), outlive.now(), j.failures, j.crashes, j.losses,
    outlive.expiry(t.task), t.queue, t.source, t.task
  from unnest(jobs, tries, failures, crashes, losses, errors) j(id, tries, failures, crashes, losses, error),
    lateral (select o.queue, o.source, o.task from outlive.jobs o where o.id = j.id offset 0) t;
  delete from outlive.dedupe_keys k where k.id = any(jobs);
  return jobs;
end $$;

create or replace function outlive.keep_records(had outlive.running, records json) returns void
language plpgsql as $$
-- Write a job's records: new ones, and those that are stronger than the stored one.
-- Records are written in the order of their keys, so that two jobs never deadlock.
begin
  insert into outlive.records (scope, source, dedupe_key, data, strength, job_id, created_at, updated_at)
  select distinct on (r.scope, r.key)
    r.scope, had.source, r.key, r.data, r.strength, had.id, outlive.now(), outlive.now()
  from rows from (json_to_recordset(records) as (scope text, key text, data json, strength double precision))
    with ordinality r(scope, key, data, strength, n)
  order by r.scope, r.key, r.strength desc, r.n
  on conflict (scope, source, dedupe_key) do update set
    (data, strength, job_id, updated_at) =
    (excluded.data, excluded.strength, excluded.job_id, excluded.updated_at)
  where excluded.strength > records.strength;
end $$;

create or replace function outlive.refuse_stale(token bigint) returns void language plpgsql as $$
-- OL002: a worker wants to end an attempt that it has lost.
begin
  raise exception using errcode = 'OL002', message =
    format('attempt %s is no longer this worker''s: it was given up or has ended', token);
end $$;

create or replace function outlive.complete_with_records(
  token bigint, worker uuid, result json default null, records json default null, spawns json default null,
  peak_memory_bytes bigint default null, cpu_s double precision default null, output text default null,
  memory json default null, at_once boolean default false, took_s double precision default null)
returns void language plpgsql as $$
-- running -> succeeded. The result, the records and the spawned jobs commit together with the success.
-- OL002: the attempt has ended, or its worker was declared dead.
declare
  ended outlive.running;
begin
  delete from outlive.running r
  where r.token = complete_with_records.token and r.worker = complete_with_records.worker
  returning r.* into ended;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  perform outlive.settle(ended, 'succeeded', result => result, peak_memory_bytes => peak_memory_bytes,
    cpu_s => cpu_s, output => output, memory => memory, took_s => took_s);
  if records is not null then
    perform outlive.keep_records(ended, records);
  end if;
  if spawns is not null then
    perform outlive.spawn(spawns);
  end if;
  perform outlive.follow_up(array[ended.id], array['succeeded'], at_once);
end $$;

create or replace function outlive.attempt_secret(worker_secret uuid, token bigint) returns text
language sql immutable
-- The secret by which a job completes its attempt. Its worker derives the same.
return left(encode(sha256(convert_to(worker_secret::text || token::text, 'UTF8')), 'hex'), 32);

create or replace function outlive.proven(token bigint, secret text) returns outlive.running
language plpgsql stable as $$
-- The attempt of a job that ends it or keeps a step in its own transaction. Tokens can be guessed, so the job
-- proves with the attempt's secret, which only its worker and the job itself know, that the attempt is its own.
declare
  own outlive.running;
begin
  select r.* into own from outlive.running r join outlive.workers k on k.id = r.worker
  where r.token = proven.token and outlive.attempt_secret(k.secret, r.token) = proven.secret;
  if not found then
    raise exception using errcode = 'OL002', message = format(
      'attempt %s is not this job''s: it was given up, has ended, or the secret is another attempt''s', token);
  end if;
  return own;
end $$;

create or replace function outlive.complete(
  token bigint, secret text, result json default null, records json default null, spawns json default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- running -> succeeded, inside the job's own transaction.
begin
  perform outlive.complete_with_records(token, (outlive.proven(token, secret)).worker, result, records, spawns);
end $$;

create or replace function outlive.once(token bigint, secret text, name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Keep a step inside the job's own transaction: true for the first one that commits. Another attempt that asks
-- meanwhile waits for that. The attempt is locked, so it is not given up before the transaction ends.
declare
  own outlive.running := outlive.proven(token, secret);
begin
  perform from outlive.running r where r.token = once.token for key share;
  if not found then
    raise exception using errcode = 'OL002', message = format('attempt %s was given up', token);
  end if;
  insert into outlive.steps (job_id, name, attempt, at) values (own.id, name, own.attempt, outlive.now())
  on conflict do nothing;
  return found;
end $$;

create or replace function outlive.refuse_unreadable(name text, value json) returns void language plpgsql as $$
-- OL003 if programs could not read this JSON: most parsers take 500 levels, and numbers that a double holds. Short
-- texts can't be deep, and most texts have no such number, so few values are searched.
begin
  perform outlive.refuse_unless(
    octet_length(value::text) < 1000 or not jsonb_path_exists(value::jsonb, 'strict $.**{500}'),
    format('%s is nested more than 500 levels deep', name));
  perform outlive.refuse_unless(
    value::text !~ '\d{200}|\d[eE]\+?0*[1-9]\d' or not jsonb_path_exists(value::jsonb,
      'strict $.** ? (@.type() == "number" && @.abs() > 1.7976931348623157e308)'),
    format('%s has a number above 1.8e308, which no double holds', name));
end $$;

-- Losses: attempts whose worker died or whose lease expired.

create or replace function outlive.end_lost(tokens bigint[])
returns table (token bigint, id uuid, worker uuid, locked_by text, state text)
language plpgsql set lock_timeout = '100ms' as $$
-- running -> pending, retryable, quarantined, failed, cancelled. The caller has locked these rows of `running`.
-- An attempt that can't end now, because it needs what another transaction has locked (a dedupe key, a batch, a
-- job that waits for it), is left for the next time, and delays no other. Its row comes back without a state.
declare
  one bigint;
  refused int := 0;
begin
  return query select l.* from outlive.end_lost_together(tokens) l;
exception when others then
  perform set_config('lock_timeout', '5ms', true);
  foreach one in array tokens loop
    begin
      return query select l.* from outlive.end_lost_together(array[one]) l;
    exception when others then
      if sqlstate not in ('55P03', '40P01') then
        raise warning 'the lost attempt % can''t end: %', one, sqlerrm;
      end if;
      refused := refused + 1;
      if refused = 20 then
        perform set_config('lock_timeout', '1ms', true);
      end if;
      return query select r.token, r.id, r.worker, null::text, null::text
        from outlive.running r where r.token = one;
    end;
  end loop;
end $$;

create or replace function outlive.end_lost_together(tokens bigint[])
returns table (token bigint, id uuid, worker uuid, locked_by text, state text) language sql as $$
-- The same, for all of them or none.
with ended as (
  delete from outlive.running r where r.token = any(tokens)
  returning r as had, r.token, r.id, r.worker),
settled as materialized (
  select e.token, e.id, e.worker, coalesce(k.name, e.worker::text) as name,
    outlive.settle(e.had, 'lost', error => case k.state
      when 'dead' then 'Worker died unexpectedly'
      when 'stopped' then 'its worker stopped'
      else 'its lease expired' end) as state
  from ended e left join outlive.workers k on k.id = e.worker),
followed as materialized (
  select outlive.follow_up(array_agg(s.id), array_agg(s.state), true) as changed
  from settled s having count(*) > 0)
select s.token, s.id, s.worker, s.name, s.state from settled s
-- Always true: it makes Postgres run `followed`.
where (select changed from followed) is not null;
$$;

create or replace function outlive.take_back_losses(tokens bigint[]) returns bigint language plpgsql as $$
-- These attempts were lost, and their jobs did not cause it: take back the loss that each of them cost its job, if
-- that is not finished and its losses were not cleared since. Each is marked, so it is taken back once, however
-- often this is called. Jobs that are held because of that loss wait again, or are suspects again. Returns how
-- many losses were taken back.
-- As in outlive.cancel, every wait for a lock comes before the first lock on `running`. After that, locked rows
-- are skipped and tried again for a quarter of a second: they are being renewed or moved, or end in their own
-- transaction.
declare
  rest bigint[];
  one bigint;
  lost record;
  w record;
  had int;
  now_has int;
  quarantined uuid[] := '{}';
  gained bigint := 0;
begin
  perform from outlive.jobs j
  where j.id in (select a.job_id from outlive.attempts a where a.token = any(tokens))
  order by j.id for no key update;
  rest := array(
    select a.token from outlive.attempts a
    where a.token = any(tokens) and a.outcome = 'lost' and a.loss is distinct from 'taken back' order by a.token);
  perform from outlive.waiting t
  where t.id in (select a.job_id from outlive.attempts a where a.token = any(rest)) order by t.id for update;
  perform from outlive.held t
  where t.id in (select a.job_id from outlive.attempts a where a.token = any(rest)) order by t.id for update;
  for look in 1..50 loop
    foreach one in array rest loop
      -- The last losses of a job count, as many as its counter says. It may have been cleared since this one.
      select a.job_id as job, a.attempt, (
          select count(*) from outlive.attempts b
          where b.job_id = a.job_id and b.attempt > a.attempt and b.outcome = 'lost'
            and b.loss is distinct from 'taken back') as later
      into lost from outlive.attempts a where a.token = one;
      had := null;
      delete from outlive.waiting t where t.id =
        (select l.id from outlive.waiting l where l.id = lost.job for update skip locked) returning t.* into w;
      if found then
        had := w.losses;
        now_has := had - (had > lost.later)::int;
        insert into outlive.waiting values (w.queue, w.source, w.task, w.priority, w.ready_at, w.id, w.attempt,
          w.failures, w.crashes, now_has);
      end if;
      -- A suspect is held for its losses, and so is a job whose last attempt says so; a job that was convicted
      -- or has crashed since is not.
      select h.*, p.max_losses as most into w from outlive.held h, lateral outlive.policy_of(h.id, h.task) p
      where h.id = lost.job and (h.why = 'key' or h.losses > 0 and (h.why = 'suspect' or h.why = 'quarantined'
        and exists (
          select from outlive.attempts a
          where a.job_id = h.id and a.attempt = h.attempt and a.outcome = 'lost' and a.state = 'quarantined')))
      for update of h skip locked;
      if found then
        had := w.losses;
        now_has := had - (had > lost.later)::int;
        if now_has = had or w.why = 'key' then
          update outlive.held h set losses = now_has where h.id = lost.job;
        else
          if w.why = 'quarantined' then
            quarantined := quarantined || lost.job;
          end if;
          if now_has > 0 and now_has >= w.most - 1 then
            update outlive.held h set
              why = 'suspect',
              since = outlive.now(),
              losses = now_has,
              ready_at = least(h.ready_at, outlive.now()),
              details = outlive.suspicion(now_has, w.most, outlive.share_of(w.task))
            where h.id = lost.job;
            perform outlive.requeue_keyed(array[lost.job], array[lost.job]);
          else
            delete from outlive.held h where h.id = lost.job;
            insert into outlive.waiting values (w.queue, w.source, w.task, w.priority,
              least(w.ready_at, outlive.now()), w.id, w.attempt, w.failures, w.crashes, now_has);
            perform outlive.requeue_keyed(array[lost.job], array[lost.job]);
            perform outlive.wake();
          end if;
        end if;
      end if;
      if had is null then
        select r.token, r.losses into w from outlive.running r where r.id = lost.job for update skip locked;
        had := w.losses;
        now_has := had - (had > lost.later)::int;
        update outlive.running r set losses = now_has where r.token = w.token and now_has < had;
      end if;
      -- The job is in no place and not finished: another transaction is moving it.
      continue when had is null and outlive.state_of(lost.job) in ('pending', 'retryable', 'running');
      rest := array_remove(rest, one);
      continue when had is null;
      update outlive.attempts a set
        loss = case when a.token = one then 'taken back' else a.loss end,
        error = case when a.token = one then a.error || '; its worker was alive: taken back' else a.error end,
        losses = a.losses - (now_has < had)::int
      where a.token = one or a.job_id = lost.job and a.attempt > lost.attempt and now_has < had;
      gained := gained + (now_has < had)::int;
    end loop;
    exit when cardinality(rest) = 0;
    perform pg_sleep(0.005);
  end loop;
  perform outlive.uncount_in_batches(quarantined, 'quarantined');
  return gained;
end $$;

create or replace function outlive.take_back(formerly uuid) returns bigint language sql
-- The worker `formerly` was declared dead and is alive: take back the losses that this cost its jobs. Losses from
-- before the worker's last heartbeat stay: the worker reported them itself, because its zygote died.
return outlive.take_back_losses(array(
  select a.token from outlive.attempts a join outlive.workers k on k.id = a.worker
  where a.worker = formerly and a.outcome = 'lost' and a.ended_at >= k.last_seen));

create or replace function outlive.silent_workers() returns setof uuid
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
-- The workers whose session is gone although they did not stop: most likely they are dead. Workers and
-- `outlive reap` find out and declare them dead; while neither runs, views show them as stale. None on a standby,
-- where no worker shows its life.
begin
  if not pg_is_in_recovery() then
    return query select m.worker from outlive.missing_locks m;
  end if;
end $$;

create or replace function outlive.lacking(task text) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp
-- The labels that a task needs, if no active worker has them all; else null.
return (
  select t.needs from outlive.tasks t
  where t.name = lacking.task and t.needs <> '{}' and not exists (
    select from outlive.workers k where k.state = 'active' and k.labels @> t.needs));

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

-- Dedupe keys: of the unfinished jobs of a task, at most one has a given key.
--
--     1. The primary key of `dedupe_keys`, task and key, decides. Its row names the job that holds the key: it is
--        written before that job, and deleted when the job is finished.
--     2. A new job whose key is held is not made: `skip` returns the holder instead, `raise` raises OL001.
--        `replace` cancels a holder that waits or is blocked; one that runs, is quarantined or a suspect stays.
--     3. A call that is repeated finds the job or the key that it has made, and changes nothing.
--     4. Two calls never deadlock: each takes its keys in their order, and locks the jobs that it may replace, by
--        id, before the first key. If another job took a key after that, the call starts again (OL004).

create or replace function outlive.dedupe(
  ids uuid[], tasks text[], keys text[], on_conflicts text[],
  out not_made uuid[], out holders uuid[], out replaced uuid[], out replacing uuid[])
language plpgsql as $$
-- Take the keys of new jobs. Returns the jobs that can't have theirs, each with the job that holds it, and the
-- jobs that were replaced, each with the new one.
declare
  replaceable uuid[] := '{}';
begin
  if array_position(on_conflicts, 'replace') is null then  -- No order can be wrong: the cost of a block is saved.
    select t.* into not_made, holders, replaced, replacing
    from outlive.take_keys(ids, tasks, keys, on_conflicts, replaceable) t;
    return;
  end if;
  for try in 1..100 loop
    begin
      replaceable := array(
        select k.id from unnest(tasks, keys, on_conflicts) a(task, key, on_conflict)
          join outlive.dedupe_keys k on k.task = a.task and k.key = a.key
        where a.on_conflict = 'replace');
      replaceable := array(  -- With the jobs that wait for them: take_along changes their rows.
        select j.id from outlive.jobs j where j.id = any(replaceable || array(
          select d.job_id from outlive.dependencies d where d.needs = any(replaceable) and not d.met))
        order by j.id for no key update);
      select t.* into not_made, holders, replaced, replacing
      from outlive.take_keys(ids, tasks, keys, on_conflicts, replaceable) t;
      return;
    exception when sqlstate 'OL004' then  -- This has given all locks and keys back.
    end;
  end loop;
  raise exception using errcode = '40001', message = 'the jobs with these dedupe keys change too fast: try again';
end $$;

create or replace function outlive.take_keys(
  ids uuid[], tasks text[], keys text[], on_conflicts text[], replaceable uuid[],
  out not_made uuid[], out holders uuid[], out replaced uuid[], out replacing uuid[])
language plpgsql as $$
-- Take the keys one by one, and settle conflicts by on_conflict.
declare
  job record;
  holder uuid;
begin
  select '{}', '{}', '{}', '{}' into not_made, holders, replaced, replacing;
  for job in
    select a.* from unnest(ids, tasks, keys, on_conflicts) with ordinality a(id, task, key, on_conflict, at)
    where a.key is not null order by a.task collate "C", a.key collate "C", a.at
  loop
    loop
      exit when exists (select from outlive.jobs j where j.id = job.id);
      insert into outlive.dedupe_keys values (job.task, job.key, job.id) on conflict do nothing;
      exit when found or exists (select from outlive.dedupe_keys k where k.id = job.id);
      select k.id into holder from outlive.dedupe_keys k where k.task = job.task and k.key = job.key;
      continue when not found;
      if job.on_conflict = 'raise' then
        raise exception using errcode = 'OL001', detail = holder, message =
          format('job %s of task %s has the dedupe key %L and is not finished', holder, job.task, job.key);
      elsif job.on_conflict = 'replace' and outlive.state_of(holder) is distinct from 'running' then
        -- The jobs of this batch are new: no other transaction can have locked them.
        if holder <> all(replaceable) and holder <> all(ids) then
          raise exception using errcode = 'OL004', message = 'a job took its dedupe key meanwhile';
        end if;
        if outlive.replace(holder, job.id) then
          replaced := replaced || holder;
          replacing := replacing || job.id;
        end if;
        continue when not exists (select from outlive.dedupe_keys k where k.id = holder);
      end if;
      not_made := not_made || job.id;
      holders := holders || holder;
      exit;
    end loop;
  end loop;
end $$;

create or replace function outlive.replace(holder uuid, by uuid) returns boolean language plpgsql as $$
-- pending, retryable, blocked -> cancelled. Returns whether it was replaced. A running job stays, because no work
-- is thrown away. A quarantined job and a suspect stay, because their kills would be forgotten. What follows from
-- the cancel waits until the new job is made: outlive.link.
declare
  w record;
begin
  perform from outlive.jobs j where j.id = holder for no key update;
  w := outlive.take_unclaimed(holder);
  if w.id is null then
    delete from outlive.held t where t.id = holder and t.why in ('blocked', 'dependent') returning t.* into w;
  end if;
  if w.id is not null then
    perform outlive.finish_unclaimed(
      array[holder], array[w.attempt], array[w.failures], array[w.crashes], array[w.losses],
      array[format('replaced by job %s, which has its dedupe key', by)]);
  end if;
  return w.id is not null;
end $$;

-- Enqueueing: new jobs, and the notification of sleeping workers.
--
--     enqueue             one job, for everyone; a batch of jobs, for clients
--     enqueue_plain       one small job with nothing special, as most are
--     spawn               the same for jobs as JSON
--     check_requests      refuses bad input
--     check_links         refuses links that make no sense
--     leave_out_existing  for a call that is repeated
--     link                to batches, other jobs and keys
--     wake                notifies the workers that sleep
--     wake_for            notifies a few of those that sleep and have a task
--
-- SQLSTATEs: OL001 the dedupe key is taken (dedupe.sql), OL003 bad input.

create or replace function outlive.uuid7() returns uuid language sql volatile
-- A version 7 uuid: it starts with the milliseconds of the clock, so that later ids sort later.
return encode(overlay(overlay(uuid_send(gen_random_uuid())
  placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6)
  placing set_byte('\x00'::bytea, 0, 112 | (get_byte(uuid_send(gen_random_uuid()), 6) & 15)) from 7 for 1),
  'hex')::uuid;

create or replace function outlive.wake() returns void language plpgsql as $$
-- Notify the sleeping workers, if there are any. A NOTIFY serialises commits, so it is not sent without need.
begin
  if exists (select from outlive.sleepers) then
    perform pg_notify('outlive', '');
  end if;
end $$;

create or replace function outlive.wake_for(queue text, task text, payload text) returns void
language plpgsql as $$
-- A job waits: notify three of the workers that sleep and can run it, by chance, each on its own channel. If they
-- can't take it, a tick of another one finds it. If hardly more than three sleep, notify all: workers in other
-- languages have no channel, and a transaction may commit when others sleep than now.
declare
  point uuid := gen_random_uuid();
  chosen uuid[];
begin
  with able as (
    (select s.worker from outlive.sleepers s join outlive.workers k on k.id = s.worker
     where s.worker >= point and wake_for.task = any(k.tasks) and k.app is not null
       and (k.queues is null or wake_for.queue = any(k.queues))
     order by s.worker limit 4)
    union all
    (select s.worker from outlive.sleepers s join outlive.workers k on k.id = s.worker
     where s.worker < point and wake_for.task = any(k.tasks) and k.app is not null
       and (k.queues is null or wake_for.queue = any(k.queues))
     order by s.worker limit 4)
    limit 4)
  select array_agg(a.worker) into chosen from able a;
  if cardinality(chosen) = 4 then
    perform pg_notify('outlive_' || left(c.worker::text, 8), payload) from unnest(chosen[:3]) c(worker);
  else
    perform pg_notify('outlive', payload);
  end if;
end $$;

create or replace function outlive.enqueue(
  ids uuid[], tasks text[], queues text[], sources text[], args json[], priorities smallint[],
  delays_s double precision[], run_ats timestamptz[], keys text[], on_conflicts text[], options jsonb[],
  max_args_bytes int, notify boolean, links jsonb[] default null)
returns table (asked uuid, existing uuid)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- (none) -> pending, or blocked by other jobs. Repeating it with the same ids changes nothing. It returns the jobs
-- that were not made, because an unfinished job of the same task holds their dedupe key, with that job's id. An
-- array that is null stands for nulls only. Tasks, queues, sources or links of one element are those of all jobs,
-- which saves time. A job without a queue or source gets those of its task. The links of a job are an object:
-- `after`, the jobs that it waits for, and `on_failure`; `batch`, the batch that it belongs to; `key`, its
-- concurrency key, and `concurrency`, how many jobs with that key may run; `on_failed`, the job that is enqueued
-- if this one fails; `expires_s`, how long it may wait for its start, and `deadline_s`, for its end; 0: for ever.
-- A job may wait for jobs that come before it in this call; instead of one that is not made it waits for the job
-- with its dedupe key.
declare
  moment timestamptz := outlive.now();
  not_made uuid[] := '{}';
  holders uuid[];
  replaced uuid[] := '{}';
  replacing uuid[];
  task_of_all text := case when cardinality(tasks) = 1 then tasks[1] end;
  queue_of_all text := case when cardinality(queues) = 1 then queues[1] end;
  source_of_all text := case when cardinality(sources) = 1 then sources[1] end;
  links_of_all jsonb := case when cardinality(links) = 1 then links[1] end;
  counted_by_fingerprint text[] := array(
    select t.name from outlive.tasks t where t.quarantine_by = 'fingerprint' and t.name = any(tasks));
  some_expire boolean := exists (
    select from outlive.tasks t
    where (t.expires_s is not null or t.deadline_s is not null) and t.name = any(tasks));
begin
  perform outlive.check_requests(
    tasks || queues || sources, args, max_args_bytes, delays_s, run_ats, on_conflicts, options, links);
  if task_of_all is not null and (keys is not null or source_of_all is distinct from '') then
    tasks := array_fill(task_of_all, array[cardinality(ids)]);
  end if;
  if keys is not null then
    select d.* into not_made, holders, replaced, replacing
    from outlive.dedupe(ids, tasks, keys, on_conflicts) d;
    return query select * from unnest(not_made, holders);
  end if;
  if source_of_all is distinct from '' and sources is not null then
    perform outlive.know_sources(sources, tasks);
  end if;
  loop
    begin
      with wanted as (
        select a.id, a.at, coalesce(a.task, task_of_all) as task, coalesce(a.queue, queue_of_all) as queue,
          coalesce(a.source, source_of_all) as source, a.args, a.options, a.priority, a.delay_s, a.run_at, a.key,
          coalesce(a.links, links_of_all) as links
        from unnest(ids, tasks, queues, sources, args, priorities, delays_s, run_ats, keys, options, links)
               with ordinality a(id, task, queue, source, args, priority, delay_s, run_at, key, options, links, at)
        where a.id is not null and a.id not in (select unnest(not_made))),
      fresh as (
        insert into outlive.jobs (
          id, task, queue, source, args, options, priority, ready_at, dedupe_key, fingerprint, created_at, after,
          batch, concurrency_key, concurrency, on_failed)
        select
          a.id, a.task,
          coalesce(a.queue, (select t.queue from outlive.tasks t where t.name = a.task), 'default'),
          coalesce(a.source, (select t.source from outlive.tasks t where t.name = a.task), ''),
          a.args, a.options, coalesce(a.priority, 5),
          -- A microsecond apart, so that a batch keeps its order, and a watermark leaves claimed jobs behind.
          coalesce(a.run_at, moment + coalesce(a.delay_s, 0) * interval '1 second'
                             - (cardinality(ids) - a.at) * interval '1 microsecond'),
          a.key,
          case
            -- The same places in `after` stand for other results.
            when a.links @? '$.after[*]' and a.args -> '$results' is not null
              then outlive.fingerprint(a.task, json_build_array(a.args, a.links -> 'after'))
            when a.task = any(counted_by_fingerprint) then outlive.fingerprint(a.task, a.args) end,
          moment,
          case when a.links @? '$.after[*]' then array(
            select coalesce(m.holder, n.id::uuid)
            from jsonb_array_elements_text(a.links -> 'after') with ordinality n(id, at)
              left join unnest(not_made, holders) m(asked, holder) on m.asked = n.id::uuid
            order by n.at) end,
          (a.links ->> 'batch')::uuid, a.links ->> 'key',
          case when a.links ? 'key' then coalesce((a.links ->> 'concurrency')::int, 1) end,
          a.links -> 'on_failed'
        from wanted a order by a.id
        returning jobs.queue, jobs.source, jobs.task, jobs.priority, jobs.ready_at, jobs.id, jobs.after,
          jobs.concurrency_key)
      insert into outlive.waiting (queue, source, task, priority, ready_at, id)
      select f.queue, f.source, f.task, f.priority, f.ready_at, f.id from fresh f
      where f.after is null and f.concurrency_key is null;
      exit;
    exception when unique_violation then
      ids := outlive.leave_out_existing(ids);
    end;
  end loop;
  if links is not null or replaced <> '{}' then
    perform outlive.link(ids, not_made, links, replaced, replacing);
  end if;
  if some_expire or exists (select from unnest(links) l where l ?| '{expires_s,deadline_s}') then
    perform outlive.let_expire(ids, links);
  end if;
  if notify then
    perform pg_notify('outlive', '');
  else
    perform outlive.wake();
  end if;
end $$;

create or replace function outlive.check_requests(
  names text[], args json[], max_args_bytes int, delays_s double precision[], run_ats timestamptz[],
  on_conflicts text[], options jsonb[], links jsonb[])
returns void language plpgsql as $$
declare
  biggest int;
begin
  max_args_bytes := least(max_args_bytes, 33554432);  -- The caller can't raise this limit: workers must take it.
  -- What jsonb can't hold is refused here, and not when a crash needs the fingerprint.
  select max(octet_length(a::text)) filter (where a::jsonb is not null) into biggest from unnest(args) a;
  if biggest > max_args_bytes then
    raise exception using errcode = 'OL003', message = format(
      'arguments of %s bytes are over the limit of %s: store them elsewhere and pass a reference',
      biggest, max_args_bytes);
  end if;
  -- Longer ones fit into no index: a job that waits elsewhere at first could then never be moved to `waiting`.
  if exists (select from unnest(names) n where octet_length(n) > 200) then
    raise exception using errcode = 'OL003', message = 'task, queue and source are names of at most 200 bytes';
  end if;
  if not array_remove(on_conflicts, null) <@ '{skip,raise,replace}' then
    raise exception using errcode = 'OL003', message = 'on_conflict can be skip, raise or replace';
  end if;
  -- Workers compare these times in Python, whose calendar ends, and look no further back than the year 2000.
  if exists (select from unnest(run_ats) r where r < '2000-01-01Z' or r >= '9000-01-01Z')
     or exists (select from unnest(delays_s) d where abs(d) > 1e10) then
    raise exception using errcode = 'OL003', message =
      'run_at must be between the years 2000 and 9000, and a delay no longer than 300 years';
  end if;
  select max(octet_length(o::text)) into biggest from unnest(options) o;
  if biggest > 8192 then
    raise exception using errcode = 'OL003', message =
      format('options of %s bytes are over the limit of 8192', biggest);
  end if;
  -- A limit that can't be read would stop the reaper for every job of its batch.
  if biggest is not null and exists (
    select from unnest(options) o, jsonb_each(case when jsonb_typeof(o) = 'object' then o end) e
    where e.value <> 'null' and case
      when e.key in ('max_attempts', 'max_crashes', 'max_losses')
        then e.value::text !~ '^([1-9][0-9]{0,3}|[12][0-9]{4}|30000)$'
      when e.key in ('timeout_s', 'stall_s') then jsonb_typeof(e.value) <> 'number' or e.value <= '0'
      when e.key = 'memory_bytes' then e.value::text !~ '^[1-9][0-9]{6,17}$'
      when e.key = 'on_worker_death' then e.value::text not in ('"retry"', '"fail"') end)
  then
    raise exception using errcode = 'OL003', message =
      'max_attempts, max_crashes and max_losses are whole numbers from 1 to 30000, '
      'timeout_s and stall_s are numbers above zero, memory_bytes is at least 1000000, '
      'and on_worker_death is retry or fail';
  end if;
  if links is not null then
    perform outlive.check_links(links);
  end if;
end $$;

create or replace function outlive.check_links(links jsonb[]) returns void language plpgsql as $$
declare
  callbacks jsonb[];
begin
  if exists (
    select from unnest(links) l
    where jsonb_typeof(l) <> 'object' or jsonb_typeof(l -> 'after') not in ('array', 'null'))
  then
    raise exception using errcode = 'OL003', message =
      'links are objects, and after is an array of the ids of jobs';
  end if;
  if exists (select from unnest(links) l where l ->> 'on_failure' not in ('block', 'proceed', 'cancel')) then
    raise exception using errcode = 'OL003', message = 'on_failure can be block, proceed or cancel';
  end if;
  if exists (select from unnest(links) l where jsonb_array_length(l -> 'after') > 100000) then
    raise exception using errcode = 'OL003', message =
      'a job can wait for at most 100,000 jobs: let some of them wait for the others';
  end if;
  if exists (
    select from unnest(links) l where (l ? 'concurrency' or l ? 'key') and not coalesce(
      octet_length(l ->> 'key') between 1 and 1000 and jsonb_typeof(l -> 'key') = 'string'
      and coalesce(l ->> 'concurrency', '1') ~ '^([1-9][0-9]{0,2}|1000)$', false))
  then
    raise exception using errcode = 'OL003', message =
      'concurrency_key is a text of 1 to 1000 bytes, and concurrency, which needs a key, is from 1 to 1000';
  end if;
  if exists (
    select from unnest(links) l, unnest(array[l -> 'expires_s', l -> 'deadline_s']) s
    where jsonb_typeof(s) <> 'number' or not s between '0' and '10000000000')
  then
    raise exception using errcode = 'OL003', message =
      'a job expires after 0 seconds to 300 years, and a deadline is no longer';
  end if;
  callbacks := array(select distinct l -> 'on_failed' from unnest(links) l where l ? 'on_failed');
  if exists (
    select from unnest(callbacks) c
    where jsonb_typeof(c -> 'task') is distinct from 'string' or c ?| '{id,args,dedupe_key,links}'
      or c ->> 'once_for' !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
  then
    raise exception using errcode = 'OL003', message =
      'on_failed is a job as an object, with a task, without id, args, dedupe_key and links; once_for is a uuid';
  end if;
  if callbacks <> '{}' then
    perform outlive.try_callbacks(callbacks);
  end if;
end $$;

create or replace function outlive.leave_out_existing(ids uuid[]) returns uuid[] language plpgsql as $$
-- The ids of a call, with null for each job that exists and for each id that the call has twice. Only called after
-- a conflict: ON CONFLICT DO NOTHING costs every new job a fifth more.
declare
  others uuid[] := array(
    select case when a.n = 1 and not exists (select from outlive.jobs j where j.id = a.id) then a.id end
    from (select i.id, i.at, row_number() over (partition by i.id order by i.at) as n
          from unnest(ids) with ordinality i(id, at)) a
    order by a.at);
begin
  if others = ids then
    raise exception using errcode = '40001', message =
      'another transaction has just made one of these jobs: try again';
  end if;
  return others;
end $$;

create or replace function outlive.link(
  ids uuid[], not_made uuid[], links jsonb[], replaced uuid[], replacing uuid[])
returns void language plpgsql as $$
-- Link new jobs to their batches, to the jobs that they wait for or replace, and to their concurrency keys.
declare
  links_of_all jsonb := case when cardinality(links) = 1 then links[1] end;
  joined uuid[] := array(
    select (coalesce(a.links, links_of_all) ->> 'batch')::uuid from unnest(ids, links) a(id, links)
    where coalesce(a.links, links_of_all) ? 'batch' and a.id is not null  -- Only jobs that were made count.
      and a.id not in (select unnest(not_made)));
begin
  if joined <> '{}' or replaced <> '{}' then
    perform outlive.follow_through(
      replaced, array_fill('cancelled'::text, array[cardinality(replaced)]), joined);
  end if;
  if to_jsonb(links) @? '$[*].after' then
    -- After the counting, because jobs that it cancels at once are followed up.
    perform outlive.depend(ids, array(
      select l.links ->> 'on_failure' from unnest(links) with ordinality l(links, at) order by l.at));
  end if;
  if replaced <> '{}' then
    perform outlive.take_along(replaced, replacing, ids);
  end if;
  if to_jsonb(links) @? '$[*].key' then
    perform outlive.park_keyed(ids);
  end if;
end $$;

create or replace function outlive.spawn(jobs json) returns table (asked uuid, existing uuid)
language plpgsql as $$
-- (none) -> pending, for an array of jobs as objects. Returns the same as outlive.enqueue.
begin
  return query
    select e.*
    from (
      select
        array_agg(coalesce(s.id, outlive.uuid7())) as ids, array_agg(s.task) as tasks,
        array_agg(s.queue) as queues, array_agg(s.source) as sources, array_agg(coalesce(s.args, '{}')) as args,
        array_agg(s.priority::smallint) as priorities, array_agg(s.delay_s) as delays_s,
        array_agg(s.run_at) as run_ats,
        case when count(s.dedupe_key) > 0 then array_agg(s.dedupe_key) end as keys,
        array_agg(coalesce(s.on_conflict, 'skip')) as on_conflicts,
        case when count(s.options) > 0 then array_agg(s.options) end as options,
        case when count(s.links) > 0 then array_agg(s.links) end as links
      from json_to_recordset(jobs) s(
        id uuid, task text, args json, queue text, source text, priority int, delay_s double precision,
        run_at timestamptz, dedupe_key text, on_conflict text, options jsonb, links jsonb)
      having count(*) > 0) a,
      outlive.enqueue(
        a.ids, a.tasks, a.queues, a.sources, a.args, a.priorities, a.delays_s, a.run_ats, a.keys, a.on_conflicts,
        a.options, 2147483647, false, a.links) e;
end $$;

create or replace function outlive.enqueue_plain(
  task text, args json, queue text, source text, priority int, id uuid, notify boolean default false)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- (none) -> pending, for one job without keys, options, delay, run_at, after and batch. Repeating it with the same
-- id changes nothing. Arguments have at most 8192 bytes: their fingerprint is soon computed when it is needed. Its
-- few parameters make it faster than `enqueue`, which calls it too. A null queue or source is that of the task.
#variable_conflict use_variable
declare
  moment timestamptz := outlive.now();
begin
  -- The cast refuses what jsonb can't hold, for example \u0000.
  if octet_length(args::text) > 8192 or args::jsonb is null or id is null then
    raise exception using errcode = 'OL003', message = 'a plain job needs an id, and args of up to 8192 bytes';
  end if;
  if queue is null or source is null then
    select coalesce(queue, t.queue, 'default'), coalesce(source, t.source, '') into queue, source
    from (select) one left join outlive.tasks t on t.name = task;
  end if;
  if source <> '' then
    perform outlive.know_sources(array[source], array[task]);
  end if;
  priority := coalesce(priority, 5);
  insert into outlive.jobs (id, task, queue, source, args, priority, ready_at, created_at)
  values (id, task, queue, source, args, priority, moment, moment) on conflict do nothing;
  if found then
    insert into outlive.waiting (queue, source, task, priority, ready_at, id)
    values (queue, source, task, priority, moment, id)
    returning notify or exists (select from outlive.sleepers) into notify;
  end if;
  if notify then
    -- A worker that reads the lane of the job saves a search. A name may be too long for a notification.
    perform outlive.wake_for(queue, task, case
      when source <> '' or exists (
        select from outlive.queues q where q.name = queue and q.paused_at is not null) then ''
      else left(json_build_array(queue, task, priority)::text, 1900) end);
  end if;
end $$;

create or replace function outlive.enqueue(
  task text,
  args json default '{}',
  queue text default null,
  source text default null,
  priority int default 5,
  delay interval default null,
  run_at timestamptz default null,
  dedupe_key text default null,
  on_conflict text default 'skip',
  options jsonb default null,
  id uuid default null,
  max_args_bytes int default 1048576,
  notify boolean default true,
  after uuid[] default null,
  on_failure text default 'block',
  batch uuid default null,
  concurrency_key text default null,
  concurrency int default null,
  on_failed jsonb default null,
  expires interval default null,
  deadline interval default null)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- (none) -> pending, or blocked by the jobs in `after`, for one job. An object holds keyword arguments, an array
-- positional ones. Returns the job's id, or the id of the unfinished job that holds the same dedupe key. A job
-- without keys, options, delay, run_at, links, expiry and deadline whose arguments are small is written by
-- `enqueue_plain`, which is faster. Every other job goes the way of many. `on_failed` is a job as an object,
-- without arguments: if this job fails for good or is quarantined, that one is enqueued with the array of this
-- job's id and error, and once for all jobs with the same uuid as its `once_for`.
#variable_conflict use_variable
declare
  mine uuid := coalesce(id, outlive.uuid7());
  other uuid;
begin
  if on_conflict not in ('skip', 'raise', 'replace') then
    raise exception using errcode = 'OL003', message =
      format('on_conflict is %L; it can be skip, raise or replace', on_conflict);
  end if;
  if dedupe_key is null and options is null and delay is null and run_at is null and after is null
     and batch is null and concurrency_key is null and concurrency is null and on_failed is null
     and expires is null and deadline is null and octet_length(args::text) <= least(max_args_bytes, 8192)
     and not exists (
       select from outlive.tasks t
       where t.name = task and (t.expires_s is not null or t.deadline_s is not null)) then
    perform outlive.enqueue_plain(task, args, queue, source, priority, mine, notify);
    return mine;
  end if;
  select e.existing into other from outlive.enqueue(
    array[mine], array[task], array[queue], array[source], array[args], array[priority::smallint],
    array[extract(epoch from delay)::double precision], array[run_at],
    case when dedupe_key is not null then array[dedupe_key] end, array[on_conflict], array[options],
    max_args_bytes, notify,
    case when after is not null or batch is not null or concurrency_key is not null or concurrency is not null
        or on_failed is not null or expires is not null or deadline is not null
      then array[jsonb_strip_nulls(jsonb_build_object('after', to_jsonb(after), 'on_failure', on_failure,
        'batch', batch, 'key', concurrency_key, 'concurrency', concurrency, 'on_failed', on_failed,
        'expires_s', extract(epoch from expires), 'deadline_s', extract(epoch from deadline)))] end) e;
  return coalesce(other, mine);
end $$;

-- The verbs of operators: cancel, retry, repeat, release, block, prune; and where a job is.
--
-- Each verb locks the jobs' rows first and then acts in further statements, each with a fresh view of the tables:
-- it sees what another transaction did while it waited, and overwrites nothing. A verb returns one row per job
-- that exists: its state now, whether it changed, and if not, why.

create or replace function outlive.held_state(why text, failed boolean) returns text
language sql immutable parallel safe
-- The state of a job in `held`. A suspect and a job that waits for a slot of its key need no person.
return case
  when why = 'key' and failed then 'retryable'
  when why in ('key', 'suspect') then 'pending'
  when why = 'dependent' then 'blocked'
  else why end;

create or replace function outlive.waits_for(h outlive.held, needed int) returns text language sql immutable
-- What a job in `held` waits for, in words, if its own code says so or it waits for other jobs, of which it needs
-- so many (null: as many as are unmet); otherwise null.
return 'waits' || nullif(concat(
  ' for ' || h.unmet || case when needed > h.unmet then ' of ' || needed else '' end
    || case greatest(needed, h.unmet) when 1 then ' job' else ' jobs' end,
  ' for the signal ' || h.signal,
  ' until ' || to_char(
    case when h.why = 'suspended' then nullif(h.ready_at, 'infinity') end at time zone 'UTC',
    'YYYY-MM-DD HH24:MI:SS "UTC"')), '');

create or replace function outlive.state_of(job uuid) returns text language sql stable
begin atomic
  select coalesce(
    (select 'running' from outlive.running where id = job),
    (select case when failures + crashes > 0 then 'retryable' else 'pending' end
     from outlive.waiting where id = job),
    (select outlive.held_state(why, failures + crashes > 0) from outlive.held where id = job),
    (select a.state from outlive.attempts a where a.job_id = job order by a.attempt desc limit 1));
end;

create or replace function outlive.cancel(ids uuid[])
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- pending, retryable, blocked, suspended, quarantined -> cancelled; running -> asked to stop. Zero rows: no job.
-- Every wait for a lock comes before the first lock on `running`, because a worker that waits for that row may
-- have just claimed another of these jobs. After that, locked rows are skipped and tried again for a second: they
-- are being moved, or end in their own transaction. The ends of jobs that ran at first are left for later.
declare
  found_jobs uuid[];
  idle uuid[];
  concerned uuid[];
  too_many boolean;
  ended uuid[] := '{}';
  quarantined uuid[] := '{}';
  w record;
begin
  found_jobs := array(select j.id from outlive.jobs j where j.id = any(ids) order by j.id for no key update);
  perform from outlive.waiting t where t.id = any(found_jobs) order by t.id for update;
  idle := array(
    select f.id from unnest(found_jobs) f(id) where not exists (select from outlive.running r where r.id = f.id));
  select l.locked, l.too_many into concerned, too_many from outlive.lock_dependents('{}', idle, idle) l;
  foreach id in array found_jobs loop
    note := 'another transaction is moving it: try again';
    for look in 1..200 loop
      delete from outlive.waiting t where t.id =
        (select l.id from outlive.waiting l where l.id = cancel.id for update skip locked) returning t.* into w;
      if not found then
        delete from outlive.held t where t.id =
          (select l.id from outlive.held l where l.id = cancel.id for update skip locked) returning t.* into w;
        if found and w.why = 'quarantined' then
          quarantined := quarantined || id;
        end if;
      end if;
      changed := found;
      if changed then
        perform outlive.finish_unclaimed(
          array[id], array[w.attempt], array[w.failures], array[w.crashes], array[w.losses]);
        ended := ended || id;
      else
        update outlive.running r set cancel_requested = true where r.token =
          (select t.token from outlive.running t where t.id = cancel.id for update skip locked);
        changed := found;
        if changed then
          perform pg_notify('outlive', 'cancel');  -- Its worker checks for cancel requests at once.
        end if;
      end if;
      state := outlive.state_of(id);
      if changed or state in ('succeeded', 'failed', 'cancelled') then
        note := case when not changed then 'it has ended already' end;
        exit;
      end if;
      perform pg_sleep(0.005);
    end loop;
    return next;
  end loop;
  if cardinality(ended) > 0 then
    perform outlive.uncount_in_batches(quarantined, 'quarantined');
    perform outlive.leave_ends(case when too_many then ended else array(
      select unnest(ended) except select unnest(idle)) end);
    perform outlive.follow_up(ended, array_fill('cancelled'::text, array[cardinality(ended)]),
      among => case when too_many then '{}' else concerned end);
  end if;
end $$;

create or replace function outlive.take_unclaimed(job uuid) returns outlive.waiting language plpgsql as $$
-- Take a job out of its place if a worker may claim it, now or when it gets a slot of its key. Null: it may not.
-- It looks twice: a transaction that it has waited for may have moved the job from the second place to the first.
declare
  w outlive.waiting;
begin
  for look in 1..2 loop
    delete from outlive.held h where h.id = job and h.why = 'key'
    returning h.queue, h.source, h.task, h.priority, h.ready_at, h.id, h.attempt, h.failures, h.crashes, h.losses
    into w;
    exit when found;
    delete from outlive.waiting t where t.id = job returning t.* into w;
    exit when found;
  end loop;
  return w;
end $$;

create or replace function outlive.wait_again(ids uuid[]) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
-- pending -> blocked, for jobs that were just retried: they wait again for those that they need and that are under
-- way. One of these may end before this commits, unless it was retried here: outlive.check_late_ends looks.
begin
  with again as (
    update outlive.dependencies d set met = false
    where d.job_id = any(ids)
      and outlive.state_of(d.needs) in ('pending', 'retryable', 'running', 'blocked', 'suspended')
    returning d.needs, d.job_id),
  moved as (
    delete from outlive.waiting w where w.id = any(array(select a.job_id from again a)) returning w.*),
  noted as (
    insert into outlive.end_checks (needed, dependents)
    select array_agg(distinct a.needs), array_agg(distinct a.job_id) from again a
    where a.needs not in (select unnest(ids)) having count(*) > 0)
  insert into outlive.held (
    id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes, losses, unmet)
  select m.id, 'dependent', outlive.now(), m.queue, m.source, m.task, m.priority, m.ready_at, m.attempt, 0, 0, 0,
    (select count(*) from again a where a.job_id = m.id)
  from moved m;
end $$;

create or replace function outlive.retry(ids uuid[])
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- failed, cancelled -> pending with all counters zero, or blocked by jobs that it needs and that are under way, as
-- those are that are retried with it; retryable -> pending, now. Zero rows: no such job.
-- OL003: this transaction would not see whether another one has retried a job.
-- Dedupe keys are taken in their order, as enqueue takes them, so that two batches never deadlock.
declare
  j record;
  w outlive.waiting;
  taken uuid;
  failed uuid[] := '{}';
  cancelled uuid[] := '{}';
  again uuid[] := '{}';
  notes jsonb := '{}';
begin
  perform outlive.refuse_unless(outlive.sees_all(),
    'jobs can be retried only in a transaction with the isolation level READ COMMITTED');
  perform from outlive.jobs t where t.id = any(ids) order by t.id for no key update;
  for j in select t.* from outlive.jobs t where t.id = any(ids) order by t.task, t.dedupe_key, t.id loop
    note := null;
    state := outlive.state_of(j.id);
    if state = 'retryable' then
      -- This waits for a claim that has locked the row. The claim then moves the job, and nothing is left to do.
      w := outlive.take_unclaimed(j.id);
      if w.id is not null then
        insert into outlive.waiting (queue, source, task, priority, ready_at, id, attempt)
        values (w.queue, w.source, w.task, w.priority, outlive.now(), w.id, w.attempt);
        again := again || j.id;
        continue;
      end if;
      state := outlive.state_of(j.id);
    elsif state in ('failed', 'cancelled') then
      if j.dedupe_key is not null then
        insert into outlive.dedupe_keys values (j.task, j.dedupe_key, j.id) on conflict do nothing;
        if not found then
          select k.id into taken from outlive.dedupe_keys k where k.task = j.task and k.key = j.dedupe_key;
          note := format('its dedupe key %L is taken by %s',
            j.dedupe_key, coalesce('job ' || taken, 'another job'));
        end if;
      end if;
      if note is null then
        insert into outlive.waiting (queue, source, task, priority, ready_at, id, attempt)
        select j.queue, j.source, j.task, j.priority, outlive.now(), j.id, max(a.attempt)
        from outlive.attempts a where a.job_id = j.id;
        update outlive.attempts a set state = 'pending'
        where a.job_id = j.id and a.state in ('failed', 'cancelled');
        if state = 'failed' then
          failed := failed || j.id;
        else
          cancelled := cancelled || j.id;
        end if;
        continue;
      end if;
    end if;
    notes := notes || jsonb_build_object(j.id, coalesce(note, case state
      when 'quarantined' then 'it is in quarantine: release it instead'
      when 'blocked' then 'it is blocked: release it instead'
      when 'suspended' then 'it waits, as its code says'
      when 'succeeded' then 'it has succeeded: repeat it instead'
      else 'it is under way already' end));
  end loop;
  if exists (select from outlive.dependencies d where d.job_id = any(failed || cancelled)) then
    perform outlive.wait_again(failed || cancelled);
  end if;
  again := again || failed || cancelled;
  if again <> '{}' then
    perform outlive.requeue_keyed(again, again);
    perform outlive.wake();
  end if;
  perform outlive.uncount_in_batches(failed, 'failed'), outlive.uncount_in_batches(cancelled, 'cancelled');
  return query
  select t.id, outlive.state_of(t.id), not notes ? t.id::text, notes ->> t.id::text
  from outlive.jobs t where t.id = any(ids) order by t.task, t.dedupe_key, t.id;
end $$;

create or replace function outlive.repeat(ids uuid[])
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- (none) -> pending, for a new job with what a succeeded one was enqueued with: the old one stays finished, once.
-- Zero rows: no such job. The option `repeats` of the new one names the old one. It is in no batch, because the
-- old one was counted there, and a schedule, a trace or an expiry of the old one are not its own.
declare
  j record;
  made uuid;
  holder uuid;
begin
  perform from outlive.jobs t where t.id = any(ids) order by t.id for key share;  -- So that none is pruned.
  for j in select t.* from outlive.jobs t where t.id = any(ids) order by t.task, t.dedupe_key, t.id loop
    id := j.id; changed := false;
    state := outlive.state_of(id);
    if state <> 'succeeded' then
      note := 'only a succeeded job is repeated'
        || case when state in ('failed', 'cancelled', 'retryable') then ': retry it instead' else '' end;
    elsif exists (
      select from unnest(j.after) n(id) where not exists (select from outlive.jobs k where k.id = n.id))
    then
      note := 'a job that it has waited for was deleted: its result may be needed';
    else
      made := outlive.uuid7();
      holder := outlive.enqueue(
        j.task, j.args, j.queue, j.source, j.priority, dedupe_key => j.dedupe_key, id => made,
        options => coalesce(j.options, '{}') - '{schedule,gathered_by,traceparent,tracestate}'::text[]
          || jsonb_build_object('repeats', j.id),
        max_args_bytes => 2147483647, notify => false, after => j.after, on_failure => 'proceed',
        concurrency_key => j.concurrency_key, concurrency => j.concurrency, on_failed => j.on_failed);
      changed := holder = made;
      note := case when changed then format('it runs again as job %s', made)
        else format('its dedupe key %L is taken by job %s', j.dedupe_key, holder) end;
    end if;
    return next;
  end loop;
end $$;

create or replace function outlive.release(ids uuid[])
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- quarantined, blocked, suspect -> pending or retryable, with crashes and losses zero. Zero rows: no such job.
-- A job that waits for others waits no more.
declare
  quarantined uuid[] := '{}';
  freed uuid[] := '{}';
begin
  ids := array(select j.id from outlive.jobs j where j.id = any(ids) order by j.id for no key update);
  perform from outlive.held h where h.id = any(ids) order by h.id for update;
  foreach id in array ids loop
    quarantined := quarantined || array(
      select h.id from outlive.held h where h.id = release.id and h.why = 'quarantined');
    with taken as (
      delete from outlive.held h where h.id = release.id and h.why not in ('key', 'suspended') returning h.*)
    insert into outlive.waiting (queue, source, task, priority, ready_at, id, attempt, failures)
    select t.queue, t.source, t.task, t.priority, outlive.now(), t.id, t.attempt, t.failures from taken t;
    changed := found;
    state := outlive.state_of(id);
    note := case when not changed then
      case state when 'suspended' then 'it waits, as its code says' else 'it is not held' end end;
    if changed then
      update outlive.dependencies d set met = true where d.job_id = release.id and not d.met;
      perform outlive.requeue_keyed(array[id], array[id]);
      perform outlive.wake();
      freed := freed || id;
    end if;
    return next;
  end loop;
  -- It waits for another release of the same crashes, which may be rolled back.
  with forgiven as (
    select l.task, l.fingerprint, l.token from outlive.jobs j join outlive.crashes l on l.task = j.task
      and l.fingerprint = coalesce(j.fingerprint, outlive.fingerprint(j.task, j.args))
    where j.id = any(freed) order by l.task, l.fingerprint, l.token for update of l)
  delete from outlive.crashes c using forgiven f
  where c.task = f.task and c.fingerprint = f.fingerprint and c.token = f.token;
  perform outlive.uncount_in_batches(quarantined, 'quarantined');
end $$;

create or replace function outlive.block(ids uuid[], reason text)
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- pending, retryable -> blocked, until an operator releases it. Zero rows: no such job.
declare
  w outlive.waiting;
begin
  ids := array(select j.id from outlive.jobs j where j.id = any(ids) order by j.id for no key update);
  foreach id in array ids loop
    w := outlive.take_unclaimed(id);
    changed := w.id is not null;
    if changed then
      insert into outlive.held values (id, 'blocked', outlive.now(), reason, w.queue, w.source, w.task, w.priority,
        w.ready_at, w.attempt, w.failures, w.crashes, w.losses);
      perform outlive.requeue_keyed(array[id]);
    end if;
    state := outlive.state_of(id);
    note := case when not changed then 'it is not waiting' end;
    return next;
  end loop;
end $$;

create or replace function outlive.prune(ids uuid[]) returns bigint language plpgsql as $$
-- Delete finished and quarantined jobs with all their attempts, and leave other jobs alone. A job stays while
-- another one waits for it, and a succeeded one while another may need its result: until that one has succeeded or
-- is deleted. Returns how many. OL003: this transaction would not see which jobs are needed.
-- Locked jobs are skipped. Holding the locks, a second look leaves out jobs that were retried or released
-- meanwhile.
declare
  mine uuid[];
  gone bigint;
begin
  perform outlive.refuse_unless(outlive.sees_all(),
    'jobs can be pruned only in a transaction with the isolation level READ COMMITTED');
  mine := array(select j.id from outlive.jobs j where j.id = any(ids) order by j.id for update skip locked);
  mine := array(
    select m.id from (
      select a.job_id, a.state = 'succeeded' from outlive.attempts a
      where a.job_id = any(mine) and a.state in ('succeeded', 'failed', 'cancelled')
      union all
      select h.id, false from outlive.held h where h.id = any(mine) and h.why = 'quarantined') m(id, has_result)
    where not exists (select from outlive.dependencies d where d.needs = m.id and (m.has_result or not d.met)));
  delete from outlive.held h where h.id = any(mine);
  delete from outlive.dependencies d where d.job_id = any(mine);
  delete from outlive.dedupe_keys k where k.id = any(mine);
  delete from outlive.progress p where p.job_id = any(mine);
  delete from outlive.steps s where s.job_id = any(mine);
  delete from outlive.signals s where s.job_id = any(mine);
  delete from outlive.expiring e where e.job_id = any(mine);
  delete from outlive.attempts a where a.job_id = any(mine);
  perform outlive.forget_in_batches(mine);
  delete from outlive.jobs j where j.id = any(mine);
  get diagnostics gone = row_count;
  return gone;
end $$;

-- Waits: a job that waits for a time, for a signal or for other jobs is held as suspended, and holds nothing else.
--
--     suspend        a running job waits, unless what it waits for is there
--     wait_for       it waits for other jobs
--     gathered       the jobs that it has waited for so
--     as_uuid        an id that anyone may have written
--     received       what it has waited for so
--     lock_needed    locks these, so that no two jobs begin to wait for each other
--     refuse_signal  refuses a name that no signal can have
--     send           leaves a signal for a job, and ends the wait for it
--     end_waits      the waits of jobs are over
--     end_due        ends the waits whose time has come
--
-- A wait that is over is a step: the next attempt finds it, and goes on behind it. The worker that ran the job may
-- have parked its process (`parked_by`). Then the row stays for a second, so that this worker can claim it with
-- the statement `resume`, and the process goes on where it is. If it does not, any worker claims the job.
-- Suspend and send lock the row of the job first, so one of the two sees what the other has done.

create or replace function outlive.suspend(
  token bigint, worker uuid, step text, after_s double precision default null, signal text default null,
  spawns json default null, needs uuid[] default null, may_park boolean default false)
returns table (outcome text, value json, parked boolean) language plpgsql as $$
-- running -> suspended: the job waits in `step` for some time, or for a signal, or for the jobs that it spawns or
-- needs. Or it goes on (`over`, with the signal or what an operator has supplied), or is to be `cancelled`.
-- `parked`: its process goes on when the wait is over, if the worker `may_park` it. That of a job with a key or a
-- source does not: it needs a slot or a permit first. OL002: the attempt is no longer this worker's.
declare
  job outlive.jobs;
  had outlive.running;
  unmet int;
  over boolean;
begin
  select j.* into job from outlive.jobs j
  where j.id = (select r.id from outlive.running r where r.token = suspend.token) for no key update;
  select r.* into had from outlive.running r
  where r.token = suspend.token and r.worker = suspend.worker for update;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  outcome := 'cancelled';
  parked := false;
  if had.cancel_requested then
    return next;
    return;
  end if;
  if had.crashes + had.losses > 0 and outlive.forgives_kills(had.id) then  -- A wait is a step.
    had.crashes := 0;
    had.losses := 0;
  end if;
  if spawns is not null then
    needs := array(
      select coalesce(m.existing, s.id)
      from rows from (json_to_recordset(spawns) as (id uuid)) with ordinality s(id, at)
        left join outlive.spawn(spawns) m on m.asked = s.id
      order by s.at);
  end if;
  if needs is not null then
    unmet := outlive.wait_for(had, step, needs);
    over := unmet = 0;
    value := case when over then to_json(needs) end;
  else
    select s.value into value from outlive.steps s where s.job_id = had.id and s.name = step;
    over := found;
    if not over then
      delete from outlive.signals s where s.number = (
        select min(o.number) from outlive.signals o where o.job_id = had.id and o.name = signal)
      returning s.value into value;
      over := found;
      if over then
        insert into outlive.steps (job_id, name, value, attempt, at)
        values (had.id, step, value, had.attempt, outlive.now());
        update outlive.running r set failures = 0, crashes = had.crashes, losses = had.losses
        where r.token = had.token;
      end if;
    end if;
  end if;
  outcome := case when over then 'over' else 'suspended' end;
  if not over then
    parked := may_park and job.concurrency_key is null and had.source = '';
    delete from outlive.running r where r.token = had.token;
    insert into outlive.held (
      id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes, losses, unmet, step,
      signal, parked_by)
    values (
      had.id, 'suspended', outlive.now(), had.queue, had.source, had.task, had.priority,
      case when after_s is null then 'infinity'
        else outlive.now() + least(after_s, 1e10) * interval '1 second' end, had.attempt, 0,
      had.crashes, had.losses, unmet, step, signal, case when parked then worker end);
    delete from outlive.expiring e where e.job_id = had.id and not e.whole;  -- It has started in time.
    perform outlive.follow_keys(array[had.id], array['suspended'], true);
  end if;
  return next;
end $$;

create or replace function outlive.wait_for(had outlive.running, step text, needs uuid[]) returns int
language plpgsql as $$
-- A job waits for these jobs to end, in whatever way; also again for one that has ended and was retried since. The
-- step keeps their ids, in their order. Returns how many are unfinished. OL003: one of them waits for this job, so
-- both would wait for ever. Only a dedupe key leads to such a job.
begin
  perform outlive.refuse_unless(had.id <> all(outlive.lock_needed(needs)),
    'it can''t gather itself, or a job that waits for it: another job has the dedupe key of what it gathers');
  insert into outlive.steps (job_id, name, value, attempt, at)
  values (had.id, step, to_json(needs), had.attempt, outlive.now()) on conflict do nothing;
  insert into outlive.dependencies as d (needs, job_id, on_failure)
  select j.id, had.id, 'proceed' from outlive.jobs j where j.id = any(needs)
  on conflict on constraint dependencies_pkey do update set met = false, on_failure = 'proceed'
  where d.met and outlive.state_of(d.needs) in ('pending', 'retryable', 'running', 'blocked', 'suspended');
  -- Some may end before this commits.
  insert into outlive.end_checks (needed, dependents) values (needs, array[had.id]);
  perform pg_notify('outlive', 'follow');
  return (select count(*) from outlive.dependencies d where d.job_id = had.id and not d.met);
end $$;

create or replace function outlive.as_uuid(id text) returns uuid language sql immutable as $$
-- Null: the text is no id.
select case when id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then id::uuid end
$$;

create or replace function outlive.gathered(job uuid) returns setof uuid language sql stable as $$
-- The jobs that it gathers or has gathered, as its steps have kept them. Workers in other languages may keep
-- anything in a step of that name.
select outlive.as_uuid(e.id)
from outlive.steps s,
  lateral json_array_elements_text(case when json_typeof(s.value) = 'array' then s.value else '[]' end) e(id)
where s.job_id = job and (s.name = 'gather' or s.name like 'gather#%') and outlive.as_uuid(e.id) is not null
$$;

create or replace function outlive.received(job uuid, step text) returns json language plpgsql as $$
-- What is kept in this step. Volatile, so that it sees what was committed since the snapshot of its caller: a
-- signal may come between that and the lock by which `resume` claims the job.
begin
  return (select s.value from outlive.steps s where s.job_id = job and s.name = step);
end $$;

create or replace function outlive.lock_needed(needs uuid[]) returns uuid[] language plpgsql as $$
-- Lock these jobs in `jobs`, and all that they wait for, and return them. None is pruned, and none begins to wait
-- before this commits, because `suspend` has locked its row. So of two jobs that begin to wait for each other at
-- the same moment, each waits for the other's lock: Postgres refuses one, which finds the other waiting when it
-- tries again.
declare
  locked uuid[] := '{}';
begin
  loop
    perform from outlive.jobs j where j.id = any(needs) order by j.id for share;
    locked := locked || needs;
    needs := array(
      with recursive above(id) as (
        select unnest(needs)
        union
        select n.needs from above a, lateral (
          select d.needs from outlive.dependencies d where d.job_id = a.id and not d.met offset 0) n)
      select a.id from above a except select unnest(locked));
    exit when needs = '{}';
  end loop;
  return locked;
end $$;

create or replace function outlive.refuse_signal(signal text) returns void language plpgsql as $$
-- OL003 if no job can wait for a signal of this name.
begin
  perform outlive.refuse_unless(
    octet_length(signal) between 1 and 200 and signal !~ ' > |[,:] |#\d+$',
    'the name of a signal is a text of 1 to 200 bytes, without " > ", ", " and ": ", and without # and a number at'
    ' its end');
end $$;

create or replace function outlive.send(job uuid, signal text, value json default null) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Leave a signal for a job, which it receives once. Returns the state of the job. If it waits for this signal, it
-- goes on, and is pending. OL003: the signal can't be kept, or this transaction would not see that it waits.
-- OL007: the job has ended. OL008: there is no such job.
declare
  state text;
  waiting outlive.held;
begin
  perform outlive.refuse_signal(signal);
  perform outlive.refuse_unless(
    octet_length(value::text) <= 1048576, 'the value of a signal has at most 1 MiB: send the address of the data');
  perform outlive.refuse_unreadable('the value of a signal', value);
  perform outlive.refuse_unless(outlive.sees_all(),
    'a signal can be sent only in a transaction with the isolation level READ COMMITTED');
  perform from outlive.jobs j where j.id = job for no key update;
  if not found then
    raise exception using errcode = 'OL008', message = format('there is no job %s', job);
  end if;
  select h.* into waiting from outlive.held h
  where h.id = job and h.why = 'suspended' and h.signal = send.signal for update;
  if found then
    insert into outlive.steps (job_id, name, value, attempt, at)
    values (job, waiting.step, coalesce(value, 'null'), waiting.attempt, outlive.now()) on conflict do nothing;
    update outlive.held h set signal = null where h.id = job;
    perform outlive.end_waits(array[job]);
    return 'pending';  -- Its row may stay for the worker that has parked its process.
  end if;
  state := outlive.state_of(job);  -- Asked once, because it may end at any time.
  if state in ('succeeded', 'failed', 'cancelled') then
    raise exception using errcode = 'OL007',
      message = format('job %s takes no signal %s: it has ended, and is %s', job, signal, state);
  end if;
  perform outlive.refuse_unless(
    (select count(*) from outlive.signals s where s.job_id = job) < 1000,
    '1,000 signals wait for it to receive them');
  insert into outlive.signals (job_id, name, value, at)
  values (job, signal, coalesce(value, 'null'), outlive.now());
  return state;
end $$;

create or replace function outlive.end_waits(ids uuid[], patience interval default interval '1 second')
returns int language plpgsql as $$
-- suspended -> pending: what these jobs wait for has come, or their time is over. Returns how many go on. Those
-- with a parked process stay for a moment, ready for the worker that has parked it. The caller has locked their
-- rows in `held`.
declare
  going uuid[];
begin
  update outlive.held h set ready_at = outlive.now()
  where h.id = any(ids) and h.parked_by is not null and h.ready_at > outlive.now();
  if found then
    perform pg_notify('outlive', 'resume');
  end if;
  with over as (
    delete from outlive.held h
    where h.id = any(ids) and (h.parked_by is null or h.ready_at <= outlive.now() - patience) returning h.*),
  kept as (
    insert into outlive.steps (job_id, name, arguments, attempt, at)
    select o.id, o.step, case when o.signal is not null then 'timed out' end, o.attempt, outlive.now() from over o
    on conflict do nothing),
  placed as (
    insert into outlive.waiting
    select o.queue, o.source, o.task, o.priority, outlive.now(), o.id, o.attempt, 0, o.crashes, o.losses
    from over o returning waiting.id)
  select coalesce(array_agg(p.id), '{}') into going from placed p;
  if cardinality(going) > 0 then
    perform outlive.requeue_keyed(going, going), outlive.wake();
  end if;
  return cardinality(going);
end $$;

create or replace function outlive.end_due(batch int) returns int
language plpgsql set enable_seqscan = off set jit = off as $$
-- End the waits whose time has come. Returns how many jobs go on. Locked ones are left for the next time.
begin
  return outlive.end_waits(array(
    select h.id from outlive.held h where h.why = 'suspended' and h.ready_at <= outlive.now()
    order by h.ready_at limit batch for update skip locked));
end $$;

-- What becomes of the steps of a job as a whole: operators drop or replace some, and a job drops its own.
-- OL003: it can't be done, and the message says why.

create or replace function outlive.forgives_kills(job uuid) returns boolean language sql stable as $$
-- Whether a new step sets the crashes and losses of its job to zero. A job of many steps may kill at some of them.
-- One that kills in every attempt, after a step, would never be caught: from its tenth kill on, and while it has
-- kept fewer than ten steps for each, it must end within max_crashes and max_losses.
select k.kills < 10 or k.kills * 10 <= s.kept
from (select count(*) as kept, min(s.attempt) as first from outlive.steps s where s.job_id = job) s, lateral (
  select count(*) as kills from (
    select a.* from outlive.attempts a where a.job_id = job and a.attempt >= s.first
    order by a.attempt desc limit 100) a
  where a.outcome in ('crashed', 'out_of_memory', 'lost') and a.loss is distinct from 'taken back') k;
$$;

create or replace function outlive.rerun(job uuid, step text) returns bigint language plpgsql as $$
-- succeeded, failed, cancelled, quarantined, retryable -> pending with all counters zero. The job begins again at
-- a step: this one, those below it and all that were kept after it are dropped. Returns how many. The lock waits
-- for transactions that enqueue jobs to wait for this one (outlive.depend): they have seen it as finished.
declare
  state text;
  since timestamptz;
  change record;
  dropped bigint;
begin
  perform from outlive.jobs j where j.id = job for update;
  perform outlive.refuse_unless(found, format('there is no job %s', job));
  state := outlive.state_of(job);
  perform outlive.refuse_unless(
    state in ('succeeded', 'failed', 'cancelled', 'quarantined', 'retryable'), case state
      when 'running' then 'it is running: cancel it, or wait until its attempt has ended'
      when 'suspended' then 'it waits: cancel it first'
      else format('it is %s: only a job that has ended, is in quarantine or waits for a retry begins again', state)
      end);
  select s.at into since from outlive.steps s where s.job_id = job and s.name = step;
  perform outlive.refuse_unless(found, format('it has kept no step %s', step));
  if state = 'quarantined' then
    perform outlive.release(array[job]);
  elsif state = 'succeeded' then  -- In the eyes of retry it has failed.
    update outlive.attempts a set state = 'failed' where a.job_id = job and a.state = 'succeeded';
    update outlive.batches b set succeeded = b.succeeded - 1, failed = b.failed + 1
    from outlive.jobs j where j.id = job and b.id = j.batch;
    with waiting as (  -- Those that wait for others too wait for its new result.
      update outlive.held h set unmet = h.unmet + 1
      where h.why = 'dependent'
        and h.id in (select d.job_id from outlive.dependencies d where d.needs = job and d.met)
      returning h.id)
    update outlive.dependencies d set met = false from waiting w where d.needs = job and d.job_id = w.id;
  end if;
  if outlive.state_of(job) <> 'pending' then
    select r.* into change from outlive.retry(array[job]) r;
    perform outlive.refuse_unless(change.changed, change.note);
  end if;
  with unread as (
    delete from outlive.signals g where g.job_id = job returning g.*)
  insert into outlive.signals (job_id, name, value, at)  -- What it has received comes first, and then the rest.
  select job, r.name, r.value, r.at
  from (
    select 0 as number, regexp_replace(s.name, '^receive:|#\d+$', '', 'g') as name, s.value, s.at
    from outlive.steps s
    where s.job_id = job and s.at >= since and s.name ^@ 'receive:'
      and s.value is not null and s.supplied_by is null
    union all
    select u.number, u.name, u.value, u.at from unread u) r
  order by r.number, r.at;
  delete from outlive.steps s where s.job_id = job and (s.at >= since or s.name ^@ (step || ' > '));
  get diagnostics dropped = row_count;
  return dropped;
end $$;

create or replace function outlive.refuse_step(job uuid, step text, value json) returns void language plpgsql as $$
-- OL003 if a job can't keep this value under this name.
begin
  perform outlive.refuse_unless(
    octet_length(step) between 1 and 1000, 'the name of a step has 1 to 1000 bytes');
  perform value::jsonb;  -- What jsonb can't hold, such as text with NUL, no job could read.
  perform outlive.refuse_unreadable('the value', value);
  perform outlive.refuse_unless(
    count(*) < 10000
      and coalesce(sum(octet_length(s.value::text)), 0) + octet_length(refuse_step.value::text) <= 16777216,
    'a job keeps at most 10,000 steps and 16,777,216 bytes of values')
  from outlive.steps s where s.job_id = job and s.name <> step;
end $$;

create or replace function outlive.supply(
  job uuid, step text, value json, who text, replacing boolean default false)
returns text language plpgsql as $$
-- Keep a person's value in place of what a step returns. An attempt that is in this step gets it when the step
-- returns; otherwise the next one does. Only `replacing` overwrites what is kept, and not while the job runs: its
-- attempt may have gone on from that. The step keeps its place among the others. Returns the state of the job.
begin
  perform from outlive.jobs j where j.id = job for no key update;
  perform outlive.refuse_unless(found, format('there is no job %s', job));
  perform outlive.refuse_step(job, step, value);
  insert into outlive.steps (job_id, name, value, attempt, at, supplied_by)
  select job, step, supply.value, coalesce(max(a.attempt), 0), outlive.now(), who from outlive.attempts a
  where a.job_id = job
  on conflict do nothing;
  if not found then
    perform outlive.refuse_unless(replacing, format(
      'it has kept the step %s: --replace, or Replace on the dashboard, overwrites its value', step));
    perform from outlive.waiting w where w.id = job for update;  -- So that no worker claims it meanwhile.
    perform from outlive.held h where h.id = job for update;
    perform outlive.refuse_unless(not exists (select from outlive.running r where r.id = job), format(
      'it is running, and may have gone on from its step %s: cancel it, or wait until its attempt has ended',
      step));
    update outlive.steps s set value = supply.value, arguments = null, took_s = null, supplied_by = who
    where s.job_id = job and s.name = step;
  end if;
  update outlive.held h set parked_by = null where h.id = job;  -- The process does not know of the new value.
  perform outlive.end_waits(array(
    select h.id from outlive.held h where h.id = job and h.why = 'suspended' and h.step = supply.step));
  return outlive.state_of(job);
end $$;

create or replace function outlive.restart(
  token bigint, worker uuid, args json, error text default null, peak_memory_bytes bigint default null,
  cpu_s double precision default null, output text default null, memory json default null)
returns void language plpgsql as $$
-- running -> pending: the job wants to begin again with these arguments. Its steps are dropped,
-- and as after a new step its counters are zero. If an operator wants it stopped, it is cancelled instead.
-- OL002: the attempt is no longer this worker's.
declare
  had outlive.running;
  before json;
  state text;
begin
  select j.args into before from outlive.jobs j
  where j.id = (select r.id from outlive.running r where r.token = restart.token) for no key update;
  delete from outlive.running r where r.token = restart.token and r.worker = restart.worker returning r.* into had;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  had.failures := 0;
  had.crashes := 0;
  had.losses := 0;
  had.ready_at := outlive.now();  -- Behind the jobs that wait: a job that restarts for ever starves no other.
  error := format('%s; this attempt had %s', error, left(before::text, 1000));
  state := outlive.settle(had, 'released', error, peak_memory_bytes => peak_memory_bytes, cpu_s => cpu_s,
    output => output, memory => memory);
  if state <> 'cancelled' then
    update outlive.jobs j set args = restart.args, fingerprint = null where j.id = had.id;
    delete from outlive.steps s where s.job_id = had.id;
    delete from outlive.dependencies d where d.job_id = had.id and not exists (
      select from outlive.jobs j where j.id = had.id and d.needs = any(j.after));
  end if;
  perform outlive.follow_up(array[had.id], array[state]);
end $$;

-- The audit: who did what to jobs, queues, sources, schedules, batches and workers.

create or replace function outlive.write_audit(entry uuid, who text, action text, what jsonb, jobs bigint)
returns void language sql
-- An action on many jobs takes several transactions. Each adds its jobs to the same entry, with up to 1,000 ids.
begin atomic
  insert into outlive.audit as a (id, at, who, action, what, jobs)
  values (entry, outlive.now(), who, action, what, jobs)
  on conflict (id) do update set jobs = a.jobs + excluded.jobs,
    what = case when a.what ? 'ids' then jsonb_set(a.what, '{ids}',
      jsonb_path_query_array((a.what -> 'ids') || (excluded.what -> 'ids'), '$[0 to 999]')) else a.what end;
end;

create or replace function outlive.act(verb text, ids uuid[], who text, what jsonb, entry uuid)
returns table (id uuid, state text, changed boolean, note text) language plpgsql as $$
-- cancel, retry, repeat, release or prune jobs, and write that to the audit, whose ids are those that it changed.
-- Zero rows: no such job. A job that is pruned has the state pruned.
declare
  one record;
  known uuid[];
  done uuid[] := '{}';
begin
  if verb = 'prune' then
    known := array(select j.id from outlive.jobs j where j.id = any(ids));
    perform outlive.prune(known);
  end if;
  for one in
    select c.* from outlive.cancel(ids) c where verb = 'cancel'
    union all
    select r.* from outlive.retry(ids) r where verb = 'retry'
    union all
    select a.* from outlive.repeat(ids) a where verb = 'repeat'
    union all
    select f.* from outlive.release(ids) f where verb = 'release'
    union all
    select k.id, coalesce(s.state, 'pruned'), s.state is null,
      case when s.state in ('succeeded', 'failed', 'cancelled', 'quarantined')
        then 'another job needs its result, or another transaction has locked it'
        when s.state is not null then 'only finished and quarantined jobs can be pruned' end
    from unnest(known) k(id), lateral (select outlive.state_of(k.id) as state) s where verb = 'prune'
  loop
    id := one.id; state := one.state; changed := one.changed; note := one.note;
    done := case when changed then done || id else done end;
    return next;
  end loop;
  if done <> '{}' then
    if what ? 'ids' then
      done := array(select u from unnest(ids) u where u = any(done));
      what := jsonb_set(what, '{ids}', to_jsonb(done[:1000]));
    end if;
    perform outlive.write_audit(entry, who, verb, what, cardinality(done));
  end if;
end $$;

-- Finding jobs: the operators' filter.
--
--     waiting_lanes, retryable_lanes, held_lanes, finished_lanes   the lanes that have such jobs
--     jobs_by_lane     jobs by state, task, queue and source, in the order of the time of their state
--     jobs_of_workers  jobs that workers run or have run
--     find_jobs        jobs by any filter, a page at a time
--
-- The time of a job's state is when it is ready, while it waits; when its attempt began, while it runs; since when
-- it is held; or when it ended. Each index by lane has this time last, so the jobs that match are read in order
-- from the lanes that match, and no other job is read. Lanes are found by a loose index scan, one step for each.
-- A filter by time leaves out the jobs whose time is yet to come.

create or replace function outlive.waiting_lanes()
returns table (queue text, source text, task text, priority smallint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select w.queue, w.source, w.task, w.priority from outlive.waiting w order by 1, 2, 3, 4 limit 1)
    union all
    select n.* from lane l, lateral (
      select w.queue, w.source, w.task, w.priority from outlive.waiting w
      where (w.queue, w.source, w.task, w.priority) > (l.queue, l.source, l.task, l.priority)
      order by 1, 2, 3, 4 limit 1) n)
  select l.queue, l.source, l.task, l.priority from lane l;
end;

create or replace function outlive.retryable_lanes() returns table (queue text, source text, task text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select w.queue, w.source, w.task from outlive.waiting w where w.failures + w.crashes > 0
     order by w.queue, w.source, w.task, w.ready_at limit 1)
    union all
    select n.* from lane l, lateral (
      select w.queue, w.source, w.task from outlive.waiting w
      where w.failures + w.crashes > 0 and (w.queue, w.source, w.task) > (l.queue, l.source, l.task)
      order by w.queue, w.source, w.task, w.ready_at limit 1) n)
  select l.queue, l.source, l.task from lane l;
end;

create or replace function outlive.held_lanes()
returns table (queue text, source text, task text, why text, failed boolean, state text)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0 as failed from outlive.held h
     order by 1, 2, 3, 4, 5 limit 1)
    union all
    select n.* from lane l, lateral (
      select h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0 from outlive.held h
      where (h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0)
        > (l.queue, l.source, l.task, l.why, l.failed)
      order by 1, 2, 3, 4, 5 limit 1) n)
  select l.queue, l.source, l.task, l.why, l.failed, outlive.held_state(l.why, l.failed) from lane l;
end;

create or replace function outlive.finished_lanes()
returns table (queue text, source text, task text, state text, hash bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
begin atomic
  with recursive lane as (
    (select a.queue, a.source, a.task, a.state, a.lane as hash
     from outlive.attempts a where a.state in ('succeeded', 'failed', 'cancelled') order by 5 limit 1)
    union all
    select n.* from lane l, lateral (
      select a.queue, a.source, a.task, a.state, a.lane from outlive.attempts a
      where a.state in ('succeeded', 'failed', 'cancelled') and a.lane > l.hash
      order by 5 limit 1) n)
  select l.queue, l.source, l.task, l.state, l.hash from lane l;
end;

create or replace function outlive.jobs_by_lane(
  states text[], of_task text, in_queue text, of_source text, from_at timestamptz, until_at timestamptz,
  past_at timestamptz, past_id uuid, oldest boolean, most int)
returns table (at timestamptz, id uuid, state text)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off set plan_cache_mode = force_custom_plan as $$
-- The first jobs past a position that are in one of these states, and came into it in this time. Null takes every
-- task, queue or source. Finished jobs of all lanes are read by their state: there may be many lanes.
#variable_conflict use_column
declare
  every_lane boolean := of_task is null and in_queue is null and of_source is null;
  ended text[] := array(select unnest(states) intersect select unnest('{succeeded,failed,cancelled}'::text[]));
begin
  -- The scan of an index begins where the position says, whatever the time. So the time bounds the position.
  if (oldest and from_at > past_at) or (not oldest and until_at <= past_at) then
    past_at := case when oldest then from_at else until_at end;
    past_id := '00000000-0000-0000-0000-000000000000';
  end if;
  if oldest then
    return query
    select n.at, n.id, n.state from (
      select w.at, w.id, 'pending' as state from outlive.waiting_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) > (past_at, past_id)
          and t.failures + t.crashes = 0
        order by t.ready_at, t.id limit most) w
      where 'pending' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select w.at, w.id, 'retryable' from outlive.retryable_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.failures + t.crashes > 0
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) > (past_at, past_id)
        order by t.ready_at, t.id limit most) w
      where 'retryable' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select h.at, h.id, l.state from outlive.held_lanes() l, lateral (
        select t.since as at, t.id from outlive.held t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.why = l.why
          and t.since >= from_at and t.since < until_at and (t.since, t.id) > (past_at, past_id)
          and (t.failures + t.crashes > 0) = l.failed
        order by t.since, t.id limit most) h
      where l.state = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select r.started_at, r.id, 'running' from outlive.running r
      where 'running' = any(states) and r.task = coalesce(of_task, r.task)
        and r.queue = coalesce(in_queue, r.queue) and r.source = coalesce(of_source, r.source)
        and r.started_at >= from_at and r.started_at < until_at and (r.started_at, r.id) > (past_at, past_id)
      union all
      select a.at, a.id, a.state from unnest(ended) s(state), lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.state = s.state and t.ended_at >= greatest(from_at, past_at) and t.ended_at < until_at
          and (t.ended_at, t.job_id) > (past_at, past_id)
        order by t.ended_at, t.job_id limit most) a
      where every_lane
      union all
      select a.at, a.id, a.state from outlive.finished_lanes() l, lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
          and t.ended_at >= greatest(from_at, past_at) and t.ended_at < until_at
          and (t.ended_at, t.job_id) > (past_at, past_id)
        order by t.ended_at, t.job_id limit most) a
      where not every_lane and l.state = any(ended) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)) n
    order by n.at, n.id limit most;
  else
    return query
    select n.at, n.id, n.state from (
      select w.at, w.id, 'pending' as state from outlive.waiting_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) < (past_at, past_id)
          and t.failures + t.crashes = 0
        order by t.ready_at desc, t.id desc limit most) w
      where 'pending' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select w.at, w.id, 'retryable' from outlive.retryable_lanes() l, lateral (
        select t.ready_at as at, t.id from outlive.waiting t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.failures + t.crashes > 0
          and t.ready_at >= from_at and t.ready_at < until_at and (t.ready_at, t.id) < (past_at, past_id)
        order by t.ready_at desc, t.id desc limit most) w
      where 'retryable' = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select h.at, h.id, l.state from outlive.held_lanes() l, lateral (
        select t.since as at, t.id from outlive.held t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.why = l.why
          and t.since >= from_at and t.since < until_at and (t.since, t.id) < (past_at, past_id)
          and (t.failures + t.crashes > 0) = l.failed
        order by t.since desc, t.id desc limit most) h
      where l.state = any(states) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)
      union all
      select r.started_at, r.id, 'running' from outlive.running r
      where 'running' = any(states) and r.task = coalesce(of_task, r.task)
        and r.queue = coalesce(in_queue, r.queue) and r.source = coalesce(of_source, r.source)
        and r.started_at >= from_at and r.started_at < until_at and (r.started_at, r.id) < (past_at, past_id)
      union all
      select a.at, a.id, a.state from unnest(ended) s(state), lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.state = s.state and t.ended_at >= from_at and t.ended_at < until_at and t.ended_at <= past_at
          and (t.ended_at, t.job_id) < (past_at, past_id)
        order by t.ended_at desc, t.job_id desc limit most) a
      where every_lane
      union all
      select a.at, a.id, a.state from outlive.finished_lanes() l, lateral (
        select t.ended_at as at, t.job_id as id, t.state from outlive.attempts t
        where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
          and t.ended_at >= from_at and t.ended_at < until_at and t.ended_at <= past_at
          and (t.ended_at, t.job_id) < (past_at, past_id)
        order by t.ended_at desc, t.job_id desc limit most) a
      where not every_lane and l.state = any(ended) and l.task = coalesce(of_task, l.task)
        and l.queue = coalesce(in_queue, l.queue) and l.source = coalesce(of_source, l.source)) n
    order by n.at desc, n.id desc limit most;
  end if;
end $$;

create or replace function outlive.jobs_of_workers(
  names text[], ended_in text[], from_at timestamptz, until_at timestamptz, past_at timestamptz, past_id uuid,
  oldest boolean, most int)
returns table (at timestamptz, id uuid, attempt int) language plpgsql stable set enable_seqscan = off
set enable_bitmapscan = off set enable_sort = off set jit = off set plan_cache_mode = force_custom_plan as $$
-- The first jobs past a position that workers of these names run, by the time at which their attempt began, or
-- have run, by the time at which it ended, if it ended in one of these states. A job is there once for each of its
-- attempts. Those that run or have finished their job are of this time, which is that of the job's state. Others
-- are of any time.
#variable_conflict use_column
begin
  return query
  select n.at, n.id, n.attempt from (
    select a.at, a.id, a.attempt from unnest(names) k(name), unnest(ended_in) e(state), lateral (
      select hashtextextended(e.state, hashtextextended(k.name, 0)) as hash,
        case when e.state = any('{succeeded,failed,cancelled}') then from_at else '-infinity' end as first_at,
        case when e.state = any('{succeeded,failed,cancelled}') then until_at else 'infinity' end as end_at) h,
    lateral (
      (select t.ended_at as at, t.job_id as id, t.attempt from outlive.attempts t
       where oldest and hashtextextended(t.state, hashtextextended(t.worker_name, 0)) = h.hash
         and t.ended_at >= greatest(h.first_at, past_at) and t.ended_at < h.end_at
         and (t.ended_at, t.job_id) > (past_at, past_id)
       order by t.ended_at, t.job_id limit most)
      union all
      (select t.ended_at, t.job_id, t.attempt from outlive.attempts t
       where not oldest and hashtextextended(t.state, hashtextextended(t.worker_name, 0)) = h.hash
         and t.ended_at >= h.first_at and t.ended_at < h.end_at
         and t.ended_at <= past_at and (t.ended_at, t.job_id) < (past_at, past_id)
       order by t.ended_at desc, t.job_id desc limit most)) a
    union all
    select r.started_at, r.id, r.attempt from outlive.running r join outlive.workers k on k.id = r.worker
    where k.name = any(names) and r.started_at >= from_at and r.started_at < until_at
      and case when oldest then (r.started_at, r.id) > (past_at, past_id)
      else (r.started_at, r.id) < (past_at, past_id) end) n
  order by case when oldest then n.at end, case when oldest then n.id end, n.at desc, n.id desc limit most;
end $$;

create or replace function outlive.find_jobs(
  inout place text, past_at timestamptz, past_id uuid, oldest boolean, look int, most int, counting boolean,
  states text[], of_task text, in_queue text, of_source text, on_worker text, in_batch uuid,
  since_at timestamptz, before_at timestamptz, words text,
  out ids uuid[], out matched bigint, out looked_at bigint, out next_at timestamptz, out next_id uuid)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off set plan_cache_mode = force_custom_plan as $$
-- The jobs that match a filter, the newest or the oldest first, a page at a time. A part of the filter that is
-- null takes every job. The place says where to look: in all jobs (`ids`) or those of a batch, by id; in what a
-- worker runs and has run (`worker`), by time, where each job counts with its last attempt; or in lanes, by the
-- time of their state. The first page, which has no position yet, looks in lanes if the batch or the worker has
-- many jobs that may not match.
-- It looks at no more than `look` jobs past a position, so its time is bounded however rare a match is. It returns
-- the ids of the first jobs that match (none if only their number is wanted), how many these are, how many jobs it
-- has looked at, and the position where the next page begins. No position: the place has no more jobs.
-- The plan is pinned: a table that was filled a moment ago has no statistics. `offset 0` keeps Postgres from
-- reading a whole table instead of looking up each job. One function lowers the words and what they are looked for
-- in: the locale of the database says which letters it knows, and a client may know others.
declare
  every_state text[] := coalesce(
    states, '{pending,retryable,running,blocked,suspended,quarantined,succeeded,failed,cancelled}');
  from_at timestamptz := coalesce(since_at, '-infinity');
  until_at timestamptz := coalesce(
    before_at, case when since_at is null then 'infinity' else outlive.now() + interval '1 microsecond' end);
  every_lane boolean := of_task is null and in_queue is null and of_source is null;
  every_time boolean := since_at is null and before_at is null;
  names text[] := array(
    select on_worker union select k.name from outlive.workers k where k.id::text = on_worker);
  finished constant text[] := '{succeeded,failed,cancelled}';
  ended_in text[] := array(  -- An attempt that has finished its job in another state is not one of these jobs'.
    select s from unnest('{succeeded,pending,retryable,failed,quarantined,cancelled}'::text[]) s
    where s <> all(finished) or s = any(every_state));
  in_vain text[] := array(  -- After attempts that ended so, a job may well not match.
    select s from unnest(ended_in) s
    where not every_lane or not coalesce(states && finished, true) or not every_time and s <> all(finished));
begin
  words := lower(words);
  if past_at is null then
    past_at := case when oldest then '-infinity' else 'infinity' end;
    past_id := case when oldest then '00000000-0000-0000-0000-000000000000'
      else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end::uuid;
    if place = 'batch' and not (states is null and every_lane and every_time)
        and exists (select from outlive.jobs j where j.batch = in_batch offset 1000)
      or place = 'worker'
        and exists (select from unnest(names) k(name), unnest(in_vain) e(state), lateral (
          select from outlive.attempts a
          where hashtextextended(a.state, hashtextextended(a.worker_name, 0))
            = hashtextextended(e.state, hashtextextended(k.name, 0)) limit 1001) a offset 1000) then
      place := 'lanes';
    end if;
  end if;
  with seen as materialized (
    select row_number() over () as n, p.* from (
      (select '-infinity'::timestamptz as at, j.id, null as state, null::int as attempt from outlive.jobs j
       where place = 'ids' and not oldest and j.id < past_id order by j.id desc limit look)
      union all
      (select '-infinity', j.id, null, null from outlive.jobs j
       where place = 'ids' and oldest and j.id > past_id order by j.id limit look)
      union all
      (select '-infinity', j.id, null, null from outlive.jobs j
       where place = 'batch' and not oldest and j.batch = in_batch and j.id < past_id
       order by j.id desc limit look)
      union all
      (select '-infinity', j.id, null, null from outlive.jobs j
       where place = 'batch' and oldest and j.batch = in_batch and j.id > past_id order by j.id limit look)
      union all
      (select w.at, w.id, null, w.attempt
       from outlive.jobs_of_workers(names, ended_in, from_at, until_at, past_at, past_id, oldest, look) w
       where place = 'worker')
      union all
      (select l.at, l.id, l.state, null from outlive.jobs_by_lane(every_state, of_task, in_queue, of_source,
         from_at, until_at, past_at, past_id, oldest, look) l
       where place = 'lanes')) p),
  few as materialized (
    select s.n, s.at, s.id from seen s
    where (place = 'lanes' or every_lane or exists (
        select from outlive.jobs j
        where j.id = s.id and j.task = coalesce(of_task, j.task) and j.queue = coalesce(in_queue, j.queue)
          and j.source = coalesce(of_source, j.source) offset 0))
      and (place = 'lanes' or states is null or outlive.state_of(s.id) = any(states))
      and (place = 'lanes' or every_time or (
        select coalesce(t.completed_at, t.held_since, t.locked_at, t.ready_at) >= from_at
          and coalesce(t.completed_at, t.held_since, t.locked_at, t.ready_at) < until_at
        from outlive.job_states t where t.id = s.id))
      and (place = 'batch' or in_batch is null or exists (
        select from outlive.jobs j where j.id = s.id and j.batch = in_batch offset 0))
      and (on_worker is null or (
        select max(t.attempt) = coalesce(s.attempt, max(t.attempt)) from (
          select a.attempt from outlive.attempts a
          where a.job_id = s.id and on_worker in (a.worker_name, a.worker::text)
          union all
          select r.attempt from outlive.running r join outlive.workers k on k.id = r.worker
          where r.id = s.id and on_worker in (k.name, k.id::text)) t))
      and (words is null
        or exists (select from outlive.jobs j
          where j.id = s.id and (strpos(lower(j.task), words) > 0
            or strpos(replace(lower(j.args::text), ' ', ''), nullif(replace(words, ' ', ''), '')) > 0) offset 0)
        or exists (select from outlive.attempts a
          where a.job_id = s.id and strpos(lower(a.error), words) > 0 offset 0))
    limit most),  -- `seen` is in order.
  counted as (select (select count(*) from few) as few, (select count(*) from seen) as seen),
  last as (
    (select f.n, f.at, f.id from few f, counted c where c.few = most order by f.n desc limit 1)
    union all
    (select s.n, s.at, s.id from seen s, counted c where c.few < most and c.seen = look
     order by s.n desc limit 1))
  select case when counting then '{}' else array(select f.id from few f order by f.n) end, c.few,
    coalesce(l.n, c.seen), nullif(l.at, '-infinity'), case when l.n < c.seen or c.seen = look then l.id end
  into ids, matched, looked_at, next_at, next_id
  from counted c left join last l on true;
end $$;

-- Dependencies: jobs that wait for other jobs.
--
--     depend              new jobs wait for the jobs that they need
--     take_along          jobs were replaced: those that waited for them wait for the new ones
--     lock_dependents     locks the jobs that wait for jobs which end, and finds those that are to be cancelled
--     leave_ends          leaves ends for later
--     release_dependents  jobs have ended: releases or cancels the jobs that wait for them
--     inputs              the results of the jobs that a running job has waited for
--
-- What is left for later is done by worker/fleet/leftovers.py, in watchers and in `outlive reap`, with the
-- functions of late_releases.sql.
--
-- A job only waits for jobs that exist or come before it in the same call, so jobs never wait in a circle.
--
-- Why no release is lost. Two jobs that another one waits for may end at the same time: each of the two
-- transactions updates the row in `held` of the job that waits, so the second sees what the first has done. And a
-- job may end while the transaction that enqueues another one to wait for it is open: its end does not see the
-- dependency, and the enqueue, which locks no row of another job, does not see the end. So that transaction leaves
-- a note in `end_checks`, which is there from its commit on. outlive.check_late_ends then locks the row of the job
-- in its place. Either the job has ended by then, and its end is applied; or it ends later, and
-- outlive.follow_up, which looks for dependencies after the end has deleted that row, sees the dependency; or the
-- row is locked, because the job is moved or ends just now, and the note stays.
-- Two more kinds of ends are left for later. Those that a transaction at the isolation level repeatable read
-- or serializable has written: it sees only what was committed before it began. And those that concern many jobs:
-- an end is written soon, however many jobs wait for it. outlive.follow_late_ends follows these up, some jobs at
-- a time.

create or replace function outlive.many_dependents() returns int language sql immutable
-- How many jobs are released or cancelled at once.
return 500;

create or replace function outlive.depend(ids uuid[], on_failures text[]) returns void language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
-- pending -> blocked, for the new jobs that need others: `jobs` says which. An id that is null was not made. One
-- on_failure is that of all jobs. The jobs that they need can't be pruned before this commits.
declare
  places jsonb := (
    select jsonb_object_agg(i.id, i.at) from unnest(ids) with ordinality i(id, at) where i.id is not null);
  wrong record;
  needed uuid[];
  states text[];
begin
  perform from outlive.jobs k where k.id = any(array(
    select n.id from outlive.jobs j, unnest(j.after) n(id) where j.id = any(ids) and not places ? n.id::text))
  order by k.id for key share;
  select j.id, n.needs into wrong
  from outlive.jobs j, unnest(j.after) n(needs)
  where j.id = any(ids) and (
    (places ->> n.needs::text)::int >= (places ->> j.id::text)::int
    or not exists (select from outlive.jobs k where k.id = n.needs))
  limit 1;
  if found then
    raise exception using errcode = 'OL003', message = case
      when wrong.id = wrong.needs then format('job %s can''t wait for itself', wrong.id)
      else format('job %s can''t wait for job %s: a job can only wait for jobs that exist or come before it in '
        'the same call', wrong.id, wrong.needs) end;
  end if;
  insert into outlive.held (
    id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes, losses, unmet)
  select j.id, 'dependent', outlive.now(), j.queue, j.source, j.task, j.priority, j.ready_at, 0, 0, 0, 0,
    (select count(distinct n) from unnest(j.after) n)
  from outlive.jobs j where j.id = any(ids) and j.after is not null order by j.id;
  insert into outlive.dependencies (needs, job_id, on_failure)
  select distinct n.needs, j.id, coalesce(
    case when cardinality(on_failures) = 1 then on_failures[1] else on_failures[(places ->> j.id::text)::int] end,
    'block')
  from outlive.jobs j, unnest(j.after) n(needs) where j.id = any(ids);
  -- Jobs of this call can't have ended: no other transaction sees them yet.
  insert into outlive.end_checks (needed, dependents)
  select array_agg(distinct d.needs), array_agg(distinct d.job_id)
  from outlive.dependencies d where d.job_id = any(ids) and not places ? d.needs::text having count(*) > 0;
  select array_agg(e.id), array_agg(e.state) into needed, states
  from (
    select n.id, outlive.state_of(n.id) as state
    from (select distinct d.needs as id from outlive.dependencies d where d.job_id = any(ids)) n) e
  where e.state in ('succeeded', 'failed', 'cancelled', 'quarantined');
  if needed is not null then
    perform outlive.apply_past_ends(needed, states, ids);
  end if;
end $$;

create or replace function outlive.take_along(replaced uuid[], replacing uuid[], made uuid[]) returns void
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off as $$
-- blocked -> blocked: the jobs that wait for jobs which were just replaced wait for the new ones instead. Not so
-- those for which a new one waits itself, and jobs of the same call: to them the old one was cancelled.
declare
  pair record;
  moved uuid[];
  locked uuid[];
begin
  locked := array(
    select h.id from outlive.held h where h.id = any(array(
      select d.job_id from outlive.dependencies d where d.needs = any(replaced) and not d.met))
    order by h.id for update);
  for pair in
    select p.* from unnest(replaced, replacing) p(old, new)
    where exists (select from outlive.dependencies d where d.needs = p.old and not d.met)
  loop
    moved := array(
      with recursive above(id) as (
        select pair.new
        union
        select n.needs from above a, lateral (
          select d.needs from outlive.dependencies d where d.job_id = a.id offset 0) n)
      select unnest(locked) except (select a.id from above a union all select unnest(made)));
    with changed as (
      update outlive.dependencies d set needs = pair.new
      where d.needs = pair.old and d.job_id = any(moved) and not d.met returning d.job_id)
    select array_agg(c.job_id) into moved from changed c;
    update outlive.jobs j set after = array_replace(j.after, pair.old, pair.new) where j.id = any(moved);
    -- The new one may have ended already, if it waits for others.
    insert into outlive.end_checks (needed, dependents) select array[pair.new], moved where moved is not null;
  end loop;
  perform outlive.apply_past_ends(replaced, array_fill('cancelled'::text, array[cardinality(replaced)]), locked);
end $$;

create or replace function outlive.unmet_because(needs uuid, state text) returns text language sql immutable
-- Why a job stays blocked by a job that has ended without success, in words; null for any other job.
-- Each begins with 'job ' and the id: release_dependents reads it from there.
return format(case state
  when 'failed' then 'job %s failed: retry it, or release this job'
  when 'cancelled' then 'job %s was cancelled: retry it, or release this job'
  when 'quarantined' then 'job %s is in quarantine: release it, or release this job' end, needs);

create or replace function outlive.span(among uuid[], out first uuid, out last uuid)
language plpgsql immutable as $$
-- The smallest and the largest of these ids; null stands for all ids. Who looks for some of very many jobs that
-- wait for one need not read the others.
begin
  first := '00000000-0000-0000-0000-000000000000';
  last := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  if among is not null then
    select a.id into first from unnest(among) a(id) order by a.id limit 1;
    select a.id into last from unnest(among) a(id) order by a.id desc limit 1;
  end if;
end $$;

create or replace function outlive.lock_dependents(
  good uuid[], bad uuid[], mine uuid[] default '{}', among uuid[] default null, out doomed uuid[],
  out locked uuid[], out too_many boolean)
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
-- Lock in `held`, in the order of their ids, all that the ends of these jobs concern, and `mine`: the jobs that
-- wait for them; those that are doomed, because they wait for a bad one, or for one another, with on_failure
-- cancel; and the jobs that wait for these. Without `among`, if these are too many to be changed at once, only
-- `mine` are locked. With `among`, other jobs are left alone.
-- While it waits for a lock, more jobs may be enqueued to wait for those it locks, so it looks again until it
-- finds no more. It does not wait for those, nor for those of `among`: the caller may have locked others, and two
-- such waits could be for each other. If one of `among` is locked, it fails. The others are left for later.
declare
  fresh uuid[];
  fallen boolean[];
  tried uuid[] := '{}';
  refused uuid[] := '{}';
  first uuid;
  last uuid;
begin
  locked := '{}';
  select s.* into first, last from outlive.span(among) s;
  loop
    with recursive concerned(id, falls) as (
      select d.job_id, e.bad and d.on_failure = 'cancel'
      from (select unnest(good), false union all select unnest(bad), true) e(id, bad), lateral (
        select l.job_id, l.on_failure from outlive.dependencies l
        where l.needs = e.id and not l.met and l.job_id between first and last
          and (among is null or l.job_id in (select unnest(among)))
          and l.job_id not in (select unnest(refused)) offset 0) d
      union
      select d.job_id, d.on_failure = 'cancel' from concerned c, lateral (
        select l.job_id, l.on_failure from outlive.dependencies l
        where c.falls and l.needs = c.id and not l.met and l.job_id between first and last
          and (among is null or l.job_id in (select unnest(among)))
          and l.job_id not in (select unnest(refused)) offset 0) d)
    select coalesce(array_agg(c.id), '{}'), array_agg(c.falls) into fresh, fallen
    from (
      select f.* from concerned f
      limit case when among is null then outlive.many_dependents() + 1 end) c;
    too_many := among is null and cardinality(fresh) > outlive.many_dependents();
    doomed := case when too_many then '{}' else array(
      select f.id from unnest(fresh, fallen) f(id, falls) where f.falls except select unnest(bad)) end;
    fresh := array(
      (select unnest(mine) union select unnest(fresh) where not too_many) except select unnest(tried));
    exit when fresh = '{}';
    if tried = '{}' and among is null then
      locked := array(select h.id from outlive.held h where h.id = any(fresh) order by h.id for update);
    elsif tried = '{}' then
      locked := array(select h.id from outlive.held h where h.id = any(fresh) for update nowait);
    else
      locked := locked || array(
        select h.id from outlive.held h where h.id = any(fresh) for update skip locked);
      refused := refused || array(select unnest(fresh) except select unnest(locked));
    end if;
    exit when doomed = '{}' and mine = '{}';
    tried := tried || fresh;
  end loop;
  if refused <> '{}' then
    perform outlive.leave_ends(good || bad || doomed, refused);
  end if;
end $$;

create or replace function outlive.leave_ends(ids uuid[], dependents uuid[] default null) returns void
language plpgsql set enable_seqscan = off as $$
-- Leave the ends of these jobs for later; with `dependents`, only what they mean to those.
begin
  insert into outlive.end_checks (needed, dependents)
  select array_agg(e.id order by e.id), leave_ends.dependents from unnest(ids) e(id)
  where exists (
    select from outlive.dependencies d where d.needs = e.id and not d.met
      and (leave_ends.dependents is null or d.job_id = any(leave_ends.dependents)))
  having count(*) > 0;
  if found then
    perform pg_notify('outlive', 'follow');
  end if;
end $$;

create or replace function outlive.release_dependents(
  inout ids uuid[], inout states text[], among uuid[] default null, out changed int)
language plpgsql set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
-- blocked -> pending, cancelled: these jobs have just reached these states, and others wait for them. It adds the
-- jobs that it cancels. Returns how many jobs it has released or cancelled. With `among`, other jobs are left
-- alone. Without it, what concerns too many jobs is left for later.
-- There are no joins, because a plan that was made for empty tables could join in the wrong order: width_bucket
-- finds a job in a sorted array.
declare
  good uuid[];
  bad uuid[];
  finished uuid[];
  doomed uuid[];
  too_many boolean;
  released uuid[];
  gathered uuid[];
  reasons text[];
  first uuid;
  last uuid;
begin
  changed := 0;
  if not exists (select from outlive.dependencies d where d.needs = any(ids))
     and not exists (select from outlive.dependencies d where d.job_id = any(ids)) then
    return;
  end if;
  select
    coalesce(array_agg(e.id) filter (where e.state = 'succeeded'), '{}'),
    coalesce(array_agg(e.id) filter (where e.state in ('failed', 'cancelled', 'quarantined')), '{}'),
    coalesce(array_agg(e.id) filter (where e.state in ('succeeded', 'failed', 'cancelled')), '{}')
  into good, bad, finished
  from unnest(ids, states) e(id, state);
  select s.* into first, last from outlive.span(among) s;
  if exists (
    select from outlive.dependencies d
    where d.needs = any(good || bad) and not d.met and d.job_id between first and last)
  then
    select l.* into doomed, among, too_many from outlive.lock_dependents(good, bad, among => among) l;
    -- A job that is seen only now is left alone. It was enqueued after these had left their places, or is locked:
    -- `end_checks` has a note of it.
    select s.* into first, last from outlive.span(among) s;
  end if;
  if too_many then
    perform outlive.leave_ends(good || bad);
    doomed := null;
  end if;
  -- Now `doomed` is null if no job waits for these or too many do, and empty if none of those that wait is to be
  -- cancelled.
  if doomed <> '{}' then
    bad := bad || doomed;
    with reasons as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'cancel' and d.job_id between first and last
        group by d.job_id) s),
    gone as (
      delete from outlive.held h where h.id = any(doomed)
      returning h.*, ((select needs from reasons))[width_bucket(h.id, (select jobs from reasons))] as needs)
    select outlive.finish_unclaimed(
      array_agg(g.id), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes), array_agg(g.losses),
      array_agg(format('cancelled, because job %s ended without success', g.needs)))
    into doomed from gone g;
    finished := finished || doomed;
    ids := ids || doomed;
    states := states || array_fill('cancelled'::text, array[cardinality(doomed)]);
    changed := cardinality(doomed);
  end if;
  delete from outlive.dependencies d where d.job_id = any(good);
  update outlive.dependencies d set met = true
  where d.job_id = any(finished) and not d.met
    and not exists (select from outlive.held h where h.id = d.job_id);  -- It was retried since, and waits again.
  if doomed is null then
    return;
  end if;
  with met as (
    update outlive.dependencies d set met = true
    where d.needs = any(good || bad) and not d.met and d.job_id between first and last
      and (bad = '{}' or d.on_failure = 'proceed' or d.needs = any(good))
      and d.job_id in (select unnest(among))
    returning d.job_id, d.needs),
  progress as materialized (
    select array_agg(p.job_id order by p.job_id) as jobs, array_agg(p.met order by p.job_id) as met
    from (select m.job_id, count(*)::int as met from met m group by m.job_id) p),
  freed as (
    delete from outlive.held h
    where h.id = any((select jobs from progress)::uuid[]) and h.why <> 'suspended'
      and h.unmet <= ((select met from progress))[width_bucket(h.id, (select jobs from progress))]
    returning h.*),
  released as (
    insert into outlive.waiting (queue, source, task, priority, ready_at, id, attempt)
    select f.queue, f.source, f.task, f.priority,
      -- Not before now, because watermarks are there already, and a microsecond apart, as in enqueue.
      greatest(f.ready_at, outlive.now() - interval '1 microsecond'
        * (count(*) over () - row_number() over (order by f.ready_at, f.id))), f.id, f.attempt
    from freed f returning id),
  advanced as (
    update outlive.held h set
      unmet = h.unmet - ((select met from progress))[width_bucket(h.id, (select jobs from progress))],
      details = case  -- The id is where unmet_because has put it.
        when substr(h.details, 5, 36)::uuid = any(array(select m.needs from met m)) then (
          select max(outlive.unmet_because(d.needs, outlive.state_of(d.needs))) from outlive.dependencies d
          where d.job_id = h.id and not d.met)
        else h.details end
    where h.id = any((select jobs from progress)::uuid[]) and (h.why = 'suspended'
      or h.unmet > ((select met from progress))[width_bucket(h.id, (select jobs from progress))])
    returning h.id, h.unmet, h.why)
  select coalesce(array_agg(r.id), '{}'),
    array(select a.id from advanced a where a.why = 'suspended' and a.unmet <= 0)
  into released, gathered from released r;
  if gathered <> '{}' then
    perform outlive.end_waits(gathered);
  end if;
  if cardinality(released) > 0 then
    if exists (select from outlive.jobs j where j.id = any(released) and j.concurrency_key is not null) then
      perform outlive.requeue_keyed(released, released);
    end if;
    perform outlive.wake();
  end if;
  changed := changed + cardinality(released) + cardinality(gathered);
  if bad <> '{}' then
    -- One reason for each job that has ended, not for each that waits.
    select array_agg(e.id order by e.id), array_agg(outlive.unmet_because(e.id, e.state) order by e.id)
    into bad, reasons
    from unnest(ids, states) e(id, state) where e.state in ('failed', 'cancelled', 'quarantined');
    with stuck as materialized (
      select array_agg(s.job_id order by s.job_id) as jobs, array_agg(s.needs order by s.job_id) as needs
      from (
        select d.job_id, (array_agg(d.needs))[1] as needs from outlive.dependencies d
        where d.needs = any(bad) and not d.met and d.on_failure = 'block' and d.job_id between first and last
          and d.job_id in (select unnest(among))
        group by d.job_id) s)
    update outlive.held h set
      since = outlive.now(),
      details = reasons[width_bucket(
        ((select needs from stuck))[width_bucket(h.id, (select jobs from stuck))], bad)]
    where h.id = any((select jobs from stuck)::uuid[]);
  end if;
end $$;

create or replace function outlive.inputs(token bigint, first int, skip int)
returns table (size int, part bytea) language plpgsql stable as $$
-- The results of the jobs that the job of this attempt has waited for, in the order of its `after`, as far as they
-- fit into a megabyte: from the one at `first` on, without the first `skip` bytes of that one. Each row has the
-- size of the whole result, or nulls if there is no result. No rows: there are no more. OL002: the attempt has
-- ended.
declare
  room int := 1048576;
  needed uuid[];
  result bytea;
begin
  select j.after into needed from outlive.running r join outlive.jobs j on j.id = r.id
  where r.token = inputs.token;
  if not found then
    raise exception using errcode = 'OL002', message = format('attempt %s is no longer under way', token);
  end if;
  for n in first + 1 .. coalesce(cardinality(needed), 0) loop
    select convert_to(a.result::text, 'UTF8') into result from outlive.attempts a
    where a.job_id = needed[n] order by a.attempt desc limit 1;
    size := octet_length(result);
    part := substring(result from skip + 1 for room);
    return next;
    room := room - coalesce(octet_length(part), 0) - 16;
    exit when room <= 0;
    skip := 0;
  end loop;
end $$;

-- Late ends: what waits for jobs that have ended, and could not be released at once. dependencies.sql says why.
-- worker/fleet/leftovers.py calls check_late_ends and follow_late_ends, in watchers and in `outlive reap`.

create or replace function outlive.apply_past_ends(needed uuid[], states text[], among uuid[]) returns void
language plpgsql as $$
-- These jobs had ended before: apply that to the jobs of `among` that wait for them. Their own ends were followed
-- up then. What waits for those that are cancelled is left for later.
declare
  others uuid[];
begin
  others := (select r.ids[cardinality(needed) + 1:] from outlive.release_dependents(needed, states, among) r);
  if cardinality(others) > 0 then
    perform outlive.leave_ends(others);
    perform outlive.follow_through(others, array_fill('cancelled'::text, array[cardinality(others)]));
  end if;
end $$;

create or replace function outlive.find_ended(
  needed uuid[], out ended uuid[], out states text[], out moving uuid[])
language plpgsql set enable_seqscan = off as $$
-- Those of these jobs that have ended, with their states, in their order; and those that another transaction moves
-- or ends just now. A job that was pruned is neither: no other one needs it. The others can't end before this
-- transaction does: it locks them in their places.
declare
  rest uuid[];
begin
  rest := array(select w.id from outlive.waiting w where w.id = any(needed) for key share skip locked);
  rest := rest || array(select r.id from outlive.running r where r.id = any(needed) for key share skip locked);
  rest := rest || array(
    select h.id from outlive.held h where h.id = any(needed) and h.why <> 'quarantined' for key share skip locked);
  rest := array(select unnest(needed) except select unnest(rest));
  select
    coalesce(array_agg(r.id order by r.at) filter (where r.has_ended), '{}'),
    coalesce(array_agg(r.state order by r.at) filter (where r.has_ended), '{}'),
    coalesce(array_agg(r.id) filter (where r.has_ended is not true), '{}')
  into ended, states, moving
  from (
    select s.id, s.at, s.state, s.state in ('succeeded', 'failed', 'cancelled', 'quarantined') as has_ended
    from (
      select i.id, i.at, outlive.state_of(i.id) as state from unnest(needed) with ordinality i(id, at)
      where i.id in (select unnest(rest))) s
    where s.state is not null) r;
end $$;

create or replace function outlive.check_late_ends(batch int) returns int
language plpgsql set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
-- blocked -> pending, cancelled: for jobs that were enqueued to wait for others, which ended before that was
-- committed. Returns how many notes of enqueues it has checked. Notes that need the same jobs are checked
-- together. What another transaction has locked or moves is left for the next time, behind all others; after one
-- wait in vain it hardly waits for a lock.
declare
  notes bigint[];
  late record;
  ends record;
  behind bigint[] := '{}';
  checked int := 0;
begin
  notes := array(
    select c.id from outlive.end_checks c where c.dependents is not null
    order by c.id limit batch for update skip locked);
  if notes = '{}' then
    return 0;
  end if;
  select f.* into ends from outlive.find_ended(array(
    select distinct n.id from outlive.end_checks c, unnest(c.needed) n(id) where c.id = any(notes))) f;
  for late in
    select c.needed, array_agg(c.id) as ids,
      exists (select from unnest(c.needed) n(id) where n.id in (select unnest(ends.moving))) as moves,
      exists (select from unnest(c.needed) n(id) where n.id in (select unnest(ends.ended))) as some_ended
    from outlive.end_checks c where c.id = any(notes) group by c.needed
  loop
    begin
      if late.some_ended then
        perform outlive.apply_past_ends(
          array_agg(e.id), array_agg(e.state),
          array(select unnest(c.dependents) from outlive.end_checks c where c.id = any(late.ids)))
        from unnest(ends.ended, ends.states) e(id, state) where e.id = any(late.needed);
      end if;
      if not late.moves then
        delete from outlive.end_checks c where c.id = any(late.ids);
        checked := checked + cardinality(late.ids);
        continue;
      end if;
    exception when others then
      perform outlive.note_trouble(late.needed, sqlstate, sqlerrm);
    end;
    behind := behind || late.ids;
  end loop;
  perform set_config('lock_timeout', '100ms', true);
  update outlive.end_checks c set id = default where c.id = any(behind);
  return checked;
end $$;

create or replace function outlive.follow_late_ends(batch int) returns int
language plpgsql set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan set lock_timeout = '100ms' as $$
-- blocked -> pending, cancelled: for the jobs that wait for jobs whose ends were left for later, some at a
-- time. `past` is the last one of those that wait for the first of the needed jobs. Returns how many notes of ends
-- it has followed up, or a part of them. What is left goes behind all others, as in check_late_ends.
declare
  late record;
  ends record;
  part record;
  among uuid[];
  behind bigint[] := '{}';
  followed int := 0;
  concerned int := 0;
begin
  for late in
    select c.* from outlive.end_checks c where c.dependents is null
    order by c.id limit batch for update skip locked
  loop
    among := null;
    begin
      select f.* into ends from outlive.find_ended(late.needed) f;
      select array_agg(e.needs order by e.at, e.job_id) as needs,
        array_agg(e.job_id order by e.at, e.job_id) as jobs,
        array_agg(e.falls order by e.at, e.job_id) as fall, count(*) >= outlive.many_dependents() as more
      into part
      from (
        select n.id as needs, n.at, d.job_id, n.state <> 'succeeded' and d.on_failure = 'cancel' as falls
        from unnest(ends.ended, ends.states) with ordinality n(id, state, at), lateral (
          select l.job_id, l.on_failure from outlive.dependencies l
          where l.needs = n.id and not l.met and (n.id <> late.needed[1] or l.job_id > late.past)
          order by l.job_id limit outlive.many_dependents()) d
        order by n.at, d.job_id limit outlive.many_dependents()) e;
      if part.jobs is not null then
        -- With those that wait for the ones to be cancelled, so that a long chain is not cancelled link by link.
        among := array(
          with recursive concerned(id, falls) as (
            select p.id, p.falls from unnest(part.jobs, part.fall) p(id, falls)
            union
            select d.job_id, d.on_failure = 'cancel' from concerned c, lateral (
              select l.job_id, l.on_failure from outlive.dependencies l
              where c.falls and l.needs = c.id and not l.met offset 0) d)
          select c.id from concerned c limit 2 * outlive.many_dependents());
        perform outlive.apply_past_ends(ends.ended, ends.states, among);
      end if;
      if ends.moving = '{}' then
        followed := followed + 1;
        if not part.more then
          delete from outlive.end_checks c where c.id = late.id;
        else
          update outlive.end_checks c set id = default, past = part.jobs[cardinality(part.jobs)],
            needed = c.needed[array_position(c.needed, part.needs[cardinality(part.needs)]):]
          where c.id = late.id;
        end if;
        concerned := concerned + coalesce(cardinality(among), 0);
        exit when concerned >= outlive.many_dependents();
        continue;
      end if;
    exception when others then
      perform outlive.note_trouble(late.needed, sqlstate, sqlerrm);
    end;
    behind := behind || late.id;
  end loop;
  perform set_config('lock_timeout', '100ms', true);
  update outlive.end_checks c set id = default where c.id = any(behind);
  return followed;
end $$;

create or replace function outlive.note_trouble(needed uuid[], state text, message text) returns void
language plpgsql as $$
-- The ends of these jobs can't be followed up now: the next locks are hardly waited for.
begin
  perform set_config('lock_timeout', '1ms', true);
  if state not in ('55P03', '40P01', '40001') then
    raise warning 'the ends of jobs % can''t be followed up: %', needed[:5], message;
  end if;
end $$;

-- Expiry and deadlines: a job that does not start in time, or does not end by its deadline, is cancelled.
--
--     in_time         whether a job may start now
--     lateness        why a job that is cancelled is too late, in words
--     let_expire      notes when new jobs expire, and their deadlines
--     cancel_expired  cancels the jobs whose time is up
--
-- A claim takes no job whose time is up, by the clock of the database. That alone keeps it from running. The rest
-- is tidying: worker/fleet/leftovers.py calls cancel_expired every second, in watchers and in `outlive reap`.

create or replace function outlive.in_time(job uuid) returns boolean language sql stable
-- Whether this job may start now.
return not exists (select from outlive.expiring e where e.job_id = job and e.expires_at <= outlive.now());

create or replace function outlive.lateness(job uuid, running boolean default false) returns text
language sql stable
-- Why a job is too late, in words; null: it is not. One that is running has started in time.
return (
  select case when e.whole then 'deadline: it had to end by ' else 'expired: it had to start by ' end
    || to_char(e.expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
  from outlive.expiring e
  where e.job_id = job and e.expires_at <= outlive.now() and (e.whole or not running)
  order by e.expires_at limit 1);

create or replace function outlive.let_expire(ids uuid[], links jsonb[]) returns void language sql as $$
-- Note when those of these new jobs expire, and their deadlines, whose links say so, or else whose tasks do.
insert into outlive.expiring (job_id, whole, expires_at)
select j.id, l.whole, outlive.now() + l.s * interval '1 second'
from unnest(let_expire.ids, let_expire.links) a(id, links) join outlive.jobs j on j.id = a.id
  left join outlive.tasks t on t.name = j.task
  cross join lateral (
    select coalesce(a.links, case when cardinality(let_expire.links) = 1 then let_expire.links[1] end)) o(links)
  cross join lateral (values
    (false, coalesce((o.links ->> 'expires_s')::double precision, t.expires_s)),
    (true, coalesce((o.links ->> 'deadline_s')::double precision, t.deadline_s))) l(whole, s)
where l.s > 0
on conflict do nothing
$$;

create or replace function outlive.cancel_expired(batch int) returns int
language plpgsql set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
-- pending, retryable, blocked by other jobs -> cancelled: for jobs that did not start in time. An attempt under
-- way goes on; a retry is a start too. Jobs past their deadline are cancelled also if they are suspended or an
-- operator has blocked them, and running ones are asked to stop. A job in quarantine stays there, and what an
-- operator releases or retries later is not too late any more. Returns how many notes it has looked at. Locked
-- jobs are left for the next time.
declare
  due uuid[];
  overdue uuid[];
  ended uuid[];
begin
  with late as materialized (
    select e.job_id, e.whole from outlive.expiring e
    where e.expires_at <= outlive.now() and not exists (
      select from outlive.running r where r.id = e.job_id and (r.cancel_requested or not e.whole))
    order by e.expires_at limit batch for update skip locked)
  select array_agg(l.job_id), array_agg(l.job_id) filter (where l.whole) into due, overdue from late l;
  if due is null then
    return 0;
  end if;
  with waited as (
    delete from outlive.waiting w where w.id = any(array(
      select l.id from outlive.waiting l where l.id = any(due) order by l.id for update skip locked))
    returning w.id, w.attempt, w.failures, w.crashes, w.losses),
  kept as (
    delete from outlive.held h where h.id = any(array(
      select l.id from outlive.held l
      where l.id = any(due) and (l.why in ('dependent', 'key', 'suspect')
        or l.why in ('suspended', 'blocked') and l.id = any(overdue))
      order by l.id for update skip locked))
    returning h.id, h.attempt, h.failures, h.crashes, h.losses)
  select outlive.finish_unclaimed(
    array_agg(g.id), array_agg(g.attempt), array_agg(g.failures), array_agg(g.crashes), array_agg(g.losses))
  into ended from (table waited union all table kept) g;
  if cardinality(ended) > 0 then
    update outlive.dependencies d set met = true where d.job_id = any(ended) and not d.met;
    perform outlive.leave_ends(ended);
    perform outlive.follow_through(ended, array_fill('cancelled'::text, array[cardinality(ended)]));
  end if;
  update outlive.running r set cancel_requested = true where r.token = any(array(
    select l.token from outlive.running l where l.id = any(overdue) order by l.token for update skip locked));
  if found then
    perform pg_notify('outlive', 'cancel');  -- Their workers check for cancel requests at once.
  end if;
  delete from outlive.expiring e
  where e.job_id = any(due) and e.expires_at <= outlive.now()
    and not exists (select from outlive.waiting w where w.id = e.job_id)
    and not exists (select from outlive.running r where r.id = e.job_id)
    and not exists (
      select from outlive.held h where h.id = e.job_id and (h.why in ('dependent', 'key', 'suspect')
        or h.why in ('suspended', 'blocked') and e.whole));
  return cardinality(due);
end $$;

-- Sources: whose turn it is at an outside service, and whether the service is well. The caller of admits and spend
-- has locked the source's row.

create or replace function outlive.know_sources(sources text[], tasks text[]) returns void language plpgsql as $$
-- A source that a job names and no app declares gets a row, with the limits of its task's source. Without a task
-- it has no limits.
begin
  insert into outlive.sources (
    name, like_task, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s)
  select distinct on (a.source)
    a.source, a.task, d.rate_limit_per_minute, coalesce(d.burst, 1), d.max_concurrency,
    coalesce(d.breaker_failures, 5), coalesce(d.breaker_pause_s, 300)
  from unnest(sources, tasks) a(source, task)
    left join outlive.tasks t on t.name = a.task left join outlive.sources d on d.name = t.source
  where a.source <> '' and not exists (select from outlive.sources e where e.name = a.source)
  order by a.source
  on conflict do nothing;
end $$;

create or replace function outlive.full_by(rate_limit_per_minute double precision, burst int)
returns timestamptz language sql stable
-- When an empty bucket is full. A change of limits lowers full_at to this; otherwise the old limits would go on.
return outlive.now() + burst * 60 / rate_limit_per_minute * interval '1 second';

create or replace function outlive.set_limits(wanted json) returns setof text language sql as $$
-- Give known sources these limits. What operators have set stays. It returns the sources that another transaction
-- has locked: these keep their old limits.
with changed as materialized (
  select w.* from json_populate_recordset(null::outlive.sources, wanted) w join outlive.sources s using (name)
  where (s.like_task, s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s)
    is distinct from
    (w.like_task, w.rate_limit_per_minute, w.burst, w.max_concurrency, w.breaker_failures, w.breaker_pause_s)),
free as materialized (
  select s.name from outlive.sources s where s.name = any(array(select name from changed))
  order by s.name for update skip locked),
updated as (
  update outlive.sources s set
    (like_task, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s, full_at) =
    (c.like_task, c.rate_limit_per_minute, c.burst, c.max_concurrency, c.breaker_failures, c.breaker_pause_s,
     least(s.full_at, outlive.full_by(
       coalesce(s.set_rate_limit_per_minute, c.rate_limit_per_minute), coalesce(s.set_burst, c.burst))))
  from changed c where s.name = c.name and s.name = any(array(select name from free)))
select c.name from changed c where not exists (select from free f where f.name = c.name);
$$;

create or replace function outlive.admits_all(s outlive.sources) returns boolean language sql immutable
-- Whether it need not be asked: it has no limits, and its last call did not fail. Its jobs are claimed like those
-- without a source, many at a time and without a lock.
return s.enabled and s.paused_until is null and s.failure_streak = 0 and num_nonnulls(
  s.rate_limit_per_minute, s.set_rate_limit_per_minute, s.max_concurrency, s.set_max_concurrency) = 0;

create or replace function outlive.admits(
  s outlive.sources, own_token bigint, begins boolean,
  out free int, out wait_s double precision, out open boolean)
language plpgsql stable as $$
-- How many more may begin at a source now. If none may: in how many seconds to ask again, and whether the breaker
-- is the reason. `own_token` is the attempt that asks from inside: its own slot as a job of this source is not
-- counted, and as the probe it may go on. A job that only `begins` lets requests of running jobs go first.
declare
  every_s double precision := 60 / coalesce(s.set_rate_limit_per_minute, s.rate_limit_per_minute, 'infinity');
  owed_s double precision := greatest(0, extract(epoch from s.full_at - outlive.now()));
  most int := coalesce(s.set_burst, s.burst);
  at_once int := coalesce(s.set_max_concurrency, s.max_concurrency);
  used bigint;
begin
  free := 2147483647; wait_s := 0;
  open := not s.enabled or coalesce(s.paused_until > outlive.now(), false);
  if open then
    free := 0;
    wait_s := case when s.enabled then extract(epoch from s.paused_until - outlive.now()) else 1 end;
    return;
  end if;
  if begins and s.wanted_until > outlive.now() then
    free := 0;
    wait_s := extract(epoch from s.wanted_until - outlive.now());
    return;
  end if;
  -- Half-open: one attempt, the probe, tries.
  if s.paused_until is not null and (own_token is null or s.probe is distinct from own_token) then
    open := exists (select from outlive.running r where r.token = s.probe);
    free := case when open then 0 else 1 end;
    wait_s := 0.5;
  end if;
  if every_s > 0 then
    free := least(free, greatest(0, floor(most - owed_s / every_s)));
    if free = 0 and not open then
      wait_s := greatest(0.001, owed_s - (most - 1) * every_s);
    end if;
  end if;
  if at_once is not null and free > 0 then
    select (select count(*) from outlive.running r where r.source = s.name and r.token is distinct from own_token)
      + (select count(*) from outlive.requests q join outlive.running r on r.token = q.token
         where q.source = s.name)
    into used;
    free := least(free, greatest(0, at_once - used));
    if free = 0 then
      wait_s := 0.25;
    end if;
  end if;
end $$;

create or replace function outlive.spend(s outlive.sources, tokens int, by_token bigint) returns void
language plpgsql as $$
-- Take tokens out of a source's bucket. The attempt that takes one while the breaker is half-open is the probe.
declare
  every_s double precision := 60 / coalesce(s.set_rate_limit_per_minute, s.rate_limit_per_minute, 'infinity');
begin
  update outlive.sources t
  set full_at = greatest(t.full_at, outlive.now()) + tokens * every_s * interval '1 second',
    probe = case when s.paused_until is not null then by_token else t.probe end
  where t.name = s.name and (every_s > 0 or s.paused_until is not null);
end $$;

create or replace function outlive.admits_one(named text) returns boolean language plpgsql as $$
-- Whether a source admits one more. Its row stays locked, so that the answer holds. False if its row is locked.
declare
  s outlive.sources;
begin
  select t.* into s from outlive.sources t where t.name = named for update skip locked;
  if not found then
    perform outlive.know_sources(array[named], '{null}');
    return false;
  end if;
  return (outlive.admits(s, null, true)).free > 0;
end $$;

create or replace function outlive.claim_sourced(
  by_worker uuid, queues text[], sources text[], tasks text[], priorities smallint[], most int,
  lease_s double precision)
returns table (
  token bigint, id uuid, attempt int, queue text, source text, task text, priority smallint, ready_at timestamptz,
  failures smallint, crashes smallint, losses smallint, args json, options jsonb, wait_s double precision)
language plpgsql as $$
-- pending, retryable -> running, for at most `most` jobs of the lanes offered, as far as their sources admit them.
-- A row without an id names a source that admits none, and when to ask again. A locked source is skipped.
#variable_conflict use_column
declare
  offered record;
  s outlive.sources;
  may record;
  begun int;
  left_over int := most;
  last_token bigint;
begin
  for offered in
    select o.source, array_agg(o.queue order by o.n) as queues, array_agg(o.source) as sources,
      array_agg(o.task order by o.n) as tasks, array_agg(o.priority order by o.n) as priorities
    from unnest(queues, sources, tasks, priorities) with ordinality o(queue, source, task, priority, n)
    group by o.source order by min(o.n)
  loop
    exit when left_over < 1;
    token := null; id := null; source := offered.source; wait_s := null;
    select t.* into s from outlive.sources t where t.name = offered.source for update skip locked;
    if not found then
      perform outlive.know_sources(array[offered.source], offered.tasks[1:1]);
      wait_s := 0.02;
      return next;
      continue;
    end if;
    may := outlive.admits(s, null, true);
    if may.free < 1 then
      wait_s := may.wait_s;
      return next;
      continue;
    end if;
    begun := 0;
    for token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses, args, options in
      select * from outlive.claim_lanes(
        by_worker, offered.queues, offered.sources, offered.tasks, offered.priorities, null, null,
        least(may.free, left_over), lease_s, true, asked => true)
    loop
      begun := begun + 1;
      last_token := token;
      return next;
    end loop;
    if begun > 0 then
      perform outlive.spend(s, begun, last_token);
      left_over := left_over - begun;
    end if;
  end loop;
end $$;

create or replace function outlive.ask_source(
  named text, by_token bigint,
  out granted boolean, out wait_s double precision, out open boolean, out slot bigint)
language plpgsql as $$
-- One request of a running job, or, without a token, of a program outside any job. It is granted, or told when to
-- ask again and whether the breaker is the reason. Where concurrency is limited, `slot` is given back after the
-- request.
declare
  s outlive.sources;
  may record;
  own boolean := exists (select from outlive.running r where r.token = by_token and r.source = named);
begin
  select t.* into s from outlive.sources t where t.name = named for update;
  if not found then
    perform outlive.know_sources(array[named], '{null}');
    select t.* into s from outlive.sources t where t.name = named for update;
  end if;
  may := outlive.admits(s, by_token, false);
  granted := may.free > 0; wait_s := may.wait_s; open := may.open and not granted;
  if not s.enabled then
    wait_s := 30;  -- An operator paused it, for an unknown time, and each time that a job asks costs an attempt.
  end if;
  if granted then
    perform outlive.spend(s, 1, by_token);
    if not own and by_token is not null and coalesce(s.set_max_concurrency, s.max_concurrency) is not null then
      delete from outlive.requests q
      where q.source = named and not exists (select from outlive.running r where r.token = q.token);
      insert into outlive.requests (source, token) values (named, by_token) returning id into slot;
    end if;
  elsif by_token is not null and not open then
    -- The job asks again when it was told to, or after five seconds; until then it goes first.
    update outlive.sources t set wanted_until =
      greatest(t.wanted_until, outlive.now() + interval '1 second' * (least(wait_s, 5) + 0.25))
    where t.name = named;
  end if;
end $$;

create or replace function outlive.count_outcomes(
  names text[], tokens bigint[], oks boolean[], slots bigint[] default null, patient boolean default true)
returns int[] language plpgsql as $$
-- Count how requests went. While the breaker is closed, enough failures in a row open it. While it is half-open,
-- the probe alone decides, and requests that began earlier count for nothing. An outcome that is null gives back a
-- slot and the role of the probe. Sources are locked in the order of their names, so that two workers never
-- deadlock; one that is well and hears only of more successes is written once a second. If it is not `patient`,
-- it returns the numbers of the outcomes whose source another transaction has locked.
declare
  heard record;
  o record;
  s outlive.sources;
  fails boolean;
  uncounted int[] := '{}';
begin
  delete from outlive.requests q where q.id = any(slots) and q.token = any(tokens);
  for heard in
    select u.name, array_agg(u.n::int order by u.n) as places
    from unnest(names, oks) with ordinality u(name, ok, n) group by u.name
    having not (bool_and(coalesce(u.ok, false)) and exists (
      select from outlive.sources w
      where w.name = u.name and w.paused_until is null and w.failure_streak = 0
        and w.last_success_at > outlive.now() - interval '1 second'))
    order by u.name
  loop
    if patient then
      select t.* into s from outlive.sources t where t.name = heard.name for update;
    else
      select t.* into s from outlive.sources t where t.name = heard.name for update skip locked;
    end if;
    if not found then
      if exists (select from outlive.sources t where t.name = heard.name) then
        uncounted := uncounted || heard.places;
      end if;
      continue;
    end if;
    for o in select tokens[p] as token, oks[p] as ok from unnest(heard.places) p loop
      if o.ok then
        s.last_success_at := outlive.now();
      elsif not o.ok then
        s.last_failure_at := outlive.now();
      end if;
      if o.ok is null then
        s.probe := nullif(s.probe, o.token);
      elsif s.paused_until is null or s.paused_until > outlive.now() or s.probe is not distinct from o.token then
        s.failure_streak := case when o.ok then 0 else s.failure_streak + 1 end;
        fails := not o.ok and (s.paused_until is not null
          or s.failure_streak >= coalesce(s.set_breaker_failures, s.breaker_failures));
        s.probe := null;
        s.paused_until := case
          when s.paused_until > outlive.now() then s.paused_until
          when fails then
            outlive.now() + coalesce(s.set_breaker_pause_s, s.breaker_pause_s) * interval '1 second' end;
      end if;
    end loop;
    update outlive.sources t set
      (last_success_at, last_failure_at, failure_streak, paused_until, probe) =
      (s.last_success_at, s.last_failure_at, s.failure_streak, s.paused_until, s.probe)
    where t.name = heard.name;
  end loop;
  return uncounted;
end $$;

-- Schedules: how apps declare them, how they fire, and what operators do with them.
--
-- SQLSTATEs: OL003 there is no such schedule, or the verb makes no sense for it.

create or replace function outlive.schedule_changed() returns trigger language plpgsql as $$
-- Its firings from now on follow the new times. The ones before are not made up for. If the clock was set back
-- since the last firing, they begin after that one.
begin
  new.next_at := null;
  new.trouble := null;
  new.changed_at := greatest(outlive.now(), old.last_tick);
  return new;
end $$;

create or replace trigger schedule_changed before update on outlive.schedules for each row
when ((old.cron, old.every_s, old.timezone, old.starts_at, old.ends_at) is distinct from
      (new.cron, new.every_s, new.timezone, new.starts_at, new.ends_at))
execute function outlive.schedule_changed();

create or replace function outlive.changes(s outlive.schedules) returns jsonb language sql stable
-- The columns in which a schedule differs from what its app declares, with their present values.
begin atomic
  select coalesce(jsonb_object_agg(c.name, r.now -> c.name), '{}')
  from (
      select to_jsonb(s) as now, to_jsonb(json_populate_record(null::outlive.schedules, s.declared)) as declared
      offset 0) r,
    unnest('{task,args,queue,priority,cron,every_s,timezone,missed,overlap,jitter_s,starts_at,
      ends_at}'::text[]) c(name)
  where r.now -> c.name <> r.declared -> c.name;
end;

create or replace function outlive.declared_by_living(s outlive.schedules) returns boolean language sql stable
-- Of any app: the other one has the same name, or declared it before its present app took it over.
return exists (
  select from outlive.workers k
  where s.name = any(k.schedules) and k.state in ('active', 'stale', 'draining'));

create or replace function outlive.declare_schedules(declarations json, app text)
returns table (schedule text, outcome text) language plpgsql as $$
-- Write the schedules of an app, and withdraw those that it no longer declares. A living worker may still declare
-- them: one of an older version, or of another service. What an operator has changed stays as it is, until the
-- schedule is reset. A row is a schedule that was withdrawn, one that another app had declared (taken), or an
-- operator's own, which is left alone (refused). One that has a former name and exists under that is renamed.
declare
  declaration json;
  d outlive.schedules;
  s outlive.schedules;
  kept jsonb;
begin
  perform pg_advisory_xact_lock(hashtextextended('outlive declare_schedules', 0));  -- One at a time: no deadlocks.
  for declaration in select e from json_array_elements(declarations) e where e -> 'was' ->> 0 is not null loop
    update outlive.schedules t set name = declaration ->> 'name'
    where t.declared is not null
      and t.name = (
        select w.name from json_array_elements_text(declaration -> 'was') with ordinality w(name, at)
        where exists (select from outlive.schedules o where o.name = w.name) order by w.at limit 1)
      and not exists (select from outlive.schedules o where o.name = declaration ->> 'name');
  end loop;
  return query update outlive.schedules t set withdrawn_at = outlive.now()
    where t.declared_by = app and t.withdrawn_at is null and not outlive.declared_by_living(t)
      and t.name not in (select e ->> 'name' from json_array_elements(declarations) e)
    returning t.name, 'withdrawn';
  for declaration in select e from json_array_elements(declarations) e loop
    d := json_populate_record(null::outlive.schedules, declaration);
    insert into outlive.schedules (name, task, args, queue, priority, cron, every_s, timezone, missed, overlap,
      jitter_s, starts_at, ends_at, declared, declared_by)
    values (d.name, d.task, d.args, d.queue, d.priority, d.cron, d.every_s, d.timezone, d.missed, d.overlap,
      d.jitter_s, d.starts_at, d.ends_at, declaration, app)
    on conflict do nothing;
    continue when found;
    select t.* into s from outlive.schedules t where t.name = d.name for update;
    if s.declared_by is distinct from app then
      schedule := s.name;
      outcome := case when s.declared is null then 'refused' else 'taken' end;
      return next;
    end if;
    continue when s.declared is null;
    kept := outlive.changes(s);
    if kept ?| '{cron,every_s}' then
      kept := kept || jsonb_build_object('cron', s.cron, 'every_s', s.every_s);
    end if;
    if kept ? 'args' then  -- As an operator wrote them: jsonb would write some numbers in another way.
      d.args := s.args;
    end if;
    update outlive.schedules t set
      (task, args, queue, priority, cron, every_s, timezone, missed, overlap, jitter_s, starts_at, ends_at,
       declared, declared_by, withdrawn_at) =
      (k.task, d.args, k.queue, k.priority, k.cron, k.every_s, k.timezone, k.missed, k.overlap, k.jitter_s,
       k.starts_at, k.ends_at, declaration, app, null)
    from jsonb_populate_record(d, kept) k where t.name = d.name;
  end loop;
end $$;

create or replace function outlive.check_schedules()
returns table (schedule text, app text, withdrawn boolean) language plpgsql as $$
-- Withdraw the schedules that their app, which runs, no longer declares: the last worker that did is gone. Put
-- back in force those that a living worker declares, for example one that was declared dead. If that is a worker
-- of another app, it declares them again (`orphaned_schedules`). A row that is locked waits for the next check.
begin
  return query
    update outlive.schedules t set withdrawn_at = case when t.withdrawn_at is null then outlive.now() end
    where t.name = any(array(
      select s.name from outlive.schedules s
      where s.declared is not null and case when s.withdrawn_at is not null then outlive.declared_by_living(s)
        else not outlive.declared_by_living(s) and exists (
          select from outlive.workers k
          where k.app = s.declared_by and k.state in ('active', 'stale', 'draining')) end
      order by s.name for update skip locked))
    returning t.name, t.declared_by, t.withdrawn_at is not null;
end $$;

create or replace function outlive.tick_hash(schedule text, tick timestamptz) returns bytea language sql stable
-- The same firing always has the same id and jitter.
return sha256(convert_to(schedule || ' ' || extract(epoch from tick), 'UTF8'));

create or replace function outlive.tick_id(schedule text, tick timestamptz) returns uuid language sql stable
-- A version 7 uuid: it starts with the milliseconds of the tick, and the rest is a hash.
begin atomic
  select encode(overlay(overlay(overlay(substring(h.hash for 16)
    placing substring(int8send((extract(epoch from tick) * 1000)::bigint) from 3) from 1 for 6)
    placing set_byte('\x00'::bytea, 0, 112 | (get_byte(h.hash, 6) & 15)) from 7 for 1)
    placing set_byte('\x00'::bytea, 0, 128 | (get_byte(h.hash, 8) & 63)) from 9 for 1), 'hex')::uuid
  from (select outlive.tick_hash(schedule, tick) as hash) h;
end;

create or replace function outlive.fire(
  schedule text, seen_next timestamptz, seen_changed timestamptz, ticks timestamptz[], following timestamptz)
returns table (jobs int, busy uuid) language plpgsql as $$
-- (none) -> pending, one job for each tick; and `following`, the tick after them, is written. Zero rows: another
-- worker fires it, or an operator has changed or paused it since it was read. `busy` is the unfinished job of an
-- earlier firing because of which this one is skipped. A tick that was fired before makes no second job: it is
-- left out, and if the row was made again since, its id is the same.
declare
  s outlive.schedules;
  ids uuid[];
  ready timestamptz[];
begin
  select t.* into s from outlive.schedules t
  where t.name = schedule and t.next_at is not distinct from seen_next and t.changed_at = seen_changed
    and t.paused_at is null and t.withdrawn_at is null
  for update skip locked;
  if not found then
    return;
  end if;
  ticks := array(select u.tick from unnest(ticks) u(tick) where u.tick > coalesce(s.last_tick, '-infinity')
    order by u.tick);
  if s.overlap <> 'queue' and cardinality(ticks) > 0 then
    ticks := ticks[cardinality(ticks):];  -- The others would overlap with each other.
    if s.overlap = 'cancel' then  -- An operator may hold it back just now.
      perform from outlive.jobs j where j.id = s.last_job for no key update;
    end if;
    if outlive.state_of(s.last_job) in ('pending', 'retryable', 'running', 'suspended') then
      if s.overlap = 'skip' then
        ticks := '{}';
        busy := s.last_job;
      else
        perform outlive.cancel(array[s.last_job]);
      end if;
    end if;
  end if;
  jobs := cardinality(ticks);
  if jobs > 0 then
    select array_agg(outlive.tick_id(schedule, t.tick) order by t.tick),
      array_agg(t.tick + (get_byte(t.hash, 16) * 256 + get_byte(t.hash, 17)) / 65536.0 * s.jitter_s
        * interval '1 second' order by t.tick)
      into ids, ready
    from (select u.tick, outlive.tick_hash(schedule, u.tick) as hash from unnest(ticks) u(tick)) t;
    perform outlive.enqueue(ids, array[s.task], array[s.queue], null, array_fill(s.args, array[jobs]),
      array_fill(coalesce(s.priority, 5::smallint), array[jobs]), null, ready, null, null,
      array_fill(jsonb_build_object('schedule', s.name), array[jobs]), 65536, true);
    s.last_tick := ticks[jobs];
    s.last_job := ids[jobs];
  end if;
  update outlive.schedules t
  set (next_at, last_tick, last_job, trouble) = (coalesce(following, 'infinity'), s.last_tick, s.last_job, null)
  where t.name = schedule;
  return next;
end $$;

create or replace function outlive.the_schedule(name text) returns outlive.schedules language plpgsql as $$
-- Lock the row of a schedule. OL003: there is no such schedule.
#variable_conflict use_variable
declare
  s outlive.schedules;
begin
  select t.* into s from outlive.schedules t where t.name = name for update;
  perform outlive.refuse_unless(
    found, format('there is no schedule %s: `outlive schedules` lists the schedules', name));
  return s;
end $$;

create or replace function outlive.pause_schedule(name text) returns void language sql as $$
-- It fires no more until it is resumed.
select outlive.the_schedule(pause_schedule.name);
update outlive.schedules t set paused_at = coalesce(t.paused_at, outlive.now()) where t.name = pause_schedule.name;
$$;

create or replace function outlive.resume_schedule(name text) returns void language sql as $$
-- It fires again. The firings that were due meanwhile follow `missed`.
select outlive.the_schedule(resume_schedule.name);
update outlive.schedules t set paused_at = null where t.name = resume_schedule.name;
$$;

create or replace function outlive.run_schedule(name text) returns uuid language plpgsql as $$
-- (none) -> pending: a job of this schedule, now, whether it is paused or not. Its next firing stays as it is. The
-- next one overlaps with this job only if no earlier job is unfinished.
#variable_conflict use_variable
declare
  s outlive.schedules := outlive.the_schedule(name);
  job uuid;
begin
  job := outlive.enqueue(s.task, s.args, queue => s.queue, priority => s.priority::int,
    options => jsonb_build_object('schedule', s.name));
  if outlive.state_of(s.last_job) in ('pending', 'retryable', 'running', 'suspended') is not true then
    update outlive.schedules t set last_job = job where t.name = name;
  end if;
  return job;
end $$;

create or replace function outlive.reset_schedule(name text) returns void language plpgsql as $$
-- Take back what operators have changed: the declaration of the app applies again.
#variable_conflict use_variable
declare
  s outlive.schedules := outlive.the_schedule(name);
begin
  perform outlive.refuse_unless(s.declared is not null, format(
    'no app has declared the schedule %s: change it with `outlive schedules set`, or remove it', name));
  update outlive.schedules t set
    (task, args, queue, priority, cron, every_s, timezone, missed, overlap, jitter_s, starts_at, ends_at) =
    (d.task, d.args, d.queue, d.priority, d.cron, d.every_s, d.timezone, d.missed, d.overlap, d.jitter_s,
     d.starts_at, d.ends_at)
  from json_populate_record(null::outlive.schedules, s.declared) d where t.name = name;
end $$;

create or replace function outlive.remove_schedule(name text) returns void language sql as $$
-- Delete a schedule. If an app declares it, the next worker of that app to start makes it again.
select outlive.the_schedule(remove_schedule.name);
delete from outlive.schedules t where t.name = remove_schedule.name;
$$;

-- Counts: how many jobs there are, without reading them all. One rule holds for every figure that people see:
-- small counts are exact, and large ones are estimated and say so.
--
--     exact_up_to     how many rows of a lane are counted
--     sample_pages    which pages of a table are read for an estimate
--     count_lanes     the jobs that wait, by lane and priority
--     count_ready     the jobs among these that could run now, for autoscalers: quick, and up to a bound
--     count_held      the jobs that are held, by state, queue, source and task
--     count_waits     the suspended ones among these, by what they wait for
--     count_finished  the jobs that have succeeded, failed or were cancelled, likewise
--     count_jobs      all jobs, likewise
--     end_rates       how many attempts ended per second lately
--     queue_rates     how many jobs of each queue ended per minute lately, and how long they had waited
--     ends_by_task    how the jobs of each task ended in the last hour
--
-- An index by lane finds every lane, and up to 10,000 rows of each are counted. What a lane has beyond that is
-- estimated from a sample of pages that are evenly spread over the table: the same table gives the same figure,
-- whichever command or page asks. The functions run with their owner's rights, so that a viewer can count what it
-- may not read. Their plans are pinned: a table that was filled a moment ago has no statistics.

create or replace function outlive.exact_up_to(lanes bigint) returns int language sql immutable
-- Fewer where there are many lanes, so that no more than some 200,000 rows are counted in all.
return least(10000, greatest(1000, 200000 / greatest(1, lanes)));

create or replace function outlive.sample_pages(name regclass, most int default 400)
returns table (first tid, past tid, weight double precision) language sql stable
-- Where the pages begin and end, and how many pages of the table each of them stands for.
begin atomic
  with size as (
    select pg_relation_size(name) / current_setting('block_size')::int as pages),
  step as (select s.pages, greatest(1, ceil(s.pages / most::double precision))::bigint as step from size s)
  select format('(%s,0)', n)::tid, format('(%s,0)', n + 1)::tid,
    s.pages / ceil((s.pages - s.step / 2) / s.step::double precision)
  from step s, generate_series(s.step / 2, s.pages - 1, s.step) n;
end;

create or replace function outlive.count_lanes()
returns table (
  queue text, source text, task text, priority smallint, pending bigint, retryable bigint, ready bigint,
  oldest_ready_at timestamptz, estimated boolean, retryable_estimated boolean, ready_estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_mergejoin = off set jit = off as $$
-- The jobs that wait, by lane and priority, and those among them that could run now. Ready jobs come first in the
-- index of a lane, so they are counted however many are scheduled behind them.
#variable_conflict use_column
declare
  bound int := outlive.exact_up_to((select count(*) from outlive.waiting_lanes()));
  present timestamptz := outlive.now();
begin
  return query
  with sampled as materialized (
    select w.queue, w.source, w.task, w.priority, sum(p.weight) as jobs,
      coalesce(sum(p.weight) filter (where w.failures + w.crashes > 0), 0) as retryable,
      coalesce(sum(p.weight) filter (where w.ready_at <= present), 0) as ready
    from outlive.sample_pages('outlive.waiting') p, lateral (
      select t.* from outlive.waiting t where t.ctid >= p.first and t.ctid < p.past offset 0) w
    group by 1, 2, 3, 4),
  lane as materialized (
    select l.queue, l.source, l.task, l.priority, c.jobs, c.ready, c.oldest, s.sampled, s.retryable,
      s.ready as sampled_ready, coalesce(s.sampled > 2 * bound, false) or c.jobs > bound as large,
      coalesce(s.ready > 2 * bound, false) or c.ready > bound as many_ready
    from outlive.waiting_lanes() l
      left join lateral (
        select n.jobs as sampled, n.retryable, n.ready from sampled n
        where n.queue = l.queue and n.source = l.source and n.task = l.task and n.priority = l.priority) s on true
      cross join lateral (
        select count(*) as jobs, count(*) filter (where w.ready_at <= present) as ready,
          min(w.ready_at) filter (where w.ready_at <= present) as oldest
        from (
          select t.ready_at from outlive.waiting t
          where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
            and t.ready_at <= case when s.sampled > 2 * bound then present else 'infinity' end
          order by t.ready_at limit case when s.ready > 2 * bound then 1 else bound + 1 end) w) c),
  failed as materialized (
    select l.queue, l.source, l.task, w.priority, count(*) as jobs,
      sum(count(*)) over (partition by l.queue, l.source, l.task) > bound as large
    from outlive.retryable_lanes() l, lateral (
      select t.priority from outlive.waiting t
      where t.queue = l.queue and t.source = l.source and t.task = l.task and t.failures + t.crashes > 0
      limit bound + 1) w
    group by 1, 2, 3, 4)
  select l.queue, l.source, l.task, l.priority, greatest(0, n.jobs - n.retryable), n.retryable,
    case when l.many_ready then greatest(l.ready, l.sampled_ready::bigint) else l.ready end, l.oldest, l.large,
    coalesce(f.large, false), l.many_ready
  from lane l
    left join failed f on f.queue = l.queue and f.source = l.source and f.task = l.task and f.priority = l.priority
    cross join lateral (
      select case when l.large then greatest(l.jobs, l.sampled::bigint) else l.jobs end as jobs,
        case when f.large then greatest(f.jobs, l.retryable::bigint) else coalesce(f.jobs, 0) end as retryable) n;
end $$;

create or replace function outlive.count_ready()
returns table (queue text, source text, task text, jobs bigint, oldest_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
-- The jobs that could run now, by queue, source and task. Some 5,000 are counted in all, and at least 10 of each
-- lane: an autoscaler needs no more.
#variable_conflict use_column
declare
  present timestamptz := outlive.now();
begin
  return query
  with lane as materialized (
    select l.*, greatest(10, 5000 / count(*) over ()) as bound from outlive.waiting_lanes() l)
  select l.queue, l.source, l.task, sum(c.jobs)::bigint, min(c.oldest_at)
  from lane l cross join lateral (
    select count(*) as jobs, min(w.ready_at) as oldest_at from (
      select t.ready_at from outlive.waiting t
      where t.queue = l.queue and t.source = l.source and t.task = l.task and t.priority = l.priority
        and t.ready_at <= present
      order by t.ready_at limit l.bound) w) c
  where c.jobs > 0 group by 1, 2, 3;
end $$;

create or replace function outlive.count_held()
returns table (state text, queue text, source text, task text, why text, jobs bigint, estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_mergejoin = off set jit = off as $$
-- The jobs that are held, by state, queue, source, task and the reason.
#variable_conflict use_column
declare
  bound int := outlive.exact_up_to((select count(*) from outlive.held_lanes()));
begin
  return query
  with lane as materialized (
    select l.*, (
      select count(*) from (
        select from outlive.held t
        where t.queue = l.queue and t.source = l.source and t.task = l.task and t.why = l.why
          and (t.failures + t.crashes > 0) = l.failed limit bound + 1) few) as jobs
    from outlive.held_lanes() l),
  sampled as (
    select h.queue, h.source, h.task, h.why, h.failures + h.crashes > 0 as failed, sum(p.weight) as jobs
    from outlive.sample_pages('outlive.held') p, lateral (
      select t.* from outlive.held t where t.ctid >= p.first and t.ctid < p.past offset 0) h
    where exists (select from lane l where l.jobs > bound)
    group by 1, 2, 3, 4, 5)
  select l.state, l.queue, l.source, l.task, l.why,
    case when l.jobs > bound then greatest(l.jobs, s.jobs::bigint) else l.jobs end, l.jobs > bound
  from lane l left join sampled s on s.queue = l.queue and s.source = l.source and s.task = l.task
    and s.why = l.why and s.failed = l.failed;
end $$;

create or replace function outlive.count_waits() returns table (kind text, jobs bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set jit = off as $$
-- The suspended jobs, by what they wait for. Many are estimated from a sample of pages.
#variable_conflict use_column
begin
  return query
  select case when h.signal is not null then 'signal' when h.unmet is not null then 'jobs' else 'time' end,
    sum(p.weight)::bigint
  from outlive.sample_pages('outlive.held') p, lateral (
    select t.* from outlive.held t where t.ctid >= p.first and t.ctid < p.past offset 0) h
  where h.why = 'suspended' group by 1;
end $$;

create or replace function outlive.count_finished()
returns table (state text, queue text, source text, task text, jobs bigint, estimated boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_mergejoin = off set jit = off as $$
-- The finished jobs, by state, queue, source and task.
#variable_conflict use_column
declare
  bound int := outlive.exact_up_to((select count(*) from outlive.finished_lanes()));
begin
  return query
  with sampled as materialized (
    select a.queue, a.source, a.task, a.state, sum(p.weight) as jobs
    from outlive.sample_pages('outlive.attempts') p, lateral (
      select t.queue, t.source, t.task, t.state from outlive.attempts t
      where t.ctid >= p.first and t.ctid < p.past offset 0) a
    where a.state in ('succeeded', 'failed', 'cancelled')
    group by 1, 2, 3, 4),
  lane as materialized (
    select l.queue, l.source, l.task, l.state, s.jobs as sampled, (
      select count(*) from (
        select from outlive.attempts t
        where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
        limit case when s.jobs > 2 * bound then 0 else bound + 1 end) few) as jobs
    from outlive.finished_lanes() l left join sampled s on s.queue = l.queue and s.source = l.source
      and s.task = l.task and s.state = l.state)
  select l.state, l.queue, l.source, l.task,
    case when n.large then greatest(l.jobs, l.sampled::bigint) else l.jobs end, n.large
  from lane l, lateral (select coalesce(l.sampled > 2 * bound, false) or l.jobs > bound as large) n;
end $$;

create or replace function outlive.count_jobs()
returns table (state text, queue text, source text, task text, jobs bigint, estimated boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp
-- All jobs, by state, queue, source and task.
begin atomic
  select n.state, n.queue, n.source, n.task, sum(n.jobs)::bigint, bool_or(n.estimated)
  from (
    select w.state, l.queue, l.source, l.task, w.jobs, w.estimated
    from outlive.count_lanes() l, lateral (values
      ('pending', l.pending, l.estimated),
      ('retryable', l.retryable, l.retryable_estimated)) w(state, jobs, estimated)
    union all
    select h.state, h.queue, h.source, h.task, h.jobs, h.estimated from outlive.count_held() h
    union all
    select 'running', r.queue, r.source, r.task, 1, false from outlive.running r
    union all
    select f.state, f.queue, f.source, f.task, f.jobs, f.estimated from outlive.count_finished() f) n
  where n.jobs > 0 group by 1, 2, 3, 4;
end;

create or replace function outlive.end_rates() returns table (state text, per_s double precision)
language sql stable security definer set search_path = pg_catalog, pg_temp
-- How many attempts ended per second in the last minute, or since the newest 2,000 of them.
begin atomic
  select s, count(*) / case when count(*) < 2000 then 60
    else greatest(extract(epoch from outlive.now() - min(a.ended_at)), 0.001) end::double precision
  from unnest('{succeeded,retryable,failed,quarantined,cancelled}'::text[]) s, lateral (
    select t.ended_at from outlive.attempts t
    where t.state = s and t.ended_at > outlive.now() - interval '1 minute' order by t.ended_at desc limit 2000) a
  group by s;
end;

create or replace function outlive.queue_rates()
returns table (queue text, per_minute double precision, estimated boolean, waited_s double precision[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
-- How many jobs of each queue ended per minute in the last five minutes, and how long the newest 200 of them had
-- waited for their first attempt: p50 and p95. Of a lane in which more ended than are counted, the newest say how
-- often jobs end. A queue that has finished jobs has a row.
#variable_conflict use_column
begin
  return query
  with lane as materialized (
    select l.queue, l.hash, least(1000, greatest(20, 20000 / count(*) over ())) as most
    from outlive.finished_lanes() l),
  ended as materialized (
    select l.queue, l.hash, l.most, a.* from lane l left join lateral (
      select t.job_id, t.attempt, t.started_at, t.ended_at from outlive.attempts t
      where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
        and t.ended_at > outlive.now() - interval '5 minutes'
      order by t.ended_at desc limit l.most) a on true),
  rated as (
    select e.queue, count(e.ended_at) = e.most as large, count(e.ended_at)
      / case when count(e.ended_at) < e.most then 5
        else greatest(extract(epoch from outlive.now() - min(e.ended_at)) / 60, 0.0001) end as per_minute
    from ended e group by e.queue, e.hash, e.most),
  begun as (
    select e.queue, e.job_id, e.started_at, row_number() over (partition by e.queue order by e.ended_at desc) as n
    from ended e where e.attempt = 1 and e.started_at is not null),
  waited as (
    select b.queue, percentile_cont('{0.5,0.95}'::double precision[]) within group (
        order by greatest(0, extract(epoch from b.started_at - j.ready_at))::double precision) as waited_s
    from begun b cross join lateral (select i.ready_at from outlive.jobs i where i.id = b.job_id) j
    where b.n <= 200 group by b.queue)
  select r.queue, sum(r.per_minute)::double precision, bool_or(r.large), w.waited_s
  from rated r left join waited w on w.queue = r.queue group by r.queue, w.waited_s;
end $$;

create or replace function outlive.ends_by_task(most int default 4000)
returns table (
  task text, succeeded_per_min double precision, failed_per_min double precision, ran_s double precision[],
  peak_memory_bytes bigint)
language sql stable set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off
-- How the jobs of each task ended in the last hour: how many a minute succeeded, and failed for good or were
-- quarantined; how long those ran that succeeded, p50 and p95; and the most memory that one of all these used.
-- About `most` ends are read, the newest of each lane, and `most` quarantined ones. Where these are not all of the
-- hour, the rates of a task are those of the time for which all of its ends were read.
begin atomic
  with lane as materialized (
    select l.task, l.state, l.hash, greatest(10, most / (count(*) over ())) as most
    from outlive.finished_lanes() l where l.state in ('succeeded', 'failed')),
  ended as (
    select l.task, l.state, a.*,
      case when count(*) over same = l.most then min(a.ended_at) over same end as all_since
    from lane l, lateral (
      select t.started_at, t.ended_at, t.peak_memory_bytes from outlive.attempts t
      where t.lane = l.hash and t.state in ('succeeded', 'failed', 'cancelled')
        and t.ended_at > outlive.now() - interval '1 hour'
      order by t.ended_at desc limit l.most) a
    window same as (partition by l.hash)
    union all
    select q.*, case when count(*) over () = most then min(q.ended_at) over () end
    from (
      select t.task, t.state, t.started_at, t.ended_at, t.peak_memory_bytes from outlive.attempts t
      where t.state = 'quarantined' and t.ended_at > outlive.now() - interval '1 hour'
      order by t.ended_at desc limit most) q),
  timed as (
    select e.*, max(e.all_since) over (partition by e.task) as from_at from ended e),
  weighed as (
    select t.*, case when t.ended_at < t.from_at then 0 else 60 / greatest(
      0.001, coalesce(extract(epoch from outlive.now() - t.from_at), 3600))::double precision end as per_min
    from timed t)
  select w.task, coalesce(sum(w.per_min) filter (where w.state = 'succeeded'), 0),
    coalesce(sum(w.per_min) filter (where w.state in ('failed', 'quarantined')), 0),
    percentile_cont('{0.5,0.95}'::double precision[]) within group (
      order by extract(epoch from w.ended_at - w.started_at)::double precision)
      filter (where w.state = 'succeeded'),
    max(w.peak_memory_bytes)
  from weighed w group by w.task;
end;

-- The output of attempts, while they run and afterwards.

create or replace function outlive.watch(
  job uuid, number int default null, after bigint default 0,
  out state text, out attempt int, out live boolean, out output text, out memory json, out asked boolean,
  out steps text)
returns setof record language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- What this attempt of a job has printed, and how its memory has changed: by default the one that runs, or else
-- the last. No row: there is no such job.
-- To follow a running attempt, call this again and again. For some time after each call its worker writes what
-- it prints; it is asked to begin if it has written nothing yet. Null output: the attempt has printed nothing, or,
-- while it runs, no more than :after lines. Null memory: it was not measured, or there is nothing to see in it.
-- Asked: the attempt runs, and its worker has written nothing of this yet.
-- A null attempt: there is no such attempt yet.
-- The state is read first: if the job ends meanwhile, the next call has the rest of its output.
declare
  running int;
  written outlive.watched;
begin
  state := outlive.state_of(job);
  asked := false;
  if state is null then
    return;
  end if;
  select r.attempt into running from outlive.running r where r.id = job;
  select coalesce(number, running, max(a.attempt)) into attempt from outlive.attempts a where a.job_id = job;
  live := coalesce(attempt = running, false);
  if live then
    insert into outlive.watched as w (job_id, until) values (job, outlive.now() + interval '30 seconds')
    on conflict (job_id) do update set until = excluded.until
    where w.until < outlive.now() + interval '20 seconds';
    select w.* into written from outlive.watched w where w.job_id = job;
    if written.attempt = running then
      output := case when written.lines > after then written.output end;
      memory := written.memory;
      steps := written.steps;
    else
      perform pg_notify('outlive', 'watch');
      asked := true;
    end if;
  else
    select a.attempt, a.output, a.memory into attempt, output, memory
    from outlive.attempts a where a.job_id = job and a.attempt = watch.attempt;
  end if;
  return next;
end $$;

-- Watchers: the few workers that look after all others (worker/fleet/seat.py).
--
--     vacant   whether a seat is free to be taken
--     crowded  whether a seat is better left to a worker of another host

create or replace function outlive.vacant(s outlive.watchers) returns boolean language sql volatile
-- Whether the watcher of this seat is gone: its term has ended, or its lock can be had, which the server releases
-- when its session ends. To try one lock costs the same in a fleet of any size. A term that ends much later than
-- it could was written before the clock was set back.
return s.until not between outlive.now() and outlive.now() + interval '10 seconds'
  or coalesce(pg_try_advisory_xact_lock_shared(s.key), false);

create or replace function outlive.crowded(me uuid, below int) returns boolean language sql volatile
-- Whether a watcher with a seat below this one is on the host of this worker, while a host that has workers has no
-- watcher. Workers in other languages are no watchers.
return exists (
    select from outlive.watchers s join outlive.workers k on k.id = s.worker
      join outlive.workers m on m.hostname = k.hostname
    where m.id = me and s.worker <> me and s.seat < below and not outlive.vacant(s))
  and exists (
    select from outlive.workers o
    where o.state = 'active' and o.app is not null and o.hostname not in (
      select k.hostname from outlive.watchers s join outlive.workers k on k.id = s.worker
      where not outlive.vacant(s)));

-- The protocol: what a worker in another language calls. Each function runs the statements of the Python worker,
-- which are installed as outlive.statement_…, so claims, fences and verdicts are the same.
-- A worker calls register, then claim, renew and inputs_of, and for each job succeed or fail; at last goodbye.
-- The steps of durable jobs are in protocol_steps.sql.
--
-- SQLSTATEs: OL002 the attempt is no longer this worker's, OL003 bad input, OL006 the worker was declared dead,
-- has stopped or never registered, 55P03 another transaction has locked what an end needs (a batch, a dedupe key):
-- call again. After each of them nothing was written.

create or replace function outlive.refuse_unless(fine boolean, message text) returns void language plpgsql as $$
-- OL003 with this message, unless all is fine.
begin
  if fine is not true then
    raise exception using errcode = 'OL003', message = refuse_unless.message;
  end if;
end $$;

create or replace function outlive.beat(by_worker uuid, draining boolean) returns outlive.workers
language plpgsql as $$
-- A heartbeat of this worker. Its row is locked, so that two claims of one worker never run at once. The jobs that
-- a claim has locked run nowhere until it commits, so a session that forgets to commit is ended.
-- OL006: it is not alive.
declare
  me outlive.workers;
begin
  if current_setting('idle_in_transaction_session_timeout') = '0' then
    perform set_config('idle_in_transaction_session_timeout', '10s', true);
  end if;
  select k.* into me from outlive.workers k where k.id = by_worker for no key update;
  perform from outlive.statement_heartbeat(
    worker => by_worker, state => case when me.state = 'draining' or draining then 'draining' else 'active' end);
  if not found then
    raise exception using errcode = 'OL006', message = format(
      'worker %s was declared dead, has stopped or never registered: stop its jobs, and register again',
      coalesce(by_worker::text, 'null'));
  end if;
  select k.* into me from outlive.workers k where k.id = by_worker;
  return me;
end $$;

create or replace function outlive.register(
  name text, tasks text[], queues text[] default null, slots int default 1, hostname text default null,
  pid int default 0, version text default 'sql', worker uuid default null, formerly uuid default null,
  liveness boolean default true)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp set synchronous_commit = on as $$
-- Register a worker for these tasks, in these queues (null: all). Returns its id. It is alive for as long as this
-- session lasts: about a second after the session ends, its jobs run elsewhere. With the id of a `worker` that is
-- alive, this session takes over from one that was lost. A worker that was declared dead registers without an id
-- and says who it was `formerly`, so that the losses of its jobs are taken back. Behind a pooler in transaction
-- mode `liveness` must be false, because the session is not the worker's own: its death is then noticed after two
-- minutes without a call of claim or renew.
#variable_conflict use_variable
declare
  mine uuid := coalesce(worker, gen_random_uuid());
  place text := coalesce(hostname, host(inet_client_addr()), 'localhost');
begin
  perform outlive.refuse_unless(
    octet_length(name) between 1 and 200 and octet_length(place) between 1 and 200
      and octet_length(version) between 1 and 200,
    'name, hostname and version of a worker are texts of 1 to 200 bytes');
  perform outlive.refuse_unless(
    cardinality(tasks) between 1 and 10000 and coalesce(cardinality(queues), 1) between 1 and 10000
      and not exists (
        select from unnest(tasks || queues) n where n is null or octet_length(n) not between 1 and 200),
    'a worker has at least one task, and queues unless it takes all: names of 1 to 200 bytes');
  perform outlive.refuse_unless(slots between 1 and 10000, 'slots is a number from 1 to 10000');
  perform outlive.refuse_unless(pid >= 0 and liveness is not null, 'pid and liveness can''t be null or negative');
  perform from outlive.workers k where k.id = formerly and k.state = 'dead' for no key update;
  perform outlive.refuse_unless(
    formerly is null or found,
    format('worker %s was not declared dead: its losses can''t be taken back', formerly));
  perform outlive.statement_register_worker(
    id => mine, name => name, hostname => place, pid => pid, version => version, queues => queues,
    slots => slots, formerly => formerly);
  perform outlive.beat(mine, false);
  perform outlive.statement_tell_tasks(tasks => tasks, worker => mine);
  -- A lock that this session holds for the worker already stays: if this rolls back, it is still the right one.
  if liveness and not exists (
    select from outlive.liveness l where l.worker = mine and outlive.holds_lock(l))
  then
    -- The server notices within seconds that the other end is gone, and never ends the session itself.
    perform set_config(s.name, s.value, false) from (values
      ('tcp_keepalives_idle', '2'), ('tcp_keepalives_interval', '1'), ('tcp_keepalives_count', '2'),
      ('tcp_user_timeout', '4000'), ('client_connection_check_interval', '1000'),
      ('idle_session_timeout', '0')) s(name, value);
    loop
      exit when exists (select from outlive.statement_hold_liveness_lock(worker => mine, key => (
        'x' || left(md5(gen_random_uuid()::text), 16))::bit(64)::bigint & 9223372036854775807));
    end loop;
  end if;
  return mine;
end $$;

create or replace function outlive.holds_lock(l outlive.liveness) returns boolean language plpgsql as $$
-- Whether this session is the one that shows by its lock that the worker is alive.
begin
  return l.backend_pid = pg_backend_pid() and exists (
    select from pg_locks k
    where k.locktype = 'advisory' and k.pid = l.backend_pid
      and k.classid::bigint << 32 | k.objid::bigint = l.key);
end $$;

create or replace function outlive.makes_room(me outlive.workers) returns boolean language plpgsql as $$
-- Whether this worker claims nothing beside its jobs for now, so that it becomes idle, and can claim a suspect
-- that has waited for a minute. One worker at a time does, by lot, for two seconds of every minute, so that other
-- jobs do not wait for long.
declare
  second bigint := floor(extract(epoch from outlive.now()));
  minute bigint := second / 60;
begin
  return second % 60 < 2
    and outlive.statement_suspects_wait(tasks => me.tasks, queues => me.queues, after_s => 60)
    and not exists (
      select from outlive.workers k
      where k.state = 'active' and k.tasks && me.tasks
        and md5(k.id::text || minute) < md5(me.id::text || minute));
end $$;

create or replace function outlive.claim_from(
  me outlive.workers, most int, lease_s double precision, idle boolean)
returns bigint[] language plpgsql set lock_timeout = '100ms' as $$
-- pending, retryable -> running, for at most `most` jobs of this worker's tasks and queues, or for one suspect, if
-- the worker is idle; if other jobs wait, chance decides between the two. Jobs are taken by priority, and lanes of
-- the same priority in random order. Returns the tokens.
-- Sources are searched 256 at a time, and the next claim of this session goes on after them: thousands of closed
-- sources delay no other job. If nothing was found, the search goes on for 30 ms.
declare
  lanes outlive.waiting[];
  more outlive.waiting[];
  suspect_waits boolean;
  place text[] := coalesce(nullif(current_setting('outlive.sources_after', true), ''), '{"",""}')::text[];
  page int;
  next record;
  offered record;
  got bigint[] := '{}';
begin
  select array_agg(row(l.queue, l.source, l.task, l.priority, l.ready_at, null, 0, 0, 0, 0, null)::outlive.waiting)
      filter (where l.ready), bool_or(l.queue is null)
  into lanes, suspect_waits from outlive.statement_unsourced_lanes(queues => me.queues, tasks => me.tasks) l;
  loop
    select array_agg(
        row(l.queue, l.source, l.task, l.priority, l.ready_at, null, 0, 0, 0, 0, null)::outlive.waiting)
        filter (where l.ready and l.wait_s <= 0),
      coalesce(max(l.n), 0), max(array[l.queue, l.source] collate "C")
    into more, page, place
    from outlive.statement_sourced_lanes(
      tasks => me.tasks, queues => me.queues, after_queue => place[1], after_source => place[2], batch => 256) l;
    lanes := lanes || more;
    exit when page < 256 or lanes is not null or clock_timestamp() > statement_timestamp() + interval '30 ms';
  end loop;
  perform set_config('outlive.sources_after', case when page = 256 then place::text else '' end, false);
  if idle and suspect_waits and (cardinality(lanes) is null or random() < 0.5) then
    got := array(select s.token from outlive.statement_claim_suspect(
      worker => me.id, tasks => me.tasks, queues => me.queues, lease_s => lease_s) s);
    if cardinality(got) > 0 then
      return got;
    end if;
  end if;
  for next in
    select l.priority, l.source <> '' as sourced from unnest(lanes) l group by 1, 2 order by 1, random()
  loop
    exit when cardinality(got) >= most;
    select array_agg(l.queue order by l.at) as queues, array_agg(l.source order by l.at) as sources,
      array_agg(l.task order by l.at) as tasks, array_agg(l.priority) as priorities,
      array_agg(case when l.ready_at > '2000-01-01Z' then l.ready_at end order by l.at) as marks
    into offered from (select u.*, random() as at from unnest(lanes) u) l
    where l.priority = next.priority and (l.source <> '') = next.sourced;
    if next.sourced then
      got := got || array(
        select c.token from outlive.claim_sourced(
          me.id, offered.queues, offered.sources, offered.tasks, offered.priorities, most - cardinality(got),
          lease_s) c
        where c.id is not null);
    else
      got := got || array(
        select c.token from outlive.claim_lanes(
          me.id, offered.queues, offered.sources, offered.tasks, offered.priorities, offered.marks, null,
          most - cardinality(got), lease_s, true) c);
    end if;
  end loop;
  return got;
end $$;

create or replace function outlive.claim(worker uuid, most int default 1, lease interval default '5 minutes')
returns table (
  token bigint, id uuid, task text, args json, attempt int, lease_until timestamptz, secret text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set synchronous_commit = on set jit = off set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_bitmapscan = off as $$
-- pending, retryable -> running: claim at most `most` jobs, and never more than the worker has free slots. Each
-- row is an attempt that is the worker's until `lease_until`; renew it in time. With its token and `secret` a job
-- can also call outlive.complete. No rows: there is no work now, or the worker drains. It counts as a heartbeat.
-- OL006: the worker is not alive.
#variable_conflict use_column
declare
  me outlive.workers;
  busy bigint;
  suspect outlive.running;
  got bigint[];
begin
  perform outlive.refuse_unless(most >= 1, 'claim takes at least one job');
  perform outlive.refuse_unless(lease between interval '5 seconds' and interval '1 day',
    'a lease lasts from 5 seconds to 1 day');
  me := outlive.beat(claim.worker, false);
  select count(*) into busy from outlive.running r where r.worker = me.id;
  select r.* into suspect from outlive.running r where r.worker = me.id and r.alone limit 1;
  -- A suspect is alone for three seconds if other jobs wait and slots are free, and otherwise for all its time.
  if suspect.token is not null and (
    suspect.started_at + interval '1 second' * case
      when me.slots > 1 and exists (
        select from outlive.statement_unsourced_lanes(queues => me.queues, tasks => me.tasks) l where l.ready)
      then 3 else outlive.alone_s(suspect.id) end > outlive.now()
    or not exists (select from outlive.statement_end_time_alone(worker => me.id, token => suspect.token)))
  then
    return;
  end if;
  if me.state = 'draining' or me.drain_requested_at is not null or busy >= me.slots
    or busy > 0 and outlive.makes_room(me)
  then
    return;
  end if;
  got := outlive.claim_from(me, least(most, me.slots - busy)::int, extract(epoch from lease), busy = 0);
  if exists (select from outlive.tasks t where t.name = any(me.tasks) and t.quarantine_by = 'fingerprint') then
    perform outlive.statement_convict(worker => me.id, tokens => array(
      select r.token from outlive.running r join outlive.tasks t on t.name = r.task
      where r.token = any(got) and t.quarantine_by = 'fingerprint'));
  end if;
  if cardinality(got) = 0 then
    perform outlive.statement_sleep(worker => me.id);
  else
    perform outlive.statement_wake(worker => me.id);
  end if;
  return query
    select r.token, r.id, r.task, j.args, r.attempt, r.lease_until, outlive.attempt_secret(me.secret, r.token)
    from outlive.running r join outlive.jobs j on j.id = r.id
    where r.token = any(got) order by r.priority, r.ready_at;
end $$;

create or replace function outlive.renew(
  worker uuid, tokens bigint[] default '{}', lease interval default '5 minutes', draining boolean default false)
returns table (token bigint, verdict text)
language plpgsql security definer set search_path = pg_catalog, pg_temp set synchronous_commit = on as $$
-- Keep these attempts for another lease. The verdict on each is keep, cancel (an operator wants it stopped: stop
-- it, and call fail with the outcome cancelled) or lost (it is no longer this worker's: stop it, and report
-- nothing). A row without a token, drain: an operator wants the worker to finish its jobs and stop. A worker that
-- stops says that it is `draining`: from then on its death is not charged to its jobs. It counts as a heartbeat,
-- also without tokens. OL006: the worker is not alive, and all its attempts are lost.
#variable_conflict use_column
declare
  me outlive.workers;
  renewed bigint[];
  cancelled bigint[];
begin
  perform outlive.refuse_unless(tokens is not null and array_position(tokens, null) is null,
    'tokens are numbers, and none is null');
  perform outlive.refuse_unless(lease between interval '5 seconds' and interval '1 day',
    'a lease lasts from 5 seconds to 1 day');
  me := outlive.beat(renew.worker, coalesce(draining, false));
  select array_agg(n.token), array_agg(n.token) filter (where n.cancel_requested) into renewed, cancelled
  from outlive.statement_renew(
    worker => me.id, tokens => tokens, lease_s => extract(epoch from lease)) n;
  return query
    select t.token, case
      when t.token = any(cancelled) then 'cancel'
      when t.token = any(renewed) then 'keep'
      -- The transaction that ends it holds its lock.
      when exists (select from outlive.running r where r.token = t.token and r.worker = me.id) then 'keep'
      else 'lost' end
    from unnest(tokens) t(token)
    union all select null, 'drain' where me.drain_requested_at is not null;
end $$;

create or replace function outlive.inputs_of(worker uuid, token bigint) returns setof json
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
-- The results of the jobs that the job of this attempt has waited for, in their order; null for one that has none.
-- OL002: the attempt is no longer this worker's.
declare
  needed uuid[];
begin
  select j.after into needed from outlive.running r join outlive.jobs j on j.id = r.id
  where r.token = inputs_of.token and r.worker = inputs_of.worker;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  return query
    select a.result from unnest(needed) with ordinality n(id, at)
      left join lateral (
        select b.result from outlive.attempts b where b.job_id = n.id order by b.attempt desc limit 1) a on true
    order by n.at;
end $$;

create or replace function outlive.succeed(
  worker uuid, token bigint, result json default null, records json default null, spawns json default null,
  output text default null)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
-- running -> succeeded, with a result, records ([{"scope", "key", "data", "strength"}]) and more jobs ([{"task",
-- "args", …}]). In the transaction of the caller: what else it writes there commits with the success, or not at
-- all. OL002: the attempt is no longer this worker's.
declare
  named text;
begin
  perform outlive.refuse_unless(
    coalesce(octet_length(result::text), 0) + coalesce(octet_length(records::text), 0)
      + coalesce(octet_length(spawns::text), 0) <= 16777216,
    'the result, the records and the jobs of one attempt have at most 16 MB: store them elsewhere');
  -- What jsonb can't hold, such as text with NUL, no client could read.
  perform result::jsonb, records::jsonb, spawns::jsonb;
  perform outlive.refuse_unreadable('the result', result) where result is not null;
  perform outlive.refuse_unreadable('a record', records) where records is not null;
  select r.source into named from outlive.running r where r.token = succeed.token and r.worker = succeed.worker;
  perform outlive.complete_with_records(
    token, worker, case when json_typeof(result) <> 'null' then result end, records, spawns,
    output => right(output, 65536));
  if named <> '' then
    perform outlive.count_outcomes(array[named], array[token], '{true}', patient => false);
  end if;
end $$;

create or replace function outlive.fail(
  worker uuid, token bigint, error text default null, retry boolean default true, after interval default null,
  outcome text default 'failed', exit_code int default null, signal text default null, output text default null,
  stack text default null, peak_memory_bytes bigint default null, cpu_s double precision default null)
returns text language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '1s' as $$
-- running -> retryable, pending, failed, quarantined, cancelled, as the limits of the job decide. Returns the new
-- state. The outcome is failed, timed_out, crashed or out_of_memory (the job's process died; a signal says that it
-- was killed for its memory), released (given back at no cost) or cancelled. `retry` false forbids another attempt
-- after a failure; `after` replaces the backoff. OL002: the attempt is no longer this worker's.
#variable_conflict use_variable
declare
  named text;
  state text;
begin
  perform outlive.refuse_unless(
    outcome in ('failed', 'timed_out', 'crashed', 'out_of_memory', 'released', 'cancelled'),
    format('the outcome can''t be %s: it is failed, timed_out, crashed, out_of_memory, released or cancelled',
      coalesce(outcome, 'null')));
  perform outlive.refuse_unless(retry is not null, 'retry is true or false');
  perform outlive.refuse_unless(
    coalesce(extract(epoch from after) between 0 and 1e9, true), 'after is a time from 0 seconds to 30 years');
  perform outlive.refuse_unless(
    coalesce(cpu_s, 0) between 0 and 1e9 and coalesce(peak_memory_bytes, 0) >= 0,
    'cpu_s is a number from 0 to 1e9, and peak_memory_bytes is not negative');
  select r.source into named from outlive.running r where r.token = token and r.worker = worker;
  if outlive.end_attempts(
    worker, array[token], array[outcome], array[left(error, 8000)], array[exit_code], array[left(signal, 100)],
    array[peak_memory_bytes], array[cpu_s], array[right(output, 65536)], array[left(stack, 65536)],
    kills => array[outcome = 'out_of_memory' and signal is not null], finals => array[not retry],
    afters_s => array[extract(epoch from after)::double precision]) <> '{}'
  then
    perform outlive.refuse_stale(token);
  end if;
  if named <> '' and (outcome = 'timed_out' or outcome = 'failed' and retry) then
    perform outlive.count_outcomes(array[named], array[token], '{false}', patient => false);
  end if;
  select a.state into state from outlive.attempts a where a.token = token;
  return state;
end $$;

create or replace function outlive.goodbye(worker uuid) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- The worker stops: the jobs that it still has are given back at no cost. Returns how many. One that another
-- transaction has locked is given back by a reaper. A worker that was declared dead, or has stopped, has none.
declare
  given_back bigint[] := array(
    select t.token from outlive.statement_tokens_of(worker => goodbye.worker) t
    except select l.token from outlive.statement_locked_ends(worker => goodbye.worker, tokens => array(
      select t.token from outlive.statement_tokens_of(worker => goodbye.worker) t)) l
    order by 1);
  many int := cardinality(given_back);
begin
  perform outlive.end_attempts(
    goodbye.worker, given_back, array_fill('released'::text, array[many]),
    array_fill('its worker stopped'::text, array[many]));
  perform pg_advisory_unlock(l.key) from outlive.liveness l
  where l.worker = goodbye.worker and outlive.holds_lock(l);
  perform outlive.statement_stop_worker(worker => goodbye.worker);
  return many;
end $$;

-- The part of the protocol (protocol.sql) that durable jobs need: the steps of a job in another language.

create or replace function outlive.kept_steps(worker uuid, token bigint) returns table (step text, value json)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
-- The steps that the job of this attempt has kept, in their order: it does not take these again.
-- OL002: the attempt is no longer this worker's.
declare
  job uuid;
begin
  select r.id into job from outlive.running r where r.token = kept_steps.token and r.worker = kept_steps.worker;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  return query select s.name, s.value from outlive.statement_steps_of(id => job) s;
end $$;

create or replace function outlive.keep_step(
  worker uuid, token bigint, step text, value json default null, took interval default null)
returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Keep what a step of this attempt has returned, and how long that took. The failures of the job count from zero
-- then. Returns the value to go on with: that of another attempt, or of a person, if it was kept under this name
-- before. OL002: the attempt is no longer this worker's.
begin
  perform outlive.refuse_unless(
    coalesce(extract(epoch from took) between 0 and 1e9, true), 'took is a time from 0 seconds to 30 years');
  value := coalesce(value, 'null');
  perform outlive.refuse_step(r.id, step, value) from outlive.running r
  where r.token = keep_step.token and r.worker = keep_step.worker;
  select k.value into value from outlive.statement_keep_steps(
    worker => worker, tokens => array[token], names => array[step], "values" => array[value],
    arguments => '{null}', tooks_s => array[extract(epoch from took)::double precision]) k;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  return value;
end $$;

create or replace function outlive.wait_in(
  worker uuid, token bigint, step text, after interval default null, signal text default null)
returns table (outcome text, value json)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- running -> suspended: the job waits in this step for some time, or for a signal, and for that no longer than
-- `after`. The outcome `suspended`: the attempt is over; end its code, and report nothing. A later attempt finds
-- the step among those that are kept; its value is null if the signal did not come. `over`: go on, with this
-- value. `cancelled`: stop it, and call fail with that outcome. OL002: the attempt is no longer this worker's.
begin
  perform outlive.refuse_unless(
    coalesce(extract(epoch from after) between 0 and 1e9, signal is not null),
    'a job waits for a signal, or for a time from 0 seconds to 30 years');
  perform outlive.refuse_signal(signal) where signal is not null;
  perform outlive.refuse_step(r.id, step, 'null') from outlive.running r
  where r.token = wait_in.token and r.worker = wait_in.worker;
  return query
    select s.outcome, s.value
    from outlive.suspend(token, worker, step, extract(epoch from after)::double precision, signal) s;
end $$;

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

create or replace function outlive.statement_locked_ends("tokens" bigint[] default null, "worker" uuid default null)
returns table (token bigint) language sql as $statement$
with free as materialized (
  select r.token, r.id from outlive.running r
  where r.token = any($1::bigint[]) and r.worker = $2::uuid
  order by r.token for update skip locked),
keys as materialized (
  select k.id from outlive.dedupe_keys k where k.id = any(array(select id from free))
  order by k.task, k.key for update skip locked),
dependents as materialized (
  select h.id from outlive.held h
  where h.id = any(array(
    select d.job_id from outlive.dependencies d where d.needs = any(array(select id from free)) and not d.met))
  order by h.id for update skip locked),
batches as materialized (
  select b.id from outlive.batches b
  where b.id in (select j.batch from outlive.jobs j where j.id = any(array(select id from free)))
  order by b.id for no key update skip locked)
select r.token from outlive.running r
where r.token = any($1::bigint[]) and r.worker = $2::uuid and (
  not exists (select from free f where f.token = r.token)
  or exists (
    select from outlive.dedupe_keys k where k.id = r.id and not exists (select from keys l where l.id = k.id))
  or exists (
    select from outlive.dependencies d
    where d.needs = r.id and not d.met and not exists (select from dependents l where l.id = d.job_id))
  or exists (
    select from outlive.jobs j join outlive.batches b on b.id = j.batch
    where j.id = r.id and not exists (select from batches l where l.id = b.id)));
$statement$;

create or replace function outlive.statement_renew("tokens" bigint[] default null, "worker" uuid default null, "lease_s" double precision default null)
returns table (token bigint, cancel_requested boolean) language sql as $statement$
with mine as (
  select r.token from outlive.running r
  where r.token = any($1::bigint[]) and r.worker = $2::uuid
  order by r.token for update skip locked)
update outlive.running r
set lease_until = outlive.now() + $3::double precision * interval '1 second', heartbeat_at = outlive.now()
from mine where r.token = mine.token
returning r.token, r.cancel_requested;
$statement$;

create or replace function outlive.statement_tokens_of("worker" uuid default null)
returns table (token bigint) language sql as $statement$
select r.token from outlive.running r where r.worker = $1::uuid order by r.token;
$statement$;

create or replace function outlive.statement_claim_suspect("tasks" text[] default null, "queues" text[] default null, "after_s" double precision default null, "worker" uuid default null, "most" int[] default null, "lease_s" double precision default null)
returns table (
   token bigint, id uuid, attempt int, queue text, source text, task text, priority smallint,
   ready_at timestamptz, failures smallint, crashes smallint, losses smallint, args json, options jsonb,
   alone_s double precision) language sql as $statement$
with first as (
  select h.*, h as suspect from outlive.held h
  where h.why = 'suspect'
    and h.task = any($1::text[])
    and ($2::text[] is null or h.queue = any($2::text[]))
    and h.ready_at <= outlive.now()
    and ($3::double precision is null
      or h.since <= outlive.now() - $3::double precision * interval '1 second')
    and not exists (select from outlive.workers k where k.id = $4::uuid and k.state = 'dead')
    and not exists (select from outlive.queues q where q.name = h.queue and q.paused_at is not null)
    and (h.source = '' or outlive.admits_one(h.source))
    and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued')
    and outlive.in_time(h.id)
  order by h.since limit 1 for update skip locked),
pick as (
  select p.id
  from first f,
    lateral (
      select h.id from outlive.held h
      where h.why = 'suspect' and h.queue = f.queue and h.source = f.source and h.task = f.task
        and h.losses = f.losses
        and (h.id = f.id or h.crashes = 0 and f.crashes = 0)  -- Others need a process of their own.
        and h.ready_at <= outlive.now()
        and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued')
        and outlive.in_time(h.id)
      order by h.since limit least(
        coalesce(($5::int[])[array_position($1::text[], f.task)], 1), outlive.crowd(f.suspect), (
          select (outlive.admits(s, null, true)).free from outlive.sources s where s.name = f.source))
      for update skip locked) p),
free as materialized (
  select t.id from outlive.take_slots(array(select p.id from pick p)) t(id)),
taken as (
  delete from outlive.held h where h.id in (select f.id from free f) returning h.*),
started as (
  insert into outlive.running (
    id, attempt, worker, lease_until, heartbeat_at, started_at, alone, queue, source, task, priority, ready_at,
    failures, crashes, losses)
  select
    t.id, t.attempt + 1, $4::uuid, outlive.now() + $6::double precision * interval '1 second',
    outlive.now(), outlive.now(), $3::double precision is null and (select count(*) from free) = 1, t.queue,
    t.source, t.task, t.priority, t.ready_at, t.failures, t.crashes, t.losses
  from taken t
  where case when t.crashes = 0 then true else not outlive.keep_back(row(t.queue, t.source, t.task, t.priority,
    t.ready_at, t.id, t.attempt, t.failures, t.crashes, t.losses, null)::outlive.waiting) end
  returning token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses),
paid as materialized (
  select outlive.spend(o, n.jobs::int, n.token)
  from (select s.source, count(*) as jobs, max(s.token) as token from started s group by s.source) n
  join outlive.sources o on o.name = n.source)
select s.*, outlive.carried(j.args), j.options,
  case when $3::double precision is null then outlive.alone_s(s.id) else 0 end
from started s join outlive.jobs j on j.id = s.id where (select count(*) from paid) <= 1;
$statement$;

create or replace function outlive.statement_suspects_wait("tasks" text[] default null, "queues" text[] default null, "after_s" double precision default null)
returns boolean language sql as $statement$
select exists (
  select from outlive.held h
  where h.why = 'suspect'
    and h.task = any($1::text[])
    and ($2::text[] is null or h.queue = any($2::text[]))
    and h.ready_at <= outlive.now()
    and h.since <= outlive.now() - $3::double precision * interval '1 second'
    and not exists (select from outlive.queues q where q.name = h.queue and q.paused_at is not null)
    and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued')
    and not exists (
      select from outlive.sources s, lateral outlive.admits(s, null, true) a
      where s.name = h.source and a.free < 1 and (a.open or a.wait_s > $3::double precision)));
$statement$;

create or replace function outlive.statement_end_time_alone("token" bigint default null, "worker" uuid default null)
returns setof bigint language sql as $statement$
with mine as (
  select r.token from outlive.running r
  where r.token = $1::bigint and r.worker = $2::uuid for update skip locked)
update outlive.running r set alone = false from mine where r.token = mine.token
returning r.token;
$statement$;

create or replace function outlive.statement_convict("tokens" bigint[] default null, "worker" uuid default null)
returns void language sql as $statement$
with known as (
  select r.token, p.kills, p.max_crashes from outlive.running r, lateral outlive.policy_of(r.id, r.task) p
  where r.token = any($1::bigint[]) and r.worker = $2::uuid and r.crashes + p.kills >= p.max_crashes
  order by r.token for update of r skip locked),
caught as (
  delete from outlive.running r using known k where r.token = k.token returning r.*, k.kills, k.max_crashes),
quarantined as (
  insert into outlive.held
  select c.id, 'quarantined', outlive.now(), outlive.charge(c.id, c.crashes, c.kills, c.max_crashes), c.queue,
    c.source, c.task, c.priority, c.ready_at, c.attempt - 1, c.failures, c.crashes, c.losses
  from caught c where not c.cancel_requested
  returning id)
select
  c.id,
  case when c.cancel_requested
    then outlive.finish_unclaimed(
      array[c.id], array[c.attempt - 1], array[c.failures], array[c.crashes], array[c.losses]) end,
  outlive.follow_up(array[c.id], array[case when c.cancel_requested then 'cancelled' else 'quarantined' end])
from caught c where (select count(*) from quarantined) >= 0;  -- First they are held: what follows reads why.;
$statement$;

create or replace function outlive.statement_unsourced_lanes("queues" text[] default null, "tasks" text[] default null)
returns table (
   queue text, source text, task text, priority smallint, ready_at timestamptz, ready boolean) language sql as $statement$
with recursive mine as materialized (
  select q.name from outlive.open_queues q where $1::text[] is null or q.name = any($1::text[])),
lane as (
  select q.name as queue, n.task, n.priority, n.ready_at
  from mine q, lateral (
    select w.task, w.priority, w.ready_at from outlive.waiting w where w.queue = q.name and w.source = ''
    order by w.task, w.priority, w.ready_at, w.id limit 1) n
  union all
  select l.queue, n.task, n.priority, n.ready_at
  from lane l, lateral (
    select w.task, w.priority, w.ready_at from outlive.waiting w
    where w.queue = l.queue and w.source = '' and (w.task, w.priority) > (l.task, l.priority)
    order by w.task, w.priority, w.ready_at, w.id limit 1) n)
select l.queue, '' as source, l.task, l.priority,
  least(greatest(l.ready_at, '2000-01-01Z'), '9000-01-01Z') as ready_at, l.ready_at <= outlive.now() as ready
from lane l where l.task = any($2::text[])
union all
select null, null, null, null, null, null
where exists (
  select from outlive.held h
  where h.why = 'suspect' and h.task = any($2::text[]) and h.ready_at <= outlive.now()
    and not exists (select from outlive.keyed_jobs k where k.job_id = h.id and k.state = 'queued'))
union all
select q.name, null, null, null, null, null from outlive.queues q where q.paused_at is not null;
$statement$;

create or replace function outlive.statement_sourced_lanes("queues" text[] default null, "after_queue" text default null, "batch" int default null, "after_source" text default null, "tasks" text[] default null)
returns table (
   queue text, source text, task text, priority smallint, ready_at timestamptz, ready boolean,
   admits_all boolean, wait_s double precision, n int) language sql as $statement$
with recursive mine as materialized (
  select q.name from outlive.open_queues q
  where ($1::text[] is null or q.name = any($1::text[])) and q.name >= $2::text collate "C"
    and exists (select from outlive.waiting w where w.queue = q.name and w.source > '')
  order by q.name limit $3::int + 1),
pair as (
  select $2::text collate "C" as queue, $4::text collate "C" as source, 0 as n
  union all
  select s.queue, s.source, p.n + 1
  from pair p, lateral (
    (select w.queue, w.source from outlive.waiting w where w.queue = p.queue and w.source > p.source
       and exists (select from mine q where q.name = p.queue)
     order by w.queue, w.source limit 1)
    union all
    (select q.name, '' from mine q where q.name > p.queue order by q.name limit 1)
    limit 1) s
  where p.n < $3::int)
select p.queue, p.source, l.task, l.priority, least(greatest(l.ready_at, '2000-01-01Z'), '9000-01-01Z'),
  l.ready_at <= outlive.now(), coalesce(outlive.admits_all(s), false), c.wait_s, p.n
from pair p
  left join outlive.sources s on s.name = p.source
  cross join lateral (
    select coalesce(greatest(
      case when not s.enabled then 30 end,
      extract(epoch from s.paused_until - outlive.now()),
      extract(epoch from s.wanted_until - outlive.now()),
      extract(epoch from s.full_at - outlive.now()) - (coalesce(s.set_burst, s.burst) - 1) * 60
        / coalesce(s.set_rate_limit_per_minute, s.rate_limit_per_minute)), 0)::double precision as wait_s) c
  left join lateral (
    with recursive lane as (
      (select w.task, w.priority, w.ready_at from outlive.waiting w
       where p.source <> '' and c.wait_s <= 0 and w.queue = p.queue and w.source = p.source
       order by w.task, w.priority, w.ready_at, w.id limit 1)
      union all
      select n.task, n.priority, n.ready_at
      from lane l, lateral (
        select w.task, w.priority, w.ready_at from outlive.waiting w
        where w.queue = p.queue and w.source = p.source and (w.task, w.priority) > (l.task, l.priority)
        order by w.task, w.priority, w.ready_at, w.id limit 1) n)
    select a.* from lane a where a.task = any($5::text[])) l on true
where p.n > 0;
$statement$;

create or replace function outlive.statement_sleep("worker" uuid default null)
returns void language sql as $statement$
insert into outlive.sleepers (worker)
select $1::uuid where not exists (
  select from outlive.workers k where k.id = $1::uuid and k.state in ('dead', 'stopped'))
on conflict do nothing;
$statement$;

create or replace function outlive.statement_wake("worker" uuid default null)
returns void language sql as $statement$
delete from outlive.sleepers where worker = $1::uuid;
$statement$;

create or replace function outlive.statement_keep_steps("tokens" bigint[] default null, "names" text[] default null, "values" json[] default null, "arguments" text[] default null, "tooks_s" double precision[] default null, "worker" uuid default null)
returns table (job_id uuid, name text, value json) language sql as $statement$
with given as materialized (
  select g.*, r.id, r.attempt, r.failures + r.crashes + r.losses as counted
  from unnest($1::bigint[], $2::text[], $3::json[], $4::text[], $5::double precision[])
      with ordinality g(token, name, value, arguments, took_s, n)
    join outlive.running r on r.token = g.token and r.worker = $6::uuid),
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
$statement$;

create or replace function outlive.statement_steps_of("id" uuid default null)
returns table (name text, value json, attempt int, took_s double precision, at timestamptz, supplied_by text) language sql as $statement$
select s.name, s.value, s.attempt, s.took_s, s.at, s.supplied_by from outlive.steps s where s.job_id = $1::uuid
order by s.at, s.name;
$statement$;

create or replace function outlive.statement_register_worker("id" uuid default null, "name" text default null, "hostname" text default null, "pid" int default null, "version" text default null, "queues" text[] default null, "slots" int default null, "secret" uuid default null, "heartbeat_s" double precision default null, "renew_s" double precision default null, "stale_s" double precision default null, "dead_s" double precision default null, "alerts" text[] default null, "labels" text[] default null, "connections" int default null, "formerly" uuid default null)
returns void language sql as $statement$
with registered as (
  insert into outlive.workers (id, name, hostname, pid, version, queues, slots, secret, started_at, last_seen,
    heartbeat_s, renew_s, stale_s, dead_s, alerts, labels, connections)
  values ($1::uuid, $2::text, $3::text, $4::int, $5::text, $6::text[], $7::int,
    coalesce($8::uuid, gen_random_uuid()), outlive.now(), outlive.now(),
    coalesce($9::double precision, 30), coalesce($10::double precision, 20),
    coalesce($11::double precision, 60), coalesce($12::double precision, 120), $13::text[],
    $14::text[], $15::int)
  on conflict (id) do nothing returning id)
select outlive.take_back($16::uuid) from registered where $16::uuid is not null;
$statement$;

create or replace function outlive.statement_tell_tasks("tasks" text[] default null, "app" text default null, "schedules" text[] default null, "worker" uuid default null)
returns void language sql as $statement$
update outlive.workers set tasks = $1::text[], app = $2::text, schedules = $3::text[]
where id = $4::uuid;
$statement$;

create or replace function outlive.statement_heartbeat("state" text default null, "trouble" text default null, "memory_bytes" bigint default null, "reloaded" timestamptz default null, "reload_error" text default null, "worker" uuid default null)
returns table (drain_requested boolean, reload_requested_at timestamptz, slots int, queues text[]) language sql as $statement$
with hurry as (select set_config('synchronous_commit', 'off', true))
update outlive.workers k set
  last_seen = outlive.now(),
  state = $1::text,
  trouble = $2::text,
  memory_bytes = coalesce($3::bigint, k.memory_bytes),
  missed_at = null,
  reload_requested_at = nullif(k.reload_requested_at, $4::timestamptz),
  reload_error = $5::text,
  stop_requested_at = case when $1::text = 'draining' then coalesce(k.stop_requested_at, outlive.now()) end
from hurry
where k.id = $6::uuid and k.state in ('active', 'stale', 'draining')
returning k.drain_requested_at is not null, k.reload_requested_at, k.slots, k.queues;
$statement$;

create or replace function outlive.statement_stop_worker("worker" uuid default null)
returns void language sql as $statement$
with unwatched as (delete from outlive.liveness where worker = $1::uuid),
woken as (delete from outlive.sleepers where worker = $1::uuid),
left_seat as (delete from outlive.watchers where worker = $1::uuid)
update outlive.workers set
  state = 'stopped', last_seen = outlive.now(), stop_requested_at = coalesce(stop_requested_at, outlive.now())
where id = $1::uuid and state <> 'dead';
$statement$;

create or replace function outlive.statement_hold_liveness_lock("worker" uuid default null, "key" bigint default null)
returns setof uuid language sql as $statement$
with watched as (
  update outlive.workers set watched = true, missed_at = null
  where id = $1::uuid and (not watched or missed_at is not null))
insert into outlive.liveness (worker, key, postmaster_started, backend_pid, backend_started)
select $1::uuid, $2::bigint, pg_postmaster_start_time(), pg_backend_pid(), a.backend_start
from pg_stat_get_activity(pg_backend_pid()) a, (select pg_try_advisory_lock($2::bigint) as taken) t where t.taken
on conflict (worker) do update set
  (key, postmaster_started, backend_pid, backend_started) =
  (excluded.key, excluded.postmaster_started, excluded.backend_pid, excluded.backend_started)
returning worker;
$statement$;
-- Names in a function mean what they mean here, and not what the caller's search_path makes of them. Otherwise a
-- login that may create in one of its schemas, as every login may in `public` of a database made before Postgres
-- 15, could define a count(text) that fits better than the server's own, and it would run with the caller's
-- rights. A function in the standard's form (`return …`, `begin atomic`) needs no pin: its names were looked up
-- when it was made. A migration makes every function again and so runs this again.
do $$
declare
  unpinned regprocedure;
begin
  for unpinned in
    select p.oid from pg_proc p
    where p.pronamespace = 'outlive'::regnamespace and p.prosqlbody is null
      and not 'search_path=pg_catalog, pg_temp' = any(coalesce(p.proconfig, '{}'))
  loop
    execute format('alter function %s set search_path = pg_catalog, pg_temp', unpinned);
  end loop;
end $$;

-- The version of the schema in this folder, and the earliest one whose workers and clients can work with it;
-- upgrades/ says how to get here from earlier ones.
insert into outlive.schema_version (version, serves) values (2, 2);

