"""Schedules."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outlive import store
from tests.driving.making import Queue
from tests.driving.schedules import Clockwork, assert_each_second_once, steps, ticks_of
from tests.waiting import eventually

TARGET = "tests.processes.scheduled:app"
TICK = "tests.processes.scheduled.tick"
BERLIN = {"task": "work", "timezone": "Europe/Berlin"}
HOUR = timedelta(hours=1)


def walk(url: str, begin: datetime, end: datetime) -> None:
    """Let the clock of the database go from one moment to the other, while two workers look every ten minutes."""

    async def walk() -> None:
        workers = Clockwork(url), Clockwork(url)
        for now in steps(begin, end, timedelta(minutes=10)):
            await asyncio.gather(*(worker.look(now) for worker in workers))
        for worker in workers:
            await worker.close()

    asyncio.run(walk())


def fired(connection: Queue, url: str, day: datetime, **said: Any) -> list[str]:
    """Make a schedule, let two days pass from noon before a change of the clocks, and return the firings in UTC."""
    connection.set_now(day - 12 * HOUR)
    connection.run(store.add_schedule("report", {**BERLIN, **said}))
    walk(url, day - 12 * HOUR, day + 36 * HOUR)
    return [tick.astimezone(UTC).strftime("%d %H:%M") for tick in ticks_of(connection, "work")]


def test_each_tick_fires_once_on_all_workers_also_when_some_are_killed(start, queue):
    workers = [start(target=TARGET, slots=1) for _ in range(3)]
    for worker in workers[:2]:
        before = len(ticks_of(queue, TICK))
        eventually(lambda: len(ticks_of(queue, TICK)) >= before + 2, within_s=15, what="it fires")  # noqa: B023
        worker.kill()
    before = len(ticks_of(queue, TICK))
    eventually(lambda: len(ticks_of(queue, TICK)) >= before + 2, within_s=15, what="the last one goes on")
    assert_each_second_once(ticks_of(queue, TICK))


@pytest.mark.parametrize(
    ("cron", "ticks"),
    [
        ("30 2 * * *", ["29 01:00", "30 00:30"]),  # 02:30 does not exist: it fires at 03:00, and then at 02:30 again.
        ("0 9 * * *", ["29 07:00", "30 07:00"]),
        (
            "0 */6 * * *",
            ["28 17:00", "28 23:00", "29 04:00", "29 10:00", "29 16:00", "29 22:00", "30 04:00", "30 10:00"],
        ),
    ],
)
def test_when_the_clocks_go_forward_no_firing_is_lost(queue, database_url, cron, ticks):
    assert fired(queue, database_url, datetime(2026, 3, 29, tzinfo=UTC), cron=cron) == ticks


@pytest.mark.parametrize(
    ("cron", "ticks"),
    [
        ("30 2 * * *", ["25 00:30", "26 01:30"]),  # 02:30 comes twice: it fires the first time.
        ("0 9 * * *", ["25 08:00", "26 08:00"]),
        (
            "0 */6 * * *",
            ["24 16:00", "24 22:00", "25 05:00", "25 11:00", "25 17:00", "25 23:00", "26 05:00", "26 11:00"],
        ),
    ],
)
def test_when_the_clocks_go_back_no_firing_comes_twice(queue, database_url, cron, ticks):
    assert fired(queue, database_url, datetime(2026, 10, 25, tzinfo=UTC), cron=cron) == ticks


@pytest.mark.parametrize("day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
def test_an_interval_knows_no_daylight_saving(queue, database_url, day):
    ticks = fired(queue, database_url, day, every_s=1800.0)
    assert ticks == [at.strftime("%d %H:%M") for at in steps(day - 11.5 * HOUR, day + 36 * HOUR, HOUR / 2)]
