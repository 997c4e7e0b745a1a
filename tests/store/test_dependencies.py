"""Jobs that wait for other jobs: what the end of one does to those that wait for it."""

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


pytestmark = pytest.mark.usefixtures("sound")


# What the end of one job does to those that wait for it


def test_a_job_waits_until_the_last_of_the_jobs_that_it_needs_has_succeeded(queue):
    first, second = queue.make_many(2)
    job = make_after(queue, first, second)
    assert queue.state_of(job) is State.BLOCKED
    assert details_of(queue, job) == "waits for 2 jobs"
    queue.run_job(second)
    assert queue.state_of(job) is State.BLOCKED
    assert details_of(queue, job) == "waits for 1 of 2 jobs"
    queue.run_job(first)
    assert queue.state_of(job) is State.PENDING
    queue.run_job(job)
    assert queue.state_of(job) is State.SUCCEEDED
    assert queue.count("dependencies") == 0


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
        assert queue.values("select met from outlive.dependencies") == [True, True]


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
    assert details_of(queue, job) == "waits for 1 of 3 jobs"
    queue.run_job(good)
    assert queue.state_of(job) is State.PENDING


def test_a_job_is_held_since_the_one_that_it_needs_has_failed(queue):
    queue.set_now()
    needed = queue.make()
    job = make_after(queue, needed)
    failed_at = queue.set_now(later_s=60)
    fail(queue, needed)
    assert queue.row_of(job)["held_since"] == failed_at


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


# Pruning


def test_a_finished_job_is_not_pruned_while_another_needs_its_result(queue):
    queue.set_now()
    needed = queue.make_finished()
    job = make_after(queue, needed)
    queue.set_now(later_s=86400)
    assert queue.run(store.prune_jobs([needed])) == 0
    assert queue.run(store.prune_finished(State.SUCCEEDED, keep_s=1.0, batch=1))[:2] == (0, True)
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


def replace(connection: Queue, **wanted: Any) -> UUID:
    return connection.make(dedupe_key="home", on_conflict="replace", **wanted)


@pytest.mark.parametrize("on_failure", ["block", "proceed", "cancel"])
def test_jobs_that_wait_for_a_replaced_job_wait_for_the_new_one_and_get_its_result(queue, on_failure):
    old = queue.make(dedupe_key="home")
    job = make_after(queue, old, on_failure=on_failure, queue="other")
    new = replace(queue)
    assert (queue.state_of(old), queue.state_of(job)) == (State.CANCELLED, State.BLOCKED)
    assert queue.values("select error from outlive.attempts") == [f"replaced by job {new}, which has its dedupe key"]
    queue.end(Ended(queue.claim_job(new).token, result=b"42"))
    assert queue.state_of(job) is State.PENDING
    assert queue.values("select after[1] from outlive.jobs where id = %s", job) == [new]
    assert_sound(queue)


def test_the_failure_of_the_new_job_counts_for_jobs_that_waited_for_the_old_one(queue):
    old = queue.make(dedupe_key="home")
    stays, goes = (make_after(queue, old, on_failure=one) for one in ("block", "cancel"))
    new = replace(queue)
    queue.end(Ended(queue.claim_job(new).token, Outcome.FAILED, final=True))
    assert f"job {new} failed" in details_of(queue, stays)
    assert queue.state_of(goes) is State.CANCELLED
    assert_sound(queue)


def test_a_job_for_which_the_new_one_waits_is_not_taken_along(queue):
    """Otherwise each of the two would wait for the other."""
    old = queue.make(dedupe_key="home")
    between = make_after(queue, old)
    other = make_after(queue, old, on_failure="proceed")
    below = make_after(queue, between)
    new = waiting_for(below, dedupe_key="home", on_conflict="replace")
    queue.enqueue([new])
    assert "was cancelled" in details_of(queue, between)
    queue.run(store.release([between]))
    for one in (between, below, new.id, other):
        queue.end(Ended(queue.claim_job(one).token))
    assert_sound(queue)


def test_a_new_job_that_is_cancelled_at_once_is_followed_up(queue):
    failed = queue.make_finished(Outcome.FAILED)
    old = queue.make(dedupe_key="home")
    job = make_after(queue, old, on_failure="cancel")
    new = waiting_for(failed, on_failure="cancel", dedupe_key="home", on_conflict="replace")
    queue.enqueue([new])
    queue.follow()
    assert (queue.state_of(new.id), queue.state_of(job)) == (State.CANCELLED, State.CANCELLED)
    assert_sound(queue)


def test_a_job_of_the_same_call_that_names_the_replaced_one_is_told(queue):
    old = queue.make(dedupe_key="home")
    new = request(dedupe_key="home", on_conflict="replace")
    job = waiting_for(old, new.id)
    queue.enqueue([new, job])
    assert f"job {old} was cancelled" in details_of(queue, job.id)
    assert_sound(queue)
