-- Statements about sources and records: what may be called now, how it went, and what was found.

-- name: register_sources
-- What this worker's app declares. What operators have set stays. A source that another transaction has locked comes back:
-- it has its old limits until this is repeated.
with said as materialized (
  select p.* from json_to_recordset(:sources::json) p(name text, rate_limit_per_minute double precision, burst int,
    max_concurrency int, breaker_failures int, breaker_pause_s double precision)),
changed as materialized (
  select s.name from outlive.sources s join said p on s.name = p.name
  where (s.like_task, s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s)
    is distinct from (null, p.rate_limit_per_minute, p.burst, p.max_concurrency, p.breaker_failures, p.breaker_pause_s)),
free as materialized (
  select s.name from outlive.sources s where s.name = any(array(select name from changed))
  order by s.name for update skip locked),
made as (
  insert into outlive.sources (name, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s)
  select p.name, p.rate_limit_per_minute, p.burst, p.max_concurrency, p.breaker_failures, p.breaker_pause_s
  from said p where not exists (select from outlive.sources s where s.name = p.name)
  order by p.name on conflict do nothing),
declared as (
  update outlive.sources s set like_task = null, rate_limit_per_minute = p.rate_limit_per_minute,
    burst = p.burst, max_concurrency = p.max_concurrency, breaker_failures = p.breaker_failures,
    breaker_pause_s = p.breaker_pause_s,
    full_at = least(s.full_at, outlive.full_by(coalesce(s.set_rate_limit_per_minute, p.rate_limit_per_minute),
      coalesce(s.set_burst, p.burst)))
  from said p where s.name = p.name and s.name = any(array(select name from free)))
select c.name from changed c where not exists (select from free f where f.name = c.name);

-- name: spread_limits
-- Sources that no app declares get the limits that their tasks' sources have now: jobs may name one before any worker
-- has said what its task is like. Those that another transaction has locked come back.
with undeclared as materialized (
  select s.name, d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s
  from outlive.sources s join outlive.tasks t on t.name = s.like_task join outlive.sources d on d.name = t.source
  where t.name = any(:tasks::text[])
    and (s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s)
      is distinct from (d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s)),
free as materialized (
  select s.name from outlive.sources s where s.name = any(array(select name from undeclared))
  order by s.name for update skip locked),
spread as (
  update outlive.sources s set rate_limit_per_minute = u.rate_limit_per_minute, burst = u.burst,
    max_concurrency = u.max_concurrency, breaker_failures = u.breaker_failures, breaker_pause_s = u.breaker_pause_s,
    full_at = least(s.full_at, outlive.full_by(coalesce(s.set_rate_limit_per_minute, u.rate_limit_per_minute),
      coalesce(s.set_burst, u.burst)))
  from undeclared u where s.name = u.name and s.name = any(array(select name from free)))
select u.name from undeclared u where not exists (select from free f where f.name = u.name);

-- name: claim_sourced
-- pending, retryable -> running, for jobs of sources that admit them. A row without an id names a source that admits none
-- now, and says when to ask again.
select token, id, attempt, queue, source, task, priority, ready_at, failures, crashes, losses, args, options, wait_s
from outlive.claim_sourced(:worker::uuid, :queues::text[], :sources::text[], :tasks::text[], :priorities::smallint[],
  :limit::int, :lease_s::double precision);

-- name: ask_source
-- A token for one request, or when to ask again.
select granted, wait_s, open, slot from outlive.ask_source(:source::text, :token::bigint);

-- name: count_outcomes
-- How calls went, and the slots that they give back. The numbers that come back, from 1, are not counted: another
-- transaction has locked their source, and the caller is not patient.
select outlive.count_outcomes(:sources::text[], :tokens::bigint[], :oks::boolean[], :slots::bigint[], :patient::boolean);

-- name: breakers
-- Breakers that have opened or closed since somebody was told. Only one who asks gets to know.
with changed as (
  select s.name, s.paused_until, s.failure_streak from outlive.sources s
  where (s.paused_until is not null or s.told_paused_until is not null) and s.paused_until is distinct from s.told_paused_until
  order by s.name for update skip locked)
update outlive.sources s set told_paused_until = c.paused_until from changed c where s.name = c.name
returning s.name, c.paused_until, c.failure_streak;

-- name: set_source
-- What an operator says of a source, over what its app declares; null takes it back, what is not named stays. Zero rows:
-- there is no such source.
with said as (
  select (json_populate_record(s, :values::json)).* from outlive.sources s where s.name = :name::text for update)
update outlive.sources s set set_rate_limit_per_minute = n.set_rate_limit_per_minute, set_burst = n.set_burst,
  set_max_concurrency = n.set_max_concurrency, set_breaker_failures = n.set_breaker_failures,
  set_breaker_pause_s = n.set_breaker_pause_s,
  full_at = least(s.full_at, outlive.full_by(coalesce(n.set_rate_limit_per_minute, n.rate_limit_per_minute),
    coalesce(n.set_burst, n.burst)))
from said n where s.name = n.name
returning s.name, outlive.wake();

-- name: pause_source
-- Its jobs are not claimed any more; what runs goes on. Zero rows: there is no such source.
update outlive.sources set enabled = false where name = :name::text returning name;

-- name: resume_source
-- Its jobs are claimed again, and its breaker is closed. Zero rows: there is no such source.
update outlive.sources set enabled = true, paused_until = null, probe = null, failure_streak = 0 where name = :name::text
returning name, outlive.wake();
