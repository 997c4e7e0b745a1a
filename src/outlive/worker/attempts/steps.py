"""The steps that jobs keep. All that arrived while a statement ran are kept by the next one, with one commit.

A job goes on when its step is in the database. After one that is `relaxed` it goes on at once, and its end waits.
"""

from __future__ import annotations

import asyncio
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


class StepWriter:
    def __init__(self, worker: UUID, session: Runner) -> None:
        self._worker, self._session = worker, session
        self._asked: list[_Asked] = []
        self._some, self._hurry = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def pending_bytes(self) -> int:
        return sum(len(one.call.body) for one in self._asked)

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
        self._asked.append(_Asked(child, call, one.job, given))
        self._some.set()
        if call.number:
            self._hurry.set()

    def waiting(self, token: int) -> bool:
        """Whether a step of this attempt is not written yet."""
        return bool(self._asked) and any(one.job.token == token for one in self._asked)

    async def run_once(self) -> None:
        await self._some.wait()
        await wait(self._hurry, RELAXED_S)
        await self.write()

    async def write(self) -> None:
        """Write the steps that wait. If the database is away they stay, and the next turn tries again."""
        async with self._writing:
            while self._asked:
                portion = self._portion()
                await self._keep(portion)
                del self._asked[: len(portion)]
            self._some.clear()
            self._hurry.clear()

    def _portion(self) -> list[_Asked]:
        """Some megabytes of steps. One statement can't keep two under one name, which only a forged frame asks for."""
        size_bytes, portion = 0, dict[tuple[UUID, str], _Asked]()
        for one in self._asked:
            key = (one.job.id, one.step.name)
            if size_bytes > PORTION_BYTES or key in portion:
                break
            portion[key] = one
            size_bytes += len(one.call.body)
        return list(portion.values())

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


def _reply(one: _Asked, kept: dict[tuple[UUID, str], bytes | None]) -> Reply:
    key = (one.job.id, one.step.name)
    if key not in kept:
        return _refusal(one.call, StaleAttempt(f"attempt {one.job.token} is no longer under way"))
    return Reply(one.call.number, kept[key] or b"")


def _refusal(call: Call, error: Exception) -> Reply:
    return Reply(call.number, str(error).encode(errors="replace"), type(error).__name__)
