"""`outlive bench`: measures the store and a worker on this machine, on a durable server.

`claims`, `backlogs`, `reads`, `enqueueing` and `workloads` hold the benchmarks. `draining` is the claim loop of a
worker without the jobs, `processes` runs the timed code, `worker` runs a real worker with the tasks of `jobs`.
"""


def main(arguments: list[str]) -> int:
    """Run the command. The import is here to keep the bench out of zygotes that import its jobs."""
    from outlive.lab.bench.command import main

    return main(arguments)
