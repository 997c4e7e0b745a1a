"""Batches in the database: what is counted, when a batch is done, and which callbacks that enqueues."""

import os
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from outlive import db, store
from outlive.errors import BadArguments
from outlive.model import BatchCounts, Ended, new_job_id
from outlive.states import Outcome, State
from tests.driving.making import WORKER, Queue, request
from tests.store.acting import Place, bring, complete, fire

CALLED = "select task from outlive.jobs where id in (select job from outlive.callbacks) order by task"
EVENTS = ("success", "failure", "done")


def open_batch(queue: Queue, *events: str, id: UUID | None = None) -> UUID:
    """Open a batch with a callback for each of these events: its task has the name of the event."""
    callbacks: dict[str, Any] = {f"on_{event}": request(event) for event in events}
    return queue.run(store.open_batch(id or new_job_id(), "import", **callbacks))


def close(queue: Queue, batch: UUID) -> None:
    queue.run(store.close_batch(batch))


def in_batch(batch: UUID) -> bytes:
    return msgspec.json.encode({"batch": batch})


def add(connection: Queue, batch: UUID, number: int = 1, **wanted: Any) -> list[UUID]:
    return connection.make_many(number, links=in_batch(batch), **wanted)


def counts(queue: Queue, batch: UUID) -> BatchCounts:
    found = queue.run(store.batch_counts(batch))
    assert found is not None
    return found


def drain(queue: Queue, *outcomes: Outcome) -> None:
    """Let a worker run as many of the waiting jobs as there are outcomes, or all of them with success."""
    claimed = queue.claim(limit=len(outcomes) or 512)
    ends = outcomes or [Outcome.SUCCEEDED] * len(claimed)
    assert len(claimed) == len(ends)
    for job, outcome in zip(claimed, ends, strict=True):
        assert queue.end(Ended(job.token, outcome, final=True)) == []


def test_a_batch_is_done_when_it_is_closed_and_its_last_job_has_ended(queue):
    batch = open_batch(queue, *EVENTS)
    add(queue, batch, 3)
    drain(queue)
    assert counts(queue, batch) == BatchCounts(3, 3, 0, 0, 0, 0, False)
    assert queue.values(CALLED) == []
    add(queue, batch, 1)
    close(queue, batch)
    assert counts(queue, batch) == BatchCounts(4, 3, 0, 0, 0, 1, False)
    assert queue.values(CALLED) == []
    drain(queue)
    assert counts(queue, batch) == BatchCounts(4, 4, 0, 0, 0, 0, True)
    assert queue.values(CALLED) == ["done", "success"]


def test_an_empty_batch_has_succeeded_when_it_is_closed(queue):
    batch = open_batch(queue, *EVENTS)
    close(queue, batch)
    assert counts(queue, batch) == BatchCounts(0, 0, 0, 0, 0, 0, True)
    assert queue.values(CALLED) == ["done", "success"]


@pytest.mark.parametrize("place", [Place.FAILED, Place.CANCELLED, Place.QUARANTINED])
def test_a_job_that_does_not_succeed_calls_the_callback_of_failure(queue, place):
    batch = open_batch(queue, *EVENTS)
    bring(queue, place, links=in_batch(batch))
    close(queue, batch)
    found = counts(queue, batch)
    assert (found.jobs, getattr(found, place), found.done) == (1, 1, True)
    assert queue.values(CALLED) == ["done", "failure"]


@pytest.mark.parametrize(
    ("place", "verb"), [(Place.FAILED, "retry"), (Place.CANCELLED, "retry"), (Place.QUARANTINED, "release")]
)
def test_a_batch_succeeds_after_all_when_its_other_jobs_are_retried(queue, place, verb):
    batch = open_batch(queue, *EVENTS)
    scene = bring(queue, place, links=in_batch(batch))
    close(queue, batch)
    fire(queue, verb, scene)
    assert counts(queue, batch) == BatchCounts(1, 0, 0, 0, 0, 1, False)
    drain(queue, Outcome.FAILED)
    assert queue.values(CALLED) == ["done", "failure"]
    fire(queue, "retry", scene)
    drain(queue)
    assert counts(queue, batch) == BatchCounts(1, 1, 0, 0, 0, 0, True)
    assert queue.values(CALLED) == ["done", "failure", "success"]


def test_no_callback_is_enqueued_twice_even_if_its_job_is_pruned(queue):
    batch = open_batch(queue, *EVENTS)
    [job] = add(queue, batch)
    close(queue, batch)
    drain(queue, Outcome.FAILED)
    called = queue.values("select job from outlive.callbacks where called_at is not null")
    assert len(queue.run(store.cancel(called))) == 2
    assert queue.run(store.prune_jobs(called)) == 2
    queue.run(store.retry([job]))
    drain(queue, Outcome.FAILED)
    assert counts(queue, batch).done
    assert queue.values(CALLED) == []


