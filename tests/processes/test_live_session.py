"""The session that shows the life of a worker, without the worker: what it hears and holds while it runs statements."""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from outlive import store
from outlive.statement import Statement
from outlive.worker.fleet.liveness import Liveness
from tests.driving.databases import end_sessions
from tests.driving.making import WORKER, Queue
from tests.waiting import eventually

HELD = (
    "select from outlive.liveness l join pg_locks k on k.locktype = 'advisory' and k.granted and k.pid = l.backend_pid"
)


class Live:
    """A session that is alive, and what it has heard."""

    def __init__(self, url: str) -> None:
        self.heard: list[str] = []
        self.liveness = Liveness(WORKER, url, self.heard.append)
        self.session = self.liveness.session

    async def hears(self, payload: str) -> None:
        await asyncio.to_thread(eventually, lambda: payload in self.heard, what=f"it hears {payload}")


def alive(database_url: str, work: Callable[[Live], Awaitable[None]]) -> None:
    async def use() -> None:
        live = Live(database_url)
        await live.liveness.show()
        try:
            await work(live)
        finally:
            await live.liveness.close()

    asyncio.run(use())


@pytest.fixture(autouse=True)
def registered(queue: Queue) -> None:
    queue.register_worker()


def test_notifications_arrive_before_beside_and_after_the_statements_of_services(queue, database_url):
    asleep = Statement("sleep", b"select pg_sleep(0.3)", (), lambda rows: rows)

    async def work(live: Live) -> None:
        queue.execute("notify outlive, 'before'")
        await live.hears("before")
        sleeping = asyncio.create_task(live.session.run(asleep))
        sleeps = "select from pg_stat_activity where query = 'select pg_sleep(0.3)' and state = 'active'"
        await asyncio.to_thread(eventually, lambda: queue.execute(sleeps).fetchall(), what="it sleeps")
        queue.execute("notify outlive, 'beside'")
        await sleeping
        await live.hears("beside")
        queue.execute(f"notify outlive_{str(WORKER)[:8]}, 'after'".encode())  # Its own channel.
        await live.hears("after")
        assert live.heard == ["", "before", "beside", "after"]

    alive(database_url, work)


def test_a_statement_that_finds_the_connection_broken_makes_one_that_lives_and_listens(queue, database_url):
    async def work(live: Live) -> None:
        assert queue.execute(HELD).fetchall()
        end_sessions(queue)
        assert not queue.execute(HELD).fetchall()
        with pytest.raises(psycopg.OperationalError):
            await live.session.run(store.clock())
        await live.session.run(store.clock())
        assert queue.execute(HELD).fetchall()
        queue.execute("notify outlive, 'again'")
        await live.hears("again")

    alive(database_url, work)


def test_a_connection_that_ends_between_two_statements_is_replaced_at_once(queue, database_url):
    async def work(live: Live) -> None:
        holding = asyncio.create_task(live.liveness.run_once())
        end_sessions(queue)
        async with asyncio.timeout(5):
            await holding
        await live.liveness.show()
        assert queue.execute(HELD).fetchall()

    alive(database_url, work)


def test_a_locked_row_delays_notifications_by_a_moment(queue, connect, database_url):
    stranger = connect()

    async def work(live: Live) -> None:
        stranger.execute("begin")
        stranger.execute("select from outlive.workers for update")
        beating = asyncio.create_task(live.session.run(store.heartbeat(WORKER, "active", None, None, None, None)))
        waits = "select from pg_stat_activity where wait_event_type = 'Lock'"
        await asyncio.to_thread(eventually, lambda: queue.execute(waits).fetchall(), what="the heartbeat waits")
        queue.execute("notify outlive, 'job'")
        await live.hears("job")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await beating
        assert queue.execute(HELD).fetchall(), "the session is the same"

    alive(database_url, work)
    stranger.rollback()
