-- Claims: what every claim of a job needs. The claims themselves are outlive.claim_sourced (sources.sql) and the
-- statements end_and_claim and claim_suspect.

create or replace function outlive.caught(w outlive.waiting) returns boolean language plpgsql as $$
-- waiting -> quarantined, if the job has reached its crash limit (the limit may have been lowered since).
-- The caller has just deleted its row from `waiting`. If another transaction has locked what follows from its
-- quarantine, it waits on, and comes up again ten seconds later.
begin
  insert into outlive.held
  select w.id, 'quarantined', outlive.now(), outlive.charge(w.crashes, 0, p.max_crashes), w.queue, w.source,
    w.task, w.priority, w.ready_at, w.attempt, w.failures, w.crashes, w.losses
  from outlive.policy_of(w.id, w.task) p where w.crashes >= p.max_crashes;
  if not found then
    return false;
  end if;
  perform outlive.follow_up(array[w.id], array['quarantined']);
  return true;
exception when lock_not_available then
  w.ready_at := outlive.now() + interval '10 seconds';
  insert into outlive.waiting values (w.*);
  return true;
end $$;

create or replace function outlive.carried(args json) returns json language sql stable
-- The arguments, if a claim may carry them. The process that runs the job fetches large ones in parts. Arguments
-- that are stored in few bytes are not unpacked to measure them. Stable like what it calls, so that the claim
-- inlines it.
return case when pg_column_size(args) > 2000 and octet_length(args::text) > 65536 then null else args end;
