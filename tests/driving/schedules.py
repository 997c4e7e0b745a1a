"""Schedules in tests: what has fired, and a worker's service on a clock that the test moves."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
from psycopg import sql

from outlive.worker.fleet.schedules import Schedules
from outlive.worker.session import Session

SECOND = timedelta(seconds=1)
TICKS = "select ready_at from outlive.jobs where task = %s order by ready_at"
ENDS = "select count(*), count(distinct job_id) from outlive.attempts where state = 'succeeded'"


def ticks_of(connection: psycopg.Connection[Any], task: str) -> list[datetime]:
    """The ticks of which jobs were made."""
    return [tick for (tick,) in connection.execute(TICKS, [task]).fetchall()]


def assert_each_second_once(ticks: list[datetime]) -> None:
    """Between the first and the last tick, each second has one job."""
    gaps = [(before, after) for before, after in pairwise(ticks) if after - before != SECOND]
    assert gaps == []


def let_sessions_begin_with(connection: psycopg.Connection[Any], setting: str, value: str) -> None:
    """A setting of the sessions that connect to this database from now on."""
    change = sql.SQL("alter database {} set {} = {}")
    database = sql.Identifier(connection.info.dbname)
    connection.execute(change.format(database, sql.Identifier(*setting.split(".")), sql.Literal(value)))


class Clockwork:
    """The service of a worker that fires schedules, in a session whose clock the test sets."""

    def __init__(self, url: str) -> None:
        self._session = Session(url)
        self._service = Schedules(self._session, self._session)

    async def look(self, at: datetime) -> float:
        """Fire what is due at this moment. Returns how long the service would wait."""
        connection = await self._session.connect()
        await connection.execute("select set_config('outlive.now', %s, false)", [at.isoformat()])
        return await self._service.fire_due()

    async def close(self) -> None:
        await self._session.close()


def steps(begin: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
    while begin <= end:
        yield begin
        begin += step
