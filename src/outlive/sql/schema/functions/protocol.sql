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
