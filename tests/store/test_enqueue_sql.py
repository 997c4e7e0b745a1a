"""Enqueuing as the database does it, from plain SQL and in batches: idempotent, deduplicated, in order, limited."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from outlive import db, store
from outlive.model import new_job_id
from outlive.states import Outcome, State
from tests.driving.making import (
    NOON,
    Connect,
    claim,
    count,
    enqueue,
    make,
    make_finished,
    make_quarantined,
    request,
    row,
    run_job,
    set_now,
    state_of,
    value,
    values,
)
from tests.waiting import eventually


def asked(connection: psycopg.Connection[Any], call: str, *parameters: object) -> UUID:
    """Call `outlive.enqueue(…)` with these arguments; returns the job's id."""
    job = value(connection, f"select outlive.enqueue({call})", *parameters)
    assert isinstance(job, UUID)
    return job


# From plain SQL


def test_an_object_is_enqueued_with_the_defaults_of_a_job(connection: db.Connection) -> None:
    set_now(connection)
    job = asked(connection, """'task', '{"a": 1}'""")
    assert job.version == 7
    made = row(connection, "select * from outlive.jobs")
    made.pop("fingerprint")
    assert made == {
        "id": job,
        "task": "task",
        "queue": "default",
        "source": "",
        "args": {"a": 1},
        "options": None,
        "priority": 5,
        "ready_at": NOON,
        "dedupe_key": None,
        "created_at": NOON,
        "after": None,
        "batch": None,
        "concurrency_key": None,
        "concurrency": None,
    }
    assert state_of(connection, job) is State.PENDING


def test_an_array_is_enqueued_as_it_is(connection: db.Connection) -> None:
    asked(connection, """'task', '[1, "two"]'""")
    assert value(connection, "select args from outlive.jobs") == [1, "two"]


def test_a_task_without_arguments_is_enqueued_with_none(connection: db.Connection) -> None:
    asked(connection, "'task'")
    assert value(connection, "select args from outlive.jobs") == {}


def test_queue_and_source_are_those_of_the_job_or_else_of_its_task(connection: db.Connection) -> None:
    connection.execute(
        "insert into outlive.tasks values ('task', 'slow', 'shop', 5, 3, 3, 'retry', 'job', '{60}', outlive.now())"
    )
    own = asked(connection, "'task', queue => 'fast', source => 'bank'")
    tasks = asked(connection, "'task'")
    others = asked(connection, "'other'")
    where = {
        one: (q, s) for one, q, s in connection.execute("select id, queue, source from outlive.waiting").fetchall()
    }
    assert where == {own: ("fast", "bank"), tasks: ("slow", "shop"), others: ("default", "")}


def test_a_job_is_ready_when_it_was_asked_to_be(connection: db.Connection) -> None:
    set_now(connection)
    expected_s = {
        asked(connection, "'task', delay => '90 seconds'"): 90,
        asked(connection, "'task', delay => '1 day'"): 86400,
        asked(connection, "'task', run_at => outlive.now() + interval '1 hour'"): 3600,
        asked(connection, "'task', run_at => outlive.now() - interval '1 hour'"): -3600,
        asked(connection, "'task', delay => null, run_at => null"): 0,
    }
    expected = {job: NOON + timedelta(seconds=later_s) for job, later_s in expected_s.items()}
    ready = connection.execute(
        "select j.id, j.ready_at, w.ready_at from outlive.jobs j join outlive.waiting w using (id)"
    )
    assert set(ready.fetchall()) == {(job, moment, moment) for job, moment in expected.items()}


def test_every_priority_from_0_to_9_can_be_had(connection: db.Connection) -> None:
    for priority in range(10):
        asked(connection, "'task', priority => %s", priority)
    assert values(connection, "select priority from outlive.waiting order by priority") == list(range(10))


