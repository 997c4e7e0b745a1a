"""Output: what an attempt says can be followed while it runs, and read when it has ended."""

from uuid import UUID

import msgspec
import pytest

from outlive import db, store
from outlive.model import Claimed, Ended, LiveOutput, MemoryCourse, Said
from outlive.states import Outcome, State
from tests.driving.making import NOON, WORKER, Connect, claim_job, count, end, make, new_worker, set_now
from tests.store.test_wakeup import Listener


def said(connection: db.Connection, job: UUID, after: int = 0, attempt: int | None = None) -> Said:
    found = db.run(connection, store.watch(job, after=after, attempt=attempt))
    assert found is not None
    return found


def write(
    connection: db.Connection,
    claimed: Claimed,
    lines: int,
    text: str | None,
    *,
    worker: UUID = WORKER,
    memory: MemoryCourse | None = None,
) -> None:
    db.run(connection, store.write_output(worker, [LiveOutput(claimed.token, lines, text, memory)]))


@pytest.fixture
def running(connection: db.Connection) -> Claimed:
    return claim_job(connection, make(connection))


def test_a_worker_is_told_once_that_its_attempt_is_followed(
    connection: db.Connection, connect: Connect, running: Claimed
) -> None:
    listener = Listener(connect(), connect(), "outlive")
    assert said(connection, running.id) == Said(State.RUNNING, 1, live=True, before=0, lines=[], asked=True)
    assert listener.payloads() == ["watch"]
    assert db.run(connection, store.watched(WORKER)) == {running.token: False}
    write(connection, running, 0, "")
    assert db.run(connection, store.watched(WORKER)) == {running.token: True}
    assert not said(connection, running.id).asked
    assert listener.payloads() == []
    assert db.run(connection, store.watched(new_worker())) == {}


def test_each_call_returns_the_lines_that_are_new(connection: db.Connection, running: Claimed) -> None:
    said(connection, running.id)
    write(connection, running, 2, "one\ntwo\n")
    assert said(connection, running.id).lines == ["one", "two"]
    assert said(connection, running.id, after=2) == Said(State.RUNNING, 1, live=True, before=2, lines=[])
    write(connection, running, 1002, "[1,000 earlier lines are not kept]\nthree\nfour\n")
    newest = said(connection, running.id, after=2)
    assert (newest.before, newest.lines) == (1000, ["three", "four"])
    assert said(connection, running.id, after=1001).lines == ["four"]


def test_memory_is_written_with_the_output_or_without_it(connection: db.Connection, running: Claimed) -> None:
    said(connection, running.id)
    course = MemoryCourse(100, [0.0, 0.5], [10, 20])
    write(connection, running, 1, "one\n")
    assert said(connection, running.id).memory is None
    write(connection, running, 1, None, memory=course)
    told = said(connection, running.id)
    assert (told.lines, told.memory) == (["one"], course)
    end(connection, Ended(running.token, memory=msgspec.json.encode(course)))
    assert said(connection, running.id).memory == course


def test_the_whole_output_is_there_when_the_attempt_has_ended(connection: db.Connection, running: Claimed) -> None:
    said(connection, running.id)
    write(connection, running, 1, "one\n")
    end(connection, Ended(running.token, output="one\ntwo\nlast"))
    assert said(connection, running.id, after=1) == Said(
        State.SUCCEEDED, 1, live=False, before=1, lines=["two", "last"]
    )


def test_an_earlier_attempt_is_read_by_its_number(connection: db.Connection, running: Claimed) -> None:
    end(connection, Ended(running.token, Outcome.FAILED, error="why", output="first try\n", after_s=0.0))
    assert said(connection, running.id) == Said(State.RETRYABLE, 1, live=False, before=0, lines=["first try"])
    again = claim_job(connection, running.id)
    assert said(connection, running.id) == Said(State.RUNNING, 2, live=True, before=0, lines=[], asked=True)
    write(connection, again, 1, "second try\n")
    assert said(connection, running.id).lines == ["second try"]
    assert said(connection, running.id, attempt=1).lines == ["first try"]
    assert said(connection, running.id, attempt=3) == Said(State.RUNNING, None, live=False, before=0, lines=[])


def test_a_job_that_waits_has_said_nothing_and_an_unknown_one_is_not_found(connection: db.Connection) -> None:
    assert said(connection, make(connection)) == Said(State.PENDING, None, live=False, before=0, lines=[])
    assert db.run(connection, store.watch(new_worker())) is None
    assert count(connection, "watched") == 0


def test_only_the_worker_of_an_attempt_writes_its_output(connection: db.Connection, running: Claimed) -> None:
    said(connection, running.id)
    write(connection, running, 1, "forged\n", worker=new_worker())
    assert said(connection, running.id).lines == []
    end(connection, Ended(running.token))
    write(connection, running, 1, "late\n")
    assert said(connection, running.id).lines == []


def test_nothing_is_written_for_a_follower_that_has_gone(connection: db.Connection, running: Claimed) -> None:
    set_now(connection, NOON)
    said(connection, running.id)
    set_now(connection, NOON, later_s=29)
    assert running.token in db.run(connection, store.watched(WORKER))
    set_now(connection, NOON, later_s=31)
    assert db.run(connection, store.watched(WORKER)) == {}
    db.run(connection, store.prune_watched())
    assert count(connection, "watched") == 0


def test_a_follower_that_asks_again_is_still_followed(connection: db.Connection, running: Claimed) -> None:
    set_now(connection, NOON)
    said(connection, running.id)
    set_now(connection, NOON, later_s=20)
    said(connection, running.id)
    set_now(connection, NOON, later_s=45)
    assert running.token in db.run(connection, store.watched(WORKER))
