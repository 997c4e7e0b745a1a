"""What is wrong for some seconds, and then right again: a read-only database, a stranger's locks, an import that goes
badly, a deploy between its SIGTERM and its SIGKILL. Each spell begins at once, and whoever began it calls `end`."""

from __future__ import annotations

import contextlib
import random
import time
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
"""How many jobs a stranger locks: so few that most go on."""


@dataclass(slots=True)
class Spell:
    """Something that is wrong until `ends` (monotonic); `end` puts it right, or says that it could not yet."""

    ends: float
    end: Callable[[], bool]


def length_s(rng: random.Random) -> float:
    return rng.uniform(*SPELL_S)


def read_only(server: Server, connection: db.Connection, *, since_s: float) -> Callable[[], bool]:
    """Every session of the game comes back as one that can't write, and stays so until it is replaced."""
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


# Each takes what is free and locks it for as long as its transaction is open. The last one is a person's cancel that
# is never committed.
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
    """A stranger's transaction that stays open, and the jobs that it locks; none if there was nothing to lock."""
    statement = rng.choice(_LOCKS)
    stranger = psycopg.connect(server.url, connect_timeout=5, application_name="stranger")
    try:
        stranger.execute("set local lock_timeout = '500ms'")
        asked = {"ours": tables.OURS, "most": MOST_ROWS, "source": jobs.shop.name}
        locked = [id for (id,) in stranger.execute(statement.encode(), asked).fetchall()]
    except psycopg.Error:
        locked = []
    if not locked:
        stranger.close()
        return None

    def end() -> bool:
        stranger.close()  # Which rolls back.
        return True

    return end, frozenset(id for id in locked if id is not None)


def bad_import(path: Path, rng: random.Random) -> Callable[[], bool]:
    """The next imports of one worker take long, or fail."""
    path.write_text(rng.choice((jobs.BROKEN, "slow")))

    def end() -> bool:
        path.unlink(missing_ok=True)
        return True

    return end


def due(spells: list[Spell]) -> list[Spell]:
    now = time.monotonic()
    return [spell for spell in spells if now >= spell.ends]
