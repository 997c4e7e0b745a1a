"""Jobs that wait for other jobs: when they are released, cancelled or stay blocked, and that no release is lost."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from outlive import db, store
from outlive.errors import BadArguments
from outlive.model import Ended, JobRequest, new_job_id
from outlive.states import Outcome, State
from tests.driving.making import NOON, WORKER, Queue, request
from tests.store.acting import assert_sound


def waiting_for(*needs: UUID, on_failure: str | None = None, **more: Any) -> JobRequest:
    """A job that waits for these."""
    links = {"after": [str(one) for one in needs]} | ({"on_failure": on_failure} if on_failure else {})
    return request(links=msgspec.json.encode(links), **more)


def make_after(connection: Queue, *needs: UUID, on_failure: str | None = None, **more: Any) -> UUID:
    one = waiting_for(*needs, on_failure=on_failure, **more)
    return connection.enqueue([one]).get(one.id, one.id)


def details_of(queue: Queue, job: UUID) -> str:
    return str(queue.row_of(job)["held_details"])


def fail(queue: Queue, job: UUID) -> None:
    queue.run_job(job, Outcome.FAILED, final=True)


@pytest.fixture(autouse=True)
def sound_afterwards(queue: Queue) -> Iterator[None]:
    yield
    assert_sound(queue)


# What the end of one job does to those that wait for it


def test_a_job_waits_until_the_last_of_the_jobs_that_it_needs_has_succeeded(queue):
    first, second = queue.make_many(2)
    job = make_after(queue, first, second)
    assert queue.state_of(job) is State.BLOCKED
    assert details_of(queue, job) == "waits for 2 jobs"
    queue.run_job(second)
    assert queue.state_of(job) is State.BLOCKED
    assert details_of(queue, job) == "waits for 1 job"
    queue.run_job(first)
    assert queue.state_of(job) is State.PENDING
    queue.run_job(job)
    assert queue.state_of(job) is State.SUCCEEDED
    assert queue.count("dependencies") == 0


def test_a_job_that_is_needed_may_fail_and_succeed_later(queue):
    needed = queue.make()
    job = make_after(queue, needed)
    queue.run_job(needed, Outcome.FAILED, after_s=0.0)
    assert (queue.state_of(needed), queue.state_of(job)) == (State.RETRYABLE, State.BLOCKED)
    queue.run_job(needed)
    assert queue.state_of(job) is State.PENDING


BADLY = ("failed", "cancelled", "quarantined")
WORDS = {
    "failed": "job {} failed: retry it, or release this job",
    "cancelled": "job {} was cancelled: retry it, or release this job",
    "quarantined": "job {} is in quarantine: release it, or release this job",
}


def end_badly_later(queue: Queue, needed: UUID, how: str) -> None:
    match how:
        case "failed":
            fail(queue, needed)
        case "cancelled":
            queue.run(store.cancel([needed]))
        case _:
            queue.run_job(needed, Outcome.CRASHED)
    assert queue.state_of(needed) is State(how)


@pytest.mark.parametrize("how", BADLY)
@pytest.mark.parametrize(
    ("on_failure", "becomes"),
    [(None, State.BLOCKED), ("block", State.BLOCKED), ("proceed", State.PENDING), ("cancel", State.CANCELLED)],
)
def test_on_failure_says_what_becomes_of_a_job_if_one_that_it_needs_does_not_succeed(queue, how, on_failure, becomes):
    needed = queue.make(options={"max_crashes": 1})
    job = make_after(queue, needed, on_failure=on_failure)
    end_badly_later(queue, needed, how)
    late = make_after(queue, needed, on_failure=on_failure)  # It has ended already when this one is enqueued.
    for one in (job, late):
        assert queue.state_of(one) is becomes
        if becomes is State.BLOCKED:
            assert details_of(queue, one) == WORDS[how].format(needed)
    if becomes is State.CANCELLED:
        [ended] = queue.run(store.list_attempts(job))
        assert ended.error == f"cancelled, because job {needed} ended without success"
        assert queue.count("dependencies") == 0


def test_retrying_the_failed_one_releases_the_job_once_it_succeeds(queue):
    good, bad, worse = queue.make_many(3)
    job = make_after(queue, good, bad, worse)
    fail(queue, bad)
    fail(queue, worse)
    assert details_of(queue, job) == WORDS["failed"].format(worse)
    queue.run(store.retry([worse]))
    queue.run_job(worse)
    assert details_of(queue, job) == WORDS["failed"].format(bad)
    queue.run(store.retry([bad]))
    queue.run_job(bad)
    assert details_of(queue, job) == "waits for 1 job"
    queue.run_job(good)
    assert queue.state_of(job) is State.PENDING


def test_a_job_is_held_since_the_one_that_it_needs_has_failed(queue):
    queue.set_now()
    needed = queue.make()
    job = make_after(queue, needed)
    failed_at = queue.set_now(later_s=60)
    fail(queue, needed)
    assert queue.row_of(job)["held_since"] == failed_at


def test_a_job_that_is_needed_and_in_quarantine_may_be_released_and_succeed(queue):
    needed = queue.make_quarantined()
    job = make_after(queue, needed)
    queue.run(store.release([needed]))
    queue.run_job(needed)
    assert queue.state_of(job) is State.PENDING


def test_a_cancelled_job_cancels_those_that_wait_for_it_by_the_same_rules(queue):
    top = queue.make()
    middle = make_after(queue, top, on_failure="cancel", dedupe_key="middle")
    lowest = make_after(queue, middle, on_failure="cancel")
    stays = make_after(queue, middle)
    goes_on = make_after(queue, middle, on_failure="proceed")
    fail(queue, top)
    states = [queue.state_of(one) for one in (middle, lowest, stays, goes_on)]
    assert states == [State.CANCELLED, State.CANCELLED, State.BLOCKED, State.PENDING]
    assert details_of(queue, stays) == WORDS["cancelled"].format(middle)


@pytest.mark.parametrize("event", ["success", "loss", "own transaction", "cancel"])
def test_whatever_ends_a_job_releases_those_that_wait_for_it(queue, event):
    needed = queue.make(dedupe_key="one", options={"on_worker_death": "fail"})
    job = make_after(queue, needed, on_failure="proceed")
    match event:
        case "success":
            queue.run_job(needed)
        case "loss":
            queue.claim_job(needed, lease_s=-1.0)
            queue.run(store.expire())
        case "own transaction":
            token = queue.claim_job(needed).token
            queue.execute("select outlive.complete_with_records(%s, %s)", [token, WORKER])
        case "cancel":
            queue.run(store.cancel([needed]))
    assert queue.state_of(job) is State.PENDING


def test_a_job_that_is_caught_before_it_starts_counts_as_failed(queue):
    needed = queue.make(options={"max_crashes": 2})
    job = make_after(queue, needed, on_failure="proceed")
    queue.run_job(needed, Outcome.CRASHED, after_s=0.0)
    queue.execute("""update outlive.jobs set options = '{"max_crashes": 1}' where id = %s""", [needed])
    assert queue.run(store.quarantine_killers()) == [needed]
    assert queue.state_of(job) is State.PENDING


def test_a_released_job_waits_for_its_own_time_too(queue):
    queue.set_now()
    needed = queue.make()
    soon = make_after(queue, needed)
    later = make_after(queue, needed, delay_s=60.0)
    queue.set_now(later_s=10)
    queue.run_job(needed)
    assert queue.row_of(soon)["ready_at"] == NOON + timedelta(seconds=10, microseconds=-1)
    assert queue.row_of(later)["ready_at"] == NOON + timedelta(seconds=60)


def test_jobs_that_are_released_together_keep_their_order(queue):
    needed = queue.make()
    batch = [waiting_for(needed) for _ in range(50)]
    queue.enqueue(batch)
    queue.run_job(needed)
    assert [one.id for one in queue.claim()] == [one.id for one in batch]
    assert queue.value("select count(distinct ready_at) from outlive.running") == 50


def test_a_release_notifies_a_worker_that_sleeps(connect):
    connection, sleeper = connect(), connect()
    sleeper.execute("listen outlive")
    needed = connection.make()
    make_after(connection, needed)
    claimed = connection.claim_job(needed)
    connection.run(store.sleep(new_job_id()))
    assert list(sleeper.notifies(timeout=0)) == []
    connection.end(Ended(claimed.token))
    assert [one.payload for one in sleeper.notifies(timeout=5, stop_after=1)] == [""]


# Enqueueing


def test_jobs_of_one_call_may_wait_for_each_other_whatever_their_ids(queue):
    small, large = sorted(new_job_id() for _ in range(2))
    queue.enqueue([request(id=large), waiting_for(large, id=small)])
    assert queue.state_of(small) is State.BLOCKED
    queue.run_job(large)
    assert queue.state_of(small) is State.PENDING


def test_a_job_can_wait_only_for_jobs_that_exist_or_come_before_it(queue):
    first, later = request(), new_job_id()
    second = waiting_for(first.id, later, id=new_job_id())
    wrong = [
        ([waiting_for(later)], f"can't wait for job {later}: a job can only wait for jobs that exist or come before"),
        ([first, second, request(id=later)], f"job {second.id} can't wait for job {later}: a job can only wait"),
        ([waiting_for(later, id=later)], f"job {later} can't wait for itself"),
    ]
    for batch, message in wrong:
        with pytest.raises(BadArguments, match=message), db.translated_errors():
            queue.enqueue(batch)
    assert queue.count("jobs") == 0


def test_links_that_make_no_sense_are_refused(queue):
    needed = queue.make()
    many = [UUID(int=n) for n in range(100_001)]
    for job, message in [
        (waiting_for(needed, on_failure="panic"), "on_failure can be block, proceed or cancel"),
        (waiting_for(*many), "at most 100,000 jobs"),
        (request(links=b'{"after": ["x"]}'), "uuid"),
        (request(links=b'{"after": "x"}'), "array"),
    ]:
        with pytest.raises(BadArguments, match=message), db.translated_errors():
            queue.enqueue([job])
    assert queue.count("jobs") == 1


def test_no_jobs_to_wait_for_is_like_none(queue):
    job = make_after(queue)
    assert queue.state_of(job) is State.PENDING


def test_a_job_may_name_another_twice(queue):
    needed = queue.make()
    job = make_after(queue, needed, needed)
    queue.run_job(needed)
    assert queue.state_of(job) is State.PENDING


def test_repeating_an_enqueue_adds_no_dependency(queue):
    needed = queue.make()
    batch = [waiting_for(needed), waiting_for(needed)]
    queue.enqueue(batch)
    queue.run_job(needed)
    queue.enqueue([*batch, request()])
    assert [queue.state_of(one.id) for one in batch] == [State.PENDING] * 2
    assert queue.values("select met from outlive.dependencies") == [True, True]


def test_instead_of_a_job_that_is_not_made_the_one_with_its_dedupe_key_is_waited_for(queue):
    there = queue.make(dedupe_key="a")
    asked = request(dedupe_key="a")
    job = waiting_for(asked.id)
    assert queue.enqueue([asked, job]) == {asked.id: there}
    assert queue.value("select after from outlive.jobs where id = %s", job.id) == [there]
    queue.run_job(there)
    assert queue.state_of(job.id) is State.PENDING


def test_a_job_that_is_not_made_waits_for_nothing(queue):
    needed, there = queue.make(), queue.make(dedupe_key="a")
    assert make_after(queue, needed, dedupe_key="a") == there
    assert queue.count("dependencies") == 0


def test_a_job_may_wait_for_what_has_succeeded(queue):
    done, needed = queue.make_finished(), queue.make()
    assert queue.state_of(make_after(queue, done)) is State.PENDING
    job = make_after(queue, done, needed)
    assert details_of(queue, job) == "waits for 1 job"
    queue.run_job(needed)
    assert queue.state_of(job) is State.PENDING


def test_a_job_that_is_cancelled_at_once_cancels_those_of_the_same_call(queue):
    failed = queue.make_finished(Outcome.FAILED)
    first = waiting_for(failed, on_failure="cancel")
    second = waiting_for(first.id, on_failure="cancel")
    queue.enqueue([first, second])
    assert [queue.state_of(one.id) for one in (first, second)] == [State.CANCELLED] * 2


def test_plain_sql_enqueues_a_job_that_waits(queue):
    needed = queue.make()
    job = queue.value("select outlive.enqueue('work', after => array[%s::uuid])", needed)
    brave = queue.value("select outlive.enqueue('work', after => array[%s::uuid], on_failure => 'proceed')", needed)
    fail(queue, needed)
    assert [queue.state_of(one) for one in (job, brave)] == [State.BLOCKED, State.PENDING]


def test_spawned_jobs_may_wait_for_each_other_and_for_the_job_that_spawns_them(queue):
    parent = queue.make()
    token = queue.claim_job(parent).token
    first, second = new_job_id(), new_job_id()
    spawns = [
        {"id": str(first), "task": "work", "links": {"after": [str(parent)]}},
        {"id": str(second), "task": "work", "links": {"after": [str(first)]}},
    ]
    queue.execute(
        "select outlive.complete_with_records(%s, %s, spawns => %s)",
        [token, WORKER, msgspec.json.encode(spawns).decode()],
    )
    assert [queue.state_of(one) for one in (first, second)] == [State.PENDING, State.BLOCKED]
    queue.run_job(first)
    assert queue.state_of(second) is State.PENDING


# Operators


def test_an_operator_releases_a_job_whatever_it_waits_for(queue):
    first, second = queue.make_many(2)
    job = make_after(queue, first, second)
    [change] = queue.run(store.release([job]))
    assert (change.state, change.changed) == ("pending", True)
    claimed = queue.claim_job(job)
    queue.run_job(first)
    queue.run_job(second)
    assert queue.state_of(job) is State.RUNNING
    queue.end(Ended(claimed.token))
    assert queue.state_of(job) is State.SUCCEEDED


def test_an_operator_cancels_a_job_that_waits_and_retries_it(queue):
    needed = queue.make()
    job = make_after(queue, needed)
    queue.run(store.cancel([job]))
    assert queue.state_of(job) is State.CANCELLED
    assert queue.count("dependencies") == 0
    queue.run_job(needed)
    queue.run(store.retry([job]))
    assert queue.state_of(job) is State.PENDING


def test_a_job_that_waits_can_be_neither_blocked_nor_retried(queue):
    job = make_after(queue, queue.make())
    for verb in (store.retry([job]), store.block([job], "no")):
        [change] = queue.run(verb)
        assert (change.state, change.changed) == ("blocked", False)
    assert queue.values("select why from outlive.held") == ["dependent"]


def test_a_job_with_the_same_dedupe_key_replaces_one_that_waits(queue):
    job = make_after(queue, queue.make(), dedupe_key="a")
    other = queue.make(dedupe_key="a", on_conflict="replace")
    assert [queue.state_of(one) for one in (job, other)] == [State.CANCELLED, State.PENDING]


def test_a_job_that_waits_counts_as_blocked(queue):
    job = make_after(queue, queue.make())
    assert queue.run(store.find_jobs(store.JobFilter(states=(State.BLOCKED,)), limit=10)).ids == [job]
    assert queue.value("select blocked from outlive.queue_states") == 1
    assert queue.value("select jobs from outlive.count_jobs() where state = 'blocked'") == 1


# Pruning


def test_a_finished_job_is_not_pruned_while_another_needs_its_result(queue):
    queue.set_now()
    needed = queue.make_finished()
    job = make_after(queue, needed)
    queue.set_now(later_s=86400)
    assert queue.run(store.prune_jobs([needed])) == 0
    assert queue.run(store.prune_finished(State.SUCCEEDED, keep_s=1.0, batch=1))[:2] == (0, False)
    queue.run_job(job)
    assert queue.run(store.prune_finished(State.SUCCEEDED, keep_s=1.0, batch=1))[:2] == (1, True)
    assert queue.state_of(needed) is None


def test_pruning_a_job_in_quarantine_forgets_what_it_waited_for(queue):
    needed = queue.make_finished()
    job = make_after(queue, needed, options={"max_crashes": 1})
    queue.run_job(job, Outcome.CRASHED)
    assert queue.count("dependencies") == 1
    assert queue.run(store.prune_jobs([job, needed])) == 1
    assert queue.run(store.prune_jobs([needed])) == 1
    assert queue.count("dependencies") == 0
