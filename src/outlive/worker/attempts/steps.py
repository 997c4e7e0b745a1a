"""The steps that jobs keep. All that arrived while a statement ran are kept by the next one, with one commit.

A job goes on when its step is in the database. After one that is `relaxed` it goes on at once, and its end waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import msgspec
import psycopg

from outlive import store, wire
from outlive.errors import BadArguments, StaleAttempt
from outlive.model import Claimed
from outlive.protocol import Call, KeptStep, Reply
from outlive.worker.ending.outbox import never_accepted
from outlive.worker.loops import wait
from outlive.worker.processes.children import Child
from outlive.worker.session import Runner

PORTION_BYTES = 2 * 1024 * 1024
RELAXED_S = 0.02
"""How long relaxed steps wait for more. They must be in the database within 50 ms."""
_decoder = msgspec.msgpack.Decoder(KeptStep)


@dataclass(slots=True)
class _Asked:
    child: Child
    call: Call
    job: Claimed
    step: KeptStep

    @property
    def key(self) -> tuple[int, str]:
        return self.job.token, self.step.name


class StepWriter:
    def __init__(self, worker: UUID, session: Runner) -> None:
        self._worker, self._session = worker, session
        self._asked: dict[tuple[int, str], _Asked] = {}
        """The steps that wait, in their order, by token and name: a checkpoint replaces the one before."""
        self._some, self._hurry = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def pending_bytes(self) -> int:
        return sum(len(one.call.body) for one in self._asked.values())

    def put(self, child: Child, call: Call) -> None:
        """Keep a step that a job has sent. It may be forged, as all that a child sends."""
        try:
            given = _decoder.decode(call.body)
            if given.value is not None:
                wire.check(given.value)
        except (msgspec.MsgspecError, wire.NotJson) as error:
            child.answer(_refusal(call, BadArguments(f"the step can't be kept: {error}")))
            return
        if (one := child.find(given.token)) is None:
            child.answer(_refusal(call, StaleAttempt("its attempt has ended")))
            return
        key = given.token, given.name
        self._asked.pop(key, None)
        self._asked[key] = _Asked(child, call, one.job, given)
        self._some.set()
        if call.number:
            self._hurry.set()

    def waiting(self, token: int) -> bool:
        """Whether a step of this attempt is not written yet."""
        return any(one == token for one, _ in self._asked)

    async def run_once(self) -> None:
        await self._some.wait()
        await wait(self._hurry, RELAXED_S)
        await self.write()

    async def write(self) -> None:
        """Write the steps that wait. If the database is away they stay, and the next turn tries again."""
        async with self._writing:
            self._hurry.clear()
            for portion in _portions(list(self._asked.values())):
                await self._keep(portion)
                for one in portion:
                    if self._asked.get(one.key) is one:
                        del self._asked[one.key]
            if not self._asked:
                self._some.clear()

    async def _keep(self, portion: list[_Asked]) -> None:
        """Keep them with one statement, or one by one if Postgres refuses one of them."""
        keep = store.keep_steps(self._worker, [one.job.token for one in portion], [one.step for one in portion])
        try:
            kept = await self._session.run(keep)
        except psycopg.Error as error:
            if not never_accepted(error):
                raise
            if len(portion) > 1:
                for one in portion:
                    await self._keep([one])
            else:
                refusal = BadArguments(f"the step can't be kept: {error.diag.message_primary}")
                portion[0].child.answer(_refusal(portion[0].call, refusal))
            return
        for one in portion:
            one.child.answer(_reply(one, kept))


def _portions(asked: list[_Asked]) -> Iterator[list[_Asked]]:
    """Some megabytes of steps at a time."""
    size_bytes, portion = 0, list[_Asked]()
    for one in asked:
        portion.append(one)
        size_bytes += len(one.call.body)
        if size_bytes > PORTION_BYTES:
            yield portion
            size_bytes, portion = 0, []
    if portion:
        yield portion


def _reply(one: _Asked, kept: dict[tuple[UUID, str], bytes | None]) -> Reply:
    key = (one.job.id, one.step.name)
    if key not in kept:
        return _refusal(one.call, StaleAttempt(f"attempt {one.job.token} is no longer under way"))
    return Reply(one.call.number, kept[key] or b"")


def _refusal(call: Call, error: Exception) -> Reply:
    return Reply(call.number, str(error).encode(errors="replace"), type(error).__name__)
