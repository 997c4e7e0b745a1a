"""Leaves a server that is frozen.

When a machine is gone, TCP ends its sessions in seconds. One that is frozen, or whose disk hangs, keeps them, while
another server may have become the primary. If a statement gets no answer for long, the worker asks by a new connection
whether its session is still there: the statement may only be slow, or wait for a synchronous standby.
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
    def __init__(self, url: str, sessions: Sequence[Session]) -> None:
        self._url, self._sessions = url, sessions
        self._checked_at = 0.0

    async def run_once(self) -> None:
        await asyncio.sleep(CHECK_S)
        late = time.monotonic() - SILENT_S
        asked = [(one, one.asked_at, pid) for one in self._sessions if (pid := one.backend_pid) and one.asked_at]
        asked = [(one, at, pid) for one, at, pid in asked if at < late]
        if not asked or self._checked_at > late:
            return
        there = await self._found([pid for _, _, pid in asked])
        self._checked_at = time.monotonic()
        if any(one.asked_at == at and pid not in there for one, at, pid in asked):
            _log.error("the database did not answer for %g s: all connections are made again", SILENT_S)
            for one in self._sessions:
                one.hang_up()

    async def _found(self, pids: list[int]) -> set[int]:
        """Those of these sessions that the server has which answers now."""
        try:
            connection = await db.aconnect(self._url)
        except psycopg.OperationalError:
            return set()
        async with connection:
            if connection.pooled:  # The numbers of its sessions are not the server's.
                return set(pids)
            query = "select pid from pg_stat_get_activity(null) where pid = any(%s)"
            return {pid async for (pid,) in await connection.execute(query, [pids])}
