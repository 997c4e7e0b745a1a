-- Statements about limits by key.

-- name: admit_due
-- pending, retryable -> pending, retryable: the jobs whose time has come queue for a slot of their key, and what
-- commits have left is admitted as far as slots are free. Returns how many jobs and keys that
-- concerns. If it is less than :batch, no more is due.
select outlive.admit_due(:batch::int);
