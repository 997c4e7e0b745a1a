"""A new step forgives its job earlier kills, but not for ever."""

from uuid import UUID

from outlive import store
from outlive.model import Ended
from outlive.protocol import KeptStep
from outlive.states import Outcome, State
from tests.driving.making import KILLED, WORKER, Queue


def step_and_die(queue: Queue, job: UUID, outcome: Outcome, *, steps: int = 1) -> None:
    """An attempt that keeps new steps and then kills."""
    one = queue.claim_job(job)
    kept = [KeptStep(f"step {one.attempt}.{n}", b"1", None, 0.0) for n in range(steps)]
    queue.run(store.keep_steps(WORKER, [one.token] * steps, kept))
    evidence = KILLED if outcome is Outcome.CRASHED else {}
    queue.end(Ended(one.token, outcome, after_s=0.0, **evidence))


def test_a_job_that_kills_after_a_new_step_in_each_attempt_is_caught(queue):
    job = queue.make()
    for _ in range(12):
        assert queue.state_of(job) in (State.PENDING, State.RETRYABLE)
        step_and_die(queue, job, Outcome.CRASHED)
    assert queue.hold_of(job) == ("quarantined", "killed its process 3 times (max_crashes = 3)")


def test_a_job_that_loses_its_worker_after_a_new_step_in_each_attempt_becomes_a_suspect(queue):
    job = queue.make()
    for _ in range(11):
        assert queue.hold_of(job) is None
        step_and_die(queue, job, Outcome.LOST)
    why, details = queue.hold_of(job) or ("", "")
    assert (why, details) == ("suspect", "2 workers vanished while running it: it runs alone next (max_losses = 3)")


def test_a_job_that_keeps_ten_steps_for_each_kill_goes_on(queue):
    job = queue.make()
    for _ in range(30):
        step_and_die(queue, job, Outcome.CRASHED, steps=10)
    assert (queue.state_of(job), queue.counters(job)) == (State.RETRYABLE, (0, 1, 0))


def test_what_a_job_did_before_it_began_again_with_other_arguments_is_not_counted(queue):
    job = queue.make()
    for _ in range(11):
        step_and_die(queue, job, Outcome.CRASHED)
    again = Ended(queue.claim_job(job).token, Outcome.RELEASED, restart=b'{"page": 2}')
    queue.run(store.write_end(WORKER, again))
    for _ in range(9):
        step_and_die(queue, job, Outcome.CRASHED)
    assert (queue.state_of(job), queue.counters(job)) == (State.RETRYABLE, (0, 1, 0))


def test_a_step_that_comes_as_its_attempt_ends_is_kept_before_that_and_forgives_or_is_not_kept(ring):
    job = ring.watcher.make()
    ring.watcher.run_job(job, Outcome.FAILED, after_s=0.0)
    token = ring.watcher.claim_job(job).token
    with ring.first.transaction():
        ring.first.end(Ended(token, Outcome.FAILED, after_s=0.0))
        answer = ring.start(
            lambda second: second.run(store.keep_steps(WORKER, [token], [KeptStep("x", b"1", None, 0)]))
        )
    assert (answer.result(), ring.watcher.count("steps")) == ({}, 0)
    assert ring.watcher.counters(job) == (2, 0, 0)
