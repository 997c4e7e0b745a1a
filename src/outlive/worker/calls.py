"""What jobs ask for while they run: each child's calls in order, those of several children side by side.

A call may wait for another transaction's lock; that delays neither the calls of other jobs nor the worker itself.
"""

from __future__ import annotations

import asyncio
from collections import deque

import psycopg

from outlive import db, statement, store
from outlive.errors import BadArguments, DatabaseUnreachable, OutliveError, StaleAttempt
from outlive.protocol import Call, Reply
from outlive.worker.children import Child
from outlive.worker.line import Line, Lines

LINES = 8


class Calls:
    def __init__(self, url: str) -> None:
        self.lines = Lines(url, LINES)
        self._waiting: dict[int, deque[Call]] = {}
        """The calls of each child that has some, by its identity: the first is under way, or next."""
        self._ready: asyncio.Queue[Child] = asyncio.Queue()
        self.size_bytes = 0

    def put(self, child: Child, call: Call) -> None:
        self.size_bytes += len(call.body)
        if (waiting := self._waiting.get(id(child))) is not None:
            waiting.append(call)
        else:
            self._waiting[id(child)] = deque([call])
            self._ready.put_nowait(child)

    async def serve_once(self) -> None:
        """Answer one call. As many of these run at the same time as there are lines."""
        child = await self._ready.get()
        waiting = self._waiting[id(child)]
        try:
            async with self.lines.one() as line:
                await self._answer(line, child, waiting[0])
        finally:
            self.size_bytes -= len(waiting.popleft().body)
            if waiting:
                self._ready.put_nowait(child)
            else:
                del self._waiting[id(child)]

    async def _answer(self, line: Line, child: Child, call: Call) -> None:
        """Whatever is wrong with a call costs the job that made it, and no other."""
        try:
            reply = Reply(call.number, await self._do(line, child, call))
        except OutliveError as error:
            reply = Reply(call.number, str(error).encode(), type(error).__name__)
        except psycopg.Error as error:
            reply = Reply(call.number, str(error).encode(), DatabaseUnreachable.__name__)
        except Exception as error:
            words = f"the call can't be understood: {type(error).__name__}: {error}"
            reply = Reply(call.number, words.encode(errors="replace"), BadArguments.__name__)
        child.answer(reply)

    async def _arguments(self, line: Line, token: int, part: int) -> bytes:
        with db.translated_errors():
            found = await line.run(store.arguments(token, part))
        if found is None:
            raise StaleAttempt(f"attempt {token} is no longer under way")
        return found

    async def _do(self, line: Line, child: Child, call: Call) -> bytes:
        """Statements that a job wants run. They are durable when it hears of them."""
        token = child.given[0].job.token if child.given else None
        if call.verb == "arguments" and token is not None:
            return await self._arguments(line, token, int(call.body))
        if call.verb != "run":
            raise OutliveError(f"a job asked for {call.verb}, which there is not")
        statements = [
            store.asked_by_job(name, parameters, token) for name, parameters in statement.read_asked(call.body)
        ]
        with db.translated_errors():
            return statement.answer(await line.run_all(statements))
