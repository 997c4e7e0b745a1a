"""Workers in other languages that forget to commit, meet locks of others, or have thousands of sources."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from outlive.states import State
from tests.driving.databases import session
from tests.driving.making import Queue, request, values
from tests.store.acting import clear
from tests.store.noon import database_url
from tests.store.test_protocol import Foreign, declare_dead, refused
from tests.waiting import eventually

__all__ = ["database_url"]

LOCKED = "55P03"


@pytest.fixture
def foreign(queue: Queue, database_url: str) -> Iterator[Foreign]:
    clear(queue)
    with session(queue, database_url, "outlive_protocol") as theirs:
        yield Foreign(theirs)


def test_a_claim_at_the_same_time_does_not_undo_that_a_worker_drains(connect, foreign):
    """Otherwise its death would be charged to its jobs."""
    second, watcher = connect(), connect()
    blocked = "select cardinality(pg_blocking_pids(%s)) > 0"
    with ThreadPoolExecutor(1) as threads:
        with foreign.connection.transaction():
            foreign.rows("renew", worker=foreign.id, draining=True)
            claimed = threads.submit(values, second, "select token from outlive.claim(%s)", foreign.id)
            eventually(lambda: watcher.value(blocked, second.info.backend_pid), what="the claim waits")
        assert claimed.result() == []
    assert watcher.value("select state from outlive.workers") == "draining"


def test_a_worker_that_registers_again_and_rolls_back_is_still_alive(queue, foreign):
    with foreign.connection.transaction(force_rollback=True):
        Foreign(foreign.connection, worker=foreign.id)
    assert queue.values("select worker from outlive.missing_locks") == []


def test_a_session_that_claims_and_never_commits_is_ended(queue, foreign):
    timeout = "select current_setting('idle_in_transaction_session_timeout')"
    job = queue.make()
    with foreign.connection.transaction():
        foreign.claim()
        assert foreign.connection.value(timeout) == "10s"
        query = "select token from outlive.claim(%s)"
        other = Foreign(queue)
        assert queue.values(query, other.id) == []
        foreign.connection.execute("set local idle_in_transaction_session_timeout = '50ms'")  # The test is in a hurry.
        eventually(lambda: queue.values(query, other.id) != [], what="the other has the job")
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            foreign.connection.value(timeout)
    assert queue.state_of(job) is State.RUNNING


def test_a_locked_batch_delays_neither_a_claim_nor_other_ends(connect, foreign):
    """A worker that waits for a lock renews nothing, and would be declared dead."""
    ours, theirs = connect(), connect()
    ours.register_task(max_crashes=2)
    batch = ours.value("select outlive.open_batch('a')")
    links = b'{"batch": "%s"}' % str(batch).encode()
    caught, first, second = ours.make(links=links, priority=0), ours.make(links=links), ours.make()
    foreign.fail(foreign.token(), outcome="crashed")
    ours.register_task(max_crashes=1)
    ours.make_ready()
    with theirs.transaction():
        theirs.execute("select from outlive.batches for update")
        tokens = {id: token for token, id, *_ in foreign.claim(4)}
        assert set(tokens) == {first, second}
        refused(LOCKED, foreign, "succeed", worker=foreign.id, token=tokens[first])
        refused(LOCKED, foreign, "fail", worker=foreign.id, token=tokens[first], retry=False)
        foreign.succeed(tokens[second])
    foreign.succeed(tokens[first])
    assert ours.state_of(caught) is State.RETRYABLE


def test_a_worker_that_is_never_idle_makes_room_for_a_suspect(queue, foreign):
    queue.make()
    foreign.token()
    suspect = queue.make()
    for _ in range(2):
        victim = Foreign(foreign.connection)
        victim.claim()
        declare_dead(queue, victim.id)
    assert (queue.hold_of(suspect) or ("",))[0] == "suspect"
    for _ in range(3):
        queue.make()
    assert len(foreign.claim()) == 1  # The suspect has not waited for long.
    even = datetime.fromtimestamp(queue.value("select extract(epoch from now())::int / 120 * 120 + 240"), UTC)
    foreign.connection.set_now(even)
    assert foreign.claim() == []
    foreign.connection.set_now(even, later_s=2)
    assert len(foreign.claim()) == 1


@pytest.fixture
def crowded(queue: Queue, database_url: str) -> Iterator[Foreign]:
    """A worker, and a thousand sources with a job each. Only the last source is open."""
    clear(queue)
    queue.enqueue([request(source=f"site-{n:03}", priority=0) for n in range(1000)])
    queue.execute("update outlive.sources set enabled = name = 'site-999'")
    with session(queue, database_url, "outlive_protocol") as theirs:
        yield Foreign(theirs, slots=100)


def test_a_claim_looks_through_some_sources_and_not_through_all(queue, crowded):
    queue.make()
    with crowded.connection.transaction():
        assert len(crowded.claim()) == 1
        steps = crowded.connection.value(
            "select idx_scan from pg_stat_xact_user_tables where relid = 'outlive.sources'::regclass"
        )
    assert steps < 300


@pytest.mark.parametrize("busy", [True, False])
def test_the_next_claim_goes_on_with_the_sources_that_follow(queue, crowded, busy):
    sources = set[str]()
    for _ in range(4):
        if busy:
            queue.make()
        for _, id, *_ in crowded.claim():
            sources.add(queue.value("select source from outlive.jobs where id = %s", id))
    assert "site-999" in sources
