"""Whether leases and heartbeats are as old as they look: a reaper notices jumps of clocks, and that it stood still."""

from __future__ import annotations

import logging
import time

from outlive import store
from outlive.config import Config
from outlive.worker.limits import running_time
from outlive.worker.session import Session

CLOCK_JUMP_S = 5.0
"""More than an answer may be late, and much less than a lease. The same for a process that stood still."""
LATE_ANSWER_S = 1.0
MAX_SLOWEST_S = 60.0
"""How slow a worker may be for all others to wait for it after a jump of a clock."""

_log = logging.getLogger("outlive.worker")


class Clocks:
    def __init__(self, session: Session, config: Config) -> None:
        self._session, self._slowest_s = session, max(config.renew_s, config.heartbeat_s)
        self.offset_s: float | None = None
        """The database's clock minus this process' monotonic clock; None if it is not known yet."""
        self._distrusted_until = 0.0
        self._behind_s = running_time.behind_s()

    def database_time(self) -> float | None:
        """The database's time by this process' clock: a jump after the last comparison is not in it."""
        return None if self.offset_s is None else time.monotonic() + self.offset_s

    async def compare(self) -> None:
        asked_at = time.monotonic()
        await self.note(await self._session.run(store.clock()), asked_at)

    async def note(self, database_time: float, asked_at: float) -> None:
        """Notice a jump of the database's clock, for which it was asked at that moment of the monotonic clock."""
        if time.monotonic() - asked_at > LATE_ANSWER_S:
            return  # The answer does not say when in between the database read its clock.
        offset_s = database_time - asked_at
        jumped_s = 0.0 if self.offset_s is None else offset_s - self.offset_s
        self.offset_s = offset_s
        if abs(jumped_s) > CLOCK_JUMP_S:
            await self._distrust(f"the database's clock jumped by {jumped_s:.0f} s against this machine's")

    async def trusted(self) -> bool:
        """If this process stood still, all workers may have, and the database with them."""
        stood_s = running_time.behind_s() - self._behind_s
        self._behind_s += stood_s
        if stood_s > CLOCK_JUMP_S:
            await self._distrust(f"this process stood still for {stood_s:.0f} s")
        return time.monotonic() >= self._distrusted_until

    async def _distrust(self, why: str) -> None:
        """Give every worker the time to renew its leases and to send a heartbeat."""
        slowest_s = await self._session.run(store.slowest(self._slowest_s))
        # One worker with a heartbeat an hour must not suspend the leases of all others: its own dead_s is longer still.
        wait_s = 2 * min(slowest_s, MAX_SLOWEST_S)
        self._distrusted_until = time.monotonic() + wait_s
        _log.error("%s: for %g s no lease expires and no worker is declared dead for its heartbeat", why, wait_s)
