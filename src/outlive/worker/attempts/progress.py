"""Progress and steps of running jobs. An attempt ends only when both are written: the next attempt begins from there.

Progress is written a few times a second. All steps that arrived while a statement ran are kept by the next one, with
one commit. A job goes on when its step is in the database; after one that is `relaxed` it goes on at once. A step that
another transaction's lock holds up is tried again by itself, and delays no other job.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec
import psycopg

from outlive import db, store, wire
from outlive.errors import BadArguments, StaleAttempt
from outlive.model import Claimed, Ended
from outlive.protocol import Call, KeptStep, Progress, Reply
from outlive.worker import log
from outlive.worker.ending.outbox import Outbox, never_accepted
from outlive.worker.limits import running_time
from outlive.worker.loops import wait
from outlive.worker.processes.children import Child
from outlive.worker.reporting import job_log
from outlive.worker.session import Runner

EVERY_S = 0.2
LAST_S = 1.0
"""How long a worker that stops tries once more what locks hold up."""
MAX_WARNED = 1000
_UNWRITABLE = ("22", "54")
"""Classes of errors about values that Postgres does not accept, or that exceed its limits."""
PORTION_BYTES = 2 * 1024 * 1024
LOCKED_BYTES = 48 * 1024 * 1024
"""How much may be held up by locks before it takes room from what others send."""
AGAIN_S = 0.2
"""How long the steps that locks hold up wait before the next try."""
RELAXED_S = 0.02
"""How long relaxed steps wait for more. They must be in the database within 50 ms."""
_decoder = msgspec.msgpack.Decoder(KeptStep)


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


class ProgressWriter:
    def __init__(self, worker: UUID, session: Runner, outbox: Outbox) -> None:
        self._worker, self._session, self._outbox = worker, session, outbox
        self._unwritten: dict[int, Progress] = {}
        """The latest progress of each attempt, by token."""
        self.held_ends: list[Ended] = []
        """Ends of attempts whose progress or steps are not written yet."""
        self._warned: deque[int] = deque(maxlen=MAX_WARNED)
        """Attempts whose progress could not be written."""
        self._end_waits, self._writing = asyncio.Event(), asyncio.Lock()
        self._steps = _Waiting()
        self._locked: dict[int, _Waiting] = {}
        """All steps of the attempts that a lock holds up, by token."""
        self._some_steps, self._step_waits, self._writing_steps = asyncio.Event(), asyncio.Event(), asyncio.Lock()

    # What jobs report

    def note(self, progress: Progress) -> None:
        """Keep only the latest of each attempt: a job that reports all the time does not fill the memory."""
        before = self._unwritten.get(progress.token)
        self._unwritten[progress.token] = progress if before is None else progress.after(before)

    def keep(self, child: Child, call: Call) -> None:
        """Keep a step that a job has sent. It may be forged, as all that a child sends."""
        try:
            given = _decoder.decode(call.body)
            if given.value is not None:
                wire.check(given.value)
        except (msgspec.MsgspecError, wire.NotJson) as error:
            child.answer(Reply.refusing(call.number, BadArguments(f"the step can't be kept: {error}")))
            return
        if (one := child.find(given.token)) is None:
            child.answer(Reply.refusing(call.number, StaleAttempt("its attempt has ended")))
            return
        one.moved = running_time.now()
        waiting = self._locked.get(given.token, self._steps)
        if (before := waiting.take((given.token, given.name))) is not None:
            replaced = BadArguments("another step of this name has replaced it")
            before.child.answer(Reply.refusing(before.number, replaced))
        waiting.put(_Asked(child, call.number, len(call.body), one.job, given))
        self._some_steps.set()
        if call.number:
            self._step_waits.set()

    def hold(self, end: Ended) -> bool:
        """Keep an end until the progress and the steps before it are written; False if none waits."""
        if not self.waiting(end.token):
            return False
        self.held_ends.append(end)
        self._end_waits.set()
        return True

    @property
    def held_up(self) -> bool:
        """Whether a lock holds up an end."""
        return any(end.token in self._locked for end in self.held_ends)

    def waiting(self, token: int) -> bool:
        """Whether progress or a step of this attempt is not written yet."""
        return token in self._unwritten or self.step_waits(token)

    def step_waits(self, token: int) -> bool:
        return token in self._locked or any(one == token for one, _ in self._steps)

    @property
    def pending_bytes(self) -> int:
        """How much waits to be written. Of what locks hold up only that beyond its own bound counts."""
        locked_bytes = sum(waiting.size_bytes for waiting in self._locked.values())
        return self._steps.size_bytes + max(0, locked_bytes - LOCKED_BYTES)

    # What is written

    async def run_once(self) -> None:
        await wait(self._end_waits, EVERY_S)
        self._end_waits.clear()
        await self.write()

    async def run_steps_once(self) -> None:
        await self._some_steps.wait()
        await wait(self._step_waits, RELAXED_S)
        await self._write_steps()

    async def run_locked_once(self) -> None:
        await asyncio.sleep(AGAIN_S)
        await self._write_locked()

    async def write(self) -> None:
        """Write all steps and progress, then release the ends that waited for these. More may arrive meanwhile."""
        async with self._writing:
            writing, ends = dict(self._unwritten), list(self.held_ends)
            await self._write_steps()
            if writing:
                await self._write_progress(list(writing.values()))
            self._unwritten = {token: one for token, one in self._unwritten.items() if one is not writing.get(token)}
            del self.held_ends[: len(ends)]
            for end in ends:
                if self.step_waits(end.token):  # A lock holds one up.
                    self.held_ends.append(end)
                else:
                    self._outbox.put(end)

    async def write_last(self) -> None:
        """Write all, and release all ends but those that a lock holds up even now."""
        await self._write_locked(within_s=LAST_S)
        await self.write()

    async def write_that_of(self, token: int) -> None:
        """Write the progress and the steps of an attempt. LockNotAvailable: a lock holds one of these up."""
        await self.write()
        await self.write_steps_of(token)

    async def write_steps_of(self, token: int) -> None:
        await self._write_steps()
        if token in self._locked:
            await asyncio.sleep(AGAIN_S)  # The caller tries again.
            raise psycopg.errors.LockNotAvailable(f"a lock holds up a step of attempt {token}")

    async def _write_progress(self, reports: Sequence[Progress]) -> None:
        """Write them with one statement, or one by one if Postgres refuses one of them."""
        try:
            await self._session.run(store.write_progress(self._worker, reports))
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _UNWRITABLE:
                raise
            if len(reports) > 1:
                for one in reports:
                    await self._write_progress([one])
            elif (token := reports[0].token) not in self._warned:  # The job may repeat it many times a second.
                self._warned.append(token)
                log.error("progress of attempt %d can't be written and is dropped: %s", token, db.summary(error))

    async def _write_steps(self) -> None:
        """Write the steps that wait. If the database is away they stay, and the next turn tries again."""
        async with self._writing_steps:
            self._step_waits.clear()
            for portion in _portions(list(self._steps.values())):
                await self._keep(self._steps, portion)
            if not self._steps:
                self._some_steps.clear()

    async def _write_locked(self, *, within_s: float = math.inf) -> None:
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
            if locked and (len(portion) == 1 or waiting is not self._steps):
                self._set_aside(portion[0])
            elif len(portion) > 1:
                for one in portion:
                    await self._keep(waiting, [one])
            else:
                refusal = BadArguments(f"the step can't be kept: {error.diag.message_primary}")
                self._answer(waiting, portion[0], Reply.refusing(portion[0].number, refusal))
            return
        for one in portion:
            self._answer(waiting, one, self._reply(one, kept))

    def _reply(self, one: _Asked, kept: dict[tuple[UUID, str], bytes | None]) -> Reply | None:
        key = (one.job.id, one.step.name)
        if key not in kept:
            return self._outbox.leases.refuse(one.child, one.job.token, one.number)
        return Reply(one.number, kept[key] or b"")

    def _set_aside(self, first: _Asked) -> None:
        """A lock holds up this step: all of its attempt wait, in their order. An older one must not be written last."""
        job = first.job
        if job.token not in self._locked:
            words = (
                "another transaction holds a lock that the step %s of job %s needs; `outlive doctor` names the session"
            )
            job_log.note("WARNING", words, first.step.name, job)
            waiting = self._locked[job.token] = _Waiting()
            for one in [one for one in self._steps.values() if one.job.token == job.token]:
                self._steps.take(one.key)
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
