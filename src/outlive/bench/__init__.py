"""`outlive bench`: what the store can do on this machine, measured on a durable server of its own.

Each file measures one thing; `draining` is a worker's hot loop without any work in it, `crew` the processes that
run what is timed, `figures` what comes out. Nothing here is imported by the rest of outlive.
"""

from outlive.bench.command import main

__all__ = ["main"]
