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
