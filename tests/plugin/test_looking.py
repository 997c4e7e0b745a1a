"""What was enqueued, with messages that say the difference, and the time that a test moves."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import assert_type

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import outlive
from outlive import db
from outlive.fastapi import Enqueue
from outlive.pytest import Jobs
from outlive.pytest.clock import Clock
from tests.plugin import shop


def test_a_job_that_was_enqueued_is_found_however_it_was_called(outlive_jobs):
    job = shop.send.using(delay="1h", priority=2, dedupe_key="seven", timeout="5m").enqueue(7)
    assert outlive_jobs.assert_enqueued(shop.send, order=7) == job
    expected = shop.send.using(delay=3600, queue="mail", priority=2, dedupe_key="seven", timeout=300)
    assert outlive_jobs.assert_enqueued(expected, 7) == job
    (found,) = outlive_jobs.enqueued(shop.send)
    assert (found.args, found.queue, found.delay, found.state) == ({"order": 7}, "mail", timedelta(hours=1), "pending")
    outlive_jobs.run(delayed=True)
    assert outlive_jobs.assert_enqueued(shop.send, 7) == job
    outlive_jobs.assert_not_enqueued(shop.price)


def test_a_job_that_was_not_enqueued_is_compared_with_those_that_were(outlive_jobs: Jobs) -> None:
    far = shop.send.enqueue(8, copy=True)
    near = shop.send.using(delay="5m", timeout="1m").enqueue(7)
    other = shop.price.enqueue("1 EUR")
    with pytest.raises(AssertionError) as caught:
        outlive_jobs.assert_enqueued(shop.send.using(delay="1h", timeout="2m"), 7)
    assert str(caught.value).splitlines() == [
        "no such job was enqueued: tests.plugin.shop.send(order=7) with delay='1h', timeout='2m'",
        "2 jobs of this task:",
        f"    {near.id}: timeout_s is 60.0, not 120.0; delay is '5 m', not '1 h'",
        f"    {far.id}: copy is True, not left out; order is 8, not 7; timeout_s is left out, not 120.0; "
        "delay is '0 ms', not '1 h'",
        "1 job of other tasks:",
        f"    {other.id}: tests.plugin.shop.price(text='1 EUR'), pending",
    ]
    with pytest.raises(AssertionError, match=r"2 jobs were enqueued, and none was expected:\n.*\(copy=True, order=8\)"):
        outlive_jobs.assert_not_enqueued(shop.send)
    with pytest.raises(AssertionError, match="1 job was enqueued, and none"):
        outlive_jobs.assert_not_enqueued(shop.price)
    with pytest.raises(outlive.ConfigError, match="not 'send'"):
        outlive_jobs.assert_enqueued("send", 7)  # type: ignore[arg-type]


def test_the_links_of_a_job_are_compared(outlive_jobs):
    first = shop.price.enqueue("1 EUR")
    task = shop.send.using(after=first, concurrency_key="customer-7")
    job = task.using(on_failure="cancel", concurrency=2).enqueue(7)
    assert outlive_jobs.assert_enqueued(task.using(on_failure="cancel", concurrency=2), 7) == job
    with pytest.raises(AssertionError, match="on_failure is 'cancel', not 'proceed'; concurrency is 2, not 3"):
        outlive_jobs.assert_enqueued(task.using(on_failure="proceed", concurrency=3), 7)


def test_a_job_of_a_transaction_counts_when_that_is_committed(outlive_jobs):
    with psycopg.connect(outlive_jobs.url) as connection:
        shop.send.using(connection=connection).enqueue(7)
        with pytest.raises(
            AssertionError, match=r"\(outlive_db\); one that is enqueued in a session .* when that is committed"
        ):
            outlive_jobs.assert_enqueued(shop.send, 7)
    outlive_jobs.assert_enqueued(shop.send, 7)


def test_a_job_on_a_connection_to_another_database_is_refused(outlive_jobs, empty_database_url):
    async def enqueue() -> None:
        async with await psycopg.AsyncConnection.connect(empty_database_url) as connection:
            await shop.send.using(connection=connection).aenqueue(7)

    found = rf"leads to the database {conninfo_to_dict(empty_database_url)['dbname']}, where .* outlive_db"
    with psycopg.connect(empty_database_url) as connection, pytest.raises(outlive.WrongConnection, match=found):
        shop.send.using(connection=connection).enqueue(7)
    with pytest.raises(outlive.WrongConnection, match=found):
        asyncio.run(enqueue())


def test_time_moves_for_every_connection_and_goes_on(outlive_jobs):
    with psycopg.connect(outlive_jobs.url, autocommit=True) as connection:
        early = connection.execute("select outlive.now()").fetchone()
        shop.send.using(delay="2h").enqueue(1)
        assert outlive_jobs.run() == []
        outlive_jobs.advance("2h")
        late = connection.execute("select outlive.now()").fetchone()
        later = connection.execute("select outlive.now()").fetchone()
    assert early
    assert late
    assert later
    assert timedelta(hours=2) < late[0] - early[0] < timedelta(hours=2, minutes=2)
    assert later[0] > late[0]
    assert [one.result for one in outlive_jobs.run(queue="mail")] == ["1"]


def test_a_schedule_makes_a_job_for_each_time_that_passes(outlive_jobs):
    assert outlive_jobs.run() == []
    start = outlive_jobs.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    outlive_jobs.travel_to(start + timedelta(minutes=1))
    assert [one.task for one in outlive_jobs.run()] == ["tests.plugin.shop.hourly"]
    outlive_jobs.advance("3h")
    assert len(outlive_jobs.enqueued(shop.hourly)) == 4
    assert len(outlive_jobs.run()) == 3
    assert shop.seen == ["hourly"] * 4
    outlive_jobs.advance("3h")
    with pytest.raises(outlive.OutliveError, match=r"most of .*hourly: its schedule fires, so advance the clock less"):
        outlive_jobs.run(limit=2)


def test_a_schedule_does_not_fire_because_real_time_passes_it(outlive_jobs, outlive_db):
    with db.connect(outlive_db) as connection:
        Clock(connection).advance(7200)  # As if the test took so long.
    assert outlive_jobs.run() == []
    outlive_jobs.advance("3h")
    assert {one.task for one in outlive_jobs.run()} == {"tests.plugin.shop.hourly"}


def test_time_does_not_go_back(outlive_jobs):
    with pytest.raises(outlive.ConfigError, match=r"time goes only forward: not to 2020-01-01"):
        outlive_jobs.travel_to(datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(outlive.ConfigError, match="a datetime with a time zone"):
        outlive_jobs.travel_to(datetime(2999, 1, 1))


def test_an_expected_job_has_the_types_of_its_task(outlive_jobs: Jobs) -> None:
    """mypy reads this too: it reports an ignored error that does not exist."""
    shop.send.enqueue(7)
    assert_type(outlive_jobs.assert_enqueued(shop.send, 7), outlive.Job[str])
    assert_type(outlive_jobs.run()[0].outcome, outlive.Outcome)
    with pytest.raises(outlive.BadArguments):
        outlive_jobs.assert_enqueued(shop.send, "7")  # type: ignore[arg-type]
    with pytest.raises(outlive.BadArguments):
        outlive_jobs.assert_enqueued(shop.send)  # type: ignore[call-arg]
    with psycopg.connect(outlive_jobs.url) as connection:
        assert_type(Enqueue(connection)(shop.price, "1 EUR"), outlive.Job[int])
        with pytest.raises(outlive.BadArguments):
            Enqueue(connection)(shop.price, 1)  # type: ignore[arg-type]
