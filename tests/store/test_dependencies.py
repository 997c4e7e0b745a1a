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
from tests.driving.making import (
    NOON,
    WORKER,
    Connect,
    claim,
    claim_job,
    count,
    end,
    enqueue,
    make,
    make_finished,
    make_many,
    make_quarantined,
    request,
    row_of,
    run_job,
    set_now,
    state_of,
    value,
    values,
)
from tests.store.acting import assert_sound


def waiting_for(*needs: UUID, on_failure: str | None = None, **more: Any) -> JobRequest:
    """A job that waits for these."""
    links = {"after": [str(one) for one in needs]} | ({"on_failure": on_failure} if on_failure else {})
    return request(links=msgspec.json.encode(links), **more)


def make_after(connection: db.Connection, *needs: UUID, on_failure: str | None = None, **more: Any) -> UUID:
    one = waiting_for(*needs, on_failure=on_failure, **more)
    return enqueue(connection, [one]).get(one.id, one.id)


def details_of(connection: db.Connection, job: UUID) -> str:
    return str(row_of(connection, job)["held_details"])


def fail(connection: db.Connection, job: UUID) -> None:
    run_job(connection, job, Outcome.FAILED, final=True)


@pytest.fixture(autouse=True)
def sound_afterwards(connection: db.Connection) -> Iterator[None]:
    yield
    assert_sound(connection)


# What the end of one job does to those that wait for it


def test_a_job_waits_until_the_last_of_the_jobs_that_it_needs_has_succeeded(connection: db.Connection) -> None:
    first, second = make_many(connection, 2)
    job = make_after(connection, first, second)
    assert state_of(connection, job) is State.BLOCKED
    assert details_of(connection, job) == "waits for 2 jobs"
    run_job(connection, second)
    assert state_of(connection, job) is State.BLOCKED
    assert details_of(connection, job) == "waits for 1 job"
    run_job(connection, first)
    assert state_of(connection, job) is State.PENDING
    run_job(connection, job)
    assert state_of(connection, job) is State.SUCCEEDED
    assert count(connection, "dependencies") == 0


def test_a_job_that_is_needed_may_fail_and_succeed_later(connection: db.Connection) -> None:
    needed = make(connection)
    job = make_after(connection, needed)
    run_job(connection, needed, Outcome.FAILED, after_s=0.0)
    assert (state_of(connection, needed), state_of(connection, job)) == (State.RETRYABLE, State.BLOCKED)
    run_job(connection, needed)
    assert state_of(connection, job) is State.PENDING


BADLY = ("failed", "cancelled", "quarantined")
WORDS = {
    "failed": "job {} failed: retry it, or release this job",
    "cancelled": "job {} was cancelled: retry it, or release this job",
    "quarantined": "job {} is in quarantine: release it, or release this job",
}


def end_badly_later(connection: db.Connection, needed: UUID, how: str) -> None:
    match how:
        case "failed":
            fail(connection, needed)
        case "cancelled":
            db.run(connection, store.cancel([needed]))
        case _:
            run_job(connection, needed, Outcome.CRASHED)
    assert state_of(connection, needed) is State(how)


@pytest.mark.parametrize("how", BADLY)
@pytest.mark.parametrize(
    ("on_failure", "becomes"),
    [(None, State.BLOCKED), ("block", State.BLOCKED), ("proceed", State.PENDING), ("cancel", State.CANCELLED)],
)
def test_on_failure_says_what_becomes_of_a_job_if_one_that_it_needs_does_not_succeed(
    connection: db.Connection, how: str, on_failure: str | None, becomes: State
) -> None:
    needed = make(connection, options={"max_crashes": 1})
    job = make_after(connection, needed, on_failure=on_failure)
    end_badly_later(connection, needed, how)
    late = make_after(connection, needed, on_failure=on_failure)  # It has ended already when this one is enqueued.
    for one in (job, late):
        assert state_of(connection, one) is becomes
        if becomes is State.BLOCKED:
            assert details_of(connection, one) == WORDS[how].format(needed)
    if becomes is State.CANCELLED:
        [ended] = db.run(connection, store.list_attempts(job))
        assert ended.error == f"cancelled, because job {needed} ended without success"
        assert count(connection, "dependencies") == 0


