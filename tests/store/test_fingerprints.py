"""Killers with another id: the same task with the same arguments is the same killer."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

import pytest

from outlive import db, store
from outlive.model import Claimed, Ended, new_job_id
from outlive.states import Outcome, State
from tests.driving.making import (
    TASK,
    Connect,
    claim,
    claim_job,
    count,
    counters,
    end,
    enqueue,
    hold_of,
    lane,
    make,
    make_many,
    register_task,
    request,
    row_of,
    set_now,
    state_of,
    value,
)
from tests.store.acting import ANNA, BERT, ENDS, NOW, Place, assert_sound, bring, contents, end_by, fire
from tests.store.noon import database_url, fresh_at_noon
from tests.waiting import eventually

__all__ = ["database_url", "fresh_at_noon"]

DEADLY = b'{"url": "https://example.org/", "depth": 1.0}'
SPELLINGS = [
    DEADLY,
    b'{"depth":1.0,"url":"https://example.org/"}',
    b'{ "url" : "https:\\/\\/example.org\\u002f" , "depth" : 1.0 }',
]
"""The same arguments."""


def crash(connection: db.Connection, **wanted: Any) -> UUID:
    """Make a job that kills its process once."""
    job = make(connection, **{"args": DEADLY, **wanted})
    [claimed] = claim(connection, limit=1)
    assert claimed.id == job
    end_by(connection, ANNA, claimed.token, "crash")
    return job


def claimed(connection: db.Connection, **wanted: Any) -> Claimed:
    make(connection, **{"args": DEADLY, **wanted})
    [claimed] = claim(connection, limit=1)
    return claimed


def convict(connection: db.Connection, *claimed: Claimed, worker: UUID = ANNA) -> list[UUID]:
    return db.run(connection, store.convict(worker, [one.token for one in claimed]))


def test_the_same_arguments_however_they_are_written_are_the_same_killer(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint")
    jobs = [crash(connection, args=args) for args in SPELLINGS]
    assert [state_of(connection, job) for job in jobs] == [State.RETRYABLE, State.RETRYABLE, State.QUARANTINED]
    said = "killed its process once, and 2 times with the same arguments as other jobs (max_crashes = 3)"
    assert hold_of(connection, jobs[-1]) == ("quarantined", said)
    fourth = claimed(connection, args=SPELLINGS[1])
    assert convict(connection, fourth) == [fourth.id]
    said = "killed its process 0 times, and 3 times with the same arguments as other jobs (max_crashes = 3)"
    assert hold_of(connection, fourth.id) == ("quarantined", said)


def test_jobs_that_are_older_than_their_task_s_way_of_counting_are_known_too(connection: db.Connection) -> None:
    crash(connection, args=SPELLINGS[0])
    waiting = make(connection, args=SPELLINGS[1])
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    assert convict(connection, claim_job(connection, waiting)) == [waiting]
    younger = new_job_id()
    enqueue(connection, [request(id=younger, args=SPELLINGS[2]), request()])
    stored = "select fingerprint is not null from outlive.jobs where id = %s"
    assert (value(connection, stored, waiting), value(connection, stored, younger)) == (False, True)
    assert convict(connection, claim_job(connection, younger)) == [younger]


@pytest.mark.parametrize("args", [b"[]", b"{}", b'{"url": "https://example.org/", "depth": 2.0}'])
def test_other_arguments_are_innocent(connection: db.Connection, args: bytes) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    crash(connection)
    innocent = claimed(connection, args=args)
    before = contents(connection)
    assert convict(connection, innocent) == []
    assert contents(connection) == before


def test_the_same_arguments_of_another_task_are_innocent(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    register_task(connection, name="tests.other", quarantine_by="fingerprint", max_crashes=1)
    crash(connection)
    innocent = claim_job(connection, make(connection, "tests.other", args=DEADLY))
    assert convict(connection, innocent) == []
    assert row_of(connection, innocent.id)["kills"] == 0


def test_a_job_is_not_blamed_twice_for_its_own_crash(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint")
    job = make(connection)
    for n in (1, 2, 3):
        [claimed] = claim(connection, limit=1)
        assert convict(connection, claimed) == []
        end_by(connection, ANNA, claimed.token, "crash", after_s=0.0)
        assert state_of(connection, job) is (State.QUARANTINED if n == 3 else State.RETRYABLE)
    assert hold_of(connection, job) == ("quarantined", "killed its process 3 times (max_crashes = 3)")


def test_only_kills_are_remembered_each_with_its_cause(connection: db.Connection) -> None:
    for event in ENDS:
        job = make(connection)
        [one] = claim(connection, limit=1)
        end_by(connection, ANNA, one.token, event)
        fire(connection, "cancel", bring(connection, Place.NOWHERE))
        db.run(connection, store.cancel([job]))
    codes = [claimed(connection) for _ in range(2)]
    end_by(connection, ANNA, codes[0].token, "crash", signal=None, exit_code=3)
    end_by(connection, ANNA, codes[1].token, "crash", signal=None)
    causes = connection.execute("select cause from outlive.crashes order by token").fetchall()
    assert causes == [("SIGKILL",), ("SIGSEGV",), ("exit code 3",), ("crashed",)]


def test_only_jobs_of_this_worker_are_convicted(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    crash(connection)
    mine, unasked = claimed(connection), claimed(connection)
    before = contents(connection)
    assert convict(connection, mine, worker=BERT) == []
    assert contents(connection) == before
    assert convict(connection, mine) == [mine.id]
    assert state_of(connection, unasked.id) is State.RUNNING
    assert convict(connection, mine) == []
    assert_sound(connection)


def test_a_convicted_job_was_never_begun_and_its_attempt_not_counted(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    crash(connection)
    job = claimed(connection, dedupe_key="k")
    convict(connection, job)
    assert db.run(connection, store.list_attempts(job.id)) == []
    assert counters(connection, job.id) == (0, 0, 0)
    assert db.run(connection, store.end_and_claim(ANNA, [Ended(job.token)])).stale == [job.token]
    assert make(connection, dedupe_key="k") == job.id
    db.run(connection, store.release([job.id]))
    [again] = claim(connection, limit=1)
    assert (again.id, again.attempt) == (job.id, 1)


def test_a_suspect_is_convicted_too(connection: db.Connection) -> None:
    scene = bring(connection, Place.SUSPECT)
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    crash(connection, args=b"{}")
    [suspect] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    assert convict(connection, suspect, worker=BERT) == [scene.job]
    assert state_of(connection, scene.job) is State.QUARANTINED


def test_a_job_that_was_to_be_cancelled_is_cancelled_and_not_quarantined(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    crash(connection)
    job = claimed(connection, dedupe_key="k")
    db.run(connection, store.cancel([job.id]))
    assert convict(connection, job) == [job.id]
    assert state_of(connection, job.id) is State.CANCELLED
    [attempt] = db.run(connection, store.list_attempts(job.id))
    assert (attempt.attempt, attempt.outcome) == (1, Outcome.CANCELLED)
    assert make(connection, dedupe_key="k") != job.id
    assert_sound(connection)


def test_a_job_whose_transaction_is_open_is_not_waited_for(connection: db.Connection, connect: Connect) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    crash(connection)
    job = claimed(connection)
    other = connect()
    with other.transaction():
        other.execute("select from outlive.running where token = %s for update", [job.token])
        assert convict(connection, job) == []
    assert convict(connection, job) == [job.id]


# Forgetting.


def test_a_release_forgets_the_crashes_of_the_same_arguments(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=2)
    crash(connection, args=b"{}")
    killers = [crash(connection), crash(connection)]
    assert state_of(connection, killers[1]) is State.QUARANTINED
    db.run(connection, store.release([killers[1]]))
    assert count(connection, "crashes") == 1  # Of the other arguments.
    [freed] = claim(connection, limit=1)
    assert (freed.id, freed.crashes) == (killers[1], 0)
    assert convict(connection, freed) == []
    end_by(connection, ANNA, freed.token, "crash")
    assert state_of(connection, killers[1]) is State.RETRYABLE


def test_a_release_that_frees_nothing_forgets_nothing(connection: db.Connection) -> None:
    job = crash(connection)
    [change] = db.run(connection, store.release([job]))
    assert not change.changed
    assert count(connection, "crashes") == 1


def test_old_kills_are_forgotten(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    crash(connection)
    set_now(connection, NOW + timedelta(days=30))
    db.run(connection, store.prune_crashes(keep_s=30 * 86400))
    assert count(connection, "crashes") == 1
    set_now(connection, NOW + timedelta(days=30, microseconds=1))
    db.run(connection, store.prune_crashes(keep_s=30 * 86400))
    assert count(connection, "crashes") == 0
    assert convict(connection, claimed(connection)) == []


def test_a_killer_that_was_pruned_is_still_known(connection: db.Connection) -> None:
    register_task(connection, quarantine_by="fingerprint", max_crashes=1)
    assert db.run(connection, store.prune_jobs([crash(connection)])) == 1
    job = claimed(connection)
    assert convict(connection, job) == [job.id]


def test_releasing_the_same_killers_in_opposite_order_does_not_deadlock(
    connection: db.Connection, connect: Connect
) -> None:
    ids = sorted(new_job_id() for _ in range(4))
    for id, args in zip(ids, (b"[1]", b"[2]", b"[2]", b"[1]"), strict=True):
        make(connection, options={"max_crashes": 1}, id=id, args=args)
    for one in claim(connection, limit=4):
        end_by(connection, ANNA, one.token, "crash")
    first, second = connect(), connect()
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            db.run(first, store.release([ids[0]]))
            answer = threads.submit(db.run, second, store.release([ids[2], ids[3]]))
            eventually(lambda: answer.done() or waits(connection, second))
            db.run(first, store.release([ids[1]]))
        answer.result(timeout=10)
    assert count(connection, "crashes") == 0
    assert {state_of(connection, id) for id in ids} == {State.PENDING}


def waits(watcher: db.Connection, other: db.Connection) -> bool:
    query = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    return value(watcher, query, other.info.backend_pid) is True


# A task that keeps crashing.


def crashing(connection: db.Connection) -> list[tuple[str, int, int]]:
    found = db.run(connection, store.crashing_tasks(jobs=5, within_s=600))
    return [(row["task"], row["jobs"], row["crashes"]) for row in found]


def crash_many(connection: db.Connection, jobs: int, each: int = 1, task: str = TASK) -> None:
    make_many(connection, jobs, task)
    for _ in range(each):
        claimed = claim(connection, [lane(task)])
        end(connection, *(Ended(one.token, Outcome.CRASHED, signal="SIGSEGV", after_s=0.0) for one in claimed))


def test_a_task_of_which_five_jobs_have_crashed_is_told_of_once_in_ten_minutes(connection: db.Connection) -> None:
    register_task(connection, max_crashes=100)
    crash_many(connection, 4, each=3)
    assert crashing(connection) == []  # Often, but only four of them.
    crash_many(connection, 1)
    assert crashing(connection) == [(TASK, 5, 17)]
    assert crashing(connection) == []
    for seconds, told in [(599, False), (600, True), (1199, False), (1200, True)]:
        set_now(connection, NOW + timedelta(seconds=seconds))
        crash_many(connection, 5)
        assert bool(crashing(connection)) is told, seconds


def test_crashes_of_more_than_ten_minutes_ago_are_no_news(connection: db.Connection) -> None:
    register_task(connection, max_crashes=1)
    crash_many(connection, 4)
    set_now(connection, NOW + timedelta(seconds=600))
    crash_many(connection, 1)
    assert crashing(connection) == []


def test_every_crashing_task_is_told_of_by_itself(connection: db.Connection) -> None:
    for name, jobs in (("tests.a", 5), ("tests.b", 4), ("tests.c", 6)):
        register_task(connection, name=name)
        crash_many(connection, jobs, task=name)
    assert sorted(crashing(connection)) == [("tests.a", 5, 5), ("tests.c", 6, 6)]


def test_a_new_definition_of_a_task_does_not_repeat_the_alert(connection: db.Connection) -> None:
    register_task(connection)
    crash_many(connection, 5)
    assert len(crashing(connection)) == 1
    register_task(connection, max_crashes=7)
    assert crashing(connection) == []


def test_an_alert_seen_by_many_workers_at_once_is_sent_once(connection: db.Connection, connect: Connect) -> None:
    register_task(connection)
    crash_many(connection, 5)
    sweepers = [connect() for _ in range(4)]
    for sweeper in sweepers:
        set_now(sweeper, NOW)
    with ThreadPoolExecutor(len(sweepers)) as threads:
        told = list(chain.from_iterable(threads.map(crashing, sweepers)))
    assert told + crashing(connection) == [(TASK, 5, 5)]


def test_telling_of_tasks_does_not_deadlock_with_a_worker_that_registers_them(
    connection: db.Connection, connect: Connect
) -> None:
    for name in ("tests.a", "tests.b"):
        register_task(connection, name=name)
        crash_many(connection, 5, task=name)
    first, second = connect(), connect()
    set_now(second, NOW)
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            register_task(first, name="tests.b")
            answer = threads.submit(crashing, second)
            eventually(lambda: answer.done() or waits(connection, second))
            register_task(first, name="tests.a")
        told = answer.result(timeout=10)
    assert sorted(told + crashing(connection)) == [("tests.a", 5, 5), ("tests.b", 5, 5)]
