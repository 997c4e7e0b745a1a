"""Jobs end while others are enqueued to wait for them, or at the same moment as others: no release is lost.

Each test has two sessions. The transaction of the first is open while the second one acts; the second has then
finished, or waits for the first.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from uuid import UUID

import psycopg
import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import FINISHED, Outcome, State
from tests.driving.making import (
    WORKER,
    Connect,
    claim,
    claim_job,
    count,
    end,
    enqueue,
    follow,
    make,
    make_finished,
    make_many,
    make_quarantined,
    run_job,
    state_of,
    values,
)
from tests.store.acting import assert_sound
from tests.store.ring import Ring
from tests.store.ring import ring as ring
from tests.store.test_dependencies import make_after, waiting_for
from tests.waiting import eventually


def succeed(connection: db.Connection, token: int) -> None:
    assert end(connection, Ended(token)) == []


# A job ends while another is enqueued to wait for it.


def test_a_job_that_ends_before_the_enqueue_commits_is_noticed_by_the_reaper(ring: Ring) -> None:
    needed = make(ring.watcher)
    token = claim_job(ring.watcher, needed).token
    with ring.first.transaction():
        job = make_after(ring.first, needed)
        assert ring.start(lambda second: succeed(second, token)).done()  # An open enqueue holds up no end.
        assert state_of(ring.first, job) is State.BLOCKED
    follow(ring.watcher)
    assert state_of(ring.watcher, job) is State.PENDING


@pytest.mark.parametrize(
    ("on_failure", "becomes"), [("block", State.BLOCKED), ("proceed", State.PENDING), ("cancel", State.CANCELLED)]
)
@pytest.mark.parametrize("event", ["fail", "crash", "cancel it while it waits"])
def test_a_job_that_fails_before_the_enqueue_commits_is_noticed_too(
    ring: Ring, event: str, on_failure: str, becomes: State
) -> None:
    needed = make(ring.watcher, options={"max_crashes": 1})
    claimed = None if event == "cancel it while it waits" else claim_job(ring.watcher, needed)
    with ring.first.transaction():
        job = waiting_for(needed, on_failure=on_failure)
        below = waiting_for(job.id, on_failure="cancel")
        enqueue(ring.first, [job, below])
        if claimed is None:
            db.run(ring.second, store.cancel([needed]))
        else:
            outcome = Outcome.FAILED if event == "fail" else Outcome.CRASHED
            end(ring.second, Ended(claimed.token, outcome, final=True))
    follow(ring.watcher)
    assert state_of(ring.watcher, job.id) is becomes
    assert state_of(ring.watcher, below.id) is (State.CANCELLED if becomes is State.CANCELLED else State.BLOCKED)


def place_waiting(connection: db.Connection) -> UUID:
    return make(connection)


def place_running(connection: db.Connection) -> UUID:
    job = make(connection)
    claim_job(connection, job)
    return job


def place_held(connection: db.Connection) -> UUID:
    job = make(connection)
    db.run(connection, store.block([job], "for a while"))
    return job


@pytest.mark.parametrize("place", [place_waiting, place_running, place_held, make_quarantined])
def test_an_open_enqueue_with_immediate_constraints_holds_up_no_end(
    ring: Ring, place: Callable[[db.Connection], UUID]
) -> None:
    needed = place(ring.watcher)

    def finish(second: db.Connection) -> None:
        if place is place_running:
            tokens = values(second, "select token from outlive.running where id = %s", needed)
            succeed(second, tokens[0])
        else:
            db.run(second, store.cancel([needed]))

    with ring.first.transaction():
        ring.first.execute("set constraints all immediate")
        job = make_after(ring.first, needed, on_failure="proceed" if place is not make_quarantined else "block")
        ring.first.execute("set constraints all immediate")
        assert ring.start(finish).done()
    follow(ring.watcher)
    expected = State.BLOCKED if place is make_quarantined else State.PENDING
    assert state_of(ring.watcher, job) is expected


def test_a_job_that_moves_before_the_enqueue_commits_is_found_in_its_new_place(ring: Ring) -> None:
    needed = make(ring.watcher)
    with ring.first.transaction():
        job = make_after(ring.first, needed)
        token = claim_job(ring.second, needed).token
    follow(ring.watcher)
    assert state_of(ring.watcher, job) is State.BLOCKED
    with ring.first.transaction():
        other = make_after(ring.first, needed)
        end(ring.second, Ended(token, Outcome.RELEASED))
    follow(ring.watcher)
    assert state_of(ring.watcher, other) is State.BLOCKED
    succeed(ring.watcher, claim_job(ring.watcher, needed).token)
    assert [state_of(ring.watcher, one) for one in (job, other)] == [State.PENDING] * 2


def test_an_enqueue_does_not_wait_for_an_end_that_is_under_way_and_is_released_after_it(ring: Ring) -> None:
    needed = make(ring.watcher)
    token = claim_job(ring.watcher, needed).token
    with ring.first.transaction():
        succeed(ring.first, token)
        job = make_after(ring.second, needed)
        follow(ring.second)
        assert state_of(ring.second, job) is State.BLOCKED
        assert count(ring.watcher, "end_checks") == 1  # Whether the end is committed is not known yet.
    follow(ring.watcher)
    assert state_of(ring.watcher, job) is State.PENDING
    assert count(ring.watcher, "end_checks") == 0


def test_a_job_is_not_pruned_while_an_enqueue_that_needs_it_is_open(ring: Ring) -> None:
    needed = make_finished(ring.watcher)
    with ring.first.transaction():
        make_after(ring.first, needed)
        assert db.run(ring.second, store.prune_jobs([needed])) == 0
    assert state_of(ring.watcher, needed) is State.SUCCEEDED


def test_a_failed_job_that_is_retried_before_the_enqueue_commits_releases_it_by_its_success(ring: Ring) -> None:
    needed = make_finished(ring.watcher, Outcome.FAILED)
    with ring.first.transaction():
        job = make_after(ring.first, needed)
        db.run(ring.second, store.retry([needed]))
        succeed(ring.second, claim_job(ring.second, needed).token)
    follow(ring.watcher)
    assert state_of(ring.watcher, job) is State.PENDING


def test_a_failed_job_that_is_retried_and_succeeds_while_the_enqueue_commits_is_noticed_by_the_reaper(
    ring: Ring,
) -> None:
    needed = make_finished(ring.watcher, Outcome.FAILED)
    with ring.first.transaction():
        job = make_after(ring.first, needed)
        ring.first.execute("set constraints all immediate")
        assert ring.start(lambda second: db.run(second, store.retry([needed]))).done()  # Operators don't wait.
        run_job(ring.second, needed)
    assert state_of(ring.watcher, job) is State.BLOCKED
    assert db.run(ring.watcher, store.check_late_ends()) == 1
    assert state_of(ring.watcher, job) is State.PENDING


# Two jobs end at the same moment.


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_of_two_ends_at_the_same_moment_the_second_releases(ring: Ring, level: str) -> None:
    needed = make_many(ring.watcher, 2)
    tokens = [claim_job(ring.watcher, one).token for one in needed]
    job = make_after(ring.watcher, *needed)

    def end_own(second: db.Connection) -> None:
        with second.transaction():
            second.execute(f"set transaction isolation level {level}".encode())
            second.execute("select outlive.complete_with_records(%s, %s)", [tokens[1], WORKER])

    with ring.first.transaction():
        succeed(ring.first, tokens[0])
        answer = ring.start(end_own)
        assert not answer.done()
    if level == "repeatable read":
        with pytest.raises(psycopg.errors.SerializationFailure):
            answer.result(10)
        end_own(ring.second)
    else:
        answer.result(10)
    assert state_of(ring.watcher, job) is State.PENDING


def test_ends_and_releases_of_the_same_job_never_both_move_it(ring: Ring) -> None:
    for verb in (store.release, store.cancel):
        needed = make(ring.watcher)
        token = claim_job(ring.watcher, needed).token
        job = make_after(ring.watcher, needed)
        with ring.first.transaction():
            db.run(ring.first, verb([job]))
            answer = ring.start(lambda second, token=token: succeed(second, token))  # type: ignore[misc]
            assert not answer.done()
        answer.result(10)
        assert state_of(ring.watcher, job) is (State.PENDING if verb is store.release else State.CANCELLED)
        assert_sound(ring.watcher)


def test_ends_that_release_the_same_jobs_in_opposite_order_do_not_deadlock(ring: Ring) -> None:
    needed = make_many(ring.watcher, 2)
    tokens = [claim_job(ring.watcher, one).token for one in needed]
    jobs = [waiting_for(*pair) for pair in (needed, needed[::-1])]
    enqueue(ring.watcher, jobs)
    with ring.first.transaction():
        ring.first.execute("select from outlive.held where id = %s for update", [min(one.id for one in jobs)])
        answer = ring.start(lambda second: succeed(second, tokens[0]))
        assert not answer.done()
        ring.first.execute("select from outlive.held where id = %s for update nowait", [max(one.id for one in jobs)])
    answer.result(10)


def test_an_end_that_a_deadlock_has_failed_can_be_repeated(connect: Connect) -> None:
    """A chain is cancelled from its middle, while the end of another job wants to release both ends of it."""
    watcher, first, second = connect(), connect(), connect()
    needed, other = make_many(watcher, 2)
    token = claim_job(watcher, needed).token
    upper, lower = sorted((UUID(int=2), UUID(int=1)), reverse=True)  # The lower one has the smaller id.
    enqueue(watcher, [waiting_for(other, needed, id=upper)])
    enqueue(watcher, [waiting_for(upper, needed, id=lower, on_failure="cancel")])
    with ThreadPoolExecutor(1) as threads, first.transaction():
        first.execute("select from outlive.held where id = %s for update", [upper])  # As cancel does first.
        answer = threads.submit(succeed, second, token)  # It locks the lower one and waits for the upper one.
        query = "select cardinality(pg_blocking_pids(%s)) > 0"
        eventually(lambda: watcher.execute(query, [second.info.backend_pid]).fetchone() == (True,))
        first.execute("set local deadlock_timeout = '30s'")  # The other one notices first.
        db.run(first, store.cancel([upper]))
        with pytest.raises(psycopg.errors.DeadlockDetected):
            answer.result(10)
    assert [state_of(watcher, one) for one in (upper, lower)] == [State.CANCELLED] * 2
    assert state_of(watcher, needed) is State.RUNNING
    succeed(second, token)
    assert_sound(watcher)


# Everything at once.


def repeated(act: Callable[[], object]) -> None:
    """Act, and repeat that after a deadlock, as clients and workers do."""
    while True:
        try:
            act()
            return
        except psycopg.errors.DeadlockDetected:
            continue


@pytest.mark.parametrize("seed", [1, 2])
def test_among_many_sessions_every_job_runs_once_after_all_that_it_needs(connect: Connect, seed: int) -> None:
    """Layers of jobs wait for jobs of earlier layers; they are enqueued while workers run and operators cancel."""
    jobs: dict[UUID, set[UUID]] = {}
    order: list[UUID] = []

    def client(connection: db.Connection, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            known = list(jobs)[-40:]
            needs = chance.sample(known, min(len(known), chance.randint(0, 4)))
            one = waiting_for(*needs, on_failure=chance.choice(["block", "proceed", "proceed", "cancel"]))
            repeated(lambda: enqueue(connection, [one]))  # noqa: B023
            jobs[one.id] = set(needs)

    def worker(connection: db.Connection, number: int) -> None:
        chance, id = random.Random(number), UUID(int=number)
        idle = 0
        while idle < 40:
            claimed = claim(connection, worker=id, limit=chance.randint(1, 5))
            idle = 0 if claimed else idle + 1
            order.extend(one.id for one in claimed)
            outcomes = [Outcome.SUCCEEDED] * 5 + [Outcome.FAILED]
            ends = [Ended(one.token, chance.choice(outcomes), final=True) for one in claimed]
            repeated(lambda: end(connection, *ends, worker=id))  # noqa: B023

    with ThreadPoolExecutor(8) as threads:
        numbers = [10 * seed + n for n in range(4)]
        racers = [*product([client], numbers), *product([worker], numbers)]
        for one in [threads.submit(act, connect(), number) for act, number in racers]:
            one.result()
    connection = connect()
    follow(connection)
    assert count(connection, "end_checks") == 0
    assert_sound(connection)
    worker(connection, 99)
    states = db.run(connection, store.statuses(list(jobs)))
    assert set(states.values()) <= FINISHED | {State.BLOCKED}
    for job, needs in jobs.items():
        if states[job] is State.BLOCKED:
            assert any(states[need] is not State.SUCCEEDED for need in needs)
        if job in order:
            assert all(need in order[: order.index(job)] or states[need] is State.CANCELLED for need in needs)
