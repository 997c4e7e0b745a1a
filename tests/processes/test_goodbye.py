"""The goodbye of a worker without its processes, so that a test says what the worker still has to write."""

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import pytest

from outlive import db, store, wire
from outlive.model import Claimed, Ended
from outlive.protocol import Progress
from outlive.states import Outcome, State
from outlive.worker.completions import Completions
from outlive.worker.goodbye import say_goodbye
from outlive.worker.leases import Leases
from outlive.worker.outbox import Outbox
from outlive.worker.progress import ProgressWriter
from outlive.worker.session import Session
from outlive.worker.sources import SourceOutcomes
from outlive.worker.wakeup import Wakeup
from tests.driving.making import WORKER, Connect, claim, count, make, make_many, register_worker, row, state_of, value

Prepare = Callable[["Unwritten"], object]
Goodbye = Callable[..., None]


class Unwritten:
    """Everything that a worker still has to write when it stops."""

    def __init__(self, url: str) -> None:
        self.session, leases = Session(url, db.CLAIMS), Leases(lease_s=300, renew_s=20)
        self.outbox = Outbox(WORKER, self.session, leases, Wakeup())
        self.progress = ProgressWriter(WORKER, self.session, self.outbox)
        self.completions = Completions(WORKER, self.session, leases=leases, outbox=self.outbox, lease_s=300)
        self.sources = SourceOutcomes()


@pytest.fixture
def goodbye(database_url: str, connection: db.Connection) -> Goodbye:
    register_worker(connection)

    async def say(prepare: Prepare, left: Sequence[Ended]) -> None:
        has = Unwritten(database_url)
        prepare(has)
        try:
            await say_goodbye(
                WORKER,
                has.session,
                list(left),
                outbox=has.outbox,
                progress=has.progress,
                completions=has.completions,
                sources=has.sources,
            )
        finally:
            await has.session.close()

    return lambda prepare=lambda has: None, left=(): asyncio.run(say(prepare, left))


def running(connection: db.Connection) -> Claimed:
    make(connection)
    (claimed,) = claim(connection)
    return claimed


def last(connection: db.Connection, job: UUID) -> tuple[Outcome, str | None]:
    attempt = db.run(connection, store.list_attempts(job))[-1]
    return attempt.outcome, attempt.error


def test_an_end_that_waits_is_written(connection: db.Connection, goodbye: Goodbye) -> None:
    job = running(connection)
    goodbye(lambda has: has.outbox.put(Ended(job.token)))
    assert state_of(connection, job.id) is State.SUCCEEDED


def test_an_end_is_written_with_its_records(connection: db.Connection, goodbye: Goodbye) -> None:
    job = running(connection)
    records = b'[{"scope": "prices", "key": "k", "data": 1, "strength": 1}]'
    goodbye(lambda has: has.outbox.put(Ended(job.token, records=records)))
    assert state_of(connection, job.id) is State.SUCCEEDED
    assert value(connection, "select job_id from outlive.records") == job.id


def test_an_end_that_the_database_refuses_is_a_failure(connection: db.Connection, goodbye: Goodbye) -> None:
    job = running(connection)
    goodbye(lambda has: has.outbox.put(Ended(job.token, records=b"[1]")))
    assert state_of(connection, job.id) is State.FAILED


def test_an_end_that_waits_for_progress_is_written_with_it(connection: db.Connection, goodbye: Goodbye) -> None:
    job = running(connection)

    def prepare(has: Unwritten) -> None:
        has.progress.note(Progress(job.token, 3.0, None, "page 3", None))
        assert has.progress.hold(Ended(job.token))

    goodbye(prepare)
    assert state_of(connection, job.id) is State.SUCCEEDED
    assert value(connection, "select message from outlive.progress") == "page 3"


