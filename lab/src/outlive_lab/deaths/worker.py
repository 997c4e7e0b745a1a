"""A virtual worker: it registers, shows life, claims and ends like one. The task of a job says what its code does."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID, uuid5

import msgspec
import psycopg

from outlive import db, store
from outlive.model import Claimed, Ended, Turn
from outlive.protocol import Wait
from outlive.states import Outcome
from outlive.worker.fleet.registration import Identity
from outlive_lab.deaths.fleet import BUSY, GONE, Fleet, hang_up, post
from outlive_lab.deaths.history import Life, Try
from outlive_lab.deaths.plan import CONFIG, SLAYERS, SOURCED, UNSOURCED, Fate, Incident, Kind, Plan

NAP_S, NOTHING_S, DRAINING_S = 0.2, 0.02, 0.25
SPARED = 0.9
"""How many innocent suspects are spared when their worker is to die. A suspect that dies often waits for minutes."""
BEGINS = 0.7
"""How often queued jobs begin before their worker goes on, or dies."""
STALE = "OL002"


class Killed(Exception):
    """The worker is dead, and nothing of it goes on."""


class Worker:
    def __init__(self, fleet: Fleet, plan: Plan, formerly: UUID | None = None) -> None:
        self.fleet, self.plan = fleet, plan
        self.me = Identity("virtual", plan.slots, formerly)
        self.id = self.me.id
        self.life = fleet.history.lives[self.id] = Life(self.id, plan.fate)
        self.has: dict[int, Claimed] = {}
        self.rng = random.Random(plan.seed)
        self.live: db.AsyncConnection | None = None
        """The session that holds its lock."""
        self._locked_s = 0.0
        """When it last held its lock."""
        self.gone = asyncio.Event()
        """It has died, or stands still: another worker may take its place."""
        self._unsure = self._alone = False

    async def run(self) -> None:
        """Live, until the plan is done or all is over. The caller lets it die."""
        await self._begin()
        left = self.plan.turns
        while left > 0 or (self.fleet.draining and not self.fleet.over):
            await self._turn()
            left -= 1
            if left == 0 and self._alone and self.rng.random() < SPARED:
                left = 1

    async def _begin(self) -> None:
        me = self.me
        self.life.signed_s = time.time()
        await self.fleet.surely(
            store.register_worker(
                me.id, name=me.name, hostname="virtual", pid=1, version="0", queues=None, slots=me.slots,
                secret=me.secret, formerly=me.formerly, config=CONFIG,
            )
        )  # fmt: skip
        if self.plan.fate is Fate.UNBORN and not self.fleet.draining:
            self.die()
        await self._hold_lock()

    def die(self, fate: Fate | None = None) -> None:
        self.fleet.history.died(self.life, fate)
        raise Killed

    # Signs of life

    async def _hold_lock(self) -> None:
        while True:
            self.live = await self.fleet.connect()
            with contextlib.suppress(*GONE):
                if await db.arun(self.live, store.hold_liveness_lock(self.id, secrets.randbits(63))):
                    self._locked_s = time.time()
                    return
            await hang_up(self.live)

    async def _hold_lock_again(self) -> None:
        """As soon as it notices that its session is gone."""
        self.life.cuts.append(cut := [self._locked_s, float("inf")])
        if self.live is not None:
            await hang_up(self.live)
        await self._hold_lock()
        cut[1] = time.time()

    def _has_lock(self) -> bool:
        if self.live is None or self.live.closed:
            return False
        now = time.time()
        try:
            self.live.pgconn.consume_input()
        except psycopg.OperationalError:
            return False
        self._locked_s = now
        return not self.live.closed

    async def _show_signs(self) -> None:
        """Send a heartbeat and renew the leases, once a second."""
        if (now := time.time()) - self.life.signed_s < CONFIG.heartbeat_s:
            return
        if not await self.fleet.run(store.heartbeat(self.id, "active")):
            self.life.declared = True
            raise Killed
        self.life.signed_s = now
        for token in await self.fleet.run(store.renew(self.id, self.has, lease_s=CONFIG.lease_s)):
            self.fleet.history.tries[token].renewed_s = now

    # Turns

    async def _turn(self) -> None:
        try:
            if self.plan.incident is not None and self.rng.random() < 0.5:
                await self._suffer(self.plan.incident)
            if not self._has_lock():
                await self._hold_lock_again()
            if self._unsure:
                await self._reconcile()
            await self._show_signs()
            await self._claim([end for job in list(self.has.values()) if (end := await self.work(job)) is not None])
        except BUSY:
            await asyncio.sleep(NOTHING_S)
        except GONE:
            self.life.unsure = self._unsure = True

    async def _claim(self, ends: list[Ended]) -> None:
        """End these attempts, and claim as many jobs as there are free slots; or one suspect."""
        queued = self.plan.queued
        if not self.has and self.fleet.suspects and self.rng.random() < 0.4:
            claimed = await self.fleet.run(store.claim_suspect(self.id, tasks=list(Kind), lease_s=CONFIG.lease_s))
            queued, self._alone = False, bool(claimed)
        else:
            self.note_sent(ends)
            turn = await self.fleet.run(self.end_and_claim(ends, sourced=self.rng.random() < 0.2, queued=queued))
            self.note_answers(ends, turn.refused)
            claimed, self._alone = turn.claimed, False
        self.take(claimed, queued=queued)
        self._be_slain()
        await asyncio.sleep(self.plan.pause_s if claimed else DRAINING_S if self.fleet.draining else NOTHING_S)
        if queued and self.has and self.rng.random() < BEGINS:
            for token in await self.fleet.run(store.mark_begun(self.id, self.has)):
                self.fleet.history.tries[token].begun = True

    def end_and_claim(
        self, ends: Sequence[Ended], *, sourced: bool = False, queued: bool = False
    ) -> db.Statement[Turn]:
        lanes = SOURCED if sourced else self.rng.sample(UNSOURCED, len(UNSOURCED))
        room = self.plan.slots - len(self.has) + len(ends)
        return store.end_and_claim(
            self.id, ends, lanes, limit=room, lease_s=CONFIG.lease_s, begun=sourced or not queued
        )

    def take(self, claimed: Iterable[Claimed], *, queued: bool = False) -> None:
        for job in claimed:
            begun = not queued or job.attempt > 1 or bool(job.source)
            self.fleet.history.tries.setdefault(job.token, Try(job.id, self.id, begun))
            self.has[job.token] = job

    def note_sent(self, ends: Iterable[Ended]) -> None:
        for end in ends:
            self.fleet.history.tries[end.token].sent.add(str(end.outcome))

    def note_answers(self, ends: Iterable[Ended], refused: Iterable[int] = ()) -> None:
        for end in ends:
            del self.has[end.token]
            if end.token in refused:
                self.fleet.history.seen["stale writes refused"] += 1
            else:
                self.fleet.history.tries[end.token].accepted = str(end.outcome)

    async def _suffer(self, incident: Incident) -> None:
        """Survive something."""
        self.fleet.history.seen[incident] += 1
        if incident is Incident.RECONNECTS and self.live is not None:
            await self.fleet.terminate(self.live)
            await self._hold_lock_again()
        elif incident is Incident.RECONCILES:
            self.life.unsure = self._unsure = True
            async with self.fleet.hand() as hand:
                post(hand, self.end_and_claim([]))
                await self.fleet.cut(hand)

    async def _reconcile(self) -> None:
        """Read what the database has under this worker, after an answer was lost."""
        held = await self.fleet.run(store.held_attempts(self.id))
        self.has = {}
        self.take(held)
        self._unsure = False
        self._be_slain()

    def _be_slain(self) -> None:
        if any(Kind(job.task) in SLAYERS for job in self.has.values()):
            self.die(Fate.BY_JOB)

    # The code of jobs

    async def work(self, job: Claimed) -> Ended | None:
        """Run the code of a job. Its end, unless that is written already, or the job waits."""
        match Kind(job.task):
            case Kind.EFFECT:
                await self._with_effect(job)
                return None
            case Kind.SPAWNER:
                await self._spawn(job)
                return None
            case Kind.SLEEPER if not await self._sleep(job):
                return None
            case Kind.FAILING if job.failures == 0:
                return Ended(job.token, Outcome.FAILED, error="as planned")
            case Kind.CRASHER:
                return Ended(job.token, Outcome.CRASHED, error="as planned", signal="SIGKILL", killed=True)
        return Ended(job.token, Outcome.RELEASED if self.rng.random() < 0.03 else Outcome.SUCCEEDED)

    async def _with_effect(self, job: Claimed) -> None:
        """Complete a job in its own transaction, together with an effect."""
        async with self.fleet.hand() as hand:
            with self.ending(job):
                async with hand.transaction():
                    await self.write_effect(hand, job)

    async def write_effect(self, hand: db.AsyncConnection, job: Claimed) -> None:
        await hand.execute("insert into outlive_deaths.effects values (%s)", [job.id])
        await hand.execute("select outlive.complete(%s, %s)", [job.token, self.me.secret_of(job.token)])

    async def _spawn(self, job: Claimed) -> None:
        """Complete a job together with a record and another job."""
        spawned = {"id": str(uuid5(job.id, "spawned")), "task": str(Kind.PLAIN), "args": {}}
        record = {"scope": "deaths", "key": str(job.id), "data": {}, "strength": 1}
        end = Ended(job.token, spawns=msgspec.json.encode([spawned]), records=msgspec.json.encode([record]))
        with self.ending(job):
            await self.fleet.run(store.write_end(self.id, end))

    async def _sleep(self, job: Claimed) -> bool:
        """Whether the job's wait is over. It is suspended otherwise."""
        try:
            wait = Wait(job.token, "nap", after_s=NAP_S)
            waited = await self.fleet.run(store.suspend(self.id, wait, may_park=False))
        except psycopg.Error as error:
            if error.sqlstate != STALE:
                raise
            self._refused(job)
            return False
        if waited.outcome == "suspended":
            del self.has[job.token]
        return waited.outcome == "over"

    @contextlib.contextmanager
    def ending(self, job: Claimed) -> Iterator[None]:
        """What is done here succeeds with the attempt, or is refused with it."""
        self.note_sent([Ended(job.token)])
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate != STALE:
                raise
            self._refused(job)
        else:
            self.note_answers([Ended(job.token)])

    def _refused(self, job: Claimed) -> None:
        self.note_answers([Ended(job.token)], [job.token])
