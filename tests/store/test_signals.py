"""Waits: no signal is lost or taken for another, and no job waits for itself."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
from psycopg import IsolationLevel

from outlive import db, store
from outlive.child.steps import part_of_name
from outlive.errors import BadArguments, ConfigError
from outlive.model import Ended
from outlive.protocol import Wait
from outlive.states import Outcome, State
from tests.driving.making import WORKER, Queue


def receive(queue: Queue, job: UUID, name: str = "receive:go", **more: Any) -> bytes | None:
    """Let the job run until it waits for a signal. Returns the signal if it is there."""
    token = queue.claim_job(job).token
    return queue.run(store.suspend(WORKER, Wait(token, name, signal="go", **more))).value


def refusal(queue: Queue, job: UUID, signal: str) -> str:
    with pytest.raises(BadArguments) as refused, db.translated_errors():
        queue.run(store.send(job, signal, b"1"))
    return str(refused.value)


def test_a_transaction_that_does_not_see_that_the_job_waits_sends_nothing(queue, connect):
    """The job would wait for ever beside its signal."""
    job, sender = queue.make(), connect()
    sender.isolation_level = IsolationLevel.REPEATABLE_READ
    with sender.transaction():
        sender.count("jobs")
        receive(queue, job)
        assert "only in a transaction with the isolation level READ COMMITTED" in refusal(sender, job, "go")
    assert queue.count("signals") == 0
    queue.run(store.send(job, "go", b"1"))
    queue.run(store.end_due())
    assert queue.count("signals") == 0


@pytest.mark.parametrize("name", ["go#2", "go > home", "go, home", "go: home", "é" * 101])
def test_no_signal_can_be_sent_that_no_job_can_receive(queue, name):
    """`receive:go#2` is what the job has received when it has received `go` twice."""
    assert "the name of a signal is a text of 1 to 200 bytes, without" in refusal(queue, queue.make(), name)
    with pytest.raises(ConfigError, match=r"1 to 200 bytes|without '#' and a number at its end"):
        part_of_name("signal", name)


def test_a_wait_without_an_end_shows_none(queue):
    job = queue.make()
    receive(queue, job)
    assert queue.row_of(job)["held_details"] == "waits for the signal go"
    assert queue.run(store.release([job]))[0].note == "it waits, as its code says"
    assert queue.state_of(job) is State.SUSPENDED


def test_a_job_that_begins_again_receives_again_what_it_has_received(queue):
    job = queue.make()
    for number in (b"1", b"2"):
        queue.run(store.send(job, "go", number))
    token = queue.claim_job(job).token
    for name in ("receive:go", "receive:go#2"):
        queue.run(store.suspend(WORKER, Wait(token, name, signal="go")))
    queue.run(store.supply(job, "receive:stop", b"3", "anna", replacing=False))
    queue.end(Ended(token, Outcome.SUCCEEDED))
    queue.run(store.rerun(job, "receive:go"))
    assert [receive(queue, job)] == [b"1"]
    assert queue.values("select value from outlive.signals") == [2]


def test_signals_that_are_received_again_come_before_those_that_were_not_received_yet(queue):
    job = queue.make()
    for number in (b"1", b"2", b"3"):
        queue.run(store.send(job, "go", number))
    token = queue.claim_job(job).token
    for name in ("receive:go", "receive:go#2"):
        queue.run(store.suspend(WORKER, Wait(token, name, signal="go")))
    queue.end(Ended(token, Outcome.SUCCEEDED))
    queue.run(store.rerun(job, "receive:go#2"))
    assert queue.values("select value from outlive.signals order by number") == [2, 3]


def test_a_job_gathers_neither_itself_nor_a_job_that_waits_for_it(queue):
    job = queue.make()
    after = queue.make(links=msgspec.json.encode({"after": [str(job)]}))
    token = queue.claim_job(job).token
    for needs in (job, after):
        with pytest.raises(BadArguments, match="it can't gather itself, or a job"), db.translated_errors():
            queue.run(store.suspend(WORKER, Wait(token, "gather", needs=[needs.bytes])))
    other = queue.make()
    assert queue.run(store.suspend(WORKER, Wait(token, "gather", needs=[other.bytes]))).outcome == "suspended"


def test_two_jobs_do_not_begin_to_wait_for_each_other_at_the_same_moment(ring):
    one, other = ring.watcher.make(), ring.watcher.make()
    waits = [
        Wait(ring.watcher.claim_job(job).token, "gather", needs=[need.bytes])
        for job, need in ((one, other), (other, one))
    ]
    with ring.first.transaction():
        assert ring.first.run(store.suspend(WORKER, waits[0])).outcome == "suspended"
        answer = ring.start(lambda second: second.run(store.suspend(WORKER, waits[1])))
    assert "a job that waits for it" in str(answer.exception())
    assert [ring.watcher.state_of(job) for job in (one, other)] == [State.SUSPENDED, State.RUNNING]


def test_a_signal_for_a_job_that_ends_meanwhile_is_refused(ring):
    job = ring.watcher.make(links=b'{"deadline_s": 60}')
    receive(ring.watcher, job)
    ring.first.set_now(later_s=60.0)
    with ring.first.transaction():
        assert ring.first.run(store.cancel_expired()) == 1
        answer = ring.start(lambda second: second.run(store.send(job, "go", b"1")))
    assert "it has ended, and is cancelled" in str(answer.exception())
    assert ring.watcher.count("signals") == 0
