"""Programs make, change and list schedules while workers run."""

import asyncio
import datetime
from typing import Any

import psycopg
import pytest

import outlive
from outlive import store
from outlive.model import Schedule
from outlive.policy import Parameter
from tests.client.example import add, in_a_loop
from tests.driving.making import Queue, register_task

UNKNOWN = "shop.report"
"""A task that the app does not have."""
DECLARED = Schedule(name="night", task=add.name, args=b'{"a":1}', cron="0 3 * * *", timezone="Europe/Berlin")
"""A schedule that an app declares."""


@pytest.fixture
def night(app, queue):
    queue.run(store.declare_schedules([DECLARED], "shop:app"))
    return app.get_schedule("night")


@pytest.fixture
def described(queue):
    """A worker has described the task that the app does not have."""
    register_task(queue, name=UNKNOWN, signature=(Parameter("kind", annotation="str", required=True),))


def stored(queue: Queue, name: str = "night") -> dict[str, Any]:
    return queue.row("select * from outlive.schedules where name = %s", name)


def test_a_schedule_is_changed_field_by_field_and_reset(app, queue, night):
    night.set(cron="0 4 * * *", args={"a": 2, "b": 3}, timezone="Asia/Tokyo", overlap="skip", priority=2)
    row = stored(queue)
    assert (row["cron"], row["args"], row["timezone"]) == ("0 4 * * *", {"a": 2, "b": 3}, "Asia/Tokyo")
    assert (row["overlap"], row["priority"], row["missed"], row["declared_by"]) == ("skip", 2, "once", "shop:app")
    in_a_loop(night.aset(every="10m", jitter=5, end=datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)))
    row = stored(queue)
    assert (row["cron"], row["every_s"], row["jitter_s"], row["args"]["b"]) == (None, 600.0, 5.0, 3)
    night.set(priority=None, end=None)
    assert (stored(queue)["priority"], stored(queue)["ends_at"]) == (None, None)
    night.reset()
    assert (stored(queue)["cron"], stored(queue)["args"]) == ("0 3 * * *", {"a": 1})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "schedule.set needs an option: say what the schedule is to have"),
        ({"zone": "UTC"}, "schedule.set has the unknown option zone"),
        ({"name": "day"}, "schedule.set has the unknown option name"),
        ({"cron": "* * * * *", "every": "5s"}, "cron and every are both given: give only one of them"),
        ({"cron": "61 * * * *"}, r"has the cron expression '61 \* \* \* \*', which can't be read \(Bad minute\)"),
        ({"cron": None}, "the schedule night needs either a cron expression or an interval"),
        ({"cron": 5}, "cron is of type int, not text"),
        ({"timezone": "Europe/Berln"}, "has the time zone 'Europe/Berln', which is not known here"),
        ({"every": "100ms"}, "every is '100ms': it must be a duration of at least one second"),
        ({"jitter": "2d"}, "jitter is '2d': it must be a duration of at most a day"),
        ({"overlap": "some"}, "overlap is 'some': it must be skip, queue or cancel"),
        ({"args": {"a": "x"}}, "the schedule night is refused: .*argument a: expected int, got str"),
        ({"args": {}}, "the schedule night is refused: .*missing a required argument: 'a'"),
        ({"args": 3}, "args is 3: it must be a mapping of arguments by name"),
        ({"args": {"a": 2**400000}}, "args|the schedule"),
        ({"task": UNKNOWN}, "the schedule night is refused: .*missing a required argument: 'kind'"),
        ({"task": UNKNOWN, "args": {"kind": 3}}, "the schedule night is refused: .*kind: expected str, got int"),
        ({"task": add.using(priority=1)}, "schedule.set takes a task without using"),
    ],
)
def test_what_no_worker_could_fire_is_refused_and_changes_nothing(app, queue, night, described, given, reason):
    before = stored(queue)
    with pytest.raises((outlive.ConfigError, outlive.BadArguments), match=reason):
        night.set(**given)
    assert stored(queue) == before


def test_a_schedule_that_is_not_there_can_not_be_set(app, queue):
    with pytest.raises(outlive.BadArguments) as of_pause:
        app.get_schedule("day").pause()
    with pytest.raises(outlive.BadArguments) as of_set:
        app.get_schedule("day").set(every="1h")
    assert str(of_set.value) == str(of_pause.value)


def test_a_schedule_is_made_that_no_deploy_removes(app, queue):
    made = app.add_schedule("customer-7", add, cron="0 4 * * *", args={"a": 7}, timezone="Asia/Tokyo", overlap="skip")
    row = stored(queue, "customer-7")
    assert (made.name, row["task"], row["args"], row["cron"]) == ("customer-7", add.name, {"a": 7}, "0 4 * * *")
    assert (row["timezone"], row["overlap"], row["priority"], row["declared_by"]) == ("Asia/Tokyo", "skip", None, None)
    queue.run(store.declare_schedules([DECLARED], "shop:app"))
    queue.run(store.declare_schedules([], "shop:app"))
    assert [one.name for one in app.schedules() if one.withdrawn_at is None] == ["customer-7"]
    assert app.get_job(made.run()).info().args == {"a": 7}


