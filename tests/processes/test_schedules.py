"""Schedules of real workers: they fire, follow deploys and operators, and one that is broken stops no other."""

import asyncio
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outlive import store
from outlive.worker.fleet.schedules import LOOK_S
from tests.driving.making import Queue
from tests.driving.schedules import ENDS, Clockwork, assert_each_second_once, let_sessions_begin_with, ticks_of
from tests.driving.workers import Start, Worker
from tests.waiting import eventually

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TARGET = "tests.processes.scheduled:app"
TICK = "tests.processes.scheduled.tick"
SOURCE = """
import outlive
app = outlive.App()

@app.schedule(WHEN)
@app.task
def report(kind: str = "short") -> str:
    return kind
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A module whose schedule a test changes."""
    return tmp_path / "scheduled_shop.py"


def write(shop: Path, when: str | None) -> None:
    line = "" if when is None else f"@app.schedule({when})\n"
    shop.write_text(SOURCE.replace("@app.schedule(WHEN)\n", line))


def deploy(start: Start, shop: Path, when: str | None, **how: Any) -> Worker:
    """Start a worker of a new version."""
    write(shop, when)
    return start(target="scheduled_shop:app", folder=shop.parent, slots=1, **how)


def declared(queue: Queue) -> list[tuple[str | None, float | None]]:
    return queue.execute("select cron, every_s from outlive.schedules where withdrawn_at is null").fetchall()


def test_a_worker_fires_its_schedule_and_runs_the_jobs(start, queue):
    start(target=TARGET, slots=1)
    eventually(lambda: len(ticks_of(queue, TICK)) >= 4, within_s=15, what="four ticks")
    ticks = ticks_of(queue, TICK)
    assert_each_second_once(ticks)
    assert all(tick.microsecond == 0 for tick in ticks)
    eventually(lambda: queue.execute(ENDS).fetchall() >= [(4, 4)], what="their jobs run")
    late = "select max(extract(epoch from created_at - ready_at)) from outlive.jobs"
    assert queue.value(late) < 5  # It wakes up for it. The first ones may be made up for.
    assert queue.row("select name, task, declared_by from outlive.schedules") == {
        "name": TICK,
        "task": TICK,
        "declared_by": TARGET,
    }


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("'30-10 * * * *'", "has the cron expression '30-10 * * * *', which can't be read (Bad minute)"),
        ("'0 9 * * *', timezone='Europe/Berln'", "has the time zone 'Europe/Berln', which is not known here"),
    ],
)
def test_a_worker_refuses_to_start_with_a_schedule_that_it_cannot_read(start, queue, shop, when, reason):
    worker = deploy(start, shop, when, wait=False)
    assert worker.process.wait(30) == 2
    assert f"the schedule scheduled_shop.report {reason}" in " ".join(worker.log().split())
    assert queue.count("schedules") == 0


def test_a_worker_refuses_to_start_with_a_schedule_whose_argument_is_of_the_wrong_type(start, queue, shop):
    worker = deploy(start, shop, "every='1h', name='hourly', args={'kind': 5}", wait=False)
    assert worker.process.wait(30) == 3
    said = " ".join(worker.log().split())
    assert "scheduled_shop.py, line 5: outlive.errors.BadArguments: the schedule hourly is refused: " in said
    assert "scheduled_shop.report can't be enqueued: argument kind: expected str, got int" in said
    assert queue.count("schedules") == 0


def test_a_worker_checks_arguments_of_schedules_also_by_annotations_that_come_later(start, queue, shop):
    source = SOURCE.replace("WHEN", "every='1h', args={'kind': 'lnog'}").replace("kind: str", "kind: 'Kind'")
    shop.write_text(f"{source}\nfrom typing import Literal\nKind = Literal['short', 'long']\n")
    worker = start(target="scheduled_shop:app", folder=shop.parent, slots=1, wait=False)
    assert worker.process.wait(30) == 3
    refused = "the schedule scheduled_shop.report of scheduled_shop.report is refused: argument kind: invalid enum"
    assert refused in " ".join(worker.log().split())
    assert queue.count("schedules") == 0


