"""The main loop's heart: end what has ended, claim what may begin, in one statement, again and again.

After an unknown outcome (the connection broke while a statement was under way) it first reads what the database
has under this worker's name, adopts what it did not know of, and only then claims again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import struct
import time
from uuid import UUID

import psycopg

from outlive import db, kernel, store
from outlive.config import Config
from outlive.model import Claimed, Ended, Lane
from outlive.states import Outcome
from outlive.worker.bringing import Bringing, failed_for_good, refused
from outlive.worker.crew import Crew
from outlive.worker.lanes import Key, Lanes
from outlive.worker.line import Failures
from outlive.worker.looking import LOOK_S, Looking

IDLE_PAUSES_S = (0.005, 0.02, 0.08, 0.32, LOOK_S)
MAX_CLAIM = 512
GATHER_S = 0.005
CAREFUL_S = 5.0
"""How long after a lock was met the ends are looked at first, and those set aside that are locked."""
TELL_AGAIN_S = 0.5
MAX_OUTCOMES = 10_000

_log = logging.getLogger("outlive.worker")


class Turns:
    """Everything that goes over the hot connection."""

    def __init__(self, worker: UUID, config: Config, url: str) -> None:
        self.worker, self.config, self.url = worker, config, url
        self.lanes = Lanes()
        self.looking = Looking(self.lanes)
        self.ended: list[Ended] = []
        self.bringing = Bringing(worker, url, self._written, self.end)
        """Ends with which something else is written, and those that are locked."""
        self.outcomes: list[tuple[str, int | None, bool | None]] = []
        """How calls of sources went, that no source was told of yet."""
        self.leases: dict[int, float] = {}
        """The tokens that are ours, and until when (monotonic) we may trust that they are."""
        self.forgotten: set[int] = set()
        """Tokens whose jobs are being killed because the database has nothing of them: no end of theirs is written."""
        self.wake = asyncio.Event()
        self.closing = False
        self.making_room = False
        """Nothing is claimed until this worker is idle and can run a suspect alone."""
        self._suspect_last = False
        """What this worker claimed last was a suspect: other jobs that wait come before the next one."""
        self._rested_at = 0.0
        self._idle_looks = 0
        self._asleep = False
        """The database knows that this worker wants to be notified."""
        self._unsure = False
        self._careful_until = 0.0
        self._tell_at = 0.0
        self._failures = Failures()
        self._reconciled_at = time.monotonic()
        self._connection: db.AsyncConnection | None = None

    def end(self, end: Ended) -> None:
        if end.token in self.forgotten:
            self.forgotten.remove(end.token)
            self.leases.pop(end.token, None)
        elif end.records is not None or end.spawns is not None:
            self.bringing.add(end)
        else:
            self.ended.append(end)
        self.wake.set()

    def _written(self, token: int) -> None:
        self.leases.pop(token, None)

    @property
    def unreported(self) -> list[Ended]:
        """All that have ended and the database does not know of, as far as we have heard."""
        return [*self.ended, *self.bringing.pending.values()]

    def hear(self, end: Ended, source: str) -> None:
        """What the end of an attempt says about its source, however it is ended."""
        if source and end.source_ok is not None:
            self.outcomes.append((source, end.token, end.source_ok))

    def notify(self) -> None:
        """Something was put into the queue."""
        self.looking.notified = True
        self.wake.set()

    async def run_once(self, crew: Crew) -> None:
        """One turn. A connection on which turns keep failing in the same way is replaced."""
        try:
            await self._turn(crew)
        except psycopg.Error as error:
            if self._failures.repeated("turn", error):
                await self.close()
            raise
        self._failures.passed("turn")

    async def _turn(self, crew: Crew) -> None:
        """End and claim, or wait until there may be something to do."""
        self.wake.clear()
        if len(self.ended) < MAX_CLAIM // 2 and crew.content():
            await asyncio.sleep(GATHER_S)  # A statement for many costs little more than one for few.
        connection = await self._connected(crew)
        await self._look(connection, crew)
        await self._tell_sources(connection)
        offered, limit = self._offer(crew)
        if not self.ended and not offered:
            await self._rest(connection, crew)
            return
        sourced = offered if offered and offered[0].source else []
        if self.ended or not sourced:
            await self._end_and_claim(connection, crew, [] if sourced else offered, limit)
        if sourced:
            await self._claim_sourced(connection, crew, sourced, limit)

    async def _end_and_claim(self, connection: db.AsyncConnection, crew: Crew, offered: list[Lane], limit: int) -> None:
        started = time.monotonic()
        careful = started < self._careful_until
        if careful:
            await self._set_aside_locked(connection)
        ending, self.ended = self.ended, []
        self._unsure = True  # Until all that follows is known; being cancelled counts too.
        try:
            limit = limit if offered else 0
            begun = limit <= crew.capacity()  # More than that wait behind others.
            statement = store.end_and_claim(
                self.worker, ending, offered, limit=limit, lease_s=self.config.lease_s, begun=begun
            )
            turn = await db.arun(connection, statement)
        except (psycopg.DataError, struct.error) as error:
            self.ended += await self._writable(connection, ending, error)
            return
        except psycopg.errors.LockNotAvailable:
            self.ended, self._unsure = ending + self.ended, False
            self._careful_until = started + CAREFUL_S
            if careful:
                raise
            return
        except BaseException:
            self.ended = ending + self.ended
            raise
        for end in ending:
            self.leases.pop(end.token, None)
        for token in turn.stale:
            _log.warning("attempt %d was not ours any more: nothing of it was written", token)
        self.lanes.claimed(offered, turn.claimed, limit)
        await self._begin(connection, turn.claimed, crew, started)

    async def _claim_sourced(self, connection: db.AsyncConnection, crew: Crew, offered: list[Lane], limit: int) -> None:
        """Jobs of sources are claimed one source after the other, as far as each admits them."""
        started = time.monotonic()
        self._unsure = True
        statement = store.claim_sourced(self.worker, offered, limit=limit, lease_s=self.config.lease_s)
        admitted = await db.arun(connection, statement)
        self.lanes.wait(admitted.waits_s, time.monotonic())
        self.lanes.claimed(offered, admitted.claimed, limit)
        await self._begin(connection, admitted.claimed, crew, started)

    async def _tell_sources(self, connection: db.AsyncConnection) -> None:
        """How it went, while a probe is still known as such. What a locked source can't be told now waits for it."""
        if self.outcomes and time.monotonic() > self._tell_at:
            telling = list(self.outcomes)
            uncounted = await db.arun(connection, store.count_outcomes(telling, patient=False))
            left = [telling[n - 1] for n in uncounted] + self.outcomes[len(telling) :]
            self.outcomes = left[-MAX_OUTCOMES:]
            self._tell_at = time.monotonic() + (TELL_AGAIN_S if uncounted else 0.0)

    async def _set_aside_locked(self, connection: db.AsyncConnection) -> None:
        """Ends that wait for another transaction are written beside this connection, when they can be."""
        if locked := await db.arun(connection, store.locked_ends(self.worker, [end.token for end in self.ended])):
            _log.warning("%d ends wait for a lock that another transaction holds", len(locked))
            for end in [end for end in self.ended if end.token in locked]:
                self.ended.remove(end)
                self.bringing.add(end)

    async def _begin(self, connection: db.AsyncConnection, jobs: list[Claimed], crew: Crew, since: float) -> None:
        """Hand over what was claimed, with what earlier attempts have left, and without known killers."""
        jobs = await self._innocent(connection, jobs, crew)
        await self._fetch_checkpoints(connection, jobs, crew)
        self._adopt(jobs, since)
        self._unsure = False
        crew.take(sorted(jobs, key=lambda job: (job.priority, job.ready_at)))
        if jobs:
            self._idle_looks = 0
            self._suspect_last = jobs[0].alone_s > 0

    async def _innocent(self, connection: db.AsyncConnection, jobs: list[Claimed], crew: Crew) -> list[Claimed]:
        """Those whose task and arguments have not killed often enough under other ids. Only some tasks ask for this."""
        asked = [job.token for job in jobs if job.task in crew.tasks and crew.tasks[job.task].by_fingerprint]
        caught = await db.arun(connection, store.convict(self.worker, asked)) if asked else []
        return [job for job in jobs if job.id not in caught]

    async def _writable(self, connection: db.AsyncConnection, ending: list[Ended], error: Exception) -> list[Ended]:
        """One of these can't be written, whatever a child has said: end each by itself, and fail those that can't."""
        failed = []
        for n, end in enumerate(ending):
            try:
                await db.arun(connection, store.end_and_claim(self.worker, [end]))
            except (psycopg.DataError, struct.error):
                failed.append(refused(end, error))
            except BaseException:
                self.ended += failed + ending[n:]
                raise
            else:
                self.leases.pop(end.token, None)
        if not failed:
            raise error
        return failed

    async def _fetch_checkpoints(self, connection: db.AsyncConnection, jobs: list[Claimed], crew: Crew) -> None:
        """What an earlier attempt left; first attempts have nothing, and cost nothing."""
        if again := [job.id for job in jobs if job.attempt > 1]:
            found = await db.arun(connection, store.checkpoints(again))
            crew.checkpoints |= found

    def _adopt(self, jobs: list[Claimed], since: float) -> None:
        trusted_until = since + self.config.lease_s - self.config.renew_s
        for job in jobs:
            self.leases[job.token] = trusted_until

    def _offer(self, crew: Crew) -> tuple[list[Lane], int]:
        """Lanes for free slots: of fresh jobs, one for each slot, of one warm task, with some ahead, or of sources.

        If no slot is free, lanes of warm tasks whose children can be given some ahead.
        """
        if self.closing or self.making_room or not self.lanes or self._has_forgotten(crew) or self.bringing.too_much:
            return [], 0
        free = crew.capacity()
        room = {} if free else crew.room()

        def kind(key: Key) -> object:
            _, source, task, priority = key
            if not free:
                return "ahead" if not source and room.get(task, 0) > 0 else None
            if source:
                return ("source", priority)
            return ("warm", task) if crew.ahead(task) > 1 else "fresh"

        def quota(key: Key) -> int:
            return free * (1 if key[1] else crew.ahead(key[2])) if free else room.get(key[2], 0)

        if not free and not room:
            return [], 0
        lanes = self.lanes.offer(crew.tasks, kind, quota, time.monotonic())
        if not lanes:
            return [], 0
        return lanes, min(MAX_CLAIM, lanes[-1].quota if free else sum(room.values()))

    async def _look(self, connection: db.AsyncConnection, crew: Crew) -> None:
        """Find the lanes that have something: when told so, when idle, and as often as it costs little while busy."""
        if self._asleep and time.monotonic() - self._rested_at > LOOK_S:
            await db.arun(connection, store.wake(self.worker))  # Busy for a while: enqueuing need not notify us.
            self._asleep = False
        if self.closing or not (crew.capacity() or crew.room()):
            return
        tasks, queues = list(crew.tasks), self.config.queues
        due = self.looking.due() or self.making_room
        if due:
            await self.looking.look(connection, tasks, queues)
        if self.looking.sources_due():
            await self.looking.look_at_sources(connection, tasks, queues)
        if due and crew.idle() and not (self._suspect_last and self._offer(crew)[0]):
            await self._take_suspect(connection, crew)

    async def _take_suspect(self, connection: db.AsyncConnection, crew: Crew) -> None:
        """An idle worker takes suspects first, one at a time."""
        self._unsure = True
        started, queues, lease_s = time.monotonic(), self.config.queues, self.config.lease_s
        suspect = store.claim_suspect(self.worker, tasks=list(crew.tasks), queues=queues, lease_s=lease_s)
        claimed = await db.arun(connection, suspect)
        self.making_room = False  # It has come, or another worker has it.
        await self._begin(connection, claimed, crew, started)

    async def _rest(self, connection: db.AsyncConnection, crew: Crew) -> None:
        """Wait for something to do. Whoever goes to sleep says so first, and then looks once more."""
        pause_s = LOOK_S
        if crew.capacity():
            if not self._asleep:
                await db.arun(connection, store.sleep(self.worker))
                self._asleep = self.looking.notified = True
                self._rested_at = time.monotonic()
                return
            pause_s = IDLE_PAUSES_S[min(self._idle_looks, len(IDLE_PAUSES_S) - 1)]
            pause_s = min(pause_s, self.looking.pause_s())
            self._idle_looks += 1
            self._rested_at = time.monotonic() + pause_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self.wake.wait()

    async def _connected(self, crew: Crew) -> db.AsyncConnection:
        if self._connection is None or self._connection.broken or self._connection.closed:
            self._connection = await db.aconnect(self.url, hot=True, lock_s=db.HOT_LOCK_S)
            self._asleep = False  # A server that has crashed does not know any more who sleeps.
            self._reconciled_at = -math.inf  # And it may be another one, which never heard of what we have.
        if self._unsure or time.monotonic() - self._reconciled_at > self.config.renew_s:
            await self._reconcile(self._connection, crew)
        return self._connection

    async def _reconcile(self, connection: db.AsyncConnection, crew: Crew) -> None:
        """What the database has under our name is the truth about the statement that we did not hear the end of.

        Repeated with every renewal, because a server may still be at that statement when it is asked the first time.
        """
        started = time.monotonic()
        known = set(self.leases)
        have, unreadable = await self._read_all(connection)
        reported = {end.token for end in self.unreported}
        self.ended[:] = [end for end in self.ended if end.token in have]
        self.bringing.keep(have.keys())
        self._forget((known & self.leases.keys()) - have.keys() - reported, crew)
        for token in reported - have.keys():
            self.leases.pop(token, None)
        self.ended += unreadable
        known |= self.leases.keys() | reported
        unknown = [job for token, job in have.items() if token not in known]
        if self._unsure or unknown:
            known_ends = len(reported - have.keys())
            _log.info("looked up: %d reports were in already, %d claims are adopted", known_ends, len(unknown))
        self._reconciled_at = started
        await self._begin(connection, unknown, crew, started)

    async def _read_all(self, connection: db.AsyncConnection) -> tuple[dict[int, Claimed], list[Ended]]:
        """What the database has under our name, and the ends of those that can't be read: each costs only itself."""
        try:
            return {job.token: job for job in await db.arun(connection, store.adopt(self.worker))}, []
        except (psycopg.DataError, ValueError) as error:
            _log.error("a job that this worker has can't be read, and fails: %s", error)
        have: dict[int, Claimed] = {}
        unreadable: list[Ended] = []
        for token in await db.arun(connection, store.tokens_of(self.worker)):
            try:
                have |= {job.token: job for job in await db.arun(connection, store.adopt(self.worker, [token]))}
            except (psycopg.DataError, ValueError) as error:
                unreadable.append(failed_for_good(token, f"its row can't be read: {error}"))
        return have, unreadable

    def _forget(self, tokens: set[int], crew: Crew) -> None:
        """These are not ours: others gave them up, or a standby took over that had not heard of them.

        A standby gives the same tokens out again. So what has them is killed, no end of it is written, and nothing is
        claimed until it is gone.
        """
        for one in [one for one in crew.unplaced if one.job.token in tokens]:
            crew.unplaced.remove(one)
            self.leases.pop(one.job.token, None)
        for one in [one for child in crew.busy for one in child.given]:
            if one.job.token in tokens and not one.completing:
                _log.error("attempt %d is not known to the database any more: its process is killed", one.job.token)
                self.forgotten.add(one.job.token)
                one.verdict = one.verdict or (Outcome.LOST, "given up by others")

    def _has_forgotten(self, crew: Crew) -> bool:
        return bool(self.forgotten) and any(one.job.token in self.forgotten for c in crew.busy for one in c.given)

    def hang_up(self) -> None:
        if self._connection is not None and not self._connection.closed:
            kernel.hang_up(self._connection.fileno())

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
