"""Reaping the jobs of a dead worker: each is lost once, and keeps its place."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from uuid import UUID, uuid4

import pytest

from outlive import db, store, wire
from outlive.model import Ended, Lost
from outlive.states import Outcome, State
from tests.driving.making import (
    TASK,
    Connect,
    claim,
    count,
    counters,
    make,
    register_task,
    register_worker,
    row_of,
    set_now,
    state_of,
)
from tests.store.acting import (
    ANNA,
    BERT,
    CARL,
    LANE,
    NOW,
    Place,
    assert_sound,
    bring,
    complete,
    contents,
    fire,
    give_up,
)
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]


def reap(connection: db.Connection) -> list[Lost]:
    return db.run(connection, store.reap())


def stop(connection: db.Connection, worker: UUID) -> None:
    db.run(connection, store.stop_worker(worker))


def die(connection: db.Connection, n: int) -> None:
    """Let a worker claim the next job and die, and reap it."""
    worker = UUID(int=100 + n)
    assert len(claim(connection, worker=worker, limit=1)) == 1
    give_up(connection, worker)
    assert len(reap(connection)) == 1


def test_only_the_attempts_of_the_dead_end(connection: db.Connection) -> None:
    jobs = {}
    for worker in (ANNA, BERT, CARL):
        make(connection)
        [jobs[worker]] = claim(connection, worker=worker, limit=1)
    register_worker(connection, BERT)  # Carl is in no list at all, and Anna is dead.
    give_up(connection, ANNA)
    lost = jobs[ANNA]
    assert reap(connection) == [Lost(lost.token, lost.id, ANNA, "crawler-1", State.PENDING)]
    assert [state_of(connection, jobs[worker].id) for worker in (BERT, CARL)] == [State.RUNNING] * 2
    [attempt] = db.run(connection, store.list_attempts(lost.id))
    assert (attempt.outcome, attempt.error) == (Outcome.LOST, "Worker died unexpectedly")
    assert attempt.worker == "crawler-1"


@pytest.mark.parametrize("state", ["active", "stale", "draining"])
def test_a_worker_that_has_neither_died_nor_stopped_keeps_its_jobs(connection: db.Connection, state: str) -> None:
    scene = bring(connection, Place.RUNNING)
    register_worker(connection, ANNA)
    connection.execute("update outlive.workers set state = %s", [state])
    before = contents(connection)
    assert reap(connection) == []
    assert contents(connection) == before
    assert state_of(connection, scene.job) is State.RUNNING


def test_a_job_that_was_lost_is_not_behind_the_others(connection: db.Connection) -> None:
    first = make(connection, run_at=NOW - timedelta(hours=1))
    for _ in range(3):
        make(connection)
    claim(connection, worker=ANNA, limit=1)
    give_up(connection, ANNA)
    set_now(connection, NOW + timedelta(seconds=10))
    reap(connection)
    assert row_of(connection, first)["ready_at"] == NOW - timedelta(hours=1)
    assert [claimed.id for claimed in claim(connection, worker=BERT, limit=1)] == [first]


def test_a_sleeping_worker_is_notified_of_freed_jobs(connection: db.Connection, connect: Connect) -> None:
    bring(connection, Place.RUNNING)
    give_up(connection, ANNA)
    sleeper = connect()
    sleeper.execute("listen outlive")
    db.run(sleeper, store.sleep(BERT))
    reap(connection)
    assert len(list(sleeper.notifies(timeout=10, stop_after=1))) == 1


@pytest.mark.parametrize("on_worker_death", ["retry", "fail"])
@pytest.mark.parametrize("max_losses", [1, 3])
def test_a_job_that_was_to_be_cancelled_is_so_when_its_worker_dies(
    connection: db.Connection, on_worker_death: str, max_losses: int
) -> None:
    register_task(connection, on_worker_death=on_worker_death, max_losses=max_losses)
    scene = bring(connection, Place.RUNNING)
    fire(connection, "cancel", scene)
    give_up(connection, ANNA)
    assert [lost.state for lost in reap(connection)] == [State.CANCELLED]
    assert state_of(connection, scene.job) is State.CANCELLED


def test_a_batch_is_reaped_the_oldest_attempts_first(connection: db.Connection) -> None:
    for _ in range(5):
        make(connection)
    tokens = sorted(claimed.token for claimed in claim(connection, worker=ANNA, limit=5))
    give_up(connection, ANNA)
    batches = [db.run(connection, store.reap(batch=2)) for _ in range(4)]
    assert [sorted(lost.token for lost in batch) for batch in batches] == [tokens[:2], tokens[2:4], tokens[4:], []]


def test_many_reapers_at_once_count_every_loss_once(connection: db.Connection, connect: Connect) -> None:
    for _ in range(200):
        make(connection)
    claimed = claim(connection, worker=ANNA, limit=200)
    give_up(connection, ANNA)
    reapers = [connect() for _ in range(4)]

    def sweep(reaper: db.Connection) -> list[Lost]:
        """Reap until the others are done: an empty batch may only mean that they hold the locks."""
        return [lost for _ in range(20) for lost in db.run(reaper, store.reap(batch=10))]

    with ThreadPoolExecutor(len(reapers)) as threads:
        lost = list(chain.from_iterable(threads.map(sweep, reapers)))
    lost += reap(connection)
    assert Counter(one.token for one in lost) == Counter(one.token for one in claimed)
    assert connection.execute("select distinct losses, attempt from outlive.waiting").fetchall() == [(1, 1)]
    assert (count(connection, "waiting"), count(connection, "attempts")) == (200, 200)
    assert_sound(connection)


@pytest.mark.parametrize("commits", [True, False])
def test_an_attempt_that_ends_in_its_own_transaction_is_left_to_it(
    connection: db.Connection, connect: Connect, commits: bool
) -> None:
    scene, other = bring(connection, Place.RUNNING), bring(connection, Place.RUNNING)
    give_up(connection, ANNA)
    child = connect()
    with child.transaction(force_rollback=not commits):
        complete(child, ANNA, scene.token)
        assert [lost.id for lost in reap(connection)] == [other.job]
    assert [lost.id for lost in reap(connection)] == ([] if commits else [scene.job])
    assert state_of(connection, scene.job) is (State.SUCCEEDED if commits else State.PENDING)


def test_an_attempt_whose_end_another_transaction_holds_up_delays_no_other(
    connection: db.Connection, connect: Connect
) -> None:
    """A user's open transaction has locked its batch, as ctx.complete does."""
    register_task(connection, on_worker_death="fail")
    batch = db.run(connection, store.open_batch(uuid4(), "import"))
    held_up = make(connection, links=wire.encode({"batch": str(batch)}))
    others = [make(connection) for _ in range(3)]
    claim(connection, worker=ANNA)
    give_up(connection, ANNA)
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.batches for update")
        ended = {lost.id: lost.state for lost in reap(connection)}
        assert ended == {held_up: None, **dict.fromkeys(others, State.FAILED)}
        assert [lost.state for lost in reap(connection)] == [None]
        assert db.run(connection, store.reap(after=max(lost.token for lost in reap(connection)))) == []
        assert state_of(connection, held_up) is State.RUNNING
    assert [lost.id for lost in reap(connection)] == [held_up]


