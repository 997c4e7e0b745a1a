"""The ends of attempts: each outcome in the table, each limit, and the life of a suspect."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outlive import db, store, wire
from outlive.model import Claimed, Ended
from outlive.states import Outcome, State
from tests.driving.making import (
    TASK,
    Connect,
    claim,
    counters,
    hold_of,
    make,
    register_task,
    register_worker,
    row_of,
    set_now,
    state_of,
    value,
)
from tests.store.acting import (
    ANNA,
    BERT,
    ENDS,
    NOW,
    TOMORROW,
    Place,
    Scene,
    bring,
    complete,
    contents,
    end_by,
    fire,
    give_up,
)
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

FAILURES = ("fail", "time_out", "exhaust")
CRASHES = ("overrun", "crash")


def ready_in_s(connection: db.Connection, job: UUID) -> float:
    ready_at: datetime = row_of(connection, job)["ready_at"]
    return (ready_at - NOW).total_seconds()


def lose(connection: db.Connection, worker: UUID = ANNA) -> Claimed:
    """Let a worker claim the job and vanish with it."""
    [claimed] = claim(connection, worker=worker, limit=1, lease_s=-1.0)
    [lost] = db.run(connection, store.expire())
    assert lost.token == claimed.token
    return claimed


def lose_alone(connection: db.Connection, worker: UUID = ANNA) -> Claimed:
    [claimed] = db.run(connection, store.claim_suspect(worker, tasks=[TASK], lease_s=-1.0))
    [lost] = db.run(connection, store.expire())
    assert lost.token == claimed.token
    return claimed


COUNTED = [
    ("succeed", State.SUCCEEDED, (0, 0, 0)),
    ("fail", State.RETRYABLE, (1, 0, 0)),
    ("time_out", State.RETRYABLE, (1, 0, 0)),
    ("exhaust", State.RETRYABLE, (1, 0, 0)),
    ("overrun", State.RETRYABLE, (0, 1, 0)),
    ("crash", State.RETRYABLE, (0, 1, 0)),
    ("expire", State.PENDING, (0, 0, 1)),
    ("hand_back", State.PENDING, (0, 0, 0)),
    ("stop", State.CANCELLED, (0, 0, 0)),
]


@pytest.mark.parametrize(("event", "state", "counted"), COUNTED)
def test_an_outcome_counts_as_the_table_says(
    connection: db.Connection, event: str, state: State, counted: tuple[int, int, int]
) -> None:
    scene = bring(connection, Place.RUNNING)
    set_now(connection, TOMORROW)
    fire(connection, event, scene)
    assert state_of(connection, scene.job) is state
    assert counters(connection, scene.job) == counted
    [attempt] = db.run(connection, store.list_attempts(scene.job))
    assert attempt.outcome == ENDS.get(event, {"outcome": Outcome.LOST})["outcome"]
    assert attempt.ended_at == TOMORROW
    assert attempt.started_at == NOW


@pytest.mark.parametrize("event", FAILURES)
def test_a_final_failure_is_not_retried_whatever_is_left(connection: db.Connection, event: str) -> None:
    scene = bring(connection, Place.RUNNING)
    end_by(connection, ANNA, scene.token, event, final=True)
    assert state_of(connection, scene.job) is State.FAILED
    assert counters(connection, scene.job) == (1, 0, 0)


@pytest.mark.parametrize("event", FAILURES)
def test_failures_end_in_failed_when_attempts_are_used_up(connection: db.Connection, event: str) -> None:
    job = make(connection)
    for n in range(1, 6):
        [claimed] = claim(connection, limit=1)
        assert claimed.attempt == n
        end_by(connection, ANNA, claimed.token, event, after_s=0.0)
        assert state_of(connection, job) is (State.FAILED if n == 5 else State.RETRYABLE)
    assert counters(connection, job) == (5, 0, 0)


@pytest.mark.parametrize("event", CRASHES)
def test_crashes_end_in_quarantine_with_the_reason(connection: db.Connection, event: str) -> None:
    job = make(connection)
    for n in range(1, 4):
        [claimed] = claim(connection, limit=1)
        end_by(connection, ANNA, claimed.token, event, after_s=0.0)
        assert state_of(connection, job) is (State.QUARANTINED if n == 3 else State.RETRYABLE)
    assert counters(connection, job) == (0, 3, 0)
    assert hold_of(connection, job) == ("quarantined", "killed its process 3 times (max_crashes = 3)")
    assert claim(connection, limit=1) == []
    [killer] = db.run(connection, store.list_killers())
    assert (killer["id"], killer["crashes"], killer["signal"]) == (job, 3, ENDS[event]["signal"])


def test_failures_crashes_and_losses_are_counted_apart(connection: db.Connection) -> None:
    job = make(connection)
    for event in ("fail", "crash", "fail", "crash", "fail", "fail"):
        [claimed] = claim(connection, limit=1)
        end_by(connection, ANNA, claimed.token, event, after_s=0.0)
    lose(connection)
    assert counters(connection, job) == (4, 2, 1)
    assert state_of(connection, job) is State.RETRYABLE


# Limits: a job's options, then its task's row, then the defaults.

LIMITS = [
    ("fail", "max_attempts", {"max_attempts": 2}, {}, 2),
    ("fail", "max_attempts", {"max_attempts": 2}, {"max_attempts": 3}, 3),
    ("fail", "max_attempts", None, {"max_attempts": 1}, 1),
    ("fail", "max_attempts", None, {}, 5),
    ("crash", "max_crashes", {"max_crashes": 2}, {}, 2),
    ("crash", "max_crashes", {"max_crashes": 2}, {"max_crashes": 4}, 4),
    ("crash", "max_crashes", None, {"max_crashes": 1}, 1),
    ("crash", "max_crashes", None, {}, 3),
]


@pytest.mark.parametrize(("event", "limit", "task", "job", "expected"), LIMITS)
def test_a_limit_is_the_jobs_then_its_tasks_then_the_default(
    connection: db.Connection,
    event: str,
    limit: str,
    task: dict[str, int] | None,
    job: dict[str, object],
    expected: int,
) -> None:
    if task is not None:
        register_task(connection, **task)
    id = make(connection, options=job)
    for n in range(1, expected + 1):
        assert state_of(connection, id) is (State.PENDING if n == 1 else State.RETRYABLE)
        [claimed] = claim(connection, limit=1)
        end_by(connection, ANNA, claimed.token, event, after_s=0.0)
    assert state_of(connection, id) is (State.FAILED if event == "fail" else State.QUARANTINED)


LOSSES = [
    ({"max_losses": 2}, {}, 2),
    ({"max_losses": 2}, {"max_losses": 4}, 4),
    (None, {"max_losses": 1}, 1),
    (None, {}, 3),
    ({"max_losses": None}, {"max_losses": 2}, 2),
]


@pytest.mark.parametrize(("task", "job", "expected"), LOSSES)
def test_a_job_is_a_suspect_before_its_last_loss_and_quarantined_after_two_alone(
    connection: db.Connection, task: dict[str, int | None] | None, job: dict[str, object], expected: int
) -> None:
    if task is not None:
        register_task(connection, **task)
    id = make(connection, options=job)
    for n in range(1, expected):
        lose(connection)
        held = hold_of(connection, id)
        assert (held and held[0]) == ("suspect" if n == expected - 1 else None)
        assert state_of(connection, id) is State.PENDING
    if expected > 1:
        assert claim(connection, limit=1) == []
        lose_alone(connection)
        assert (hold_of(connection, id) or ("",))[0] == "suspect"
        lose_alone(connection)
    else:
        lose(connection)
    assert state_of(connection, id) is State.QUARANTINED
    held = hold_of(connection, id)
    assert held is not None
    assert held[0] == "quarantined"
    assert f"max_losses = {expected}" in held[1]
    assert counters(connection, id) == (0, 0, expected + 1 if expected > 1 else 1)


@pytest.mark.parametrize(("task", "job"), [({"max_losses": None}, {}), (None, {"max_losses": None})])
def test_without_a_limit_of_losses_no_job_is_a_suspect(
    connection: db.Connection, task: dict[str, int | None] | None, job: dict[str, object]
) -> None:
    register_task(connection, **(task or {}))
    id = make(connection, options=job)
    for _ in range(10):
        lose(connection)
    assert state_of(connection, id) is State.PENDING
    assert hold_of(connection, id) is None
    assert counters(connection, id) == (0, 0, 10)


@pytest.mark.parametrize("by", ["task", "job"])
def test_a_lost_job_fails_when_its_policy_says_so(connection: db.Connection, by: str) -> None:
    if by == "task":
        register_task(connection, on_worker_death="fail")
    job = make(connection, options={"on_worker_death": "fail"} if by == "job" else None, dedupe_key="k")
    lose(connection)
    assert state_of(connection, job) is State.FAILED
    [attempt] = db.run(connection, store.list_attempts(job))
    assert (attempt.outcome, attempt.error) == (Outcome.LOST, "its lease expired")
    assert make(connection, dedupe_key="k") != job


def test_an_outcome_that_the_verdict_does_not_know_is_refused(connection: db.Connection) -> None:
    """It must not be retried at no cost, and so forever."""
    make(connection)
    claim(connection)
    asked = "select state from outlive.running r, outlive.verdict(r, %s, false, false, null, 0)"
    assert connection.execute(asked, ["released"]).fetchall() == [("pending",)]
    with pytest.raises(psycopg.errors.RaiseException, match="no verdict for the outcome vaporised"):
        connection.execute(asked, ["vaporised"])


BAD_OPTIONS: list[dict[str, object]] = [
    {"max_crashes": "many"},
    {"max_attempts": 1.5},
    {"max_attempts": 0},
    {"max_losses": -1},
    {"max_losses": 30001},
    {"max_crashes": True},
    {"on_worker_death": "cry"},
    {"on_worker_death": 1},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_a_limit_that_makes_no_sense_is_refused_at_enqueue(
    connection: db.Connection, options: dict[str, object]
) -> None:
    before = contents(connection)
    with pytest.raises(psycopg.Error) as raised:
        make(connection, options=options)
    assert raised.value.sqlstate == "OL003"
    assert contents(connection) == before


def test_a_counter_at_the_end_of_its_range_stops_no_reaper(connection: db.Connection) -> None:
    register_task(connection, max_losses=None)
    job, other = make(connection), make(connection)
    connection.execute("update outlive.waiting set losses = 32767 where id = %s", [job])
    claim(connection, limit=2, lease_s=-1.0)
    assert {lost.id for lost in db.run(connection, store.expire())} == {job, other}
    assert counters(connection, job) == (0, 0, 32767)


# When it may run again.


def test_the_default_backoff_starts_at_a_minute_and_ends_at_a_day(connection: db.Connection) -> None:
    job = make(connection, options={"max_attempts": 100})
    for failures, longest_s in [(0, 60), (1, 120), (10, 61440), (11, 86400), (50, 86400)]:
        connection.execute("update outlive.waiting set failures = %s, ready_at = %s", [failures, NOW])
        [claimed] = claim(connection, limit=1)
        end_by(connection, ANNA, claimed.token, "fail")
        assert longest_s / 2 <= ready_in_s(connection, job) <= longest_s


@pytest.mark.parametrize("event", [*FAILURES, *CRASHES, "hand_back"])
def test_a_delay_that_was_said_is_kept_exactly(connection: db.Connection, event: str) -> None:
    scene = bring(connection, Place.RUNNING)
    end_by(connection, ANNA, scene.token, event, after_s=12.5)
    assert ready_in_s(connection, scene.job) == 12.5


@pytest.mark.parametrize("event", ["hand_back", "expire"])
def test_a_job_that_did_nothing_wrong_keeps_its_place_in_the_line(connection: db.Connection, event: str) -> None:
    first = make(connection, run_at=NOW - timedelta(hours=1))
    make(connection)
    [claimed] = claim(connection, limit=1)
    assert claimed.id == first
    set_now(connection, TOMORROW)
    fire(connection, event, Scene(first, ANNA, claimed.token))
    assert row_of(connection, first)["ready_at"] == NOW - timedelta(hours=1)
    assert [again.id for again in claim(connection, worker=BERT, limit=1)] == [first]


# Suspects.


def suspect(connection: db.Connection, **wanted: Any) -> UUID:
    job = make(connection, **wanted)
    lose(connection)
    lose(connection)
    assert hold_of(connection, job) == (
        "suspect",
        "2 workers vanished while running it: it runs alone next (max_losses = 3)",
    )
    return job


@pytest.mark.parametrize("event", [*FAILURES, *CRASHES])
def test_a_suspect_that_ends_by_itself_is_cleared(connection: db.Connection, event: str) -> None:
    job = suspect(connection)
    [claimed] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    assert (claimed.id, claimed.losses, claimed.attempt) == (job, 2, 3)
    end_by(connection, BERT, claimed.token, event, after_s=0.0)
    assert counters(connection, job)[2] == 0
    assert [again.id for again in claim(connection, limit=1)] == [job]


def test_a_suspect_handed_back_stays_one(connection: db.Connection) -> None:
    job = suspect(connection)
    [claimed] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    end_by(connection, BERT, claimed.token, "hand_back")
    assert hold_of(connection, job) is not None
    assert counters(connection, job) == (0, 0, 2)
    assert claim(connection, limit=1) == []


def let_in(connection: db.Connection, worker: UUID, *, lease_s: float = 300.0) -> Claimed:
    """Start a suspect that outlives its time alone, so that other jobs may run beside it."""
    [claimed] = db.run(connection, store.claim_suspect(worker, tasks=[TASK], lease_s=lease_s))
    assert db.run(connection, store.let_others_in(worker, claimed.token))
    return claimed


@pytest.mark.parametrize("event", ["fail", "time_out", "crash", "overrun"])
def test_a_suspect_that_outlives_its_time_alone_and_then_ends_is_cleared(connection: db.Connection, event: str) -> None:
    job = suspect(connection)
    end_by(connection, BERT, let_in(connection, BERT).token, event)
    assert counters(connection, job)[2] == 0


def test_a_suspect_lost_beside_others_stays_one_until_twice_its_limit(connection: db.Connection) -> None:
    """A neighbour may be to blame, but a killer that waits for company is caught in the end."""
    job = suspect(connection)
    for losses, waits_s in [(3, 0), (4, 15), (5, 30)]:
        lose_let_in(connection, job)
        said = f"{losses} workers vanished while running it: it runs alone next (max_losses = 3)"
        assert hold_of(connection, job) == ("suspect", said)
        wait_out(connection, waits_s)
    lose_let_in(connection, job)
    said = "6 workers vanished while running it; no other worker vanished meanwhile: a guess (max_losses = 3)"
    assert hold_of(connection, job) == ("quarantined", said)


def test_a_suspect_lost_beside_others_is_proven_by_two_losses_alone(connection: db.Connection) -> None:
    job = suspect(connection)
    lose_let_in(connection, job)
    lose_alone(connection)
    assert (hold_of(connection, job) or ("",))[0] == "suspect"
    wait_out(connection, 15)
    lose_alone(connection)
    known = "5 workers vanished while running it, twice with nothing beside it; no other worker vanished meanwhile"
    assert hold_of(connection, job) == ("quarantined", f"{known}: proven (max_losses = 3)")


def lose_let_in(connection: db.Connection, job: UUID) -> None:
    let_in(connection, BERT, lease_s=-1.0)
    fire(connection, "expire", Scene(job))


def wait_out(connection: db.Connection, waits_s: float) -> None:
    """Let the time pass that a suspect waits after another loss, and see that it does."""
    if waits_s:
        assert db.run(connection, store.claim_suspect(BERT, tasks=[TASK])) == []
        now = value(connection, "select outlive.now()")
        set_now(connection, now + timedelta(seconds=waits_s))


def die_elsewhere(connection: db.Connection, number: int) -> None:
    """Let another worker die, in which the suspect did not run."""
    worker = UUID(int=1000 + number)
    register_worker(connection, worker)
    give_up(connection, worker)


def test_a_storm_of_worker_deaths_convicts_no_suspect(connection: db.Connection) -> None:
    """FAULTS 71. For each loss of the suspect another worker dies without it: neither two losses alone nor twice its
    limit is proof. It waits longer and longer for the storm to pass."""
    job = suspect(connection)
    waits_s = [0, *(15 * 2**n for n in range(8))]
    for losses, wait_s in zip(range(3, 12), waits_s, strict=True):
        die_elsewhere(connection, losses)
        lose_alone(connection)
        assert (state_of(connection, job), counters(connection, job)) == (State.PENDING, (0, 0, losses))
        wait_out(connection, wait_s)
    [claimed] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    end_by(connection, BERT, claimed.token, "fail")
    assert counters(connection, job) == (1, 0, 0), "the storm has passed"


def test_a_killer_is_convicted_also_in_a_storm_at_four_times_its_limit(connection: db.Connection) -> None:
    job = suspect(connection)
    for losses in range(3, 13):
        assert state_of(connection, job) is State.PENDING
        die_elsewhere(connection, losses)
        set_now(connection, value(connection, "select outlive.now()") + timedelta(hours=2))
        lose_alone(connection)
    known = "12 workers vanished while running it, 10 times with nothing beside it; 10 others vanished without it"
    assert hold_of(connection, job) == ("quarantined", f"{known}: a guess (max_losses = 3)")


def test_one_death_elsewhere_only_postpones_the_proof(connection: db.Connection) -> None:
    job = suspect(connection)
    die_elsewhere(connection, 1)
    for waits_s in (0, 15):
        lose_alone(connection)
        assert state_of(connection, job) is State.PENDING
        wait_out(connection, waits_s)
    lose_alone(connection)
    known = "5 workers vanished while running it, 3 times with nothing beside it; one other vanished without it"
    assert hold_of(connection, job) == ("quarantined", f"{known}: proven (max_losses = 3)")


def test_the_death_of_a_worker_that_once_gave_the_job_back_speaks_for_it(connection: db.Connection) -> None:
    once = register_worker(connection, UUID(int=3000))
    job = suspect(connection)
    [claimed] = db.run(connection, store.claim_suspect(once, tasks=[TASK]))
    end_by(connection, once, claimed.token, "hand_back")
    give_up(connection, once)
    lose_alone(connection)
    lose_alone(connection)
    assert state_of(connection, job) is State.PENDING, "another worker died without it"


def test_deaths_that_say_nothing_about_a_suspect_do_not_help_it(connection: db.Connection) -> None:
    """A worker that was told to stop, one that died before the first loss, and those in which it ran."""
    die_elsewhere(connection, 1)
    set_now(connection, value(connection, "select outlive.now()") + timedelta(seconds=1))
    job = suspect(connection)
    register_worker(connection, UUID(int=2000))
    db.run(connection, store.heartbeat(UUID(int=2000), "draining"))
    give_up(connection, UUID(int=2000))
    for number in (2001, 2002):
        register_worker(connection, UUID(int=number))
        lose_alone(connection, UUID(int=number))
        give_up(connection, UUID(int=number))
    known = "4 workers vanished while running it, twice with nothing beside it; no other worker vanished meanwhile"
    assert hold_of(connection, job) == ("quarantined", f"{known}: proven (max_losses = 3)")


@pytest.mark.parametrize(("lasted_s", "alone_s"), [(0.5, 5.0), (2.5, 5.0), (10.0, 20.0), (30.0, 60.0), (3600.0, 60.0)])
def test_a_suspect_is_alone_for_twice_its_longest_lost_attempt_within_bounds(
    connection: db.Connection, lasted_s: float, alone_s: float
) -> None:
    suspect(connection)
    longest = "update outlive.attempts set started_at = ended_at - %s * interval '1 second' where attempt = 1"
    connection.execute(longest, [lasted_s])
    [claimed] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    assert claimed.alone_s == alone_s
    assert [job.alone_s for job in db.run(connection, store.held_attempts(BERT))] == [alone_s]


def test_only_the_worker_that_has_a_suspect_lets_others_in(connection: db.Connection) -> None:
    suspect(connection)
    [claimed] = db.run(connection, store.claim_suspect(BERT, tasks=[TASK]))
    assert not db.run(connection, store.let_others_in(ANNA, claimed.token))
    assert [job.alone_s for job in db.run(connection, store.held_attempts(BERT))] == [5.0]
    assert db.run(connection, store.let_others_in(BERT, claimed.token))
    assert [job.alone_s for job in db.run(connection, store.held_attempts(BERT))] == [0.0]


def test_suspects_are_claimed_one_at_a_time_the_oldest_first(connection: db.Connection) -> None:
    older = suspect(connection)
    set_now(connection, NOW + timedelta(seconds=1))
    newer = suspect(connection)
    claims = [db.run(connection, store.claim_suspect(ANNA, tasks=[TASK])) for _ in range(3)]
    assert [[claimed.id for claimed in claimed] for claimed in claims] == [[older], [newer], []]


def test_a_suspect_is_for_workers_that_have_its_task_and_queue(connection: db.Connection) -> None:
    suspect(connection)
    before = contents(connection)
    assert db.run(connection, store.claim_suspect(ANNA, tasks=["other"])) == []
    assert db.run(connection, store.claim_suspect(ANNA, tasks=[TASK], queues=["slow"])) == []
    db.run(connection, store.pause_queue("default"))
    assert db.run(connection, store.claim_suspect(ANNA, tasks=[TASK])) == []
    assert contents(connection) == before
    db.run(connection, store.resume_queue("default"))
    assert len(db.run(connection, store.claim_suspect(ANNA, tasks=[TASK], queues=["default"]))) == 1


# Quarantine by a limit that was lowered.


def test_a_job_over_a_lowered_limit_is_quarantined_instead_of_started(connection: db.Connection) -> None:
    killer, healthy = bring(connection, Place.RETRYABLE).job, make(connection)
    set_now(connection, TOMORROW)
    register_task(connection, max_crashes=1)
    assert [claimed.id for claimed in claim(connection, limit=2)] == [healthy]
    assert hold_of(connection, killer) == ("quarantined", "killed its process once (max_crashes = 1)")
    assert counters(connection, killer) == (0, 1, 0)


def test_a_job_over_a_lowered_limit_that_a_lock_keeps_from_quarantine_holds_up_no_claim(
    connection: db.Connection, connect: Connect
) -> None:
    killer, healthy = bring(connection, Place.RETRYABLE).job, make(connection)
    make(connection, links=wire.encode({"after": [str(killer)]}))
    set_now(connection, TOMORROW)
    register_task(connection, max_crashes=1)
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.held for update")
        connection.execute("set lock_timeout = '100ms'")
        assert [claimed.id for claimed in claim(connection, limit=2)] == [healthy]
    assert row_of(connection, killer)["crashes"] == 1
    set_now(connection, TOMORROW, later_s=10)
    assert claim(connection) == []
    assert state_of(connection, killer) is State.QUARANTINED


def test_the_reaper_quarantines_jobs_over_a_lowered_limit(connection: db.Connection) -> None:
    killer, failing = bring(connection, Place.RETRYABLE).job, bring(connection, Place.RUNNING)
    fire(connection, "fail", failing)
    assert db.run(connection, store.quarantine_killers()) == []
    register_task(connection, max_crashes=1)
    assert db.run(connection, store.quarantine_killers()) == [killer]
    assert db.run(connection, store.quarantine_killers()) == []
    assert state_of(connection, killer) is State.QUARANTINED
    assert state_of(connection, failing.job) is State.RETRYABLE


def test_release_forgets_crashes_and_losses_and_retry_forgets_all(connection: db.Connection) -> None:
    job = make(connection, options={"max_crashes": 1})
    for event in ("fail", "crash"):
        [claimed] = claim(connection, limit=1)
        end_by(connection, ANNA, claimed.token, event, after_s=0.0)
    assert counters(connection, job) == (1, 1, 0)
    db.run(connection, store.release([job]))
    assert counters(connection, job) == (1, 0, 0)
    assert state_of(connection, job) is State.RETRYABLE
    db.run(connection, store.retry([job]))
    assert counters(connection, job) == (0, 0, 0)
    [claimed] = claim(connection, limit=1)
    assert claimed.attempt == 3


# What is kept.


@pytest.mark.parametrize("event", [event for event in ENDS if event != "succeed"])
def test_the_evidence_of_an_attempt_is_kept(connection: db.Connection, event: str) -> None:
    scene = bring(connection, Place.RUNNING)
    evidence: dict[str, Any] = {
        "error": "what happened",
        "exit_code": -11,
        "peak_memory_bytes": 5_000_000_000,
        "cpu_s": 1.25,
        "output": "the last words",
        "stack": "where it was",
    }
    end_by(connection, ANNA, scene.token, event, **evidence)
    [attempt] = db.run(connection, store.list_attempts(scene.job))
    assert {name: getattr(attempt, name) for name in evidence} == evidence
    assert attempt.outcome == ENDS[event]["outcome"]
    assert attempt.signal == ENDS[event].get("signal")
    assert attempt.worker == str(ANNA)


def test_the_result_of_a_success_is_kept(connection: db.Connection) -> None:
    scene = bring(connection, Place.RUNNING)
    end_by(connection, ANNA, scene.token, "succeed", result=b'{"a": [1, "\xc3\xa4"]}', output="hello", cpu_s=0.5)
    [attempt] = db.run(connection, store.list_attempts(scene.job))
    assert attempt.result is not None
    assert bytes(attempt.result) == b'{"a": [1, "\xc3\xa4"]}'
    assert (attempt.output, attempt.cpu_s, attempt.error) == ("hello", 0.5, None)


def test_each_attempt_of_a_batch_gets_its_own_evidence(connection: db.Connection) -> None:
    jobs = [make(connection) for _ in range(6)]
    claimed = claim(connection, limit=6)
    outcomes = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUCCEEDED, Outcome.CRASHED, Outcome.RELEASED, Outcome.FAILED]
    ends = [
        Ended(one.token, outcome=outcome, output=f"output of {one.id}", result=f'"{one.id}"'.encode())
        for one, outcome in zip(claimed, outcomes, strict=True)
    ]
    stale = Ended(claimed[-1].token + 1000)
    turn = db.run(connection, store.end_and_claim(ANNA, [*reversed(ends), stale]))
    assert turn.stale == [stale.token]
    for job in jobs:
        [attempt] = db.run(connection, store.list_attempts(job))
        assert attempt.outcome is outcomes[[one.id for one in claimed].index(job)]
        assert attempt.output == f"output of {job}"
        assert attempt.result is not None
        assert bytes(attempt.result) == f'"{job}"'.encode()


@pytest.mark.parametrize("event", ["succeed", "complete", "stop", "final", "cancel"])
def test_a_finished_job_frees_its_dedupe_key(connection: db.Connection, event: str) -> None:
    scene = bring(connection, Place.RUNNING, dedupe_key="k")
    assert make(connection, dedupe_key="k") == scene.job
    match event:
        case "complete":
            complete(connection, ANNA, scene.token)
        case "final":
            end_by(connection, ANNA, scene.token, "fail", final=True)
        case "cancel":
            fire(connection, "hand_back", scene)
            fire(connection, "cancel", scene)
        case _:
            fire(connection, event, scene)
    assert make(connection, dedupe_key="k") != scene.job


@pytest.mark.parametrize("place", [Place.QUARANTINED, Place.BLOCKED, Place.SUSPECT, Place.RETRYABLE])
def test_a_job_that_waits_for_something_keeps_its_dedupe_key(connection: db.Connection, place: Place) -> None:
    scene = bring(connection, place, dedupe_key="k")
    assert make(connection, dedupe_key="k") == scene.job
