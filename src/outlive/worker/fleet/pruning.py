"""Pruning: what is old enough is deleted, some thousands of rows at a time. `outlive prune` does the same."""

from __future__ import annotations

import math
import time
from datetime import datetime

from outlive import store
from outlive.config import KEEP_SCHEDULES_S, KEEP_UNUSED_S, KEEP_WORKERS_S, Config
from outlive.states import State
from outlive.worker.session import Session

LOOK_AGAIN_S = 3600.0
"""How soon jobs are looked at again that were not pruned."""


class Pruning:
    def __init__(self, session: Session, config: Config) -> None:
        self._session, self._config = session, config
        self._marks: dict[State, datetime] = {}
        """The end of the last job of each state that was considered."""
        self._marked_at = self._forgot_at = -math.inf

    async def run_once(self) -> int:
        """Delete all that is old enough. Returns how many jobs."""
        run, keep_s = self._session.run, self._config.keep_s
        pruned = sum([await self._prune_finished(state, keep_s[state]) for state in keep_s])
        await run(store.prune_batches(keep_s=max(keep_s.values())))
        await run(store.prune_schedules(keep_s=KEEP_SCHEDULES_S))
        gone, more = 1, True
        while gone and more:  # Jobs that another transaction has locked wait for the next sweep.
            gone, more = await run(store.prune_expired())
            pruned += gone
        await run(store.prune_awaited())
        await run(store.prune_watched())
        await run(store.prune_crashes(keep_s=self._config.keep_failed_s))
        await run(store.prune_workers(keep_s=KEEP_WORKERS_S))
        await run(store.prune_audit())
        if (now := time.monotonic()) - self._forgot_at > LOOK_AGAIN_S:  # It may read all jobs.
            self._forgot_at = now
            await run(store.prune_unused(keep_s=KEEP_UNUSED_S))
        return pruned

    async def _prune_finished(self, state: State, keep_s: float) -> int:
        """Jobs of some tasks are kept for longer than others. They are passed over once, and looked at again an hour
        later, as are jobs that another transaction has locked."""
        now = time.monotonic()
        if now - self._marked_at > LOOK_AGAIN_S:
            self._marks, self._marked_at = {}, now
        pruned, more = 0, True
        while more:
            after = self._marks.get(state)
            gone, more, mark = await self._session.run(store.prune_finished(state, keep_s=keep_s, after=after))
            pruned += gone
            if mark is not None:
                self._marks[state] = mark
        return pruned
