-- From version 1 to 2: changes of tables that exist. schema/tables.sql, which follows, makes missing ones. Workers
-- of version 1 can't work with it, so `outlive migrate` refuses while one runs.

alter table outlive.schema_version add column serves int;

-- No column is added with its default: newer minor versions of Postgres refuse that while a function has the
-- table's row as a parameter.
alter table outlive.running add column begun boolean;
alter table outlive.running alter column begun set default true;
update outlive.running set begun = true;
alter table outlive.running alter column begun set not null;
alter table outlive.waiting add column unsure boolean;
alter table outlive.attempts add column worker_name text, add column hostname text,
  add column expires_at timestamptz, add column memory json,
  add column loss text collate "C" check (loss in ('alone', 'taken back')),
  add column queue text collate "C", add column source text collate "C", add column task text collate "C";
-- From now on the attempts of a job that was retried don't say that it is finished.
update outlive.attempts a set queue = coalesce(j.queue, ''), source = coalesce(j.source, ''),
  task = coalesce(j.task, ''), worker_name = k.name, hostname = k.hostname,
  state = case when a.state in ('failed', 'cancelled') and (
      exists (select from outlive.attempts b where b.job_id = a.job_id and b.attempt > a.attempt)
      or exists (select from outlive.waiting w where w.id = a.job_id)
      or exists (select from outlive.running r where r.id = a.job_id)
      or exists (select from outlive.held h where h.id = a.job_id)) then 'pending' else a.state end
from outlive.attempts o left join outlive.jobs j on j.id = o.job_id left join outlive.workers k on k.id = o.worker
where o.token = a.token;
alter table outlive.attempts alter column queue set not null, alter column source set not null,
  alter column task set not null;
alter table outlive.attempts add column lane bigint generated always as (
  hashtextextended(state, hashtextextended(task, hashtextextended(source, hashtextextended(queue, 0))))) stored;
alter table outlive.workers add column missed_at timestamptz, add column stop_requested_at timestamptz,
  add column trouble text, add column tasks text[], add column drain_requested_at timestamptz,
  add column secret uuid, add column memory_bytes bigint, add column app text collate "C",
  add column schedules text[], add column heartbeat_s double precision, add column renew_s double precision,
  add column stale_s double precision, add column dead_s double precision, add column alerts text[],
  add column died_of text, add column died_with int, add column told boolean,
  add column reload_requested_at timestamptz, add column reload_error text, add column labels text[],
  add column connections int, add column room_until timestamptz;
alter table outlive.workers alter column secret set default gen_random_uuid(),
  alter column heartbeat_s set default 30, alter column renew_s set default 20,
  alter column stale_s set default 60, alter column dead_s set default 120, alter column told set default false;
update outlive.workers
set secret = gen_random_uuid(), heartbeat_s = 30, renew_s = 20, stale_s = 60, dead_s = 120, told = false;
alter table outlive.workers alter column secret set not null, alter column heartbeat_s set not null,
  alter column renew_s set not null, alter column stale_s set not null, alter column dead_s set not null,
  alter column told set not null;

alter table outlive.tasks add column keep_finished_s double precision check (keep_finished_s >= 0),
  add column app_keep_finished_s double precision, add column app_keep_failed_s double precision,
  add column expires_s double precision check (expires_s > 0),
  add column deadline_s double precision check (deadline_s > 0), add column on_failed jsonb,
  add column function text, add column priority smallint, add column signature json, add column share int,
  add column needs text[];

-- From now on it is stored only with jobs whose task counts kills by fingerprint.
alter table outlive.jobs alter column fingerprint drop not null;

alter table outlive.jobs add column after uuid[], add column batch uuid,
  add column concurrency_key text collate "C", add column concurrency int, add column on_failed jsonb;
alter table outlive.held add column unmet int, add column step text collate "C",
  add column signal text collate "C", add column parked_by uuid, drop constraint held_why_check,
  add constraint held_why_check check (
    why in ('blocked', 'quarantined', 'suspect', 'dependent', 'key', 'suspended'));

-- A checkpoint is a step from now on.
create table outlive.steps (
  job_id uuid not null,
  name text collate "C" not null,
  value json,
  arguments text collate "C",
  attempt int not null,
  took_s double precision,
  at timestamptz not null,
  supplied_by text,
  primary key (job_id, name)
);
insert into outlive.steps (job_id, name, value, attempt, at)
select p.job_id, 'checkpoint', p.checkpoint, p.attempt, p.updated_at from outlive.progress p
where p.checkpoint is not null;
alter table outlive.progress drop column checkpoint;

-- Functions whose parameters or results are others now, or that have another name.
drop function outlive.complete(bigint, uuid, json, json, json, bigint, double precision, text);
drop function outlive.count_outcomes(text[], bigint[], boolean[], bigint[]);
drop function outlive.know_source(text);
drop function outlive.settle(outlive.running, text, text, int, text, bigint, double precision, text, text, json,
  boolean, double precision);
drop function outlive.verdict(outlive.running, text, boolean, boolean, double precision, double precision);
drop function outlive.charge(int, bigint, int);
drop function outlive.suspicion(int, int);
drop function outlive.finish_unclaimed(uuid, int, smallint, smallint, smallint);
drop function outlive.replace(uuid);
drop function outlive.caught(outlive.waiting);
drop function outlive.enqueue(text, json, text, text, int, interval, timestamptz, text, text, jsonb, uuid, int,
  boolean);
drop function outlive.enqueue(uuid[], text[], text[], text[], json[], smallint[], double precision[],
  timestamptz[], text[], text[], jsonb[], int, boolean);

-- From now on a session is known by its backend. Workers write their rows again when they connect.
delete from outlive.liveness;
alter table outlive.liveness add column backend_pid int not null, add column backend_started timestamptz;
