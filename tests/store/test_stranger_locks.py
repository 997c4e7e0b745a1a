"""What a client or a job can lock stops no other's jobs."""

from collections.abc import Iterator

import pytest

from outlive import db, store
from outlive.model import Ended
from outlive.states import State
from tests.driving.databases import session
from tests.driving.making import WORKER, Connect, claim_job, end, follow, make, state_of
from tests.store.acting import assert_sound
from tests.store.keyed import CUSTOMER, admitted, claim, make_keyed, succeed
from tests.store.test_dependencies import make_after

KEYS = 1869968492
"""The class of the advisory locks that stood for keys once."""


@pytest.fixture
def stranger(connection: db.Connection, database_url: str) -> Iterator[db.Connection]:
    """A login that may only enqueue."""
    with session(connection, database_url, "outlive_enqueue") as client:
        yield client


def run_keyed(connection: db.Connection, number: int = 3) -> None:
    """Jobs of the key run one after the other."""
    jobs = [make_keyed(connection) for _ in range(number)]
    for job in jobs:
        [running] = claim(connection)
        assert running.id == job
        succeed(connection, running)
    assert_sound(connection)


def test_a_login_that_holds_every_advisory_lock_that_it_can_stops_no_job(
    connection: db.Connection, stranger: db.Connection
) -> None:
    stranger.execute("select pg_advisory_lock(%s, n) from generate_series(0, 255) n", [KEYS])
    stranger.execute(
        "select pg_advisory_lock(hashtextextended(n, 0)) from unnest(%s::text[]) n",
        [["outlive sweep", "outlive suspects"]],
    )
    run_keyed(connection)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_with_immediate_constraints_in_a_long_transaction_stops_no_keyed_job(
    connection: db.Connection, stranger: db.Connection, when: str
) -> None:
    with stranger.transaction():
        if when == "before":
            stranger.execute("set constraints all immediate")
        theirs = make_keyed(stranger)
        if when == "after":
            stranger.execute("set constraints all immediate")
        run_keyed(connection)
    assert admitted(connection) == [theirs]


def test_a_client_with_immediate_constraints_in_a_long_transaction_holds_up_no_end(
    connection: db.Connection, stranger: db.Connection
) -> None:
    needed = make(connection)
    token = claim_job(connection, needed).token
    connection.execute("set lock_timeout = '1s'")
    with stranger.transaction():
        job = make_after(stranger, needed)
        stranger.execute("set constraints all immediate")
        assert end(connection, Ended(token)) == []
        assert state_of(connection, needed) is State.SUCCEEDED
    follow(connection)
    assert state_of(connection, job) is State.PENDING


def test_a_job_that_completes_in_a_long_transaction_with_immediate_constraints_stops_no_other_of_its_key(
    connection: db.Connection, connect: Connect
) -> None:
    job = connect()
    make_keyed(connection, concurrency=2)
    [running] = claim(connection)
    with job.transaction():
        job.execute("set constraints all immediate")
        job.execute("select outlive.complete_with_records(%s, %s)", [running.token, WORKER])
        job.execute("set constraints all immediate")
        other = make_keyed(connection, concurrency=2)
        assert admitted(connection) == sorted([running.id, other])
        succeed(connection, *claim(connection))
    assert admitted(connection) == []
    db.run(connection, store.admit_due())
    assert_sound(connection)


def test_a_client_may_not_lock_keys(stranger: db.Connection) -> None:
    with pytest.raises(Exception, match="permission denied"):
        stranger.execute("select outlive.lock_keys(%s)", [[CUSTOMER]])
