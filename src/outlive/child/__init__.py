"""What runs beside the user's code: the zygote that forks, and the child that runs a job.

Nothing here imports `db` or `store`: a job that goes wrong can't touch the queue's state.
"""
