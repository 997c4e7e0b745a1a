"""What a client or a job can lock stops no other's jobs, and no call fails because of a deadlock."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import msgspec
import psycopg
import pytest

from outlive import store
from outlive.model import Ended, new_job_id
from outlive.states import Outcome, State
from tests.driving.databases import session
from tests.driving.making import WORKER, Queue, request
from tests.store.acting import assert_sound
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, succeed
from tests.store.test_batches import add, close, open_batch
from tests.store.test_dependencies import make_after

KEYS = 1869968492
"""The class of the advisory locks that stood for keys once."""


@pytest.fixture
def stranger(queue: Queue, database_url: str) -> Iterator[Queue]:
    """A login that may only enqueue."""
    with session(queue, database_url, "outlive_enqueue") as client:
        yield client


def run_keyed(queue: Queue, number: int = 3) -> None:
    """Jobs of the key run one after the other."""
    jobs = [make_keyed(queue) for _ in range(number)]
    for job in jobs:
        [running] = claim(queue)
        assert running.id == job
        succeed(queue, running)
    assert_sound(queue)


def test_a_login_that_holds_every_advisory_lock_that_it_can_stops_no_job(queue, stranger):
    stranger.execute("select pg_advisory_lock(%s, n) from generate_series(0, 255) n", [KEYS])
    stranger.execute(
        "select pg_advisory_lock(hashtextextended(n, 0)) from unnest(%s::text[]) n",
        [["outlive sweep", "outlive suspects"]],
    )
    run_keyed(queue)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_with_immediate_constraints_in_a_long_transaction_stops_no_keyed_job(queue, stranger, when):
    with stranger.transaction():
        if when == "before":
            stranger.execute("set constraints all immediate")
        theirs = make_keyed(stranger)
        if when == "after":
            stranger.execute("set constraints all immediate")
        run_keyed(queue)
    assert admitted(queue) == [theirs]


def test_a_client_with_immediate_constraints_in_a_long_transaction_holds_up_no_end(queue, stranger):
    needed = queue.make()
    token = queue.claim_job(needed).token
    queue.execute("set lock_timeout = '1s'")
    with stranger.transaction():
        job = make_after(stranger, needed)
        stranger.execute("set constraints all immediate")
        assert queue.end(Ended(token)) == []
        assert queue.state_of(needed) is State.SUCCEEDED
    queue.follow()
    assert queue.state_of(job) is State.PENDING


def test_a_job_that_completes_in_a_long_transaction_with_immediate_constraints_stops_no_other_of_its_key(
    queue, connect
):
    job = connect()
    make_keyed(queue, concurrency=2)
    [running] = claim(queue)
    with job.transaction():
        job.execute("set constraints all immediate")
        job.execute("select outlive.complete_with_records(%s, %s)", [running.token, WORKER])
        job.execute("set constraints all immediate")
        other = make_keyed(queue, concurrency=2)
        assert admitted(queue) == sorted([running.id, other])
        succeed(queue, *claim(queue))
    assert admitted(queue) == []
    queue.run(store.admit_due())
    assert_sound(queue)


def test_a_client_may_not_lock_keys(stranger):
    with pytest.raises(Exception, match="permission denied"):
        stranger.execute("select outlive.lock_keys(%s)", [[CUSTOMER]])


SESSIONS, CALLS, KNOWN = 6, 60, 12


class Player:
    """A session that calls what its seed says, on jobs that all players know."""

    def __init__(self, queue: Queue, jobs: list[UUID], seed: int) -> None:
        self.connection, self.jobs = queue, jobs
        self.chance, self.worker = random.Random(seed), UUID(int=seed + 1)
        self.deadlocks = 0
        queue.execute("set deadlock_timeout = '20ms'")

    def play(self) -> None:
        calls: list[Callable[[], object]] = [self.cancel, self.retry, self.enqueue, self.enqueue, self.work]
        for _ in range(CALLS):
            try:
                self.chance.choice(calls)()
            except psycopg.errors.DeadlockDetected:
                self.deadlocks += 1

    def some(self) -> list[UUID]:
        return self.chance.sample(self.jobs[-KNOWN:], self.chance.randint(1, 4))

    def cancel(self) -> None:
        self.connection.run(store.cancel(self.some()))

    def retry(self) -> None:
        self.connection.run(store.retry(self.some()))

    def enqueue(self) -> None:
        """Two jobs: the first waits for some that exist, the second for the first and for others."""
        first, second = new_job_id(), new_job_id()
        not_made = self.connection.enqueue(
            [
                request(id=first, links=self.links(self.some()), dedupe_key=self.chance.choice(["a", "b", None, None])),
                request(id=second, links=self.links([first, *self.some()])),
            ]
        )
        self.jobs += {first, second} - not_made.keys()

    def links(self, after: list[UUID]) -> bytes:
        on_failure = self.chance.choice(["block", "proceed", "cancel", "cancel"])
        return msgspec.json.encode({"after": after, "on_failure": on_failure})

    def work(self) -> None:
        claimed = self.connection.claim(worker=self.worker, limit=3)
        outcomes = [Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED]
        self.connection.end(
            *[Ended(one.token, self.chance.choice(outcomes), final=True) for one in claimed], worker=self.worker
        )


def test_a_job_that_joins_a_closed_batch_and_waits_for_a_job_of_it_lets_that_one_end(ring):
    batch = open_batch(ring.watcher)
    [needed] = add(ring.watcher, batch)
    close(ring.watcher, batch)
    token = ring.watcher.claim_job(needed).token
    with ring.first.transaction():
        job = ring.first.make(links=msgspec.json.encode({"after": [needed], "batch": batch}))
        answer = ring.start(lambda second: second.end(Ended(token)))
        assert not answer.done()
    assert answer.result(10) == []
    ring.watcher.follow()
    assert ring.watcher.state_of(job) is State.PENDING


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_call_on_the_same_few_jobs_fails_because_of_a_deadlock(connect, seed):
    watcher = connect()
    jobs = watcher.make_many(KNOWN)
    players = [Player(connect(), jobs, 100 * seed + n) for n in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as threads:
        for one in [threads.submit(player.play) for player in players]:
            one.result()
    while watcher.execute("select from outlive.end_checks").fetchone() is not None:
        watcher.follow()
    assert_sound(watcher)
    assert sum(player.deadlocks for player in players) == 0