REFUSED: list[tuple[str, type[psycopg.Error] | str]] = [
    ("'task', '1'", errors.CheckViolation),
    ("'task', '\"text\"'", errors.CheckViolation),
    ("'task', 'null'", errors.CheckViolation),
    ("'task', 'true'", errors.CheckViolation),
    ("'task', null", errors.NotNullViolation),
    ("'task', '{'", errors.InvalidTextRepresentation),
    ("'task', '{\"a\": \"\\u0000\"}'", errors.UntranslatableCharacter),
    ("'', '{}'", errors.CheckViolation),
    ("null, '{}'", errors.NotNullViolation),
    ("'task', queue => ''", errors.CheckViolation),
    ("'task', priority => 10", errors.CheckViolation),
    ("'task', priority => -1", errors.CheckViolation),
    ("'task', options => '[]'", errors.CheckViolation),
    ("'task', options => '{\"timeout_s\": \"10m\"}'", "OL003"),
    ("'task', options => '{\"stall_s\": -1}'", "OL003"),
    ("'task', options => '{\"memory_bytes\": 1500000.5}'", "OL003"),
    ("'task', options => '{\"memory_bytes\": 999999}'", "OL003"),
    ("'task', on_conflict => 'perhaps'", "OL003"),
    ("'task', run_at => 'infinity'", "OL003"),
    ("'task', run_at => '-infinity'", "OL003"),
    ("'task', run_at => '1970-01-01'", "OL003"),
    ("'task', run_at => '12000-01-01'", "OL003"),
    ("'task', delay => '20000 years'", "OL003"),
]


def test_calls_that_make_no_sense_are_refused_and_write_nothing(connection: db.Connection) -> None:
    for call, why in REFUSED:
        with pytest.raises(psycopg.Error) as refused:
            asked(connection, call)
        assert refused.value.sqlstate == (why if isinstance(why, str) else why.sqlstate), (call, refused.value)
    assert (count(connection, "jobs"), count(connection, "waiting"), count(connection, "dedupe_keys")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("args", "id"), [(None, uuid4()), ("{}", None), ('["' + "x" * 8189 + '"]', uuid4()), (r'["\u0000"]', uuid4())]
)
def test_a_plain_job_without_id_or_with_large_or_bad_arguments_is_refused(
    connection: db.Connection, args: str | None, id: UUID | None
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        connection.execute("select outlive.enqueue_plain('task', %s, null, null, null, %s)", [args, id])
    assert refused.value.sqlstate in ("OL003", "22P05")
    assert count(connection, "jobs") == 0


def test_a_plain_job_is_made_once_with_the_defaults_of_a_job(connection: db.Connection) -> None:
    id, args = uuid4(), '["' + "x" * 8188 + '"]'
    for _ in range(2):
        connection.execute("select outlive.enqueue_plain('task', %s, null, null, null, %s)", [args, id])
    made = "select j.id, w.queue, w.source, w.priority from outlive.jobs j join outlive.waiting w using (id)"
    assert connection.execute(made).fetchall() == [(id, "default", "", 5)]


def test_a_megabyte_of_arguments_is_taken_and_a_byte_more_is_not(connection: db.Connection) -> None:
    asked(connection, "'task', %s::json", '["' + "x" * (1024 * 1024 - 4) + '"]')
    with pytest.raises(psycopg.Error, match="arguments of 1048577 bytes are over the limit of 1048576") as refused:
        asked(connection, "'task', %s::json", '["' + "x" * (1024 * 1024 - 3) + '"]')
    assert refused.value.sqlstate == "OL003"
    assert count(connection, "jobs") == 1


def test_the_size_is_counted_in_bytes_and_for_each_job_of_a_batch(connection: db.Connection) -> None:
    batch = [request(args=b"{}"), request(args='["éé"]'.encode())]
    db.run(connection, store.enqueue(batch, max_args_bytes=8))
    with pytest.raises(psycopg.Error, match="arguments of 8 bytes are over the limit of 7"):
        db.run(connection, store.enqueue([request(), request(args='["éé"]'.encode())], max_args_bytes=7))
    assert count(connection, "jobs") == 2


def test_the_same_arguments_have_the_same_fingerprint_however_they_are_written(connection: db.Connection) -> None:
    for args in (
        '{"a": 1, "b": [1, 2]}',
        '{"b":[1,2],"a":1}',
        ' { "b" : [ 1 , 2 ] , "a" : 1 } ',
        '{"a": 1, "b": [2, 1]}',
    ):
        asked(connection, "'task', %s::json", args)
    asked(connection, """'other', '{"a": 1, "b": [1, 2]}'""")
    prints = values(connection, "select fingerprint from outlive.job_states order by created_at")
    assert prints[0] == prints[1] == prints[2]
    assert len(set(prints)) == 3
    assert {len(one) for one in prints} == {16}


# Repeats


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED])
def test_the_repeated_id_of_a_finished_job_stays_finished(
    connection: db.Connection, outcome: Outcome, key: str | None
) -> None:
    again = request(dedupe_key=key)
    enqueue(connection, [again])
    run_job(connection, again.id, outcome, final=True)
    assert enqueue(connection, [again]) == {}
    assert state_of(connection, again.id) in (State.SUCCEEDED, State.FAILED)
    assert (count(connection, "waiting"), count(connection, "dedupe_keys")) == (0, 0)


