-- Statements about sources: what is declared, what may be called now, and how calls went.
-- call: ask_source(:source::text, :token::bigint)
-- call: count_outcomes(:sources::text[], :tokens::bigint[], :oks::boolean[], :slots::bigint[],
--   :patient::boolean)

-- name: register_sources
-- Write what this worker's app declares. A row is a source that another transaction has locked: it keeps its old
-- limits until this is repeated.
with made as (
  insert into outlive.sources (
    name, rate_limit_per_minute, burst, max_concurrency, breaker_failures, breaker_pause_s)
  select d.name, d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s
  from json_populate_recordset(null::outlive.sources, :sources::json) d order by d.name on conflict do nothing)
select outlive.set_limits(:sources::json);

-- name: rival_sources
-- Those of these sources that were declared with other limits, if a worker of another app is active: it may have
-- declared them.
select d.name
from json_populate_recordset(null::outlive.sources, :sources::json) d join outlive.sources s using (name)
where s.like_task is null
  and (s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s)
    is distinct from (d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures, d.breaker_pause_s)
  and exists (select from outlive.workers k where k.state = 'active' and k.app <> :app::text)
order by 1;

-- name: spread_limits
-- Give sources that no app declares the limits that their tasks' sources have now: a job may name a source before
-- any worker has registered its task. A row is a source that another transaction has locked.
select outlive.set_limits(json_agg(l)) from (
  select s.name, s.like_task, d.rate_limit_per_minute, d.burst, d.max_concurrency, d.breaker_failures,
    d.breaker_pause_s
  from outlive.sources s join outlive.tasks t on t.name = s.like_task join outlive.sources d on d.name = t.source
  where t.name = any(:tasks::text[])) l;

-- name: breakers
-- Breakers that opened or closed since the last alert. Only one caller gets each change. A caller that has no
-- :command for it leaves them to a living worker that has one.
with changed as (
  select s.name, s.paused_until, s.failure_streak from outlive.sources s
  where (s.paused_until is not null or s.told_paused_until is not null)
    and s.paused_until is distinct from s.told_paused_until
    and (:command::boolean or not exists (
      select from outlive.workers k
      where 'on_source_paused' = any(k.alerts) and k.state in ('active', 'draining')))
  order by s.name for update skip locked)
update outlive.sources s set told_paused_until = c.paused_until from changed c where s.name = c.name
returning s.name, c.paused_until, c.failure_streak;

-- name: set_source
-- An operator overrides what the app declares. Null takes an override back; a limit that is not named stays.
-- Zero rows: there is no such source.
with changed as (
  select (json_populate_record(s, :values::json)).* from outlive.sources s where s.name = :name::text for update)
update outlive.sources s set
  (set_rate_limit_per_minute, set_burst, set_max_concurrency, set_breaker_failures, set_breaker_pause_s, full_at) =
  (c.set_rate_limit_per_minute, c.set_burst, c.set_max_concurrency, c.set_breaker_failures, c.set_breaker_pause_s,
   least(s.full_at, outlive.full_by(
     coalesce(c.set_rate_limit_per_minute, c.rate_limit_per_minute), coalesce(c.set_burst, c.burst))))
from changed c where s.name = c.name
returning s.name, outlive.wake();

-- name: source_limits
-- What the app declares of one source, and what operators have set. Zero rows: there is no such source.
select s.rate_limit_per_minute, s.burst, s.max_concurrency, s.breaker_failures, s.breaker_pause_s,
  s.set_rate_limit_per_minute, s.set_burst, s.set_max_concurrency, s.set_breaker_failures, s.set_breaker_pause_s
from outlive.sources s where s.name = :name::text;

-- name: pause_source
-- The source's jobs are not claimed any more. Running jobs go on. Zero rows: there is no such source.
update outlive.sources set enabled = false where name = :name::text returning name;

-- name: resume_source
-- The source's jobs are claimed again, and its breaker is closed. Zero rows: there is no such source.
update outlive.sources set enabled = true, paused_until = null, probe = null, failure_streak = 0
where name = :name::text
returning name, outlive.wake();

-- name: remove_source
-- Forget a source. It comes back as soon as a worker declares it or a job names it. Zero rows: there is no such
-- source, or a job that is not finished has it.
delete from outlive.sources s
where s.name = :name::text
  and not exists (select from outlive.waiting w where w.source = s.name)
  and not exists (select from outlive.running r where r.source = s.name)
  and not exists (select from outlive.held h where h.source = s.name)
returning s.name;

-- name: prune_unused
-- Forget tasks that no worker has and no job is of, sources that only jobs named and that nothing has used, and
-- queues that are no longer paused. Each comes back as soon as a worker or a job names it. A source with limits
-- that operators have set is kept, and so is one that an app declares: only its workers know its limits.
with unused_tasks as materialized (
  select t.name from outlive.tasks t
  where t.updated_at < outlive.now() - interval '1 second' * :keep_s::double precision
    and not exists (select from outlive.workers k where t.name = any(k.tasks))
    and not exists (select from outlive.jobs j where j.task = t.name)
  order by t.name limit :batch::int for update of t skip locked),
unused_sources as materialized (
  select s.name from outlive.sources s
  where s.like_task is not null and s.enabled and s.paused_until is null
    and num_nonnulls(s.set_rate_limit_per_minute, s.set_burst, s.set_max_concurrency, s.set_breaker_failures,
      s.set_breaker_pause_s) = 0
    and greatest(s.full_at, s.wanted_until, s.last_success_at, s.last_failure_at)
      < outlive.now() - interval '1 second' * :keep_s::double precision
    and not exists (select from outlive.waiting w where w.source = s.name)
    and not exists (select from outlive.running r where r.source = s.name)
    and not exists (select from outlive.held h where h.source = s.name)
  order by s.name limit :batch::int for update of s skip locked),
tasks as (
  delete from outlive.tasks t where t.name = any(array(select u.name from unused_tasks u))),
queues as (
  delete from outlive.queues q where q.name = any(array(
    select p.name from outlive.queues p where p.paused_at is null order by p.name for update skip locked)))
delete from outlive.sources s where s.name = any(array(select u.name from unused_sources u));
