"""Jobs that wait, by hand: what a wait gives back, what ends it, and that nothing is lost between two transactions."""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import msgspec
import pytest

from outlive import db, store
from outlive.errors import JobEnded, JobNotFound
from outlive.model import Claimed, Ended
from outlive.protocol import Wait
from outlive.states import Outcome, State
from tests.driving.making import WORKER, Queue, request
from tests.store.acting import BERT, NOW, assert_sound
from tests.store.noon import database_url, fresh_at_noon
from tests.waiting import eventually

__all__ = ["database_url", "fresh_at_noon"]

BLOCKED = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


def suspend(queue: Queue, claimed: Claimed, step: str = "receive:go", *, parked: bool = False, **what: object) -> str:
    """Let a running job wait, for the signal `go` unless told otherwise."""
    wait = Wait(claimed.token, step, **(what or {"signal": "go"}))  # type: ignore[arg-type]
    return queue.run(store.suspend(WORKER, wait, may_park=parked)).outcome


def made_to_wait(queue: Queue, *, parked: bool = False, **wanted: object) -> UUID:
    job = queue.make(**wanted)  # type: ignore[arg-type]
    assert suspend(queue, queue.claim_job(job), parked=parked) == "suspended"
    return job


def steps(queue: Queue, job: UUID) -> dict[str, object]:
    return {row["name"]: row["value"] and msgspec.json.decode(row["value"]) for row in queue.run(store.steps_of(job))}


def test_a_wait_leaves_no_attempt_and_costs_nothing(queue):
    job = queue.make()
    queue.run_job(job, Outcome.FAILED, after_s=0.0)
    assert suspend(queue, queue.claim_job(job)) == "suspended"
    assert (queue.state_of(job), queue.counters(job)) == (State.SUSPENDED, (0, 0, 0)), "as after a new step"
    assert queue.count("attempts") == 1
    assert_sound(queue)


def test_what_a_job_waits_for_is_said(queue):
    job = made_to_wait(queue)
    assert queue.row_of(job)["held_details"] == "waits for the signal go"
    other = queue.make()
    suspend(queue, queue.claim_job(other), "receive:go", signal="go", after_s=60.0)
    assert queue.row_of(other)["held_details"] == "waits for the signal go until 2026-01-01 12:01:00 UTC"


def test_the_metrics_tell_what_jobs_wait_for(queue):
    later = queue.make(delay_s=60.0)
    whats = ({"signal": "go"}, {"signal": "go", "after_s": 60.0}, {"after_s": 60.0}, {"needs": [later.bytes]})
    for what in whats:
        suspend(queue, queue.claim_job(queue.make()), **what)
    found = {label: value for name, label, value in queue.run(store.metrics()) if name == "waits"}
    assert found == {"signal": 2, "time": 1, "jobs": 1}


def test_a_signal_is_received_once_and_by_the_wait_that_comes_first(queue):
    job = made_to_wait(queue)
    queue.run(store.send(job, "go", b"1"))
    queue.run(store.send(job, "go", b"2"))
    assert (queue.state_of(job), steps(queue, job)) == (State.PENDING, {"receive:go": 1})
    claimed = queue.claim_job(job)
    assert suspend(queue, claimed, "receive:go#2") == "over"
    assert suspend(queue, claimed, "receive:go#3") == "suspended"
    assert steps(queue, job) == {"receive:go": 1, "receive:go#2": 2}
    assert queue.count("signals") == 0


def test_a_signal_of_another_name_is_kept_for_later(queue):
    job = made_to_wait(queue)
    queue.run(store.send(job, "stop", b"1"))
    assert (queue.state_of(job), queue.count("signals")) == (State.SUSPENDED, 1)


def test_a_signal_that_is_rolled_back_was_never_sent(queue, connect):
    job = made_to_wait(queue)
    sender = connect()
    with sender.transaction(force_rollback=True):
        sender.run(store.send(job, "go", b"1"))
    assert (queue.state_of(job), steps(queue, job)) == (State.SUSPENDED, {})


def test_a_wait_that_begins_while_its_signal_is_being_sent_gets_it(queue, connect):
    job = queue.make()
    claimed = queue.claim_job(job)
    sender = connect()
    sender.execute("begin")
    sender.run(store.send(job, "go", b"1"))
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(suspend, connect(), claimed)
        eventually(lambda: queue.value(BLOCKED) == 1)
        sender.execute("commit")
        assert waiting.result() == "over"
    assert steps(queue, job) == {"receive:go": 1}


def test_a_signal_that_is_sent_while_its_wait_begins_ends_it(queue, connect):
    job = queue.make()
    claimed = queue.claim_job(job)
    worker = connect()
    worker.execute("begin")
    suspend(worker, claimed)
    with ThreadPoolExecutor() as threads:
        sending = threads.submit(connect().run, store.send(job, "go", b"1"))
        eventually(lambda: queue.value(BLOCKED) == 1)
        worker.execute("commit")
        assert sending.result() == "pending"
    assert queue.count("signals") == 0


def test_only_the_worker_that_has_parked_a_process_may_resume_it_for_a_second(queue):
    job = made_to_wait(queue, parked=True)
    queue.run(store.send(job, "go", b"1"))
    assert queue.state_of(job) is State.SUSPENDED
    assert queue.run(store.end_due()) == 0
    assert queue.run(store.resume(BERT, limit=1, lease_s=60.0)) == []
    queue.set_now(NOW, later_s=1.0)
    assert queue.run(store.end_due()) == 1
    assert queue.state_of(job) is State.PENDING
    assert queue.run(store.resume(WORKER, limit=1, lease_s=60.0)) == []


