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

from outlive import store
from outlive.model import Ended
from outlive.states import FINISHED, Outcome, State
from tests.driving.making import WORKER, Queue, make_quarantined
from tests.store.acting import assert_sound
from tests.store.ring import Ring
from tests.store.test_dependencies import make_after, waiting_for
from tests.waiting import eventually


def succeed(queue: Queue, token: int) -> None:
    assert queue.end(Ended(token)) == []


# A job ends while another is enqueued to wait for it.


@pytest.mark.parametrize(
    ("on_failure", "becomes"), [("block", State.BLOCKED), ("proceed", State.PENDING), ("cancel", State.CANCELLED)]
)
@pytest.mark.parametrize("event", ["fail", "crash", "cancel it while it waits"])
def test_a_job_that_fails_before_the_enqueue_commits_is_noticed_too(ring, event, on_failure, becomes):
    needed = ring.watcher.make(options={"max_crashes": 1})
    claimed = None if event == "cancel it while it waits" else ring.watcher.claim_job(needed)
    with ring.first.transaction():
        job = waiting_for(needed, on_failure=on_failure)
        below = waiting_for(job.id, on_failure="cancel")
        ring.first.enqueue([job, below])
        if claimed is None:
            ring.second.run(store.cancel([needed]))
        else:
            outcome = Outcome.FAILED if event == "fail" else Outcome.CRASHED
            ring.second.end(Ended(claimed.token, outcome, final=True))
    ring.watcher.follow()
    assert ring.watcher.state_of(job.id) is becomes
    assert ring.watcher.state_of(below.id) is (State.CANCELLED if becomes is State.CANCELLED else State.BLOCKED)


def place_waiting(queue: Queue) -> UUID:
    return queue.make()


def place_running(queue: Queue) -> UUID:
    job = queue.make()
    queue.claim_job(job)
    return job


def place_held(queue: Queue) -> UUID:
    job = queue.make()
    queue.run(store.block([job], "for a while"))
    return job


@pytest.mark.parametrize("place", [place_waiting, place_running, place_held, make_quarantined])
def test_an_open_enqueue_with_immediate_constraints_holds_up_no_end(ring, place):
    needed = place(ring.watcher)

    def finish(second: Queue) -> None:
        if place is place_running:
            tokens = second.values("select token from outlive.running where id = %s", needed)
            succeed(second, tokens[0])
        else:
            second.run(store.cancel([needed]))

    with ring.first.transaction():
        ring.first.execute("set constraints all immediate")
        job = make_after(ring.first, needed, on_failure="proceed" if place is not make_quarantined else "block")
        ring.first.execute("set constraints all immediate")
        assert ring.start(finish).done()
    ring.watcher.follow()
    expected = State.BLOCKED if place is make_quarantined else State.PENDING
    assert ring.watcher.state_of(job) is expected


def test_a_job_that_moves_before_the_enqueue_commits_is_found_in_its_new_place(ring):
    needed = ring.watcher.make()
    with ring.first.transaction():
        job = make_after(ring.first, needed)
        token = ring.second.claim_job(needed).token
    ring.watcher.follow()
    assert ring.watcher.state_of(job) is State.BLOCKED
    with ring.first.transaction():
        other = make_after(ring.first, needed)
        ring.second.end(Ended(token, Outcome.RELEASED))
    ring.watcher.follow()
    assert ring.watcher.state_of(other) is State.BLOCKED
    succeed(ring.watcher, ring.watcher.claim_job(needed).token)
    assert [ring.watcher.state_of(one) for one in (job, other)] == [State.PENDING] * 2


def test_an_enqueue_does_not_wait_for_an_end_that_is_under_way_and_is_released_after_it(ring):
    needed = ring.watcher.make()
    token = ring.watcher.claim_job(needed).token
    with ring.first.transaction():
        succeed(ring.first, token)
        job = make_after(ring.second, needed)
        ring.second.follow()
        assert ring.second.state_of(job) is State.BLOCKED
        assert ring.watcher.count("end_checks") == 1  # Whether the end is committed is not known yet.
    ring.watcher.follow()
    assert ring.watcher.state_of(job) is State.PENDING
    assert ring.watcher.count("end_checks") == 0


def test_a_job_is_not_pruned_while_an_enqueue_that_needs_it_is_open(ring):
    needed = ring.watcher.make_finished()
    with ring.first.transaction():
        make_after(ring.first, needed)
        assert ring.second.run(store.prune_jobs([needed])) == 0
    assert ring.watcher.state_of(needed) is State.SUCCEEDED


def test_a_failed_job_that_is_retried_and_succeeds_while_the_enqueue_commits_is_noticed_by_the_reaper(ring):
    needed = ring.watcher.make_finished(Outcome.FAILED)
    with ring.first.transaction():
        job = make_after(ring.first, needed)
        ring.first.execute("set constraints all immediate")
        assert ring.start(lambda second: second.run(store.retry([needed]))).done()  # Operators don't wait.
        ring.second.run_job(needed)
    assert ring.watcher.state_of(job) is State.BLOCKED
    assert ring.watcher.run(store.check_late_ends()) == 1
    assert ring.watcher.state_of(job) is State.PENDING