def test_the_repeated_id_of_a_running_job_leaves_it_running(connection: db.Connection) -> None:
    again = request(dedupe_key="key")
    enqueue(connection, [again])
    claim(connection)
    assert enqueue(connection, [again]) == {}
    assert state_of(connection, again.id) is State.RUNNING
    assert count(connection, "waiting") == 0


def test_an_id_that_a_batch_has_twice_is_made_once(connection: db.Connection) -> None:
    job = new_job_id()
    enqueue(connection, [request(id=job, args=b"[1]"), request(id=job, args=b"[2]"), request()])
    assert (count(connection, "jobs"), count(connection, "waiting")) == (2, 2)


def test_an_id_that_a_batch_has_twice_with_two_keys_is_made_once(connection: db.Connection) -> None:
    connection.execute("set statement_timeout = '5s'")
    job = new_job_id()
    enqueue(connection, [request(id=job, dedupe_key="a"), request(id=job, dedupe_key="b")])
    assert (count(connection, "jobs"), count(connection, "waiting"), count(connection, "dedupe_keys")) == (1, 1, 1)


def test_a_batch_with_jobs_that_exist_makes_the_others_in_their_order(connection: db.Connection) -> None:
    batch = [request(id=uuid4()) for _ in range(6)]
    set_now(connection)
    enqueue(connection, batch[1::2])
    set_now(connection, later_s=60)
    enqueue(connection, batch)
    assert (count(connection, "jobs"), count(connection, "waiting")) == (6, 6)
    in_order = values(connection, "select id from outlive.waiting where ready_at > %s order by ready_at", NOON)
    assert in_order == [one.id for one in batch[::2]]


def test_a_batch_that_another_transaction_is_making_is_made_once(connect: Connect) -> None:
    first, second = connect(), connect()
    batch = [request() for _ in range(3)]
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            enqueue(first, batch)
            again = threads.submit(enqueue, second, [request(), *batch])
            eventually(lambda: value(first, waiting) == 1, what="the second batch waits")
        assert again.result() == {}
    assert (count(first, "jobs"), count(first, "waiting")) == (4, 4)


def test_a_batch_that_a_frozen_snapshot_hides_is_to_be_tried_again(connect: Connect) -> None:
    first, second = connect(), connect()
    batch = [request() for _ in range(2)]
    second.execute("begin isolation level repeatable read")
    assert count(second, "jobs") == 0
    enqueue(first, batch)
    with pytest.raises(errors.SerializationFailure, match="try again"):
        enqueue(second, batch)
    assert count(first, "jobs") == 2


# Order


def test_a_batch_keeps_its_order(connection: db.Connection) -> None:
    batch = [request(id=uuid4()) for _ in range(100)]
    enqueue(connection, batch)
    in_order = values(connection, "select id from outlive.waiting order by queue, source, task, priority, ready_at, id")
    assert in_order == [one.id for one in batch]
    assert [claim(connection, limit=1)[0].id for _ in range(10)] == [one.id for one in batch[:10]]


def test_no_job_of_a_batch_has_to_wait_for_the_clock(connection: db.Connection) -> None:
    set_now(connection)
    enqueue(connection, [request() for _ in range(2000)])
    assert value(connection, "select max(ready_at) from outlive.waiting") == NOON
    assert value(connection, "select count(distinct ready_at) from outlive.waiting") == 2000


