"""`outlive bench`: what the store and a worker can do on this machine, measured on a durable server of their own.

Each file measures one thing; `draining` is a worker's hot loop without any work in it, `crew` the processes that
run what is timed, `worker` a real worker with the jobs of `jobs`, `figures` what comes out. Nothing here is imported
by the rest of outlive.
"""


def main(arguments: list[str]) -> int:
    """The command; imported only then, so that a zygote that has the bench's jobs has nothing else of it."""
    from outlive.lab.bench.command import main

    return main(arguments)
