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
