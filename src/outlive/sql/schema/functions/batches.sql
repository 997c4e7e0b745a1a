-- Batches: jobs that are counted together, and the jobs that are enqueued when all of them have ended.
--
-- While a batch is open, a transaction that adds jobs shares the row of the batch (for key share). It waits for
-- no other that adds jobs, and for no end. close_batch waits for all of these transactions (for update), and then
-- counts the jobs. From then on jobs that are added are counted under the lock of the row. Every end is counted
-- under that lock, so exactly one of them is the last.

create or replace function outlive.open_batch(
  name text, on_success json default null, on_failure json default null, on_done json default null,
  id uuid default null)
returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Make a batch, and return its id. Repeating it with the same id changes nothing. A callback is a job as an
-- object: task, args, queue, source, priority, delay_s, run_at, options, id. OL003: it could not be enqueued.
declare
  mine uuid := coalesce(id, outlive.uuid7());
  callback record;
  job uuid;
begin
  insert into outlive.batches (id, name, created_at) values (mine, name, outlive.now()) on conflict do nothing;
  if not found then
    return mine;
  end if;
  for callback in
    select c.event, c.request
    from unnest('{success,failure,done}'::text[], array[on_success, on_failure, on_done]) c(event, request)
    where c.request is not null
  loop
    perform outlive.refuse_unless(
      callback.request ->> 'task' is not null and callback.request ->> 'dedupe_key' is null
        and callback.request ->> 'links' is null,
      format('on_%s must be an object with a task, and can have neither a dedupe key nor a batch, a concurrency '
        'key or jobs to wait for', callback.event));
    job := coalesce((callback.request ->> 'id')::uuid, outlive.uuid7());
    insert into outlive.callbacks (batch, event, job, request) values (
      mine, callback.event, job, case when callback.request ->> 'id' is not null then callback.request
        else (callback.request::jsonb || jsonb_build_object('id', job))::json end)
    on conflict do nothing;
    perform outlive.refuse_unless(found, format(
      'job %s is a callback already: make another one for on_%s, because a job is enqueued once', job,
      callback.event));
  end loop;
  perform outlive.try_callbacks(array(select c.request::jsonb from outlive.callbacks c where c.batch = mine));
  return mine;
end $$;

create or replace function outlive.add_to_batch(batch uuid, made bigint) returns void language plpgsql as $$
-- Count `made` new jobs of a batch. OL003: there is no such batch, or it takes no more jobs.
declare
  b outlive.batches;
begin
  select t.* into b from outlive.batches t where t.id = add_to_batch.batch for key share;
  perform outlive.refuse_unless(found, format(
    'there is no batch %s: open it with app.batch(…) or outlive.open_batch(…), and commit that first', batch));
  if b.closed_at is not null then
    update outlive.batches t set jobs = t.jobs + made
    where t.id = add_to_batch.batch and t.done_at is null and t.cancelled_at is null;
    perform outlive.refuse_unless(found, format(
      'batch %s takes no more jobs, because it is done or was cancelled: open a new one', batch));
  end if;
end $$;

create or replace function outlive.is_done(b outlive.batches) returns boolean language sql immutable
-- Whether all jobs of a closed batch have ended.
return b.closed_at is not null and b.succeeded + b.failed + b.cancelled + b.quarantined = b.jobs;

create or replace function outlive.call_back(b outlive.batches) returns void language plpgsql as $$
-- The batch is done: enqueue the callbacks that apply, each once ever. The caller has locked its row.
declare
  due json;
begin
  update outlive.batches t set done_at = outlive.now() where t.id = b.id;
  with called as (
    update outlive.callbacks c set called_at = outlive.now()
    where c.batch = b.id and c.called_at is null
      and c.event in ('done', case when b.succeeded = b.jobs then 'success' else 'failure' end)
    returning c.request)
  select json_agg(c.request) into due from called c;
  if due is not null then
    perform outlive.spawn(due);
  end if;
end $$;

create or replace function outlive.close_batch(id uuid, cancelling boolean default false) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Only jobs of the batch may add to it from now on, or none, if it is to be cancelled. Repeating it changes
-- nothing. A transaction that does not see all would not count the jobs that others have added, unless it has
-- opened the batch itself. OL003: there is no such batch.
declare
  b outlive.batches;
begin
  select t.* into b from outlive.batches t where t.id = close_batch.id for update;
  perform outlive.refuse_unless(found, format('there is no batch %s', id));
  if cancelling and b.cancelled_at is null and b.done_at is null then
    update outlive.batches t set cancelled_at = outlive.now() where t.id = b.id;
  end if;
  if b.closed_at is not null then
    return;
  end if;
  perform outlive.refuse_unless(b.opened_by = pg_current_xact_id() or outlive.sees_all(),
    format('batch %s can be closed only in a transaction with the isolation level READ COMMITTED', id));
  update outlive.batches t set
    closed_at = outlive.now(),
    jobs = t.jobs + (select count(*) from outlive.jobs j where j.batch = b.id)
  where t.id = b.id returning t.* into b;
  if outlive.is_done(b) then
    perform outlive.call_back(b);
  end if;