def test_retrying_the_failed_one_releases_the_job_once_it_succeeds(connection: db.Connection) -> None:
    good, bad, worse = make_many(connection, 3)
    job = make_after(connection, good, bad, worse)
    fail(connection, bad)
    fail(connection, worse)
    assert details_of(connection, job) == WORDS["failed"].format(worse)
    db.run(connection, store.retry([worse]))
    run_job(connection, worse)
    assert details_of(connection, job) == WORDS["failed"].format(bad)
    db.run(connection, store.retry([bad]))
    run_job(connection, bad)
    assert details_of(connection, job) == "waits for 1 job"
    run_job(connection, good)
    assert state_of(connection, job) is State.PENDING


def test_a_job_is_held_since_the_one_that_it_needs_has_failed(connection: db.Connection) -> None:
    set_now(connection)
    needed = make(connection)
    job = make_after(connection, needed)
    failed_at = set_now(connection, later_s=60)
    fail(connection, needed)
    assert row_of(connection, job)["held_since"] == failed_at


def test_a_job_that_is_needed_and_in_quarantine_may_be_released_and_succeed(connection: db.Connection) -> None:
    needed = make_quarantined(connection)
    job = make_after(connection, needed)
    db.run(connection, store.release([needed]))
    run_job(connection, needed)
    assert state_of(connection, job) is State.PENDING


def test_a_cancelled_job_cancels_those_that_wait_for_it_by_the_same_rules(connection: db.Connection) -> None:
    top = make(connection)
    middle = make_after(connection, top, on_failure="cancel", dedupe_key="middle")
    lowest = make_after(connection, middle, on_failure="cancel")
    stays = make_after(connection, middle)
    goes_on = make_after(connection, middle, on_failure="proceed")
    fail(connection, top)
    states = [state_of(connection, one) for one in (middle, lowest, stays, goes_on)]
    assert states == [State.CANCELLED, State.CANCELLED, State.BLOCKED, State.PENDING]
    assert details_of(connection, stays) == WORDS["cancelled"].format(middle)


@pytest.mark.parametrize("event", ["success", "loss", "own transaction", "cancel"])
def test_whatever_ends_a_job_releases_those_that_wait_for_it(connection: db.Connection, event: str) -> None:
    needed = make(connection, dedupe_key="one", options={"on_worker_death": "fail"})
    job = make_after(connection, needed, on_failure="proceed")
    match event:
        case "success":
            run_job(connection, needed)
        case "loss":
            claim_job(connection, needed, lease_s=-1.0)
            db.run(connection, store.expire())
        case "own transaction":
            token = claim_job(connection, needed).token
            connection.execute("select outlive.complete_with_records(%s, %s)", [token, WORKER])
        case "cancel":
            db.run(connection, store.cancel([needed]))
    assert state_of(connection, job) is State.PENDING


def test_a_job_that_is_caught_before_it_starts_counts_as_failed(connection: db.Connection) -> None:
    needed = make(connection, options={"max_crashes": 2})
    job = make_after(connection, needed, on_failure="proceed")
    run_job(connection, needed, Outcome.CRASHED, after_s=0.0)
    connection.execute("""update outlive.jobs set options = '{"max_crashes": 1}' where id = %s""", [needed])
    assert db.run(connection, store.quarantine_killers()) == [needed]
    assert state_of(connection, job) is State.PENDING


def test_a_released_job_waits_for_its_own_time_too(connection: db.Connection) -> None:
    set_now(connection)
    needed = make(connection)
    soon = make_after(connection, needed)
    later = make_after(connection, needed, delay_s=60.0)
    set_now(connection, later_s=10)
    run_job(connection, needed)
    assert row_of(connection, soon)["ready_at"] == NOON + timedelta(seconds=10, microseconds=-1)
    assert row_of(connection, later)["ready_at"] == NOON + timedelta(seconds=60)


def test_jobs_that_are_released_together_keep_their_order(connection: db.Connection) -> None:
    needed = make(connection)
    batch = [waiting_for(needed) for _ in range(50)]
    enqueue(connection, batch)
    run_job(connection, needed)
    assert [one.id for one in claim(connection)] == [one.id for one in batch]
    assert value(connection, "select count(distinct ready_at) from outlive.running") == 50


def test_a_release_notifies_a_worker_that_sleeps(connect: Connect) -> None:
    connection, sleeper = connect(), connect()
    sleeper.execute("listen outlive")
    needed = make(connection)
    make_after(connection, needed)
    claimed = claim_job(connection, needed)
    db.run(connection, store.sleep(new_job_id()))
    assert list(sleeper.notifies(timeout=0)) == []
    end(connection, Ended(claimed.token))
    assert [one.payload for one in sleeper.notifies(timeout=5, stop_after=1)] == [""]


