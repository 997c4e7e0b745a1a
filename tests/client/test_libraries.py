"""Enqueuing in a transaction of every library: what is committed, what is rolled back, and what is refused."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

import outlive
from outlive.client.options import BoundJob
from outlive.errors import WrongConnection
from outlive.policy import Parameter
from tests.client.example import add, fetch, take
from tests.driving.databases import new_database
from tests.driving.libraries import LIBRARIES, Transaction, drive
from tests.driving.making import Queue, register_task
from tests.driving.workers import ROOT

Query = Callable[..., list[tuple[Any, ...]]]
Use = Callable[[Transaction], Awaitable[object]]
MANY = 2001
"""More than one statement carries."""
NASTY = ['"', "\\", "{}", "null", "NULL", "'; --", "%s %(a)s %%", "$1 :b", "ä\u2028🦊", ",", ""]


class Within:
    """Runs a test's code in transactions of one library."""

    def __init__(self, name: str, url: str) -> None:
        self._open, self._is_async = LIBRARIES[name]
        self._url = url

    def __call__(self, use: Use, *, autocommit: bool = False) -> None:
        async def main() -> None:
            async with self._open(self._url, autocommit=autocommit) as transaction:
                await use(transaction)

        drive(main(), is_async=self._is_async)


@pytest.fixture(scope="module")
def database_url(server_url: str) -> Iterator[str]:
    """One database for all these tests: to make one takes longer than most of them."""
    with new_database(server_url) as url:
        with psycopg.connect(url) as connection:
            connection.execute("create table mine (n int)")
        yield url


@pytest.fixture(autouse=True)
def emptied(queue: Queue) -> Iterator[None]:
    yield
    queue.execute("truncate mine, outlive.jobs, outlive.waiting, outlive.dedupe_keys, outlive.batches")
    queue.execute("delete from outlive.callbacks")


@pytest.fixture(params=LIBRARIES)
def within(request: pytest.FixtureRequest, app: outlive.App, database_url: str) -> Within:
    return Within(request.param, database_url)


@pytest.fixture
def heard(database_url: str) -> Iterator[Callable[[], int]]:
    """How many notifications have come that wake a worker."""
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("listen outlive")
        yield lambda: len(list(listener.notifies(timeout=0.02)))


def test_a_job_is_committed_with_the_row_beside_it_and_wakes_a_worker(within, count, heard, query):
    async def use(mine: Transaction) -> None:
        job = await mine.enqueue(add, 1)  # First, so that it must begin the transaction itself.
        await mine.execute("insert into mine values (1)")
        assert await mine.execute("select count(*) from outlive.jobs") == [(1,)]
        assert (count(), heard()) == (0, 0)
        await mine.commit()
        assert (count(), heard()) == (1, 1)
        assert query("select id from outlive.jobs") == [(job.id,)]

    within(use)
    assert query("select n from mine") == [(1,)]


def test_a_rollback_leaves_neither_job_nor_row_and_wakes_no_worker(within, app, count, heard, query):
    async def use(mine: Transaction) -> None:
        await mine.enqueue(add, 1)
        await mine.enqueue_many(app, [add.job(n) for n in range(MANY)])
        await mine.execute("insert into mine values (1)")
        await mine.rollback()

    within(use)
    assert (count(), heard(), query("select n from mine")) == (0, 0, [])


def test_a_signal_is_sent_with_the_row_beside_it_or_not_at_all(within, query):
    job = add.enqueue(1)

    async def use(mine: Transaction) -> None:
        with suppress(KeyError):
            async with mine.savepoint():
                await mine.send(job, "lost", 1)
                raise KeyError
        await mine.send(job, "packed", {"parcels": [1]})
        assert query("select name from outlive.signals") == []
        await mine.commit()

    within(use)
    assert query("delete from outlive.signals returning name, value") == [("packed", {"parcels": [1]})]


def test_a_savepoint_takes_its_jobs_back_and_leaves_the_others(within, app, count, query):
    async def use(mine: Transaction) -> None:
        kept = await mine.enqueue(add, 1)
        with suppress(KeyError):
            async with mine.savepoint():
                await mine.enqueue(add, 2)
                raise KeyError
        async with mine.savepoint():
            also = await mine.enqueue(add, 3)
        await mine.commit()
        assert query("select id from outlive.jobs order by id") == [(kept.id,), (also.id,)]

    within(use)
    assert count() == 2


def test_a_taken_key_is_our_error_and_a_savepoint_keeps_the_transaction_usable(within, app, count):
    first = add.using(dedupe_key="k").enqueue(1)

    async def use(mine: Transaction) -> None:
        assert await mine.enqueue(add, 2, dedupe_key="k") == first
        with pytest.raises(outlive.DuplicateJob) as raised:
            async with mine.savepoint():
                await mine.enqueue(add, 2, dedupe_key="k", on_conflict="raise")
        assert raised.value.existing == first.id
        with pytest.raises(outlive.BadArguments, match="no batch"):
            async with mine.savepoint():
                await mine.enqueue(add, 2, batch=UUID(int=1))
        await mine.enqueue(add, 3)
        await mine.commit()

    within(use)
    assert count() == 2


