"""What goes over the service connection: registration, heartbeats, leases, cancels, and what jobs ask for.

Nothing here may wait for the hot connection, nor the other way round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

import psycopg

from outlive import store, wire
from outlive.model import Ended
from outlive.protocol import Progress
from outlive.states import Outcome
from outlive.worker.bringing import bring
from outlive.worker.calls import Calls
from outlive.worker.line import Line

if TYPE_CHECKING:
    from outlive.worker.supervisor import Supervisor

CANCEL_LOOK_S = 0.5
PROGRESS_S = 0.2
SETTLE_S = 0.02
PORTION_BYTES = 2 * 1024 * 1024
MAX_LEFT_OUT = 1000
_UNWRITABLE = ("22", "54")
"""Errors of a value that Postgres does not take, and of one that is too large or too deep for it."""
BEGUN_S = 0.1

_log = logging.getLogger("outlive.worker")


def _if_not_completed(end: Ended) -> Ended:
    """How an attempt ended that was to end in its own transaction, and did not."""
    if end.outcome is not Outcome.SUCCEEDED:
        return end
    error = "ctx.complete was rolled back: the job's effects and its completion did not happen"
    return Ended(end.token, Outcome.FAILED, error=error, output=end.output)


def _portions(said: list[Progress]) -> Iterator[list[Progress]]:
    """Few large checkpoints at a time: each is copied several times on its way to the database."""
    portion: list[Progress] = []
    size_bytes = 0
    for one in said:
        portion.append(one)
        size_bytes += len(one.checkpoint or b"")
        if size_bytes > PORTION_BYTES:
            yield portion
            portion, size_bytes = [], 0
    if portion:
        yield portion


class Service:
    def __init__(self, supervisor: Supervisor, url: str) -> None:
        self.supervisor, self.url = supervisor, url
        self.calls = Calls(url)
        self.progress: dict[int, Progress] = {}
        """What attempts have said since it was written last: the latest word of each."""
        self.last_words: list[Ended] = []
        """Ends of attempts whose progress is not written yet: a checkpoint comes before the next attempt."""
        self.unsettled: list[Ended] = []
        """Attempts that have ended, or said they would, in a transaction of their own."""
        self.line = Line(url)
        self.run = self.line.run
        self._left_out: dict[int, None] = {}
        """Attempts whose progress could not be written, the oldest first."""
        self._hurry = asyncio.Event()
        self.changed = asyncio.Event()
        """What the next heartbeat says is news, and does not wait."""
        self.app_changed = False
        self._locked_sources: list[str] = []

    async def register(self) -> None:
        me = self.supervisor
        await self.run(
            store.register_worker(
                me.id,
                name=me.name,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                version=version("outlive"),
                queues=me.config.queues,
                slots=me.slots,
                secret=me.secret,
                formerly=me.formerly,
            )
        )
        await self._register_tasks()
        await self.run(store.quarantine_killers())

    async def heartbeat_once(self) -> None:
        """Say that this worker lives, whatever its jobs do."""
        me = self.supervisor
        if not await self.run(store.heartbeat(me.id, "draining" if me.stop_asked else "active", me.crew.trouble)):
            me.reaper.given_up = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(me.config.heartbeat_s):
                await self.changed.wait()
        self.changed.clear()

    async def _register_tasks(self) -> None:
        """Sources that are locked have their old limits until the lock is gone: this is repeated for them."""
        tasks = self.supervisor.crew.tasks
        declared = await self.run(store.register_sources(self.supervisor.crew.sources))
        await self.run(store.register_tasks(facts.limits for facts in tasks.values()))
        undeclared = await self.run(store.spread_limits(tasks))
        locked = declared + undeclared
        if locked and locked != self._locked_sources:
            _log.warning("another transaction has locked sources (%s): their new limits wait for it", ", ".join(locked))
        self._locked_sources = locked
        self.app_changed = bool(locked) or tasks is not self.supervisor.crew.tasks

    async def renew_once(self) -> None:
        """Keep what children are really working on; what is no longer ours is killed."""
        me = self.supervisor
        turns = me.turns
        tokens = {a.job.token: (child, a) for child in me.crew.busy for a in child.given if not child.exited}
        waiting = [a.job.token for a in me.crew.unplaced]
        unwritten = [end.token for end in (*turns.unreported, *self.last_words)]
        unwritten += [one.end.token for one in me.crew.aside.kept]
        started = time.monotonic()
        renewed = await self.run(store.renew(me.id, [*tokens, *waiting, *unwritten], lease_s=me.config.lease_s))
        for token in renewed:
            if token in turns.leases:
                turns.leases[token] = started + me.config.lease_s - me.config.renew_s
        missing = [token for token in tokens if token not in renewed and token in turns.leases]
        if missing:
            ended = await self.run(store.ended(missing))
            for token in missing:
                child, assignment = tokens[token]
                if assignment not in child.given:
                    continue  # It has ended meanwhile, and by us.
                if token in ended and not assignment.completing:
                    # If it has not begun, the watch ends it when it does: what is before it is not to blame.
                    _log.error("attempt %d was given up by others: its process is killed", token)
                    turns.leases.pop(token, None)
                    assignment.verdict = assignment.verdict or (Outcome.LOST, "given up by others")
                elif token not in ended and assignment.completing and token in turns.leases:
                    # Its own transaction holds its row, and while that goes on nobody else can take it.
                    turns.leases[token] = max(turns.leases[token], started + 2 * me.config.renew_s)
        await asyncio.sleep(me.config.renew_s)  # At the end: a renewal that failed is tried again at once.

    async def cancel_once(self) -> None:
        await asyncio.sleep(CANCEL_LOOK_S)
        me = self.supervisor
        if not me.crew.busy and not me.crew.unplaced:
            return
        asked = await self.run(store.cancels(me.id))
        if asked:
            me.crew.cancel(asked)
        for child in me.crew.busy:
            if child.given[0].job.token in asked and child.given[0].verdict is None:
                me.watch.end(child, Outcome.CANCELLED, "cancelled on request")

    async def begun_once(self) -> None:
        """Let the database know which of the jobs that were claimed ahead have begun, and are still under way."""
        await asyncio.sleep(BEGUN_S)
        me = self.supervisor
        if heads := me.crew.unmarked():
            await self.run(store.mark_begun(me.id, [one.job.token for one in heads]))
            for one in heads:
                one.marked = True

    async def progress_once(self) -> None:
        """What jobs have said since the last time, and what their app is like if it was imported anew."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROGRESS_S):
                await self._hurry.wait()
        self._hurry.clear()
        if self.app_changed:
            await self._register_tasks()
        await self._write_progress()

    async def _write_progress(self) -> None:
        """Write what was said, and only then let those end who have said it. More may come in meanwhile."""
        said, ends = dict(self.progress), list(self.last_words)
        for some in _portions([one for one in said.values() if self._is_sound(one)]):
            await self._write_some(some)
        self.progress = {token: one for token, one in self.progress.items() if one is not said.get(token)}
        del self.last_words[: len(ends)]
        for end in ends:
            self.supervisor.turns.end(end)

    async def _write_some(self, said: list[Progress]) -> None:
        """Together, or one by one if one of them can't be written: it costs no other."""
        try:
            await self.run(store.write_progress(self.supervisor.id, said))
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _UNWRITABLE:
                raise
            if len(said) == 1:
                self._leave_out(said[0], error)
                return
            for one in said:
                await self._write_some([one])

    def _is_sound(self, said: Progress) -> bool:
        try:
            if said.checkpoint is not None:
                wire.check(said.checkpoint)
        except wire.NotJson as error:
            self._leave_out(said, error)
            return False
        return True

    def _leave_out(self, said: Progress, error: Exception) -> None:
        """Say so once for each attempt: the job may repeat it many times a second."""
        if said.token not in self._left_out:
            self._left_out[said.token] = None
            _log.error("progress of attempt %d can't be written and is left out: %s", said.token, str(error).strip())
        while len(self._left_out) > MAX_LEFT_OUT:
            del self._left_out[next(iter(self._left_out))]

    def burden_bytes(self) -> int:
        """What jobs have said that waits here to be written, or to be asked."""
        return self.calls.size_bytes + sum(len(said.checkpoint or b"") for said in self.progress.values())

    def hear_progress(self, said: Progress) -> None:
        """Only the latest word is kept: a job that never stops talking must not fill our memory."""
        before = self.progress.get(said.token)
        self.progress[said.token] = said if before is None else said.after(before)

    def end_after_progress(self, end: Ended) -> bool:
        """Keep an attempt's end until what it said before is written; False if there is nothing to wait for."""
        if end.token not in self.progress:
            return False
        self.last_words.append(end)
        self._hurry.set()
        return True

    async def settle_once(self) -> None:
        """Read back what became of attempts that were to end in their own transaction; end the others ourselves.

        Never by the hot statement while that transaction may be open: it would wait for it.
        """
        await asyncio.sleep(SETTLE_S)
        if not self.unsettled:
            return
        ends = list(self.unsettled)
        me = self.supervisor
        done = await self.run(store.ended([end.token for end in ends]))
        free = await self.run(store.renew(me.id, [end.token for end in ends], lease_s=me.config.lease_s))
        have = {job.token for job in await self.run(store.adopt(me.id))}
        for end in ends:
            if end.token in done or end.token not in have:  # The latter: a standby took over that never heard of it.
                me.turns.leases.pop(end.token, None)
                with contextlib.suppress(psycopg.DataError):  # Its output is of less worth than its end.
                    await self.run(store.add_evidence(me.id, end))
            elif end.token in free:
                me.turns.end(_if_not_completed(end))
            else:
                continue
            self.unsettled.remove(end)

    async def say_goodbye(self, ends: list[Ended]) -> None:
        """Report everything that has ended, and give back the rest, also what was claimed and not heard of."""
        me = self.supervisor
        await self._write_progress()
        await self.run(store.count_outcomes(me.turns.outcomes, patient=False))
        me.turns.outcomes.clear()
        ends = [*me.turns.ended, *map(_if_not_completed, self.unsettled), *ends]
        for end in me.turns.bringing.pending.values():
            with contextlib.suppress(psycopg.Error):  # It runs again, and nothing of it was written.
                if (instead := await bring(self.run, me.id, end)) is not None:
                    ends.append(instead)
        known = {end.token for end in ends}
        for job in await self.run(store.adopt(me.id)):
            if job.token not in known:
                ends.append(Ended(job.token, Outcome.RELEASED, error="its worker stopped"))
        locked = await self.run(store.locked_ends(me.id, [end.token for end in ends]))
        if ends := [end for end in ends if end.token not in locked]:
            await self.run(store.end_and_claim(me.id, ends))
        await self.run(store.wake(me.id))
        await self.run(store.stop_worker(me.id))