def test_two_batches_follow_each_other(connection: db.Connection) -> None:
    first, second = [[request(id=uuid4()) for _ in range(50)] for _ in range(2)]
    enqueue(connection, first)
    enqueue(connection, second)
    assert [claim(connection, limit=1)[0].id for _ in range(100)] == [one.id for one in first + second]


# Dedupe keys


def test_a_key_is_unique_per_task_only(connection: db.Connection) -> None:
    assert asked(connection, "'task', dedupe_key => 'key'") != asked(connection, "'other', dedupe_key => 'key'")
    assert asked(connection, "'task'") != asked(connection, "'task'")


def test_one_taken_key_with_raise_refuses_the_whole_batch(connection: db.Connection) -> None:
    asked(connection, "'work', dedupe_key => 'taken'")
    with pytest.raises(psycopg.Error, match="has the dedupe key 'taken'"):
        enqueue(connection, [request(), request(dedupe_key="taken", on_conflict="raise"), request(dedupe_key="free")])
    assert (count(connection, "jobs"), count(connection, "dedupe_keys")) == (1, 1)


@pytest.mark.parametrize("before", ["pending", "retryable", "blocked"])
def test_replace_cancels_the_job_that_has_the_key(connection: db.Connection, before: str) -> None:
    match before:
        case "pending":
            old = make(connection, dedupe_key="key")
        case "retryable":
            old = make(connection, dedupe_key="key")
            run_job(connection, old, Outcome.FAILED)
        case _:
            old = make(connection, dedupe_key="key")
            db.run(connection, store.block([old], "wait"))
    assert state_of(connection, old) == before
    new = asked(connection, "'work', dedupe_key => 'key', on_conflict => 'replace'")
    assert new != old
    assert (state_of(connection, old), state_of(connection, new)) == (State.CANCELLED, State.PENDING)
    assert values(connection, "select id from outlive.dedupe_keys") == [new]
    assert count(connection, "waiting") == 1


def test_a_killer_is_not_replaced_and_kills_no_more(connection: db.Connection) -> None:
    """A job in its place would kill just as often."""
    old = make_quarantined(connection, dedupe_key="key")
    for _ in range(3):
        assert asked(connection, "'work', dedupe_key => 'key', on_conflict => 'replace'") == old
    assert state_of(connection, old) is State.QUARANTINED
    assert (count(connection, "waiting"), count(connection, "attempts")) == (0, 1)


def test_a_suspect_is_not_replaced_and_keeps_its_losses(connection: db.Connection) -> None:
    old = make(connection, dedupe_key="key", options={"max_losses": 2})
    claim(connection, lease_s=-1.0)
    assert [one.id for one in db.run(connection, store.expire())] == [old]
    assert asked(connection, "'work', dedupe_key => 'key', on_conflict => 'replace'") == old
    assert values(connection, "select losses from outlive.held where why = 'suspect'") == [1]


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED])
def test_a_finished_job_leaves_its_key_to_the_next(connection: db.Connection, outcome: Outcome) -> None:
    old = make_finished(connection, outcome, dedupe_key="key")
    new = asked(connection, "'work', dedupe_key => 'key', on_conflict => 'raise'")
    assert (new != old, state_of(connection, new)) == (True, State.PENDING)


def test_a_key_that_a_batch_has_twice_makes_one_job(connection: db.Connection) -> None:
    first, *others = [request(dedupe_key="key") for _ in range(3)]
    plain = request()
    assert enqueue(connection, [first, *others, plain]) == {other.id: first.id for other in others}
    assert sorted(values(connection, "select id from outlive.jobs")) == sorted([first.id, plain.id])


def test_eight_threads_with_one_key_make_one_job(connect: Connect) -> None:
    connections, start = [connect() for _ in range(8)], threading.Barrier(8)

    def ask(connection: db.Connection) -> UUID:
        start.wait()
        return asked(connection, "'task', dedupe_key => 'key'")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, connections))) == 1
    assert (count(connections[0], "jobs"), count(connections[0], "dedupe_keys")) == (1, 1)


