"""Waiting for jobs to end, woken by notifications of the database.

One thread per process and app waits for all callers, in threads and in event loops alike, and ends with the last. It
borrows one of the app's idle connections, which must stop listening before it goes back: a session that listens and
does not read keeps the server from discarding notifications.

The thread writes each job into `awaited` before it looks at the job, and the statement that ends the job notifies those
that it finds there. It looks again from time to time, because an end may have read `awaited` just before the row was
committed, and because a pooler in transaction mode delivers no notifications. The callers read the outcomes themselves.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from uuid import UUID

import psycopg

from outlive import db, store

FIRST_LOOK_S, LOOKS_GROW, LAST_LOOK_S = 0.01, 5.0, 2.0
"""The pauses between looks at jobs whose ends are notified. The first ones find ends that were just being written."""
POOLED_GROW, POOLED_LAST_S = 1.5, 0.5
"""The same where no notification arrives."""
JOB_S = 0.0005
"""How much longer the pauses are for each job that is looked at."""
BATCH = 1000


class Waiter:
    """A call that waits for jobs. `ring` wakes it; then it takes the jobs that may have ended."""

    def __init__(self, waiting: Waiting, ids: Iterable[UUID], ring: Callable[[], object]) -> None:
        self._waiting, self.ring = waiting, ring
        self.left = set(ids)
        self.ended: set[UUID] = set()
        self.error: Exception | None = None
        """Why the thread has given up."""

    def take(self) -> set[UUID]:
        with self._waiting._lock:
            if self.error is not None:
                raise self.error
            ended, self.ended = self.ended, set()
        return ended

    def settle(self, ids: Iterable[UUID]) -> None:
        """These need not be waited for any more."""
        self._waiting.forget(self, ids)


class Waiting:
    """Everything that one process waits for on one database."""

    def __init__(self, within: Callable[[Callable[[db.Connection], None]], None]) -> None:
        """`within` does work on one of the app's connections."""
        self._within = within
        self._lock = threading.RLock()
        """A signal handler that waits for a job while its thread has the lock keeps its timeout."""
        self._by_job: dict[UUID, set[Waiter]] = {}
        self._new: set[UUID] = set()
        """Jobs that no look has seen yet."""
        self._poke = -1
        """An eventfd that interrupts the sleep of the thread, while there is one."""
        self._next_look, self._pause_s = math.inf, FIRST_LOOK_S

    def enter(self, ids: Iterable[UUID], ring: Callable[[], object]) -> Waiter:
        """RuntimeError if no thread can start."""
        waiter = Waiter(self, ids, ring)
        with self._lock:
            if self._poke < 0:
                self._start()
            self._new |= waiter.left
            for id in waiter.left:
                self._by_job.setdefault(id, set()).add(waiter)
            os.eventfd_write(self._poke, 1)
        return waiter

    def forget(self, waiter: Waiter, ids: Iterable[UUID]) -> None:
        with self._lock:
            for id in ids:
                waiter.left.discard(id)
                self._by_job.get(id, set()).discard(waiter)
                if not self._by_job.get(id):
                    self._by_job.pop(id, None)
            if not self._by_job and self._poke >= 0:
                os.eventfd_write(self._poke, 1)

    def _start(self) -> None:
        self._poke = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            # It goes on when the lock is free.
            threading.Thread(target=self._run, name="outlive-waiting", daemon=True).start()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        os.close(self._poke)
        self._poke, self._by_job = -1, {}

    # The thread

    def _run(self) -> None:
        try:
            while self._go_on():
                self._within(self._serve)
        except Exception as error:
            with self._lock:
                for waiter in {waiter for waiters in self._by_job.values() for waiter in waiters}:
                    waiter.error = error
                    _wake(waiter)
                self._end()

    def _go_on(self) -> bool:
        with self._lock:
            if not (goes_on := bool(self._by_job)):
                self._end()
            return goes_on

    def _serve(self, connection: db.Connection) -> None:
        """Serve on one session until no caller waits, or until the session breaks after it has worked."""
        listens, works = not connection.pooled, False
        with self._lock:
            self._new, self._next_look = set(self._by_job), math.inf
        try:
            if listens:
                connection.add_notify_handler(self._notified)
                connection.execute("listen outlive_ended")
            while self._by_job:
                self._look(connection, listens)
                works = True
                self._sleep(connection)
            if listens:
                connection.execute("unlisten outlive_ended")
                connection.remove_notify_handler(self._notified)
        except psycopg.Error as error:
            connection.close()  # Even if it is usable: it listens.
            if not works or not db.transient(error):
                raise

    def _look(self, connection: db.Connection, listens: bool) -> None:
        """Look at new jobs, or at all when that is due: soon after a new one has come, then less and less often."""
        with self._lock:
            due = time.monotonic() >= self._next_look
            ids = sorted(self._by_job if due else self._new & self._by_job.keys())
            if self._new:
                self._new, self._pause_s = set(), FIRST_LOOK_S
        if not ids:
            return
        for first in range(0, len(ids), BATCH):
            batch = ids[first : first + BATCH]
            if listens:
                db.run(connection, store.await_jobs(batch))
            ended = db.run(connection, store.awaited_ends(batch))
            self._ring(ended)
        if due:
            grow, last_s = (LOOKS_GROW, LAST_LOOK_S) if listens else (POOLED_GROW, POOLED_LAST_S)
            self._pause_s = min(grow * self._pause_s, last_s)
        next_look = time.monotonic() + self._pause_s + JOB_S * len(self._by_job)
        self._next_look = next_look if due else min(next_look, self._next_look)

    def _sleep(self, connection: db.Connection) -> None:
        """Sleep until a notification comes, a caller comes or goes, or a look is due."""
        if not self._read_notifications(connection):
            wanted = select.poll()
            wanted.register(connection.fileno(), select.POLLIN)
            wanted.register(self._poke, select.POLLIN)
            wanted.poll(1000 * min(LAST_LOOK_S, max(0.0, self._next_look - time.monotonic())))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._poke)
            connection.pgconn.consume_input()
            self._read_notifications(connection)

    def _read_notifications(self, connection: db.Connection) -> bool:
        """Whether any have arrived. Some may have come with the answer to a statement."""
        found = False
        while (notification := connection.pgconn.notifies()) is not None:
            found = True
            self._ring(_ids(notification.extra.decode(errors="replace")))
        return found

    def _notified(self, notification: psycopg.Notify) -> None:
        self._ring(_ids(notification.payload))

    def _ring(self, ids: Iterable[UUID]) -> None:
        """Wake the callers that wait for these jobs."""
        with self._lock:
            woken = set()
            for id in ids:
                for waiter in self._by_job.get(id, ()):
                    waiter.ended.add(id)
                    woken.add(waiter)
            for waiter in woken:
                _wake(waiter)


def _wake(waiter: Waiter) -> None:
    with contextlib.suppress(RuntimeError):  # Its event loop is closed.
        waiter.ring()


def _ids(payload: str) -> list[UUID]:
    """The jobs that a notification names. Anyone who may log in can send one."""
    try:
        return [UUID(text) for text in payload.split(",")]
    except ValueError:
        return []
