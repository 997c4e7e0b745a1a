"""Batches in the database: what is counted, when a batch is done, and which callbacks that enqueues."""

import os
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from outlive import db, store
from outlive.errors import BadArguments
from outlive.model import BatchCounts, Ended, JobRequest, new_job_id
from outlive.states import Outcome, State
from tests.driving.making import (
    WORKER,
    Connect,
    claim,
    count,
    end,
    make,
    make_many,
    plan,
    request,
    row,
    run_job,
    set_now,
    state_of,
    value,
    values,
)
from tests.store.acting import Place, bring, complete, fire
from tests.waiting import eventually

CALLED = "select task from outlive.jobs where id in (select job from outlive.callbacks) order by task"
EVENTS = ("success", "failure", "done")


def open_batch(connection: db.Connection, *events: str, id: UUID | None = None) -> UUID:
    """Open a batch with a callback for each of these events: its task has the name of the event."""
    callbacks: dict[str, Any] = {f"on_{event}": request(event) for event in events}
    return db.run(connection, store.open_batch(id or new_job_id(), "import", **callbacks))


def close(connection: db.Connection, batch: UUID) -> None:
    db.run(connection, store.close_batch(batch))


def in_batch(batch: UUID) -> bytes:
    return msgspec.json.encode({"batch": batch})


def add(connection: db.Connection, batch: UUID, number: int = 1, **wanted: Any) -> list[UUID]:
    return make_many(connection, number, links=in_batch(batch), **wanted)


def counts(connection: db.Connection, batch: UUID) -> BatchCounts:
    found = db.run(connection, store.batch_counts(batch))
    assert found is not None
    return found


def drain(connection: db.Connection, *outcomes: Outcome) -> None:
    """Let a worker run as many of the waiting jobs as there are outcomes, or all of them with success."""
    claimed = claim(connection, limit=len(outcomes) or 512)
    ends = outcomes or [Outcome.SUCCEEDED] * len(claimed)
    assert len(claimed) == len(ends)
    for job, outcome in zip(claimed, ends, strict=True):
        assert end(connection, Ended(job.token, outcome, final=True)) == []


