-- Enqueueing: new jobs, their dedupe keys, and the notification of sleeping workers.
--
--     enqueue        one job, for everyone; a batch of jobs, for clients
--     enqueue_plain  one small job with nothing special, as most are
--     spawn          the same for jobs as JSON
--     take_keys      takes dedupe keys, and settles conflicts by on_conflict
--     replace        cancels a job whose dedupe key a new one takes over (take_along: dependencies.sql)
--     wake           notifies the workers that sleep
--
-- SQLSTATEs: OL001 the dedupe key is taken, OL003 bad input. OL004 never leaves enqueue: locks would be taken in
-- the wrong order, so the batch is tried again.

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
-- concurrency key, and `concurrency`, how many jobs with that key may run. A job may wait for jobs that come
-- before it in this call; instead of one that is not made it waits for the job with its dedupe key.
declare
  moment timestamptz := outlive.now();
  biggest int;
  not_made uuid[] := '{}';
  holders uuid[];
  replaced uuid[] := '{}';
  replacing uuid[];
  joined uuid[];
  others uuid[];
  task_of_all text := case when cardinality(tasks) = 1 then tasks[1] end;
  queue_of_all text := case when cardinality(queues) = 1 then queues[1] end;
  source_of_all text := case when cardinality(sources) = 1 then sources[1] end;
  links_of_all jsonb := case when cardinality(links) = 1 then links[1] end;
  counted_by_fingerprint text[] := array(
    select t.name from outlive.tasks t where t.quarantine_by = 'fingerprint' and t.name = any(tasks));
