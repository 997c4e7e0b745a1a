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

from outlive import store
from outlive.model import new_job_id
from outlive.states import State
from tests.driving.making import NOON, Queue, enqueue, request, value
from tests.waiting import eventually


def asked(connection: psycopg.Connection[Any], call: str, *parameters: object) -> UUID:
    """Call `outlive.enqueue(…)` with these arguments; returns the job's id."""
    job = value(connection, f"select outlive.enqueue({call})", *parameters)
    assert isinstance(job, UUID)
    return job


# From plain SQL


def test_an_object_is_enqueued_with_the_defaults_of_a_job(queue):
    queue.set_now()
    job = asked(queue, """'task', '{"a": 1}'""")
    assert job.version == 7
    made = queue.row("select * from outlive.jobs")
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
        "on_failed": None,
    }
    assert queue.state_of(job) is State.PENDING


def test_queue_and_source_are_those_of_the_job_or_else_of_its_task(queue):
    queue.execute(
        "insert into outlive.tasks values ('task', 'slow', 'shop', 5, 3, 3, 'retry', 'job', '{60}', outlive.now())"
    )
    own = asked(queue, "'task', queue => 'fast', source => 'bank'")
    tasks = asked(queue, "'task'")
    others = asked(queue, "'other'")
    where = {one: (q, s) for one, q, s in queue.execute("select id, queue, source from outlive.waiting").fetchall()}
    assert where == {own: ("fast", "bank"), tasks: ("slow", "shop"), others: ("default", "")}


def test_a_job_is_ready_when_it_was_asked_to_be(queue):
    queue.set_now()
    expected_s = {
        asked(queue, "'task', delay => '90 seconds'"): 90,
        asked(queue, "'task', delay => '1 day'"): 86400,
        asked(queue, "'task', run_at => outlive.now() + interval '1 hour'"): 3600,
        asked(queue, "'task', run_at => outlive.now() - interval '1 hour'"): -3600,
        asked(queue, "'task', delay => null, run_at => null"): 0,
    }
    expected = {job: NOON + timedelta(seconds=later_s) for job, later_s in expected_s.items()}
    ready = queue.execute("select j.id, j.ready_at, w.ready_at from outlive.jobs j join outlive.waiting w using (id)")
    assert set(ready.fetchall()) == {(job, moment, moment) for job, moment in expected.items()}


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


def test_calls_that_make_no_sense_are_refused_and_write_nothing(queue):
    for call, why in REFUSED:
        with pytest.raises(psycopg.Error) as refused:
            asked(queue, call)
        assert refused.value.sqlstate == (why if isinstance(why, str) else why.sqlstate), (call, refused.value)
    assert (queue.count("jobs"), queue.count("waiting"), queue.count("dedupe_keys")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("args", "id"), [(None, uuid4()), ("{}", None), ('["' + "x" * 8189 + '"]', uuid4()), (r'["\u0000"]', uuid4())]
)
def test_a_plain_job_without_id_or_with_large_or_bad_arguments_is_refused(queue, args, id):
    with pytest.raises(psycopg.Error) as refused:
        queue.execute("select outlive.enqueue_plain('task', %s, null, null, null, %s)", [args, id])
    assert refused.value.sqlstate in ("OL003", "22P05")
    assert queue.count("jobs") == 0


def test_a_plain_job_is_made_once_with_the_defaults_of_a_job(queue):
    id, args = uuid4(), '["' + "x" * 8188 + '"]'
    for _ in range(2):
        queue.execute("select outlive.enqueue_plain('task', %s, null, null, null, %s)", [args, id])
    made = "select j.id, w.queue, w.source, w.priority from outlive.jobs j join outlive.waiting w using (id)"
    assert queue.execute(made).fetchall() == [(id, "default", "", 5)]


def test_a_megabyte_of_arguments_is_taken_and_a_byte_more_is_not(queue):
    asked(queue, "'task', %s::json", '["' + "x" * (1024 * 1024 - 4) + '"]')
    with pytest.raises(psycopg.Error, match="arguments of 1048577 bytes are over the limit of 1048576") as refused:
        asked(queue, "'task', %s::json", '["' + "x" * (1024 * 1024 - 3) + '"]')
    assert refused.value.sqlstate == "OL003"
    assert queue.count("jobs") == 1


