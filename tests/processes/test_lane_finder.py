"""When a worker searches for lanes, and where it looks for jobs before the next search."""

import asyncio
import time

from outlive import db
from outlive.worker.claiming.lane_finder import SLOW_LOOK_S, LaneFinder
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup
from tests.driving.slots import WARM, one_slot
from tests.waiting import aeventually

SLOW_S = 0.1


def test_while_searches_are_slow_a_notified_worker_looks_first_where_it_has_found_jobs(queue, connect, database_url):
    """They are slow while a transaction holds a snapshot: they pass all jobs that have ended since."""

    async def use() -> None:
        async with one_slot() as (slots, _, _):
            session, wake = Session(database_url, db.PINNED), Wakeup()
            finder = LaneFinder(session, wake, slots)

            def queues() -> list[str]:
                lanes = finder.lanes.offer(slots.tasks, lambda _: "any", lambda _: 1)
                finder.lanes.claimed(lanes, [], limit=1)  # As if others had claimed their jobs.
                return [lane.queue for lane in lanes]

            blocking, began_s = connect(), time.monotonic()
            blocking.execute("begin")
            blocking.execute("lock table outlive.queues")
            queue.make(WARM)
            search = asyncio.create_task(finder.search_if_due())
            await aeventually(lambda: time.monotonic() > began_s + SLOW_S)
            blocking.execute("commit")
            await search
            assert queues() == ["default"]
            queue.make(WARM, queue="other")
            await finder.search_if_due()
            assert queues() == [], "it has just searched, and knows of nothing"
            wake.notify()
            await finder.search_if_due()
            assert queues() == ["default"]
            await finder.search_if_due()
            assert queues() == [], "one look is enough"
            assert not finder.is_current
            assert 0 < finder.pause_s() <= SLOW_LOOK_S
            await aeventually(lambda: finder.pause_s() == 0, within_s=2 * SLOW_LOOK_S)
            await finder.search_if_due()
            assert queues() == ["default", "other"]
            assert finder.is_current
            await session.close()

    asyncio.run(use())