# Two jobs end at the same moment.


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_of_two_ends_at_the_same_moment_the_second_releases(ring, level):
    needed = ring.watcher.make_many(2)
    tokens = [ring.watcher.claim_job(one).token for one in needed]
    job = make_after(ring.watcher, *needed)

    def end_own(second: Queue) -> None:
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
    assert ring.watcher.state_of(job) is State.PENDING


def test_ends_and_releases_of_the_same_job_never_both_move_it(ring: Ring) -> None:
    for verb in (store.release, store.cancel):
        needed = ring.watcher.make()
        token = ring.watcher.claim_job(needed).token
        job = make_after(ring.watcher, needed)
        with ring.first.transaction():
            ring.first.run(verb([job]))
            answer = ring.start(lambda second, token=token: succeed(second, token))  # type: ignore[misc]
            assert not answer.done()
        answer.result(10)
        assert ring.watcher.state_of(job) is (State.PENDING if verb is store.release else State.CANCELLED)
        assert_sound(ring.watcher)


def test_ends_that_release_the_same_jobs_in_opposite_order_do_not_deadlock(ring):
    needed = ring.watcher.make_many(2)
    tokens = [ring.watcher.claim_job(one).token for one in needed]
    jobs = [waiting_for(*pair) for pair in (needed, needed[::-1])]
    ring.watcher.enqueue(jobs)
    with ring.first.transaction():
        ring.first.execute("select from outlive.held where id = %s for update", [min(one.id for one in jobs)])
        answer = ring.start(lambda second: succeed(second, tokens[0]))
        assert not answer.done()
        ring.first.execute("select from outlive.held where id = %s for update nowait", [max(one.id for one in jobs)])
    answer.result(10)


def test_an_end_that_a_deadlock_has_failed_can_be_repeated(connect):
    """A chain is cancelled from its middle, while the end of another job wants to release both ends of it."""
    watcher, first, second = connect(), connect(), connect()
    needed, other = watcher.make_many(2)
    token = watcher.claim_job(needed).token
    upper, lower = sorted((UUID(int=2), UUID(int=1)), reverse=True)  # The lower one has the smaller id.
    watcher.enqueue([waiting_for(other, needed, id=upper)])
    watcher.enqueue([waiting_for(upper, needed, id=lower, on_failure="cancel")])
    with ThreadPoolExecutor(1) as threads, first.transaction():
        first.execute("select from outlive.held where id = %s for update", [upper])  # As cancel does first.
        answer = threads.submit(succeed, second, token)  # It locks the lower one and waits for the upper one.
        query = "select cardinality(pg_blocking_pids(%s)) > 0"
        eventually(lambda: watcher.execute(query, [second.info.backend_pid]).fetchone() == (True,))
        first.execute("set local deadlock_timeout = '30s'")  # The other one notices first.
        first.run(store.cancel([upper]))
        with pytest.raises(psycopg.errors.DeadlockDetected):
            answer.result(10)
    assert [watcher.state_of(one) for one in (upper, lower)] == [State.CANCELLED] * 2
    assert watcher.state_of(needed) is State.RUNNING
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
def test_among_many_sessions_every_job_runs_once_after_all_that_it_needs(connect, seed):
    """Layers of jobs wait for jobs of earlier layers; they are enqueued while workers run and operators cancel."""
    jobs: dict[UUID, set[UUID]] = {}
    order: list[UUID] = []

    def client(queue: Queue, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            known = list(jobs)[-40:]
            needs = chance.sample(known, min(len(known), chance.randint(0, 4)))
            one = waiting_for(*needs, on_failure=chance.choice(["block", "proceed", "proceed", "cancel"]))
            repeated(lambda: queue.enqueue([one]))  # noqa: B023
            jobs[one.id] = set(needs)

    def worker(queue: Queue, number: int) -> None:
        chance, id = random.Random(number), UUID(int=number)
        idle = 0
        while idle < 40:
            claimed = queue.claim(worker=id, limit=chance.randint(1, 5))
            idle = 0 if claimed else idle + 1
            order.extend(one.id for one in claimed)
            outcomes = [Outcome.SUCCEEDED] * 5 + [Outcome.FAILED]
            ends = [Ended(one.token, chance.choice(outcomes), final=True) for one in claimed]
            repeated(lambda: queue.end(*ends, worker=id))  # noqa: B023

    with ThreadPoolExecutor(8) as threads:
        numbers = [10 * seed + n for n in range(4)]
        racers = [*product([client], numbers), *product([worker], numbers)]
        for one in [threads.submit(act, connect(), number) for act, number in racers]:
            one.result()
    connection = connect()
    connection.follow()
    assert connection.count("end_checks") == 0
    assert_sound(connection)
    worker(connection, 99)
    states = connection.run(store.statuses(list(jobs)))
    assert set(states.values()) <= FINISHED | {State.BLOCKED}
    for job, needs in jobs.items():
        if states[job] is State.BLOCKED:
            assert any(states[need] is not State.SUCCEEDED for need in needs)
        if job in order:
            assert all(need in order[: order.index(job)] or states[need] is State.CANCELLED for need in needs)
