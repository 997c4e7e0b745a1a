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
from outlive.protocol import Wait
from outlive.states import State
from outlive.worker.fleet.schedules import Plan
from tests.driving.making import TASK, WORKER, Queue, new_worker

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
APP = "shop:app"
UPDATE = "update outlive.schedules set CHANGE"


@pytest.fixture(autouse=True)
def noon(queue: Queue) -> None:
    queue.set_now(NOON)


def schedule(name: str = "report", **said: Any) -> Schedule:
    when = {} if "cron" in said or "every_s" in said else {"every_s": 60.0}
    return Schedule(**{"name": name, "task": TASK, "args": b"{}", **when, **said})


def declare(queue: Queue, *schedules: Schedule, app: str = APP) -> Declared:
    return queue.run(store.declare_schedules(schedules, app))


def due(queue: Queue) -> list[DueSchedule]:
    return queue.run(store.due_schedules()).due


def fire(queue: Queue, seen: DueSchedule, now: datetime = NOON) -> Fired | None:
    """Fire a schedule as a worker does that has read this row."""
    plan = Plan.of(seen, now)
    return queue.run(store.fire(seen, plan.ticks, plan.following))


def fire_all(queue: Queue, *, later_s: float) -> list[Fired | None]:
    """Move the clock, and fire all that is due, as the service of a worker does."""
    now = queue.set_now(NOON, later_s=later_s)
    return [fire(queue, seen, now) for seen in due(queue)]


def begin(connection: Queue, **said: Any) -> None:
    """Declare a schedule, and let a worker compute its first firing: a minute after noon, unless said otherwise."""
    declare(connection, schedule(**said))
    assert fire_all(connection, later_s=0) == [Fired(0, None)]


def the(queue: Queue, name: str = "report") -> dict[str, Any]:
    return queue.row("select * from outlive.schedules where name = %s", name)


def firings(queue: Queue) -> Sequence[datetime]:
    """When the jobs are ready, in their order."""
    return queue.values("select ready_at from outlive.jobs order by ready_at")


def jobs(queue: Queue) -> list[UUID]:
    return queue.values("select id from outlive.jobs order by ready_at")


def minutes(*after_noon: int) -> list[datetime]:
    return [NOON + timedelta(minutes=minute) for minute in after_noon]


# Firing


def test_a_firing_makes_a_job_of_the_schedule_and_knows_the_next_one(queue):
    queue.register_task(queue="slow", source="")
    begin(queue, args=b'{"kind":"long"}', priority=3)
    assert the(queue)["next_at"] == NOON + timedelta(minutes=1)
    assert fire_all(queue, later_s=59.9) == []
    assert fire_all(queue, later_s=60.2) == [Fired(1, None)]
    job = queue.row("select id, task, queue, args::text, priority, ready_at, created_at from outlive.jobs")
    assert (job["task"], job["queue"], job["args"], job["priority"]) == (TASK, "slow", '{"kind":"long"}', 3)
    assert (job["ready_at"], job["created_at"]) == (NOON + timedelta(minutes=1), NOON + timedelta(seconds=60.2))
    after = the(queue)
    assert (after["next_at"], after["last_tick"]) == (NOON + timedelta(minutes=2), NOON + timedelta(minutes=1))
    assert after["last_job"] == job["id"]
    assert queue.state_of(job["id"]) is State.PENDING
    assert queue.run(store.job(job["id"]))[0]["schedule"] == the(queue)["name"]


def test_a_schedule_that_another_worker_is_firing_is_left_to_it(queue, connect):
    begin(queue)
    now = queue.set_now(NOON, later_s=60)
    other = connect()
    other.set_now(now)
    (seen,) = due(queue)
    with queue.transaction():
        assert fire(queue, seen, now) == Fired(1, None)
        assert fire(other, seen, now) is None  # It does not wait.
    assert due(other) == []
    assert queue.count("jobs") == 1


