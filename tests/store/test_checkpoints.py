"""The step `checkpoint`: the only one whose value is replaced."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from outlive import store
from outlive.model import Ended
from outlive.protocol import KeptStep
from outlive.states import Outcome, State
from tests.driving.making import WORKER, Queue
from tests.waiting import eventually


def keep(queue: Queue, token: int, *names: str, value: bytes) -> None:
    steps = [KeptStep(name, value, None, None, relaxed=True) for name in names]
    queue.run(store.keep_steps(WORKER, [token] * len(names), steps))


def kept(queue: Queue, job: UUID) -> dict[str, bytes | None]:
    return {row["name"]: row["value"] for row in queue.run(store.steps_of(job))}


def test_a_checkpoint_replaces_the_one_before_and_other_steps_stay(queue):
    job = queue.make()
    one = queue.claim_job(job)
    keep(queue, one.token, "charge", "checkpoint", value=b"1")
    keep(queue, one.token, "charge", "checkpoint", value=b"2")
    assert kept(queue, job) == {"charge": b"1", "checkpoint": b"2"}


def test_a_job_that_keeps_a_checkpoint_in_each_attempt_uses_up_its_attempts(queue):
    job = queue.make(options={"max_attempts": 3})
    for _ in range(3):
        one = queue.claim_job(job)
        keep(queue, one.token, "checkpoint", value=b"%d" % one.attempt)
        queue.end(Ended(one.token, Outcome.FAILED, after_s=0.0))
    assert queue.state_of(job) is State.FAILED
    assert kept(queue, job) == {"checkpoint": b"3"}


def test_the_late_checkpoint_of_a_lost_attempt_does_not_replace_that_of_the_next(queue, database_url):
    """Its statement has seen that the attempt runs, and is held up by another transaction."""
    job = queue.make()
    late = queue.claim_job(job)
    with Queue.at(database_url) as stranger, Queue.at(database_url) as slow, ThreadPoolExecutor(1) as thread:
        with stranger.transaction():
            stranger.keep_steps(job, "charge")
            writing = thread.submit(keep, slow, late.token, "charge", "checkpoint", value=b'"late"')
            pid = slow.info.backend_pid
            waits = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
            eventually(lambda: queue.value(waits, pid))
            queue.end(Ended(late.token, Outcome.LOST, after_s=0.0))
            keep(queue, queue.claim_job(job).token, "checkpoint", value=b'"next"')
        writing.result(20)
    assert kept(queue, job)["checkpoint"] == b'"next"'


def test_a_job_begins_again_at_a_step_without_the_checkpoint_that_came_after_it(queue):
    job = queue.make()
    one = queue.claim_job(job)
    for name in ("charge", "checkpoint", "label"):
        keep(queue, one.token, name, value=b"1")
    queue.end(Ended(one.token, Outcome.FAILED, final=True))
    queue.run(store.rerun(job, "label"))
    assert kept(queue, job) == {"charge": b"1", "checkpoint": b"1"}
    queue.end(Ended(queue.claim_job(job).token, Outcome.FAILED, final=True))
    queue.run(store.rerun(job, "charge"))
    assert kept(queue, job) == {}
