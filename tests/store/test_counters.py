"""The ends of attempts: each outcome in the table, each limit, and the life of a suspect."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from outlive import store, wire
from outlive.model import Claimed, Ended
from outlive.states import Outcome, State
from tests.driving.making import TASK, Queue
from tests.store.acting import ANNA, BERT, ENDS, NOW, TOMORROW, Place, Scene, bring, contents, end_by, fire, give_up
from tests.store.noon import database_url, fresh_at_noon

__all__ = ["database_url", "fresh_at_noon"]

FAILURES = ("fail", "time_out", "exhaust")
CRASHES = ("overrun", "crash")


def ready_in_s(queue: Queue, job: UUID) -> float:
    ready_at: datetime = queue.row_of(job)["ready_at"]
    return (ready_at - NOW).total_seconds()


def lose(queue: Queue, worker: UUID = ANNA) -> Claimed:
    """Let a worker claim the job and vanish with it."""
    [claimed] = queue.claim(worker=worker, limit=1, lease_s=-1.0)
    [lost] = queue.run(store.expire())
    assert lost.token == claimed.token
    return claimed


@pytest.mark.parametrize("last", ["parse#17", "mail", None])
def test_a_quarantined_job_names_the_step_in_which_it_was_killed_each_time(queue, last):
    job = queue.make()
    queue.set_now(NOW)
    for step in ("parse#17", "parse#17", last):
        where = "" if step is None else f" in the step {step}"
        error = f"the process was killed by SIGSEGV{where}: parsing, in the step parse#17"
        queue.end(Ended(queue.claim_job(job).token, Outcome.CRASHED, error=error, killed=True, after_s=0.0))
    where = " in the step parse#17" if last == "parse#17" else ""
    assert queue.hold_of(job) == ("quarantined", f"killed its process 3 times{where} (max_crashes = 3)")


def lose_alone(queue: Queue, worker: UUID = ANNA) -> Claimed:
    [claimed] = queue.run(store.claim_suspect(worker, tasks=[TASK], lease_s=-1.0))
    [lost] = queue.run(store.expire())
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
def test_an_outcome_counts_as_the_table_says(queue, event, state, counted):
    scene = bring(queue, Place.RUNNING)
    queue.set_now(TOMORROW)
    fire(queue, event, scene)
    assert queue.state_of(scene.job) is state
    assert queue.counters(scene.job) == counted
    [attempt] = queue.run(store.list_attempts(scene.job))
    assert attempt.outcome == ENDS.get(event, {"outcome": Outcome.LOST})["outcome"]
    assert attempt.ended_at == TOMORROW
    assert attempt.started_at == NOW


@pytest.mark.parametrize("event", CRASHES)
def test_crashes_end_in_quarantine_with_the_reason(queue, event):
    job = queue.make()
    for n in range(1, 4):
        [claimed] = queue.claim(limit=1)
        end_by(queue, ANNA, claimed.token, event, after_s=0.0)
        assert queue.state_of(job) is (State.QUARANTINED if n == 3 else State.RETRYABLE)
    assert queue.counters(job) == (0, 3, 0)
    assert queue.hold_of(job) == ("quarantined", "killed its process 3 times (max_crashes = 3)")
    assert queue.claim(limit=1) == []
    [killer] = queue.run(store.list_killers())
    assert (killer["id"], killer["crashes"], killer["signal"]) == (job, 3, ENDS[event]["signal"])


# Limits: a job's options, then its task's row, then the defaults.

LIMITS = [
    ("fail", "max_attempts", {"max_attempts": 2}, {}, 2),
    ("fail", "max_attempts", {"max_attempts": 2}, {"max_attempts": 3}, 3),
    ("fail", "max_attempts", None, {"max_attempts": 1}, 1),
    *((event, "max_attempts", None, {}, 5) for event in FAILURES),
    ("crash", "max_crashes", {"max_crashes": 2}, {}, 2),
    ("crash", "max_crashes", {"max_crashes": 2}, {"max_crashes": 4}, 4),
    ("crash", "max_crashes", None, {"max_crashes": 1}, 1),
]


@pytest.mark.parametrize(("event", "limit", "task", "job", "expected"), LIMITS)
def test_a_limit_is_the_jobs_then_its_tasks_then_the_default(queue, event, limit, task, job, expected):
    if task is not None:
        queue.register_task(**task)
    id = queue.make(options=job)
    for n in range(1, expected + 1):
        assert queue.state_of(id) is (State.PENDING if n == 1 else State.RETRYABLE)
        [claimed] = queue.claim(limit=1)
        end_by(queue, ANNA, claimed.token, event, after_s=0.0)
    assert queue.state_of(id) is (State.QUARANTINED if event == "crash" else State.FAILED)


LOSSES = [
    ({"max_losses": 2}, {}, 2),
    ({"max_losses": 2}, {"max_losses": 4}, 4),
    (None, {"max_losses": 1}, 1),
    (None, {}, 3),
    ({"max_losses": None}, {"max_losses": 2}, 2),
]


@pytest.mark.parametrize(("task", "job", "expected"), LOSSES)
def test_a_job_is_a_suspect_before_its_last_loss_and_quarantined_after_two_alone(queue, task, job, expected):
    if task is not None:
        queue.register_task(**task)
    id = queue.make(options=job)
    for n in range(1, expected):
        lose(queue)
        held = queue.hold_of(id)
        assert (held and held[0]) == ("suspect" if n == expected - 1 else None)
        assert queue.state_of(id) is State.PENDING
    if expected > 1:
        assert queue.claim(limit=1) == []
        lose_alone(queue)
        assert (queue.hold_of(id) or ("",))[0] == "suspect"
        lose_alone(queue)
    else:
        lose(queue)
    assert queue.state_of(id) is State.QUARANTINED
    held = queue.hold_of(id)
    assert held is not None
    assert held[0] == "quarantined"
    assert f"max_losses = {expected}" in held[1]
    assert queue.counters(id) == (0, 0, expected + 1 if expected > 1 else 1)


@pytest.mark.parametrize(("task", "job"), [({"max_losses": None}, {}), (None, {"max_losses": None})])
def test_without_a_limit_of_losses_no_job_is_a_suspect(queue, task, job):
    queue.register_task(**(task or {}))
    id = queue.make(options=job)
    for _ in range(10):
        lose(queue)
    assert queue.state_of(id) is State.PENDING
    assert queue.hold_of(id) is None
    assert queue.counters(id) == (0, 0, 10)


@pytest.mark.parametrize("by", ["task", "job"])
def test_a_lost_job_fails_when_its_policy_says_so(queue, by):
    if by == "task":
        queue.register_task(on_worker_death="fail")
    job = queue.make(options={"on_worker_death": "fail"} if by == "job" else None, dedupe_key="k")
    lose(queue)
    assert queue.state_of(job) is State.FAILED
    [attempt] = queue.run(store.list_attempts(job))
    assert (attempt.outcome, attempt.error) == (Outcome.LOST, "its lease expired")
    assert queue.make(dedupe_key="k") != job


def test_an_outcome_that_the_verdict_does_not_know_is_refused(queue):
    """It must not be retried at no cost, and so forever."""
    queue.make()
    queue.claim()
    asked = "select state from outlive.running r, outlive.verdict(r, %s, false, false, null, 0)"
    assert queue.execute(asked, ["released"]).fetchall() == [("pending",)]
    with pytest.raises(psycopg.errors.RaiseException, match="no verdict for the outcome vaporised"):
        queue.execute(asked, ["vaporised"])


BAD_OPTIONS = [
    *({"max_crashes": "many"}, {"max_attempts": 1.5}, {"max_attempts": 0}, {"max_losses": -1}, {"max_losses": 30001}),
    *({"max_crashes": True}, {"on_worker_death": "cry"}, {"on_worker_death": 1}),
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_a_limit_that_makes_no_sense_is_refused_at_enqueue(queue, options):
    before = contents(queue)
    with pytest.raises(psycopg.Error) as raised:
        queue.make(options=options)
    assert raised.value.sqlstate == "OL003"
    assert contents(queue) == before


def test_a_counter_at_the_end_of_its_range_stops_no_reaper(queue):
    queue.register_task(max_losses=None)
    job, other = queue.make(), queue.make()
    queue.execute("update outlive.waiting set losses = 32767 where id = %s", [job])
    queue.claim(limit=2, lease_s=-1.0)
    assert {lost.id for lost in queue.run(store.expire())} == {job, other}
    assert queue.counters(job) == (0, 0, 32767)


# When it may run again.


@pytest.mark.parametrize("event", [*FAILURES, *CRASHES, "hand_back"])
def test_a_delay_that_was_said_is_kept_exactly(queue, event):
    scene = bring(queue, Place.RUNNING)
    end_by(queue, ANNA, scene.token, event, after_s=12.5)
    assert ready_in_s(queue, scene.job) == 12.5


@pytest.mark.parametrize("event", ["hand_back", "expire"])
def test_a_job_that_did_nothing_wrong_keeps_its_place_in_the_line(queue, event):
    first = queue.make(run_at=NOW - timedelta(hours=1))
    queue.make()
    [claimed] = queue.claim(limit=1)
    assert claimed.id == first
    queue.set_now(TOMORROW)
    fire(queue, event, Scene(first, ANNA, claimed.token))
    assert queue.row_of(first)["ready_at"] == NOW - timedelta(hours=1)
    assert [again.id for again in queue.claim(worker=BERT, limit=1)] == [first]


# Suspects.


def suspect(connection: Queue, **wanted: Any) -> UUID:
    job = connection.make(**wanted)
    lose(connection)
    lose(connection)
    assert connection.hold_of(job) == (
        "suspect",
        "2 workers vanished while running it: it runs alone next (max_losses = 3)",
    )
    return job


@pytest.mark.parametrize("event", [*FAILURES, *CRASHES])
def test_a_suspect_that_ends_by_itself_is_cleared(queue, event):
    job = suspect(queue)
    [claimed] = queue.run(store.claim_suspect(BERT, tasks=[TASK]))
    assert (claimed.id, claimed.losses, claimed.attempt) == (job, 2, 3)
    end_by(queue, BERT, claimed.token, event, after_s=0.0)
    assert queue.counters(job)[2] == 0
    assert [again.id for again in queue.claim(limit=1)] == [job]


def let_in(queue: Queue, worker: UUID, *, lease_s: float = 300.0) -> Claimed:
    """Start a suspect that outlives its time alone, so that other jobs may run beside it."""
    [claimed] = queue.run(store.claim_suspect(worker, tasks=[TASK], lease_s=lease_s))
    assert queue.run(store.end_time_alone(worker, claimed.token))
    return claimed


def test_a_suspect_lost_beside_others_stays_one_until_twice_its_limit(queue):
    """A neighbour may be to blame, but a killer that waits for company is caught in the end."""
    job = suspect(queue)
    for losses, waits_s in [(3, 0), (4, 15), (5, 30)]:
        lose_let_in(queue, job)
        said = f"{losses} workers vanished while running it: it runs alone next (max_losses = 3)"
        assert queue.hold_of(job) == ("suspect", said)
        wait_out(queue, waits_s)
    lose_let_in(queue, job)
    said = "6 workers vanished while running it; no other worker vanished meanwhile: a guess (max_losses = 3)"
    assert queue.hold_of(job) == ("quarantined", said)


def test_a_suspect_lost_beside_others_is_proven_by_two_losses_alone(queue):
    job = suspect(queue)
    lose_let_in(queue, job)
    lose_alone(queue)
    assert (queue.hold_of(job) or ("",))[0] == "suspect"
    wait_out(queue, 15)
    lose_alone(queue)
    known = "5 workers vanished while running it, twice with nothing beside it; no other worker vanished meanwhile"
    assert queue.hold_of(job) == ("quarantined", f"{known}: proven (max_losses = 3)")


def lose_let_in(queue: Queue, job: UUID) -> None:
    let_in(queue, BERT, lease_s=-1.0)
    fire(queue, "expire", Scene(job))


def wait_out(queue: Queue, waits_s: float) -> None:
    """Let the time pass that a suspect waits after another loss, and see that it does."""
    if waits_s:
        assert queue.run(store.claim_suspect(BERT, tasks=[TASK])) == []
        now = queue.value("select outlive.now()")
        queue.set_now(now + timedelta(seconds=waits_s))


def die_elsewhere(queue: Queue, number: int) -> None:
    """Let another worker die, in which the suspect did not run."""
    worker = UUID(int=1000 + number)
    queue.register_worker(worker)
    give_up(queue, worker)


def test_a_storm_of_worker_deaths_convicts_no_suspect(queue):
    """FAULTS 71. For each loss of the suspect another worker dies without it: neither two losses alone nor twice its
    limit is proof. It waits longer and longer for the storm to pass."""
    job = suspect(queue)
    waits_s = [0, *(15 * 2**n for n in range(8))]
    for losses, wait_s in zip(range(3, 12), waits_s, strict=True):
        die_elsewhere(queue, losses)
        lose_alone(queue)
        assert (queue.state_of(job), queue.counters(job)) == (State.PENDING, (0, 0, losses))
        wait_out(queue, wait_s)
    [claimed] = queue.run(store.claim_suspect(BERT, tasks=[TASK]))
    end_by(queue, BERT, claimed.token, "fail")
    assert queue.counters(job) == (1, 0, 0), "the storm has passed"


def test_a_killer_is_convicted_also_in_a_storm_at_four_times_its_limit(queue):
    job = suspect(queue)
    for losses in range(3, 13):
        assert queue.state_of(job) is State.PENDING
        die_elsewhere(queue, losses)
        queue.set_now(queue.value("select outlive.now()") + timedelta(hours=2))
        lose_alone(queue)
    known = "12 workers vanished while running it, 10 times with nothing beside it; 10 others vanished without it"
    assert queue.hold_of(job) == ("quarantined", f"{known}: a guess (max_losses = 3)")


def test_one_death_elsewhere_only_postpones_the_proof(queue):
    job = suspect(queue)
    die_elsewhere(queue, 1)
    for waits_s in (0, 15):
        lose_alone(queue)
        assert queue.state_of(job) is State.PENDING
        wait_out(queue, waits_s)
    lose_alone(queue)
    known = "5 workers vanished while running it, 3 times with nothing beside it; one other vanished without it"
    assert queue.hold_of(job) == ("quarantined", f"{known}: proven (max_losses = 3)")


def test_the_death_of_a_worker_that_once_gave_the_job_back_speaks_for_it(queue):
    once = queue.register_worker(UUID(int=3000))
    job = suspect(queue)
    [claimed] = queue.run(store.claim_suspect(once, tasks=[TASK]))
    end_by(queue, once, claimed.token, "hand_back")
    give_up(queue, once)
    lose_alone(queue)
    lose_alone(queue)
    assert queue.state_of(job) is State.PENDING, "another worker died without it"


def test_deaths_that_say_nothing_about_a_suspect_do_not_help_it(queue):
    """A worker that was told to stop, one that died before the first loss, and those in which it ran."""
    die_elsewhere(queue, 1)
    queue.set_now(queue.value("select outlive.now()") + timedelta(seconds=1))
    job = suspect(queue)
    queue.register_worker(UUID(int=2000))
    queue.run(store.heartbeat(UUID(int=2000), "draining"))
    give_up(queue, UUID(int=2000))
    for number in (2001, 2002):
        queue.register_worker(UUID(int=number))
        lose_alone(queue, UUID(int=number))
        give_up(queue, UUID(int=number))
    known = "4 workers vanished while running it, twice with nothing beside it; no other worker vanished meanwhile"
    assert queue.hold_of(job) == ("quarantined", f"{known}: proven (max_losses = 3)")


@pytest.mark.parametrize(("lasted_s", "alone_s"), [(0.5, 5.0), (2.5, 5.0), (10.0, 20.0), (30.0, 60.0), (3600.0, 60.0)])
def test_a_suspect_is_alone_for_twice_its_longest_lost_attempt_within_bounds(queue, lasted_s, alone_s):
    suspect(queue)
    longest = "update outlive.attempts set started_at = ended_at - %s * interval '1 second' where attempt = 1"
    queue.execute(longest, [lasted_s])
    [claimed] = queue.run(store.claim_suspect(BERT, tasks=[TASK]))
    assert claimed.alone_s == alone_s
    assert [job.alone_s for job in queue.run(store.held_attempts(BERT))] == [alone_s]


def test_only_the_worker_that_has_a_suspect_lets_others_in(queue):
    suspect(queue)
    [claimed] = queue.run(store.claim_suspect(BERT, tasks=[TASK]))
    assert not queue.run(store.end_time_alone(ANNA, claimed.token))
    assert [job.alone_s for job in queue.run(store.held_attempts(BERT))] == [5.0]
    assert queue.run(store.end_time_alone(BERT, claimed.token))
    assert [job.alone_s for job in queue.run(store.held_attempts(BERT))] == [0.0]


def test_suspects_are_claimed_one_at_a_time_the_oldest_first(queue):
    older = suspect(queue)
    queue.set_now(NOW + timedelta(seconds=1))
    newer = suspect(queue)
    claims = [queue.run(store.claim_suspect(ANNA, tasks=[TASK])) for _ in range(3)]
    assert [[claimed.id for claimed in claimed] for claimed in claims] == [[older], [newer], []]


def test_a_suspect_is_for_workers_that_have_its_task_and_queue(queue):
    suspect(queue)
    before = contents(queue)
    assert queue.run(store.claim_suspect(ANNA, tasks=["other"])) == []
    assert queue.run(store.claim_suspect(ANNA, tasks=[TASK], queues=["slow"])) == []
    queue.run(store.pause_queue("default"))
    assert queue.run(store.claim_suspect(ANNA, tasks=[TASK])) == []
    assert contents(queue) == before
    queue.run(store.resume_queue("default"))
    assert len(queue.run(store.claim_suspect(ANNA, tasks=[TASK], queues=["default"]))) == 1


# Quarantine by a limit that was lowered.


def test_a_job_over_a_lowered_limit_that_a_lock_keeps_from_quarantine_holds_up_no_claim(queue, connect):
    killer, healthy = bring(queue, Place.RETRYABLE).job, queue.make()
    queue.make(links=wire.encode({"after": [str(killer)]}))
    queue.set_now(TOMORROW)
    queue.register_task(max_crashes=1)
    stranger = connect()
    with stranger.transaction():
        stranger.execute("select from outlive.held for update")
        queue.execute("set lock_timeout = '100ms'")
        assert [claimed.id for claimed in queue.claim(limit=2)] == [healthy]
    assert queue.row_of(killer)["crashes"] == 1
    queue.set_now(TOMORROW, later_s=10)
    assert queue.claim() == []
    assert queue.state_of(killer) is State.QUARANTINED


def test_release_forgets_crashes_and_losses_and_retry_forgets_all(queue):
    job = queue.make(options={"max_crashes": 1})
    for event in ("fail", "crash"):
        [claimed] = queue.claim(limit=1)
        end_by(queue, ANNA, claimed.token, event, after_s=0.0)
    assert queue.counters(job) == (1, 1, 0)
    queue.run(store.release([job]))
    assert queue.counters(job) == (1, 0, 0)
    assert queue.state_of(job) is State.RETRYABLE
    queue.run(store.retry([job]))
    assert queue.counters(job) == (0, 0, 0)
    [claimed] = queue.claim(limit=1)
    assert claimed.attempt == 3


# What is kept.


@pytest.mark.parametrize("event", [event for event in ENDS if event != "succeed"])
def test_the_evidence_of_an_attempt_is_kept(queue, event):
    scene = bring(queue, Place.RUNNING)
    evidence: dict[str, Any] = {
        "error": "what happened",
        "exit_code": -11,
        "peak_memory_bytes": 5_000_000_000,
        "cpu_s": 1.25,
        "output": "the last words",
        "stack": "where it was",
    }
    end_by(queue, ANNA, scene.token, event, **evidence)
    [attempt] = queue.run(store.list_attempts(scene.job))
    assert {name: getattr(attempt, name) for name in evidence} == evidence
    assert attempt.outcome == ENDS[event]["outcome"]
    assert attempt.signal == ENDS[event].get("signal")
    assert attempt.worker == str(ANNA)


def test_each_attempt_of_a_batch_gets_its_own_evidence(queue):
    jobs = [queue.make() for _ in range(6)]
    claimed = queue.claim(limit=6)
    outcomes = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUCCEEDED, Outcome.CRASHED, Outcome.RELEASED, Outcome.FAILED]
    ends = [
        Ended(one.token, outcome=outcome, output=f"output of {one.id}", result=f'"{one.id}"'.encode())
        for one, outcome in zip(claimed, outcomes, strict=True)
    ]
    stale = Ended(claimed[-1].token + 1000)
    turn = queue.run(store.end_and_claim(ANNA, [*reversed(ends), stale]))
    assert turn.refused == [stale.token]
    for job in jobs:
        [attempt] = queue.run(store.list_attempts(job))
        assert attempt.outcome is outcomes[[one.id for one in claimed].index(job)]
        assert attempt.output == f"output of {job}"
        assert attempt.result is not None
        assert bytes(attempt.result) == f'"{job}"'.encode()
