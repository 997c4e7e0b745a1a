"""An app whose jobs come in batches, which workers import."""

import os
import signal
from uuid import uuid5

import outlive

app = outlive.App()


@app.task(recycle_after=1000, max_losses=None, max_crashes=1000)
def step(n: int) -> None:
    pass


@app.task(max_losses=None, max_crashes=1000)
def spread(depth: int) -> None:
    """Add two jobs to the batch that this one belongs to: one now, and one when it succeeds.

    The first has an id of its own: an attempt that is killed and repeated makes no second one.
    """
    context = outlive.current()
    if depth:
        spread.using(batch=context.batch_id, id=uuid5(context.job_id, "now")).enqueue(depth - 1)
        context.spawn(spread.using(batch=context.batch_id).job(depth - 1))


@app.task
def own_batch() -> str:
    return str(outlive.current().batch_id)


@app.task(max_crashes=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def pay(url: str) -> None:
    """Add a job to the own batch and end, all in one transaction."""
    import psycopg  # Not at the top: every worker's start would take longer.

    with psycopg.connect(url) as connection:
        step.using(batch=outlive.current().batch_id, connection=connection).enqueue(0)
        outlive.current().complete(connection)


@app.task
def fill_a_batch() -> str:
    with app.batch("inside", on_done=step.job(0)) as batch:
        step.using(batch=batch).enqueue(0)
    return str(batch.id)


@app.task
def called(event: str) -> str:
    return event
