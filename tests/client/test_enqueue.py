"""Enqueuing: durable, idempotent, in bulk, all or nothing, with options that arrive."""

import asyncio
import select
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.pq.abc import PGresult

import outlive
from outlive import db, store
from outlive.client.options import BoundJob, JobOptions
from tests.client.example import add, take
from tests.driving.making import Queue

Query = Callable[..., list[tuple[Any, ...]]]


def test_an_enqueued_job_is_pending_and_has_its_arguments(app, query):
    job = add.enqueue(1, b=2)
    assert job.status() is outlive.State.PENDING
    ((id, task, queue, source, args, priority, options),) = query(
        "select id, task, queue, source, args, priority, options from outlive.jobs"
    )
    assert (id, task, queue, source, priority, options) == (job.id, add.name, "default", "", 5, None)
    assert args == {"a": 1, "b": 2}


def test_an_enqueue_is_a_few_calls_and_sends_what_a_job_has(app):
    for _ in range(10):
        add.enqueue(1, b=2)
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(f"{frame.f_code.co_filename}: {frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        add.enqueue(1, b=2)
    finally:
        sys.setprofile(None)
    assert len(called) <= 45, called
    assert len(store.enqueue([add.job(1, b=2).request], max_args_bytes=100).parameters) == 6


def test_a_job_is_enqueued_whose_answer_comes_late(app, count, monkeypatch):
    monkeypatch.setattr(db, "SOON_MS", 0)
    assert {add.enqueue(n).status() for n in range(3)} == {outlive.State.PENDING}
    assert count() == 3


def test_a_job_is_enqueued_where_eventlet_has_taken_poll_away(app, count, monkeypatch):
    app.connections.within(lambda connection: None)
    monkeypatch.delattr(select, "poll")
    add.enqueue(1)
    assert count() == 1


def test_a_job_whose_commit_fails_is_not_acknowledged(app, queue):
    queue.execute("""
        create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
        create constraint trigger refuse after insert on outlive.jobs deferrable initially deferred
        for each row execute function refuse()""")
    with pytest.raises(outlive.OutliveError, match="not today"):
        add.enqueue(1)
    assert queue.execute("select from outlive.jobs").fetchall() == []


def test_after_an_interrupt_the_same_connection_enqueues(app, count, monkeypatch):
    add.enqueue(1)
    finish = db.Connection.finish

    def interrupted(connection: db.Connection) -> PGresult:
        finish(connection)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(db.Connection, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            add.enqueue(2)
    add.enqueue(3)
    assert count() == 2


def test_behind_a_pooler_a_job_is_enqueued_without_a_prepared_statement(app, count, database_url):
    with Queue.at(database_url) as connection:
        connection.pooled = True
        for _ in range(3):
            connection.run(store.enqueue([add.job(1).request], max_args_bytes=100))
        assert connection.execute("select from pg_prepared_statements").fetchall() == []
    assert count() == 3


def test_each_job_has_an_id_of_its_own(app, count):
    bound = add.job(1)
    app.enqueue_many([bound, bound, add.job(1)])
    assert count() == 2, "the same bound job is the same job"


def test_a_bad_job_in_the_middle_of_many_leaves_nothing(app, count):
    def jobs() -> Iterator[BoundJob[Any]]:
        for n in range(5000):
            yield take.job({n} if n == 4500 else n)

    with pytest.raises(outlive.BadArguments):
        app.enqueue_many(jobs())
    assert count() == 0


def test_large_jobs_go_in_batches_of_bounded_size(app, count):
    app.enqueue_many(take.job("x" * 900_000) for _ in range(20))
    assert count() == 20


def test_many_may_be_none_at_all(app, count):
    assert app.enqueue_many([]) == []
    assert asyncio.run(app.aenqueue_many([])) == []
    assert count() == 0


def test_a_moment_that_no_calendar_of_the_database_has_is_refused(app, count):
    with pytest.raises(outlive.ConfigError, match="at most 300 years"):
        add.using(delay=9e11).enqueue(1)
    assert count() == 0


def test_overrides_of_one_job_travel_as_options_in_the_names_that_the_database_knows(app, query):
    limits: JobOptions = {"max_attempts": 2, "max_crashes": 1, "max_losses": None, "timeout": "10m", "stall": 30}
    add.using(**limits).using(memory="1MB", on_worker_death="fail").enqueue(1)
    ((options,),) = query("select options from outlive.jobs")
    assert options == {
        "max_attempts": 2,
        "max_crashes": 1,
        "max_losses": None,
        "timeout_s": 600.0,
        "stall_s": 30.0,
        "memory_bytes": 1_000_000,
        "on_worker_death": "fail",
    }


def test_repeating_an_enqueue_that_raises_on_conflict_does_not_conflict_with_itself(app):
    once = add.using(id=uuid4(), dedupe_key="k", on_conflict="raise")
    assert once.enqueue(1) == once.enqueue(1)


def test_a_database_without_the_schema_is_refused_with_what_to_do(empty_database_url):
    app = outlive.App(empty_database_url)
    task = app.task(add.function)
    with pytest.raises(outlive.SchemaMismatch, match="run `outlive migrate --database-url "):
        task.enqueue(1)
    with pytest.raises(outlive.SchemaMismatch, match="run `outlive migrate --database-url "):
        asyncio.run(task.aenqueue(1))
    with psycopg.connect(empty_database_url) as connection, pytest.raises(outlive.SchemaMismatch):
        task.using(connection=connection).enqueue(1)
    app.connections.close()


def test_a_concurrency_key_goes_with_every_way_to_enqueue(app, queue):
    keyed = add.using(concurrency_key="customer-7", concurrency=2)
    keyed.enqueue(1)
    app.enqueue_many([keyed.job(2), keyed.using(concurrency=3).job(3), add.job(4)])
    app.enqueue_stream(keyed.job(n) for n in (5,))
    rows = queue.execute("select args ->> 'a', concurrency_key, concurrency from outlive.jobs order by 1").fetchall()
    assert [row[1:] for row in rows] == [
        ("customer-7", 2),
        ("customer-7", 2),
        ("customer-7", 3),
        (None, None),
        ("customer-7", 2),
    ]