def test_a_deploy_changes_and_removes_schedules(start, queue, shop):
    deploy(start, shop, "'0 9 * * *'").stop()
    assert declared(queue) == [("0 9 * * *", None)]
    deploy(start, shop, "every='1h'").stop()
    assert declared(queue) == [(None, 3600.0)]
    worker = deploy(start, shop, None)
    assert declared(queue) == []
    worker.says("the app scheduled_shop:app runs and no longer declares them: scheduled_shop.report. They are deleted")


@pytest.mark.fault(78)
def test_two_services_of_the_same_name_leave_each_others_schedules_alone(start, queue, tmp_path):
    workers = {}
    for name in ("invoice", "digest"):
        (tmp_path / name).mkdir()
        source = f"import outlive\napp = outlive.App()\n@app.schedule(every='1h')\ndef {name}() -> None: ...\n"
        (tmp_path / name / "main.py").write_text(source)
        workers[name] = start(target="main:app", folder=tmp_path / name, slots=1, sweep_s="0.2")
    assert in_force(queue) == ["main.digest", "main.invoice"]
    workers["invoice"].stop()
    eventually(lambda: in_force(queue) == ["main.digest"], what="the schedule waits for its service")
    workers["digest"].says("tell the two apart with App(service=")
    start(target="main:app", folder=tmp_path / "invoice", slots=1, service="billing")
    assert in_force(queue) == ["main.digest", "main.invoice"]
    assert queue.values("select declared_by from outlive.schedules order by name") == ["main:app", "billing"]


def test_a_worker_takes_back_its_schedule_from_a_service_that_no_longer_declares_it(start, queue, shop):
    deploy(start, shop, "every='1h'", service="billing", sweep_s="0.2")
    taker = deploy(start, shop, "every='2h'", service="mail")
    assert declared(queue) == [(None, 7200.0)]
    taker.stop()
    eventually(lambda: declared(queue) == [(None, 3600.0)], what="the schedule of the worker that still runs")
    assert queue.value("select declared_by from outlive.schedules") == "billing"


def in_force(queue: Queue) -> list[str]:
    return queue.values("select name from outlive.schedules where withdrawn_at is null order by name")


def test_a_worker_names_its_schedule_that_an_operators_keeps_from_being_in_force(start, queue, shop):
    queue.run(store.add_schedule("scheduled_shop.report", {"task": TICK, "every_s": 5.0}))
    worker = deploy(start, shop, "'0 9 * * *'")
    worker.says("the schedule scheduled_shop.report of this app is not in force, because an operator has made one")
    assert declared(queue) == [(None, 5.0)]


def test_an_older_worker_that_runs_on_takes_nothing_back(start, queue, shop):
    old = deploy(start, shop, "'0 9 * * *'")
    deploy(start, shop, "every='1h'")
    write(shop, "'0 9 * * *'")  # The old one imports its own version again.
    for _ in range(2):  # What it does after the first time is done before the second.
        before = queue.value("select updated_at from outlive.tasks")
        os.kill(old.zygote(), signal.SIGKILL)
        registered = "select updated_at > %s from outlive.tasks"
        eventually(lambda: queue.value(registered, before), what="it registers its tasks again")  # noqa: B023
    assert declared(queue) == [(None, 3600.0)]


def test_a_reload_declares_what_has_changed(start, queue, shop):
    worker = deploy(start, shop, "'0 9 * * *'")
    write(shop, "'30-10 9 * * *'")
    worker.send(signal.SIGHUP)
    worker.says("the reload failed, and the worker goes on with the old app: the schedule scheduled_shop.report has")
    assert declared(queue) == [("0 9 * * *", None)]
    write(shop, "'30 10 * * *'")  # Not of the same length: Python would take the file for unchanged in the same second.
    worker.send(signal.SIGHUP)
    eventually(lambda: declared(queue) == [("30 10 * * *", None)], what="the new one is declared")


def test_a_worker_starts_while_a_transaction_has_locked_its_schedule(start, queue, admin, shop):
    deploy(start, shop, "'0 9 * * *'").stop()
    with admin.transaction():
        admin.execute("update outlive.schedules set paused_at = outlive.now()")
        worker = deploy(start, shop, "every='1h'")
        worker.says("another transaction has locked schedules: what this app declares waits for it")
        assert declared(queue) == [("0 9 * * *", None)]
    eventually(lambda: declared(queue) == [(None, 3600.0)], what="the new one is declared")
    assert queue.value("select paused_at is not null from outlive.schedules")