def test_many_workers_at_once_make_each_job_once(queue, connect):
    declare(queue, *[schedule(f"report-{n}") for n in range(20)])
    fire_all(queue, later_s=0)
    others = [connect() for _ in range(4)]
    together = threading.Barrier(len(others))

    def work(one: Queue) -> int:
        made = 0
        for minute in range(1, 6):
            together.wait()
            made += sum(fired.jobs for fired in fire_all(one, later_s=60 * minute) if fired)
        return made

    with ThreadPoolExecutor(len(others)) as threads:
        assert sum(threads.map(work, others)) == queue.count("jobs") == 100


def test_the_id_of_a_job_follows_from_its_schedule_and_tick(queue):
    """So a firing whose answer was lost, or a schedule that was made again, makes no second job."""
    begin(queue)
    fire_all(queue, later_s=60)
    queue.execute("update outlive.schedules set next_at = %s", minutes(1))
    assert fire_all(queue, later_s=61) == [Fired(0, None)]
    queue.execute("delete from outlive.schedules")
    queue.set_now(NOON)
    begin(queue)
    fire_all(queue, later_s=60)
    (job,) = jobs(queue)
    assert job.version == 7
    assert job.int >> 80 == (NOON + timedelta(minutes=1)).timestamp() * 1000
    other = queue.value("select outlive.tick_id('other', %s)", NOON)
    assert other != queue.value("select outlive.tick_id('report', %s)", NOON)


def test_jitter_delays_each_firing_by_a_part_that_stays_the_same(queue):
    begin(queue, jitter_s=30.0)
    for minute in range(1, 31):
        fire_all(queue, later_s=60 * minute)
    delays = [(at - tick).total_seconds() for at, tick in zip(firings(queue), minutes(*range(1, 31)), strict=True)]
    assert all(0 <= delay < 30 for delay in delays)
    assert max(delays) - min(delays) > 15
    queue.execute("truncate outlive.jobs, outlive.waiting")
    queue.execute("update outlive.schedules set last_tick = null, next_at = %s", minutes(1))
    fire_all(queue, later_s=60)
    assert (firings(queue)[0] - NOON).total_seconds() == 60 + delays[0]


def test_a_schedule_that_ends_fires_no_more(queue):
    begin(queue, ends_at=NOON + timedelta(minutes=2))
    for minute in range(1, 6):
        fire_all(queue, later_s=60 * minute)
    assert firings(queue) == minutes(1, 2)
    (shown,) = queue.run(store.list_schedules())
    assert shown["next_at"] is None
    assert queue.run(store.due_schedules()).upcoming is None


def test_a_worker_learns_when_the_next_schedule_is_due(queue):
    nothing = queue.run(store.due_schedules())
    assert (nothing.upcoming, nothing.due) == (None, [])
    declare(queue, schedule("late", every_s=3600.0), schedule("soon"), schedule("paused", every_s=5.0))
    fire_all(queue, later_s=0)
    queue.run(store.pause_schedule("paused"))
    found = queue.run(store.due_schedules())
    assert (found.now, found.upcoming, found.due) == (NOON, NOON + timedelta(minutes=1), [])


# Missed firings


@pytest.mark.parametrize(
    ("missed", "fired"), [("skip", []), ("once", minutes(5)), ("all", minutes(1, 2, 3, 4, 5))], ids=lambda one: str(one)
)
def test_missed_firings_follow_the_choice(queue, missed, fired):
    begin(queue, missed=missed)
    fire_all(queue, later_s=330)
    assert firings(queue) == fired
    fire_all(queue, later_s=361)
    assert firings(queue) == [*fired, *minutes(6)]


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_firings_that_are_a_little_late_are_not_missed(queue, missed):
    begin(queue, every_s=1.0, missed=missed)
    fire_all(queue, later_s=11)
    assert len(firings(queue)) == 11


def test_a_firing_on_time_after_missed_ones_is_made_whatever_is_chosen(queue):
    begin(queue, missed="skip")
    fire_all(queue, later_s=305)
    assert firings(queue) == minutes(5)


