-- Enqueueing: new jobs, and the notification of sleeping workers.
--
--     enqueue             one job, for everyone; a batch of jobs, for clients
--     enqueue_plain       one small job with nothing special, as most are
--     spawn               the same for jobs as JSON
--     check_requests      refuses bad input
--     check_links         refuses links that make no sense
--     leave_out_existing  for a call that is repeated
--     link                to batches, other jobs and keys
--     wake                notifies the workers that sleep
--     wake_for            notifies a few of those that sleep and have a task
--
-- SQLSTATEs: OL001 the dedupe key is taken (dedupe.sql), OL003 bad input.

create or replace function outlive.uuid7() returns uuid language sql volatile
-- A version 7 uuid: it starts with the milliseconds of the clock, so that later ids sort later.
return encode(overlay(overlay(uuid_send(gen_random_uuid())
  placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6)
  placing set_byte('\x00'::bytea, 0, 112 | (get_byte(uuid_send(gen_random_uuid()), 6) & 15)) from 7 for 1),
  'hex')::uuid;

create or replace function outlive.wake() returns void language plpgsql as $$
-- Notify the sleeping workers, if there are any. A NOTIFY serialises commits, so it is not sent without need.
begin
  if exists (select from outlive.sleepers) then
    perform pg_notify('outlive', '');
  end if;
end $$;

create or replace function outlive.wake_for(queue text, task text, payload text) returns void
language plpgsql as $$
-- A job waits: notify three of the workers that sleep and can run it, by chance, each on its own channel. If they
-- can't take it, a tick of another one finds it. If hardly more than three sleep, notify all: workers in other
-- languages have no channel, and a transaction may commit when others sleep than now.
declare
  point uuid := gen_random_uuid();
  chosen uuid[];
begin
  with able as (
    (select s.worker from outlive.sleepers s join outlive.workers k on k.id = s.worker
     where s.worker >= point and wake_for.task = any(k.tasks) and k.app is not null
       and (k.queues is null or wake_for.queue = any(k.queues))
     order by s.worker limit 4)
    union all
    (select s.worker from outlive.sleepers s join outlive.workers k on k.id = s.worker
     where s.worker < point and wake_for.task = any(k.tasks) and k.app is not null
       and (k.queues is null or wake_for.queue = any(k.queues))
     order by s.worker limit 4)
    limit 4)
  select array_agg(a.worker) into chosen from able a;
  if cardinality(chosen) = 4 then
    perform pg_notify('outlive_' || left(c.worker::text, 8), payload) from unnest(chosen[:3]) c(worker);
  else
    perform pg_notify('outlive', payload);
  end if;
end $$;

create or replace function outlive.enqueue(
  ids uuid[], tasks text[], queues text[], sources text[], args json[], priorities smallint[],
  delays_s double precision[], run_ats timestamptz[], keys text[], on_conflicts text[], options jsonb[],
  max_args_bytes int, notify boolean, links jsonb[] default null)
returns table (asked uuid, existing uuid)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- (none) -> pending, or blocked by other jobs. Repeating it with the same ids changes nothing. It returns the jobs
-- that were not made, because an unfinished job of the same task holds their dedupe key, with that job's id. An
-- array that is null stands for nulls only. Tasks, queues, sources or links of one element are those of all jobs,
-- which saves time. A job without a queue or source gets those of its task. The links of a job are an object:
-- `after`, the jobs that it waits for, and `on_failure`; `batch`, the batch that it belongs to; `key`, its
-- concurrency key, and `concurrency`, how many jobs with that key may run; `on_failed`, the job that is enqueued
-- if this one fails; `expires_s`, how long it may wait for its start, and `deadline_s`, for its end; 0: for ever.
-- A job may wait for jobs that come before it in this call; instead of one that is not made it waits for the job
-- with its dedupe key.
declare
  moment timestamptz := outlive.now();
  not_made uuid[] := '{}';
  holders uuid[];
  replaced uuid[] := '{}';
  replacing uuid[];
  task_of_all text := case when cardinality(tasks) = 1 then tasks[1] end;
  queue_of_all text := case when cardinality(queues) = 1 then queues[1] end;
  source_of_all text := case when cardinality(sources) = 1 then sources[1] end;
  links_of_all jsonb := case when cardinality(links) = 1 then links[1] end;
  counted_by_fingerprint text[] := array(
    select t.name from outlive.tasks t where t.quarantine_by = 'fingerprint' and t.name = any(tasks));
  some_expire boolean := exists (
    select from outlive.tasks t
    where (t.expires_s is not null or t.deadline_s is not null) and t.name = any(tasks));
