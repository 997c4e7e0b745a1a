"""The outbox: how attempts ended, until the database has it.

Most ends wait here until the claim loop writes them, with the claim of the next jobs. Those that could delay the others
are slow: they carry records, spawned jobs or new arguments, or another transaction has locked their rows. Each of these
is written by itself, on a session of a small pool. An end that Postgres will never accept becomes a failure that says
why.

An attempt that ends in the job's own transaction, by `ctx.complete`, is a completion: the worker reads back whether
that was committed. It never ends such an attempt by the hot statement while the transaction may be open: the statement
would wait for its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from uuid import UUID

import msgspec
import psycopg

from outlive import db, store
from outlive.model import Claimed, Ended
from outlive.states import Outcome
from outlive.worker import log
from outlive.worker.attempts.leases import Leases
from outlive.worker.claiming.lanes import Lanes
from outlive.worker.claiming.room import Offer
from outlive.worker.session import LARGE_BYTES, Session, Share
from outlive.worker.wakeup import Wakeup

AT_ONCE = 3
"""How many slow ends are written at once, if there are as many sessions. Those that could not be written at the first
try are written one by one."""
AGAIN_S = 1.0
"""How long an end that could not be written waits before the next try."""
LARGE_AGAIN_S = 0.05
"""The same for a large end while another one is being written."""
CAREFUL_S = 5.0
"""How long after a lock timeout the worker looks for locked rows before it writes ends."""
EVERY_S = 0.02
"""How often completions are read back."""
MAX_OUTCOMES = 10_000
OUTCOMES_AGAIN_S = 0.5
"""How long the outcomes of a source wait that another transaction has locked."""
TRIES = 3
"""How often the same error may repeat before the attempt fails. Locks and an absent database don't count."""
MAX_ERROR_CHARS = 1000
TOO_MUCH_BYTES = 32 << 20
"""While this much waits to be written, the worker claims nothing: jobs may end faster than the database writes."""
_NOT_HELD = "OL002"
_PERMANENT = ("OL", "54")
"""Classes of errors that would repeat: outlive's own, and exceeded limits of Postgres."""
_SPAWN_REFUSED = ("OL001", "OL003")
"""What enqueue raises for a job: its dedupe key is taken, or it makes no sense."""
_PASSING = ("08", "25", "40", "53", "55", "57P", "58")
"""Classes of errors that pass by themselves, however long that takes."""


class Outbox:
    def __init__(self, worker: UUID, session: Session, slow: Share, leases: Leases, wake: Wakeup) -> None:
        self._worker, self.leases, self._wake = worker, leases, wake
        self.waiting: list[Ended] = []
        self.slow = SlowEnds(worker, slow, leases, self.put)
        self.completions, self.sources = Completions(worker, session, self), SourceOutcomes()
        self._careful_until = 0.0

    def put(self, end: Ended) -> None:
        if self.leases.disowned(end.token):
            self.leases.fenced += 1
            self.leases.drop(end.token)
        elif end.plain:
            self.waiting.append(end)
        else:
            self.slow.add(end)
        self._wake.set()

    @property
    def unwritten(self) -> list[Ended]:
        """Every end that is not known to be in the database."""
        return [*self.waiting, *self.slow.pending.values()]

    async def write_and_claim(self, session: Session, lanes: Lanes, offer: Offer) -> list[Claimed]:
        """Write the ends that wait, and claim what is offered, with one statement.

        If Postgres refuses it because of an end, its ends are written in another way: one bad or locked end stops
        neither the others nor the claims.
        """
        if time.monotonic() < self._careful_until:
            await self._set_locked_aside(session)
        ends, self.waiting = self.waiting, []
        lease_s, begun = self.leases.lease_s, offer.begun
        try:
            turn = await session.run(
                store.end_and_claim(self._worker, ends, offer.lanes, limit=offer.limit, lease_s=lease_s, begun=begun)
            )
        except BaseException as error:
            if not ends or not self._refused(ends, error):
                self.waiting = ends + self.waiting  # If they were written, reconciliation drops them.
                raise
            return []
        for end in ends:
            self.leases.drop(end.token)
            if end.token in turn.refused:
                self.leases.note_refused_end(end)
        lanes.wait(turn.waits_s, time.monotonic())
        lanes.claimed(offer.lanes, turn.claimed, offer.limit)
        return turn.claimed

    async def _set_locked_aside(self, session: Session) -> None:
        """Others don't wait for the ends whose rows are locked."""
        tokens = [end.token for end in self.waiting]
        if tokens and (locked := await session.run(store.locked_ends(self._worker, tokens))):
            log.warning("%d results wait for a lock that another transaction holds", len(locked))
            for end in self.waiting:
                if end.token in locked:
                    self.slow.add_locked(end)
            self.waiting = [end for end in self.waiting if end.token not in locked]

    def _refused(self, ends: list[Ended], error: BaseException) -> bool:
        """Write these ends in another way, if Postgres has answered that it did not write them because of one."""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            careful, self._careful_until = time.monotonic() < self._careful_until, time.monotonic() + CAREFUL_S
            if not careful:  # The row of one of them is locked: the next turn sets those aside.
                self.waiting = ends + self.waiting
                return True
            # What follows from one of them is locked.
        elif getattr(error, "sqlstate", "") is not None and never_accepted(error):
            log.warning("Postgres refused a batch of %d results; writing them one by one: %s", len(ends), error)
        else:
            return False
        for end in ends:
            self.slow.add(end)
        return True

    def keep(self, tokens: Collection[int]) -> None:
        """Drop the ends of attempts that the database no longer has under this worker."""
        self.waiting = [end for end in self.waiting if end.token in tokens]
        self.slow.keep(tokens)