def test_the_size_is_counted_in_bytes_and_for_each_job_of_a_batch(queue):
    batch = [request(args=b"{}"), request(args='["éé"]'.encode())]
    queue.run(store.enqueue(batch, max_args_bytes=8))
    with pytest.raises(psycopg.Error, match="arguments of 8 bytes are over the limit of 7"):
        queue.run(store.enqueue([request(), request(args='["éé"]'.encode())], max_args_bytes=7))
    assert queue.count("jobs") == 2


def test_the_same_arguments_have_the_same_fingerprint_however_they_are_written(queue):
    for args in (
        '{"a": 1, "b": [1, 2]}',
        '{"b":[1,2],"a":1}',
        ' { "b" : [ 1 , 2 ] , "a" : 1 } ',
        '{"a": 1, "b": [2, 1]}',
    ):
        asked(queue, "'task', %s::json", args)
    asked(queue, """'other', '{"a": 1, "b": [1, 2]}'""")
    prints = queue.values("select fingerprint from outlive.job_states order by created_at")
    assert prints[0] == prints[1] == prints[2]
    assert len(set(prints)) == 3
    assert {len(one) for one in prints} == {16}


# Repeats


def test_an_id_that_a_batch_has_twice_is_made_once(queue):
    job = new_job_id()
    queue.enqueue([request(id=job, args=b"[1]"), request(id=job, args=b"[2]"), request()])
    assert (queue.count("jobs"), queue.count("waiting")) == (2, 2)
    queue.execute("set statement_timeout = '5s'")
    keyed = new_job_id()
    queue.enqueue([request(id=keyed, dedupe_key="a"), request(id=keyed, dedupe_key="b")])
    assert (queue.count("jobs"), queue.count("waiting"), queue.count("dedupe_keys")) == (3, 3, 1)


def test_a_batch_with_jobs_that_exist_makes_the_others_in_their_order(queue):
    batch = [request(id=uuid4()) for _ in range(6)]
    queue.set_now()
    queue.enqueue(batch[1::2])
    queue.set_now(later_s=60)
    queue.enqueue(batch)
    assert (queue.count("jobs"), queue.count("waiting")) == (6, 6)
    in_order = queue.values("select id from outlive.waiting where ready_at > %s order by ready_at", NOON)
    assert in_order == [one.id for one in batch[::2]]


def test_a_batch_that_another_transaction_is_making_is_made_once(connect):
    first, second = connect(), connect()
    batch = [request() for _ in range(3)]
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            first.enqueue(batch)
            again = threads.submit(enqueue, second, [request(), *batch])
            eventually(lambda: first.value(waiting) == 1, what="the second batch waits")
        assert again.result() == {}
    assert (first.count("jobs"), first.count("waiting")) == (4, 4)


def test_a_batch_that_a_frozen_snapshot_hides_is_to_be_tried_again(connect):
    first, second = connect(), connect()
    batch = [request() for _ in range(2)]
    second.execute("begin isolation level repeatable read")
    assert second.count("jobs") == 0
    first.enqueue(batch)
    with pytest.raises(errors.SerializationFailure, match="try again"):
        second.enqueue(batch)
    assert first.count("jobs") == 2


# Order


def test_no_job_of_a_batch_has_to_wait_for_the_clock(queue):
    queue.set_now()
    queue.enqueue([request() for _ in range(2000)])
    assert queue.value("select max(ready_at) from outlive.waiting") == NOON
    assert queue.value("select count(distinct ready_at) from outlive.waiting") == 2000


def test_two_batches_follow_each_other(queue):
    first, second = [[request(id=uuid4()) for _ in range(50)] for _ in range(2)]
    queue.enqueue(first)
    queue.enqueue(second)
    assert [queue.claim(limit=1)[0].id for _ in range(100)] == [one.id for one in first + second]


# Dedupe keys


def test_a_killer_is_not_replaced_and_kills_no_more(queue):
    """A job in its place would kill just as often."""
    old = queue.make_quarantined(dedupe_key="key")
    for _ in range(3):
        assert asked(queue, "'work', dedupe_key => 'key', on_conflict => 'replace'") == old
    assert queue.state_of(old) is State.QUARANTINED
    assert (queue.count("waiting"), queue.count("attempts")) == (0, 1)


def test_a_key_that_a_batch_has_twice_makes_one_job(queue):
    first, *others = [request(dedupe_key="key") for _ in range(3)]
    plain = request()
    assert queue.enqueue([first, *others, plain]) == {other.id: first.id for other in others}
    assert sorted(queue.values("select id from outlive.jobs")) == sorted([first.id, plain.id])


