"""The sessions that the services of a worker share."""

import asyncio
from collections.abc import Awaitable, Callable

from outlive import db
from outlive.statement import Statement
from outlive.worker import session
from outlive.worker.session import SessionPool, Share
from tests.waiting import eventually

BACKEND = Statement("backend", b"select pg_backend_pid()", (), lambda rows: rows[0][0])
LOCK_TIMEOUT = Statement("limit", b"select current_setting('lock_timeout')", (), lambda rows: rows[0][0])


def sharing(database_url: str, size: int, work: Callable[[SessionPool], Awaitable[None]]) -> None:
    async def use() -> None:
        pool = SessionPool(database_url, size)
        try:
            await work(pool)
        finally:
            for one in pool.sessions:
                await one.close()

    asyncio.run(use())


class Taken:
    """A session that a share has taken for a long statement."""

    def __init__(self, share: Share) -> None:
        self.begun, self._end = asyncio.Event(), asyncio.Event()
        self.then: Callable[[], object] = lambda: None
        """What happens at once after the session was given back."""
        self.task = asyncio.create_task(self._take(share))

    async def _take(self, share: Share) -> None:
        async with share.take():
            self.begun.set()
            await self._end.wait()
        self.then()

    async def end(self) -> None:
        self._end.set()
        await self.task


def test_however_many_statements_one_group_has_those_of_others_begin(database_url):
    async def work(pool: SessionPool) -> None:
        (calls,), (ends,), (steps, firing) = (
            pool.share(db.CALLS), pool.share(db.COMPLETIONS), pool.share(db.SERVICE, db.FIRINGS),
        )  # fmt: skip
        flood = [Taken(calls) for _ in range(9)]
        await flood[1].begun.wait()
        assert not any(one.begun.is_set() for one in flood[2:]), "one is left for each of the others"
        slow, step, fired = Taken(ends), Taken(steps), Taken(firing)
        await slow.begun.wait()
        await step.begun.wait()
        assert not fired.begun.is_set(), "it is of the same group as the step"
        await step.end()
        await fired.begun.wait()
        for one in (slow, fired, *flood):
            await one.end()

    sharing(database_url, 4, work)


def test_the_first_to_wait_is_the_first_to_begin_and_one_that_is_cancelled_passes_its_turn_on(database_url):
    async def work(pool: SessionPool) -> None:
        (calls,) = pool.share(db.CALLS)
        first, second, third, fourth = (Taken(calls) for _ in range(4))
        await first.begun.wait()
        second.task.cancel()
        first.then = third.task.cancel  # It has its turn, and no time to use it.
        await first.end()
        await fourth.begun.wait()
        assert not second.begun.is_set()
        assert not third.begun.is_set()
        await fourth.end()

    sharing(database_url, 1, work)


def test_a_session_has_the_limits_of_the_purpose_that_it_is_used_for(database_url):
    async def work(pool: SessionPool) -> None:
        calls, ends = pool.share(db.CALLS, db.COMPLETIONS)
        backend = await calls.run(BACKEND)
        assert await calls.run(LOCK_TIMEOUT) == "100ms"
        assert await ends.run(LOCK_TIMEOUT) == "200ms"
        assert await calls.run(LOCK_TIMEOUT) == "100ms"
        assert await ends.run(BACKEND) == backend, "a second connection was not needed"

    sharing(database_url, 2, work)


def test_a_connection_that_is_idle_is_closed_and_that_is_no_loss(database_url, queue, monkeypatch):
    open_now = "select count(*)::int from pg_stat_activity where pid = %s"

    async def work(pool: SessionPool) -> None:
        (calls,) = pool.share(db.CALLS)
        backend = await calls.run(BACKEND)
        await pool.sessions[0].close_if_idle()
        assert await calls.run(BACKEND) == backend
        monkeypatch.setattr(session, "IDLE_S", 0.0)
        await pool.sessions[0].close_if_idle()
        await asyncio.to_thread(eventually, lambda: queue.value(open_now, backend) == 0, what="it is closed")
        assert await calls.run(BACKEND) != backend
        assert pool.sessions[0].generation == 1

    sharing(database_url, 1, work)
