"""The steps that jobs keep. All that arrived while a statement ran are kept by the next one, with one commit.

A job goes on when its step is in the database. After one that is `relaxed` it goes on at once, and its end waits.
A step that another transaction's lock holds up is tried again by itself, and delays no other job.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import msgspec
import psycopg

from outlive import store, wire
from outlive.errors import BadArguments, StaleAttempt
from outlive.humanize import short_id
from outlive.model import Claimed
from outlive.protocol import Call, KeptStep, Reply
from outlive.worker.attempts.leases import Leases
from outlive.worker.ending.outbox import never_accepted
from outlive.worker.limits import running_time
from outlive.worker.loops import wait
from outlive.worker.processes.children import Child
from outlive.worker.reporting import job_log
from outlive.worker.session import Runner

PORTION_BYTES = 2 * 1024 * 1024
LOCKED_BYTES = 48 * 1024 * 1024
"""How much may be held up by locks before it takes room from what others send."""
AGAIN_S = 0.2
"""How long the steps that locks hold up wait before the next try."""
RELAXED_S = 0.02
"""How long relaxed steps wait for more. They must be in the database within 50 ms."""
_decoder = msgspec.msgpack.Decoder(KeptStep)
_log = logging.getLogger("outlive.worker")


@dataclass(slots=True)
class _Asked:
    child: Child
    number: int
    """That of its call; 0: the job does not wait for an answer."""
    size_bytes: int
    job: Claimed
    step: KeptStep

    @property
    def key(self) -> tuple[int, str]:
        return self.job.token, self.step.name


class _Waiting(dict[tuple[int, str], _Asked]):
    """Steps by token and name, in their order: a checkpoint replaces the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0  # Each read of a child asks for it, while thousands of steps may wait.

    def put(self, one: _Asked) -> None:
        self[one.key] = one
        self.size_bytes += one.size_bytes

    def take(self, key: tuple[int, str]) -> _Asked | None:
        if (one := self.pop(key, None)) is not None:
            self.size_bytes -= one.size_bytes
        return one


