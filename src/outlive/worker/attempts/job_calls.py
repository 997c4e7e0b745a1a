"""Job calls: statements that jobs ask for while they run. A job's calls run in order, those of several in parallel.

A call that waits for another transaction's lock delays neither the calls of other jobs nor the worker: it gives its
session back after a moment, and is tried again on sessions for such calls, each job in turn, for LOCK_S. A job that
begins to wait is tried for as long as it takes, unless it blocks itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec
import psycopg

from outlive import db, statement, store
from outlive.errors import BadArguments, OutliveError
from outlive.protocol import Call, Reply
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.attempts.waits import Waits
from outlive.worker.processes.children import Child
from outlive.worker.session import Session, Share

AT_ONCE = 8
"""How many calls run at once, if there are as many sessions."""
BLOCKED_AT_ONCE = 2
"""The same for calls that wait for a lock."""
LOCK_S = 5.0
"""How long a call waits for locks. However many wait, each is tried again at least once."""
STALE = "OL002"
"""What the database says of an attempt that is no longer this worker's."""


class _HeldUpError(Exception):
    """A lock holds up a call. Nothing was written, and it is to be tried again."""


class _GoneError(Exception):
    """The database no longer has the attempt that asks."""


class JobCalls:
    def __init__(self, sessions: Share, waits: Waits, progress: ProgressWriter, leases: Leases) -> None:
        self._sessions, self._waits, self._progress, self._leases = sessions, waits, progress, leases
        self._waiting: dict[tuple[int, int], deque[Call]] = {}
        """The calls of each attempt, by the identity of its child and its token: the first is under way, or next."""
        self._ready: asyncio.Queue[tuple[Child, int]] = asyncio.Queue()
        self._blocked: asyncio.Queue[tuple[Child, int, float]] = asyncio.Queue()
        """The attempts whose first call waits for a lock, and until when (monotonic)."""
        self.pending_bytes = 0

    def put(self, child: Child, call: Call) -> None:
        self.pending_bytes += len(call.body)
        if (waiting := self._waiting.get((id(child), call.token))) is not None:
            waiting.append(call)
        else:
            self._waiting[id(child), call.token] = deque([call])
            self._ready.put_nowait((child, call.token))

    def asked(self, child: Child, token: int) -> bool:
        return (id(child), token) in self._waiting

    async def run_once(self) -> None:
        """Run one call."""
        child, token = await self._ready.get()
        await self._run_first(child, token, time.monotonic() + LOCK_S, last_try=False)

    async def run_blocked_once(self) -> None:
        """Try again to run a call that waits for a lock."""
        child, token, until = await self._blocked.get()
        await self._run_first(child, token, until, last_try=child.exited or time.monotonic() > until)

    async def _run_first(self, child: Child, token: int, until: float, *, last_try: bool) -> None:
        """Run the first call of an attempt. If it waits for a lock, it stays the first, and is tried again."""
        waiting = self._waiting[id(child), token]
        call, held_up = waiting[0], False
        try:
            async with self._sessions.take(size_bytes=len(call.body)) as session:
                reply = await self._reply(session, child, call, last_try=last_try)
                if reply is not None:
                    child.answer(reply)
        except _HeldUpError:
            held_up = True
        finally:
            if held_up:
                self._blocked.put_nowait((child, token, until))
            else:
                self.pending_bytes -= len(waiting.popleft().body)
                if waiting:
                    self._ready.put_nowait((child, token))
                else:
                    del self._waiting[id(child), token]

    async def _reply(self, session: Session, child: Child, call: Call, *, last_try: bool) -> Reply | None:
        """Errors are answers too: they go back to the job that made the call. None: its answer comes later."""
        try:
            with db.translated_errors():
                return await self._try(session, child, call, last_try=last_try)
        except _HeldUpError:
            raise
        except _GoneError:
            return self._leases.refuse(child, call.token, call.number)
        except OutliveError as error:
            return Reply.refusing(call.number, error)
        except Exception as error:
            reason = f"the call can't be understood: {type(error).__name__}: {error}"
            return Reply.refusing(call.number, BadArguments(reason))

    async def _try(self, session: Session, child: Child, call: Call, *, last_try: bool) -> Reply | None:
        try:
            if call.verb == "wait":
                return await self._waits.suspend(session, child, call)
            return Reply(call.number, await self._run(session, child, call))
        except psycopg.errors.LockNotAvailable as error:
            if not last_try:
                raise _HeldUpError from error
            if call.verb != "wait" or child.exited:
                raise
        except psycopg.Error as error:
            if error.sqlstate == STALE:
                raise _GoneError from error
            raise
        try:  # A wait is not given up, unless it would be for ever. That is not known while the database is away.
            blocks_itself = await session.run(store.blocks_itself(call.token))
        except psycopg.OperationalError as error:
            raise _HeldUpError from error
        if not blocks_itself:
            raise _HeldUpError
        raise OutliveError(_BLOCKS_ITSELF)

    async def _run(self, session: Session, child: Child, call: Call) -> bytes:
        """Run what a job asks for. It is durable when the job gets the answer."""
        token = call.token if child.find(call.token) else None
        if call.verb == "arguments" and token is not None:
            found = await session.run(store.arguments(token, int(call.body)))
            if found is None:
                raise _GoneError
            return found
        if call.verb == "inputs" and token is not None:
            first, skip = map(int, call.body.split())
            return msgspec.msgpack.encode(await session.run(store.inputs(token, first, skip)))
        if call.verb == "steps" and token is not None:
            if self._progress.step_waits(token):  # Of its last process, which has died.
                await self._progress.write_steps_of(token)
            return msgspec.msgpack.encode(await session.run(store.kept_steps(token, call.body.decode())))
        if call.verb == "batch" and token is not None:
            batch = await session.run(store.batch_of(token))
            if not batch:
                raise _GoneError
            return batch[0].bytes if batch[0] else b""
        if call.verb != "run":
            raise OutliveError(f"a job asked for {call.verb}, which does not exist")
        statements = [
            store.asked_by_job(name, parameters, token) for name, parameters in statement.read_asked(call.body)
        ]
        return statement.answer(await session.run_all(statements))


_BLOCKS_ITSELF = (
    "the job can't wait while a transaction is open in which it has called `once`: that locks its attempt, so the wait"
    " can't begin. Commit it first"
)
