"""Limits of running jobs: time, progress, memory.

What is here measures, and ends what exceeds a limit. It knows nothing of the database.
"""
