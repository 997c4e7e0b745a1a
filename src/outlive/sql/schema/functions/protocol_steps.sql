-- The part of the protocol (protocol.sql) that durable jobs need: the steps of a job in another language.

create or replace function outlive.kept_steps(worker uuid, token bigint) returns table (step text, value json)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
-- The steps that the job of this attempt has kept, in their order: it does not take these again.
-- OL002: the attempt is no longer this worker's.
declare
  job uuid;
begin
  select r.id into job from outlive.running r where r.token = kept_steps.token and r.worker = kept_steps.worker;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  return query select s.name, s.value from outlive.statement_steps_of(id => job) s;
end $$;

create or replace function outlive.keep_step(
  worker uuid, token bigint, step text, value json default null, took interval default null)
returns json
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- Keep what a step of this attempt has returned, and how long that took. The failures of the job count from zero
-- then. Returns the value to go on with: that of another attempt, or of a person, if it was kept under this name
-- before. OL002: the attempt is no longer this worker's.
begin
  perform outlive.refuse_unless(
    coalesce(extract(epoch from took) between 0 and 1e9, true), 'took is a time from 0 seconds to 30 years');
  value := coalesce(value, 'null');
  perform outlive.refuse_step(r.id, step, value) from outlive.running r
  where r.token = keep_step.token and r.worker = keep_step.worker;
  select k.value into value from outlive.statement_keep_steps(
    worker => worker, tokens => array[token], names => array[step], "values" => array[value],
    arguments => '{null}', tooks_s => array[extract(epoch from took)::double precision]) k;
  if not found then
    perform outlive.refuse_stale(token);
  end if;
  return value;
end $$;

create or replace function outlive.wait_in(
  worker uuid, token bigint, step text, after interval default null, signal text default null)
returns table (outcome text, value json)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- running -> suspended: the job waits in this step for some time, or for a signal, and for that no longer than
-- `after`. The outcome `suspended`: the attempt is over; end its code, and report nothing. A later attempt finds
-- the step among those that are kept; its value is null if the signal did not come. `over`: go on, with this
-- value. `cancelled`: stop it, and call fail with that outcome. OL002: the attempt is no longer this worker's.
begin
  perform outlive.refuse_unless(
    coalesce(extract(epoch from after) between 0 and 1e9, signal is not null),
    'a job waits for a signal, or for a time from 0 seconds to 30 years');
  perform outlive.refuse_signal(signal) where signal is not null;
  perform outlive.refuse_step(r.id, step, 'null') from outlive.running r
  where r.token = wait_in.token and r.worker = wait_in.worker;
  return query
    select s.outcome, s.value
    from outlive.suspend(token, worker, step, extract(epoch from after)::double precision, signal) s;
end $$;