def test_an_operators_change_holds_within_a_second_and_for_the_next_worker(start, queue, shop):
    worker = deploy(start, shop, "'0 9 * * *'")
    queue.execute("update outlive.schedules set cron = null, every_s = 1")
    eventually(lambda: queue.count("jobs") > 1, within_s=8, what="it fires every second")
    worker.stop()
    deploy(start, shop, "'30 10 * * *'")
    assert declared(queue) == [(None, 1.0)]


def test_a_broken_schedule_stops_no_other_and_says_why(start, queue):
    worker = start(target=TARGET, slots=1)
    queue.run(store.add_schedule("broken", {"task": TICK, "cron": "61 * * * *"}))
    trouble = "select trouble from outlive.schedules where name = 'broken'"
    eventually(lambda: "Bad minute" in (queue.value(trouble) or ""), what="its trouble is noted")
    before = len(ticks_of(queue, TICK))
    eventually(lambda: len(ticks_of(queue, TICK)) >= before + 3, what="the other one fires")
    assert_each_second_once(ticks_of(queue, TICK))
    queue.execute("update outlive.schedules set cron = '* * * * * *' where name = 'broken'")
    fired = "select last_job is not null and trouble is null from outlive.schedules where name = 'broken'"
    eventually(lambda: queue.value(fired), what="it fires when it is repaired")
    worker.says("schedule broken can't fire: the schedule broken has the cron expression")
    assert worker.log().count("can't fire") == 1


def test_a_firing_that_waits_for_a_locked_job_loses_no_firing_of_another_schedule(start, queue, admin):
    """A firing that cancels waits for that job, but not for long, and in a session of its own."""
    stuck = {"task": "no worker has this task", "every_s": 1.0, "overlap": "cancel"}
    queue.run(store.add_schedule("stuck", stuck))
    worker = start(target=TARGET, slots=1)
    job = eventually(lambda: queue.value("select last_job from outlive.schedules where name = 'stuck'"))
    with admin.transaction():
        admin.execute("select from outlive.jobs where id = %s for update", [job])
        if queue.value("select last_job from outlive.schedules where name = 'stuck'") == job:
            worker.says("schedule stuck fires later", within_s=15)
        before = len(ticks_of(queue, TICK))
        eventually(lambda: len(ticks_of(queue, TICK)) > before + 3, within_s=20, what="the other one fires")
    assert_each_second_once(ticks_of(queue, TICK))


# The service, on a clock that the test moves

REFUSES = """
    create function refuse() returns trigger language plpgsql as
      $$ begin raise exception using message = 'not today', errcode = TG_ARGV[0]; end $$;
    create trigger refuse before insert on outlive.jobs for each row
      when (new.task = 'bad') execute function refuse(CODE)
"""


def looked(url: str, *at: datetime) -> list[float]:
    """Look at these moments. Returns how long the service would wait after each."""

    async def look() -> list[float]:
        clockwork = Clockwork(url)
        try:
            return [await clockwork.look(moment) for moment in at]
        finally:
            await clockwork.close()

    return asyncio.run(look())


def add(connection: Queue, name: str = "report", *, at: datetime = NOON, **said: Any) -> None:
    """Make a schedule, at noon unless said otherwise."""
    connection.execute("select set_config('outlive.now', %s, false)", [at.isoformat()])
    connection.run(store.add_schedule(name, {"task": "work", **said}))


def test_the_service_sleeps_until_something_is_due_but_not_for_long(database_url, queue):
    assert looked(database_url, NOON) == [pytest.approx(LOOK_S, abs=0.2)]
    add(queue, cron="* * * * *")
    after, before, just_before = (NOON + timedelta(seconds=s) for s in (0, 30, 59.75))
    waits_s = looked(database_url, after, before, just_before)
    assert waits_s[:2] == [LOOK_S, LOOK_S]
    assert 0.2 < waits_s[2] <= 0.25


