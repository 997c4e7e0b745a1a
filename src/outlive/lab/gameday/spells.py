"""Faults that last some seconds: a read-only database, locked rows, an import that fails or is slow.

Each function starts a fault and returns a function that ends it, and that returns False if it must be tried again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psycopg
from psycopg import sql

from outlive import db
from outlive.lab.gameday import jobs, tables
from outlive.lab.gameday.server import Server

SPELL_S = (2.0, 4.0)
MOST_ROWS = 2
"""How many jobs a foreign transaction locks: few, so that most jobs go on."""


@dataclass(slots=True)
class Spell:
    """A fault that lasts until `ends` (monotonic)."""

    ends: float
    end: Callable[[], bool]


def length_s(rng: random.Random) -> float:
    return rng.uniform(*SPELL_S)


def read_only(server: Server, connection: db.Connection, *, since_s: float) -> Callable[[], bool]:
    """Make the database read-only for the sessions of the game, which are ended and reconnect."""
    _allow(connection, writing=False)
    server.end_sessions(connection, since_s=since_s)

    def end() -> bool:
        ours = server.connect()
        if ours is None:
            return False
        with ours, contextlib.suppress(psycopg.OperationalError):
            _allow(ours, writing=True)
            return True
        return False

    return end


def _allow(connection: db.Connection, *, writing: bool) -> None:
    how = sql.SQL("reset default_transaction_read_only" if writing else "set default_transaction_read_only = on")
    connection.execute(sql.SQL("alter database {} {}").format(sql.Identifier(connection.info.dbname), how))


# Each statement locks rows until its transaction ends. The last one is an operator's cancel that never commits.
_LOCKS = (
    "select id from outlive.running where task like %(ours)s limit %(most)s for update skip locked",
    "select j.id from outlive.jobs j join outlive.running r on r.id = j.id where j.task like %(ours)s limit %(most)s "
    "for update of j skip locked",
    "select id from outlive.waiting where task like %(ours)s limit %(most)s for update skip locked",
    "select id from outlive.dedupe_keys where task like %(ours)s limit %(most)s for update skip locked",
    "select null::uuid from outlive.sources where name = %(source)s for update skip locked",
    "select id from outlive.cancel(array(select id from outlive.running where task like %(ours)s limit %(most)s))",
)


def lock(server: Server, rng: random.Random) -> tuple[Callable[[], bool], frozenset[UUID]] | None:
    """Lock rows in a foreign transaction. Also returns the locked jobs; None if there was nothing to lock."""
    statement = rng.choice(_LOCKS)
    stranger = psycopg.connect(server.url, connect_timeout=5, application_name="stranger")
    try:
        stranger.execute("set local lock_timeout = '500ms'")
        names = {"ours": tables.OURS, "most": MOST_ROWS, "source": jobs.shop.name}
        locked = [id for (id,) in stranger.execute(statement.encode(), names).fetchall()]
    except psycopg.Error:
        locked = []
    if not locked:
        stranger.close()
        return None

    def end() -> bool:
        stranger.close()  # This rolls back.
        return True

    return end, frozenset(id for id in locked if id is not None)


def bad_import(path: Path, rng: random.Random) -> Callable[[], bool]:
    """Make the next imports of one worker slow, or make them fail."""
    path.write_text(rng.choice((jobs.BROKEN, "slow")))

    def end() -> bool:
        path.unlink(missing_ok=True)
        return True

    return end
