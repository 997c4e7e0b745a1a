"""Calls that mypy --strict must accept."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any, assert_type

import psycopg

import outlive
from tests.typing.example import add, afetch, app, asum, fetch, invoice, nothing, shop, tell

assert_type(add(1, 2), int)
assert_type(add.enqueue(1, b=2, label="x"), outlive.Job[int])
assert_type(add.enqueue(1).result(timeout=30), int)
assert_type(add.enqueue(1).status(), outlive.State)
assert_type(add.enqueue(1).cancel(), bool)
assert_type(add.enqueue(1).id, uuid.UUID)
assert_type(add.job(1), outlive.BoundJob[int])
assert_type(app.enqueue_many([add.job(1), fetch.job("u"), nothing.job()]), list[outlive.Job[object]])
assert_type(outlive.gather([add.enqueue(1), fetch.enqueue("u")]), list[object])
assert_type(app.queue("mail"), outlive.Queue)
assert_type(app.worker("web-7"), outlive.Worker)
assert_type(app.worker("web-7").set(slots=2, queues=["mail"]), bool)
assert_type(app.get_schedule("report").run(), uuid.UUID)
app.get_schedule("report").set(cron="0 4 * * *", args={"n": 1}, timezone="UTC", overlap="skip", queue=None)
assert_type(app.add_schedule("customer-7", "shop.report", every="1h", args=[1]), outlive.ScheduleHandle)
assert_type(app.schedules(), list[outlive.ScheduleInfo])
assert_type(app.queue("mail").info(), outlive.QueueInfo)
assert_type(app.source("ware").set(rate_limit_per_minute=30, burst=None), bool)
assert_type(app.workers(), list[outlive.WorkerInfo])
assert_type(app.jobs(state="failed", task="shop.add", limit=5), list[outlive.JobInfo])
assert_type(add.enqueue(1).info(), outlive.JobInfo)
assert_type(fetch.enqueue("u").result(), dict[str, str])
assert_type(afetch.enqueue("u").result(), bytes | None)
assert_type(invoice.enqueue(Decimal(1)).result(), tuple[Decimal, datetime.date])
nothing.enqueue()

everything = fetch.using(
    id=uuid.uuid4(),
    queue="slow",
    source="example.org",
    priority=1,
    delay="5m",
    dedupe_key="k",
    on_conflict="replace",
    max_attempts=1,
    max_crashes=1,
    max_losses=None,
    timeout=None,
    stall=datetime.timedelta(minutes=5),
    memory="1GB",
    on_worker_death="fail",
    batch=uuid.uuid4(),
)
assert_type(everything.enqueue("u"), outlive.Job[dict[str, str]])
fetch.using(source=shop, run_at=datetime.datetime.now(datetime.UTC)).enqueue("u")
assert_type(app.enqueue_many(fetch.job(url) for url in ("a", "b")), list[outlive.Job[dict[str, str]]])
assert_type(app.enqueue_stream(fetch.job(url) for url in ("a", "b")), int)
assert_type(app.get_job(uuid.uuid4()), outlive.Job[Any])
assert_type(app.get_job(str(uuid.uuid4())), outlive.Job[Any])

after = add.using(after=[add.enqueue(1), add.job(2), uuid.uuid4()], on_failure="proceed").enqueue(3)
assert_type(after, outlive.Job[int])
fetch.using(after=after).enqueue("u")
fetch.using(after=(add.enqueue(n) for n in range(3)), on_failure="cancel").enqueue("u")
assert_type(outlive.chain(add.job(1), fetch.job("u")), tuple[outlive.Job[int], outlive.Job[dict[str, str]]])
assert_type(outlive.chain(add.job(1), fetch.job("u"), nothing.job())[2].result(), None)
assert_type(outlive.chain(*[add.job(n) for n in range(9)])[-1], outlive.Job[int])
group = outlive.group(add.job(n) for n in range(3))
assert_type(group.jobs, list[outlive.Job[int]])
assert_type(group.then(fetch.job("u"), on_failure="block"), outlive.Job[dict[str, str]])
fetch.using(after=group).enqueue("u")
assert_type(outlive.current().inputs, list[Any])

assert_type(outlive.result_of(add.enqueue(1)), int)
assert_type(outlive.result_of(fetch.job("u")), dict[str, str])
assert_type(outlive.result_of(group), list[int])
assert_type(outlive.result_of([add.enqueue(1), add.enqueue(2)]), list[int])
assert_type(add.enqueue(outlive.result_of(add.job(1)), b=outlive.result_of(after)), outlive.Job[int])
assert_type(outlive.group([(fetch.job("u"), add.job(1)), (nothing.job(), add.job(2))]), outlive.Group[int])
assert_type(outlive.group((fetch.job(url), add.job(1)) for url in ("a", "b")), outlive.Group[int])
one, [two, (three, four)] = outlive.chain(add.job(1), [fetch.job("u"), (add.job(2), nothing.job())])
outlive.chain([add.job(n) for n in range(3)], add.job(9), on_failure="proceed")
add.using(on_failed=tell, expires="1h").using(on_failed=tell.using(queue="slow"), expires=None).enqueue(1)
add.using(deadline="2d").using(deadline=None).enqueue(1)


assert_type(outlive.gather([add.enqueue(1), add.enqueue(2)], timeout=1), list[int])
assert_type(outlive.gather(app.enqueue_many([fetch.job("u")])), list[dict[str, str]])
assert_type(outlive.gather([add.enqueue(1)], return_exceptions=True), list[int | outlive.OutliveError])


@app.task(keep_finished="1h")
def kept() -> None: ...


@app.schedule("*/5 * * * *", timezone="Europe/Berlin", args={"n": 1}, missed="all", overlap="skip")
@app.schedule(every=datetime.timedelta(hours=1), name="hourly", start=datetime.datetime.now(datetime.UTC))
@app.task(timeout="10m")
def scheduled(n: int = 0) -> int:
    return n


@app.schedule(every="30s", jitter=5, queue="slow", priority=1)
async def plain(n: int = 0) -> str:
    return str(n)


assert_type(scheduled.enqueue(1), outlive.Job[int])
assert_type(plain.enqueue(1).result(), str)


with app.batch("import", on_success=add.job(1), on_done=fetch.job("u"), id=uuid.uuid4()) as batch:
    assert_type(batch, outlive.Batch)
    add.using(batch=batch).using(batch=None).enqueue(1)
assert_type(batch.wait(timeout=60), outlive.BatchCounts)
assert_type(app.get_batch(batch.id).progress(), float)


def in_a_transaction(connection: psycopg.Connection[tuple[int, str]]) -> None:
    add.using(connection=connection).enqueue(1)
    app.enqueue_many([add.job(1)], connection=connection)


class Session:
    """Like a session of SQLAlchemy, or a connection of Django or asyncpg: no library is needed to check calls."""

    class Connection:
        def exec_driver_sql(self, statement: str, parameters: object = None) -> psycopg.Cursor[Any]:
            raise NotImplementedError

    def connection(self, **options: object) -> Connection:
        raise NotImplementedError


def in_a_session(session: Session) -> None:
    add.using(connection=session).enqueue(1)
    app.enqueue_many([add.job(1)], connection=session.connection())


settled = outlive.App("postgresql://", max_attempts=3, queues=["mail"], timeout_s="10m", max_losses=None)
observed = outlive.App(otel=True, sentry=True)


async def receives(job: outlive.Context) -> str | None:
    assert_type(job.receive("packed", list[int], timeout="7d"), list[int])
    assert_type(await job.areceive("packed", dict[str, int]), dict[str, int])
    answer: str | None = job.receive("answer", str | None)
    return answer or await job.areceive("answer", str | None, timeout="7d")


async def main(connection: psycopg.AsyncConnection[dict[str, Any]]) -> None:
    assert_type(await afetch("u"), bytes | None)
    assert_type(await asum(1, 2), int)
    job = await asum.aenqueue(1, 2, 3)
    assert_type(job, outlive.Job[int])
    assert_type(await job.aresult(timeout=1), int)
    assert_type(await job.astatus(), outlive.State)
    assert_type(await job.acancel(), bool)
    assert_type(await add.aenqueue(1), outlive.Job[int])
    assert_type(await outlive.agather([job], timeout=1), list[int])
    assert_type(await outlive.agather([job], return_exceptions=True), list[int | outlive.OutliveError])
    assert_type(await app.aenqueue_many([add.job(1)], connection=connection), list[outlive.Job[int]])
    await add.using(connection=connection).aenqueue(1)
    first, second = await outlive.achain(add.job(1), fetch.job("u"), connection=connection)
    assert_type(second, outlive.Job[dict[str, str]])
    assert_type(
        await (await outlive.agroup([add.using(after=first).job(1)])).athen(afetch.job("u")), outlive.Job[bytes | None]
    )
    async with app.batch("import", connection=connection) as batch:
        assert_type(await batch.acounts(), outlive.BatchCounts)


try:
    add.enqueue(1).result()
except outlive.JobFailed as failed:
    assert_type(failed.state, outlive.State)
    if failed.attempt is not None:
        assert_type(failed.attempt.outcome, outlive.Outcome)
except outlive.DuplicateJob as duplicate:
    assert_type(duplicate.existing, uuid.UUID | None)