begin
  max_args_bytes := least(max_args_bytes, 33554432);  -- The caller can't raise this limit: workers must take it.
  -- What jsonb can't hold is refused here, and not when a crash needs the fingerprint.
  select max(octet_length(a::text)) filter (where a::jsonb is not null) into biggest from unnest(args) a;
  if biggest > max_args_bytes then
    raise exception using errcode = 'OL003', message = format(
      'arguments of %s bytes are over the limit of %s: store them elsewhere and pass a reference',
      biggest, max_args_bytes);
  end if;
  select max(octet_length(o::text)) into biggest from unnest(options) o;
  if biggest > 8192 then
    raise exception using errcode = 'OL003', message =
      format('options of %s bytes are over the limit of 8192', biggest);
  end if;
  -- Longer ones fit into no index: a job that waits elsewhere at first could then never be moved to `waiting`.
  if exists (select from unnest(tasks || queues || sources) n where octet_length(n) > 200) then
    raise exception using errcode = 'OL003', message = 'task, queue and source are names of at most 200 bytes';
  end if;
  if exists (select from unnest(on_conflicts) c where c not in ('skip', 'raise', 'replace')) then
    raise exception using errcode = 'OL003', message = 'on_conflict can be skip, raise or replace';
  end if;
  -- Workers compare these times in Python, whose calendar ends, and look no further back than the year 2000.
  if exists (select from unnest(run_ats) r where r < '2000-01-01Z' or r >= '9000-01-01Z')
     or exists (select from unnest(delays_s) d where abs(d) > 1e10) then
    raise exception using errcode = 'OL003', message =
      'run_at must be between the years 2000 and 9000, and a delay no longer than 300 years';
  end if;
  -- A limit that can't be read would stop the reaper for every job of its batch.
  if exists (
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
  if task_of_all is not null and (keys is not null or source_of_all is distinct from '') then
    tasks := array_fill(task_of_all, array[cardinality(ids)]);
  end if;
  if keys is not null then
    -- Locks that would be taken in the wrong order are given back with this block, which is then repeated with the
    -- jobs locked first. Without a job to replace no order can be wrong, and the cost of a block is saved.
    if 'replace' = any(on_conflicts) then
      for try in 1..100 loop
        begin
          select t.* into not_made, holders, replaced, replacing
          from outlive.take_keys(ids, tasks, keys, on_conflicts) t;
          exit;
        exception when sqlstate 'OL004' then
          if try = 100 then
            raise exception using errcode = '40001', message =
              'the jobs with these dedupe keys change too fast: try again';
          end if;
        end;
      end loop;
    else
      select t.* into not_made, holders, replaced, replacing
      from outlive.take_keys(ids, tasks, keys, on_conflicts) t;
    end if;
    return query select * from unnest(not_made, holders);
  end if;
  if source_of_all is distinct from '' and sources is not null then
    perform outlive.know_sources(sources, tasks);
  end if;
  loop
    begin
      with fresh as (
        insert into outlive.jobs (
          id, task, queue, source, args, options, priority, ready_at, dedupe_key, fingerprint, created_at, after,
          batch, concurrency_key, concurrency)
        select
          a.id,
          coalesce(a.task, task_of_all),
          coalesce(a.queue, queue_of_all, (
            select t.queue from outlive.tasks t where t.name = coalesce(a.task, task_of_all)), 'default'),
          coalesce(a.source, source_of_all, (
            select t.source from outlive.tasks t where t.name = coalesce(a.task, task_of_all)), ''),
          a.args,
          a.options,
          coalesce(a.priority, 5),
          -- A microsecond apart, so that a batch keeps its order, and a watermark leaves claimed jobs behind.
          coalesce(a.run_at, moment + coalesce(a.delay_s, 0) * interval '1 second'
                             - (cardinality(ids) - a.at) * interval '1 microsecond'),
          a.key,
          case when coalesce(a.task, task_of_all) = any(counted_by_fingerprint)
            then outlive.fingerprint(coalesce(a.task, task_of_all), a.args) end,
          moment,
          case when coalesce(a.links, links_of_all) @? '$.after[*]' then array(
            select coalesce(m.holder, n.id::uuid)
            from jsonb_array_elements_text(coalesce(a.links, links_of_all) -> 'after') with ordinality n(id, at)
              left join unnest(not_made, holders) m(asked, holder) on m.asked = n.id::uuid
            order by n.at) end,
          (coalesce(a.links, links_of_all) ->> 'batch')::uuid,
          coalesce(a.links, links_of_all) ->> 'key',
          case when coalesce(a.links, links_of_all) ? 'key'
            then coalesce((coalesce(a.links, links_of_all) ->> 'concurrency')::int, 1) end
        from unnest(ids, tasks, queues, sources, args, priorities, delays_s, run_ats, keys, options, links)
               with ordinality a(id, task, queue, source, args, priority, delay_s, run_at, key, options, links, at)
        where a.id is not null and a.id not in (select unnest(not_made))
        order by a.id
        returning jobs.queue, jobs.source, jobs.task, jobs.priority, jobs.ready_at, jobs.id, jobs.after,
          jobs.concurrency_key)
      insert into outlive.waiting (queue, source, task, priority, ready_at, id)
      select f.queue, f.source, f.task, f.priority, f.ready_at, f.id from fresh f
      where f.after is null and f.concurrency_key is null;
      exit;
    exception when unique_violation then
      -- A repeated call, or an id that the batch has twice: leave out what exists. ON CONFLICT would do that too,
      -- but costs every new job a fifth more.
      others := array(
        select case when a.n = 1 and not exists (select from outlive.jobs j where j.id = a.id) then a.id end
        from (select i.id, i.at, row_number() over (partition by i.id order by i.at) as n
              from unnest(ids) with ordinality i(id, at)) a
        order by a.at);
      if others = ids then
        raise exception using errcode = '40001', message =
          'another transaction has just made one of these jobs: try again';
      end if;
      ids := others;
    end;
  end loop;
  joined := array(
    select (coalesce(a.links, links_of_all) ->> 'batch')::uuid from unnest(ids, links) a(id, links)
    where coalesce(a.links, links_of_all) ? 'batch' and a.id is not null  -- Only jobs that were made count.
      and a.id not in (select unnest(not_made)));
  if joined <> '{}' or replaced <> '{}' then
    perform outlive.follow_through(
      replaced, array_fill('cancelled'::text, array[cardinality(replaced)]), joined);
  end if;
  if exists (select from unnest(links) l where l ? 'after') then
    -- After the counting, because jobs that it cancels at once are followed up.
    perform outlive.depend(ids, array(
      select l.links ->> 'on_failure' from unnest(links) with ordinality l(links, at) order by l.at));
  end if;
  if replaced <> '{}' then
    perform outlive.take_along(replaced, replacing, ids);
  end if;
  if exists (select from unnest(links) l where l ? 'key') then
    perform outlive.park_keyed(ids);
  end if;
  if notify then
    perform pg_notify('outlive', '');
  else
    perform outlive.wake();
  end if;
end $$;

create or replace function outlive.spawn(jobs json) returns void language plpgsql as $$
-- (none) -> pending, for an array of jobs as objects.
begin
  perform outlive.enqueue(
    array_agg(coalesce(s.id, outlive.uuid7())), array_agg(s.task), array_agg(s.queue), array_agg(s.source),
    array_agg(coalesce(s.args, '{}')), array_agg(s.priority::smallint), array_agg(s.delay_s),
    array_agg(s.run_at), case when count(s.dedupe_key) > 0 then array_agg(s.dedupe_key) end,
    array_agg(coalesce(s.on_conflict, 'skip')),
    case when count(s.options) > 0 then array_agg(s.options) end, 2147483647, false,
    case when count(s.links) > 0 then array_agg(s.links) end)
  from json_to_recordset(jobs) s(
    id uuid, task text, args json, queue text, source text, priority int, delay_s double precision,
    run_at timestamptz, dedupe_key text, on_conflict text, options jsonb, links jsonb)
  having count(*) > 0;
end $$;

create or replace function outlive.take_keys(
  ids uuid[], tasks text[], keys text[], on_conflicts text[],
  out not_made uuid[], out holders uuid[], out replaced uuid[], out replacing uuid[])
language plpgsql as $$
-- Take the dedupe keys of new jobs. It returns the jobs that can't have theirs, each with the job that holds it,
-- and the jobs that it has replaced, each with the new one. Keys are taken in their order, so that two batches
-- never deadlock; conflicts are settled one by one. Every function locks jobs before keys. A job that took its key
-- meanwhile is not waited for while keys are held: OL004 is raised.
declare
  job record;
  holder uuid;
  replaceable uuid[] := '{}';
begin
  not_made := '{}';
  holders := '{}';
  replaced := '{}';
  replacing := '{}';
  if 'replace' = any(on_conflicts) then
    replaceable := array(
      select k.id from unnest(tasks, keys, on_conflicts) a(task, key, on_conflict)
        join outlive.dedupe_keys k on k.task = a.task and k.key = a.key
      where a.on_conflict = 'replace');
    replaceable := array(  -- With the jobs that wait for them: take_along changes their rows.
      select j.id from outlive.jobs j where j.id = any(replaceable || array(
        select d.job_id from outlive.dependencies d where d.needs = any(replaceable) and not d.met))
      order by j.id for no key update);
  end if;
  for job in
    select a.* from unnest(ids, tasks, keys, on_conflicts) with ordinality a(id, task, key, on_conflict, at)
    where a.key is not null order by a.task collate "C", a.key collate "C", a.at
  loop
    loop
      exit when exists (select from outlive.jobs j where j.id = job.id);
      insert into outlive.dedupe_keys values (job.task, job.key, job.id) on conflict do nothing;
      exit when found or exists (select from outlive.dedupe_keys k where k.id = job.id);
      select k.id into holder from outlive.dedupe_keys k where k.task = job.task and k.key = job.key;
      continue when not found;
      if job.on_conflict = 'raise' then
        raise exception using errcode = 'OL001', detail = holder, message =
          format('job %s of task %s has the dedupe key %L and is not finished', holder, job.task, job.key);
      elsif job.on_conflict = 'replace' and outlive.state_of(holder) is distinct from 'running' then
        -- The jobs of this batch are new: no other transaction can have locked them.
        if holder <> all(replaceable) and holder <> all(ids) then
          raise exception using errcode = 'OL004', message = 'a job took its dedupe key meanwhile';
        end if;
        if outlive.replace(holder, job.id) then
          replaced := replaced || holder;
          replacing := replacing || job.id;
        end if;
        continue when not exists (select from outlive.dedupe_keys k where k.id = holder);
      end if;
      not_made := not_made || job.id;
      holders := holders || holder;
      exit;
    end loop;
  end loop;
end $$;

create or replace function outlive.replace(holder uuid, by uuid) returns boolean language plpgsql as $$
-- pending, retryable, blocked -> cancelled, to make room for a job with the same dedupe key. A running job stays,
-- because no work is thrown away. A quarantined job and a suspect stay, because their kills would be forgotten.
-- Returns whether it was replaced. The caller calls outlive.follow_through and outlive.take_along when the new job
-- is made, which may be of the same batch.
declare
  w record;
begin
  perform from outlive.jobs j where j.id = holder for no key update;
  w := outlive.take_unclaimed(holder);
  if w.id is null then
    delete from outlive.held t where t.id = holder and t.why in ('blocked', 'dependent') returning t.* into w;
  end if;
  if w.id is not null then
    perform outlive.finish_unclaimed(
      array[holder], array[w.attempt], array[w.failures], array[w.crashes], array[w.losses],
      array[format('replaced by job %s, which has its dedupe key', by)]);
  end if;
  return w.id is not null;
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
    perform pg_notify('outlive', case
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
  concurrency int default null)
returns uuid
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- (none) -> pending, or blocked by the jobs in `after`, for one job. An object holds keyword arguments, an array
-- positional ones. Returns the job's id, or the id of the unfinished job that holds the same dedupe key. A job
-- without keys, options, delay, run_at, after and batch whose arguments are small is written by `enqueue_plain`,
-- which is faster. Every other job goes the way of many.
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
     and batch is null and concurrency_key is null and concurrency is null
     and octet_length(args::text) <= least(max_args_bytes, 8192) then
    perform outlive.enqueue_plain(task, args, queue, source, priority, mine, notify);
    return mine;
  end if;
  select e.existing into other from outlive.enqueue(
    array[mine], array[task], array[queue], array[source], array[args], array[priority::smallint],
    array[extract(epoch from delay)::double precision], array[run_at],
    case when dedupe_key is not null then array[dedupe_key] end, array[on_conflict], array[options],
    max_args_bytes, notify,
    case when after is not null or batch is not null or concurrency_key is not null or concurrency is not null
      then array[jsonb_strip_nulls(jsonb_build_object('after', to_jsonb(after), 'on_failure', on_failure,
        'batch', batch, 'key', concurrency_key, 'concurrency', concurrency))] end) e;
  return coalesce(other, mine);
end $$;
