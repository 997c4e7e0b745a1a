"""Limits of running jobs. What is here measures, and ends what exceeds a limit; it knows nothing of the database."""
