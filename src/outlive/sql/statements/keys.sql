-- Statements about limits by key.

-- name: admit_due
-- pending, retryable -> pending, retryable: the jobs whose time has come queue for a slot of their key, and what
-- others have left is admitted as far as slots are free. Returns how many jobs and keys that
-- concerns. If it is less than :batch, no more is due.
select outlive.admit_due(:batch::int);

-- name: requeue_missed
-- pending, retryable -> pending, retryable: jobs with a key that another transaction moved just as their queue was
-- paused or resumed. Those of paused queues give back their slots, the others queue for one.
select outlive.requeue_queue(n.name)
from (
  select q.name from outlive.queues q where q.paused_at is not null
  union
  select h.queue from outlive.keyed_jobs k join outlive.held h on h.id = k.job_id
  where k.state = 'later' and k.ready_at = 'infinity' and h.why = 'key') n(name);
