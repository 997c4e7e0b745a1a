"""The attempts that this worker holds: their leases, and what their jobs ask for while they run."""
