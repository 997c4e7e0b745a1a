"""Job calls: statements that jobs ask for while they run. A child's calls run in order, those of several in parallel.

A call that waits for another transaction's lock delays neither the calls of other jobs nor the worker.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec
import psycopg

from outlive import db, statement, store
from outlive.errors import BadArguments, DatabaseUnreachable, OutliveError, StaleAttempt
from outlive.protocol import Call, Reply
from outlive.worker.children import Child
from outlive.worker.session import Session, SessionPool

SESSIONS = 8


class JobCalls:
    def __init__(self, url: str) -> None:
        self.pool = SessionPool(url, SESSIONS)
        self._waiting: dict[int, deque[Call]] = {}
        """The calls of each child, by its identity: the first of them is under way, or next."""
        self._ready: asyncio.Queue[Child] = asyncio.Queue()
        self.pending_bytes = 0

    def put(self, child: Child, call: Call) -> None:
        self.pending_bytes += len(call.body)
        if (waiting := self._waiting.get(id(child))) is not None:
            waiting.append(call)
        else:
            self._waiting[id(child)] = deque([call])
            self._ready.put_nowait(child)

    async def run_once(self) -> None:
        """Answer one call. As many of these run at once as there are sessions."""
        child = await self._ready.get()
        waiting = self._waiting[id(child)]
        try:
            async with self.pool.take(size_bytes=len(waiting[0].body)) as session:
                await self._answer(session, child, waiting[0])
        finally:
            self.pending_bytes -= len(waiting.popleft().body)
            if waiting:
                self._ready.put_nowait(child)
            else:
                del self._waiting[id(child)]

    async def _answer(self, session: Session, child: Child, call: Call) -> None:
        """An error, of whatever kind, goes back to the job that made the call."""
        try:
            reply = Reply(call.number, await self._run(session, child, call))
        except OutliveError as error:
            reply = Reply(call.number, str(error).encode(), type(error).__name__)
        except psycopg.Error as error:
            reply = Reply(call.number, str(error).encode(), DatabaseUnreachable.__name__)
        except Exception as error:
            reason = f"the call can't be understood: {type(error).__name__}: {error}"
            reply = Reply(call.number, reason.encode(errors="replace"), BadArguments.__name__)
        child.answer(reply)

    async def _arguments(self, session: Session, token: int, part: int) -> bytes:
        with db.translated_errors():
            found = await session.run(store.arguments(token, part))
        if found is None:
            raise StaleAttempt(f"attempt {token} is no longer under way")
        return found

    async def _batch(self, session: Session, token: int) -> bytes:
        with db.translated_errors():
            found = await session.run(store.batch_of(token))
        if not found:
            raise StaleAttempt(f"attempt {token} is no longer under way")
        return found[0].bytes if found[0] else b""

    async def _run(self, session: Session, child: Child, call: Call) -> bytes:
        """Run what a job asks for. It is durable when the job gets the answer."""
        token = child.current.job.token if child.given else None
        if call.verb == "arguments" and token is not None:
            return await self._arguments(session, token, int(call.body))
        if call.verb == "inputs" and token is not None:
            first, skip = map(int, call.body.split())
            with db.translated_errors():
                return msgspec.msgpack.encode(await session.run(store.inputs(token, first, skip)))
        if call.verb == "batch" and int(call.body) == token:
            return await self._batch(session, token)
        if call.verb != "run":
            raise OutliveError(f"a job asked for {call.verb}, which does not exist")
        statements = [
            store.asked_by_job(name, parameters, token) for name, parameters in statement.read_asked(call.body)
        ]
        with db.translated_errors():
            return statement.answer(await session.run_all(statements))
