"""`./run bench`: measures the store and a worker on this machine, on a durable server.

`calls`, `claims` and `workloads` hold the benchmarks. `draining` is the claim loop of a worker without the jobs,
`processes` runs the timed code, `worker` runs a real worker with the tasks of `jobs`. Nothing is imported here, to keep
the bench out of zygotes that import its jobs.
"""