def test_no_more_than_a_thousand_missed_firings_are_made_up_for(queue):
    begin(queue, missed="all")
    fire_all(queue, later_s=60 * 5000)
    assert firings(queue) == minutes(*range(4001, 5001))


def test_a_paused_schedule_fires_nothing_and_its_firings_are_missed(queue):
    begin(queue, missed="all")
    (seen, now) = (
        DueSchedule("report", None, 60.0, "UTC", "all", None, None, minutes(1)[0], NOON, None),
        minutes(1)[0],
    )
    queue.execute("select outlive.pause_schedule('report')")
    assert fire(queue, seen, now) is None  # A worker may have read it before.
    assert fire_all(queue, later_s=150) == []
    queue.execute("select outlive.resume_schedule('report')")
    fire_all(queue, later_s=150)
    assert firings(queue) == minutes(1, 2)


# Overlap


def test_with_skip_no_job_is_made_while_the_last_one_is_not_finished(queue):
    begin(queue, overlap="skip")
    fire_all(queue, later_s=60)
    (first,) = jobs(queue)
    assert fire_all(queue, later_s=120) == [Fired(0, first)]
    claimed = queue.claim()[0]
    assert fire_all(queue, later_s=180) == [Fired(0, first)]
    assert the(queue)["last_tick"] == minutes(1)[0]
    queue.execute("delete from outlive.running where token = %s", [claimed.token])
    assert fire_all(queue, later_s=240) == [Fired(1, None)]
    assert firings(queue) == minutes(1, 4)


def test_with_skip_a_job_in_quarantine_does_not_stop_its_schedule(queue):
    begin(queue, overlap="skip")
    job = queue.make_quarantined()
    queue.execute("update outlive.schedules set last_job = %s", [job])
    assert fire_all(queue, later_s=60) == [Fired(1, None)]


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_a_job_that_waits_as_its_code_says_is_not_finished(queue, overlap):
    begin(queue, overlap=overlap)
    fire_all(queue, later_s=60)
    (first,) = jobs(queue)
    [claimed] = queue.claim()
    queue.run(store.suspend(WORKER, Wait(claimed.token, "sleep", after_s=3600.0)))
    if overlap == "skip":
        assert fire_all(queue, later_s=120) == [Fired(0, first)]
        assert queue.run(store.run_schedule("report")) != first
        assert the(queue)["last_job"] == first
    else:
        assert fire_all(queue, later_s=120) == [Fired(1, None)]
        assert queue.state_of(first) is State.CANCELLED


def test_with_cancel_the_last_job_makes_room(queue):
    begin(queue, overlap="cancel")
    fire_all(queue, later_s=60)
    fire_all(queue, later_s=120)
    first, second = jobs(queue)
    assert (queue.state_of(first), queue.state_of(second)) == (State.CANCELLED, State.PENDING)
    queue.claim()
    fire_all(queue, later_s=180)
    assert queue.state_of(second) is State.RUNNING
    assert queue.value("select cancel_requested from outlive.running where id = %s", second)
    assert queue.state_of(jobs(queue)[2]) is State.PENDING


@pytest.mark.parametrize("overlap", ["queue", "skip", "cancel"])
def test_a_tick_that_comes_again_leaves_its_job_alone(queue, overlap):
    begin(queue, overlap=overlap)
    fire_all(queue, later_s=60)
    queue.execute("update outlive.schedules set next_at = %s", minutes(1))
    assert fire_all(queue, later_s=61) == [Fired(0, None)]
    (job,) = jobs(queue)
    assert queue.state_of(job) is State.PENDING
    after = the(queue)
    assert (after["last_tick"], after["last_job"], after["next_at"]) == (minutes(1)[0], job, minutes(2)[0])


