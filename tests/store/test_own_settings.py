"""Settings that describe a worker or a task are stored with it: the process that acts obeys those, not its own."""

import asyncio
import math
from datetime import timedelta

import pytest

from outlive import store
from outlive.config import Config
from outlive.states import Outcome, State
from outlive.worker.fleet.reaper import Reaper
from outlive.worker.reporting.alerts import Alerts
from outlive.worker.session import Session
from tests.driving.making import NOON, TASK, Queue, limits, new_worker

DAY_S = 86400.0


@pytest.fixture(autouse=True)
def noon(queue: Queue) -> None:
    queue.set_now(NOON)


def silent(connection: Queue, later_s: float, **more: float) -> list[str]:
    connection.set_now(NOON, later_s=later_s)
    return sorted(dead.name for dead in connection.run(store.give_up_silent(**more)))


def test_each_worker_is_declared_dead_after_its_own_time(queue):
    queue.register_worker(new_worker(), name="usual")
    queue.register_worker(new_worker(), name="hasty", dead_s="10s")
    queue.register_worker(new_worker(), name="patient", dead_s="10m")
    assert [silent(queue, later_s) for later_s in (9, 11, 119, 121, 599, 601)] == [
        *([], ["hasty"], [], ["usual"], [], ["patient"])
    ]
    told = queue.values("select died_of from outlive.workers order by dead_s")
    assert told == ["no heartbeat for 10 s", "no heartbeat for 120 s", "no heartbeat for 600 s"]


def test_after_an_outage_each_worker_has_the_time_for_its_own_next_heartbeat(queue):
    queue.register_worker(new_worker(), name="usual")
    queue.register_worker(new_worker(), name="slow", heartbeat_s="2m", stale_s="3m", dead_s="4m")
    assert silent(queue, 3600, reconnected_s=55) == []
    assert silent(queue, 3600, reconnected_s=56) == ["usual"]
    assert silent(queue, 3600, reconnected_s=190) == []
    assert silent(queue, 3600) == ["slow"]


def test_a_server_that_has_just_started_proves_no_worker_silent(queue):
    """A reaper that begins then did not see that the server was away."""
    queue.register_worker(new_worker(), name="usual", heartbeat_s="1000d", stale_s="2000d", dead_s="3000d")
    queue.execute("update outlive.workers set last_seen = pg_postmaster_start_time() - interval '1 second'")
    assert silent(queue, 0, reconnected_s=math.inf) == []
    queue.execute("update outlive.workers set last_seen = pg_postmaster_start_time()")
    assert silent(queue, 0, reconnected_s=math.inf) == ["usual"]


def test_a_reaper_waits_for_the_slowest_living_worker_after_a_jump_of_the_clock(queue):
    assert queue.run(store.slowest(30.0)) == 30.0
    slow = queue.register_worker(new_worker(), heartbeat_s="50s", dead_s="10m")
    assert queue.run(store.slowest(30.0)) == 50.0
    queue.run(store.stop_worker(slow))
    assert queue.run(store.slowest(30.0)) == 30.0


def test_a_reaper_that_has_just_begun_gives_workers_the_time_for_a_heartbeat(queue, database_url):
    """Before it began, the database may have been read-only for so long that no heartbeat could be written."""
    queue.register_worker(new_worker(), heartbeat_s="100ms", stale_s="200ms", dead_s="300ms")
    queue.execute("update outlive.workers set last_seen = clock_timestamp() - interval '1 second'")

    async def swept(*, anyway: bool) -> list[object]:
        reaper = Reaper(Session(database_url), Config(), Alerts())
        await reaper.sweep(anyway=anyway)
        await reaper.session.close()
        return queue.values("select state from outlive.workers")

    assert asyncio.run(swept(anyway=False)) == ["stale"]
    assert asyncio.run(swept(anyway=True)) == ["dead"], "a person has asked for it"


def test_a_task_has_a_worker_until_that_is_declared_dead(queue, database_url, caplog):
    """After an outage a sweep may come before its heartbeat."""
    queue.let_time_pass()
    queue.make()
    queue.register_worker(other := new_worker())
    queue.register_worker(only := new_worker(), heartbeat_s="100ms", stale_s="200ms", dead_s="300ms")
    queue.execute("update outlive.workers set tasks = array['other'] where id = %s", [other])
    queue.execute("update outlive.workers set last_seen = clock_timestamp() - interval '1 s' where id = %s", [only])

    async def sweep(*, anyway: bool) -> str:
        reaper = Reaper(Session(database_url), Config(), Alerts())
        await reaper.sweep(anyway=anyway)
        await reaper.session.close()
        return str(queue.value("select state from outlive.workers where id = %s", only))

    assert asyncio.run(sweep(anyway=False)) == "stale"
    assert "no active worker" not in caplog.text
    assert asyncio.run(sweep(anyway=True)) == "dead"
    assert "no active worker" in caplog.text


def test_one_slow_worker_does_not_suspend_the_leases_of_all_for_hours(queue, database_url, caplog):
    queue.register_worker(new_worker(), heartbeat_s="1h", stale_s="2h", dead_s="4h")

    async def notice_a_jump() -> None:
        reaper = Reaper(Session(database_url), Config(), Alerts())
        while "no lease expires" not in caplog.text:  # An answer that is late is not compared.
            await reaper.check()
            reaper.clocks.offset_s = (reaper.clocks.offset_s or 0.0) - 100
        await reaper.session.close()

    asyncio.run(notice_a_jump())
    assert "for 120 s no lease expires" in caplog.text