begin
  perform outlive.check_requests(
    tasks || queues || sources, args, max_args_bytes, delays_s, run_ats, on_conflicts, options, links);
  if task_of_all is not null and (keys is not null or source_of_all is distinct from '') then
    tasks := array_fill(task_of_all, array[cardinality(ids)]);
  end if;
  if keys is not null then
    select d.* into not_made, holders, replaced, replacing
    from outlive.dedupe(ids, tasks, keys, on_conflicts) d;
    return query select * from unnest(not_made, holders);
  end if;
  if source_of_all is distinct from '' and sources is not null then
    perform outlive.know_sources(sources, tasks);
  end if;
  loop
    begin
      with wanted as (
        select a.id, a.at, coalesce(a.task, task_of_all) as task, coalesce(a.queue, queue_of_all) as queue,
          coalesce(a.source, source_of_all) as source, a.args, a.options, a.priority, a.delay_s, a.run_at, a.key,
          coalesce(a.links, links_of_all) as links
        from unnest(ids, tasks, queues, sources, args, priorities, delays_s, run_ats, keys, options, links)
               with ordinality a(id, task, queue, source, args, priority, delay_s, run_at, key, options, links, at)
        where a.id is not null and a.id not in (select unnest(not_made))),
      fresh as (
        insert into outlive.jobs (
          id, task, queue, source, args, options, priority, ready_at, dedupe_key, fingerprint, created_at, after,
          batch, concurrency_key, concurrency, on_failed)
        select
          a.id, a.task,
          coalesce(a.queue, (select t.queue from outlive.tasks t where t.name = a.task), 'default'),
          coalesce(a.source, (select t.source from outlive.tasks t where t.name = a.task), ''),
          a.args, a.options, coalesce(a.priority, 5),
          -- A microsecond apart, so that a batch keeps its order, and a watermark leaves claimed jobs behind.
          coalesce(a.run_at, moment + coalesce(a.delay_s, 0) * interval '1 second'
                             - (cardinality(ids) - a.at) * interval '1 microsecond'),
          a.key,
          case
            -- The same places in `after` stand for other results.
            when a.links @? '$.after[*]' and a.args -> '$results' is not null
              then outlive.fingerprint(a.task, json_build_array(a.args, a.links -> 'after'))
            when a.task = any(counted_by_fingerprint) then outlive.fingerprint(a.task, a.args) end,
          moment,
          case when a.links @? '$.after[*]' then array(
            select coalesce(m.holder, n.id::uuid)
            from jsonb_array_elements_text(a.links -> 'after') with ordinality n(id, at)
              left join unnest(not_made, holders) m(asked, holder) on m.asked = n.id::uuid
            order by n.at) end,
          (a.links ->> 'batch')::uuid, a.links ->> 'key',
          case when a.links ? 'key' then coalesce((a.links ->> 'concurrency')::int, 1) end,
          a.links -> 'on_failed'
        from wanted a order by a.id
        returning jobs.queue, jobs.source, jobs.task, jobs.priority, jobs.ready_at, jobs.id, jobs.after,
          jobs.concurrency_key)
      insert into outlive.waiting (queue, source, task, priority, ready_at, id)
      select f.queue, f.source, f.task, f.priority, f.ready_at, f.id from fresh f
      where f.after is null and f.concurrency_key is null;
      exit;
    exception when unique_violation then
      ids := outlive.leave_out_existing(ids);
    end;
  end loop;
  if links is not null or replaced <> '{}' then
    perform outlive.link(ids, not_made, links, replaced, replacing);
  end if;
  if some_expire or exists (select from unnest(links) l where l ?| '{expires_s,deadline_s}') then
    perform outlive.let_expire(ids, links);
  end if;
  if notify then
    perform pg_notify('outlive', '');
  else
    perform outlive.wake();
  end if;
end $$;

create or replace function outlive.check_requests(
  names text[], args json[], max_args_bytes int, delays_s double precision[], run_ats timestamptz[],
  on_conflicts text[], options jsonb[], links jsonb[])
returns void language plpgsql as $$
declare
  biggest int;