def test_a_batch_that_is_done_or_cancelled_or_unknown_takes_no_jobs(queue):
    done, cancelled = open_batch(queue), open_batch(queue)
    close(queue, done)
    [job] = add(queue, cancelled)
    queue.run(store.close_batch(cancelled, cancelling=True))
    for batch, words in ((done, "takes no more jobs"), (cancelled, "takes no more jobs"), (uuid4(), "there is no")):
        with pytest.raises(BadArguments, match=str(batch)) as refused, db.translated_errors():
            add(queue, batch)
        assert words in str(refused.value)
    assert queue.values("select id from outlive.jobs") == [job]


def test_repeating_a_request_to_a_batch_that_is_done_by_now_is_no_error(queue):
    batch = open_batch(queue)
    job = request(links=in_batch(batch))
    queue.run(store.enqueue([job], max_args_bytes=100))
    close(queue, batch)
    drain(queue)
    assert queue.run(store.enqueue([job], max_args_bytes=100)) == {}
    assert counts(queue, batch) == BatchCounts(1, 1, 0, 0, 0, 0, True)


def test_opening_and_closing_can_be_repeated(queue):
    batch = open_batch(queue, "success")
    add(queue, batch)
    assert open_batch(queue, "done", id=batch) == batch
    close(queue, batch)
    close(queue, batch)
    drain(queue)
    assert queue.values(CALLED) == ["success"]


@pytest.mark.parametrize(
    "callback",
    [
        request("report", dedupe_key="home"),
        request("report", links=in_batch(new_job_id())),
        request("report", options={"max_attempts": 0}),
        request("report", b"[1"),
        request("report", queue=""),
        request("", b"{}"),
        request("report", queue=os.urandom(5000).hex()),
    ],
    ids=["dedupe key", "batch", "options", "arguments", "queue", "task", "long queue"],
)
def test_a_callback_that_could_not_be_enqueued_is_refused_when_the_batch_is_opened(queue, callback):
    with pytest.raises(psycopg.Error):
        queue.run(store.open_batch(new_job_id(), "import", on_done=callback))
    assert queue.count("batches") == queue.count("callbacks") == 0


def test_a_job_is_the_callback_of_one_event_only(queue):
    both = request("report")
    with pytest.raises(psycopg.Error, match=f"job {both.id} is a callback already"):
        queue.run(store.open_batch(new_job_id(), "import", on_success=both, on_done=both))


def test_cancelling_goes_through_all_jobs_of_a_batch_in_pieces(queue):
    batch = open_batch(queue, *EVENTS)
    queue.make_many(2)
    add(queue, batch, 12)
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
        claimed = queue.claim(limit=3)
        queue.end(Ended(claimed[2].token, outcome, final=True))  # The first ones keep running, or are others.
    close(queue, batch)
    queue.run(store.close_batch(batch, cancelling=True))
    past, pieces = queue.run(store.cancel_batch(batch, most=5)), 1
    while past is not None:
        past = queue.run(store.cancel_batch(batch, past, most=5))
        pieces += 1
    assert pieces == 4
    running = "select count(*) filter (where cancel_requested), count(*) from outlive.running"
    assert queue.execute(running.encode()).fetchall() == [(2, 4)]
    assert counts(queue, batch) == BatchCounts(12, 1, 1, 8, 0, 2, False)
    assert queue.count("waiting") == 0


def test_a_pruned_job_stays_counted(queue):
    batch = open_batch(queue, *EVENTS)
    jobs = add(queue, batch, 2)
    drain(queue)
    assert queue.run(store.prune_jobs(jobs[:1])) == 1
    assert counts(queue, batch) == BatchCounts(2, 2, 0, 0, 0, 0, False)
    close(queue, batch)
    assert counts(queue, batch) == BatchCounts(2, 2, 0, 0, 0, 0, True)
    assert queue.run(store.prune_jobs(jobs[1:])) == 1
    assert counts(queue, batch) == BatchCounts(2, 2, 0, 0, 0, 0, True)


def test_a_batch_is_pruned_long_after_it_was_done_and_after_its_jobs(queue):
    kept, old, unfinished = (open_batch(queue, *EVENTS) for _ in range(3))
    now = queue.set_now()
    jobs = add(queue, kept) + add(queue, old)
    drain(queue)
    for batch in (kept, old):
        close(queue, batch)
    queue.run(store.prune_jobs(jobs[1:]))
    queue.run(store.prune_batches(keep_s=60))
    assert queue.count("batches") == 3
    queue.set_now(now, later_s=61)
    queue.run(store.prune_batches(keep_s=60))
    assert set(queue.values("select id from outlive.batches")) == {kept, unfinished}
    assert set(queue.values("select batch from outlive.callbacks")) == {kept, unfinished}


def test_people_read_the_state_of_a_batch(queue):
    batch = open_batch(queue, "done")
    add(queue, batch, 2)

    def shown() -> tuple[str, float]:
        found = queue.row("select * from outlive.batch_states")
        return found["state"], found["progress"]

    assert shown() == ("open", 0.0)
    close(queue, batch)
    drain(queue, Outcome.SUCCEEDED)
    assert shown() == ("closed", 0.5)
    drain(queue, Outcome.FAILED)
    assert shown() == ("failed", 1.0)
    found = queue.row("select * from outlive.batch_states")
    assert found["on_done"] == queue.value("select id from outlive.jobs where task = 'done'")
    assert found["done_called_at"] == found["done_at"]
    assert found["on_success"] is found["success_called_at"] is None