# Enqueueing


def test_jobs_of_one_call_may_wait_for_each_other_whatever_their_ids(connection: db.Connection) -> None:
    small, large = sorted(new_job_id() for _ in range(2))
    enqueue(connection, [request(id=large), waiting_for(large, id=small)])
    assert state_of(connection, small) is State.BLOCKED
    run_job(connection, large)
    assert state_of(connection, small) is State.PENDING


def test_a_job_can_wait_only_for_jobs_that_exist_or_come_before_it(connection: db.Connection) -> None:
    first, later = request(), new_job_id()
    second = waiting_for(first.id, later, id=new_job_id())
    wrong = [
        ([waiting_for(later)], f"can't wait for job {later}: a job can only wait for jobs that exist or come before"),
        ([first, second, request(id=later)], f"job {second.id} can't wait for job {later}: a job can only wait"),
        ([waiting_for(later, id=later)], f"job {later} can't wait for itself"),
    ]
    for batch, message in wrong:
        with pytest.raises(BadArguments, match=message), db.translated_errors():
            enqueue(connection, batch)
    assert count(connection, "jobs") == 0


def test_links_that_make_no_sense_are_refused(connection: db.Connection) -> None:
    needed = make(connection)
    many = [UUID(int=n) for n in range(100_001)]
    for job, message in [
        (waiting_for(needed, on_failure="panic"), "on_failure can be block, proceed or cancel"),
        (waiting_for(*many), "at most 100,000 jobs"),
        (request(links=b'{"after": ["x"]}'), "uuid"),
        (request(links=b'{"after": "x"}'), "array"),
    ]:
        with pytest.raises(BadArguments, match=message), db.translated_errors():
            enqueue(connection, [job])
    assert count(connection, "jobs") == 1


def test_no_jobs_to_wait_for_is_like_none(connection: db.Connection) -> None:
    job = make_after(connection)
    assert state_of(connection, job) is State.PENDING


def test_a_job_may_name_another_twice(connection: db.Connection) -> None:
    needed = make(connection)
    job = make_after(connection, needed, needed)
    run_job(connection, needed)
    assert state_of(connection, job) is State.PENDING


def test_repeating_an_enqueue_adds_no_dependency(connection: db.Connection) -> None:
    needed = make(connection)
    batch = [waiting_for(needed), waiting_for(needed)]
    enqueue(connection, batch)
    run_job(connection, needed)
    enqueue(connection, [*batch, request()])
    assert [state_of(connection, one.id) for one in batch] == [State.PENDING] * 2
    assert values(connection, "select met from outlive.dependencies") == [True, True]


def test_instead_of_a_job_that_is_not_made_the_one_with_its_dedupe_key_is_waited_for(connection: db.Connection) -> None:
    there = make(connection, dedupe_key="a")
    asked = request(dedupe_key="a")
    job = waiting_for(asked.id)
    assert enqueue(connection, [asked, job]) == {asked.id: there}
    assert value(connection, "select after from outlive.jobs where id = %s", job.id) == [there]
    run_job(connection, there)
    assert state_of(connection, job.id) is State.PENDING


def test_a_job_that_is_not_made_waits_for_nothing(connection: db.Connection) -> None:
    needed, there = make(connection), make(connection, dedupe_key="a")
    assert make_after(connection, needed, dedupe_key="a") == there
    assert count(connection, "dependencies") == 0


def test_a_job_may_wait_for_what_has_succeeded(connection: db.Connection) -> None:
    done, needed = make_finished(connection), make(connection)
    assert state_of(connection, make_after(connection, done)) is State.PENDING
    job = make_after(connection, done, needed)
    assert details_of(connection, job) == "waits for 1 job"
    run_job(connection, needed)
    assert state_of(connection, job) is State.PENDING


def test_a_job_that_is_cancelled_at_once_cancels_those_of_the_same_call(connection: db.Connection) -> None:
    failed = make_finished(connection, Outcome.FAILED)
    first = waiting_for(failed, on_failure="cancel")
    second = waiting_for(first.id, on_failure="cancel")
    enqueue(connection, [first, second])
    assert [state_of(connection, one.id) for one in (first, second)] == [State.CANCELLED] * 2


