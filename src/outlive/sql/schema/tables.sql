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
