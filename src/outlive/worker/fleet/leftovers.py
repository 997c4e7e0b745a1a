"""Leftovers: what transactions have left behind, so that none of them takes long or holds locks for long.

Jobs wait for a slot of their concurrency key (sql/schema/functions/keys.sql), jobs wait for others that have ended
(sql/schema/functions/late_releases.sql), jobs have expired or are past their deadline (sql/schema/functions/
expiring.sql), and the time is over for which jobs wait (sql/schema/functions/waits.sql). A notification says that there
is something to do. Without one, it is looked for every second. It runs in the workers that
are watchers (seat.py), and in `outlive reap`. Each statement does a little, and any number of these services may run at
once.
"""

from __future__ import annotations

import asyncio

from outlive import store
from outlive.worker import loops
from outlive.worker.session import Session
from outlive.worker.wakeup import Wakeup

LOOK_S = 1.0
TICKING_LOOK_S = 30.0
"""How often it looks by itself in a worker, whose tick looks every second (seat.py)."""
KEYS_AT_ONCE = 500
"""How many jobs and keys one statement looks at. If there are more, it is repeated at once, but not forever: some may
be locked."""
NOTES_AT_ONCE = 500
"""The same for notes about the ends of jobs, and for jobs that have expired. A statement follows up fewer ends, if they
concern many jobs."""
TURNS = 1000


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
            keys = await self._session.run(store.admit_due(KEYS_AT_ONCE))
            notes = await self._session.run(store.check_late_ends(NOTES_AT_ONCE))
            ends = await self._session.run(store.follow_late_ends(NOTES_AT_ONCE))
            expired = await self._session.run(store.cancel_expired(NOTES_AT_ONCE))
            woken = await self._session.run(store.end_due(NOTES_AT_ONCE))
            if keys < KEYS_AT_ONCE and max(notes, expired, woken) < NOTES_AT_ONCE and not ends:
                return
            await asyncio.sleep(0)
