"""The goodbye of a worker without its processes, so that a test says what the worker still has to write."""

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import pytest

from outlive import db, store, wire
from outlive.model import Claimed, Ended
from outlive.protocol import Progress
from outlive.states import Outcome, State
from outlive.worker.attempts.leases import Leases
from outlive.worker.attempts.progress import ProgressWriter
from outlive.worker.ending.outbox import Outbox
from outlive.worker.ending.stopping import say_goodbye
from outlive.worker.session import Session, SessionPool
from outlive.worker.wakeup import Wakeup
from tests.driving.making import WORKER, Queue

Prepare = Callable[["Unwritten"], object]
Goodbye = Callable[..., None]


class Unwritten:
    """Everything that a worker still has to write when it stops."""

    def __init__(self, url: str) -> None:
        self.session, leases = Session(url, db.CLAIMS), Leases(lease_s=300, renew_s=20)
        (slow,) = SessionPool(url, 1).share(db.COMPLETIONS)
        self.outbox = Outbox(WORKER, self.session, slow, leases, Wakeup())
        self.progress = ProgressWriter(WORKER, self.session, self.outbox)


@pytest.fixture
def goodbye(database_url: str, queue: Queue) -> Goodbye:
    queue.register_worker()

    async def say(prepare: Prepare, left: Sequence[Ended]) -> None:
        has = Unwritten(database_url)
        prepare(has)
        try:
            await say_goodbye(WORKER, has.session, list(left), has.outbox, has.progress)
        finally:
            await has.session.close()

    return lambda prepare=lambda has: None, left=(): asyncio.run(say(prepare, left))


def running(queue: Queue) -> Claimed:
    queue.make()
    (claimed,) = queue.claim()
    return claimed


def last(queue: Queue, job: UUID) -> tuple[Outcome, str | None]:
    attempt = queue.run(store.list_attempts(job))[-1]
    return attempt.outcome, attempt.error


def test_an_end_that_waits_is_written_with_its_records_and_one_that_the_database_refuses_is_a_failure(queue, goodbye):
    kept, refused = running(queue), running(queue)
    records = b'[{"scope": "prices", "key": "k", "data": 1, "strength": 1}]'
    ends = [Ended(kept.token, records=records), Ended(refused.token, records=b"[1]")]
    goodbye(lambda has: [has.outbox.put(end) for end in ends])
    assert [queue.state_of(job.id) for job in (kept, refused)] == [State.SUCCEEDED, State.FAILED]
    assert queue.values("select job_id from outlive.records") == [kept.id]


def test_an_end_that_waits_for_progress_is_written_with_it(queue, goodbye):
    job = running(queue)

    def prepare(has: Unwritten) -> None:
        has.progress.note(Progress(job.token, 3.0, None, "page 3"))
        assert has.progress.hold(Ended(job.token))

    goodbye(prepare)
    assert queue.state_of(job.id) is State.SUCCEEDED
    assert queue.value("select message from outlive.progress") == "page 3"


@pytest.mark.parametrize("committed", [True, False])
def test_a_completion_counts_only_if_the_job_has_committed_it(queue, goodbye, committed):
    job = running(queue)
    secret = queue.value("select outlive.attempt_secret(secret, %s) from outlive.workers", job.token)
    with queue.transaction(force_rollback=not committed):
        queue.execute("select outlive.complete(%s, %s)", [job.token, secret])
    goodbye(lambda has: has.outbox.completions.expect(Ended(job.token)))
    outcome, error = last(queue, job.id)
    assert outcome is (Outcome.SUCCEEDED if committed else Outcome.FAILED)
    assert committed or (error or "").startswith("ctx.complete was rolled back")


def test_a_job_that_is_left_is_given_back_and_so_is_a_claim_that_the_worker_never_heard_of(queue, goodbye):
    queue.make_many(2)
    known, unheard_of = queue.claim()
    goodbye(left=[Ended(known.token, Outcome.RELEASED, error="left")])
    assert last(queue, known.id) == (Outcome.RELEASED, "left")
    assert last(queue, unheard_of.id) == (Outcome.RELEASED, "its worker stopped")
    assert {queue.state_of(job.id) for job in (known, unheard_of)} == {State.PENDING}


def test_how_calls_of_sources_went_is_counted(queue, goodbye):
    queue.make(source="shop")
    goodbye(lambda has: has.outbox.sources.note("shop", Ended(1, Outcome.FAILED, source_ok=False)))
    assert queue.value("select failure_streak from outlive.sources") == 1


def test_a_locked_end_holds_up_no_other(queue, connect, goodbye):
    queue.make_many(2)
    locked, free = queue.claim()
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.running where token = %s for update", [locked.token])
        goodbye(lambda has: (has.outbox.put(Ended(locked.token)), has.outbox.put(Ended(free.token))))
    assert [queue.state_of(job.id) for job in (locked, free)] == [State.RUNNING, State.SUCCEEDED]
    assert [lost.state for lost in queue.run(store.reap())] == [State.PENDING]
    assert last(queue, locked.id)[0] is Outcome.RELEASED


def test_an_end_that_is_locked_for_a_moment_is_written(queue, connect, goodbye):
    """As by another worker that counts an end of the same batch."""
    batch = queue.run(store.open_batch(uuid4(), "import"))
    queue.make(links=wire.encode({"batch": str(batch)}))
    (job,) = queue.claim()
    stranger = connect()
    stranger.execute("set idle_in_transaction_session_timeout = '100ms'")  # The server then ends its session.
    stranger.execute("begin")
    stranger.execute("select from outlive.batches for update")
    goodbye(lambda has: has.outbox.put(Ended(job.token)))
    assert queue.state_of(job.id) is State.SUCCEEDED