def test_a_dead_worker_claims_nothing_but_may_still_say_how_something_ended(connection: db.Connection) -> None:
    scene = bring(connection, Place.RUNNING)
    bring(connection, Place.SUSPECT)
    make(connection)
    give_up(connection, ANNA)
    turn = db.run(connection, store.end_and_claim(ANNA, [Ended(scene.token)], [LANE], limit=10))
    assert (turn.claimed, turn.stale) == ([], [])
    assert state_of(connection, scene.job) is State.SUCCEEDED
    assert db.run(connection, store.claim_suspect(ANNA, tasks=[TASK])) == []
    assert len(claim(connection, worker=BERT, limit=10)) == 1
    assert len(db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))) == 1


def test_a_report_of_a_worker_that_was_reaped_is_not_written(connection: db.Connection) -> None:
    scene = bring(connection, Place.RUNNING)
    give_up(connection, ANNA)
    reap(connection)
    before = contents(connection)
    turn = db.run(connection, store.end_and_claim(ANNA, [Ended(scene.token)]))
    assert turn.stale == [scene.token]
    assert db.run(connection, store.renew(ANNA, [scene.token])) == {}
    assert contents(connection) == before


def test_a_loss_is_not_counted_before_the_job_had_begun_and_is_counted_the_next_time(connection: db.Connection) -> None:
    register_worker(connection, ANNA)
    job = make(connection)
    turn = db.run(connection, store.end_and_claim(ANNA, lanes=[LANE], limit=1, begun=False))
    assert [one.id for one in turn.claimed] == [job]
    give_up(connection, ANNA)
    reap(connection)
    assert counters(connection, job) == (0, 0, 0)
    [released] = db.run(connection, store.list_attempts(job))
    assert (released.outcome, released.error) == (Outcome.RELEASED, "Worker died unexpectedly, before the job began")
    register_worker(connection, BERT)
    db.run(connection, store.end_and_claim(BERT, lanes=[LANE], limit=1, begun=False))
    give_up(connection, BERT)
    reap(connection)
    assert counters(connection, job) == (0, 0, 1)


