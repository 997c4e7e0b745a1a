"""The app that the bench's workers run: jobs that do nothing, that say when they began, and that kill.

It is also the small one of the two apps whose fork is timed; `heavy` has the same tasks and large libraries.
"""

import os
import signal
import time

import outlive

MAX_CRASHES = 3
PAGE_S = 0.005

app = outlive.App()


@app.task(recycle_after=30_000)
def warm(url: str, number: int) -> None:
    """Nothing, in a process that goes on to the next."""


@app.task
def fresh(url: str, number: int) -> None:
    """Nothing, in a process of its own."""


@app.task
def began() -> float:
    """When it began, by the clock of the machine."""
    return time.time()


@app.task(backoff=0, max_crashes=MAX_CRASHES)
def page(poisoned: bool) -> None:
    """Some work, or the end of its process."""
    if poisoned:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(PAGE_S)
