"""The app of a game: jobs that leave a trace when they begin and an effect when they are done.

The traces are in tables of gameday's own, which have no keys on purpose: what happens twice must show.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import psycopg
from psycopg.abc import Query

import outlive
from outlive.client.app import TaskOptions


class Connection(psycopg.Connection[tuple[object, ...]]):
    """Hesitates before a completion, when the job knows its secret: one that is frozen here writes too late for
    certain."""

    pause_s = 0.0

    def execute(self, query: Query, *words: Any, **more: Any) -> psycopg.Cursor[tuple[object, ...]]:
        pause_s, self.pause_s = self.pause_s, 0.0
        time.sleep(pause_s)
        return super().execute(query, *words, **more)


# They are killed from outside, again and again, and are not to blame: no number of kills may put them into quarantine,
# and no job may ever give up.
SURVIVOR: TaskOptions = {
    "queue": "gameday",
    "max_attempts": 30_000,
    "max_crashes": 30_000,
    "max_losses": None,
    "backoff": [0.1],
    "timeout": "2m",
}
WARM: TaskOptions = {**SURVIVOR, "recycle_after": 50}
STALE = "OL002"
OFFSPRING = UUID("6f75746c-6976-5000-8000-67616d656461")

TROUBLE = "GAMEDAY_TROUBLE"
"""The environment's name for a file in which the game says what is wrong with this module at the moment."""

BROKEN = "broken"
HESITATE_S = 0.3
SLOW_S = 3.0


class Stumbled(Exception):
    """What goes wrong the first time."""


def _import_badly() -> None:
    """A deploy may leave an app that takes long to import, or none that can be imported, for a while."""
    path = Path(os.environ.get(TROUBLE, "/nowhere"))
    if path.exists():
        if path.read_text() == BROKEN:
            raise Stumbled("the deploy is not finished")
        time.sleep(SLOW_S)


_import_badly()

app = outlive.App()
shop = app.source("gameday", rate_limit_per_minute=600_000, burst=1000, breaker_failures=30_000)
CALLING: TaskOptions = {**SURVIVOR, "source": shop}
_kept: Connection | None = None


@app.task(**SURVIVOR)
def note(work_s: float) -> None:
    """An effect, then a success: at least once."""
    with _connected() as connection:
        _begin(connection)
        time.sleep(work_s)
        _effect(connection)


@app.task(**SURVIVOR)
def pay(work_s: float) -> float:
    """An effect and its completion in one transaction: exactly once."""
    with _connected() as connection:
        _begin(connection)
        time.sleep(work_s / 2)
        _complete(connection, work_s, before_s=max(work_s / 2, HESITATE_S), after_s=min(work_s / 10, 0.1))
    return work_s


@app.task(**SURVIVOR)
def stumble(work_s: float) -> None:
    """The same, but not at the first attempt."""
    with _connected() as connection:
        _begin(connection)
        if outlive.current().attempt == 1:
            raise Stumbled("as it was to be")
        time.sleep(work_s)
        _complete(connection, None)


@app.task(**SURVIVOR)
def breed(work_s: float) -> None:
    """Asks for another job, which must then be there; under the same id again if this one is run again."""
    offspring = uuid5(OFFSPRING, str(outlive.current().job_id))
    with _connected() as connection:
        _begin(connection)
        note.using(id=offspring).enqueue(work_s)
        _complete(connection, None, spawned=offspring)


@app.task(**CALLING)
def call(work_s: float) -> None:
    """A job of a source: claimed on another way, and stopped by a lock on the source's row."""
    with _connected() as connection:
        _begin(connection)
        time.sleep(work_s)
        _effect(connection)


@app.task(**WARM)
def stamp(work_s: float) -> None:
    """A warm job: its process and its connection serve the next one too."""
    with _kept_open() as connection:
        _begin(connection)
        time.sleep(work_s)
        _effect(connection)


@app.task(**WARM)
def post(work_s: float) -> None:
    """A warm job that is done exactly once."""
    with _kept_open() as connection:
        _begin(connection)
        _complete(connection, None, before_s=work_s, after_s=work_s)


COMPLETING = frozenset({"pay", "stumble", "breed", "post"})


def _connect() -> Connection:
    url = app.config.database_url
    assert url is not None, "the workers of a game are told where its database is"
    return Connection.connect(url, autocommit=True, connect_timeout=10, application_name=f"gameday {os.getpid()}")


@contextmanager
def _connected() -> Iterator[Connection]:
    with _connect() as connection:
        yield connection


@contextmanager
def _kept_open() -> Iterator[Connection]:
    """The process's own, unless a job failed on it: it may be read-only for ever."""
    global _kept
    if _kept is None or _kept.closed or _kept.broken:
        _kept = _connect()
    try:
        yield _kept
    except psycopg.Error:
        _kept.close()
        raise


def _begin(connection: Connection) -> None:
    connection.execute(
        "insert into outlive_gameday.starts (token, pid) values (%s, %s)", [outlive.current().token, os.getpid()]
    )


def _effect(connection: Connection, spawned: UUID | None = None) -> None:
    context = outlive.current()
    connection.execute(
        "insert into outlive_gameday.effects (job_id, token, spawned) values (%s, %s, %s)",
        [context.job_id, context.token, spawned],
    )


def _complete(
    connection: Connection, result: object, *, before_s: float = 0.0, after_s: float = 0.0, spawned: UUID | None = None
) -> None:
    """With a pause on either side of the completion, for faults to fall into."""
    context = outlive.current()
    try:
        with connection.transaction():
            _effect(connection, spawned)
            connection.pause_s = before_s
            context.complete(connection, result)
            time.sleep(after_s)
    except psycopg.Error as error:
        if error.sqlstate == STALE:
            connection.execute("insert into outlive_gameday.fenced (token) values (%s)", [context.token])
        raise