def test_a_job_that_was_claimed_ahead_and_has_begun_is_charged_with_its_loss(connection: db.Connection) -> None:
    register_worker(connection, ANNA)
    job = make(connection)
    [claimed] = db.run(connection, store.end_and_claim(ANNA, lanes=[LANE], limit=1, begun=False)).claimed
    db.run(connection, store.mark_begun(BERT, [claimed.token]))  # It is not Bert's.
    db.run(connection, store.mark_begun(ANNA, [claimed.token]))
    give_up(connection, ANNA)
    reap(connection)
    assert counters(connection, job) == (0, 0, 1)


def test_the_begin_of_a_job_whose_row_is_locked_is_marked_later(connect: Connect) -> None:
    """Another job is enqueued at that moment, to wait for it."""
    ours, theirs = connect(), connect()
    register_worker(ours, ANNA)
    make(ours)
    [claimed] = db.run(ours, store.end_and_claim(ANNA, lanes=[LANE], limit=1, begun=False)).claimed
    with theirs.transaction():
        theirs.execute("update outlive.running set begun = begun")
        assert db.run(ours, store.mark_begun(ANNA, [claimed.token])) == set()
    assert db.run(ours, store.mark_begun(ANNA, [claimed.token])) == {claimed.token}


@pytest.mark.parametrize(
    ("end", "words"), [(give_up, "Worker died unexpectedly"), (stop, "its worker stopped")], ids=["dead", "stopped"]
)
def test_a_loss_is_not_counted_for_a_worker_that_was_told_to_stop(
    connection: db.Connection, end: Callable[[db.Connection, UUID], object], words: str
) -> None:
    register_worker(connection, ANNA)
    job = make(connection)
    assert claim(connection, worker=ANNA, limit=1)
    assert db.run(connection, store.heartbeat(ANNA, "draining"))
    end(connection, ANNA)
    reap(connection)
    assert (counters(connection, job), state_of(connection, job)) == ((0, 0, 0), State.PENDING)
    [released] = db.run(connection, store.list_attempts(job))
    assert (released.outcome, released.error) == (Outcome.RELEASED, f"{words}, after a request to stop")


def test_an_attempt_whose_batch_is_locked_keeps_no_other_from_ending(
    connection: db.Connection, connect: Connect
) -> None:
    batch = db.run(connection, store.open_batch(uuid4(), "import"))
    make(connection, links=wire.encode({"batch": str(batch)}))
    free = make(connection)
    locked, other = claim(connection, worker=BERT)
    db.run(connection, store.cancel([locked.id]))
    give_up(connection, BERT)
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.batches for update")
        connection.execute("set lock_timeout = '100ms'")
        assert [(lost.id, lost.state) for lost in reap(connection)] == [(locked.id, None), (free, State.PENDING)]
        assert db.run(connection, store.reap(after=other.token)) == []
    assert [(lost.id, lost.state) for lost in reap(connection)] == [(locked.id, State.CANCELLED)]
