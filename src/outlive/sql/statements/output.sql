-- Statements about the output of attempts.
-- call: watch(:id::uuid, :attempt::int, :after::bigint)

-- name: watched
-- The attempts of this worker that are followed, and whether the database has any of their output.
select r.token, w.attempt is not distinct from r.attempt
from outlive.watched w join outlive.running r on r.id = w.job_id
where r.worker = :worker::uuid and w.until > outlive.now();

-- name: write_output
-- What followed attempts have printed and used so far, only for attempts that still run in this worker.
update outlive.watched w
set attempt = r.attempt, lines = p.lines, output = coalesce(p.output, w.output), memory = p.memory,
  steps = p.steps
from json_to_recordset(:outputs::json) p(token bigint, lines bigint, output text, memory json, steps text)
join outlive.running r on r.token = p.token and r.worker = :worker::uuid
where w.job_id = r.id;

-- name: prune_watched
-- Delete the rows of jobs that are followed no longer.
delete from outlive.watched w where w.job_id = any(array(
  select o.job_id from outlive.watched o where o.until < outlive.now() for update skip locked));
