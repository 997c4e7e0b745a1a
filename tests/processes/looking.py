"""Jobs that say what they are, and what has failed, as an app that workers import."""

import asyncio
import logging
import os
import signal
from datetime import date
from typing import Any
from uuid import UUID

import outlive

app = outlive.App()


def describe() -> list[Any]:
    me = outlive.current()
    args = me.args
    return [me.task, me.queue, {**args, "text": args["text"][:5]}, len(args["text"])]


@app.task(queue="letters")
def say(text: str, when: date) -> list[Any]:
    return describe()


@app.task(queue="letters", preload=False)
def say_in_a_new_interpreter(text: str, when: date) -> list[Any]:
    return describe()


@app.task(queue="letters", share=10)
async def say_beside_others(text: str, when: date) -> list[Any]:
    return describe()


@app.task(max_attempts=1)
def fail(order: int, when: date) -> None:
    raise ValueError("no price")


@app.on_failed
@app.task
def tell(job: UUID, error: str) -> list[Any]:
    failed = app.get_job(job).info()
    same = [one.id == job for one in app.jobs(state="failed")]
    return [failed.task, failed.args, failed.state, failed.attempt, failed.worker, failed.error, error, same]


@app.task(max_attempts=1)
def survey(queue: str) -> list[int]:
    return [len(one.args["text"]) for one in app.jobs(queue=queue)]


@app.task(max_attempts=1)
def count_workers() -> int:
    return len(app.workers())


@app.task(max_crashes=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(max_attempts=1)
def pass_on(left: int) -> dict[str, str]:
    logging.getLogger("shop").warning("%d left", left)
    if left < 0:
        raise ValueError("less than none")
    if left:
        with outlive.baggage(left=str(left)):
            pass_on.enqueue(left - 1)
    return outlive.current().baggage


@app.task
def note_baggage(job: UUID, error: str) -> dict[str, str]:
    return outlive.current().baggage


@app.task(share=10)
async def pass_on_beside_others(left: int) -> dict[str, str]:
    if left:
        await pass_on.aenqueue(left - 1)
    await asyncio.to_thread(str)
    return outlive.current().baggage


shop = app.source("shop", max_concurrency=3)


@app.task(max_attempts=1, source=shop)
def operate(failed: UUID) -> list[object]:
    """Do what operators do. Returns what it has seen."""
    app.add_schedule("customer-7", describe_customer, every="1h", args=[7])
    nightly = app.get_schedule("customer-7")
    nightly.set(every="2h")
    nightly.pause()
    (info,) = app.schedules()
    fired = nightly.run()
    nightly.resume()
    app.queue("letters").pause()
    letters = app.queue("letters").info()
    app.queue("letters").resume()
    shop.set(rate_limit_per_minute=60)
    shop.pause()
    shop.resume()
    app.worker("web-7").set(slots=3)
    app.get_job(failed).retry()
    return [info.every_s, info.paused, str(fired), letters.paused]


@app.task
async def operate_later() -> list[str]:
    await app.aadd_schedule("customer-8", describe_customer, cron="0 4 * * *", args=[8])
    await app.get_schedule("customer-8").aremove()
    await app.queue("letters").apause()
    await shop.aset(max_concurrency=1)
    return [one.name for one in await app.aschedules()]


@app.task
def describe_customer(number: int) -> int:
    return number
