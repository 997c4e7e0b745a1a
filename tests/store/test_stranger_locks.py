"""What a client or a job can lock stops no other's jobs."""

from collections.abc import Iterator

import pytest

from outlive import store
from outlive.model import Ended
from outlive.states import State
from tests.driving.databases import session
from tests.driving.making import WORKER, Queue
from tests.store.acting import assert_sound
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, succeed
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
