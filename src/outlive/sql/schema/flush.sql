-- Removes all jobs and what belongs to them. Workers, queues, sources and schedules stay.
do $$
begin
  if to_regclass('outlive.jobs') is not null and exists (select from outlive.jobs) then
    truncate outlive.jobs, outlive.waiting, outlive.running, outlive.held, outlive.keyed_jobs, outlive.key_turns,
      outlive.attempts, outlive.crashes, outlive.dedupe_keys, outlive.dependencies, outlive.end_checks,
      outlive.progress, outlive.batches, outlive.callbacks, outlive.records, outlive.requests;
  end if;
end $$;
