-- Which role may do what: no more than its work needs. Every migration of a database with roles runs this again.
--
--     outlive_owner     owns everything: migrate
--     outlive_worker    claims, ends, reaps, prunes; reads all; changes no schema
--     outlive_enqueue   may execute outlive.enqueue and outlive.send, and open and close batches
--     outlive_viewer    may read the views and the audit, and follow the output of jobs, and nothing else
--     outlive_job       may execute outlive.complete, and nothing else
--     outlive_protocol  may be a worker in another language, by the functions of the protocol, and nothing else
do $$
declare
  thing record;
begin
  execute format('grant create on database %I to outlive_owner', current_database());
  execute 'alter schema outlive owner to outlive_owner';
  for thing in
    select c.oid::regclass as name, c.relkind from pg_class c
    where c.relnamespace = 'outlive'::regnamespace and c.relkind in ('r', 'v')
  loop
    execute format('alter %s %s owner to outlive_owner',
      case thing.relkind when 'v' then 'view' else 'table' end, thing.name);
  end loop;
  for thing in
    select p.oid::regprocedure as name from pg_proc p where p.pronamespace = 'outlive'::regnamespace
  loop
    execute format('alter function %s owner to outlive_owner', thing.name);
  end loop;
end $$;

revoke all on schema outlive from public;
revoke all on all tables in schema outlive from public;
revoke all on all functions in schema outlive from public;
grant usage on schema outlive
  to outlive_worker, outlive_enqueue, outlive_viewer, outlive_job, outlive_protocol;
-- Every client checks the version of the schema when it connects.
grant select on outlive.schema_version
  to outlive_worker, outlive_enqueue, outlive_viewer, outlive_job, outlive_protocol;

grant select, insert, update, delete on all tables in schema outlive to outlive_worker;
revoke insert, update, delete on outlive.schema_version from outlive_worker;
grant usage on all sequences in schema outlive to outlive_worker;
grant execute on all functions in schema outlive to outlive_worker;

grant execute on function outlive.enqueue(text, json, text, text, int, interval, timestamptz, text, text, jsonb,
  uuid, int, boolean, uuid[], text, uuid, text, int, jsonb, interval, interval) to outlive_enqueue;
grant execute on function outlive.enqueue(uuid[], text[], text[], text[], json[], smallint[], double precision[],
  timestamptz[], text[], text[], jsonb[], int, boolean, jsonb[]) to outlive_enqueue;
grant execute on function outlive.enqueue_plain(text, json, text, text, int, uuid, boolean) to outlive_enqueue;
grant execute on function outlive.open_batch(text, json, json, json, uuid), outlive.close_batch(uuid, boolean)
  to outlive_enqueue;
grant execute on function outlive.send(uuid, text, json) to outlive_enqueue;

grant select on
  outlive.job_states, outlive.recent_jobs, outlive.stuck_jobs, outlive.unmet_jobs, outlive.killers,
  outlive.worker_states, outlive.queue_states, outlive.source_health, outlive.schedule_states,
  outlive.batch_states, outlive.audit, outlive.metrics, outlive.scaling
  to outlive_viewer;
grant execute on function outlive.now(), outlive.fingerprint(text, json), outlive.held_state(text, boolean),
  outlive.waits_for(outlive.held, int), outlive.count_waits(),
  outlive.count_lanes(), outlive.count_held(), outlive.count_jobs(), outlive.count_finished(),
  outlive.end_rates(), outlive.queue_rates(), outlive.changes(outlive.schedules), outlive.watch(uuid, int, bigint),
  outlive.silent_workers(), outlive.lacking(text), outlive.count_ready()
  to outlive_viewer;

grant execute on function outlive.complete(bigint, text, json, json, json), outlive.once(bigint, text, text)
  to outlive_job;

grant execute on function
  outlive.register(text, text[], text[], int, text, int, text, uuid, uuid, boolean),
  outlive.claim(uuid, int, interval), outlive.renew(uuid, bigint[], interval, boolean),
  outlive.inputs_of(uuid, bigint), outlive.succeed(uuid, bigint, json, json, json, text),
  outlive.fail(uuid, bigint, text, boolean, interval, text, int, text, text, text, bigint, double precision),
  outlive.goodbye(uuid), outlive.kept_steps(uuid, bigint),
  outlive.keep_step(uuid, bigint, text, json, interval), outlive.wait_in(uuid, bigint, text, interval, text)
  to outlive_protocol;