def test_plain_sql_enqueues_a_job_that_waits(connection: db.Connection) -> None:
    needed = make(connection)
    job = value(connection, "select outlive.enqueue('work', after => array[%s::uuid])", needed)
    brave = value(
        connection, "select outlive.enqueue('work', after => array[%s::uuid], on_failure => 'proceed')", needed
    )
    fail(connection, needed)
    assert [state_of(connection, one) for one in (job, brave)] == [State.BLOCKED, State.PENDING]


def test_spawned_jobs_may_wait_for_each_other_and_for_the_job_that_spawns_them(connection: db.Connection) -> None:
    parent = make(connection)
    token = claim_job(connection, parent).token
    first, second = new_job_id(), new_job_id()
    spawns = [
        {"id": str(first), "task": "work", "links": {"after": [str(parent)]}},
        {"id": str(second), "task": "work", "links": {"after": [str(first)]}},
    ]
    connection.execute(
        "select outlive.complete_with_records(%s, %s, spawns => %s)",
        [token, WORKER, msgspec.json.encode(spawns).decode()],
    )
    assert [state_of(connection, one) for one in (first, second)] == [State.PENDING, State.BLOCKED]
    run_job(connection, first)
    assert state_of(connection, second) is State.PENDING


# Operators


def test_an_operator_releases_a_job_whatever_it_waits_for(connection: db.Connection) -> None:
    first, second = make_many(connection, 2)
    job = make_after(connection, first, second)
    [change] = db.run(connection, store.release([job]))
    assert (change.state, change.changed) == ("pending", True)
    claimed = claim_job(connection, job)
    run_job(connection, first)
    run_job(connection, second)
    assert state_of(connection, job) is State.RUNNING
    end(connection, Ended(claimed.token))
    assert state_of(connection, job) is State.SUCCEEDED


def test_an_operator_cancels_a_job_that_waits_and_retries_it(connection: db.Connection) -> None:
    needed = make(connection)
    job = make_after(connection, needed)
    db.run(connection, store.cancel([job]))
    assert state_of(connection, job) is State.CANCELLED
    assert count(connection, "dependencies") == 0
    run_job(connection, needed)
    db.run(connection, store.retry([job]))
    assert state_of(connection, job) is State.PENDING


def test_a_job_that_waits_can_be_neither_blocked_nor_retried(connection: db.Connection) -> None:
    job = make_after(connection, make(connection))
    for verb in (store.retry([job]), store.block([job], "no")):
        [change] = db.run(connection, verb)
        assert (change.state, change.changed) == ("blocked", False)
    assert values(connection, "select why from outlive.held") == ["dependent"]


def test_a_job_with_the_same_dedupe_key_replaces_one_that_waits(connection: db.Connection) -> None:
    job = make_after(connection, make(connection), dedupe_key="a")
    other = make(connection, dedupe_key="a", on_conflict="replace")
    assert [state_of(connection, one) for one in (job, other)] == [State.CANCELLED, State.PENDING]


def test_a_job_that_waits_counts_as_blocked(connection: db.Connection) -> None:
    job = make_after(connection, make(connection))
    assert db.run(connection, store.find_jobs(store.JobFilter(states=(State.BLOCKED,)), limit=10)).ids == [job]
    assert value(connection, "select blocked from outlive.queue_states") == 1
    assert value(connection, "select jobs from outlive.count_jobs() where state = 'blocked'") == 1


# Pruning


def test_a_finished_job_is_not_pruned_while_another_needs_its_result(connection: db.Connection) -> None:
    set_now(connection)
    needed = make_finished(connection)
    job = make_after(connection, needed)
    set_now(connection, later_s=86400)
    assert db.run(connection, store.prune_jobs([needed])) == 0
    assert db.run(connection, store.prune_finished(State.SUCCEEDED, keep_s=1.0, batch=1))[:2] == (0, False)
    run_job(connection, job)
    assert db.run(connection, store.prune_finished(State.SUCCEEDED, keep_s=1.0, batch=1))[:2] == (1, True)
    assert state_of(connection, needed) is None


def test_pruning_a_job_in_quarantine_forgets_what_it_waited_for(connection: db.Connection) -> None:
    needed = make_finished(connection)
    job = make_after(connection, needed, options={"max_crashes": 1})
    run_job(connection, job, Outcome.CRASHED)
    assert count(connection, "dependencies") == 1
    assert db.run(connection, store.prune_jobs([job, needed])) == 1
    assert db.run(connection, store.prune_jobs([needed])) == 1
    assert count(connection, "dependencies") == 0