@pytest.mark.parametrize(("state", "outcome"), [(State.SUCCEEDED, Outcome.SUCCEEDED), (State.FAILED, Outcome.FAILED)])
def test_jobs_are_kept_as_long_as_their_app_says_whichever_process_prunes(queue, state, outcome):
    kept = {"app_keep_finished_s": 90 * DAY_S, "app_keep_failed_s": 90 * DAY_S}
    brief = {"app_keep_finished_s": 60.0, "app_keep_failed_s": 60.0}
    for name, keep in (("kept", kept), ("brief", brief)):
        queue.run(store.register_tasks([limits(name, **keep)]))
    for task in ("kept", "kept", "unknown", "brief"):
        queue.make_finished(outcome, task=task)
    left = []
    for days in (0.5, 8, 89, 91):
        queue.set_now(NOON, later_s=days * DAY_S)
        mark, more = None, True
        while more:
            _, more, mark = queue.run(store.prune_finished(state, keep_s=7 * DAY_S, after=mark, batch=1))
        left.append(queue.values("select task from outlive.jobs order by task"))
    assert left == [["kept", "kept", "unknown"], ["kept", "kept"], ["kept", "kept"], []]


def test_a_task_may_keep_its_jobs_for_longer_than_its_app(queue):
    queue.register_task(app_keep_finished_s=7 * DAY_S, keep_finished_s=30 * DAY_S)
    queue.make_finished()
    left = []
    for days in (8, 29, 31):
        queue.set_now(NOON, later_s=days * DAY_S)
        queue.run(store.prune_finished(State.SUCCEEDED, keep_s=7 * DAY_S))
        left.append(queue.value("select count(*) from outlive.jobs"))
    assert left == [1, 1, 0]


def test_crashes_are_kept_as_long_as_their_app_says(queue):
    queue.register_task(app_keep_failed_s=90 * DAY_S)
    for task in (TASK, "unknown"):
        add = "insert into outlive.crashes values (%s, 'f', 1, gen_random_uuid(), 'SIGSEGV', outlive.now())"
        queue.execute(add, [task])
    queue.set_now(NOON, later_s=31 * DAY_S)
    queue.run(store.prune_crashes(keep_s=30 * DAY_S))
    assert queue.values("select task from outlive.crashes") == [TASK]


def test_no_stored_duration_breaks_the_sweeps_of_the_database(queue):
    queue.register_worker(new_worker(), name="usual")
    queue.register_worker(new_worker(), name="eternal")
    queue.execute("update outlive.workers set stale_s = 9e11, dead_s = 9e11 where name = 'eternal'")
    queue.register_task(app_keep_finished_s=9e11, app_keep_failed_s=9e11)
    for task in (TASK, "unknown"):
        queue.make_finished(Outcome.FAILED, task=task)
    queue.execute("insert into outlive.crashes values (%s, 'f', 1, gen_random_uuid(), 'x', outlive.now())", [TASK])
    queue.execute(
        "insert into outlive.batches (id, name, created_at, done_at) "
        "select gen_random_uuid(), 'b', outlive.now(), outlive.now()"
    )
    assert silent(queue, 3600) == ["usual"]
    for keep_s in (60.0, 9e11):
        queue.run(store.prune_finished(State.FAILED, keep_s=keep_s))
        queue.run(store.prune_batches(keep_s=keep_s))
        queue.run(store.prune_crashes(keep_s=keep_s))
    assert queue.values("select task from outlive.jobs") == [TASK]


def test_a_reaper_without_a_command_leaves_a_killer_to_a_living_worker_that_has_one(queue):
    queue.make()
    queue.execute(
        "insert into outlive.held (id, why, since, queue, source, task, priority, ready_at, attempt, failures, crashes,"
        " losses) select id, 'quarantined', outlive.now(), queue, source, task, priority, ready_at, 0, 0, 3, 0"
        " from outlive.waiting"
    )
    other = queue.register_worker(new_worker(), on_quarantine="true")
    assert queue.run(store.untold_killers(command=False)) == []
    assert queue.run(store.untold_killers(batch=0)) == []
    queue.run(store.stop_worker(other))
    assert len(queue.run(store.untold_killers(command=False))) == 1


def test_a_reaper_without_a_command_leaves_a_breaker_to_a_living_worker_that_has_one(queue):
    queue.execute(
        "insert into outlive.sources (name, paused_until) values ('shop', outlive.now() + interval '5 minutes')"
    )
    other = queue.register_worker(new_worker(), on_source_paused="true", on_quarantine="true")
    assert queue.run(store.breakers(command=False)) == []
    assert len(queue.run(store.breakers())) == 1
    queue.execute("update outlive.sources set paused_until = null")
    queue.run(store.stop_worker(other))
    assert len(queue.run(store.breakers(command=False))) == 1


def test_a_death_is_told_once_to_a_worker_with_a_command_whichever_reaper_declared_it(queue):
    queue.register_worker(new_worker(), name="gone")
    (dead,) = [] if silent(queue, 121) == [] else queue.values("select id from outlive.workers")
    (told,) = queue.run(store.untold_deaths(within_s=60, batch=9))
    assert (told.id, told.name, told.why, told.running) == (dead, "gone", "no heartbeat for 120 s", 0)
    assert queue.run(store.untold_deaths(within_s=60, batch=9)) == []


def test_a_death_of_long_ago_is_not_told(queue):
    queue.register_worker(new_worker())
    silent(queue, 121)
    queue.set_now(NOON + timedelta(hours=1))
    assert queue.run(store.untold_deaths(within_s=60, batch=9)) == []
    assert (queue.count("workers"), queue.value("select told from outlive.workers")) == (1, False)
