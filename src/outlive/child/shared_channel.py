"""The end of a shared child's socket to the supervisor: its jobs ask and wait beside each other."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from asyncio import Future
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import Context
from typing import TypeVar

from outlive import protocol
from outlive.child import seats
from outlive.child.channel import MANY_BYTES, Channel, body_of, encode
from outlive.child.talks import Talk
from outlive.errors import OutliveError
from outlive.protocol import Call, Halt, Reply, Run
from outlive.statement import acarry_out

T = TypeVar("T")


class SharedChannel(Channel):
    """The thread of the event loop alone reads it."""

    _read_bytes = MANY_BYTES

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        vars(self).update(vars(channel))  # It goes on where the channel is.
        self._socket.setblocking(False)  # As uvloop does in any case.
        self._loop, self._thread = loop, threading.get_ident()
        self._asked: dict[int, Future[Reply]] = {}
        self._unsent = bytearray()
        self.halts: list[Halt] = []
        self.failures: Counter[str] = Counter()  # How often each source has failed in this process.
        self._taken: set[int] = set()  # Tickets of jobs that are still to come.
        self.on_frames: Callable[[], None] = lambda: None  # What is called when jobs or halts may have come.

    def send(self, frame: protocol.FromChild, *, now: bool = False) -> None:
        """Send a frame with all others of this turn of the loop, or now: then it survives a death in this turn."""
        self._refuse_copies()
        data = encode(frame)
        with self._lock:
            first = not self._unsent
            self._unsent += data
            if now:
                self._send()
            later = first and bool(self._unsent)
        if later:
            here = threading.get_ident() == self._thread
            (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self.flush)

    def _send(self) -> None:
        """Send as much as the socket takes now."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()  # The supervisor is gone, as `read` finds too.

    def flush(self) -> None:
        """Send as much as the socket takes, and the rest later: the worker reads no faster than the database writes."""
        with self._lock:
            self._send()
            if self._unsent:
                self._loop.add_writer(self._socket, self.flush)
            else:
                self._loop.remove_writer(self._socket)

    def flush_all(self) -> None:
        while self._unsent:
            select.select([], [self._socket], [])
            self.flush()

    def stopping(self) -> bool:
        return self._stopping

    def call(self, verb: str, body: bytes) -> bytes:
        """Ask without `await`. In the thread of the loop this stops all jobs until the answer is there."""
        if verb == "wait":  # It would never return, and take a thread with it.
            raise OutliveError("a job that shares its process can wait with `await` only: asleep, areceive, agather")
        if threading.get_ident() != self._thread:
            return asyncio.run_coroutine_threadsafe(self.acall(verb, body), self._loop).result()
        number = self._ask(verb, body)
        self.flush_all()
        while number not in self._replies:
            select.select([self._socket], [], [])
            self._read()
        self._loop.call_soon(self.on_frames, context=Context())  # It is not the job that begins or halts others.
        return body_of(self._replies.pop(number))

    async def acall(self, verb: str, body: bytes) -> bytes:
        seat = seats.current.get()
        if seat is not None and verb == "wait":
            seat.asks = asyncio.current_task()
        async with nullcontext() if seat is None else seat.calls:
            number = self._ask(verb, body)
            self._asked[number] = self._loop.create_future()
            return body_of(await self._asked[number])

    async def atalk(self, talk: Talk[T]) -> T:
        """It never waits for the lock, so the loop holds the talk."""
        return await acarry_out(talk, lambda asked: self.acall(*asked))

    async def until_over(self, wait: Talk[T]) -> T:
        """The other jobs go on meanwhile."""
        return await self.atalk(wait)

    def _ask(self, verb: str, body: bytes) -> int:
        self._number += 1
        self.send(Call(self._number, verb, body, self._asking()))
        return self._number

    def _asking(self) -> int:
        seat = seats.current.get()
        return 0 if seat is None else seat.run.token

    def source_failed(self, source: str) -> None:
        self.failures[source] += 1

    def goes_back(self, run: Run) -> bool:
        """Whether the source of this job, which begins now, has failed since it came."""
        seat = seats.current.get()
        return seat is not None and self.failures[run.source] > seat.failures

    def note_steps(self, names: object) -> None:
        """The pulse is in that place."""

    def read(self) -> None:
        with suppress(BlockingIOError):  # A job that called without `await` has read it.
            self._read()
        self.on_frames()

    def _handle(self, frame: protocol.ToChild) -> None:
        match frame:
            case Reply() if (asked := self._asked.pop(frame.number, None)) is not None:
                if not asked.cancelled():
                    asked.set_result(frame)
            case Halt():
                self.halts.append(frame)
            case _:
                super()._handle(frame)

    def take_begun(self) -> list[Run]:
        """The jobs that have come, without those that the supervisor has taken back."""
        if not self._runs:
            return []
        with suppress(BlockingIOError):
            self._taken.update(protocol.read_tickets(os.read(self.tickets, MANY_BYTES)))
        runs = {run.token: run for run in self._runs if run.token in self._taken}  # One may have come twice.
        self._taken -= runs.keys()
        self._runs.clear()
        return list(runs.values())
