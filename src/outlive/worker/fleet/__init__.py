"""The fleet: this worker among the others. It registers, shows that it lives, and does what any worker may do for all.
Several may do that at once, so all of it is fenced or idempotent in the database."""
