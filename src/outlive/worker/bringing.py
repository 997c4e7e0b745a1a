"""Ends that the hot connection must not wait for: with what they bring, or while another transaction has locked them.

Each is written by itself, on a connection of its own. A slow or huge one delays no other, and one that can't ever be
written becomes a failure that says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from uuid import UUID

import psycopg

from outlive import db, store
from outlive.model import Ended
from outlive.statement import Statement
from outlive.states import Outcome
from outlive.worker.line import Line, Lines

LINES = 3
LOCK_S = 1.0
STATEMENT_S = 120.0
"""More than any end should take. A lease that ends meanwhile takes nothing away: the row is locked."""
AGAIN_S = 1.0
"""How long an end waits that could not be written, before it is tried again."""
TRIES = 3
"""How often the same error comes before an end is given up. Locks and a database that is away don't count."""
MAX_ERROR_CHARS = 1000
LARGE_BYTES = 1 << 20
TOO_MUCH_BYTES = 32 << 20
"""While so much waits to be written, nothing is claimed: jobs could end faster than the database takes it."""
_NEVER = ("OL", "54")
"""Errors that would come again: our own, and those of things that are too large."""
_PASSES = ("08", "25", "40", "53", "55", "57P", "58")
"""Errors that pass by themselves, however long that takes."""

_log = logging.getLogger("outlive.worker")
Run = Callable[[Statement[Any]], Awaitable[Any]]


class Bringing:
    def __init__(self, worker: UUID, url: str, written: Callable[[int], None], end: Callable[[Ended], None]) -> None:
        self.worker, self._written, self._end = worker, written, end
        self.lines = Lines(url, LINES, lock_s=LOCK_S, statement_s=STATEMENT_S)
        self.pending: dict[int, Ended] = {}
        """Everything that is not written yet, by token."""
        self._ready: asyncio.Queue[int] = asyncio.Queue()
        self._one_large = asyncio.Lock()
        self._unsure: set[int] = set()
        """Tokens of ends whose last statement's outcome is unknown."""
        self._failures: dict[int, tuple[str, int]] = {}
        self._late: set[int] = set()
        """Tokens of ends that could not be written at once."""

    def add(self, end: Ended) -> None:
        self.pending[end.token] = end
        self._ready.put_nowait(end.token)

    def keep(self, tokens: Collection[int]) -> None:
        """The others have ended already, or are not ours any more."""
        for token in [token for token in self.pending if token not in tokens]:
            self._forget(token)

    @property
    def too_much(self) -> bool:
        return bool(self.pending) and sum(map(_size, self.pending.values())) > TOO_MUCH_BYTES

    @property
    def under_way(self) -> bool:
        """Whether an end is being written, or will be at once."""
        return any(token not in self._late for token in self.pending)

    async def run_once(self) -> None:
        """Write one end. Several of these run at the same time; large ones go one by one, for the memory they take."""
        token = await self._ready.get()
        end = self.pending.get(token)
        if end is None:
            return
        try:
            if _size(end) > LARGE_BYTES:
                async with self._one_large, self.lines.one() as line:
                    await self._write(line, end)
            else:
                async with self.lines.one() as line:
                    await self._write(line, end)
        except psycopg.Error as error:
            self._failed(end, error)
        except BaseException:
            self._unsure.add(token)
            self._ready.put_nowait(token)
            raise

    async def _write(self, line: Line, end: Ended) -> None:
        if end.token in self._unsure and end.token in await line.run(store.ended([end.token])):
            instead = None  # The answer was lost on its way, and not the end.
        else:
            instead = await bring(line.run, self.worker, end)
        self._forget(end.token)
        if instead is None:
            self._written(end.token)
        else:
            self._end(instead)

    def _failed(self, end: Ended, error: psycopg.Error) -> None:
        """Try again in a while, or give it up."""
        self._late.add(end.token)
        if db.transient(error):
            self._unsure.add(end.token)
        state = error.sqlstate or ""
        if not db.transient(error) and not state.startswith(_PASSES):
            before, times = self._failures.get(end.token, (state, 0))
            times = times + 1 if before == state else 1
            self._failures[end.token] = (state, times)
            if times >= TRIES:
                self._forget(end.token)
                self._end(refused(end, error))
                return
        _log.warning("how attempt %d ended can't be written yet: %s", end.token, str(error).strip())
        asyncio.get_running_loop().call_later(AGAIN_S, self._ready.put_nowait, end.token)

    def _forget(self, token: int) -> None:
        self.pending.pop(token, None)
        self._failures.pop(token, None)
        self._unsure.discard(token)
        self._late.discard(token)


def _size(end: Ended) -> int:
    return len(end.records or b"") + len(end.spawns or b"") + len(end.result or b"")


async def bring(run: Run, worker: UUID, end: Ended) -> Ended | None:
    """End an attempt with what it brings. How it ends instead, if that can't ever be written; raises what may pass."""
    try:
        if end.records is None and end.spawns is None:
            stale = bool((await run(store.end_and_claim(worker, [end]))).stale)
        else:
            await run(store.complete_with_records(worker, end))
            stale = False
    except psycopg.Error as error:
        if error.sqlstate != "OL002":
            if isinstance(error, psycopg.DataError | psycopg.IntegrityError) or (error.sqlstate or "")[:2] in _NEVER:
                return refused(end, error)
            raise
        stale = True
    if stale:
        _log.warning("attempt %d was not ours any more: nothing of it was written", end.token)
    return None


def refused(end: Ended, error: Exception) -> Ended:
    """How an attempt ends whose end can't be written."""
    _log.error("how attempt %d ended can't be written: %s", end.token, error)
    return failed_for_good(end.token, f"how it ended can't be written: {error}")


def failed_for_good(token: int, words: str) -> Ended:
    return Ended(token, Outcome.FAILED, error=words.replace("\0", "")[:MAX_ERROR_CHARS], final=True)
