-- Jobs that wait for other jobs, and jobs that expire: what was left for later, for worker/fleet/leftovers.py.
-- What is released at once is released by outlive.follow_up, in the statement of the end.

-- name: check_late_ends
-- blocked -> pending, cancelled: for jobs that were enqueued to wait for others, which ended before that was
-- committed. Returns how many notes of enqueues it has checked.
select outlive.check_late_ends(:batch::int);

-- name: follow_late_ends
-- blocked -> pending, cancelled: for some of the jobs that wait for jobs whose ends were left for later.
-- Returns how many ends, or parts of them, it has followed up.
select outlive.follow_late_ends(:batch::int);

-- name: cancel_expired
-- pending, retryable, blocked -> cancelled: for jobs that did not start in time. Returns how many notes it has
-- looked at.
select outlive.cancel_expired(:batch::int);
