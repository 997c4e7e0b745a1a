"""How virtual workers end: killed by a cut session, or declared dead while they live on and write too late."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import psycopg

from outlive import db, store
from outlive.model import Claimed, Ended
from outlive.states import Outcome
from outlive_lab.deaths.fleet import GONE, hang_up, post
from outlive_lab.deaths.plan import CONFIG, SLAYERS, UNSOURCED, Fate, Kind
from outlive_lab.deaths.worker import Killed, Worker

LATE_S = 0.5
SHOT_S = 0.004


async def live_and_die(worker: Worker) -> None:
    with contextlib.suppress(Killed):
        try:
            await worker.run()
            await _end(worker, Fate.STOPS if worker.fleet.draining else worker.plan.fate)
        finally:
            if worker.live is not None:
                await hang_up(worker.live)
            worker.gone.set()
    if worker.life.declared:  # It lives, and begins again under another id.
        plan = replace(worker.plan, fate=Fate.POOLED, turns=1, incident=None)
        await live_and_die(Worker(worker.fleet, plan, formerly=worker.id))


async def _end(worker: Worker, fate: Fate) -> None:
    worker.life.fate = fate
    assert worker.live is not None
    match fate:
        case Fate.STOPS:
            await _stop(worker)
        case Fate.BACKEND:
            worker.fleet.history.died(worker.life)
            await worker.fleet.terminate(worker.live)
        case Fate.POOLED:
            worker.fleet.history.died(worker.life)
            live, worker.live = worker.live, None
            await worker.fleet.pool(live)
        case Fate.TOLD:
            wanted = await worker.fleet.surely(store.heartbeat(worker.id, "draining"))
            worker.life.told = bool(wanted)
        case Fate.CUT | Fate.SHOT:
            await _in_statement(worker, shot=fate is Fate.SHOT)
        case Fate.OPEN | Fate.COMMIT:
            await _in_transaction(worker, commit=fate is Fate.COMMIT)
        case Fate.LATE | Fate.FROZEN | Fate.FROZEN_OPEN:
            await _late(worker, fate)
    if fate is not Fate.STOPS:
        worker.die()


async def _stop(worker: Worker) -> None:
    """Give back all jobs and stop, as a worker does that is told to. What is left is released by others."""
    ends = [Ended(token, Outcome.RELEASED) for token in worker.has]
    worker.note_sent(ends)
    with contextlib.suppress(*GONE):
        turn = await worker.fleet.run(store.end_and_claim(worker.id, ends))
        worker.note_answers(ends, turn.refused)
    await worker.fleet.surely(store.stop_worker(worker.id))


def _ends(worker: Worker) -> list[Ended]:
    """The ends of those of its jobs that can succeed."""
    return [Ended(job.token) for job in worker.has.values() if _harmless(job)]


def _harmless(job: Claimed) -> bool:
    return Kind(job.task) not in SLAYERS | {Kind.CRASHER, Kind.EFFECT}


async def _in_statement(worker: Worker, *, shot: bool) -> None:
    ends = _ends(worker)
    worker.note_sent(ends)
    worker.life.unsure = True
    async with worker.fleet.hand() as hand:
        post(hand, worker.end_and_claim(ends))
        if shot:
            await asyncio.sleep(worker.rng.random() * SHOT_S)
            await worker.fleet.terminate(hand)
        await _vanish(worker, hand)


async def _in_transaction(worker: Worker, *, commit: bool) -> None:
    """Cut the transaction in which a job completes itself, before or in its commit."""
    for job in [job for job in worker.has.values() if Kind(job.task) is not Kind.CRASHER][:1]:
        worker.note_sent([Ended(job.token)] if commit else [])
        with contextlib.suppress(psycopg.Error):
            async with worker.fleet.hand() as hand:
                await hand.execute("begin")
                await worker.write_effect(hand, job)
                post(hand, b"commit" if commit else b"rollback")
                await _vanish(worker, hand)


async def _vanish(worker: Worker, hand: db.AsyncConnection) -> None:
    worker.fleet.history.died(worker.life)
    if worker.live is not None:
        await hang_up(worker.live)
    await worker.fleet.cut(hand)


async def _late(worker: Worker, fate: Fate) -> None:
    """Lose the lock and notice nothing, or stand still in a statement or a transaction. Others declare the worker dead.
    Then it goes on where it was."""
    fleet, ends, claimed, begun = worker.fleet, _ends(worker), [], None
    async with fleet.hand(kept=True) as own:
        try:
            if fate is Fate.LATE and worker.live is not None:
                fleet.history.died(worker.life)
                await fleet.terminate(worker.live)
            elif fate is Fate.FROZEN:
                worker.note_sent(ends)
                turn = await db.arun(own, worker.end_and_claim(ends))
                worker.note_answers(ends, turn.refused)
                claimed = turn.claimed
            elif begun := next((job for job in worker.has.values() if Kind(job.task) is not Kind.CRASHER), None):
                await own.execute("begin")
                await worker.write_effect(own, begun)
        except psycopg.Error:
            worker.life.unsure, begun = True, None
            with contextlib.suppress(*GONE):
                await own.rollback()
        fleet.history.died(worker.life)
        worker.gone.set()
        await fleet.declared_dead(worker.id)
        await asyncio.sleep(worker.rng.random() * LATE_S)
        worker.take(claimed)
        try:
            if begun is not None:
                with worker.ending(begun):
                    await own.execute("commit")
            await _write_late(worker, own)
        except GONE:
            worker.life.unsure = True
        worker.life.declared = True


async def _write_late(worker: Worker, own: db.AsyncConnection) -> None:
    """All that a worker writes, by one that was declared dead."""
    wrong, me = worker.fleet.history.wrong, str(worker.id)
    if await db.arun(own, store.heartbeat(worker.id, "active")):
        wrong.append(("stale write accepted", me, "a heartbeat of a worker that was declared dead"))
    await db.arun(own, store.renew(worker.id, worker.has, lease_s=CONFIG.lease_s))
    if await db.arun(own, store.claim_suspect(worker.id, tasks=list(Kind), lease_s=CONFIG.lease_s)):
        wrong.append(("stale write accepted", me, "a claim of a suspect by a worker that was declared dead"))
    for job in list(worker.has.values()):
        if Kind(job.task) is Kind.EFFECT:
            await worker.work(job)
    ends = _ends(worker)
    worker.note_sent(ends)
    turn = await db.arun(own, store.end_and_claim(worker.id, ends, UNSOURCED, limit=4, lease_s=CONFIG.lease_s))
    worker.note_answers(ends, turn.refused)
    if turn.claimed:
        wrong.append(("stale write accepted", me, "a claim by a worker that was declared dead"))
