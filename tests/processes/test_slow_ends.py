"""Ends that are written one by one, without the worker's processes."""

import asyncio

from outlive import db
from outlive.model import Ended
from outlive.states import State
from outlive.worker.attempts.leases import Leases
from outlive.worker.ending.outbox import SlowEnds
from outlive.worker.session import SessionPool
from tests.driving.making import WORKER

RECORDS = b'[{"scope": "prices", "key": "k", "data": 1, "strength": 1}]'


def test_ends_that_are_locked_delay_only_each_other(queue, connect, database_url):
    queue.register_worker()
    queue.make_many(4)
    *locked, last_locked, free = queue.claim()
    stranger = connect()

    async def write() -> None:
        pool = SessionPool(database_url, 2)
        (sessions,) = pool.share(db.COMPLETIONS)
        slow = SlowEnds(WORKER, sessions, Leases(lease_s=300, renew_s=20), fail=lambda end: None)
        for one in locked:
            slow.add_locked(Ended(one.token))
        slow.add(Ended(last_locked.token, records=RECORDS))
        slow.add(Ended(free.token, records=RECORDS))
        try:
            await slow.run_once()  # It is late from now on.
            await slow.run_once()
            assert set(slow.pending) == {one.token for one in (*locked, last_locked)}
            await asyncio.to_thread(stranger.rollback)
            for _ in locked:
                await slow.run_late_once()
            await slow.run_late_once()
        finally:
            for session in pool.sessions:
                await session.close()

    stranger.execute("begin")
    stranger.execute("select from outlive.running where token <> %s for update", [free.token])
    asyncio.run(write())
    assert {queue.state_of(job.id) for job in (*locked, last_locked, free)} == {State.SUCCEEDED}