class _Tries(msgspec.Struct):
    """What is known of an end that could not be written at the first try."""

    sqlstate: str = ""
    times: int = 0
    unsure: bool = False
    """The outcome of the last statement is unknown: it may have written the end."""


class SlowEnds:
    def __init__(self, worker: UUID, sessions: Share, leases: Leases, fail: Callable[[Ended], None]) -> None:
        self._worker, self._sessions, self._leases, self._fail = worker, sessions, leases, fail
        self.pending: dict[int, Ended] = {}
        """Ends that are not written yet, by token."""
        self._ready: asyncio.Queue[int] = asyncio.Queue()
        self._ready_again: asyncio.Queue[int] = asyncio.Queue()
        self._one_large = asyncio.Lock()
        self._tries: dict[int, _Tries] = {}

    def add(self, end: Ended) -> None:
        self.pending[end.token] = end
        self._ready.put_nowait(end.token)

    def add_locked(self, end: Ended) -> None:
        self.pending[end.token], self._tries[end.token] = end, _Tries()
        self._ready_again.put_nowait(end.token)

    def keep(self, tokens: Collection[int]) -> None:
        """Drop all other ends: they are written already, or their attempts belong to another worker."""
        for token in [token for token in self.pending if token not in tokens]:
            self._forget(token)

    @property
    def too_much(self) -> bool:
        return bool(self.pending) and sum(map(_size, self.pending.values())) > TOO_MUCH_BYTES

    @property
    def under_way(self) -> bool:
        """Whether an end is being written, or is about to be."""
        return any(token not in self._tries for token in self.pending)

    async def run_once(self) -> None:
        """Write one end. Several of these run at once, but one large end at a time."""
        await self._write_next(self._ready)

    async def run_late_once(self) -> None:
        """Try again to write an end that could not be written."""
        await self._write_next(self._ready_again)

    async def _write_next(self, ready: asyncio.Queue[int]) -> None:
        token = await ready.get()
        end = self.pending.get(token)
        if end is None:
            return
        large = _size(end) > LARGE_BYTES
        if large and self._one_large.locked():
            asyncio.get_running_loop().call_later(LARGE_AGAIN_S, ready.put_nowait, token)
            return  # Small ends must not wait for it.
        try:
            turn = self._one_large if large else contextlib.nullcontext()
            async with turn, self._sessions.take(size_bytes=_size(end)) as session:
                await self._write(session, end)
        except psycopg.Error as error:
            self._try_again_or_fail(end, error)
        except BaseException:
            self._tries.setdefault(token, _Tries()).unsure = True
            ready.put_nowait(token)
            raise

    async def _write(self, session: Session, end: Ended) -> None:
        tries = self._tries.get(end.token)
        if tries and tries.unsure and end.token in await session.run(store.ended([end.token])):
            failure = None  # The end was written, and its answer was lost.
        else:
            failure = await write_end(session, self._worker, end, self._leases)
        self._forget(end.token)
        if failure is None:
            self._leases.drop(end.token)
        else:
            self._fail(failure)

    def _try_again_or_fail(self, end: Ended, error: psycopg.Error) -> None:
        tries = self._tries.setdefault(end.token, _Tries())
        state = error.sqlstate or ""
        if db.transient(error):
            tries.unsure = True
        elif not state.startswith(_PASSING):
            tries.sqlstate, tries.times = state, tries.times + 1 if tries.sqlstate == state else 1
            if tries.times >= TRIES:
                self._forget(end.token)
                self._fail(refused(end, error))
                return
        level, ready = (logging.DEBUG, self._ready) if db.lost(error) else (logging.WARNING, self._ready_again)
        log.log(level, "the end of attempt %d can't be written yet: %s", end.token, db.summary(error))
        asyncio.get_running_loop().call_later(AGAIN_S, ready.put_nowait, end.token)

    def _forget(self, token: int) -> None:
        self.pending.pop(token, None)
        self._tries.pop(token, None)