def test_a_batch_is_done_when_it_is_closed_and_its_last_job_has_ended(connection: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    add(connection, batch, 3)
    drain(connection)
    assert counts(connection, batch) == BatchCounts(3, 3, 0, 0, 0, 0, False)
    assert values(connection, CALLED) == []
    add(connection, batch, 1)
    close(connection, batch)
    assert counts(connection, batch) == BatchCounts(4, 3, 0, 0, 0, 1, False)
    assert values(connection, CALLED) == []
    drain(connection)
    assert counts(connection, batch) == BatchCounts(4, 4, 0, 0, 0, 0, True)
    assert values(connection, CALLED) == ["done", "success"]


def test_a_batch_whose_jobs_have_all_ended_is_done_when_it_is_closed(connection: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    add(connection, batch, 3)
    drain(connection)
    close(connection, batch)
    assert values(connection, CALLED) == ["done", "success"]


def test_an_empty_batch_has_succeeded_when_it_is_closed(connection: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    close(connection, batch)
    assert counts(connection, batch) == BatchCounts(0, 0, 0, 0, 0, 0, True)
    assert values(connection, CALLED) == ["done", "success"]


@pytest.mark.parametrize("place", [Place.FAILED, Place.CANCELLED, Place.QUARANTINED])
def test_a_job_that_does_not_succeed_calls_the_callback_of_failure(connection: db.Connection, place: Place) -> None:
    batch = open_batch(connection, *EVENTS)
    bring(connection, place, links=in_batch(batch))
    close(connection, batch)
    found = counts(connection, batch)
    assert (found.jobs, getattr(found, place), found.done) == (1, 1, True)
    assert values(connection, CALLED) == ["done", "failure"]


@pytest.mark.parametrize(
    ("place", "verb"),
    [(Place.FAILED, "retry"), (Place.CANCELLED, "retry"), (Place.QUARANTINED, "release")],
)
def test_a_batch_succeeds_after_all_when_its_other_jobs_are_retried(
    connection: db.Connection, place: Place, verb: str
) -> None:
    batch = open_batch(connection, *EVENTS)
    scene = bring(connection, place, links=in_batch(batch))
    close(connection, batch)
    fire(connection, verb, scene)
    assert counts(connection, batch) == BatchCounts(1, 0, 0, 0, 0, 1, False)
    drain(connection, Outcome.FAILED)
    assert values(connection, CALLED) == ["done", "failure"]
    fire(connection, "retry", scene)
    drain(connection)
    assert counts(connection, batch) == BatchCounts(1, 1, 0, 0, 0, 0, True)
    assert values(connection, CALLED) == ["done", "failure", "success"]


def test_no_callback_is_enqueued_twice_even_if_its_job_is_pruned(connection: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    [job] = add(connection, batch)
    close(connection, batch)
    drain(connection, Outcome.FAILED)
    called = values(connection, "select job from outlive.callbacks where called_at is not null")
    assert len(db.run(connection, store.cancel(called))) == 2
    assert db.run(connection, store.prune_jobs(called)) == 2
    db.run(connection, store.retry([job]))
    drain(connection, Outcome.FAILED)
    assert counts(connection, batch).done
    assert values(connection, CALLED) == []


def test_cancelling_a_quarantined_job_counts_it_as_cancelled(connection: db.Connection) -> None:
    batch = open_batch(connection)
    scene = bring(connection, Place.QUARANTINED, links=in_batch(batch))
    close(connection, batch)
    fire(connection, "cancel", scene)
    assert counts(connection, batch) == BatchCounts(1, 0, 0, 1, 0, 0, True)


def test_only_jobs_that_were_made_are_counted(connection: db.Connection) -> None:
    batch = open_batch(connection)
    close(connection, open_batch(connection))
    first = request(dedupe_key="home", links=in_batch(batch))
    db.run(connection, store.enqueue([first], max_args_bytes=100))
    claim(connection)
    close(connection, batch)
    again = [first, request(dedupe_key="home", links=in_batch(batch)), request(links=in_batch(batch))]
    assert len(db.run(connection, store.enqueue(again, max_args_bytes=100))) == 1
    assert counts(connection, batch).jobs == 2
    db.run(connection, store.enqueue(again, max_args_bytes=100))
    assert counts(connection, batch).jobs == 2


def test_a_job_adds_to_its_own_batch_after_it_was_closed(connection: db.Connection) -> None:
    batch = open_batch(connection, "done")
    add(connection, batch)
    close(connection, batch)
    [job] = claim(connection)
    spawned = {"task": "work", "links": {"batch": str(batch)}}
    connection.execute(
        "select outlive.complete_with_records(%s, %s, spawns => %s)",
        [job.token, WORKER, msgspec.json.encode([spawned, spawned]).decode()],
    )
    assert counts(connection, batch) == BatchCounts(3, 1, 0, 0, 0, 2, False)
    drain(connection)
    assert counts(connection, batch).done


def test_a_batch_that_is_done_or_cancelled_or_unknown_takes_no_jobs(connection: db.Connection) -> None:
    done, cancelled = open_batch(connection), open_batch(connection)
    close(connection, done)
    [job] = add(connection, cancelled)
    db.run(connection, store.close_batch(cancelled, cancelling=True))
    for batch, words in ((done, "takes no more jobs"), (cancelled, "takes no more jobs"), (uuid4(), "there is no")):
        with pytest.raises(BadArguments, match=str(batch)) as refused, db.translated_errors():
            add(connection, batch)
        assert words in str(refused.value)
    assert values(connection, "select id from outlive.jobs") == [job]


def test_repeating_a_request_to_a_batch_that_is_done_by_now_is_no_error(connection: db.Connection) -> None:
    batch = open_batch(connection)
    job = request(links=in_batch(batch))
    db.run(connection, store.enqueue([job], max_args_bytes=100))
    close(connection, batch)
    drain(connection)
    assert db.run(connection, store.enqueue([job], max_args_bytes=100)) == {}
    assert counts(connection, batch) == BatchCounts(1, 1, 0, 0, 0, 0, True)


def test_opening_and_closing_can_be_repeated(connection: db.Connection) -> None:
    batch = open_batch(connection, "success")
    add(connection, batch)
    assert open_batch(connection, "done", id=batch) == batch
    close(connection, batch)
    close(connection, batch)
    drain(connection)
    assert values(connection, CALLED) == ["success"]


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
def test_a_callback_that_could_not_be_enqueued_is_refused_when_the_batch_is_opened(
    connection: db.Connection, callback: JobRequest
) -> None:
    with pytest.raises(psycopg.Error):
        db.run(connection, store.open_batch(new_job_id(), "import", on_done=callback))
    assert count(connection, "batches") == count(connection, "callbacks") == 0


def test_a_job_is_the_callback_of_one_event_only(connection: db.Connection) -> None:
    both = request("report")
    with pytest.raises(psycopg.Error, match=f"job {both.id} is a callback already"):
        db.run(connection, store.open_batch(new_job_id(), "import", on_success=both, on_done=both))


def test_the_trial_of_a_callback_leaves_nothing_behind(connection: db.Connection) -> None:
    open_batch(connection, *EVENTS)
    assert count(connection, "jobs") == count(connection, "waiting") == 0


def test_cancelling_goes_through_all_jobs_of_a_batch_in_pieces(connection: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    make_many(connection, 2)
    add(connection, batch, 12)
    for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
        claimed = claim(connection, limit=3)
        end(connection, Ended(claimed[2].token, outcome, final=True))  # The first ones keep running, or are others.
    close(connection, batch)
    db.run(connection, store.close_batch(batch, cancelling=True))
    past, pieces = db.run(connection, store.cancel_batch(batch, most=5)), 1
    while past is not None:
        past = db.run(connection, store.cancel_batch(batch, past, most=5))
        pieces += 1
    assert pieces == 4
    running = "select count(*) filter (where cancel_requested), count(*) from outlive.running"
    assert connection.execute(running.encode()).fetchall() == [(2, 4)]
    assert counts(connection, batch) == BatchCounts(12, 1, 1, 8, 0, 2, False)
    assert count(connection, "waiting") == 0


def test_a_pruned_job_stays_counted(connection: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    jobs = add(connection, batch, 2)
    drain(connection)
    assert db.run(connection, store.prune_jobs(jobs[:1])) == 1
    assert counts(connection, batch) == BatchCounts(2, 2, 0, 0, 0, 0, False)
    close(connection, batch)
    assert counts(connection, batch) == BatchCounts(2, 2, 0, 0, 0, 0, True)
    assert db.run(connection, store.prune_jobs(jobs[1:])) == 1
    assert counts(connection, batch) == BatchCounts(2, 2, 0, 0, 0, 0, True)


def test_a_batch_is_pruned_long_after_it_was_done_and_after_its_jobs(connection: db.Connection) -> None:
    kept, old, unfinished = (open_batch(connection, *EVENTS) for _ in range(3))
    now = set_now(connection)
    jobs = add(connection, kept) + add(connection, old)
    drain(connection)
    for batch in (kept, old):
        close(connection, batch)
    db.run(connection, store.prune_jobs(jobs[1:]))
    db.run(connection, store.prune_batches(keep_s=60))
    assert count(connection, "batches") == 3
    set_now(connection, now, later_s=61)
    db.run(connection, store.prune_batches(keep_s=60))
    assert set(values(connection, "select id from outlive.batches")) == {kept, unfinished}
    assert set(values(connection, "select batch from outlive.callbacks")) == {kept, unfinished}


def test_people_read_the_state_of_a_batch(connection: db.Connection) -> None:
    batch = open_batch(connection, "done")
    add(connection, batch, 2)

    def shown() -> tuple[str, float]:
        found = row(connection, "select * from outlive.batch_states")
        return found["state"], found["progress"]

    assert shown() == ("open", 0.0)
    close(connection, batch)
    drain(connection, Outcome.SUCCEEDED)
    assert shown() == ("closed", 0.5)
    drain(connection, Outcome.FAILED)
    assert shown() == ("failed", 1.0)
    found = row(connection, "select * from outlive.batch_states")
    assert found["on_done"] == value(connection, "select id from outlive.jobs where task = 'done'")
    assert found["done_called_at"] == found["done_at"]
    assert found["on_success"] is found["success_called_at"] is None


def test_the_jobs_of_an_open_batch_are_counted_once_for_all_columns(connection: db.Connection) -> None:
    open_batch(connection)
    nodes = plan(connection, b"select * from outlive.batch_states", [])
    assert len([node for node in nodes if node.get("Alias") == "j"]) == 1
    assert not [node for node in nodes if str(node.get("Alias")).startswith("j_")]


def test_plain_sql_opens_fills_and_closes_a_batch(connection: db.Connection) -> None:
    batch = value(connection, "select outlive.open_batch('import', on_success => '{\"task\": \"publish\"}')")
    job = value(connection, "select outlive.enqueue('work', batch => %s)", batch)
    assert value(connection, "select outlive.enqueue('work', id => %s, batch => %s)", job, batch) == job
    connection.execute("select outlive.close_batch(%s)", [batch])
    drain(connection)
    assert values(connection, CALLED) == ["publish"]


# A job that is replaced


def replace(connection: db.Connection, batch: UUID | None = None) -> UUID:
    """Enqueue a job in the place of the one with the same dedupe key."""
    links = None if batch is None else in_batch(batch)
    return make(connection, dedupe_key="page", on_conflict="replace", links=links)


def test_the_last_job_of_a_closed_batch_is_replaced_by_another_one_of_that_batch(connection: db.Connection) -> None:
    """The one that is replaced counts as cancelled. The batch is not done in between."""
    batch = open_batch(connection, *EVENTS)
    add(connection, batch, dedupe_key="page")
    close(connection, batch)
    job = replace(connection, batch)
    assert counts(connection, batch) == BatchCounts(2, 0, 0, 1, 0, 1, False)
    assert values(connection, CALLED) == []
    run_job(connection, job)
    assert counts(connection, batch) == BatchCounts(2, 1, 0, 1, 0, 0, True)
    assert values(connection, CALLED) == ["done", "failure"]


def test_a_batch_whose_last_job_is_replaced_by_one_of_no_batch_is_done(connection: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    add(connection, batch, dedupe_key="page")
    close(connection, batch)
    replace(connection)
    assert counts(connection, batch) == BatchCounts(1, 0, 0, 1, 0, 0, True)
    assert values(connection, CALLED) == ["done", "failure"]


def test_a_batch_that_takes_no_more_jobs_refuses_one_that_would_replace_another(connection: db.Connection) -> None:
    batch = open_batch(connection)
    [job] = add(connection, batch, dedupe_key="page")
    db.run(connection, store.close_batch(batch, cancelling=True))
    with pytest.raises(psycopg.Error, match="takes no more jobs"):
        replace(connection, batch)
    assert state_of(connection, job) is State.PENDING


# Several sessions at once


@pytest.fixture
def other(connect: Connect) -> Iterator[db.Connection]:
    connection = connect()
    yield connection
    connection.close()


def blocked(connection: db.Connection) -> bool:
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    return bool(value(connection, waiting))


def test_closing_waits_for_a_transaction_that_adds_jobs_and_counts_them(
    connection: db.Connection, other: db.Connection
) -> None:
    batch = open_batch(connection, "done")
    with other.transaction():
        add(other, batch, 2)
        add(connection, batch)
        drain(connection)  # Neither those that add jobs wait for each other, nor do ends.
        closing = threading.Thread(target=lambda: in_thread(other.info.dsn, batch))
        closing.start()
        eventually(lambda: blocked(connection), what="it waits")
    closing.join()
    assert counts(connection, batch) == BatchCounts(3, 1, 0, 0, 0, 2, False)
    drain(connection)
    assert values(connection, CALLED) == ["done"]


def in_thread(dsn: str, batch: UUID) -> None:
    with db.connect(dsn) as mine:
        close(mine, batch)


def test_a_job_that_is_added_while_another_transaction_closes_is_counted_once(
    connection: db.Connection, other: db.Connection
) -> None:
    batch = open_batch(connection)
    add(connection, batch)
    adding: list[UUID] = []
    with other.transaction():
        close(other, batch)
        thread = threading.Thread(target=lambda: adding.extend(added_in_thread(other.info.dsn, batch)))
        thread.start()
        eventually(lambda: blocked(connection), what="it waits")
    thread.join()
    assert len(adding) == 2
    assert counts(connection, batch).jobs == 3


def added_in_thread(dsn: str, batch: UUID) -> list[UUID]:
    with db.connect(dsn) as mine:
        return add(mine, batch, 2)


def test_two_last_jobs_that_end_at_once_call_back_once(connection: db.Connection, other: db.Connection) -> None:
    batch = open_batch(connection, *EVENTS)
    add(connection, batch, 2)
    close(connection, batch)
    first, second = claim(connection)
    with other.transaction():
        complete(other, WORKER, first.token)
        thread = threading.Thread(target=lambda: complete_in_thread(other.info.dsn, second.token))
        thread.start()
        eventually(lambda: blocked(connection), what="it waits")
    thread.join()
    assert counts(connection, batch) == BatchCounts(2, 2, 0, 0, 0, 0, True)
    assert values(connection, CALLED) == ["done", "success"]


def complete_in_thread(dsn: str, token: int) -> None:
    with db.connect(dsn) as mine:
        complete(mine, WORKER, token)


def test_a_batch_that_another_transaction_has_locked_holds_up_only_its_own_jobs(
    connection: db.Connection, other: db.Connection
) -> None:
    batch = open_batch(connection)
    add(connection, batch)
    make_many(connection, 1)
    close(connection, batch)
    tokens = [job.token for job in claim(connection)]
    assert db.run(connection, store.locked_ends(WORKER, tokens)) == set()
    with other.transaction():
        other.execute("select from outlive.batches for no key update")
        assert db.run(connection, store.locked_ends(WORKER, tokens)) == set(tokens[:1])


def test_a_transaction_with_an_old_snapshot_cannot_close_a_batch(
    connection: db.Connection, other: db.Connection
) -> None:
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with other.transaction():
        batch = open_batch(connection)  # Before the other one takes its snapshot.
        assert counts(other, batch).jobs == 0
        add(connection, batch)
        with pytest.raises(psycopg.Error, match="READ COMMITTED"), other.transaction():
            close(other, batch)
    with other.transaction():
        with other.transaction():
            mine = open_batch(other)
            add(other, mine)
        close(other, mine)
    assert counts(connection, mine).jobs == 1


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_ends_without_a_batch_under_way_look_at_one_index(connection: db.Connection, state: State) -> None:
    close(connection, open_batch(connection))
    [job] = make_many(connection, 1)
    reads = "select sum(idx_scan + seq_scan) from pg_stat_xact_user_tables where relname = 'jobs'"
    with connection.transaction():
        before = value(connection, reads)
        connection.execute("select outlive.follow_up(%s, %s)", [[job], [str(state)]])
        assert value(connection, reads) == before


def test_the_batches_of_ended_jobs_are_looked_up_by_the_jobs_whatever_the_statistics_say(
    connection: db.Connection,
) -> None:
    """After a time without batches the index over them seems to be empty, until it is analysed again."""
    make_many(connection, 100)
    drain(connection)
    connection.execute("analyze outlive.jobs")
    batch = open_batch(connection)
    add(connection, batch, 100)
    scans = "select pg_stat_get_xact_numscans('outlive.jobs_by_batch'::regclass)"
    with connection.transaction():
        drain(connection, Outcome.SUCCEEDED, Outcome.FAILED)
        failed = value(connection, "select job_id from outlive.attempts where state = 'failed'")
        db.run(connection, store.retry([failed]))
        db.run(connection, store.cancel([failed]))
        db.run(connection, store.prune_jobs([failed]))
        assert value(connection, scans) == 0
    assert counts(connection, batch) == BatchCounts(100, 1, 0, 1, 0, 98, False)