def test_a_parked_process_that_is_resumed_gets_its_signal(queue):
    job = made_to_wait(queue, parked=True)
    queue.run(store.send(job, "go", b"1"))
    [(claimed, received, value)] = queue.run(store.resume(WORKER, limit=9, lease_s=60.0))
    assert (claimed.id, received, value) == (job, True, b"1")
    assert queue.end(Ended(claimed.token)) == []
    assert queue.state_of(job) is State.SUCCEEDED
    assert_sound(queue)


def test_a_signal_that_comes_after_the_time_was_over_is_received_if_the_job_did_not_go_on_yet(queue):
    job = queue.make()
    suspend(queue, queue.claim_job(job), parked=True, signal="go", after_s=1.0)
    queue.set_now(NOW, later_s=1.5)
    queue.run(store.send(job, "go", b"1"))
    [(_, received, value)] = queue.run(store.resume(WORKER, limit=1, lease_s=60.0))
    assert (received, value) == (True, b"1")


def test_a_job_that_has_ended_or_does_not_exist_gets_no_signal(queue):
    for job in (queue.make_finished(), UUID(int=1)):
        with pytest.raises((JobEnded, JobNotFound), match=r"it has ended|there is no job"), db.translated_errors():
            queue.run(store.send(job, "go", b"1"))


def test_a_job_that_waits_gives_back_the_slot_of_its_key(queue):
    links = b'{"key": "k", "concurrency": 1}'
    first, second = queue.make(links=links), queue.make(links=links)
    queue.follow()
    suspend(queue, queue.claim_job(first), parked=True)
    queue.claim_job(second)
    queue.run(store.send(first, "go", b"1"))
    assert queue.state_of(first) is State.PENDING, "its process was not parked: it queues for its key"
    assert queue.claim() == []
    assert_sound(queue)


def test_a_job_waits_for_those_that_it_spawns_and_these_are_made_once(queue):
    job = queue.make()
    claimed = queue.claim_job(job)
    children = [request("child"), request("child")]
    spawns = msgspec.json.encode([{"id": one.id, "task": one.task} for one in children])
    assert suspend(queue, claimed, "gather", spawns=spawns) == "suspended"
    assert queue.row_of(job)["held_details"] == "waits for 2 jobs"
    queue.run_job(children[0].id)
    queue.follow()
    assert queue.state_of(job) is State.SUSPENDED
    assert queue.row_of(job)["held_details"] == "waits for 1 of 2 jobs"
    queue.run_job(children[1].id, Outcome.FAILED, final=True)
    queue.follow()
    assert queue.state_of(job) is State.PENDING
    assert steps(queue, job) == {"gather": [str(one.id) for one in children]}
    claimed = queue.claim_job(job)
    assert suspend(queue, claimed, "gather", needs=[one.id.bytes for one in children]) == "over"
    assert queue.end(Ended(claimed.token)) == []
    assert_sound(queue)


def test_an_operator_ends_a_wait_with_a_value(queue):
    job = made_to_wait(queue, parked=True)
    assert queue.run(store.supply(job, "receive:go", b"7", "anna", replacing=False)) == "pending"
    assert steps(queue, job) == {"receive:go": 7}


def test_a_job_that_is_to_be_cancelled_does_not_wait(queue):
    job = queue.make()
    claimed = queue.claim_job(job)
    queue.run(store.cancel([job]))
    assert suspend(queue, claimed) == "cancelled"
    assert queue.state_of(job) is State.RUNNING


def test_a_job_waits_again_for_one_that_it_has_gathered_and_that_runs_again(queue):
    job, child, other = queue.make(), queue.make("child"), queue.make("other")
    needs = [child.bytes, other.bytes]
    assert suspend(queue, queue.claim_job(job), "gather", needs=needs) == "suspended"
    queue.run_job(child, Outcome.FAILED, final=True)
    queue.follow()
    queue.run(store.retry([child]))
    queue.run_job(other)
    queue.follow()
    claimed = queue.claim_job(job)
    assert suspend(queue, claimed, "gather", needs=needs) == "suspended", "it would ask on and on"
    assert queue.row_of(job)["held_details"] == "waits for 1 of 2 jobs"
    queue.run_job(child)
    queue.follow()
    assert queue.state_of(job) is State.PENDING
    assert_sound(queue)


def test_a_job_that_gathers_again_what_has_ended_gets_the_ids_at_once(queue):
    job, child = queue.make(), request("child")
    spawns = msgspec.json.encode([{"id": child.id, "task": child.task}])
    assert suspend(queue, queue.claim_job(job), "gather", spawns=spawns) == "suspended"
    queue.run_job(child.id)
    queue.follow()
    wait = Wait(queue.claim_job(job).token, "gather#2", spawns=spawns)
    found = queue.run(store.suspend(WORKER, wait))
    assert found.outcome == "over"
    assert found.value is not None
    assert msgspec.json.decode(found.value) == [str(child.id)]


def test_a_signal_that_is_committed_while_its_job_is_resumed_comes_with_its_value(queue, connect):
    job = queue.make()
    suspend(queue, queue.claim_job(job), parked=True, signal="go", after_s=1.0)
    sender, worker, other = connect(), connect(), connect()
    for one in (sender, worker):
        one.set_now(NOW, later_s=1.5)
    other.execute("begin")
    other.execute("lock table outlive.expiring")  # It stops `resume` between its snapshot and its first lock.
    with ThreadPoolExecutor() as threads:
        resuming = threads.submit(worker.run, store.resume(WORKER, limit=1, lease_s=60.0))
        eventually(lambda: queue.value(BLOCKED) == 1)
        sender.run(store.send(job, "go", b"1"))
        other.execute("rollback")
        [(_, received, value)] = resuming.result()
    assert (received, value) == (True, b"1")
