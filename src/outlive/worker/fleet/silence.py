"""Leaves a server that is frozen.

When a machine is gone, TCP ends its sessions in seconds. One that is frozen, or whose disk hangs, keeps them, while
another server may have become the primary. If a statement gets no answer for long, the worker asks by a new connection
whether its session still runs one: the statement may only be slow, or wait for a synchronous standby.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import psycopg

from outlive import db
from outlive.worker.session import Session

CHECK_S = 1.0
SILENT_S = 10.0
"""Patroni promotes no standby sooner than this, and a worker asks the server something every second."""

_log = logging.getLogger("outlive.worker")


class Silence:
    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = sessions
        self._checked_at = 0.0

    async def run_once(self) -> None:
        await asyncio.sleep(CHECK_S)
        late = time.monotonic() - SILENT_S
        asked = [(one, one.asked_at, pid) for one in self._sessions if (pid := one.backend_pid) and one.asked_at]
        asked = [(one, at, pid) for one, at, pid in asked if at < late]
        if not asked or self._checked_at > late:
            return
        if (there := await _found(asked[0][0].url, [pid for _, _, pid in asked])) is None:
            return
        self._checked_at = time.monotonic()
        if any(one.asked_at == at and pid not in there for one, at, pid in asked):
            _log.error("the database did not answer for %g s: all connections are made again", SILENT_S)
            for one in self._sessions:
                one.hang_up()


async def _found(url: str, pids: list[int]) -> set[int] | None:
    """Those of these sessions that run a statement on the server that answers now; None if that is not known. Another
    server may have sessions of the same numbers, but most are idle."""
    try:
        connection = await db.aconnect(url)
    except psycopg.OperationalError as error:
        # A server that refuses has answered: it may be full.
        return None if error.sqlstate or "FATAL" in str(error) else set()
    async with connection:
        query = "select pid from pg_stat_get_activity(null) where pid = any(%s) and coalesce(state, '') <> 'idle'"
        return {pid async for (pid,) in await connection.execute(query, [pids])}