begin
  max_args_bytes := least(max_args_bytes, 33554432);  -- The caller can't raise this limit: workers must take it.
  -- What jsonb can't hold is refused here, and not when a crash needs the fingerprint.
  select max(octet_length(a::text)) filter (where a::jsonb is not null) into biggest from unnest(args) a;
  if biggest > max_args_bytes then
    raise exception using errcode = 'OL003', message = format(
      'arguments of %s bytes are over the limit of %s: store them elsewhere and pass a reference',
      biggest, max_args_bytes);
  end if;
  -- Longer ones fit into no index: a job that waits elsewhere at first could then never be moved to `waiting`.
  if exists (select from unnest(names) n where octet_length(n) > 200) then
    raise exception using errcode = 'OL003', message = 'task, queue and source are names of at most 200 bytes';
  end if;
  if not array_remove(on_conflicts, null) <@ '{skip,raise,replace}' then
    raise exception using errcode = 'OL003', message = 'on_conflict can be skip, raise or replace';
  end if;
  -- Workers compare these times in Python, whose calendar ends, and look no further back than the year 2000.
  if exists (select from unnest(run_ats) r where r < '2000-01-01Z' or r >= '9000-01-01Z')
     or exists (select from unnest(delays_s) d where abs(d) > 1e10) then
    raise exception using errcode = 'OL003', message =
      'run_at must be between the years 2000 and 9000, and a delay no longer than 300 years';
  end if;
  select max(octet_length(o::text)) into biggest from unnest(options) o;
  if biggest > 8192 then
    raise exception using errcode = 'OL003', message =
      format('options of %s bytes are over the limit of 8192', biggest);
  end if;
  -- A limit that can't be read would stop the reaper for every job of its batch.
  if biggest is not null and exists (
    select from unnest(options) o, jsonb_each(case when jsonb_typeof(o) = 'object' then o end) e
    where e.value <> 'null' and case
      when e.key in ('max_attempts', 'max_crashes', 'max_losses')
        then e.value::text !~ '^([1-9][0-9]{0,3}|[12][0-9]{4}|30000)$'
      when e.key in ('timeout_s', 'stall_s') then jsonb_typeof(e.value) <> 'number' or e.value <= '0'
      when e.key = 'memory_bytes' then e.value::text !~ '^[1-9][0-9]{6,17}$'
      when e.key = 'on_worker_death' then e.value::text not in ('"retry"', '"fail"') end)
  then
    raise exception using errcode = 'OL003', message =
      'max_attempts, max_crashes and max_losses are whole numbers from 1 to 30000, '
      'timeout_s and stall_s are numbers above zero, memory_bytes is at least 1000000, '
      'and on_worker_death is retry or fail';
  end if;
  if links is not null then
    perform outlive.check_links(links);
  end if;
end $$;

create or replace function outlive.check_links(links jsonb[]) returns void language plpgsql as $$
declare
  callbacks jsonb[];
