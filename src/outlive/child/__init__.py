"""The processes that run the user's code: the zygote, which forks, and the child, which runs jobs.

Nothing here imports `db` or `store`, so a job that goes wrong can't change the state of the queue.
"""