def test_the_service_looks_again_at_once_while_more_is_due_than_it_reads(database_url, queue, monkeypatch):
    monkeypatch.setattr("outlive.worker.fleet.schedules.MOST_AT_ONCE", 2)
    for name in "abc":
        add(queue, name, cron="* * * * *")
    assert looked(database_url, NOON, NOON, NOON) == [0.0, LOOK_S, LOOK_S]
    queue.execute("update outlive.schedules set cron = '61 * * * *'")
    assert min(looked(database_url, NOON, NOON, NOON)) > LOOK_S / 2  # In trouble, they are no reason to spin.


def test_missed_firings_are_logged_by_the_worker_that_makes_up_for_them(database_url, queue, caplog):
    add(queue, cron="* * * * *", missed="all")
    looked(database_url, NOON, NOON + timedelta(minutes=30, seconds=30))
    assert queue.count("jobs") == 30
    assert "schedule report missed its firings since 2026-01-01T12:01:00+00:00: 30 jobs" in caplog.text


def test_a_skipped_firing_is_logged_with_the_job_for_which_it_was_skipped(database_url, queue, caplog):
    caplog.set_level("INFO", logger="outlive.worker")
    add(queue, cron="* * * * *", overlap="skip")
    looked(database_url, *(NOON + timedelta(minutes=minute) for minute in range(3)))
    (job,) = queue.values("select id from outlive.jobs")
    assert f"schedule report skips a firing: job {job} of an earlier one is not finished" in caplog.text


def test_a_database_in_a_local_zone_fires_each_tick_once_while_its_clocks_go_back(database_url, queue):
    let_sessions_begin_with(queue, "timezone", "Europe/Berlin")
    begin = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)  # 02:30 in Berlin. The clocks go back half an hour later.
    add(queue, at=begin, every_s=300.0, missed="all")
    waits_s = looked(database_url, *(begin + timedelta(minutes=minute) for minute in range(1, 101)))
    assert waits_s == [LOOK_S] * len(waits_s)  # It does not spin.
    assert ticks_of(queue, "work") == [begin + timedelta(minutes=minute) for minute in range(5, 101, 5)]


def refuse_jobs_of(queue: Queue, sqlstate: str) -> None:
    """Make two schedules, and let the database refuse the jobs of the one that is called bad."""
    queue.execute(REFUSES.replace("CODE", f"'{sqlstate}'").encode())
    add(queue, "bad", task="bad", cron="* * * * *")
    add(queue, "good", cron="* * * * *")


@pytest.mark.parametrize("sqlstate", ["P0001", "42P01", "XX000", "23514"])
def test_a_schedule_whose_jobs_the_database_refuses_stops_no_other(database_url, queue, sqlstate):
    refuse_jobs_of(queue, sqlstate)
    looked(database_url, NOON, NOON + timedelta(minutes=1))
    assert ticks_of(queue, "work") == [NOON + timedelta(minutes=1)]
    trouble = queue.execute("select trouble from outlive.schedules order by name").fetchall()
    assert trouble == [("not today",), (None,)]


@pytest.mark.parametrize("sqlstate", ["42501", "25006", "53100"])
def test_what_would_meet_every_schedule_is_no_trouble_of_one(database_url, queue, sqlstate):
    refuse_jobs_of(queue, sqlstate)
    with pytest.raises(psycopg.Error, match="not today"):
        looked(database_url, NOON, NOON + timedelta(minutes=1))
    assert queue.values("select trouble from outlive.schedules") == [None, None]


def test_a_broken_schedule_that_a_transaction_has_locked_stops_no_other(database_url, queue, admin, caplog):
    add(queue, "bad", cron="61 * * * *")
    add(queue, "good", every_s=60.0)
    with admin.transaction():
        admin.execute("select from outlive.schedules where name = 'bad' for update")
        looked(database_url, NOON, NOON + timedelta(minutes=1))
        assert ticks_of(queue, "work") == [NOON + timedelta(minutes=1)]
    assert "can't fire" not in caplog.text
    looked(database_url, NOON, NOON)
    assert caplog.text.count("schedule bad can't fire") == 1
