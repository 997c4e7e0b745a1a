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
