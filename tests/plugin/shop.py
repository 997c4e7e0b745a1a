"""An app for the tests of the pytest plugin. It names a database that does not exist, as an app in production might."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg

import outlive

app = outlive.App("postgresql://nowhere.invalid/shop", backoff_base_s="1h", backoff_cap_s="1h")
partner = app.source("partner", rate_limit_per_minute=1)
seen: list[object] = []
"""What jobs in this process have noted."""
prepared: list[int] = []


@app.on_process_start
def prepare() -> None:
    prepared.append(os.getpid())


@app.task
def price(text: str) -> int:
    return int(text.removesuffix(" EUR")) * 100


@app.lifespan
async def session() -> AsyncIterator[None]:
    seen.append("opened")
    yield
    seen.append("closed")


@app.task(share=10)
async def fetch(order: int) -> tuple[int, list[object]]:
    """A job that shares its process: in which process it runs, and what has been opened there."""
    assert asyncio.current_task()
    return os.getpid(), [*seen]


@app.task
def sum_up(cents: list[int]) -> int:
    return sum(cents)


@app.task
def note_failure(job: UUID, error: str) -> None:
    seen.append((job, error))


@app.task
async def total(texts: list[str]) -> int:
    jobs = [await price.aenqueue(text) for text in texts]
    return sum(await outlive.agather(jobs, 5))


@outlive.step
def charge_once(order: int) -> int:
    seen.append(("charge", order))
    return 100 * order


@app.task(max_attempts=2)
def deliver(order: int) -> int:
    cents = charge_once(order)
    if outlive.current().attempt == 1:
        raise outlive.Retry(after=0)
    return cents


@outlive.step
def pack(order: int) -> int:
    """A step that says in which process it ran."""
    return os.getpid()


@outlive.step(relaxed=True)
def weigh(order: int) -> int:
    seen.append(("weigh", order))
    return order


@app.task
def fulfil(order: int) -> list[int]:
    """Returns the processes of its first step, of its last one and of its end."""
    return [pack(order), pack(order), os.getpid()]


@app.task(max_attempts=2)
def book(order: int) -> int:
    job, grams = outlive.current(), weigh(order)
    with psycopg.connect(os.environ["OUTLIVE_DATABASE_URL"]) as connection:
        if job.once(connection, "ledger"):
            seen.append(("book", order))
    if job.attempt == 1:
        raise outlive.Retry(after=0)
    return grams


@app.task
def deliver_later(order: int) -> list[int]:
    job = outlive.current()
    charge_once(order)
    job.sleep("3d")
    try:
        texts = job.receive("packed", list[str], timeout="7d")
    except outlive.NotReceived:
        return []
    return job.gather(price.job(text) for text in texts)


@app.task(max_attempts=1)
def gather_wrongly(what: str) -> None:
    outlive.current().gather([price.enqueue("1 EUR") if what == "Job" else price])  # type: ignore[arg-type]


@app.task
async def adeliver_later() -> list[int]:
    job = outlive.current()
    await job.asleep("3d")
    return await job.agather(price.job(text) for text in await job.areceive("packed", list[str]))


@app.task(queue="mail", max_attempts=3)
def send(order: int, *, copy: bool = False) -> str:
    context = outlive.current()
    kept = context.last_checkpoint
    context.checkpoint(context.attempt)
    context.progress(1, 2, "writing")
    seen.append((order, context.attempt, kept))
    if order < 0:
        raise ValueError(f"there is no order {order}")
    return f"{order}{' and copy' * copy}"


@app.task
def nest() -> list[int]:
    """Run the other jobs of the test from within this one."""
    ran = seen[0].run()  # type: ignore[attr-defined]
    outlive.current().progress(1)
    return [one.result for one in ran]


@app.task
def charge(order: int) -> None:
    context = outlive.current()
    with psycopg.connect(os.environ["OUTLIVE_DATABASE_URL"]) as connection:
        connection.execute("create table if not exists charges (id int)")
        connection.execute("insert into charges values (%s)", [order])
        context.spawn(send.job(order))
        context.complete(connection, None)
        if order < 0:
            connection.rollback()


@app.task
def remember(name: str) -> None:
    outlive.current().record("names", name, {"inputs": outlive.current().inputs})


@app.task(source=partner)
def ask(number: int) -> int:
    with partner.request():
        return number


@app.task
def again() -> None:
    again.enqueue()


@app.task
def quit_process() -> int:
    sys.stdout.flush()
    os._exit(7)


@app.schedule("0 * * * *")
@app.task
def hourly() -> None:
    seen.append("hourly")
