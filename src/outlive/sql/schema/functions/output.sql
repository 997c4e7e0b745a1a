-- The output of attempts, while they run and afterwards.

create or replace function outlive.watch(
  job uuid, number int default null, after bigint default 0,
  out state text, out attempt int, out live boolean, out output text, out memory json, out asked boolean,
  out steps text)
returns setof record language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
-- What this attempt of a job has printed, and how its memory has changed: by default the one that runs, or else
-- the last. No row: there is no such job.
-- To follow a running attempt, call this again and again. For some time after each call its worker writes what
-- it prints; it is asked to begin if it has written nothing yet. Null output: the attempt has printed nothing, or,
-- while it runs, no more than :after lines. Null memory: it was not measured, or there is nothing to see in it.
-- Asked: the attempt runs, and its worker has written nothing of this yet.
-- A null attempt: there is no such attempt yet.
-- The state is read first: if the job ends meanwhile, the next call has the rest of its output.
declare
  running int;
  written outlive.watched;
begin
  state := outlive.state_of(job);
  asked := false;
  if state is null then
    return;
  end if;
  select r.attempt into running from outlive.running r where r.id = job;
  select coalesce(number, running, max(a.attempt)) into attempt from outlive.attempts a where a.job_id = job;
  live := coalesce(attempt = running, false);
  if live then
    insert into outlive.watched as w (job_id, until) values (job, outlive.now() + interval '30 seconds')
    on conflict (job_id) do update set until = excluded.until
    where w.until < outlive.now() + interval '20 seconds';
    select w.* into written from outlive.watched w where w.job_id = job;
    if written.attempt = running then
      output := case when written.lines > after then written.output end;
      memory := written.memory;
      steps := written.steps;
    else
      perform pg_notify('outlive', 'watch');
      asked := true;
    end if;
  else
    select a.attempt, a.output, a.memory into attempt, output, memory
    from outlive.attempts a where a.job_id = job and a.attempt = watch.attempt;
  end if;
  return next;
end $$;
