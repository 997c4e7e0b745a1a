"""A schedule of every second, while workers are killed and Postgres restarts: each second fires once."""

import random
import signal
import time
from datetime import timedelta

import psycopg
import pytest

from tests.driving.schedules import ENDS, assert_each_second_once, ticks_of
from tests.driving.workers import Worker
from tests.processes.scheduled import tick
from tests.waiting import eventually

TARGET = "tests.processes.scheduled:app"
WORKERS = 4


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_second_fires_once_while_workers_are_killed_and_postgres_restarts(server, start):
    lasting_s, kills = 60, 12

    def begin() -> Worker:
        return start(target=TARGET, slots=1, lease_s="4", renew_s="1", sweep_s="0.5")

    workers = [begin() for _ in range(WORKERS)]
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    deeds = ["restart"] + ["kill"] * kills
    chance.shuffle(deeds)
    began = time.monotonic()
    for number, deed in enumerate(deeds, start=1):
        at = began + lasting_s * number / (len(deeds) + 1)
        eventually(lambda: time.monotonic() >= at, within_s=lasting_s, what="the next fault is due")  # noqa: B023
        if deed == "restart":
            server.stop(signal.SIGQUIT)
            server.start()
        else:
            workers.pop(chance.randrange(WORKERS)).kill()
            workers.append(begin())
    eventually(lambda: time.monotonic() >= began + lasting_s, within_s=lasting_s, what="the time is over")
    with psycopg.connect(server.url, autocommit=True) as connection:
        now = connection.execute("select now()").fetchall()[0][0]
        eventually(lambda: ticks_of(connection, tick.name)[-1] > now, within_s=15, what="it still fires")
        ticks = ticks_of(connection, tick.name)
        print(f"{len(ticks)} seconds, {kills} kills and a restart, seed {seed}")
        assert len(ticks) >= lasting_s
        assert ticks[-1] - ticks[0] == timedelta(seconds=len(ticks) - 1)
        assert_each_second_once(ticks)
        for worker in workers:
            worker.stop()
        last = start(target=TARGET, slots=4)  # It finishes what is left.
        waiting = "select count(*) from outlive.waiting where ready_at < now() - interval '2 seconds'"
        eventually(lambda: connection.execute(waiting).fetchone() == (0,), within_s=30, what="all jobs run")
        last.stop()
        done = "select (select count(*) from outlive.jobs) - (select count(*) from outlive.waiting)"
        ((finished,),) = connection.execute(done).fetchall()
        assert connection.execute(ENDS).fetchone() == (finished, finished)
