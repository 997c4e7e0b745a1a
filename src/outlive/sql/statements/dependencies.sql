-- Statements about jobs that wait for other jobs.

-- name: check_late_ends
-- blocked -> pending, cancelled: for jobs whose ends were written or found by transactions with an old snapshot.
-- Returns how many such ends it has checked.
select outlive.check_late_ends(:batch::int);
