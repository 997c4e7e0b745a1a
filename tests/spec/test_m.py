"""M — seeing, as SQL views."""

from datetime import timedelta

from outlive import db, store
from outlive.client.task import Task
from outlive.states import Outcome
from tests.spec.conftest import NOON, Hand

AddTask = Task[[int, int], int, int]


EXPECTED = {
    "job_states": "id task queue source status attempt failures crashes losses next_retry_at completed_at "
    "locked_by locked_at heartbeat_at time_since_heartbeat error_message",
    "recent_jobs": "id task status created_at error_message",
    "stuck_jobs": "id task locked_by locked_at heartbeat_at time_since_heartbeat",
    "worker_states": "id name hostname pid state last_seen slots running",
    "killers": "id task crashes losses signal exit_code peak_memory_bytes output stack killed_on last_kill_at",
    "queue_states": "name paused waiting running quarantined",
    "source_health": "name enabled rate_limit_per_minute failure_streak last_success_at last_failure_at paused_until",
}


def test_M1_every_view_has_the_columns_that_operators_expect(hand: Hand) -> None:
    columns = "select attname from pg_attribute where attnum > 0 and attrelid = to_regclass(%s)"
    for view, expected in EXPECTED.items():
        found = {name for (name,) in hand.rows(columns, f"outlive.{view}")}
        assert set(expected.split()) - found == set(), view


def test_M1_a_heartbeat_that_is_missing_counts_as_stuck(task: AddTask, hand: Hand) -> None:
    job = task.enqueue(1, 2)
    hand.at(NOON)
    (claimed,) = hand.claim()
    hand.at(NOON, later_s=299)
    db.run(hand.connection, store.renew(hand.id, [claimed.token]))
    hand.at(NOON, later_s=598)
    assert db.run(hand.connection, store.stuck()) == []
    hand.at(NOON, later_s=600)
    assert hand.rows("select id, time_since_heartbeat from outlive.stuck_jobs") == [(job.id, timedelta(seconds=301))]
    (stuck,) = db.run(hand.connection, store.stuck())
    assert (stuck["id"], stuck["time_since_heartbeat_s"]) == (job.id, 301)


def test_M1_one_look_shows_recent_jobs_and_how_they_stand(task: AddTask, hand: Hand) -> None:
    failed = task.enqueue(1, 2)
    hand.run(Outcome.FAILED, error="ValueError: no", final=True)
    running = task.enqueue(3, 4)
    hand.claim()
    waiting = task.enqueue(5, 6)
    seen = hand.rows("select id, status, error_message from outlive.recent_jobs")
    assert set(seen) == {
        (waiting.id, "pending", None),
        (running.id, "running", None),
        (failed.id, "failed", "ValueError: no"),
    }
    assert seen[-1][0] == min(failed.id, running.id, waiting.id)