class Completions:
    def __init__(self, worker: UUID, session: Session, outbox: Outbox) -> None:
        self._worker, self._session, self._outbox, self._leases = worker, session, outbox, outbox.leases
        self.pending: list[Ended] = []
        self._some = asyncio.Event()

    def expect(self, end: Ended) -> None:
        self.pending.append(end)
        self._some.set()

    async def run_once(self) -> None:
        await self._some.wait()
        await asyncio.sleep(EVERY_S)
        ends = list(self.pending)
        tokens = [end.token for end in ends]
        committed = await self._session.run(store.ended(tokens))
        unlocked = await self._session.run(store.renew(self._worker, tokens, lease_s=self._leases.lease_s))
        held = await self._session.run(store.tokens_of(self._worker))
        for end in ends:
            # One that is not held: a standby that never received it has taken over.
            if end.token in committed or end.token not in held:
                self._leases.drop(end.token)
                with contextlib.suppress(psycopg.DataError):  # The end is written; its output matters less.
                    await self._session.run(store.add_evidence(self._worker, end))
            elif end.token in unlocked:
                self._outbox.put(unless_completed(end))
            else:
                continue
            self.pending.remove(end)
        if not self.pending:
            self._some.clear()


def unless_completed(end: Ended) -> Ended:
    """How an attempt ended whose own transaction did not complete it."""
    if end.outcome is not Outcome.SUCCEEDED:
        return end
    error = "ctx.complete was rolled back: the job's effects and its completion did not happen"
    return Ended(end.token, Outcome.FAILED, error=error, output=end.output, memory=end.memory)


class SourceOutcomes:
    """How calls of sources went, until the sources' breakers and rates have counted them."""

    def __init__(self) -> None:
        self._outcomes: list[tuple[str, int | None, bool | None]] = []
        self._not_before = 0.0

    def note(self, source: str, end: Ended) -> None:
        if source and end.source_ok is not None:
            self._outcomes.append((source, end.token, end.source_ok))

    async def write_if_due(self, session: Session) -> None:
        if self._outcomes and time.monotonic() > self._not_before:
            await self.write(session)

    async def write(self, session: Session) -> None:
        """Count what can be counted now. Outcomes of locked sources stay, at most the newest 10,000."""
        written = list(self._outcomes)
        uncounted = await session.run(store.count_outcomes(written, patient=False))
        left = [written[n - 1] for n in uncounted] + self._outcomes[len(written) :]
        self._outcomes = left[-MAX_OUTCOMES:]
        self._not_before = time.monotonic() + (OUTCOMES_AGAIN_S if uncounted else 0.0)


def _size(end: Ended) -> int:
    return sum(map(len, filter(None, (end.records, end.spawns, end.result, end.restart))))


async def write_end(session: Session, worker: UUID, end: Ended, leases: Leases) -> Ended | None:
    """Write an end with what it carries. Returns the failure to write instead if Postgres will never accept it."""
    try:
        if not end.plain:
            await session.run(store.write_end(worker, end))
        elif (await session.run(store.end_and_claim(worker, [end]))).refused:
            leases.note_refused_end(end)
    except psycopg.Error as error:
        if never_accepted(error):
            return refused(end, error)
        if error.sqlstate != _NOT_HELD:
            raise
        leases.note_refused_end(end)
    return None


def never_accepted(error: BaseException) -> bool:
    """Whether a statement would fail with this error again, because of the values in it."""
    state = error.sqlstate or "" if isinstance(error, psycopg.Error) else ""
    permanent = state.startswith(_PERMANENT) and state != _NOT_HELD
    return permanent or isinstance(error, psycopg.DataError | psycopg.IntegrityError)


def refused(end: Ended, error: Exception) -> Ended:
    """The failure of an attempt whose end Postgres refuses, with its message, without the functions that raised it."""
    message = (error.diag.message_primary if isinstance(error, psycopg.Error) else None) or error
    spawned = isinstance(error, psycopg.Error) and error.sqlstate in _SPAWN_REFUSED
    what = "a job that it spawns can't be enqueued" if spawned else "how it ended can't be written"
    log.error("the end of attempt %d can't be written: %s", end.token, message)
    return failed_for_good(end.token, f"{what}: {message}")


def failed_for_good(token: int, error: str) -> Ended:
    return Ended(token, Outcome.FAILED, error=error.replace("\0", "")[:MAX_ERROR_CHARS], final=True)
