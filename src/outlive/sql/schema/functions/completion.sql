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
