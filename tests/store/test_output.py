"""Output: what an attempt says can be followed while it runs, and read when it has ended."""

from uuid import UUID

import msgspec
import pytest

from outlive import store
from outlive.model import Claimed, Ended, MemoryCourse
from outlive.output import LiveOutput, OutputPart
from outlive.states import Outcome, State
from tests.driving.making import NOON, WORKER, Queue, new_worker
from tests.store.test_wakeup import Listener


def said(queue: Queue, job: UUID, after: int = 0, attempt: int | None = None) -> OutputPart:
    found = queue.run(store.watch(job, after=after, attempt=attempt))
    assert found is not None
    return found


def write(
    queue: Queue,
    claimed: Claimed,
    lines: int,
    text: str | None,
    *,
    worker: UUID = WORKER,
    memory: MemoryCourse | None = None,
) -> None:
    queue.run(store.write_output(worker, [LiveOutput(claimed.token, lines, text, memory)]))


@pytest.fixture
def running(queue: Queue) -> Claimed:
    return queue.claim_job(queue.make())


def test_a_worker_is_told_once_that_its_attempt_is_followed(queue, connect, running):
    listener = Listener(connect(), connect(), "outlive")
    assert said(queue, running.id) == OutputPart(State.RUNNING, 1, live=True, before=0, lines=[], asked=True)
    assert listener.payloads() == ["watch"]
    assert queue.run(store.watched(WORKER)) == {running.token: False}
    write(queue, running, 0, "")
    assert queue.run(store.watched(WORKER)) == {running.token: True}
    assert not said(queue, running.id).asked
    assert listener.payloads() == []
    assert queue.run(store.watched(new_worker())) == {}


def test_each_call_returns_the_lines_that_are_new(queue, running):
    said(queue, running.id)
    write(queue, running, 2, "one\ntwo\n")
    assert said(queue, running.id).lines == ["one", "two"]
    assert said(queue, running.id, after=2) == OutputPart(State.RUNNING, 1, live=True, before=2, lines=[])
    write(queue, running, 1002, "[1,000 earlier lines are not kept]\nthree\nfour\n")
    newest = said(queue, running.id, after=2)
    assert (newest.before, newest.lines) == (1000, ["three", "four"])
    assert said(queue, running.id, after=1001).lines == ["four"]


def test_memory_is_written_with_the_output_or_without_it(queue, running):
    said(queue, running.id)
    course = MemoryCourse(100, [0.0, 0.5], [10, 20])
    write(queue, running, 1, "one\n")
    assert said(queue, running.id).memory is None
    write(queue, running, 1, None, memory=course)
    told = said(queue, running.id)
    assert (told.lines, told.memory) == (["one"], course)
    queue.end(Ended(running.token, memory=msgspec.json.encode(course)))
    assert said(queue, running.id).memory == course


def test_the_whole_output_is_there_when_the_attempt_has_ended(queue, running):
    said(queue, running.id)
    write(queue, running, 1, "one\n")
    queue.end(Ended(running.token, output="one\ntwo\nlast"))
    assert said(queue, running.id, after=1) == OutputPart(
        State.SUCCEEDED, 1, live=False, before=1, lines=["two", "last"]
    )


def test_an_earlier_attempt_is_read_by_its_number(queue, running):
    queue.end(Ended(running.token, Outcome.FAILED, error="why", output="first try\n", after_s=0.0))
    assert said(queue, running.id) == OutputPart(State.RETRYABLE, 1, live=False, before=0, lines=["first try"])
    again = queue.claim_job(running.id)
    assert said(queue, running.id) == OutputPart(State.RUNNING, 2, live=True, before=0, lines=[], asked=True)
    write(queue, again, 1, "second try\n")
    assert said(queue, running.id).lines == ["second try"]
    assert said(queue, running.id, attempt=1).lines == ["first try"]
    assert said(queue, running.id, attempt=3) == OutputPart(State.RUNNING, None, live=False, before=0, lines=[])


def test_a_job_that_waits_has_said_nothing_and_an_unknown_one_is_not_found(queue):
    assert said(queue, queue.make()) == OutputPart(State.PENDING, None, live=False, before=0, lines=[])
    assert queue.run(store.watch(new_worker())) is None
    assert queue.count("watched") == 0


def test_only_the_worker_of_an_attempt_writes_its_output(queue, running):
    said(queue, running.id)
    write(queue, running, 1, "forged\n", worker=new_worker())
    assert said(queue, running.id).lines == []
    queue.end(Ended(running.token))
    write(queue, running, 1, "late\n")
    assert said(queue, running.id).lines == []


def test_nothing_is_written_for_a_follower_that_has_gone(queue, running):
    queue.set_now(NOON)
    said(queue, running.id)
    queue.set_now(NOON, later_s=29)
    assert running.token in queue.run(store.watched(WORKER))
    queue.set_now(NOON, later_s=31)
    assert queue.run(store.watched(WORKER)) == {}
    queue.run(store.prune_watched())
    assert queue.count("watched") == 0
