"""Schedules as rows: how they fire once, how apps declare them, and what operators change."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outlive import db, store
from outlive.config import KEEP_SCHEDULES_S
from outlive.errors import BadArguments
from outlive.model import Declared, DueSchedule, Fired, Schedule
from outlive.states import State
from outlive.worker.schedules import Plan
from tests.driving.making import (
    TASK,
    Connect,
    claim,
    count,
    make_quarantined,
    new_worker,
    register_task,
    register_worker,
    row,
    run_job,
    set_now,
    state_of,
    value,
    values,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
APP = "shop:app"
UPDATE = "update outlive.schedules set CHANGE"


@pytest.fixture(autouse=True)
def noon(connection: db.Connection) -> None:
    set_now(connection, NOON)


def schedule(name: str = "report", **said: Any) -> Schedule:
    when = {} if "cron" in said or "every_s" in said else {"every_s": 60.0}
    return Schedule(**{"name": name, "task": TASK, "args": b"{}", **when, **said})


def declare(connection: db.Connection, *schedules: Schedule, app: str = APP) -> Declared:
    return db.run(connection, store.declare_schedules(schedules, app))


def due(connection: db.Connection) -> list[DueSchedule]:
    return db.run(connection, store.due_schedules()).due


def fire(connection: db.Connection, seen: DueSchedule, now: datetime = NOON) -> Fired | None:
    """Fire a schedule as a worker does that has read this row."""
    plan = Plan.of(seen, now)
    return db.run(connection, store.fire(seen, plan.ticks, plan.following))


def fire_all(connection: db.Connection, *, later_s: float) -> list[Fired | None]:
    """Move the clock, and fire all that is due, as the service of a worker does."""
    now = set_now(connection, NOON, later_s=later_s)
    return [fire(connection, seen, now) for seen in due(connection)]


def begin(connection: db.Connection, **said: Any) -> None:
    """Declare a schedule, and let a worker compute its first firing: a minute after noon, unless said otherwise."""
    declare(connection, schedule(**said))
    assert fire_all(connection, later_s=0) == [Fired(0, None)]


def the(connection: db.Connection, name: str = "report") -> dict[str, Any]:
    return row(connection, "select * from outlive.schedules where name = %s", name)


def firings(connection: db.Connection) -> Sequence[datetime]:
    """When the jobs are ready, in their order."""
    return values(connection, "select ready_at from outlive.jobs order by ready_at")


def jobs(connection: db.Connection) -> list[UUID]:
    return values(connection, "select id from outlive.jobs order by ready_at")


def minutes(*after_noon: int) -> list[datetime]:
    return [NOON + timedelta(minutes=minute) for minute in after_noon]


# Firing


def test_a_firing_makes_a_job_of_the_schedule_and_knows_the_next_one(connection: db.Connection) -> None:
    register_task(connection, queue="slow", source="")
    begin(connection, args=b'{"kind":"long"}', priority=3)
    assert the(connection)["next_at"] == NOON + timedelta(minutes=1)
    assert fire_all(connection, later_s=59.9) == []
    assert fire_all(connection, later_s=60.2) == [Fired(1, None)]
    job = row(connection, "select id, task, queue, args::text, priority, ready_at, created_at from outlive.jobs")
    assert (job["task"], job["queue"], job["args"], job["priority"]) == (TASK, "slow", '{"kind":"long"}', 3)
    assert (job["ready_at"], job["created_at"]) == (NOON + timedelta(minutes=1), NOON + timedelta(seconds=60.2))
    after = the(connection)
    assert (after["next_at"], after["last_tick"]) == (NOON + timedelta(minutes=2), NOON + timedelta(minutes=1))
    assert after["last_job"] == job["id"]
    assert state_of(connection, job["id"]) is State.PENDING
    assert db.run(connection, store.job(job["id"]))[0]["schedule"] == the(connection)["name"]


def test_two_workers_that_read_the_same_make_one_job(connection: db.Connection) -> None:
    begin(connection)
    now = set_now(connection, NOON, later_s=60)
    (seen,) = due(connection)
    assert fire(connection, seen, now) == Fired(1, None)
    assert fire(connection, seen, now) is None
    assert count(connection, "jobs") == 1


def test_a_schedule_that_another_worker_is_firing_is_left_to_it(connection: db.Connection, connect: Connect) -> None:
    begin(connection)
    now = set_now(connection, NOON, later_s=60)
    other = connect()
    set_now(other, now)
    (seen,) = due(connection)
    with connection.transaction():
        assert fire(connection, seen, now) == Fired(1, None)
        assert fire(other, seen, now) is None  # It does not wait.
    assert due(other) == []
    assert count(connection, "jobs") == 1


def test_many_workers_at_once_make_each_job_once(connection: db.Connection, connect: Connect) -> None:
    declare(connection, *[schedule(f"report-{n}") for n in range(20)])
    fire_all(connection, later_s=0)
    others = [connect() for _ in range(4)]
    together = threading.Barrier(len(others))

    def work(one: db.Connection) -> int:
        made = 0
        for minute in range(1, 6):
            together.wait()
            made += sum(fired.jobs for fired in fire_all(one, later_s=60 * minute) if fired)
        return made

    with ThreadPoolExecutor(len(others)) as threads:
        assert sum(threads.map(work, others)) == count(connection, "jobs") == 100


def test_the_id_of_a_job_follows_from_its_schedule_and_tick(connection: db.Connection) -> None:
    """So a firing whose answer was lost, or a schedule that was made again, makes no second job."""
    begin(connection)
    fire_all(connection, later_s=60)
    connection.execute("update outlive.schedules set next_at = %s", minutes(1))
    assert fire_all(connection, later_s=61) == [Fired(0, None)]
    connection.execute("delete from outlive.schedules")
    set_now(connection, NOON)
    begin(connection)
    fire_all(connection, later_s=60)
    (job,) = jobs(connection)
    assert job.version == 7
    assert job.int >> 80 == (NOON + timedelta(minutes=1)).timestamp() * 1000
    other = value(connection, "select outlive.tick_id('other', %s)", NOON)
    assert other != value(connection, "select outlive.tick_id('report', %s)", NOON)


def test_jitter_delays_each_firing_by_a_part_that_stays_the_same(connection: db.Connection) -> None:
    begin(connection, jitter_s=30.0)
    for minute in range(1, 31):
        fire_all(connection, later_s=60 * minute)
    delays = [(at - tick).total_seconds() for at, tick in zip(firings(connection), minutes(*range(1, 31)), strict=True)]
    assert all(0 <= delay < 30 for delay in delays)
    assert max(delays) - min(delays) > 15
    connection.execute("truncate outlive.jobs, outlive.waiting")
    connection.execute("update outlive.schedules set last_tick = null, next_at = %s", minutes(1))
    fire_all(connection, later_s=60)
    assert (firings(connection)[0] - NOON).total_seconds() == 60 + delays[0]


def test_a_schedule_that_ends_fires_no_more(connection: db.Connection) -> None:
    begin(connection, ends_at=NOON + timedelta(minutes=2))
    for minute in range(1, 6):
        fire_all(connection, later_s=60 * minute)
    assert firings(connection) == minutes(1, 2)
    (shown,) = db.run(connection, store.list_schedules())
    assert shown["next_at"] is None
    assert db.run(connection, store.due_schedules()).upcoming is None


def test_a_worker_learns_when_the_next_schedule_is_due(connection: db.Connection) -> None:
    nothing = db.run(connection, store.due_schedules())
    assert (nothing.exist, nothing.upcoming, nothing.due) == (False, None, [])
    declare(connection, schedule("late", every_s=3600.0), schedule("soon"), schedule("paused", every_s=5.0))
    fire_all(connection, later_s=0)
    db.run(connection, store.pause_schedule("paused"))
    found = db.run(connection, store.due_schedules())
    assert (found.now, found.exist, found.upcoming, found.due) == (NOON, True, NOON + timedelta(minutes=1), [])


# Missed firings


@pytest.mark.parametrize(
    ("missed", "fired"), [("skip", []), ("once", minutes(5)), ("all", minutes(1, 2, 3, 4, 5))], ids=lambda one: str(one)
)
def test_missed_firings_follow_the_choice(connection: db.Connection, missed: str, fired: list[datetime]) -> None:
    begin(connection, missed=missed)
    fire_all(connection, later_s=330)
    assert firings(connection) == fired
    fire_all(connection, later_s=361)
    assert firings(connection) == [*fired, *minutes(6)]


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_firings_that_are_a_little_late_are_not_missed(connection: db.Connection, missed: str) -> None:
    begin(connection, every_s=1.0, missed=missed)
    fire_all(connection, later_s=11)
    assert len(firings(connection)) == 11


def test_a_firing_on_time_after_missed_ones_is_made_whatever_is_chosen(connection: db.Connection) -> None:
    begin(connection, missed="skip")
    fire_all(connection, later_s=305)
    assert firings(connection) == minutes(5)


def test_no_more_than_a_thousand_missed_firings_are_made_up_for(connection: db.Connection) -> None:
    begin(connection, missed="all")
    fire_all(connection, later_s=60 * 5000)
    assert firings(connection) == minutes(*range(4001, 5001))


def test_a_paused_schedule_fires_nothing_and_its_firings_are_missed(connection: db.Connection) -> None:
    begin(connection, missed="all")
    (seen, now) = (
        DueSchedule("report", None, 60.0, "UTC", "all", None, None, minutes(1)[0], NOON, None),
        minutes(1)[0],
    )
    connection.execute("select outlive.pause_schedule('report')")
    assert fire(connection, seen, now) is None  # A worker may have read it before.
    assert fire_all(connection, later_s=150) == []
    connection.execute("select outlive.resume_schedule('report')")
    fire_all(connection, later_s=150)
    assert firings(connection) == minutes(1, 2)


# Overlap


def test_with_skip_no_job_is_made_while_the_last_one_is_not_finished(connection: db.Connection) -> None:
    begin(connection, overlap="skip")
    fire_all(connection, later_s=60)
    (first,) = jobs(connection)
    assert fire_all(connection, later_s=120) == [Fired(0, first)]
    claimed = claim(connection)[0]
    assert fire_all(connection, later_s=180) == [Fired(0, first)]
    assert the(connection)["last_tick"] == minutes(1)[0]
    connection.execute("delete from outlive.running where token = %s", [claimed.token])
    assert fire_all(connection, later_s=240) == [Fired(1, None)]
    assert firings(connection) == minutes(1, 4)


def test_with_skip_a_job_in_quarantine_does_not_stop_its_schedule(connection: db.Connection) -> None:
    begin(connection, overlap="skip")
    job = make_quarantined(connection)
    connection.execute("update outlive.schedules set last_job = %s", [job])
    assert fire_all(connection, later_s=60) == [Fired(1, None)]


def test_with_cancel_the_last_job_makes_room(connection: db.Connection) -> None:
    begin(connection, overlap="cancel")
    fire_all(connection, later_s=60)
    fire_all(connection, later_s=120)
    first, second = jobs(connection)
    assert (state_of(connection, first), state_of(connection, second)) == (State.CANCELLED, State.PENDING)
    claim(connection)
    fire_all(connection, later_s=180)
    assert state_of(connection, second) is State.RUNNING
    assert value(connection, "select cancel_requested from outlive.running where id = %s", second)
    assert state_of(connection, jobs(connection)[2]) is State.PENDING


@pytest.mark.parametrize("overlap", ["queue", "skip", "cancel"])
def test_a_tick_that_comes_again_leaves_its_job_alone(connection: db.Connection, overlap: str) -> None:
    begin(connection, overlap=overlap)
    fire_all(connection, later_s=60)
    connection.execute("update outlive.schedules set next_at = %s", minutes(1))
    assert fire_all(connection, later_s=61) == [Fired(0, None)]
    (job,) = jobs(connection)
    assert state_of(connection, job) is State.PENDING
    after = the(connection)
    assert (after["last_tick"], after["last_job"], after["next_at"]) == (minutes(1)[0], job, minutes(2)[0])


def test_a_change_after_the_clock_was_set_back_begins_after_the_last_firing(connection: db.Connection) -> None:
    begin(connection)
    fire_all(connection, later_s=120)
    set_now(connection, NOON, later_s=30)
    connection.execute("update outlive.schedules set every_s = 30")
    assert the(connection)["changed_at"] == minutes(2)[0]
    fire_all(connection, later_s=60)
    assert the(connection)["next_at"] == NOON + timedelta(seconds=150)
    assert firings(connection) == minutes(2)


def test_with_queue_jobs_wait_for_each_other(connection: db.Connection) -> None:
    begin(connection)
    for minute in (1, 2, 3):
        fire_all(connection, later_s=60 * minute)
    assert {state_of(connection, job) for job in jobs(connection)} == {State.PENDING}
    assert firings(connection) == minutes(1, 2, 3)


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_missed_firings_do_not_overlap_with_each_other(connection: db.Connection, overlap: str) -> None:
    begin(connection, missed="all", overlap=overlap)
    fire_all(connection, later_s=300)
    assert firings(connection) == minutes(5)


def test_a_finished_job_overlaps_with_nothing(connection: db.Connection) -> None:
    begin(connection, overlap="skip")
    for minute in (1, 2, 3):
        assert fire_all(connection, later_s=60 * minute) == [Fired(1, None)]
        run_job(connection, jobs(connection)[-1])


# Deploys


def test_a_declaration_that_is_repeated_changes_nothing(connection: db.Connection) -> None:
    begin(connection)
    fire_all(connection, later_s=60)
    before = the(connection)
    assert declare(connection, schedule()) == Declared()
    assert the(connection) == before


def test_a_changed_declaration_applies_from_now_on(connection: db.Connection) -> None:
    begin(connection)
    set_now(connection, NOON, later_s=30)
    declare(connection, schedule(cron="*/10 * * * *", every_s=None, args=b"[1]", overlap="skip", queue="slow"))
    after = the(connection)
    assert (after["cron"], after["every_s"], after["overlap"], after["queue"]) == ("*/10 * * * *", None, "skip", "slow")
    assert after["next_at"] is None
    fire_all(connection, later_s=60)
    assert the(connection)["next_at"] == minutes(10)[0]
    assert firings(connection) == []


def test_a_change_that_leaves_the_times_alone_leaves_the_next_firing_too(connection: db.Connection) -> None:
    begin(connection)
    declare(connection, schedule(missed="skip", priority=1))
    assert the(connection)["next_at"] == minutes(1)[0]


def in_force(connection: db.Connection) -> list[str]:
    return values(connection, "select name from outlive.schedules where withdrawn_at is null order by 1")


def test_a_removed_declaration_withdraws_the_schedule_of_that_app_only(connection: db.Connection) -> None:
    declare(connection, schedule("mine"), schedule("gone"))
    declare(connection, schedule("theirs"), app="bank:app")
    db.run(connection, store.add_schedule("by hand", {"task": TASK, "every_s": 5.0}))
    assert declare(connection, schedule("mine")) == Declared(withdrawn=["gone"])
    assert in_force(connection) == ["by hand", "mine", "theirs"]
    assert declare(connection, schedule("mine")) == Declared()
    declare(connection)
    assert in_force(connection) == ["by hand", "theirs"]


def test_a_withdrawn_schedule_does_not_fire_and_is_deleted_after_a_week(connection: db.Connection) -> None:
    begin(connection)
    (seen,) = due_at(connection, later_s=60)
    declare(connection)
    assert due(connection) == []
    assert fire(connection, seen, NOON + timedelta(minutes=1)) is None
    for later_s, left in ((KEEP_SCHEDULES_S, 1), (KEEP_SCHEDULES_S + 61, 0)):
        set_now(connection, NOON, later_s=later_s)
        db.run(connection, store.prune_schedules(keep_s=KEEP_SCHEDULES_S))
        assert count(connection, "schedules") == left


def due_at(connection: db.Connection, *, later_s: float) -> list[DueSchedule]:
    set_now(connection, NOON, later_s=later_s)
    return due(connection)


# Which workers declare what


def start(connection: db.Connection, *names: str, app: str = APP) -> UUID:
    """A worker of an app starts that declares these schedules."""
    worker = register_worker(connection, new_worker())
    db.run(connection, store.tell_tasks(worker, [TASK], app=app, schedules=names))
    declare(connection, *map(schedule, names), app=app)
    return worker


def check(connection: db.Connection) -> list[tuple[str, str, bool]]:
    return db.run(connection, store.check_schedules())


@pytest.mark.fault(78)
def test_two_services_with_the_same_name_delete_no_schedule_of_each_other(connection: db.Connection) -> None:
    billing = start(connection, "invoice", app="main:app")
    connection.execute("update outlive.schedules set jitter_s = 7")
    mail = start(connection, "digest", app="main:app")
    for _ in range(2):
        start(connection, "invoice", app="main:app"), start(connection, "digest", app="main:app")
        assert check(connection) == []
        assert in_force(connection) == ["digest", "invoice"]
    # One of them is down for an hour: its schedules wait for it, with all that operators have changed.
    gone = "update outlive.workers set state = 'dead' where schedules = '{invoice}' or id = %s"
    connection.execute(gone, [billing])
    assert check(connection) == [("invoice", "main:app", True)]
    assert (check(connection), in_force(connection)) == ([], ["digest"])
    db.run(connection, store.stop_worker(mail))
    set_now(connection, NOON, later_s=3600)
    start(connection, "invoice", app="main:app")
    assert in_force(connection) == ["digest", "invoice"]
    assert value(connection, "select jitter_s from outlive.schedules where name = 'invoice'") == 7


def test_a_deploy_that_drops_a_schedule_is_done_when_the_last_old_worker_is_gone(connection: db.Connection) -> None:
    olds = [start(connection, "kept", "dropped") for _ in range(2)]
    start(connection, "kept", "added")
    assert in_force(connection) == ["added", "dropped", "kept"]
    for old, withdrawn in zip(olds, ([], [("dropped", APP, True)]), strict=True):
        db.run(connection, store.stop_worker(old))
        assert check(connection) == withdrawn
    assert in_force(connection) == ["added", "kept"]


def test_while_no_worker_of_an_app_runs_its_schedules_stay_in_force(connection: db.Connection) -> None:
    db.run(connection, store.stop_worker(start(connection, "report")))
    start(connection, "other", app="bank:app")
    register_worker(connection, new_worker())  # In another language: it has no app.
    assert check(connection) == []
    assert in_force(connection) == ["other", "report"]


def test_a_schedule_withdrawn_by_mistake_is_put_back_in_force(connection: db.Connection) -> None:
    start(connection, "report")
    connection.execute("update outlive.schedules set withdrawn_at = outlive.now()")
    assert check(connection) == [("report", APP, False)]
    assert in_force(connection) == ["report"]


def orphaned(connection: db.Connection, worker: UUID) -> list[str]:
    return db.run(connection, store.orphaned_schedules(worker))


def test_a_schedule_that_another_app_took_over_and_dropped_goes_back_to_the_worker_that_declares_it(
    connection: db.Connection,
) -> None:
    older = start(connection, "report")
    set_now(connection, NOON, later_s=1)
    newer = start(connection, "report")
    taker = start(connection, "report", app="bank:app")
    assert orphaned(connection, newer) == []
    db.run(connection, store.stop_worker(taker))
    renamed = start(connection, "bank report", app="bank:app")
    assert check(connection) == []
    assert in_force(connection) == ["bank report", "report"]
    assert [orphaned(connection, one) for one in (older, newer, renamed)] == [[], ["report"], []]
    assert declare(connection, schedule(every_s=7.0)) == Declared(taken=["report"])
    assert (the(connection)["declared_by"], the(connection)["every_s"]) == (APP, 7.0)
    assert orphaned(connection, newer) == []


def test_what_an_operator_has_changed_survives_a_deploy_and_the_rest_follows(connection: db.Connection) -> None:
    declare(connection, schedule(cron="0 * * * *", timezone="Europe/Berlin", args=b'{"a": 1}'))
    connection.execute("update outlive.schedules set cron = '30 * * * *', missed = 'all'")
    declare(connection, schedule(every_s=5.0, timezone="Asia/Tokyo", args=b'{"a": 2}', missed="skip", jitter_s=1.0))
    kept = the(connection)
    assert (kept["cron"], kept["every_s"], kept["missed"]) == ("30 * * * *", None, "all")
    assert (kept["timezone"], kept["args"], kept["jitter_s"]) == ("Asia/Tokyo", {"a": 2}, 1.0)
    (shown,) = db.run(connection, store.list_schedules())
    assert shown["changed"] is True
    connection.execute("select outlive.reset_schedule('report')")
    back = the(connection)
    assert (back["cron"], back["every_s"], back["missed"]) == (None, 5.0, "skip")
    (shown,) = db.run(connection, store.list_schedules())
    assert shown["changed"] is False


def test_a_reset_brings_the_arguments_back_as_the_app_has_written_them(connection: db.Connection) -> None:
    declare(connection, schedule(args=b'{"b":1.50,"a":[1,2]}'))
    connection.execute("update outlive.schedules set args = '[]'")
    connection.execute("select outlive.reset_schedule('report')")
    assert value(connection, "select args::text from outlive.schedules") == '{"b":1.50,"a":[1,2]}'


def test_a_pause_survives_a_deploy(connection: db.Connection) -> None:
    declare(connection, schedule())
    connection.execute("select outlive.pause_schedule('report')")
    declare(connection, schedule(every_s=5.0))
    assert the(connection)["paused_at"] == NOON


def test_a_schedule_that_an_operator_made_outlives_an_app_that_declares_and_drops_its_name(
    connection: db.Connection,
) -> None:
    db.run(connection, store.add_schedule("report", {"task": TASK, "every_s": 5.0}))
    before = the(connection)
    assert declare(connection, schedule(every_s=60.0, queue="slow")) == Declared(refused=["report"])
    assert the(connection) == before
    assert declare(connection) == Declared()
    assert the(connection) == before


def test_a_schedule_of_another_app_is_taken_over_and_named(connection: db.Connection) -> None:
    declare(connection, schedule(every_s=5.0))
    assert declare(connection, schedule(every_s=60.0), app="bank:app") == Declared(taken=["report"])
    declare(connection)  # The first app no longer owns it.
    assert (the(connection)["every_s"], the(connection)["declared_by"]) == (60.0, "bank:app")


def test_two_versions_that_declare_at_once_do_not_deadlock(connection: db.Connection, connect: Connect) -> None:
    names = [f"report-{n}" for n in range(10)]
    versions = [[schedule(name) for name in names[:7]], [schedule(name, every_s=5.0) for name in reversed(names[3:])]]
    others = [connect() for _ in versions]

    def deploy(version: int) -> None:
        for _ in range(20):
            declare(others[version], *versions[version])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(deploy, range(2)))
    assert in_force(connection) in (names[:7], names[3:])


# Operators


@pytest.mark.parametrize(
    "change",
    [
        "every_s = 5",
        "cron = '* * * * *', every_s = null",
        "timezone = 'Asia/Tokyo'",
        "starts_at = '2026-01-01T13:00Z'",
        "ends_at = '2026-01-02Z'",
    ],
)
def test_a_plain_update_of_the_times_computes_the_next_firing_again(connection: db.Connection, change: str) -> None:
    begin(connection)
    connection.execute("update outlive.schedules set trouble = 'why'")
    assert the(connection)["next_at"] is not None
    now = set_now(connection, NOON, later_s=10)
    connection.execute(UPDATE.replace("CHANGE", change).encode())
    after = the(connection)
    assert (after["next_at"], after["changed_at"], after["trouble"]) == (None, now, None)
    (seen,) = due(connection)
    assert seen.changed_at == now


def test_a_schedule_that_was_changed_since_it_was_read_does_not_fire_by_its_old_times(
    connection: db.Connection,
) -> None:
    declare(connection, schedule(every_s=1.0))
    (seen,) = due(connection)
    now = set_now(connection, NOON, later_s=5)
    connection.execute("update outlive.schedules set every_s = 3600")
    assert fire(connection, seen, now) is None
    assert count(connection, "jobs") == 0


def test_the_firings_since_a_change_count_even_if_no_worker_was_there(connection: db.Connection) -> None:
    declare(connection, schedule(missed="all"))
    fire_all(connection, later_s=130)
    assert firings(connection) == minutes(1, 2)


def test_run_now_makes_a_job_beside_the_firings(connection: db.Connection) -> None:
    begin(connection, overlap="skip", args=b"[1]", queue="slow", priority=0)
    connection.execute("select outlive.pause_schedule('report')")
    job = db.run(connection, store.run_schedule("report"))
    found = row(connection, "select queue, args::text, priority, ready_at from outlive.jobs where id = %s", job)
    assert found == {"queue": "slow", "args": "[1]", "priority": 0, "ready_at": NOON}
    after = the(connection)
    assert (after["last_job"], after["next_at"]) == (job, minutes(1)[0])
    connection.execute("select outlive.resume_schedule('report')")
    assert fire_all(connection, later_s=60) == [Fired(0, job)]


def test_run_now_does_not_hide_a_firing_that_still_runs(connection: db.Connection) -> None:
    begin(connection, overlap="skip")
    fire_all(connection, later_s=60)
    (firing,) = jobs(connection)
    claim(connection)
    run_job(connection, db.run(connection, store.run_schedule("report")))
    assert fire_all(connection, later_s=120) == [Fired(0, firing)]


def test_a_schedule_is_made_set_and_removed_by_hand(connection: db.Connection) -> None:
    assert db.run(connection, store.set_schedule("report", {"cron": "* * * * *"})) is False
    assert db.run(connection, store.add_schedule("report", {"task": TASK, "cron": "* * * * *", "args": [1]}))
    assert db.run(connection, store.add_schedule("report", {"task": TASK, "cron": "* * * * *"})) is False
    assert db.run(connection, store.set_schedule("report", {"timezone": "Asia/Tokyo", "overlap": "skip"}))
    made = the(connection)
    assert (made["cron"], made["args"], made["timezone"]) == ("* * * * *", [1], "Asia/Tokyo")
    assert (made["missed"], made["overlap"], made["declared"]) == ("once", "skip", None)
    db.run(connection, store.remove_schedule("report"))
    assert count(connection, "schedules") == 0


def test_a_withdrawn_schedule_that_is_given_a_task_becomes_the_operators_own(connection: db.Connection) -> None:
    begin(connection)
    declare(connection)
    db.run(connection, store.set_schedule("report", {"every_s": 5.0}))
    assert the(connection)["withdrawn_at"] == NOON
    db.run(connection, store.set_schedule("report", {"task": "shop.other"}))
    owned = the(connection)
    assert (owned["task"], owned["every_s"], owned["withdrawn_at"]) == ("shop.other", 5.0, None)
    assert (owned["declared"], owned["declared_by"]) == (None, None)
    assert declare(connection, schedule()) == Declared(refused=["report"])
    assert fire_all(connection, later_s=5) == [Fired(1, None)]


def test_a_schedule_in_force_that_is_given_another_task_stays_its_apps(connection: db.Connection) -> None:
    begin(connection)
    db.run(connection, store.set_schedule("report", {"task": "shop.other"}))
    assert the(connection)["declared_by"] == APP


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "reset", "remove"])
def test_a_verb_names_a_schedule_that_does_not_exist(connection: db.Connection, verb: str) -> None:
    with pytest.raises(BadArguments, match="there is no schedule missing"), db.translated_errors():
        connection.execute(f"select outlive.{verb}_schedule('missing')".encode())


def test_a_schedule_that_no_app_declares_cannot_be_reset(connection: db.Connection) -> None:
    db.run(connection, store.add_schedule("report", {"task": TASK, "every_s": 5.0}))
    with pytest.raises(BadArguments, match="no app has declared the schedule report"), db.translated_errors():
        db.run(connection, store.reset_schedule("report"))


@pytest.mark.parametrize(
    "nonsense",
    [
        "cron = '* * * * *'",
        "every_s = null",
        "every_s = 0.5",
        "every_s = 'nan'",
        "missed = 'some'",
        "overlap = 'allow'",
        "starts_at = 'infinity'",
        "ends_at = '-infinity'",
        "next_at = '-infinity'",
        "next_at = '9999-01-01Z'",
        "last_tick = '-infinity'",
        "paused_at = 'infinity'",
        "created_at = '-infinity'",
        "changed_at = 'infinity'",
        "name = repeat('x', 201)",
        "task = repeat('x', 201)",
        "queue = repeat('x', 201)",
        "timezone = repeat('x', 201)",
        "args = '1'",
        """args = '{"a": "\\u0000"}'""",
        "args = json_build_array(repeat('x', 70000))",
        "priority = 10",
        "jitter_s = 1e6",
        "queue = ''",
    ],
)
def test_what_no_worker_could_read_or_enqueue_is_refused(connection: db.Connection, nonsense: str) -> None:
    declare(connection, schedule())
    with pytest.raises((psycopg.IntegrityError, psycopg.DataError)):
        connection.execute(UPDATE.replace("CHANGE", nonsense).encode())


def test_trouble_is_noted_until_the_next_firing(connection: db.Connection) -> None:
    begin(connection)
    now = set_now(connection, NOON, later_s=60)
    (seen,) = due(connection)
    db.run(connection, store.note_trouble(seen, "no such zone"))
    (again,) = due(connection)
    assert again.trouble == "no such zone"
    fire(connection, again, now)
    assert the(connection)["trouble"] is None


def test_a_worker_that_cannot_fire_marks_nothing_that_another_has_fired(connection: db.Connection) -> None:
    begin(connection)
    now = set_now(connection, NOON, later_s=60)
    (seen,) = due(connection)
    fire(connection, seen, now)
    assert not db.run(connection, store.note_trouble(seen, "no such zone"))
    assert the(connection)["trouble"] is None


def test_the_view_shows_a_schedule_and_how_its_last_job_stands(connection: db.Connection) -> None:
    begin(connection)
    fire_all(connection, later_s=60)
    shown = row(connection, "select * from outlive.schedule_states")
    assert (shown["name"], shown["task"], shown["every_s"], shown["paused"]) == ("report", TASK, 60.0, False)
    assert (shown["next_at"], shown["last_tick"]) == (minutes(2)[0], minutes(1)[0])
    assert (shown["last_job"], shown["last_state"]) == (jobs(connection)[0], "pending")
    assert (shown["declared_by"], shown["changed"], shown["trouble"]) == (APP, False, None)