class StepWriter:
    def __init__(self, worker: UUID, session: Runner, leases: Leases) -> None:
        self._worker, self._session, self._leases = worker, session, leases
        self._asked = _Waiting()
        self._locked: dict[int, _Waiting] = {}
        """All steps of the attempts that a lock holds up, by token."""
        self._some, self._hurry = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def pending_bytes(self) -> int:
        """How much waits to be written. Of what locks hold up only that beyond its own bound counts."""
        locked_bytes = sum(waiting.size_bytes for waiting in self._locked.values())
        return self._asked.size_bytes + max(0, locked_bytes - LOCKED_BYTES)

    def put(self, child: Child, call: Call) -> None:
        """Keep a step that a job has sent. It may be forged, as all that a child sends."""
        try:
            given = _decoder.decode(call.body)
            if given.value is not None:
                wire.check(given.value)
        except (msgspec.MsgspecError, wire.NotJson) as error:
            child.answer(_refusal(call.number, BadArguments(f"the step can't be kept: {error}")))
            return
        if (one := child.find(given.token)) is None:
            child.answer(_refusal(call.number, StaleAttempt("its attempt has ended")))
            return
        one.moved = running_time.now()
        waiting = self._locked.get(given.token, self._asked)
        if (before := waiting.take((given.token, given.name))) is not None:
            before.child.answer(_refusal(before.number, BadArguments("another step of this name has replaced it")))
        waiting.put(_Asked(child, call.number, len(call.body), one.job, given))
        self._some.set()
        if call.number:
            self._hurry.set()

    def waiting(self, token: int) -> bool:
        """Whether a step of this attempt is not written yet."""
        return token in self._locked or any(one == token for one, _ in self._asked)

    def locked(self, token: int) -> bool:
        """Whether a lock holds up a step of this attempt."""
        return token in self._locked

    async def run_once(self) -> None:
        await self._some.wait()
        await wait(self._hurry, RELAXED_S)
        await self.write()

    async def write(self) -> None:
        """Write the steps that wait. If the database is away they stay, and the next turn tries again."""
        async with self._writing:
            self._hurry.clear()
            for portion in _portions(list(self._asked.values())):
                await self._keep(self._asked, portion)
            if not self._asked:
                self._some.clear()

    async def write_those_of(self, token: int) -> None:
        """Write the steps of an attempt, with all that wait. LockNotAvailable: a lock holds one up."""
        await self.write()
        if token in self._locked:
            await asyncio.sleep(AGAIN_S)  # The caller tries again.
            raise psycopg.errors.LockNotAvailable(f"a lock holds up a step of attempt {token}")

    async def run_locked_once(self) -> None:
        await asyncio.sleep(AGAIN_S)
        await self.write_locked()

    async def write_locked(self, *, within_s: float = math.inf) -> None:
        """Try again to write what locks hold up, one attempt after the other: each delays only these."""
        until = time.monotonic() + within_s
        for token, waiting in list(self._locked.items()):
            if time.monotonic() > until:
                return
            for portion in _portions(list(waiting.values())):
                await self._keep(waiting, portion)
            if not waiting:
                self._locked.pop(token, None)

    async def _keep(self, waiting: _Waiting, portion: list[_Asked]) -> None:
        """Keep them with one statement, or one by one if Postgres refuses one of them, or a lock holds one up."""
        portion = [one for one in portion if waiting.get(one.key) is one]  # Others were replaced, or set aside.
        if not portion:
            return
        keep = store.keep_steps(self._worker, [one.job.token for one in portion], [one.step for one in portion])
        try:
            kept = await self._session.run(keep)
        except psycopg.Error as error:
            locked = isinstance(error, psycopg.errors.LockNotAvailable)
            if not (locked or never_accepted(error)):
                raise
            if locked and (len(portion) == 1 or waiting is not self._asked):
                self._set_aside(portion[0])
            elif len(portion) > 1:
                for one in portion:
                    await self._keep(waiting, [one])
            else:
                refusal = BadArguments(f"the step can't be kept: {error.diag.message_primary}")
                self._answer(waiting, portion[0], _refusal(portion[0].number, refusal))
            return
        for one in portion:
            self._answer(waiting, one, self._reply(one, kept))

    def _reply(self, one: _Asked, kept: dict[tuple[UUID, str], bytes | None]) -> Reply | None:
        key = (one.job.id, one.step.name)
        if key not in kept:
            return self._leases.refuse(one.child, one.job.token, one.number)
        return Reply(one.number, kept[key] or b"")

    def _set_aside(self, first: _Asked) -> None:
        """A lock holds up this step: all of its attempt wait, in their order. An older one must not be written last."""
        job = first.job
        if job.token not in self._locked:
            words = (
                "another transaction holds a lock that the step %s of job %s needs; `outlive doctor` names the session"
            )
            _log.warning(words, first.step.name, short_id(job.id), extra=job_log.fields(job))
            waiting = self._locked[job.token] = _Waiting()
            for one in [one for one in self._asked.values() if one.job.token == job.token]:
                self._asked.take(one.key)
                waiting.put(one)

    def _answer(self, waiting: _Waiting, one: _Asked, reply: Reply | None) -> None:
        """It waits no more. If it was replaced meanwhile, it has its answer already."""
        if waiting.get(one.key) is one:
            waiting.take(one.key)
            if reply is not None:
                one.child.answer(reply)


def _portions(asked: list[_Asked]) -> Iterator[list[_Asked]]:
    """Some megabytes of steps at a time."""
    size_bytes, portion = 0, list[_Asked]()
    for one in asked:
        portion.append(one)
        size_bytes += one.size_bytes
        if size_bytes > PORTION_BYTES:
            yield portion
            size_bytes, portion = 0, []
    if portion:
        yield portion


def _refusal(number: int, error: Exception) -> Reply:
    return Reply(number, str(error).encode(errors="replace"), type(error).__name__)
