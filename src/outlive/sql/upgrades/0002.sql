-- From version 1 to 2. Workers of version 1 can't work with it, so `outlive migrate` refuses while one runs.

-- No setting moves the clock any more: every role could stretch its leases with it.
create or replace function outlive.now() returns timestamptz language sql stable parallel safe
return statement_timestamp();

-- No column is added with its default: newer minor versions of Postgres refuse that while a function has the
-- table's row as a parameter.
alter table outlive.running add column begun boolean;
alter table outlive.running alter column begun set default true;
update outlive.running set begun = true;
alter table outlive.running alter column begun set not null;
alter table outlive.attempts add column worker_name text, add column hostname text,
  add column expires_at timestamptz, add column memory json,
  add column loss text collate "C" check (loss in ('alone', 'taken back'));
create index attempts_by_expiry on outlive.attempts (expires_at) where expires_at is not null;
alter table outlive.workers add column missed_at timestamptz, add column stop_requested_at timestamptz,
  add column trouble text, add column tasks text[], add column drain_requested_at timestamptz,
  add column secret uuid, add column memory_bytes bigint, add column app text collate "C",
  add column schedules text[], add column heartbeat_s double precision, add column renew_s double precision,
  add column stale_s double precision, add column dead_s double precision, add column alerts text[],
  add column died_of text, add column died_with int, add column told boolean;
alter table outlive.workers alter column secret set default gen_random_uuid(),
  alter column heartbeat_s set default 30, alter column renew_s set default 20,
  alter column stale_s set default 60, alter column dead_s set default 120, alter column told set default false;
update outlive.workers
set secret = gen_random_uuid(), heartbeat_s = 30, renew_s = 20, stale_s = 60, dead_s = 120, told = false;
alter table outlive.workers alter column secret set not null, alter column heartbeat_s set not null,
  alter column renew_s set not null, alter column stale_s set not null, alter column dead_s set not null,
  alter column told set not null;
create index workers_by_last_seen on outlive.workers (last_seen);

alter table outlive.tasks add column keep_finished_s double precision check (keep_finished_s >= 0),
  add column app_keep_finished_s double precision, add column app_keep_failed_s double precision;
create index tasks_with_expiry on outlive.tasks (name) where keep_finished_s is not null;

create unlogged table outlive.awaited (
  job_id uuid primary key,
  since timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

create unlogged table outlive.watched (
  job_id uuid primary key,
  until timestamptz not null,
  attempt int,
  lines bigint,
  output text,
  memory json
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- From now on it is stored only with jobs whose task counts kills by fingerprint.
alter table outlive.jobs alter column fingerprint drop not null;

alter table outlive.jobs add column after uuid[], add column batch uuid,
  add column concurrency_key text collate "C", add column concurrency int;
alter table outlive.held add column unmet int, drop constraint held_why_check,
  add constraint held_why_check check (why in ('blocked', 'quarantined', 'suspect', 'dependent', 'key'));

create table outlive.keyed_jobs (
  job_id uuid primary key,
  key text collate "C" not null,
  most int not null,
  state text collate "C" not null check (state in ('later', 'queued', 'admitted')),
  priority smallint not null,
  ready_at timestamptz not null
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);
create index keyed_jobs_admitted on outlive.keyed_jobs (key) where state = 'admitted';
create index keyed_jobs_queued on outlive.keyed_jobs (key, priority, ready_at, job_id) where state = 'queued';
create index keyed_jobs_later on outlive.keyed_jobs (ready_at) where state = 'later';

create table outlive.key_turns (
  id bigint generated always as identity primary key,
  keys text[] not null
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);

create table outlive.key_locks (
  bucket int primary key
);

create table outlive.dependencies (
  needs uuid not null,
  job_id uuid not null,
  on_failure text collate "C" not null check (on_failure in ('block', 'proceed', 'cancel')),
  met boolean not null default false,
  primary key (needs, job_id)
) with (fillfactor = 50);
create index dependencies_by_job on outlive.dependencies (job_id, needs);

create table outlive.end_checks (
  id bigint generated always as identity primary key,
  needed uuid[] not null,
  dependents uuid[],
  past uuid not null default '00000000-0000-0000-0000-000000000000'
) with (autovacuum_analyze_threshold = 2000000000, autovacuum_vacuum_scale_factor = 0.0,
        autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);

-- Jobs complete their attempts with a secret. Workers call complete_with_records, which jobs may not execute.
drop function outlive.complete(bigint, uuid, json, json, json, bigint, double precision, text);

-- The new one returns the outcomes that it could not count.
drop function outlive.count_outcomes(text[], bigint[], boolean[], bigint[]);

-- know_sources does its work.
drop function outlive.know_source(text);

-- The new one is told whether the attempt was killed.
drop function outlive.settle(outlive.running, text, text, int, text, bigint, double precision, text, text, json,
  boolean, double precision);

-- The new one cancels several jobs, and is told why.
drop function outlive.finish_unclaimed(uuid, int, smallint, smallint, smallint);

-- The new one returns the jobs that it has cancelled.
drop function outlive.replace(uuid);

-- The new ones take the links of jobs.
drop function outlive.enqueue(text, json, text, text, int, interval, timestamptz, text, text, jsonb, uuid, int,
  boolean);
drop function outlive.enqueue(uuid[], text[], text[], text[], json[], smallint[], double precision[],
  timestamptz[], text[], text[], jsonb[], int, boolean);

-- From now on a session is known by its backend. Workers write their rows again when they connect.
delete from outlive.liveness;
alter table outlive.liveness add column backend_pid int not null, add column backend_started timestamptz;

create table outlive.schedules (
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
create index schedules_by_next on outlive.schedules (next_at);

-- A batch counts how its jobs have ended. Its row is small, because every end of its jobs writes it again.
create table outlive.batches (
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
create index batches_by_done on outlive.batches (done_at);
create index jobs_by_batch on outlive.jobs (batch, id) where batch is not null;

-- The jobs that are enqueued when a batch is done.
create table outlive.callbacks (
  batch uuid not null,
  event text collate "C" not null check (event in ('success', 'failure', 'done')),
  job uuid not null,
  request json not null,
  called_at timestamptz,
  primary key (batch, event),
  constraint callbacks_job_key unique (job)
);

create table outlive.audit (
  id uuid primary key,
  at timestamptz not null,
  who text not null,
  action text collate "C" not null,
  what jsonb not null,  -- The ids of jobs, a filter, or the name of what was changed.
  jobs bigint not null  -- How many jobs were changed.
);
create index audit_by_time on outlive.audit (at);

-- People who may log in to the dashboard with a token of their own. Only the SHA-256 of a token is stored.
create table outlive.dashboard_tokens (
  id uuid primary key default gen_random_uuid(),
  name text collate "C" not null check (name <> '' and octet_length(name) <= 200),
  role text collate "C" not null check (role in ('viewer', 'operator')),
  hash bytea not null,
  created_at timestamptz not null default outlive.now(),
  constraint dashboard_tokens_name_key unique (name),
  constraint dashboard_tokens_hash_key unique (hash)
);
