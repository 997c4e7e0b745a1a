"""Waiting for jobs to end, woken by notifications of the database.

One thread per process and app waits for all callers, those in threads and those in event loops alike, and ends when
none of them waits any more. So a process has one listening session however many jobs it waits for, and an event loop
that ends leaves nothing behind. The session is one of the app's idle connections, and goes back to them. It stops
listening first: a session that listens and does not read keeps the server from discarding notifications.

The thread writes each job into `awaited` before it looks at the job, and the statement that ends the job notifies those
that it finds there. It looks again from time to time, because an end may have read `awaited` just before the row was
committed, and because a pooler in transaction mode delivers no notifications. All that it learns is which jobs may have
ended; the callers read the outcomes themselves.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from uuid import UUID

import psycopg

from outlive import db, store

FIRST_LOOK_S, LOOKS_GROW, LAST_LOOK_S = 0.01, 5.0, 2.0
"""The pauses between looks at a job whose end is notified. The first ones find ends that were just being written."""
POOLED_GROW, POOLED_LAST_S = 1.5, 0.5
"""The same where no notification arrives."""
JOB_S = 0.0005
"""How much longer the pauses are for each job that is looked at."""
BATCH = 1000


class Waiter:
    """A call that waits for jobs. `ring` wakes it; then it takes the jobs that may have ended."""

    def __init__(self, waiting: Waiting, ids: Iterable[UUID], ring: Callable[[], object]) -> None:
        self._waiting, self._ring = waiting, ring
        self.left = set(ids)
        self.told: set[UUID] = set()
        self.error: Exception | None = None
        """Why the thread has given up."""

    def pause_s(self, at_most_s: float) -> float:
        return at_most_s

    def take(self) -> set[UUID]:
        return self._waiting.take(self)

    def settle(self, ids: Iterable[UUID]) -> None:
        """These need not be waited for any more."""
        self._waiting.settle(self, ids)

    def leave(self) -> None:
        self._waiting.leave(self)

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # Its event loop is closed.
            self._ring()


class Waiting:
    """Everything that one process waits for on one database."""

    def __init__(self, within: Callable[[Callable[[db.Connection], None]], None]) -> None:
        """`within` does work on one of the app's connections."""
        self._within = within
        self._lock = threading.RLock()
        """A signal handler that waits for a job while its thread has the lock keeps its timeout."""
        self._waiters: set[Waiter] = set()
        self._by_job: dict[UUID, set[Waiter]] = {}
        self._thread: threading.Thread | None = None
        self._poke = -1
        """An eventfd that interrupts the sleep of the thread, while there is one."""
        self._new: list[Waiter] = []
        self._looks: list[tuple[float, int, float, Waiter]] = []
        """A heap of the next look for each waiter: when, a number that tells equals apart, and the pause before it."""
        self._numbers = itertools.count()

    def enter(self, ids: Iterable[UUID], ring: Callable[[], object]) -> Waiter:
        """RuntimeError if no thread can start."""
        waiter = Waiter(self, ids, ring)
        with self._lock:
            if self._thread is None:
                self._start()
            self._waiters.add(waiter)
            self._new.append(waiter)
            for id in waiter.left:
                self._by_job.setdefault(id, set()).add(waiter)
            os.eventfd_write(self._poke, 1)
        return waiter

    def _start(self) -> None:
        self._poke = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = threading.Thread(target=self._run, name="outlive-waiting", daemon=True)
        try:
            thread.start()  # It goes on when the lock is free.
        except BaseException:
            self._end()
            raise
        self._thread = thread

    def take(self, waiter: Waiter) -> set[UUID]:
        with self._lock:
            if waiter.error is not None:
                raise waiter.error
            told, waiter.told = waiter.told, set()
        return told

    def settle(self, waiter: Waiter, ids: Iterable[UUID]) -> None:
        with self._lock:
            self._forget(waiter, ids)

    def leave(self, waiter: Waiter) -> None:
        with self._lock:
            self._forget(waiter, list(waiter.left))
            self._waiters.discard(waiter)
            if not self._waiters and self._thread is not None:
                os.eventfd_write(self._poke, 1)

    def _forget(self, waiter: Waiter, ids: Iterable[UUID]) -> None:
        for id in ids:
            waiter.left.discard(id)
            others = self._by_job.get(id, set())
            others.discard(waiter)
            if not others:
                self._by_job.pop(id, None)

    # The thread

    def _run(self) -> None:
        try:
            while self._go_on():
                self._within(self._serve)
        except Exception as error:
            with self._lock:
                for waiter in self._waiters:
                    waiter.error = error
                    waiter.ring()
                self._end()

    def _go_on(self) -> bool:
        with self._lock:
            if not self._waiters:
                self._end()
            return bool(self._waiters)

    def _end(self) -> None:
        os.close(self._poke)
        self._poke = -1
        self._thread, self._waiters, self._by_job, self._new = None, set(), {}, []

    def _serve(self, connection: db.Connection) -> None:
        """Serve on one session until no caller waits, or until the session breaks after it has worked."""
        listens = not db.pooled(connection)
        with self._lock:
            self._new, self._looks = list(self._waiters), []
        works = False
        try:
            if listens:
                connection.add_notify_handler(self._hear)
                connection.execute("listen outlive_ended")
            self._look(connection, listens)
            works = True
            while self._waiters:
                self._sleep(connection)
                self._look(connection, listens)
            if listens:
                connection.execute("unlisten outlive_ended")
                connection.remove_notify_handler(self._hear)
        except psycopg.Error as error:
            connection.close()  # Even if it is usable: it listens.
            if not works or not db.transient(error):
                raise

    def _hear(self, notification: psycopg.Notify) -> None:
        self._tell(_ids(notification.payload))

    def _look(self, connection: db.Connection, listens: bool) -> None:
        """Look at the jobs of every waiter whose turn it is, all at once: there may be a thousand with a job each."""
        due = self._due()
        with self._lock:
            left = sorted({id for _, waiter in due for id in waiter.left})
        for first in range(0, len(left), BATCH):
            ids = left[first : first + BATCH]
            if listens:
                db.run(connection, store.await_jobs(ids))
            ended = db.run(connection, store.awaited_ends(ids))
            self._tell(ended)
        now = time.monotonic()
        grow, last_s = (LOOKS_GROW, LAST_LOOK_S) if listens else (POOLED_GROW, POOLED_LAST_S)
        for pause_s, waiter in due:
            next_look = now + pause_s + JOB_S * len(waiter.left)
            heapq.heappush(self._looks, (next_look, next(self._numbers), min(grow * pause_s, last_s), waiter))

    def _due(self) -> list[tuple[float, Waiter]]:
        """The waiters whose turn it is, each with the pause after this look."""
        with self._lock:
            due, self._new = [(FIRST_LOOK_S, waiter) for waiter in self._new if waiter in self._waiters], []
            while self._looks and self._looks[0][0] <= time.monotonic():
                _, _, pause_s, waiter = heapq.heappop(self._looks)
                if waiter in self._waiters:
                    due.append((pause_s, waiter))
        return due

    def _tell(self, ids: Iterable[UUID]) -> None:
        with self._lock:
            woken = set()
            for id in ids:
                for waiter in self._by_job.get(id, ()):
                    waiter.told.add(id)
                    woken.add(waiter)
            for waiter in woken:
                waiter.ring()

    def _sleep(self, connection: db.Connection) -> None:
        """Sleep until a notification comes, a caller comes or goes, or a look is due. Notifications are told."""
        if not self._heard(connection):
            wanted = select.poll()
            wanted.register(connection.fileno(), select.POLLIN)
            wanted.register(self._poke, select.POLLIN)
            left_s = self._looks[0][0] - time.monotonic() if self._looks else LAST_LOOK_S
            wanted.poll(max(0.0, left_s * 1000))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._poke)
            connection.pgconn.consume_input()
            self._heard(connection)

    def _heard(self, connection: db.Connection) -> bool:
        """Tell the notifications that have arrived. Some may have come with the answer to a statement."""
        heard = False
        while (notification := connection.pgconn.notifies()) is not None:
            heard = True
            self._tell(_ids(notification.extra.decode(errors="replace")))
        return heard


def _ids(payload: str) -> list[UUID]:
    """The jobs that a notification names. Anyone who may log in can send one."""
    try:
        return [UUID(text) for text in payload.split(",")]
    except ValueError:
        return []