def test_a_change_after_the_clock_was_set_back_begins_after_the_last_firing(queue):
    begin(queue)
    fire_all(queue, later_s=120)
    queue.set_now(NOON, later_s=30)
    queue.execute("update outlive.schedules set every_s = 30")
    assert the(queue)["changed_at"] == minutes(2)[0]
    fire_all(queue, later_s=60)
    assert the(queue)["next_at"] == NOON + timedelta(seconds=150)
    assert firings(queue) == minutes(2)


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_missed_firings_do_not_overlap_with_each_other(queue, overlap):
    begin(queue, missed="all", overlap=overlap)
    fire_all(queue, later_s=300)
    assert firings(queue) == minutes(5)


# Deploys


def test_a_declaration_that_is_repeated_changes_nothing(queue):
    begin(queue)
    fire_all(queue, later_s=60)
    before = the(queue)
    assert declare(queue, schedule()) == Declared()
    assert the(queue) == before


def test_a_changed_declaration_applies_from_now_on(queue):
    begin(queue)
    queue.set_now(NOON, later_s=30)
    declare(queue, schedule(cron="*/10 * * * *", every_s=None, args=b"[1]", overlap="skip", queue="slow"))
    after = the(queue)
    assert (after["cron"], after["every_s"], after["overlap"], after["queue"]) == ("*/10 * * * *", None, "skip", "slow")
    assert after["next_at"] is None
    fire_all(queue, later_s=60)
    assert the(queue)["next_at"] == minutes(10)[0]
    assert firings(queue) == []


def test_a_change_that_leaves_the_times_alone_leaves_the_next_firing_too(queue):
    begin(queue)
    declare(queue, schedule(missed="skip", priority=1))
    assert the(queue)["next_at"] == minutes(1)[0]


def in_force(queue: Queue) -> list[str]:
    return queue.values("select name from outlive.schedules where withdrawn_at is null order by 1")


def test_a_removed_declaration_withdraws_the_schedule_of_that_app_only(queue):
    declare(queue, schedule("mine"), schedule("gone"))
    declare(queue, schedule("theirs"), app="bank:app")
    queue.run(store.add_schedule("by hand", {"task": TASK, "every_s": 5.0}))
    assert declare(queue, schedule("mine")) == Declared(withdrawn=["gone"])
    assert in_force(queue) == ["by hand", "mine", "theirs"]
    assert declare(queue, schedule("mine")) == Declared()
    declare(queue)
    assert in_force(queue) == ["by hand", "theirs"]


def test_a_withdrawn_schedule_does_not_fire_and_is_deleted_after_a_week(queue):
    begin(queue)
    (seen,) = due_at(queue, later_s=60)
    declare(queue)
    assert due(queue) == []
    assert fire(queue, seen, NOON + timedelta(minutes=1)) is None
    for later_s, left in ((KEEP_SCHEDULES_S, 1), (KEEP_SCHEDULES_S + 61, 0)):
        queue.set_now(NOON, later_s=later_s)
        queue.run(store.prune_schedules(keep_s=KEEP_SCHEDULES_S))
        assert queue.count("schedules") == left


def due_at(queue: Queue, *, later_s: float) -> list[DueSchedule]:
    queue.set_now(NOON, later_s=later_s)
    return due(queue)


# Which workers declare what


def start(queue: Queue, *names: str, app: str = APP) -> UUID:
    """A worker of an app starts that declares these schedules."""
    worker = queue.register_worker(new_worker())
    queue.run(store.tell_tasks(worker, [TASK], app=app, schedules=names))
    declare(queue, *map(schedule, names), app=app)
    return worker


def check(queue: Queue) -> list[tuple[str, str, bool]]:
    return queue.run(store.check_schedules())