def test_every_kind_of_value_arrives_as_it_was(within, app, query):
    soon = datetime.now(UTC) + timedelta(days=1, microseconds=7)
    made: list[UUID] = []

    async def use(mine: Transaction) -> None:
        values = {"text": NASTY, "n": 2**60, "x": 1e300, "yes": True, "none": None, "nested": [{"a": [[], {}]}]}
        one = await mine.enqueue(take, values, run_at=soon, dedupe_key="one", priority=0, timeout="1m")
        jobs: list[BoundJob[Any]] = [
            take.using(dedupe_key=text or "empty", delay=60, priority=9).job(text) for text in NASTY
        ]
        jobs += [take.job(values), fetch.using(run_at=soon, max_attempts=1).job("u")]
        made.extend(job.id for job in (one, *await mine.enqueue_many(app, jobs)))
        await mine.commit()

    within(use)
    twins = [take.using(dedupe_key="twin").enqueue(NASTY), *app.enqueue_many([take.job(text) for text in NASTY])]
    stored = query(
        "select id, args from outlive.jobs where id = any(%s) order by id", [*made, *(job.id for job in twins)]
    )
    arguments: dict[UUID, Any] = dict(stored)
    assert arguments[made[0]][0]["text"] == NASTY
    assert [arguments[id] for id in made[1 : 1 + len(NASTY)]] == [arguments[job.id] for job in twins[1:]]
    keys = query("select key from outlive.dedupe_keys")
    assert {text or "empty" for text in NASTY} <= {key for (key,) in keys}
    times = query("select w.ready_at, w.priority from outlive.waiting w where w.id = any(%s)", [made[0], made[-1]])
    assert sorted(times) == sorted([(soon, 0), (soon, 5)])


def test_many_jobs_outside_of_a_transaction_are_all_made_or_none(within, app, count):
    add.using(dedupe_key="taken").enqueue(0)
    jobs = [*(add.job(n) for n in range(MANY)), add.using(dedupe_key="taken", on_conflict="raise").job(0)]

    async def use(mine: Transaction) -> None:
        await mine.enqueue(add, 1)
        assert count() == 2
        with pytest.raises(outlive.DuplicateJob):
            await mine.enqueue_many(app, jobs)
        assert count() == 2
        await mine.enqueue_many(app, jobs[:-1])
        assert count() == 2 + MANY

    within(use, autocommit=True)


def test_a_batch_is_opened_filled_and_closed_in_the_transaction(within, app, count, query):
    async def use(mine: Transaction) -> None:
        block = app.batch("import", on_success=add.job(9), connection=mine.connection)
        if mine.is_async:
            async with block as batch:
                await mine.enqueue(add, 1, batch=batch)
            counts = await batch.acounts()
        else:
            with block as batch:
                await mine.enqueue(add, 1, batch=batch)
            counts = batch.counts()
        assert (counts.jobs, counts.succeeded, counts.done) == (1, 0, False)
        assert query("select id from outlive.batches") == []
        await mine.commit()
        assert query("select id, done_at from outlive.batches") == [(batch.id, None)]

    within(use)
    assert count() == 1


def test_a_sync_connection_is_refused_by_async_calls_and_an_async_one_by_sync_calls(within, app, count):
    async def use(mine: Transaction) -> None:
        here = add.using(connection=mine.connection)
        if mine.is_async:
            with pytest.raises(WrongConnection, match=r", which is async: use aenqueue, aenqueue_many"):
                here.enqueue(1)
            with pytest.raises(TypeError, match="is async"), app.batch("b", connection=mine.connection):
                pass
        else:
            with pytest.raises(WrongConnection, match=r", which is not async: use enqueue, enqueue_many"):
                await here.aenqueue(1)
        await mine.commit()

    within(use)
    assert count() == 0


@pytest.mark.parametrize("strange", ["postgresql:///", object(), psycopg, 7])
def test_an_object_that_is_no_connection_is_refused_with_a_list_of_those_that_are(app, strange):
    taken = "psycopg or asyncpg, a connection or session of SQLAlchemy, or Django's connection"
    with pytest.raises(WrongConnection, match=taken):
        add.using(connection=strange).enqueue(1)
    with pytest.raises(WrongConnection, match=taken):
        asyncio.run(app.aenqueue_many([add.job(1)], connection=strange))


def test_a_connection_to_another_kind_of_database_is_refused(app):
    import sqlalchemy
    from django.db.backends.sqlite3.base import DatabaseWrapper

    lite = sqlalchemy.create_engine("sqlite://")
    with lite.connect() as connection, pytest.raises(WrongConnection, match="connection leads to sqlite"):
        add.using(connection=connection).enqueue(1)
    with pytest.raises(WrongConnection, match="connection leads to sqlite"):
        add.using(connection=DatabaseWrapper({"NAME": ":memory:"})).enqueue(1)
    lite.dispose()


def test_no_library_is_imported_that_the_caller_does_not_use():
    code = "import sys, outlive, outlive.caller_connections; outlive.App(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"psycopg", "asyncpg", "sqlalchemy", "django", "greenlet"} & set(done.stdout.split())


def test_a_schedule_is_made_with_the_row_beside_it_or_not_at_all(app, within, queue):
    queue.execute("delete from outlive.schedules")
    register_task(queue, name="shop.report", signature=(Parameter("kind", annotation="str"),))
    start = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
    made = {"args": {"kind": NASTY[-2] + "ä"}, "every": "1h", "start": start, "timezone": "Europe/Berlin"}

    async def roll_back(mine: Transaction) -> None:
        assert await mine.add_schedule(app, "customer-7", "shop.report", **made) == ["customer-7"]
        assert app.schedules() == []
        await mine.rollback()

    async def commit(mine: Transaction) -> None:
        with pytest.raises(outlive.BadArguments, match="argument kind: expected str, got int"):
            await mine.add_schedule(app, "customer-7", "shop.report", every="1h", args={"kind": 3})
        await mine.execute("insert into mine values (1)")
        assert await mine.add_schedule(app, "customer-7", "shop.report", **made) == ["customer-7"]
        await mine.commit()

    within(roll_back)
    assert app.schedules() == []
    within(commit)
    [found] = app.schedules()
    assert (found.args, found.every_s, found.starts_at) == ({"kind": NASTY[-2] + "ä"}, 3600.0, start)