end $$;

create or replace function outlive.cancel_batch(id uuid, past uuid default null, most int default null)
returns uuid language plpgsql as $$
-- Cancel the unfinished among the jobs of a batch, or among the first `most` whose ids follow `past`. Returns the
-- last id of these; null: none follow. Call outlive.close_batch(id, cancelling => true) first, in a transaction of
-- its own: then no job is added after that.
declare
  piece uuid[];
begin
  piece := array(
    select j.id from outlive.jobs j
    where j.batch = cancel_batch.id and j.id > coalesce(past, '00000000-0000-0000-0000-000000000000')
    order by j.id limit most);
  perform outlive.cancel(array(
    select p.id from unnest(piece) p(id)
    where exists (select from outlive.waiting w where w.id = p.id)
      or exists (select from outlive.running r where r.id = p.id)
      or exists (select from outlive.held h where h.id = p.id)));
  return piece[cardinality(piece)];
end $$;

create or replace function outlive.batches_of(ids uuid[]) returns uuid[] language plpgsql stable
set enable_seqscan = off as $$
-- The batch of each of these jobs, or null. Each is looked up by its id: a join could go through the jobs of all
-- batches, which seem to be few until the table is analysed.
begin
  return array(
    select (select j.batch from outlive.jobs j where j.id = i.id)
    from unnest(ids) with ordinality i(id, at) order by i.at);
end $$;

create or replace function outlive.sizes_in_batches(ids uuid[]) returns table (id uuid, jobs bigint)
language sql stable as $$
-- How many of these jobs are in each batch, in the order in which batches are locked.
select b.id, count(*) from unnest(outlive.batches_of(ids)) b(id) where b.id is not null group by b.id order by b.id
$$;

create or replace function outlive.count_in_batches(ids uuid[], states text[], joined uuid[] default '{}')
returns void language plpgsql as $$
-- These jobs have just reached these states, and for each of `joined` a job was just made. The batches are locked
-- in the order of their ids. A new job is counted first: it may have replaced the last one of its batch. A job
-- that is not finished is in a batch that is not done, so ends in a database without such a batch cost one look at
-- an index.
declare
  n record;
  b outlive.batches;
begin
  if joined = '{}' and not exists (select from outlive.batches t where t.done_at is null) then
    return;
  end if;
  for n in
    select
      e.batch,
      count(*) filter (where e.state = 'made') as made,
      count(*) filter (where e.state = 'succeeded') as succeeded,
      count(*) filter (where e.state = 'failed') as failed,
      count(*) filter (where e.state = 'cancelled') as cancelled,
      count(*) filter (where e.state = 'quarantined') as quarantined
    from (
      select * from unnest(outlive.batches_of(ids), states)
      union all
      select j.batch, 'made' from unnest(joined) j(batch)) e(batch, state)
    where e.batch is not null and e.state in ('made', 'succeeded', 'failed', 'cancelled', 'quarantined')
    group by e.batch order by e.batch
  loop
    if n.made > 0 then
      perform outlive.add_to_batch(n.batch, n.made);
    end if;
    continue when n.succeeded + n.failed + n.cancelled + n.quarantined = 0;
    update outlive.batches t set
      succeeded = t.succeeded + n.succeeded,
      failed = t.failed + n.failed,
      cancelled = t.cancelled + n.cancelled,
      quarantined = t.quarantined + n.quarantined
    where t.id = n.batch returning t.* into b;
    if outlive.is_done(b) then
      perform outlive.call_back(b);
    end if;
  end loop;
end $$;

create or replace function outlive.uncount_in_batches(ids uuid[], state text) returns void language plpgsql as $$
-- An operator or a worker has just moved these jobs out of this state. Their batches are not done any more.
declare
  n record;
begin
  for n in select * from outlive.sizes_in_batches(ids) loop
    update outlive.batches t set
      failed = t.failed - n.jobs * (state = 'failed')::int,
      cancelled = t.cancelled - n.jobs * (state = 'cancelled')::int,
      quarantined = t.quarantined - n.jobs * (state = 'quarantined')::int,
      done_at = null
    where t.id = n.id;
  end loop;
end $$;

create or replace function outlive.forget_in_batches(ids uuid[]) returns void language plpgsql as $$
-- These jobs are pruned. An open batch counts its jobs when it is closed, and these would be missing.
declare
  n record;
begin
  for n in
    select j.batch, count(*) as jobs from outlive.jobs j where j.id = any(ids) group by j.batch order by j.batch
  loop
    update outlive.batches t set jobs = t.jobs + n.jobs where t.id = n.batch and t.closed_at is null;
  end loop;
end $$;
