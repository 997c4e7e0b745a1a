-- Statements about sources: what is declared, what may be called now, and how calls went.

-- name: register_sources
-- Write what this worker's app declares. What operators have set stays. A row is a source that another transaction
-- has locked: it keeps its old limits until this is repeated.
with declared as materialized (
  select d.* from json_to_recordset(:sources::json) d(
    name text, rate_limit_per_minute double precision, burst int, max_concurrency int, breaker_failures int,
    breaker_pause_s double precision)),
changed as materialized (
  select s.name from outlive.sources s join declared d on s.name = d.name
  where (s.like_task, s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s)
    is distinct from
    (null, d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s)),
free as materialized (
  select s.name from outlive.sources s where s.name = any(array(select name from changed))
  order by s.name for update skip locked),
made as (
  insert into outlive.sources (
    name, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s)
  select d.name, d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s
  from declared d where not exists (select from outlive.sources s where s.name = d.name)
  order by d.name on conflict do nothing),
updated as (
  update outlive.sources s set
    like_task = null,
    rate_limit_per_minute = d.rate_limit_per_minute,
    burst = d.burst,
    max_concurrency = d.max_concurrency,
    breaker_failures = d.breaker_failures,
    breaker_pause_s = d.breaker_pause_s,
    full_at = least(s.full_at, outlive.full_by(
      coalesce(s.set_rate_limit_per_minute, d.rate_limit_per_minute), coalesce(s.set_burst, d.burst)))
  from declared d where s.name = d.name and s.name = any(array(select name from free)))
select c.name from changed c where not exists (select from free f where f.name = c.name);

-- name: spread_limits
-- Give sources that no app declares the limits that their tasks' sources have now: a job may name a source before
-- any worker has registered its task. A row is a source that another transaction has locked.
with undeclared as materialized (
  select s.name, d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s
  from outlive.sources s join outlive.tasks t on t.name = s.like_task join outlive.sources d on d.name = t.source
  where t.name = any(:tasks::text[])
    and (s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s)
      is distinct from
      (d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s)),
free as materialized (
  select s.name from outlive.sources s where s.name = any(array(select name from undeclared))
  order by s.name for update skip locked),
updated as (
  update outlive.sources s set
    rate_limit_per_minute = u.rate_limit_per_minute,
    burst = u.burst,
    max_concurrency = u.max_concurrency,
    breaker_failures = u.breaker_failures,
    breaker_pause_s = u.breaker_pause_s,
    full_at = least(s.full_at, outlive.full_by(
      coalesce(s.set_rate_limit_per_minute, u.rate_limit_per_minute), coalesce(s.set_burst, u.burst)))
  from undeclared u where s.name = u.name and s.name = any(array(select name from free)))
select u.name from undeclared u where not exists (select from free f where f.name = u.name);

-- name: claim_sourced
-- pending, retryable -> running, for jobs of sources that admit them. A row without an id names a source that
-- admits none now, and when to ask again.
select token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses, args, options,
  wait_s
from outlive.claim_sourced(
  :worker::uuid,
  :queues::text[],
  :sources::text[],
  :tasks::text[],
  :priorities::smallint[],
  :limit::int,
  :lease_s::double precision);

-- name: ask_source
-- A token for one request, or when to ask again.
select granted, wait_s, open, slot from outlive.ask_source(:source::text, :token::bigint);

-- name: count_outcomes
-- Count how calls went, and give back their slots. Unless it is patient, it returns the numbers, from 1, of the
-- outcomes that are not counted because another transaction has locked their source.
select outlive.count_outcomes(
  :sources::text[], :tokens::bigint[], :oks::boolean[], :slots::bigint[], :patient::boolean);

-- name: breakers
-- Breakers that opened or closed since the last alert. Only one caller gets each change.
with changed as (
  select s.name, s.paused_until, s.failure_streak from outlive.sources s
  where (s.paused_until is not null or s.told_paused_until is not null)
    and s.paused_until is distinct from s.told_paused_until
  order by s.name for update skip locked)
update outlive.sources s set told_paused_until = c.paused_until from changed c where s.name = c.name
returning s.name, c.paused_until, c.failure_streak;

-- name: set_source
-- An operator overrides what the app declares. Null takes an override back; a limit that is not named stays.
-- Zero rows: there is no such source.
with changed as (
  select (json_populate_record(s, :values::json)).* from outlive.sources s where s.name = :name::text for update)
update outlive.sources s set
  set_rate_limit_per_minute = c.set_rate_limit_per_minute,
  set_burst = c.set_burst,
  set_max_concurrency = c.set_max_concurrency,
  set_breaker_failures = c.set_breaker_failures,
  set_breaker_pause_s = c.set_breaker_pause_s,
  full_at = least(s.full_at, outlive.full_by(
    coalesce(c.set_rate_limit_per_minute, c.rate_limit_per_minute), coalesce(c.set_burst, c.burst)))
from changed c where s.name = c.name
returning s.name, outlive.wake();

-- name: pause_source
-- The source's jobs are not claimed any more. Running jobs go on. Zero rows: there is no such source.
update outlive.sources set enabled = false where name = :name::text returning name;

-- name: resume_source
-- The source's jobs are claimed again, and its breaker is closed. Zero rows: there is no such source.
update outlive.sources set enabled = true, paused_until = null, probe = null, failure_streak = 0
where name = :name::text
returning name, outlive.wake();
