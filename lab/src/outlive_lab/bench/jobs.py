"""The app that the bench's workers run: jobs that do nothing, return when they began, or kill.

It is also the smaller of the two apps whose forks are timed. `heavy` has the same tasks and large libraries.
"""

import asyncio
import os
import signal
import time

import outlive

MAX_CRASHES = 3
PAGE_S = 0.005

app = outlive.App()


@app.task(recycle_after=30_000)
def warm(url: str, number: int) -> None:
    """Do nothing, in a process that takes the next job too."""


@app.task(recycle_after=100)
def recycled(url: str, number: int) -> None:
    """Do nothing, in a process that takes a hundred jobs, as README has it."""


@app.task(recycle_after="clean")
def clean(url: str, number: int) -> None:
    """Do nothing, in a process that takes the next job if this one leaves it as it was."""


@app.task(recycle_after=30_000)
def nap(url: str, number: int) -> None:
    """Wait for a millisecond."""
    time.sleep(0.001)


@app.task
def fresh(url: str, number: int) -> None:
    """Do nothing, in a process for this job alone."""


@app.task(share=500)
async def shared(url: str, number: int) -> None:
    """Do nothing, beside other jobs in one process."""


@app.task(share=500)
async def waits(url: str, number: int) -> None:
    """Wait for 50 ms beside others."""
    await asyncio.sleep(0.05)


@app.task
def began() -> float:
    """Return when the job began, by the clock of the machine."""
    return time.time()


@outlive.step
def durable(number: int) -> int:
    return number


@outlive.step(relaxed=True)
def relaxed(number: int) -> int:
    return number


@app.task
def steps(kind: str, count: int) -> list[float]:
    """Take steps that do nothing. Returns when the first began, and when each was kept."""
    step = relaxed if kind == "relaxed" else durable
    times = [time.time()]
    for number in range(count):
        step(number)
        times.append(time.time())
    return times


@outlive.step
async def asynchronous(number: int) -> int:
    return number


@app.task(share=64)
async def shared_steps(kind: str, count: int) -> list[float]:
    """The same, beside other jobs in one process."""
    times = [time.time()]
    for number in range(count):
        await asynchronous(number)
        times.append(time.time())
    return times


@app.task
def wakes() -> float:
    """Wait for a signal after a step. Returns when it went on, by the clock of the machine."""
    durable(1)
    outlive.current().receive("go")
    return time.time()


@app.task(backoff=0, max_crashes=MAX_CRASHES)
def page(poisoned: bool) -> None:
    """Work for a while, or kill the process."""
    if poisoned:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(PAGE_S)
