"""Workers in other languages that forget to commit, roll back, act in two sessions, or meet locks of others."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from outlive import db
from outlive.states import State
from tests.driving.databases import session
from tests.driving.making import Connect, hold_of, make, make_ready, register_task, set_now, state_of, value, values
from tests.store.acting import clear
from tests.store.noon import database_url
from tests.store.test_protocol import Foreign, declare_dead, refused
from tests.waiting import eventually

__all__ = ["database_url"]

LOCKED = "55P03"


@pytest.fixture
def foreign(connection: db.Connection, database_url: str) -> Iterator[Foreign]:
    clear(connection)
    with session(connection, database_url, "outlive_protocol") as theirs:
        yield Foreign(theirs)


def test_a_claim_at_the_same_time_does_not_undo_that_a_worker_drains(connect: Connect, foreign: Foreign) -> None:
    """Otherwise its death would be charged to its jobs."""
    second, watcher = connect(), connect()
    blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
    with ThreadPoolExecutor(1) as threads:
        with foreign.connection.transaction():
            foreign.rows("renew", worker=foreign.id, draining=True)
            claimed = threads.submit(values, second, "select token from outlive.claim(%s)", foreign.id)
            eventually(lambda: value(watcher, blocked, second.info.backend_pid), what="the claim waits")
        assert claimed.result() == []
    assert value(watcher, "select state from outlive.workers") == "draining"


def test_a_worker_that_registers_again_and_rolls_back_is_still_alive(
    connection: db.Connection, foreign: Foreign
) -> None:
    with foreign.connection.transaction(force_rollback=True):
        Foreign(foreign.connection, worker=foreign.id)
    assert values(connection, "select worker from outlive.missing_locks") == []


def test_a_session_that_claims_and_never_commits_is_ended(connection: db.Connection, foreign: Foreign) -> None:
    timeout = "select current_setting('idle_in_transaction_session_timeout')"
    job = make(connection)
    with foreign.connection.transaction():
        foreign.claim()
        assert value(foreign.connection, timeout) == "10s"
        query = "select token from outlive.claim(%s)"
        other = Foreign(connection)
        assert values(connection, query, other.id) == []
        foreign.connection.execute("set local idle_in_transaction_session_timeout = '50ms'")  # The test is in a hurry.
        eventually(lambda: values(connection, query, other.id) != [], what="the other has the job")
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            value(foreign.connection, timeout)
    assert state_of(connection, job) is State.RUNNING


def test_a_locked_batch_delays_neither_a_claim_nor_other_ends(connect: Connect, foreign: Foreign) -> None:
    """A worker that waits for a lock renews nothing, and would be declared dead."""
    ours, theirs = connect(), connect()
    register_task(ours, max_crashes=2)
    batch = value(ours, "select outlive.open_batch('a')")
    links = b'{"batch": "%s"}' % str(batch).encode()
    caught, first, second = make(ours, links=links, priority=0), make(ours, links=links), make(ours)
    foreign.fail(foreign.token(), outcome="crashed")
    register_task(ours, max_crashes=1)
    make_ready(ours)
    with theirs.transaction():
        theirs.execute("select from outlive.batches for update")
        tokens = {id: token for token, id, *_ in foreign.claim(4)}
        assert set(tokens) == {first, second}
        refused(LOCKED, foreign, "succeed", worker=foreign.id, token=tokens[first])
        refused(LOCKED, foreign, "fail", worker=foreign.id, token=tokens[first], retry=False)
        foreign.succeed(tokens[second])
    foreign.succeed(tokens[first])
    assert state_of(ours, caught) is State.RETRYABLE


def test_a_worker_that_is_never_idle_makes_room_for_a_suspect(connection: db.Connection, foreign: Foreign) -> None:
    make(connection)
    foreign.token()
    suspect = make(connection)
    for _ in range(2):
        victim = Foreign(foreign.connection)
        victim.claim()
        declare_dead(connection, victim.id)
    assert (hold_of(connection, suspect) or ("",))[0] == "suspect"
    for _ in range(3):
        make(connection)
    assert len(foreign.claim()) == 1  # The suspect has not waited for long.
    even = datetime.fromtimestamp(value(connection, "select extract(epoch from now())::int / 120 * 120 + 240"), UTC)
    set_now(foreign.connection, even)
    assert foreign.claim() == []
    set_now(foreign.connection, even, later_s=2)
    assert len(foreign.claim()) == 1
