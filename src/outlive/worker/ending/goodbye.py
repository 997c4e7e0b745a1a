"""The last statements of a worker that stops: it writes every end, and gives back the jobs that it still has."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import psycopg

from outlive import store
from outlive.model import Ended
from outlive.states import Outcome
from outlive.worker.attempts.completions import Completions, unless_completed
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.claiming.sources import SourceOutcomes
from outlive.worker.ending.outbox import Outbox
from outlive.worker.ending.slow_ends import write_end
from outlive.worker.session import Session

AT_ONCE = 400
"""How many ends one statement writes."""
TRIES = 10
TRY_AGAIN_S = 0.05
"""Ends that are locked are tried again for half a second: another worker may be counting an end of the same batch. What
is still locked then is left to the reapers, and the job runs again."""


async def say_goodbye(
    worker: UUID,
    session: Session,
    left: list[Ended],
    *,
    outbox: Outbox,
    progress: ProgressWriter,
    completions: Completions,
    sources: SourceOutcomes,
) -> None:
    """Each statement must be answered soon, see `Stop._say_goodbye`: `session` waits for no lock."""
    await progress.write()
    await sources.write(session)
    ends = [*outbox.waiting, *map(unless_completed, completions.pending), *left]
    for end in outbox.slow.pending.values():
        with contextlib.suppress(psycopg.Error):  # Nothing is written, and the job runs again.
            if (failure := await write_end(session, worker, end, outbox.leases)) is not None:
                ends.append(failure)
    known = {end.token for end in ends}
    held = await session.run(store.tokens_of(worker))  # Also claims whose answer never arrived.
    ends += [Ended(token, Outcome.RELEASED, error="its worker stopped") for token in held if token not in known]
    for _ in range(TRIES):
        locked = await session.run(store.locked_ends(worker, [end.token for end in ends]))
        free = [end for end in ends if end.token not in locked]
        for first in range(0, len(free), AT_ONCE):
            await _end(session, worker, free[first : first + AT_ONCE])
        ends = [end for end in ends if end.token in locked]
        if not ends:
            break
        await asyncio.sleep(TRY_AGAIN_S)
    await session.run(store.stop_worker(worker))


async def _end(session: Session, worker: UUID, ends: list[Ended]) -> None:
    """Write ends; one by one if another transaction has locked what follows from one of them. That one is left."""
    try:
        await session.run(store.end_and_claim(worker, ends))
    except psycopg.errors.LockNotAvailable:
        for end in ends:
            with contextlib.suppress(psycopg.errors.LockNotAvailable):
                await session.run(store.end_and_claim(worker, [end]))
