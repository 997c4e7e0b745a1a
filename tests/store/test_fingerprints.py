"""Killers with another id: the same task with the same arguments is the same killer."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

import pytest

from outlive import store
from outlive.model import Claimed, Ended, new_job_id
from outlive.states import Outcome, State
from tests.driving.making import TASK, Queue, lane, request
from tests.store.acting import ANNA, ENDS, NOW, Place, assert_sound, bring, contents, end_by, fire
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

DEADLY = b'{"url": "https://example.org/", "depth": 1.0}'
SPELLINGS = [
    DEADLY,
    b'{"depth":1.0,"url":"https://example.org/"}',
    b'{ "url" : "https:\\/\\/example.org\\u002f" , "depth" : 1.0 }',
]
"""The same arguments."""


def crash(connection: Queue, **wanted: Any) -> UUID:
    """Make a job that kills its process once."""
    job = connection.make(**{"args": DEADLY, **wanted})
    [claimed] = connection.claim(limit=1)
    assert claimed.id == job
    end_by(connection, ANNA, claimed.token, "crash")
    return job


def claimed(connection: Queue, **wanted: Any) -> Claimed:
    connection.make(**{"args": DEADLY, **wanted})
    [claimed] = connection.claim(limit=1)
    return claimed


def convict(queue: Queue, *claimed: Claimed, worker: UUID = ANNA) -> list[UUID]:
    return queue.run(store.convict(worker, [one.token for one in claimed]))


def test_the_same_arguments_however_they_are_written_are_the_same_killer(queue):
    queue.register_task(quarantine_by="fingerprint")
    jobs = [crash(queue, args=args) for args in SPELLINGS]
    assert [queue.state_of(job) for job in jobs] == [State.RETRYABLE, State.RETRYABLE, State.QUARANTINED]
    said = "killed its process once, and 2 times with the same arguments as other jobs (max_crashes = 3)"
    assert queue.hold_of(jobs[-1]) == ("quarantined", said)
    fourth = claimed(queue, args=SPELLINGS[1])
    assert convict(queue, fourth) == [fourth.id]
    said = "killed its process 0 times, and 3 times with the same arguments as other jobs (max_crashes = 3)"
    assert queue.hold_of(fourth.id) == ("quarantined", said)


def test_jobs_that_are_older_than_their_task_s_way_of_counting_are_known_too(queue):
    crash(queue, args=SPELLINGS[0])
    waiting = queue.make(args=SPELLINGS[1])
    queue.register_task(quarantine_by="fingerprint", max_crashes=1)
    assert convict(queue, queue.claim_job(waiting)) == [waiting]
    younger = new_job_id()
    queue.enqueue([request(id=younger, args=SPELLINGS[2]), request()])
    stored = "select fingerprint is not null from outlive.jobs where id = %s"
    assert (queue.value(stored, waiting), queue.value(stored, younger)) == (False, True)
    assert convict(queue, queue.claim_job(younger)) == [younger]


def test_other_arguments_and_the_same_ones_of_another_task_are_innocent(queue):
    for name in (TASK, "tests.other"):
        queue.register_task(name=name, quarantine_by="fingerprint", max_crashes=1)
    crash(queue)
    innocents = [claimed(queue, args=args) for args in (b"[]", b"{}", DEADLY.replace(b"1.0", b"2.0"))]
    innocents.append(queue.claim_job(queue.make("tests.other", args=DEADLY)))
    before = contents(queue)
    assert convict(queue, *innocents) == []
    assert contents(queue) == before
    assert [queue.row_of(one.id)["kills"] for one in innocents] == [0] * 4


def test_only_kills_are_remembered_each_with_its_cause(queue):
    for event in ENDS:
        job = queue.make()
        [one] = queue.claim(limit=1)
        end_by(queue, ANNA, one.token, event)
        fire(queue, "cancel", bring(queue, Place.NOWHERE))
        queue.run(store.cancel([job]))
    codes = [claimed(queue) for _ in range(2)]
    end_by(queue, ANNA, codes[0].token, "crash", signal=None, exit_code=3)
    end_by(queue, ANNA, codes[1].token, "crash", signal=None)
    causes = queue.execute("select cause from outlive.crashes order by token").fetchall()
    assert causes == [("SIGKILL",), ("SIGSEGV",), ("exit code 3",), ("crashed",)]


def test_a_convicted_job_was_never_begun_and_its_attempt_not_counted(queue):
    queue.register_task(quarantine_by="fingerprint", max_crashes=1)
    crash(queue)
    job = claimed(queue, dedupe_key="k")
    convict(queue, job)
    assert queue.run(store.list_attempts(job.id)) == []
    assert queue.counters(job.id) == (0, 0, 0)
    assert queue.run(store.end_and_claim(ANNA, [Ended(job.token)])).refused == [job.token]
    assert queue.make(dedupe_key="k") == job.id
    queue.run(store.release([job.id]))
    [again] = queue.claim(limit=1)
    assert (again.id, again.attempt) == (job.id, 1)


def test_a_job_that_was_to_be_cancelled_is_cancelled_and_not_quarantined(queue):
    queue.register_task(quarantine_by="fingerprint", max_crashes=1)
    crash(queue)
    job = claimed(queue, dedupe_key="k")
    queue.run(store.cancel([job.id]))
    assert convict(queue, job) == [job.id]
    assert queue.state_of(job.id) is State.CANCELLED
    [attempt] = queue.run(store.list_attempts(job.id))
    assert (attempt.attempt, attempt.outcome) == (1, Outcome.CANCELLED)
    assert queue.make(dedupe_key="k") != job.id
    assert_sound(queue)


def test_a_job_whose_transaction_is_open_is_not_waited_for(queue, connect):
    queue.register_task(quarantine_by="fingerprint", max_crashes=1)
    crash(queue)
    job = claimed(queue)
    other = connect()
    with other.transaction():
        other.execute("select from outlive.running where token = %s for update", [job.token])
        assert convict(queue, job) == []
    assert convict(queue, job) == [job.id]


# Forgetting.


def test_a_release_forgets_the_crashes_of_the_same_arguments(queue):
    queue.register_task(quarantine_by="fingerprint", max_crashes=2)
    crash(queue, args=b"{}")
    killers = [crash(queue), crash(queue)]
    assert queue.state_of(killers[1]) is State.QUARANTINED
    queue.run(store.release([killers[1]]))
    assert queue.count("crashes") == 1  # Of the other arguments.
    [freed] = queue.claim(limit=1)
    assert (freed.id, freed.crashes) == (killers[1], 0)
    assert convict(queue, freed) == []
    end_by(queue, ANNA, freed.token, "crash")
    assert queue.state_of(killers[1]) is State.RETRYABLE


def test_kills_are_remembered_when_the_killer_was_pruned_and_forgotten_when_they_are_old(queue):
    queue.register_task(quarantine_by="fingerprint", max_crashes=1)
    assert queue.run(store.prune_jobs([crash(queue)])) == 1
    known = claimed(queue)
    assert convict(queue, known) == [known.id]
    queue.set_now(NOW + timedelta(days=30))
    queue.run(store.prune_crashes(keep_s=30 * 86400))
    assert queue.count("crashes") == 1
    queue.set_now(NOW + timedelta(days=30, microseconds=1))
    queue.run(store.prune_crashes(keep_s=30 * 86400))
    assert queue.count("crashes") == 0
    assert convict(queue, claimed(queue)) == []


def killers(queue: Queue, *args: bytes) -> list[UUID]:
    """Make quarantined jobs."""
    ids = sorted(new_job_id() for _ in args)
    for id, one in zip(ids, args, strict=True):
        queue.make(options={"max_crashes": 1}, id=id, args=one)
    for claimed in queue.claim(limit=len(args)):
        end_by(queue, ANNA, claimed.token, "crash")
    return ids


@pytest.mark.parametrize("commits", [True, False])
def test_a_release_forgets_crashes_that_another_release_has_locked(queue, ring, commits):
    ids = killers(queue, b"[1]", b"[2]", b"[2]", b"[1]")
    with ring.first.transaction(force_rollback=not commits):
        ring.first.run(store.release(ids[:2]))
        answer = ring.start(lambda second: second.run(store.release(ids[2:])))
    answer.result(timeout=10)
    assert queue.count("crashes") == 0
    first = State.PENDING if commits else State.QUARANTINED
    assert [queue.state_of(id) for id in ids] == [first, first, State.PENDING, State.PENDING]


def test_releases_of_the_same_killers_forget_them_in_one_order(queue, ring):
    ids = killers(queue, b"[1]", b"[2]", b"[2]", b"[1]")
    with ring.watcher.transaction():
        held = ring.watcher.execute(
            "select job_id from outlive.crashes order by task, fingerprint, token limit 1 for update"
        ).fetchone()
        answer = ring.start(lambda second: second.run(store.release(ids)))
        assert held is not None
        for id in {*ids} - {held[0]}:  # It holds no other crash as it waits for the first one.
            ring.first.execute("select from outlive.crashes where job_id = %s for update nowait", [id])
    assert [one.changed for one in answer.result(timeout=10)] == [True] * 4
    assert queue.count("crashes") == 0


# A task that keeps crashing.


def crashing(queue: Queue) -> list[tuple[str, int, int]]:
    found = queue.run(store.crashing_tasks(jobs=5, within_s=600))
    return [(row["task"], row["jobs"], row["crashes"]) for row in found]


def crash_many(queue: Queue, jobs: int, each: int = 1, task: str = TASK) -> None:
    queue.make_many(jobs, task)
    for _ in range(each):
        claimed = queue.claim([lane(task)])
        queue.end(*(Ended(one.token, Outcome.CRASHED, signal="SIGSEGV", after_s=0.0) for one in claimed))


def test_a_task_of_which_five_jobs_have_crashed_is_told_of_once_in_ten_minutes(queue):
    queue.register_task(max_crashes=100)
    crash_many(queue, 4, each=3)
    assert crashing(queue) == []  # Often, but only four of them.
    crash_many(queue, 1)
    assert crashing(queue) == [(TASK, 5, 17)]
    queue.register_task(max_crashes=200)
    assert crashing(queue) == []
    for seconds, told in [(599, False), (600, True), (1199, False), (1200, True)]:
        queue.set_now(NOW + timedelta(seconds=seconds))
        crash_many(queue, 5)
        assert bool(crashing(queue)) is told, seconds


def test_crashes_of_more_than_ten_minutes_ago_are_no_news(queue):
    queue.register_task(max_crashes=1)
    crash_many(queue, 4)
    queue.set_now(NOW + timedelta(seconds=600))
    crash_many(queue, 1)
    assert crashing(queue) == []


def test_an_alert_seen_by_many_workers_at_once_is_sent_once(queue, connect):
    queue.register_task()
    crash_many(queue, 5)
    sweepers = [connect() for _ in range(4)]
    for sweeper in sweepers:
        sweeper.set_now(NOW)
    with ThreadPoolExecutor(len(sweepers)) as threads:
        told = list(chain.from_iterable(threads.map(crashing, sweepers)))
    assert told + crashing(queue) == [(TASK, 5, 5)]


def test_telling_of_tasks_does_not_deadlock_with_a_worker_that_registers_them(queue, ring):
    for name in ("tests.a", "tests.b"):
        queue.register_task(name=name)
        crash_many(queue, 5, task=name)
    ring.second.set_now(NOW)
    with ring.first.transaction():
        ring.first.register_task(name="tests.b")
        answer = ring.start(crashing)
        ring.first.register_task(name="tests.a")
    assert sorted(answer.result(timeout=10) + crashing(queue)) == [("tests.a", 5, 5), ("tests.b", 5, 5)]