def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(connect: Connect) -> None:
    """A third transaction stops both in the middle of their keys, so that each holds its first keys."""
    first, second, third = connect(), connect(), connect()
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

    def ask(connection: db.Connection, keys: str) -> int:
        return len(keys) - len(enqueue(connection, [request(dedupe_key=key) for key in keys]))

    with ThreadPoolExecutor(2) as threads:
        with third.transaction(force_rollback=True):
            make(third, dedupe_key="c")
            made = [threads.submit(ask, first, "abcde"), threads.submit(ask, second, "edcba")]
            eventually(lambda: value(third, waiting) == 2, what="both batches wait")
        assert sum(one.result() for one in made) == 5
    assert count(first, "jobs") == count(first, "waiting") == count(first, "dedupe_keys") == 5


def test_a_key_whose_transaction_is_rolled_back_is_free(connect: Connect) -> None:
    first, second = connect(), connect()
    with first.transaction(force_rollback=True):
        asked(first, "'task', dedupe_key => 'key'")
    asked(second, "'task', dedupe_key => 'key', on_conflict => 'raise'")
    assert count(first, "jobs") == 1


# Sizes


@pytest.mark.parametrize("keyed", [False, True])
def test_no_caller_can_raise_the_limit_of_arguments_over_32_megabytes(connection: db.Connection, keyed: bool) -> None:
    large = "select outlive.enqueue('work', json_build_array(repeat('x', %s)), max_args_bytes => 2147483647"
    large += ", dedupe_key => 'key')" if keyed else ")"
    with pytest.raises(psycopg.Error, match="over the limit of 33554432") as refused:
        connection.execute(large.encode(), [32 * 1024 * 1024])
    assert refused.value.sqlstate == "OL003"
    connection.execute(large.encode(), [32 * 1024 * 1024 - 10])
    batch = "select outlive.enqueue(array[gen_random_uuid()], array['work'], null, null,"
    batch += " array[json_build_array(repeat('x', %s))], null, null, null, null, null, null, 2147483647, false)"
    with pytest.raises(psycopg.Error, match="over the limit of 33554432"):
        connection.execute(batch.encode(), [32 * 1024 * 1024])


def test_large_options_are_refused(connection: db.Connection) -> None:
    query = b"select outlive.enqueue('work', options => jsonb_build_object('x', repeat('y', %s)))"
    with pytest.raises(psycopg.Error, match=r"options of .* bytes are over the limit of 8192"):
        connection.execute(query, [9000])
    connection.execute(query, [8000])


def test_a_claim_does_not_carry_large_arguments_and_they_come_in_parts(connection: db.Connection) -> None:
    texts = (b"x" * 60_000, random.Random(1).randbytes(40_000).hex().encode(), b"\xc3\xa4" * 2_000_000)
    asked = [request(args=b'["' + text + b'"]') for text in texts]
    db.run(connection, store.enqueue(asked, max_args_bytes=8_000_000))
    small, large, packed = (one.id for one in asked)
    jobs = {job.id: job for job in claim(connection)}
    assert jobs[small].args == b'["' + b"x" * 60_000 + b'"]'
    assert (jobs[large].args, jobs[packed].args) == (None, None)
    parts = [db.run(connection, store.arguments(jobs[packed].token, part)) or b"" for part in range(5)]
    assert b"".join(parts) == b'["' + b"\xc3\xa4" * 2_000_000 + b'"]'
    assert [len(part) for part in parts[:3]] == [1024 * 1024] * 3
    assert db.run(connection, store.arguments(10**12, 0)) is None


@pytest.mark.parametrize(
    "named", ["task => repeat('x', 201)", "queue => repeat('x', 201)", "source => repeat('x', 201)"]
)
def test_a_name_that_fits_into_no_index_is_refused_where_the_job_waits_elsewhere_at_first(
    connection: db.Connection, named: str
) -> None:
    """Who moved such a job to `waiting` later would fail: the reaper, or the worker of another job."""
    task = "" if named.startswith("task") else "'work', "
    with pytest.raises(psycopg.Error, match="names of at most 200 bytes"):
        connection.execute(f"select outlive.enqueue({task}{named}, concurrency_key => 'k')".encode())


@pytest.mark.parametrize("links", ['[{"after": []}]', '"after"', '{"after": "x"}', '[{"key": "k"}]'])
def test_links_that_are_no_object_are_refused(connection: db.Connection, links: str) -> None:
    with pytest.raises(psycopg.Error, match="links are objects"):
        make(connection, links=links.encode())
