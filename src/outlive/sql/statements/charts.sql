-- Statements for the charts of the dashboard. They read a bounded part of each step of time.

-- name: ends_by_step
-- How many attempts ended in each step of time, from :steps steps ago to :past steps ago, by outcome; a null
-- outcome: none ended. Of a step in which many attempts left their job in the same state, the first and the last
-- :most are read. How many there are in between is estimated by their tokens, which are given out one after the
-- other.
with sampled as (
  select m.at, s.state, a.outcome, a.ended_at, a.token
  from (select :step_s::int * interval '1 second' as step) e,
    lateral (select date_bin(e.step, outlive.now(), '2000-01-03Z') as last) l,
    lateral generate_series(l.last - :steps::int * e.step, l.last - :past::int * e.step, e.step) m(at)
    cross join unnest('{succeeded,pending,retryable,failed,quarantined,cancelled}'::text[]) s(state)
    left join lateral (
      (select t.outcome, t.ended_at, t.token from outlive.attempts t
       where t.state = s.state and t.ended_at >= m.at and t.ended_at < m.at + e.step
       order by t.ended_at, t.token limit :most::int)
      union
      (select t.outcome, t.ended_at, t.token from outlive.attempts t
       where t.state = s.state and t.ended_at >= m.at and t.ended_at < m.at + e.step
       order by t.ended_at desc, t.token desc limit :most::int)) a on true),
halved as (
  select s.*,
    row_number() over (partition by s.at, s.state order by s.ended_at, s.token) <= :most::int as early
  from sampled s),
dense as (
  select h.*,
    count(*) over half / (max(h.token) over half - min(h.token) over half + 1)::double precision as density
  from halved h window half as (partition by h.at, h.state, h.early)),
weighed as (
  select d.at, d.outcome, d.ended_at, case when count(*) over halves < 2 * :most::int then 1 else greatest(1,
    (max(d.token) over halves - min(d.token) over halves + 1) * avg(d.density) over halves
      / count(*) over halves) end as weight
  from dense d window halves as (partition by d.at, d.state))
select w.at, w.outcome, coalesce(sum(w.weight) filter (where w.ended_at is not null), 0)::double precision
from weighed w group by 1, 2 order by 1, 2;

-- name: times_by_step
-- How long the jobs that succeeded in each of these steps of time ran and, if at the first attempt, had waited
-- since they were ready: p50, p95 and p99 of the first :most. No row: none succeeded.
select m.at, count(*) as jobs,
  percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
    order by extract(epoch from a.ended_at - a.started_at)::double precision) as ran_s,
  percentile_cont('{0.5,0.95,0.99}'::double precision[]) within group (
    order by greatest(0, extract(epoch from a.started_at - j.ready_at))::double precision)
    filter (where a.attempt = 1) as waited_s
from (select :step_s::int * interval '1 second' as step) e
  cross join lateral (select date_bin(e.step, outlive.now(), '2000-01-03Z') as last) l
  cross join lateral generate_series(l.last - :steps::int * e.step, l.last - :past::int * e.step, e.step) m(at)
  cross join lateral (
    select t.job_id, t.attempt, t.started_at, t.ended_at from outlive.attempts t
    where t.state = 'succeeded' and t.ended_at >= m.at and t.ended_at < m.at + e.step
    order by t.ended_at limit :most::int) a
  cross join lateral (select i.ready_at from outlive.jobs i where i.id = a.job_id) j
where a.started_at is not null
group by 1 order by 1;