def test_a_name_that_is_taken_is_refused_and_its_schedule_stays(app, queue):
    in_a_loop(app.aadd_schedule("customer-7", add, every="1h", args=[7]))
    with pytest.raises(outlive.ConfigError) as caught:
        app.add_schedule("customer-7", add, every="2h", args=[8])
    already = "there is a schedule customer-7 already: app.get_schedule('customer-7').set(…) changes it"
    assert str(caught.value) == already
    assert (stored(queue, "customer-7")["every_s"], stored(queue, "customer-7")["args"]) == (3600.0, {"a": 7})


def test_a_schedule_is_made_in_the_transaction_of_its_caller(app, queue, database_url):
    with psycopg.connect(database_url) as connection:
        app.add_schedule("customer-7", UNKNOWN, every="1h", args={"kind": "x"}, connection=connection)
        assert app.schedules() == []
        connection.rollback()
        assert app.schedules() == []
        app.add_schedule("customer-7", UNKNOWN, every="1h", connection=connection)
    assert [one.name for one in app.schedules()] == ["customer-7"]


def test_a_call_that_takes_no_connection_of_this_kind_names_the_one_that_does(app, database_url):
    async def use() -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            app.add_schedule("customer-7", add, every="1h", args=[1], connection=connection)

    with pytest.raises(outlive.WrongConnection, match="aadd_schedule"):
        asyncio.run(use())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "app.add_schedule takes either a cron expression or every=…: give exactly one of them"),
        ({"cron": "* * * * *", "every": 5}, "app.add_schedule takes either a cron expression or every"),
        ({"cron": "0 25 * * *"}, "a cron expression, and its hour from 0 to 23"),
        ({"cron": "0 4 * * *", "timezone": "Mars"}, "the schedule customer-7 has the time zone 'Mars'"),
        ({"every": "1h", "zone": "UTC"}, "app.add_schedule has the unknown option zone"),
        ({"every": "1h", "args": {"kind": 3}}, "customer-7 is refused: .* argument kind: expected str, got int"),
        ({"every": "1h"}, "customer-7 is refused: .* missing a required argument: 'kind'"),
        ({"every": "1h", "task": lambda: None}, "app.add_schedule takes a task, which is a function with @app.task"),
        ({"every": "1h", "task": add.using(delay=3)}, "app.add_schedule takes a task without using"),
        ({"every": "1h", "task": add, "args": {"a": "7"}}, "customer-7 is refused: .* argument a: expected int"),
    ],
)
def test_what_could_not_be_fired_is_not_made(app, queue, described, given, reason):
    with pytest.raises((outlive.ConfigError, outlive.BadArguments), match=reason):
        app.add_schedule("customer-7", **{"task": UNKNOWN, **given})
    assert queue.count("schedules") == 0


def test_arguments_are_taken_for_a_task_that_no_worker_has_described(app, queue):
    app.add_schedule("customer-7", UNKNOWN, every="1h", args={"kind": 3})
    assert stored(queue, "customer-7")["args"] == {"kind": 3}


def test_schedules_are_listed_with_what_the_command_shows(app, queue, night):
    app.add_schedule("customer-7", add, every="1h", args=[7])
    night.pause()
    night.set(overlap="skip")
    customers, declared = app.schedules()
    assert in_a_loop(app.aschedules()) == [[customers, declared]]
    assert (customers.name, customers.task, customers.args, customers.every_s) == (
        "customer-7",
        add.name,
        {"a": 7},
        3600,
    )
    assert (customers.declared_by, customers.paused, customers.changed, customers.last_state) == (
        None,
        False,
        False,
        None,
    )
    assert {(tick.minute, tick.second) for tick in customers.next} == {(0, 0)}
    assert (declared.cron, declared.timezone, declared.declared_by) == ("0 3 * * *", "Europe/Berlin", "shop:app")
    assert (declared.paused, declared.changed, len(declared.next)) == (True, True, 5)
    job = app.get_schedule("customer-7").run()
    (ran, _) = app.schedules()
    assert (ran.last_job, ran.last_state) == (job, outlive.State.PENDING)


def test_a_queue_says_how_many_jobs_wait_and_run(app, queue):
    mail = app.queue("mail")
    assert mail.info() == outlive.QueueInfo("mail")
    first, *_ = [add.using(queue="mail").enqueue(1) for _ in range(3)]
    add.using(queue="mail", delay="1h").enqueue(1)
    add.enqueue(1)
    queue.claim_job(first.id)
    mail.pause()
    found = mail.info()
    assert (found.waiting, found.ready, found.running, found.paused) == (3, 2, 1, True)
    assert found.oldest_ready_at is not None
    assert in_a_loop(mail.ainfo()) == [found]
