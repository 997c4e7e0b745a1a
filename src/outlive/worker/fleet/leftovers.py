"""Leftovers: what transactions have left behind, so that none of them takes long or holds locks for long.

Jobs wait for a slot of their concurrency key, or for others that have ended; they have expired or are past their
deadline, or the time is over for which they wait (keys.sql, late_releases.sql, expiring.sql and waits.sql in
sql/schema/functions). This runs in the workers that are watchers (seat.py) and in `outlive reap`, when a notification
says so or after a second. Each statement does a little, and any number of these services may run at once.
"""

from __future__ import annotations

import asyncio

from outlive import store
from outlive.worker import loops
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

LOOK_S, TICKING_LOOK_S = 1.0, 30.0
"""How often it looks by itself; more seldom in a worker, whose tick looks every second (seat.py)."""
AT_ONCE = 500
"""How many keys, notes or jobs one statement looks at. It follows up fewer ends, if they concern many jobs."""
TURNS = 1000
"""How often it is repeated at once if there are more: some may be locked."""


class Leftovers:
    def __init__(self, session: Session, wake: Wakeup, look_s: float = LOOK_S) -> None:
        self._session, self._wake, self._look_s = session, wake, look_s

    async def run_once(self) -> None:
        self._wake.follow.clear()
        await self.follow_up()
        await loops.wait(self._wake.follow, self._look_s)

    async def follow_up(self) -> None:
        """Do what is left, one kind after the other, as long as there is more."""
        for _ in range(TURNS):
            keys = await self._session.run(store.admit_due(AT_ONCE))
            notes = await self._session.run(store.check_late_ends(AT_ONCE))
            ends = await self._session.run(store.follow_late_ends(AT_ONCE))
            expired = await self._session.run(store.cancel_expired(AT_ONCE))
            woken = await self._session.run(store.end_due(AT_ONCE))
            if max(keys, notes, expired, woken) < AT_ONCE and not ends:
                return
            await asyncio.sleep(0)