@pytest.mark.fault(78)
def test_two_services_with_the_same_name_delete_no_schedule_of_each_other(queue):
    billing = start(queue, "invoice", app="main:app")
    queue.execute("update outlive.schedules set jitter_s = 7")
    mail = start(queue, "digest", app="main:app")
    for _ in range(2):
        start(queue, "invoice", app="main:app"), start(queue, "digest", app="main:app")
        assert check(queue) == []
        assert in_force(queue) == ["digest", "invoice"]
    # One of them is down for an hour: its schedules wait for it, with all that operators have changed.
    gone = "update outlive.workers set state = 'dead' where schedules = '{invoice}' or id = %s"
    queue.execute(gone, [billing])
    assert check(queue) == [("invoice", "main:app", True)]
    assert (check(queue), in_force(queue)) == ([], ["digest"])
    queue.run(store.stop_worker(mail))
    queue.set_now(NOON, later_s=3600)
    start(queue, "invoice", app="main:app")
    assert in_force(queue) == ["digest", "invoice"]
    assert queue.value("select jitter_s from outlive.schedules where name = 'invoice'") == 7


def test_a_deploy_that_drops_a_schedule_is_done_when_the_last_old_worker_is_gone(queue):
    olds = [start(queue, "kept", "dropped") for _ in range(2)]
    start(queue, "kept", "added")
    assert in_force(queue) == ["added", "dropped", "kept"]
    for old, withdrawn in zip(olds, ([], [("dropped", APP, True)]), strict=True):
        queue.run(store.stop_worker(old))
        assert check(queue) == withdrawn
    assert in_force(queue) == ["added", "kept"]


def test_while_no_worker_of_an_app_runs_its_schedules_stay_in_force(queue):
    queue.run(store.stop_worker(start(queue, "report")))
    start(queue, "other", app="bank:app")
    queue.register_worker(new_worker())  # In another language: it has no app.
    assert check(queue) == []
    assert in_force(queue) == ["other", "report"]


def test_a_schedule_withdrawn_by_mistake_is_put_back_in_force(queue):
    start(queue, "report")
    queue.execute("update outlive.schedules set withdrawn_at = outlive.now()")
    assert check(queue) == [("report", APP, False)]
    assert in_force(queue) == ["report"]


def orphaned(queue: Queue, worker: UUID) -> list[str]:
    return queue.run(store.orphaned_schedules(worker))


def test_a_schedule_that_another_app_took_over_and_dropped_goes_back_to_the_worker_that_declares_it(queue):
    older = start(queue, "report")
    queue.set_now(NOON, later_s=1)
    newer = start(queue, "report")
    taker = start(queue, "report", app="bank:app")
    assert orphaned(queue, newer) == []
    queue.run(store.stop_worker(taker))
    renamed = start(queue, "bank report", app="bank:app")
    assert check(queue) == []
    assert in_force(queue) == ["bank report", "report"]
    assert [orphaned(queue, one) for one in (older, newer, renamed)] == [[], ["report"], []]
    assert declare(queue, schedule(every_s=7.0)) == Declared(taken=["report"])
    assert (the(queue)["declared_by"], the(queue)["every_s"]) == (APP, 7.0)
    assert orphaned(queue, newer) == []


def test_what_an_operator_has_changed_survives_a_deploy_and_the_rest_follows(queue):
    declare(queue, schedule(cron="0 * * * *", timezone="Europe/Berlin", args=b'{"a": 1}'))
    queue.execute("update outlive.schedules set cron = '30 * * * *', missed = 'all'")
    declare(queue, schedule(every_s=5.0, timezone="Asia/Tokyo", args=b'{"a": 2}', missed="skip", jitter_s=1.0))
    kept = the(queue)
    assert (kept["cron"], kept["every_s"], kept["missed"]) == ("30 * * * *", None, "all")
    assert (kept["timezone"], kept["args"], kept["jitter_s"]) == ("Asia/Tokyo", {"a": 2}, 1.0)
    (shown,) = queue.run(store.list_schedules())
    assert shown["changed"] is True
    queue.execute("select outlive.reset_schedule('report')")
    back = the(queue)
    assert (back["cron"], back["every_s"], back["missed"]) == (None, 5.0, "skip")
    (shown,) = queue.run(store.list_schedules())
    assert shown["changed"] is False