begin
  if exists (
    select from unnest(links) l
    where jsonb_typeof(l) <> 'object' or jsonb_typeof(l -> 'after') not in ('array', 'null'))
  then
    raise exception using errcode = 'OL003', message =
      'links are objects, and after is an array of the ids of jobs';
  end if;
  if exists (select from unnest(links) l where l ->> 'on_failure' not in ('block', 'proceed', 'cancel')) then
    raise exception using errcode = 'OL003', message = 'on_failure can be block, proceed or cancel';
  end if;
  if exists (select from unnest(links) l where jsonb_array_length(l -> 'after') > 100000) then
    raise exception using errcode = 'OL003', message =
      'a job can wait for at most 100,000 jobs: let some of them wait for the others';
  end if;
  if exists (
    select from unnest(links) l where (l ? 'concurrency' or l ? 'key') and not coalesce(
      octet_length(l ->> 'key') between 1 and 1000 and jsonb_typeof(l -> 'key') = 'string'
      and coalesce(l ->> 'concurrency', '1') ~ '^([1-9][0-9]{0,2}|1000)$', false))
  then
    raise exception using errcode = 'OL003', message =
      'concurrency_key is a text of 1 to 1000 bytes, and concurrency, which needs a key, is from 1 to 1000';
  end if;
  if exists (
    select from unnest(links) l, unnest(array[l -> 'expires_s', l -> 'deadline_s']) s
    where jsonb_typeof(s) <> 'number' or not s between '0' and '10000000000')
  then
    raise exception using errcode = 'OL003', message =
      'a job expires after 0 seconds to 300 years, and a deadline is no longer';
  end if;
  callbacks := array(select distinct l -> 'on_failed' from unnest(links) l where l ? 'on_failed');
  if exists (
    select from unnest(callbacks) c
    where jsonb_typeof(c -> 'task') is distinct from 'string' or c ?| '{id,args,dedupe_key,links}'
      or c ->> 'once_for' !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
  then
    raise exception using errcode = 'OL003', message =
      'on_failed is a job as an object, with a task, without id, args, dedupe_key and links; once_for is a uuid';
  end if;
  if callbacks <> '{}' then
    perform outlive.try_callbacks(callbacks);
  end if;
end $$;

create or replace function outlive.leave_out_existing(ids uuid[]) returns uuid[] language plpgsql as $$
-- The ids of a call, with null for each job that exists and for each id that the call has twice. Only called after
-- a conflict: ON CONFLICT DO NOTHING costs every new job a fifth more.
declare
  others uuid[] := array(
    select case when a.n = 1 and not exists (select from outlive.jobs j where j.id = a.id) then a.id end
    from (select i.id, i.at, row_number() over (partition by i.id order by i.at) as n
          from unnest(ids) with ordinality i(id, at)) a
    order by a.at);
begin
  if others = ids then
    raise exception using errcode = '40001', message =
      'another transaction has just made one of these jobs: try again';
  end if;
  return others;
end $$;

create or replace function outlive.link(
  ids uuid[], not_made uuid[], links jsonb[], replaced uuid[], replacing uuid[])
returns void language plpgsql as $$
-- Link new jobs to their batches, to the jobs that they wait for or replace, and to their concurrency keys.
declare
  links_of_all jsonb := case when cardinality(links) = 1 then links[1] end;
  joined uuid[] := array(
    select (coalesce(a.links, links_of_all) ->> 'batch')::uuid from unnest(ids, links) a(id, links)
    where coalesce(a.links, links_of_all) ? 'batch' and a.id is not null  -- Only jobs that were made count.
      and a.id not in (select unnest(not_made)));
begin
  if joined <> '{}' or replaced <> '{}' then
    perform outlive.follow_through(
      replaced, array_fill('cancelled'::text, array[cardinality(replaced)]), joined);
  end if;
  if to_jsonb(links) @? '$[*].after' then
    -- After the counting, because jobs that it cancels at once are followed up.
    perform outlive.depend(ids, array(
      select l.links ->> 'on_failure' from unnest(links) with ordinality l(links, at) order by l.at));
  end if;
  if replaced <> '{}' then
    perform outlive.take_along(replaced, replacing, ids);
  end if;
  if to_jsonb(links) @? '$[*].key' then
    perform outlive.park_keyed(ids);
  end if;
end $$;

create or replace function outlive.spawn(jobs json) returns table (asked uuid, existing uuid)
language plpgsql as $$
-- (none) -> pending, for an array of jobs as objects. Returns the same as outlive.enqueue.
begin
  return query
    select e.*
    from (
      select
        array_agg(coalesce(s.id, outlive.uuid7())) as ids, array_agg(s.task) as tasks,
        array_agg(s.queue) as queues, array_agg(s.source) as sources, array_agg(coalesce(s.args, '{}')) as args,
        array_agg(s.priority::smallint) as priorities, array_agg(s.delay_s) as delays_s,
        array_agg(s.run_at) as run_ats,
        case when count(s.dedupe_key) > 0 then array_agg(s.dedupe_key) end as keys,
        array_agg(coalesce(s.on_conflict, 'skip')) as on_conflicts,
        case when count(s.options) > 0 then array_agg(s.options) end as options,
        case when count(s.links) > 0 then array_agg(s.links) end as links
      from json_to_recordset(jobs) s(
        id uuid, task text, args json, queue text, source text, priority int, delay_s double precision,
        run_at timestamptz, dedupe_key text, on_conflict text, options jsonb, links jsonb)
      having count(*) > 0) a,
      outlive.enqueue(
        a.ids, a.tasks, a.queues, a.sources, a.args, a.priorities, a.delays_s, a.run_ats, a.keys, a.on_conflicts,
        a.options, 2147483647, false, a.links) e;
end $$;

create or replace function outlive.enqueue_plain(
  task text, args json, queue text, source text, priority int, id uuid, notify boolean default false)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- (none) -> pending, for one job without keys, options, delay, run_at, after and batch. Repeating it with the same
-- id changes nothing. Arguments have at most 8192 bytes: their fingerprint is soon computed when it is needed. Its
-- few parameters make it faster than `enqueue`, which calls it too. A null queue or source is that of the task.
#variable_conflict use_variable
declare
  moment timestamptz := outlive.now();
begin
  -- The cast refuses what jsonb can't hold, for example \u0000.
  if octet_length(args::text) > 8192 or args::jsonb is null or id is null then
    raise exception using errcode = 'OL003', message = 'a plain job needs an id, and args of up to 8192 bytes';
  end if;
  if queue is null or source is null then
    select coalesce(queue, t.queue, 'default'), coalesce(source, t.source, '') into queue, source
    from (select) one left join outlive.tasks t on t.name = task;
  end if;
  if source <> '' then
    perform outlive.know_sources(array[source], array[task]);
  end if;
  priority := coalesce(priority, 5);
  insert into outlive.jobs (id, task, queue, source, args, priority, ready_at, created_at)
  values (id, task, queue, source, args, priority, moment, moment) on conflict do nothing;
  if found then
    insert into outlive.waiting (queue, source, task, priority, ready_at, id)
    values (queue, source, task, priority, moment, id)
    returning notify or exists (select from outlive.sleepers) into notify;
  end if;
  if notify then
    -- A worker that reads the lane of the job saves a search. A name may be too long for a notification.
    perform outlive.wake_for(queue, task, case
      when source <> '' or exists (
        select from outlive.queues q where q.name = queue and q.paused_at is not null) then ''
      else left(json_build_array(queue, task, priority)::text, 1900) end);
  end if;
end $$;

create or replace function outlive.enqueue(
  task text,
  args json default '{}',
  queue text default null,
  source text default null,
  priority int default 5,
  delay interval default null,
  run_at timestamptz default null,
  dedupe_key text default null,
  on_conflict text default 'skip',
  options jsonb default null,
  id uuid default null,
  max_args_bytes int default 1048576,
  notify boolean default true,
  after uuid[] default null,
  on_failure text default 'block',
  batch uuid default null,
  concurrency_key text default null,
  concurrency int default null,
  on_failed jsonb default null,
  expires interval default null,
  deadline interval default null)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- (none) -> pending, or blocked by the jobs in `after`, for one job. An object holds keyword arguments, an array
-- positional ones. Returns the job's id, or the id of the unfinished job that holds the same dedupe key. A job
-- without keys, options, delay, run_at, links, expiry and deadline whose arguments are small is written by
-- `enqueue_plain`, which is faster. Every other job goes the way of many. `on_failed` is a job as an object,
-- without arguments: if this job fails for good or is quarantined, that one is enqueued with the array of this
-- job's id and error, and once for all jobs with the same uuid as its `once_for`.
#variable_conflict use_variable
declare
  mine uuid := coalesce(id, outlive.uuid7());
  other uuid;
begin
  if on_conflict not in ('skip', 'raise', 'replace') then
    raise exception using errcode = 'OL003', message =
      format('on_conflict is %L; it can be skip, raise or replace', on_conflict);
  end if;
  if dedupe_key is null and options is null and delay is null and run_at is null and after is null
     and batch is null and concurrency_key is null and concurrency is null and on_failed is null
     and expires is null and deadline is null and octet_length(args::text) <= least(max_args_bytes, 8192)
     and not exists (
       select from outlive.tasks t
       where t.name = task and (t.expires_s is not null or t.deadline_s is not null)) then
    perform outlive.enqueue_plain(task, args, queue, source, priority, mine, notify);
    return mine;
  end if;
  select e.existing into other from outlive.enqueue(
    array[mine], array[task], array[queue], array[source], array[args], array[priority::smallint],
    array[extract(epoch from delay)::double precision], array[run_at],
    case when dedupe_key is not null then array[dedupe_key] end, array[on_conflict], array[options],
    max_args_bytes, notify,
    case when after is not null or batch is not null or concurrency_key is not null or concurrency is not null
        or on_failed is not null or expires is not null or deadline is not null
      then array[jsonb_strip_nulls(jsonb_build_object('after', to_jsonb(after), 'on_failure', on_failure,
        'batch', batch, 'key', concurrency_key, 'concurrency', concurrency, 'on_failed', on_failed,
        'expires_s', extract(epoch from expires), 'deadline_s', extract(epoch from deadline)))] end) e;
  return coalesce(other, mine);
end $$;
