"""The attempts that this worker holds: their leases, and what their jobs ask for while they run.

What is here writes to the rows of running attempts. Only `ending` decides how they end.
"""