def test_a_reset_brings_the_arguments_back_as_the_app_has_written_them(queue):
    declare(queue, schedule(args=b'{"b":1.50,"a":[1,2]}'))
    queue.execute("update outlive.schedules set args = '[]'")
    queue.execute("select outlive.reset_schedule('report')")
    assert queue.value("select args::text from outlive.schedules") == '{"b":1.50,"a":[1,2]}'


def test_a_pause_survives_a_deploy(queue):
    declare(queue, schedule())
    queue.execute("select outlive.pause_schedule('report')")
    declare(queue, schedule(every_s=5.0))
    assert the(queue)["paused_at"] == NOON


def test_a_schedule_that_an_operator_made_outlives_an_app_that_declares_and_drops_its_name(queue):
    queue.run(store.add_schedule("report", {"task": TASK, "every_s": 5.0}))
    before = the(queue)
    assert declare(queue, schedule(every_s=60.0, queue="slow")) == Declared(refused=["report"])
    assert the(queue) == before
    assert declare(queue) == Declared()
    assert the(queue) == before


def test_two_versions_that_declare_at_once_do_not_deadlock(queue, connect):
    names = [f"report-{n}" for n in range(10)]
    versions = [[schedule(name) for name in names[:7]], [schedule(name, every_s=5.0) for name in reversed(names[3:])]]
    others = [connect() for _ in versions]

    def deploy(version: int) -> None:
        for _ in range(20):
            declare(others[version], *versions[version])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(deploy, range(2)))
    assert in_force(queue) in (names[:7], names[3:])


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
def test_a_plain_update_of_the_times_computes_the_next_firing_again(queue, change):
    begin(queue)
    queue.execute("update outlive.schedules set trouble = 'why'")
    assert the(queue)["next_at"] is not None
    now = queue.set_now(NOON, later_s=10)
    queue.execute(UPDATE.replace("CHANGE", change).encode())
    after = the(queue)
    assert (after["next_at"], after["changed_at"], after["trouble"]) == (None, now, None)
    (seen,) = due(queue)
    assert seen.changed_at == now


def test_a_schedule_that_was_changed_since_it_was_read_does_not_fire_by_its_old_times(queue):
    declare(queue, schedule(every_s=1.0))
    (seen,) = due(queue)
    now = queue.set_now(NOON, later_s=5)
    queue.execute("update outlive.schedules set every_s = 3600")
    assert fire(queue, seen, now) is None
    assert queue.count("jobs") == 0


def test_the_firings_since_a_change_count_even_if_no_worker_was_there(queue):
    declare(queue, schedule(missed="all"))
    fire_all(queue, later_s=130)
    assert firings(queue) == minutes(1, 2)


def test_run_now_makes_a_job_beside_the_firings(queue):
    begin(queue, overlap="skip", args=b"[1]", queue="slow", priority=0)
    queue.execute("select outlive.pause_schedule('report')")
    job = queue.run(store.run_schedule("report"))
    found = queue.row("select queue, args::text, priority, ready_at from outlive.jobs where id = %s", job)
    assert found == {"queue": "slow", "args": "[1]", "priority": 0, "ready_at": NOON}
    after = the(queue)
    assert (after["last_job"], after["next_at"]) == (job, minutes(1)[0])
    queue.execute("select outlive.resume_schedule('report')")
    assert fire_all(queue, later_s=60) == [Fired(0, job)]


def test_run_now_does_not_hide_a_firing_that_still_runs(queue):
    begin(queue, overlap="skip")
    fire_all(queue, later_s=60)
    (firing,) = jobs(queue)
    queue.claim()
    queue.run_job(queue.run(store.run_schedule("report")))
    assert fire_all(queue, later_s=120) == [Fired(0, firing)]