@pytest.mark.parametrize("committed", [True, False])
def test_a_completion_counts_only_if_the_job_has_committed_it(
    connection: db.Connection, goodbye: Goodbye, committed: bool
) -> None:
    job = running(connection)
    secret = value(connection, "select outlive.attempt_secret(secret, %s) from outlive.workers", job.token)
    with connection.transaction(force_rollback=not committed):
        connection.execute("select outlive.complete(%s, %s)", [job.token, secret])
    goodbye(lambda has: has.completions.expect(Ended(job.token)))
    outcome, error = last(connection, job.id)
    assert outcome is (Outcome.SUCCEEDED if committed else Outcome.FAILED)
    assert committed or (error or "").startswith("ctx.complete was rolled back")


def test_a_job_that_is_left_is_given_back_and_so_is_a_claim_that_the_worker_never_heard_of(
    connection: db.Connection, goodbye: Goodbye
) -> None:
    make_many(connection, 2)
    known, unheard_of = claim(connection)
    goodbye(left=[Ended(known.token, Outcome.RELEASED, error="left")])
    assert last(connection, known.id) == (Outcome.RELEASED, "left")
    assert last(connection, unheard_of.id) == (Outcome.RELEASED, "its worker stopped")
    assert {state_of(connection, job.id) for job in (known, unheard_of)} == {State.PENDING}


def test_how_calls_of_sources_went_is_counted(connection: db.Connection, goodbye: Goodbye) -> None:
    make(connection, source="shop")
    goodbye(lambda has: has.sources.note("shop", Ended(1, Outcome.FAILED, source_ok=False)))
    assert value(connection, "select failure_streak from outlive.sources") == 1


def test_a_locked_end_holds_up_no_other(connection: db.Connection, connect: Connect, goodbye: Goodbye) -> None:
    make_many(connection, 2)
    locked, free = claim(connection)
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.running where token = %s for update", [locked.token])
        goodbye(lambda has: (has.outbox.put(Ended(locked.token)), has.outbox.put(Ended(free.token))))
    assert [state_of(connection, job.id) for job in (locked, free)] == [State.RUNNING, State.SUCCEEDED]
    assert [lost.state for lost in db.run(connection, store.reap())] == [State.PENDING]
    assert last(connection, locked.id)[0] is Outcome.RELEASED


def test_an_end_that_is_locked_for_a_moment_is_written(
    connection: db.Connection, connect: Connect, goodbye: Goodbye
) -> None:
    """As by another worker that counts an end of the same batch."""
    batch = db.run(connection, store.open_batch(uuid4(), "import"))
    make(connection, links=wire.encode({"batch": str(batch)}))
    (job,) = claim(connection)
    stranger = connect()
    stranger.execute("set idle_in_transaction_session_timeout = '100ms'")  # The server then ends its session.
    stranger.execute("begin")
    stranger.execute("select from outlive.batches for update")
    goodbye(lambda has: has.outbox.put(Ended(job.token)))
    assert state_of(connection, job.id) is State.SUCCEEDED


def test_an_end_whose_consequences_are_locked_holds_up_no_other(
    connection: db.Connection, connect: Connect, goodbye: Goodbye
) -> None:
    make_many(connection, 2)
    failing, free = claim(connection)
    batch = db.run(connection, store.open_batch(uuid4(), "import"))
    cancelled = {"after": [str(failing.id)], "on_failure": "cancel", "batch": str(batch)}
    make(connection, links=wire.encode(cancelled))
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.batches for update")
        failed = Ended(failing.token, Outcome.FAILED, final=True)
        goodbye(lambda has: (has.outbox.put(failed), has.outbox.put(Ended(free.token))))
    assert [state_of(connection, job.id) for job in (failing, free)] == [State.RUNNING, State.SUCCEEDED]
    assert row(connection, "select state from outlive.workers") == {"state": "stopped"}


def test_a_worker_that_has_said_goodbye_is_stopped_and_not_notified(
    connection: db.Connection, goodbye: Goodbye
) -> None:
    db.run(connection, store.sleep(WORKER))
    goodbye()
    assert row(connection, "select state from outlive.workers") == {"state": "stopped"}
    assert count(connection, "sleepers") == 0
