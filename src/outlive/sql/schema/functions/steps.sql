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