def test_a_firing_does_not_cancel_a_job_that_an_operator_blocks_meanwhile(ring):
    ring.watcher.set_now(NOON)
    begin(ring.watcher, overlap="cancel")
    fire_all(ring.watcher, later_s=60)
    (job,) = jobs(ring.watcher)
    with ring.first.transaction():
        ring.first.run(store.block([job], "not now"))
        fired = ring.start(lambda second: fire_all(second, later_s=120))
    assert fired.result() == [Fired(1, None)]
    assert ring.watcher.state_of(job) is State.BLOCKED


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "reset", "remove"])
def test_each_verb_refuses_the_name_of_no_schedule_when_there_are_no_schedules(queue, verb):
    queue.execute("analyze outlive.schedules")
    with pytest.raises(BadArguments, match="there is no schedule report"), db.translated_errors():
        queue.run(getattr(store, f"{verb}_schedule")("report"))


def test_a_withdrawn_schedule_that_is_given_a_task_becomes_the_operators_own(queue):
    begin(queue)
    declare(queue)
    queue.run(store.set_schedule("report", {"every_s": 5.0}))
    assert the(queue)["withdrawn_at"] == NOON
    queue.run(store.set_schedule("report", {"task": "shop.other"}))
    owned = the(queue)
    assert (owned["task"], owned["every_s"], owned["withdrawn_at"]) == ("shop.other", 5.0, None)
    assert (owned["declared"], owned["declared_by"]) == (None, None)
    assert declare(queue, schedule()) == Declared(refused=["report"])
    assert fire_all(queue, later_s=5) == [Fired(1, None)]


def test_a_schedule_in_force_that_is_given_another_task_stays_its_apps(queue):
    begin(queue)
    queue.run(store.set_schedule("report", {"task": "shop.other"}))
    assert the(queue)["declared_by"] == APP


def test_a_schedule_that_no_app_declares_cannot_be_reset(queue):
    queue.run(store.add_schedule("report", {"task": TASK, "every_s": 5.0}))
    with pytest.raises(BadArguments, match="no app has declared the schedule report"), db.translated_errors():
        queue.run(store.reset_schedule("report"))


@pytest.mark.parametrize(
    "nonsense",
    [
        *("cron = '* * * * *'", "every_s = null", "every_s = 0.5", "every_s = 'nan'", "missed = 'some'"),
        *("overlap = 'allow'", "starts_at = 'infinity'", "ends_at = '-infinity'", "next_at = '-infinity'"),
        *("next_at = '9999-01-01Z'", "last_tick = '-infinity'", "paused_at = 'infinity'", "created_at = '-infinity'"),
        *("changed_at = 'infinity'", "name = repeat('x', 201)", "task = repeat('x', 201)", "queue = repeat('x', 201)"),
        *("timezone = repeat('x', 201)", "args = '1'", """args = '{"a": "\\u0000"}'"""),
        *("args = json_build_array(repeat('x', 70000))", "priority = 10", "jitter_s = 1e6", "queue = ''"),
    ],
)
def test_what_no_worker_could_read_or_enqueue_is_refused(queue, nonsense):
    declare(queue, schedule())
    with pytest.raises((psycopg.IntegrityError, psycopg.DataError)):
        queue.execute(UPDATE.replace("CHANGE", nonsense).encode())


def test_trouble_is_noted_until_the_next_firing(queue):
    begin(queue)
    now = queue.set_now(NOON, later_s=60)
    (seen,) = due(queue)
    queue.run(store.note_trouble(seen, "no such zone"))
    (again,) = due(queue)
    assert again.trouble == "no such zone"
    fire(queue, again, now)
    assert the(queue)["trouble"] is None


def test_a_worker_that_cannot_fire_marks_nothing_that_another_has_fired(queue):
    begin(queue)
    now = queue.set_now(NOON, later_s=60)
    (seen,) = due(queue)
    fire(queue, seen, now)
    assert not queue.run(store.note_trouble(seen, "no such zone"))
    assert the(queue)["trouble"] is None
