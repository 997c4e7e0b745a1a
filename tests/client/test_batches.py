"""Batches as an app uses them: in a block, in the caller's transaction, in async code."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import outlive
from outlive import BatchCounts
from outlive.model import Ended, new_job_id
from outlive.states import Outcome, State
from tests.client.example import add, fetch, in_a_loop
from tests.driving.making import Queue, lane

Query = Callable[..., list[tuple[Any, ...]]]
STATE = "select state from outlive.batch_states where id = %s"


def run_all(queue: Queue) -> None:
    """Let a worker run the jobs of the task that wait."""
    for job in queue.claim([lane(add.name)]):
        queue.end(Ended(job.token))


def broken_off(app: outlive.App, jobs: list[UUID], **how: Any) -> outlive.Batch:
    """A batch whose block has raised after it has enqueued these jobs."""
    batches = []

    def break_off() -> None:
        with app.batch("import", **how) as batch:
            batches.append(batch)
            app.enqueue_stream(add.using(batch=batch, id=job).job(1) for job in jobs)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    return batches[0]


def test_a_block_opens_a_batch_and_closes_it(app, queue):
    published = add.job(7)
    with app.batch("import", on_success=published) as batch:
        add.using(batch=batch).enqueue(1)
        app.enqueue_many(add.using(batch=batch.id).job(n) for n in range(2))
        assert app.enqueue_stream(add.using(batch=batch, priority=1).job(n) for n in range(3)) == 3
        add.enqueue(1)
        assert batch.counts() == BatchCounts(6, 0, 0, 0, 0, 6, False)
    assert batch.counts().jobs == 6
    with pytest.raises(outlive.JobNotFound):
        app.get_job(published.request.id).status()
    run_all(queue)
    assert batch.progress() < 1
    for job in queue.claim([lane(add.name, priority=1)]):
        queue.end(Ended(job.token))
    assert batch.wait(timeout=0) == BatchCounts(6, 6, 0, 0, 0, 0, True)
    assert (batch.done(), batch.progress()) == (True, 1.0)
    assert app.get_job(published.request.id).status() is State.PENDING


def test_a_block_that_raises_leaves_its_batch_open(app, queue, query):
    batch = broken_off(app, [uuid4()], on_done=add.job(0))
    run_all(queue)
    assert query(STATE, batch.id) == [("open",)]
    assert not batch.done()
    batch.close()
    assert batch.done()


def test_a_batch_in_async_code(app, queue, database_url):
    async def use() -> None:
        async with app.batch("import", on_done=add.job(0)) as batch:
            await add.using(batch=batch).aenqueue(1)
            await app.aenqueue_stream(add.using(batch=batch).job(n) for n in range(2))
        assert (await batch.acounts()).jobs == 3
        with pytest.raises(TimeoutError, match="was not done within 0 s"):
            await batch.await_(timeout=0)
        await batch.acancel()
        assert await batch.await_(timeout=0) == BatchCounts(3, 0, 0, 3, 0, 0, True)
        assert (await batch.adone(), await batch.aprogress()) == (True, 1.0)
        async with await psycopg.AsyncConnection.connect(database_url) as mine:
            async with app.batch("import", connection=mine) as batch:
                await add.using(batch=batch, connection=mine).aenqueue(1)
                await batch.aclose()
            await mine.rollback()
        with pytest.raises(outlive.BatchNotFound):
            await app.get_batch(batch.id).acounts()

    in_a_loop(use())


def test_the_end_of_a_batch_is_waited_for(app, queue):
    with app.batch("import") as batch:
        job = add.using(batch=batch).enqueue(1)
    timer = threading.Timer(0.1, lambda: queue.run_job(job.id, Outcome.SUCCEEDED))
    timer.start()
    assert batch.wait(timeout=30).succeeded == 1
    timer.join()


def test_cancelling_a_batch_closes_it_and_calls_back(app, query):
    failed = add.job(0)
    batch = broken_off(app, [uuid4() for _ in range(1200)], on_failure=failed)
    batch.cancel()
    assert batch.counts() == BatchCounts(1200, 0, 0, 1200, 0, 0, True)
    assert query(STATE, batch.id) == [("cancelled",)]
    assert app.get_job(failed.request.id).status() is State.PENDING
    with pytest.raises(outlive.BadArguments, match="takes no more jobs"):
        add.using(batch=batch).enqueue(1)


def test_a_batch_with_an_id_of_its_own_is_continued(app):
    id, jobs = uuid4(), [uuid4(), uuid4()]
    broken_off(app, jobs[:1], id=id)
    with app.batch("import", id=id) as batch:
        for job in jobs:
            add.using(batch=batch, id=job).enqueue(1)
    assert batch == app.get_batch(id)
    assert batch.counts() == BatchCounts(2, 0, 0, 0, 0, 2, False)


def test_a_job_without_the_batch_of_its_task(app):
    with app.batch("import") as batch:
        mine = add.using(batch=batch)
        mine.using(batch=None).enqueue(1)
        mine.using(priority=1).enqueue(1)
    assert batch.counts().jobs == 1


def test_what_is_no_batch_is_refused(app: outlive.App) -> None:
    with pytest.raises(outlive.ConfigError, match=r"batch is 'import': it must be a batch or its uuid\.UUID"):
        add.using(batch="import")  # type: ignore[arg-type]
    with pytest.raises(outlive.ConfigError, match="the name of a batch"):
        app.batch("")
    for callback in (add.using(dedupe_key="k").job(1), add.using(batch=new_job_id()).job(1)):
        with pytest.raises(outlive.ConfigError, match="on_done can have neither a dedupe key nor a batch"):
            app.batch("import", on_done=callback)
    with pytest.raises(outlive.BadArguments, match="over the limit"):
        app.batch("import", on_done=fetch.job("x" * 2_000_000))
    unknown = app.get_batch(uuid4())
    for call in (unknown.counts, unknown.done, unknown.wait):
        with pytest.raises(outlive.BatchNotFound, match=f"there is no batch {unknown.id}"):
            call()
    for verb in (unknown.close, unknown.cancel):
        with pytest.raises(outlive.BadArguments, match=f"there is no batch {unknown.id}"):
            verb()
