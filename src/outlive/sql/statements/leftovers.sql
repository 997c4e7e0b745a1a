-- What transactions have left for later, for worker/fleet/leftovers.py: slots of keys (functions/keys.sql), and
-- jobs that wait for others (functions/late_releases.sql). What is released at once is released by
-- outlive.follow_up, in the statement of the end. The reaper runs requeue_missed.
-- call: admit_due(:batch::int)
-- call: check_late_ends(:batch::int)
-- call: follow_late_ends(:batch::int)
-- call: cancel_expired(:batch::int)

-- name: requeue_missed
-- pending, retryable -> pending, retryable: jobs with a key that another transaction moved just as their queue was
-- paused or resumed. Those of paused queues give back their slots, the others queue for one.
select outlive.requeue_queue(n.name)
from (
  select q.name from outlive.queues q where q.paused_at is not null
  union
  select h.queue from outlive.keyed_jobs k join outlive.held h on h.id = k.job_id
  where k.state = 'later' and k.ready_at = 'infinity' and h.why = 'key') n(name);
