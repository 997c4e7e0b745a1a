"""The processes below the supervisor: zygotes, parents and children, and the jobs that each of them has.

What is here forks, reads, signals and reaps. It knows nothing of the database.
"""
