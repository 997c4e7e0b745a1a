"""How a worker stops: jobs may end within the grace, then all processes are killed, and the worker says goodbye.

A database that does not answer delays nothing: jobs without a reported end return when their leases expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg

from outlive import store
from outlive.model import Ended
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.ending.outbox import Outbox, unless_completed, write_end
from outlive.worker.loops import RETRY_S
from outlive.worker.processes.zygotes import Zygotes
from outlive.worker.session import Session

if TYPE_CHECKING:
    from outlive.worker.services import Services

LOOK_S = 0.02
TERM_BEFORE_END_S = 5.0
GOODBYE_S = 2.0
"""How long a silent database may delay the end, once for the statements under way and once for the goodbye."""
CANCEL_S = 0.5
AT_ONCE = 400
"""How many ends one statement writes."""
TRIES = 10
TRY_AGAIN_S = 0.05
"""Ends that are locked are tried again for half a second: another worker may be counting an end of the same batch. What
is still locked then is left to the reapers, and the job runs again."""


class Stop:
    """The stop of a worker: how often it was requested, and when the grace is over."""

    def __init__(self) -> None:
        self.requests = 0
        self._end_by = 0.0

    def request(self, grace_s: float) -> None:
        self.requests += 1
        self._end_by = time.monotonic() + grace_s

    async def let_jobs_end(self, services: Services) -> None:
        """Claim nothing more, tell jobs to stop, let them finish; SIGTERM near the end of the grace."""
        sooner = "; another Ctrl-C or SIGTERM stops it within 5 s" if services.slots.busy else ""
        log.info("Worker %s stops: %s%s", services.me.id, services.running, sooner)
        services.stop_jobs()
        end_by = self._end_by
        term_at = end_by - TERM_BEFORE_END_S
        await _while_it_works(services, until=lambda: self.requests > 1 or time.monotonic() > term_at)
        for child in services.slots.busy:
            child.stop()
        kill_at = min(end_by, time.monotonic() + TERM_BEFORE_END_S)
        await _while_it_works(services, until=lambda: time.monotonic() > kill_at)

    async def finish(self, zygotes: Zygotes, services: Services | None, loops: Sequence[asyncio.Task[None]]) -> None:
        """Kill all processes, end the loops of the services, and give jobs back."""
        left = services.slots.end() if services else []
        zygotes.end()
        for loop in loops:
            loop.cancel()
        told = [asyncio.create_task(_tell(services))] if services and self.requests else []
        await zygotes.gone()
        if services is None:
            return
        await _cut_off([*loops, *told], services, after_s=GOODBYE_S)
        ends = [Ended(one.job.token, Outcome.RELEASED, error="its worker stopped") for one in left]
        if not await self._say_goodbye(services, ends) and loops:  # Without loops it never began, and has no job.
            log.error("the database does not answer: jobs without a reported end return when their leases expire")
        await services.alerts.finish(GOODBYE_S)
        with contextlib.suppress(Exception):
            await services.close()
        log.info("Worker %s stopped", services.me.id)

    async def _say_goodbye(self, services: Services, ends: list[Ended]) -> bool:
        """Try until the grace is over if the server refuses connections: it restarts. Try once if it is silent."""
        while True:
            goodbye = asyncio.create_task(services.say_goodbye(ends))
            await _while_it_answers(goodbye, services)
            await _cut_off([goodbye], services)
            if goodbye.cancelled() or not goodbye.done():
                return False
            if goodbye.exception() is None:
                return True
            if self.requests != 1 or time.monotonic() > self._end_by:
                return False
            await asyncio.sleep(RETRY_S[0])


async def _tell(services: Services) -> None:
    """Tell the database of the stop, if no heartbeat had the time: a SIGKILL may come before all processes are gone."""
    with contextlib.suppress(psycopg.Error):
        await services.heartbeat.beat()


async def _while_it_works(services: Services, *, until: Callable[[], bool]) -> None:
    while not until() and services.has_work_left():  # noqa: ASYNC110  # No event tells all that this looks at.
        await asyncio.sleep(LOOK_S)


async def _while_it_answers(task: asyncio.Task[None], services: Services) -> None:
    """Wait for a task, however many statements it has, until the database leaves one unanswered."""
    answers = -1
    while not task.done() and services.answers > answers:
        answers = services.answers
        await asyncio.wait([task], timeout=GOODBYE_S)


async def _cut_off(tasks: Sequence[asyncio.Task[None]], services: Services, *, after_s: float = 0.0) -> None:
    """Tasks that take longer wait for a silent server: cut their connections and cancel them."""
    _, late = await asyncio.wait(tasks, timeout=after_s) if tasks else (set(), set())
    if late:
        services.hang_up()
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=CANCEL_S)


async def say_goodbye(
    worker: UUID, session: Session, left: list[Ended], outbox: Outbox, progress: ProgressWriter
) -> None:
    """The last statements of a worker: write every end, and give back its jobs. `session` waits for no lock."""
    await progress.write_last()
    await outbox.sources.write(session)
    ends = [*outbox.waiting, *map(unless_completed, outbox.completions.pending), *left]
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