def test_eight_threads_with_one_key_make_one_job(connect):
    connections, start = [connect() for _ in range(8)], threading.Barrier(8)

    def ask(queue: Queue) -> UUID:
        start.wait()
        return asked(queue, "'task', dedupe_key => 'key'")

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, connections))) == 1
    assert (connections[0].count("jobs"), connections[0].count("dedupe_keys")) == (1, 1)


def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(connect):
    """A third transaction stops both in the middle of their keys, so that each holds its first keys."""
    first, second, third = connect(), connect(), connect()
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

    def ask(queue: Queue, keys: str) -> int:
        return len(keys) - len(queue.enqueue([request(dedupe_key=key) for key in keys]))

    with ThreadPoolExecutor(2) as threads:
        with third.transaction(force_rollback=True):
            third.make(dedupe_key="c")
            made = [threads.submit(ask, first, "abcde"), threads.submit(ask, second, "edcba")]
            eventually(lambda: third.value(waiting) == 2, what="both batches wait")
        assert sum(one.result() for one in made) == 5
    assert first.count("jobs") == first.count("waiting") == first.count("dedupe_keys") == 5


# Sizes


@pytest.mark.parametrize("keyed", [False, True])
def test_no_caller_can_raise_the_limit_of_arguments_over_32_megabytes(queue, keyed):
    large = "select outlive.enqueue('work', json_build_array(repeat('x', %s)), max_args_bytes => 2147483647"
    large += ", dedupe_key => 'key')" if keyed else ")"
    with pytest.raises(psycopg.Error, match="over the limit of 33554432") as refused:
        queue.execute(large.encode(), [32 * 1024 * 1024])
    assert refused.value.sqlstate == "OL003"
    queue.execute(large.encode(), [32 * 1024 * 1024 - 10])
    batch = "select outlive.enqueue(array[gen_random_uuid()], array['work'], null, null,"
    batch += " array[json_build_array(repeat('x', %s))], null, null, null, null, null, null, 2147483647, false)"
    with pytest.raises(psycopg.Error, match="over the limit of 33554432"):
        queue.execute(batch.encode(), [32 * 1024 * 1024])


def test_large_options_are_refused(queue):
    query = b"select outlive.enqueue('work', options => jsonb_build_object('x', repeat('y', %s)))"
    with pytest.raises(psycopg.Error, match=r"options of .* bytes are over the limit of 8192"):
        queue.execute(query, [9000])
    queue.execute(query, [8000])


def test_a_claim_does_not_carry_large_arguments_and_they_come_in_parts(queue):
    texts = (b"x" * 60_000, random.Random(1).randbytes(40_000).hex().encode(), b"\xc3\xa4" * 2_000_000)
    asked = [request(args=b'["' + text + b'"]') for text in texts]
    queue.run(store.enqueue(asked, max_args_bytes=8_000_000))
    small, large, packed = (one.id for one in asked)
    jobs = {job.id: job for job in queue.claim()}
    assert jobs[small].args == b'["' + b"x" * 60_000 + b'"]'
    assert (jobs[large].args, jobs[packed].args) == (None, None)
    parts = [queue.run(store.arguments(jobs[packed].token, part)) or b"" for part in range(5)]
    assert b"".join(parts) == b'["' + b"\xc3\xa4" * 2_000_000 + b'"]'
    assert [len(part) for part in parts[:3]] == [1024 * 1024] * 3
    assert queue.run(store.arguments(10**12, 0)) is None


@pytest.mark.parametrize(
    "named", ["task => repeat('x', 201)", "queue => repeat('x', 201)", "source => repeat('x', 201)"]
)
def test_a_name_that_fits_into_no_index_is_refused_where_the_job_waits_elsewhere_at_first(queue, named):
    """Who moved such a job to `waiting` later would fail: the reaper, or the worker of another job."""
    task = "" if named.startswith("task") else "'work', "
    with pytest.raises(psycopg.Error, match="names of at most 200 bytes"):
        queue.execute(f"select outlive.enqueue({task}{named}, concurrency_key => 'k')".encode())


@pytest.mark.parametrize("links", ['[{"after": []}]', '"after"', '{"after": "x"}', '[{"key": "k"}]'])
def test_links_that_are_no_object_are_refused(queue, links):
    with pytest.raises(psycopg.Error, match="links are objects"):
        queue.make(links=links.encode())
