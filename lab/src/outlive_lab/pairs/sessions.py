"""Sessions that act, each in a thread, and one that watches them and lets them go on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

import psycopg
from psycopg import IsolationLevel

from outlive import db
from outlive_lab.pairs.cuts import LOCKS

Act = Callable[[db.Connection], object]

BEGUN, OPEN = "begun", "open"
"""Places outside the statement: its transaction has its snapshot; the statement is over, and not committed."""
REPEATED = frozenset({"40001", "40P01", "55P03"})
"""After these nothing was written, and callers repeat the statement."""
REFUSED = frozenset({"OL001", "OL002", "OL003", "OL006", "OL007", "OL008"})
"""After these nothing was written, and the caller is told why."""
TIMES = 20
SOON_S = 0.003
PATIENCE_S = 20.0
_STOP_AT = "select set_config('pairs.stop_at', %s, false), setval('pairs.passed_' || %s, 1, false)"
_WAITS = """
select cardinality(pg_blocking_pids(a.pid)) > 0 or a.wait_event = 'PgSleep' from pg_stat_get_activity(%s) a
"""


class LeftWaiting(Exception):
    """A session did not come to its end although the other one has."""


class Place(Enum):
    ACTING = "acting"  # Or it waits for a lock.
    STOPPED = "stopped"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class How:
    """How a session runs its statement: where it stops, and in what transaction."""

    stop: int | str | None = None
    """The number of a cut, or BEGUN or OPEN."""
    serializable: bool = False
    rolls_back: bool = False


class Actor:
    """A session that runs one statement at a time."""

    def __init__(self, url: str, number: int, moment: str, news: queue.SimpleQueue[None]) -> None:
        self.number = number
        self.place = Place.DONE
        self.passed: list[str] = []
        self.repeats: list[str] = []
        self._news = news
        self._stop_at = 0
        self._go_on = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self.connection = connect(url, moment)
        self.connection.execute("select set_config('pairs.me', %s, false)", [str(number)])
        self.connection.add_notice_handler(lambda notice: self._hear(notice.message_primary or ""))
        self.pid = self.connection.info.backend_pid

    def close(self) -> None:
        self._go_on.set()
        self._thread.shutdown()
        self.connection.close()

    def start(self, act: Act, how: How) -> Future[object]:
        self.place, self.passed, self.repeats = Place.ACTING, [], []
        self._go_on.clear()
        return self._thread.submit(self._run, act, how)

    def go_on(self) -> None:
        """Stop no more. To be called by the watcher, which holds the lock at which the session may have stopped."""
        if self.place is Place.STOPPED:
            self.place = Place.ACTING
        self._go_on.set()

    def _hear(self, said: str) -> None:
        word, _, rest = said.partition(" ")
        if word == "cut":
            self.passed.append(rest)
        elif word == "stopped" and not self._go_on.is_set():
            self._tell(Place.STOPPED)

    def _tell(self, place: Place) -> None:
        self.place = place
        self._news.put(None)

    def _stop_here(self) -> None:
        if not self._go_on.is_set():
            self._tell(Place.STOPPED)
            self._go_on.wait()

    def _run(self, act: Act, how: How) -> object:
        try:
            for _ in range(TIMES):
                try:
                    return self._run_once(act, how)
                except psycopg.Error as error:
                    if error.sqlstate in REFUSED:
                        return f"refused: {error.sqlstate}"
                    if error.sqlstate not in REPEATED:
                        raise
                    self.repeats.append(error.sqlstate or "")
                    how = How(serializable=how.serializable)
            raise LeftWaiting(f"it was repeated {TIMES} times: {self.repeats}")
        finally:
            self._tell(Place.DONE)

    def _run_once(self, act: Act, how: How) -> object:
        connection = self.connection
        number = how.stop if isinstance(how.stop, int) else 0
        if number or self._stop_at:
            self._stop_at = number
            connection.execute(_STOP_AT, [str(number), self.number])
        connection.isolation_level = IsolationLevel.SERIALIZABLE if how.serializable else None
        with connection.transaction(force_rollback=how.rolls_back):
            if how.stop == BEGUN:
                connection.execute("select from outlive.jobs limit 1")
                self._stop_here()
            answer = act(connection)
            if how.stop == OPEN:
                self._stop_here()
        return answer


class Ring:
    """The sessions that act, and the watching one, which also holds what they stop at."""

    def __init__(self, url: str, moment: str) -> None:
        self.news = queue.SimpleQueue[None]()
        self.actors = [Actor(url, number, moment, self.news) for number in (1, 2, 3)]
        self.first, self.second, _ = self.actors
        self.watcher, self.keeper = connect(url, moment), connect(url, moment)
        """The keeper locks a row in the way of the first session."""
        self.held: set[int] = set()

    def close(self) -> None:
        for actor in self.actors:
            self.let_go(actor)
            actor.close()
        self.watcher.close()
        self.keeper.close()

    def start(self, actor: Actor, act: Act, how: How) -> Future[object]:
        """Let a session act until it is done, has stopped or waits for a lock."""
        if isinstance(how.stop, int) and how.stop > 0:
            self.watcher.execute("select pg_advisory_lock(%s)", [LOCKS + actor.number])
            self.held.add(actor.number)
        answer = actor.start(act, how)
        self.await_(actor)
        return answer

    def let_go(self, actor: Actor) -> None:
        actor.go_on()
        if actor.number in self.held:
            self.watcher.execute("select pg_advisory_unlock(%s)", [LOCKS + actor.number])
            self.held.discard(actor.number)

    def await_(self, actor: Actor) -> None:
        """Until this session is done, has stopped or waits for a lock."""
        until = time.monotonic() + PATIENCE_S
        soon_s = SOON_S
        while actor.place is Place.ACTING:
            try:
                self.news.get(timeout=soon_s)
            except queue.Empty:
                if actor.place is Place.ACTING and self._waits(actor):
                    return
                soon_s *= 2
            if time.monotonic() > until:
                raise LeftWaiting(f"session {actor.number} neither ended nor waits for a lock")

    def _waits(self, actor: Actor) -> bool:
        return (True,) in self.watcher.execute(_WAITS, [actor.pid]).fetchall()

    def finish(self) -> None:
        """Until all are done."""
        until = time.monotonic() + PATIENCE_S
        for actor in self.actors:
            self.let_go(actor)
        while any(actor.place is not Place.DONE for actor in self.actors):
            try:
                self.news.get(timeout=SOON_S)
            except queue.Empty:
                if time.monotonic() > until:
                    where = ", ".join(f"session {one.number} is {one.place.value}" for one in self.actors)
                    raise LeftWaiting(where) from None


def connect(url: str, moment: str) -> Any:
    connection = db.connect(url)
    connection.execute("set deadlock_timeout = '30ms'")
    connection.execute("select set_config('outlive.now', %s, false)", [moment])
    return connection