def test_plain_sql_opens_fills_and_closes_a_batch(queue):
    batch = queue.value("select outlive.open_batch('import', on_success => '{\"task\": \"publish\"}')")
    job = queue.value("select outlive.enqueue('work', batch => %s)", batch)
    assert queue.value("select outlive.enqueue('work', id => %s, batch => %s)", job, batch) == job
    queue.execute("select outlive.close_batch(%s)", [batch])
    drain(queue)
    assert queue.values(CALLED) == ["publish"]


# A job that is replaced


def replace(queue: Queue, batch: UUID | None = None) -> UUID:
    """Enqueue a job in the place of the one with the same dedupe key."""
    links = None if batch is None else in_batch(batch)
    return queue.make(dedupe_key="page", on_conflict="replace", links=links)


def test_the_last_job_of_a_closed_batch_is_replaced_by_another_one_of_that_batch(queue):
    """The one that is replaced counts as cancelled. The batch is not done in between."""
    batch = open_batch(queue, *EVENTS)
    add(queue, batch, dedupe_key="page")
    close(queue, batch)
    job = replace(queue, batch)
    assert counts(queue, batch) == BatchCounts(2, 0, 0, 1, 0, 1, False)
    assert queue.values(CALLED) == []
    queue.run_job(job)
    assert counts(queue, batch) == BatchCounts(2, 1, 0, 1, 0, 0, True)
    assert queue.values(CALLED) == ["done", "failure"]


def test_a_batch_that_takes_no_more_jobs_refuses_one_that_would_replace_another(queue):
    batch = open_batch(queue)
    [job] = add(queue, batch, dedupe_key="page")
    queue.run(store.close_batch(batch, cancelling=True))
    with pytest.raises(psycopg.Error, match="takes no more jobs"):
        replace(queue, batch)
    assert queue.state_of(job) is State.PENDING


# Several sessions at once


def test_closing_waits_for_a_transaction_that_adds_jobs_and_counts_them(queue, ring):
    batch = open_batch(queue, "done")
    with ring.first.transaction():
        add(ring.first, batch, 2)
        add(queue, batch)
        drain(queue)  # Neither those that add jobs wait for each other, nor do ends.
        closing = ring.start(lambda second: close(second, batch))
        assert not closing.done()
    closing.result(timeout=10)
    assert counts(queue, batch) == BatchCounts(3, 1, 0, 0, 0, 2, False)
    drain(queue)
    assert queue.values(CALLED) == ["done"]


def test_a_job_that_is_added_while_another_transaction_closes_is_counted_once(queue, ring):
    batch = open_batch(queue)
    add(queue, batch)
    with ring.first.transaction():
        close(ring.first, batch)
        adding = ring.start(lambda second: add(second, batch, 2))
        assert not adding.done()
    assert len(adding.result(timeout=10)) == 2
    assert counts(queue, batch).jobs == 3


def test_two_last_jobs_that_end_at_once_call_back_once(queue, ring):
    batch = open_batch(queue, *EVENTS)
    add(queue, batch, 2)
    close(queue, batch)
    first, second = queue.claim()
    with ring.first.transaction():
        complete(ring.first, WORKER, first.token)
        ending = ring.start(lambda session: complete(session, WORKER, second.token))
        assert not ending.done()
    ending.result(timeout=10)
    assert counts(queue, batch) == BatchCounts(2, 2, 0, 0, 0, 0, True)
    assert queue.values(CALLED) == ["done", "success"]


def test_a_transaction_with_an_old_snapshot_cannot_close_a_batch(queue, connect):
    other = connect()
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with other.transaction():
        batch = open_batch(queue)  # Before the other one takes its snapshot.
        assert counts(other, batch).jobs == 0
        add(queue, batch)
        with pytest.raises(psycopg.Error, match="READ COMMITTED"), other.transaction():
            close(other, batch)
    with other.transaction():
        with other.transaction():
            mine = open_batch(other)
            add(other, mine)
        close(other, mine)
    assert counts(queue, mine).jobs == 1


def test_the_batches_of_ended_jobs_are_looked_up_by_the_jobs_whatever_the_statistics_say(queue):
    """After a time without batches the index over them seems to be empty, until it is analysed again."""
    queue.make_many(100)
    drain(queue)
    queue.execute("analyze outlive.jobs")
    batch = open_batch(queue)
    add(queue, batch, 100)
    scans = "select pg_stat_get_xact_numscans('outlive.jobs_by_batch'::regclass)"
    with queue.transaction():
        drain(queue, Outcome.SUCCEEDED, Outcome.FAILED)
        failed = queue.value("select job_id from outlive.attempts where state = 'failed'")
        queue.run(store.retry([failed]))
        queue.run(store.cancel([failed]))
        queue.run(store.prune_jobs([failed]))
        assert queue.value(scans) == 0
    assert counts(queue, batch) == BatchCounts(100, 1, 0, 1, 0, 98, False)
