-- From version 1 to 2. Stop all workers first: workers of version 1 refuse a database of version 2.

alter table outlive.running add column begun boolean not null default true;
alter table outlive.attempts add column worker_name text, add column hostname text;
alter table outlive.workers add column missed_at timestamptz, add column stop_requested_at timestamptz,
  add column trouble text,
  add column secret uuid not null default gen_random_uuid();
create index workers_by_last_seen on outlive.workers (last_seen);

-- From now on it is stored only with jobs whose task counts kills by fingerprint.
alter table outlive.jobs alter column fingerprint drop not null;

-- Jobs complete their attempts with a secret. Workers call complete_with_records, which jobs may not execute.
drop function outlive.complete(bigint, uuid, json, json, json, bigint, double precision, text);

-- The new one returns the outcomes that it could not count.
drop function outlive.count_outcomes(text[], bigint[], boolean[], bigint[]);

-- know_sources does its work.
drop function outlive.know_source(text);

-- The new one is told whether the attempt was killed.
drop function outlive.settle(outlive.running, text, text, int, text, bigint, double precision, text, text, json,
  boolean, double precision);

-- From now on a session is known by its backend. Workers write their rows again when they connect.
delete from outlive.liveness;
alter table outlive.liveness add column backend_pid int not null, add column backend_started timestamptz not null;
