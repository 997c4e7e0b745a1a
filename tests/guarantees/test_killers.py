"""Jobs that kill."""

import os
import signal
from collections.abc import Callable
from typing import Any, cast

import psycopg
import pytest

from outlive import App, Job, JobFailed, State, store
from outlive.client.task import Task
from outlive.humanize import short_id
from outlive.states import Outcome
from tests import faults
from tests.driving.commands import Cli
from tests.driving.hand import Hand
from tests.driving.jobs import attempts, begun, finished, hook_calls, hook_into, outcomes
from tests.driving.making import NOON, Queue
from tests.driving.workers import Worker, alive
from tests.waiting import eventually

AddTask = Task[[int, int], int, int]
TRACKING = ("waiting", "running", "held", "dedupe_keys")


def left_behind(hand: Hand) -> dict[str, int]:
    return {table: len(hand.rows(f"table outlive.{table}")) for table in TRACKING}


def test_the_attempt_is_committed_before_the_job_can_start(task, new_hand):
    worker, observer = new_hand(), new_hand()
    job = task.enqueue(1, 2)
    (claimed,) = worker.claim()
    seen = observer.rows("select id, attempt, token, worker from outlive.running")
    assert seen == [(job.id, 1, claimed.token, worker.id)]


def test_the_trace_outlives_a_transaction_of_the_job_that_is_rolled_back(task, hand, database_url):
    job = task.enqueue(1, 2)
    (claimed,) = hand.claim()
    with psycopg.connect(database_url) as own:
        own.execute("select outlive.complete_with_records(%s, %s, '3')", [claimed.token, hand.id])
        own.rollback()
    assert job.status() is State.RUNNING
    assert hand.end(claimed, Outcome.CRASHED, signal="SIGSEGV")
    assert hand.rows("select job_id, attempt, outcome, signal from outlive.attempts") == [
        (job.id, 1, "crashed", "SIGSEGV")
    ]


def test_a_clean_end_leaves_no_tracking_behind(task, hand, database_url):
    job = task.using(dedupe_key="page 1").enqueue(1, 2)
    hand.run(result=b"3")
    assert job.result(timeout=0) == 3
    assert left_behind(hand) == dict.fromkeys(TRACKING, 0)
    job = task.using(dedupe_key="page 1").enqueue(1, 2)
    (claimed,) = hand.claim()
    with psycopg.connect(database_url) as own:
        own.execute("select outlive.complete_with_records(%s, %s, '3')", [claimed.token, hand.id])
    assert job.result(timeout=0) == 3
    assert left_behind(hand) == dict.fromkeys(TRACKING, 0)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY])
def test_a_handled_exception_is_a_failure_never_a_crash(task, hand, outcome):
    job = task.using(max_attempts=4, max_crashes=1).enqueue(1, 2)
    hand.at(NOON)
    for _ in range(4):
        hand.run(outcome, error="it raised", after_s=0)
    assert job.status() is State.FAILED
    assert hand.rows("select failures, crashes from outlive.job_states") == [(4, 0)]
    assert hand.value("select count(*) from outlive.killers") == 0


def crashed_twice(task: AddTask, hand: Hand) -> None:
    """Make a job that has crashed twice, of three times that are allowed."""
    task.enqueue(1, 2)
    hand.at(NOON)
    for _ in range(2):
        hand.run(Outcome.CRASHED, signal="SIGSEGV", after_s=0)


def test_the_check_runs_in_the_reaper_and_when_a_worker_starts(app, hand):
    crashed_twice(app.task(faults.add.function), hand)
    assert hand.connection.run(store.quarantine_killers()) == []
    hand.knows(App().task(max_crashes=2)(faults.add.function))
    (caught,) = hand.connection.run(store.quarantine_killers())
    assert hand.value("select status from outlive.job_states where id = %s", caught) == "quarantined"


def test_the_check_runs_when_a_job_is_claimed(app, hand):
    crashed_twice(app.task(faults.add.function), hand)
    hand.knows(App().task(max_crashes=2)(faults.add.function))
    assert hand.claim() == []
    assert hand.rows("select crashes, details from outlive.killers") == [
        (2, "killed its process 2 times (max_crashes = 2)")
    ]


def test_killers_are_listed_with_the_evidence(task, hand):
    job = task.enqueue(1, 2)
    hand.at(NOON)
    for page in (1, 2, 3):
        hand.run(
            Outcome.CRASHED,
            signal="SIGSEGV",
            error="killed by SIGSEGV",
            peak_memory_bytes=9,
            output=f"page {page}",
            stack="in parse",
            after_s=0,
        )
    (killer,) = hand.connection.run(store.list_killers())
    expected = {
        "id": job.id,
        "crashes": 3,
        "attempt": 3,
        "signal": "SIGSEGV",
        "error_message": "killed by SIGSEGV",
        "peak_memory_bytes": 9,
        "output": "page 3",
        "stack": "in parse",
        "killed_on": str(hand.id),
        "last_kill_at": NOON,
    }
    assert {name: killer[name] for name in expected} == expected
    with pytest.raises(JobFailed, match="is quarantined: killed by SIGSEGV"):
        job.result(timeout=0)


def test_release_frees_a_killer_and_resets_its_crash_count(task, hand):
    job = task.using(max_crashes=1).enqueue(1, 2)
    hand.run(Outcome.CRASHED, signal="SIGSEGV")
    (change,) = hand.connection.run(store.release([job.id]))
    assert (change.changed, job.status()) == (True, State.PENDING)
    (claimed,) = hand.claim()
    assert (claimed.attempt, claimed.crashes) == (2, 0)


def test_a_killer_leaves_a_durable_trace(start, queue):
    start(name="crawler-1")
    segfault = faults.segfault.using(max_crashes=1).enqueue()
    killed = faults.die_by.using(max_crashes=1).enqueue("SIGKILL")
    eater = faults.eat_memory.enqueue()
    traces = []
    for job in (segfault, killed, eater):
        finished(job, State.QUARANTINED)
        (trace,) = attempts(queue, job)
        assert (trace.attempt, trace.worker) == (1, "crawler-1")
        assert trace.started_at
        assert trace.started_at < trace.ended_at
        assert trace.peak_memory_bytes
        traces.append((trace.outcome, trace.signal))
    assert traces == [(Outcome.CRASHED, "SIGSEGV"), (Outcome.CRASHED, "SIGKILL"), (Outcome.OUT_OF_MEMORY, "SIGKILL")]
    (trace,) = attempts(queue, segfault)
    assert "the last words before the segfault" in (trace.output or "")
    assert "in segfault" in (trace.stack or "")
    assert (trace.error or "").startswith("the process was killed by SIGSEGV")
    assert (trace.error or "").endswith(": the last words before the segfault")


def test_a_killer_is_quarantined_after_max_crashes_until_a_person_releases_it(start, queue):
    start()
    by_default = [faults.die_by.enqueue(name) for name in ("SIGSEGV", "SIGTERM", "SIGINT")]
    its_own = faults.die_by.using(max_crashes=2).enqueue("SIGKILL")
    its_tasks = faults.eat_memory.enqueue()
    for job, limit in [*((job, 3) for job in by_default), (its_own, 2), (its_tasks, 1)]:
        finished(job, State.QUARANTINED)
        assert queue.counters(job.id) == (0, limit, 0)
        assert len(attempts(queue, job)) == limit
    queue.run(store.release([its_own.id]))
    eventually(lambda: len(attempts(queue, its_own)) == 4 and its_own.status() is State.QUARANTINED)


def test_killers_take_down_neither_the_worker_nor_any_other_job(start, queue):
    worker = start()
    killers = faults.app.enqueue_many(
        job
        for _ in range(3)
        for job in (faults.die_by.job("SIGSEGV"), faults.die_by.job("SIGKILL"), faults.exit_with.job(9))
    )
    healthy = faults.app.enqueue_many(faults.add.job(n, n) for n in range(100))
    warm = faults.app.enqueue_many(faults.warm.job(n) for n in range(100))
    assert [job.result(timeout=30) for job in healthy] == [2 * n for n in range(100)]
    for one in (*healthy, *warm):
        finished(one, State.SUCCEEDED)
    for killer in killers:
        finished(killer, State.QUARANTINED)
    # On a busy machine a job that was given ahead may come back, at no cost.
    ends = "select state, count(*) from outlive.attempts where outcome <> 'released' group by 1"
    found = queue.execute(ends).fetchall()
    assert dict(found) == {"quarantined": 9, "retryable": 18, "succeeded": 200}
    assert worker.process.poll() is None


@pytest.fixture
def effects(queue: Queue) -> Callable[[], list[str]]:
    """A table for the effects of jobs; returns them."""
    queue.execute("create table effects (what text)")
    return lambda: sorted(what for (what,) in queue.execute("table effects").fetchall())


def test_effects_and_completion_commit_together_or_not_at_all(start, queue, database_url, effects):
    start()
    paid, undone, raised, died = (
        faults.pay.enqueue(database_url, how) for how in ("commit", "roll back", "raise", "die")
    )
    assert cast("object", paid.result(timeout=20)) == {"paid": "commit"}
    finished(undone, State.FAILED)
    finished(raised, State.FAILED)
    finished(died, State.QUARANTINED)
    assert effects() == ["commit"]
    traces = [(trace.outcome, trace.signal) for job in (paid, undone, raised, died) for trace in attempts(queue, job)]
    failed = (Outcome.FAILED, None)
    assert traces == [(Outcome.SUCCEEDED, None), failed, failed, (Outcome.CRASHED, "SIGKILL")]
    assert attempts(queue, raised)[0].error == "ValueError: after the completion"


def test_an_async_connection_is_awaited_or_refused_before_anything_is_written(start, queue, database_url, effects):
    start()
    paid, refused = (faults.pay_async.enqueue(database_url, verb) for verb in ("acomplete", "complete"))
    assert cast("object", paid.result(timeout=20)) == {"paid": "acomplete"}
    finished(refused, State.FAILED)
    assert effects() == ["acomplete"]
    (trace,) = attempts(queue, refused)
    assert "which is async: use `await context.acomplete(…)`" in str(trace.error)
    kept = eventually(lambda: attempts(queue, paid)[0].output, what="its output is written")
    assert kept == "paying\n"
    assert attempts(queue, paid)[0].peak_memory_bytes


def test_a_result_over_the_limit_fails_at_once_and_undoes_the_effects(start, queue, database_url, effects):
    start(max_result_bytes="1KB")
    job = faults.pay_too_much.enqueue(database_url, 2000)
    finished(job, State.FAILED)
    (trace,) = attempts(queue, job)
    assert "the result has 2,002 bytes, over the limit of 1,000" in str(trace.error)
    assert effects() == []


def test_a_transaction_that_outlasts_the_lease_is_not_torn_down(start, queue, database_url, effects):
    start(lease_s="2", sweep_s="0.5")
    job = faults.pay.enqueue(database_url, "commit", hold_s=3)
    assert cast("object", job.result(timeout=20)) == {"paid": "commit"}
    assert outcomes(queue, job) == [Outcome.SUCCEEDED]
    assert effects() == ["commit"]


# With workers that vanish


def alone(queue: Queue, job: Job[Any]) -> list[bool]:
    """Whether the job's running attempt has its worker to itself."""
    return [one for (one,) in queue.execute("select alone from outlive.running where id = %s", [job.id])]


def lose_workers_of(hand: Hand, job: Job[Any], times: int) -> None:
    """Lose the job's worker so many times, without real deaths."""
    for _ in range(times):
        assert [one.id for one in hand.claim()] == [job.id]
        hand.rows("update outlive.running set lease_until = '2000-01-01Z' returning id")
        assert [one.id for one in hand.connection.run(store.expire())] == [job.id]


def test_the_reaper_of_a_worker_quarantines(start, hand, tmp_path):
    """The limit is lowered while the job waits for a distant retry."""
    worker = start(sweep_s="0.3", on_quarantine=hook_into(tmp_path))
    later = faults.add.using(delay="1h").enqueue(1)
    hand.rows("update outlive.waiting set crashes = 2 where id = %s returning id", later.id)
    hand.rows("update outlive.tasks set max_crashes = 2 where name = %s returning name", "tests.faults.add")
    finished(later, State.QUARANTINED)
    words = f"Job {short_id(later.id)} is quarantined: killed its process 2 times (max_crashes = 2)"
    eventually(lambda: words in worker.log())
    eventually(lambda: str(later.id) in {one["id"] for one in hook_calls(tmp_path)})


def test_a_job_whose_workers_vanish_is_suspected_runs_alone_and_is_proven(start, hand, queue, tmp_path):
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    lose_workers_of(hand, job, 1)
    queue.execute("update outlive.attempts set started_at = ended_at - interval '30 seconds'")  # A minute alone.
    worker = start()
    begun(tmp_path / "go")
    assert (alone(queue, job), queue.counters(job.id)) == ([False], (0, 0, 1))
    worker.kill()
    worker = start(slots=1)
    begun(tmp_path / "go", times=2)
    assert (alone(queue, job), queue.counters(job.id)) == ([True], (0, 0, 2))
    others = [faults.add.enqueue(n, n) for n in range(3)]
    elsewhere = start(slots=1)
    assert [one.result(timeout=20) for one in others] == [0, 2, 4]
    assert {attempts(queue, one)[0].worker for one in others} == {name_of(elsewhere, queue)}
    worker.kill()
    begun(tmp_path / "go", times=3)
    assert (alone(queue, job), queue.counters(job.id)) == ([True], (0, 0, 3))
    elsewhere.kill()
    start()
    finished(job, State.QUARANTINED)
    known = "4 workers vanished while running it, twice with nothing beside it; no other worker vanished meanwhile"
    assert queue.hold_of(job.id) == ("quarantined", f"{known}: proven (max_losses = 3)")
    assert outcomes(queue, job) == [Outcome.LOST] * 4
    (killer,) = queue.run(store.list_killers())
    assert (killer["id"], killer["losses"], killer["crashes"], killer["error_message"]) == (
        job.id,
        4,
        0,
        "Worker died unexpectedly",
    )


def name_of(worker: Worker, queue: Queue) -> str:
    """The name under which a worker's attempts are listed."""
    ((name,),) = queue.execute("select name from outlive.workers where id = %s", [worker.id]).fetchall()
    return str(name)


def wait_for_heartbeats(queue: Queue, times: int) -> None:
    """Wait for so many heartbeats: the time that a worker needs to do what it would do at once."""
    seen: set[object] = set()

    def beat() -> bool:
        seen.update(queue.execute("select max(last_seen) from outlive.workers").fetchall())
        return len(seen) > times

    eventually(beat)


def test_a_bystander_is_cleared_and_finishes(start, hand, queue, tmp_path):
    """It has lost two workers. It survives alone in the third, while other jobs wait for that worker."""
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    lose_workers_of(hand, job, 2)
    assert queue.hold_of(job.id) == (
        "suspect",
        "2 workers vanished while running it: it runs alone next (max_losses = 3)",
    )
    assert job.status() is State.PENDING
    start(slots=4, heartbeat_s="0.2")
    begun(tmp_path / "go")
    assert alone(queue, job) == [True]
    other = faults.add.enqueue(1, 1)
    wait_for_heartbeats(queue, 6)
    assert other.status() is State.PENDING or alone(queue, job) == [False]
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"
    assert other.result(timeout=20) == 2


@pytest.mark.long
def test_other_jobs_run_beside_a_suspect_that_has_outlived_its_time_alone(start, hand, queue, tmp_path):
    """FAULTS 48. If its worker vanishes then, nothing is proven: it begins alone once more."""
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    lose_workers_of(hand, job, 2)
    worker = start(slots=4)
    begun(tmp_path / "go")
    assert alone(queue, job) == [True]
    others = [faults.add.enqueue(n, n) for n in range(3)]
    assert [one.result(timeout=30) for one in others] == [0, 2, 4]
    assert alone(queue, job) == [False]
    worker.kill()
    worker = start(slots=4)
    begun(tmp_path / "go", times=2)
    assert (alone(queue, job), queue.counters(job.id)) == ([True], (0, 0, 3))
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"


def test_a_suspect_holds_up_other_jobs_for_seconds_also_if_it_has_a_minute_alone(start, hand, queue, tmp_path):
    """FAULTS 74. It was lost after half a minute each time."""
    job = faults.wait_for.enqueue(str(tmp_path / "go"))
    lose_workers_of(hand, job, 2)
    queue.execute("update outlive.attempts set started_at = ended_at - interval '30 seconds'")
    start(slots=4)
    begun(tmp_path / "go")
    assert alone(queue, job) == [True]
    others = [faults.add.enqueue(n, n) for n in range(3)]
    assert [one.result(timeout=25) for one in others] == [0, 2, 4]
    assert alone(queue, job) == [False]
    (tmp_path / "go").touch()
    assert job.result(timeout=20) == "seen"


def test_a_worker_that_makes_room_holds_up_other_jobs_for_seconds(start, hand, queue, tmp_path):
    """FAULTS 74. The worker has free slots, and a job that goes on for longer than it could make room."""
    suspect = faults.add.enqueue(1)
    lose_workers_of(hand, suspect, 2)
    queue.run(store.pause_queue("default"))
    worker = start(slots=4, queues="busy,default")
    long = faults.wait_for.using(queue="busy").enqueue(str(tmp_path / "long"))
    begun(tmp_path / "long")
    queue.execute("update outlive.held set since = since - interval '61 seconds'")
    queue.run(store.resume_queue("default"))
    worker.says("makes room", within_s=20)
    assert faults.add.enqueue(1, 1).result(timeout=25) == 2
    assert queue.hold_of(suspect.id)
    assert long.status() is State.RUNNING
    queue.execute("update outlive.held set since = since - interval '10 minutes'")
    assert suspect.result(timeout=40) == 1, "no worker was idle for ten minutes"
    assert long.status() is State.RUNNING
    (tmp_path / "long").touch()


def test_two_suspects_never_run_in_a_row_while_other_jobs_wait(start, hand, queue):
    suspects = [faults.add.enqueue(n, n) for n in range(3)]
    for _ in range(2):
        claimed = hand.claim(limit=3)
        assert len(claimed) == 3
        hand.rows("update outlive.running set lease_until = '2000-01-01Z' returning id")
        hand.connection.run(store.expire())
    others = [faults.add.enqueue(n, n) for n in range(2)]
    start(slots=1)
    for one in (*suspects, *others):
        one.result(timeout=30)
    rows = queue.execute("select job_id from outlive.attempts where outcome = 'succeeded' order by token").fetchall()
    order = "".join("s" if job in {one.id for one in suspects} else "o" for (job,) in rows)
    assert order.startswith("so")
    assert "ss" not in order.rstrip("s")


def test_no_worker_makes_room_for_a_suspect_that_was_cancelled(start, hand, queue, tmp_path):
    suspect = faults.add.enqueue(1)
    lose_workers_of(hand, suspect, 2)
    queue.run(store.pause_queue("default"))
    worker = start(slots=2, queues="busy,default")
    faults.wait_for.using(queue="busy").enqueue(str(tmp_path / "long"))
    begun(tmp_path / "long")
    queue.execute("update outlive.held set since = since - interval '61 seconds'")
    queue.run(store.resume_queue("default"))
    worker.says("makes room", within_s=20)
    other = faults.add.enqueue(1, 1)
    assert [change.changed for change in queue.run(store.cancel([suspect.id]))] == [True]
    assert other.result(timeout=20) == 2
    (tmp_path / "long").touch()


def test_a_suspect_that_fails_is_cleared_too(start, hand, queue):
    job = faults.raise_error.enqueue()
    lose_workers_of(hand, job, 2)
    start()
    finished(job, State.FAILED)
    assert queue.counters(job.id) == (2, 0, 0)


def test_without_max_losses_no_job_is_a_suspect(start, hand, queue, tmp_path):
    job = faults.wait_for.using(max_losses=None).enqueue(str(tmp_path / "go"))
    lose_workers_of(hand, job, 3)
    worker = start()
    begun(tmp_path / "go")
    assert (alone(queue, job), queue.counters(job.id)) == ([False], (0, 0, 3))
    worker.kill()
    (tmp_path / "go").touch()
    start()
    finished(job, State.SUCCEEDED)


def test_workers_that_are_stopped_cost_nothing(start, queue, tmp_path):
    """A single loss would quarantine the job."""
    job = faults.orphan_and_wait.using(max_losses=1).enqueue(str(tmp_path / "grandchild"))
    for attempt in (1, 2):
        worker = start()
        eventually(lambda: alone(queue, job) == [False], within_s=20)
        worker.send(signal.SIGTERM)
        worker.send(signal.SIGINT)
        assert worker.process.wait(20) == 0
        assert outcomes(queue, job) == [Outcome.RELEASED] * attempt
        assert queue.counters(job.id) == (0, 0, 0)
        assert queue.hold_of(job.id) is None


@pytest.mark.long
def test_one_busy_worker_makes_room_for_a_suspect_that_has_waited_for_long(start, hand, queue, tmp_path):
    """The test moves the suspect's minute into the past; workers look every five seconds."""
    suspect = faults.wait_for.enqueue(str(tmp_path / "go"))
    lose_workers_of(hand, suspect, 2)
    queue.run(store.pause_queue("default"))
    workers = {}
    for name in ("a", "b"):
        workers[name] = start(slots=2, name=name, queues=f"{name},default")
        faults.wait_warm.using(queue=name).enqueue(str(tmp_path / name))
        eventually((tmp_path / f"{name}.started").exists, within_s=20)
    queue.run(store.resume_queue("default"))
    assert faults.add.enqueue(1, 1).result(timeout=20) == 2  # Each has a free slot, and none is idle.
    assert queue.hold_of(suspect.id)
    queue.execute("update outlive.held set since = since - interval '61 seconds'")
    makes_room = eventually(
        lambda: [name for name, worker in workers.items() if "makes room" in worker.log()], within_s=20
    )
    others = [faults.add.enqueue(n, n) for n in range(5)]
    assert [one.result(timeout=20) for one in others] == [0, 2, 4, 6, 8]
    assert {attempts(queue, one)[0].worker for one in others}.isdisjoint(makes_room)
    ((now,),) = queue.execute("select now()").fetchall()
    later = "select now() > %s::timestamptz + interval '6 seconds'"
    eventually(lambda: queue.execute(later, [now]).fetchone() == (True,), what="the other one has looked too")
    (tmp_path / makes_room[0]).touch()
    begun(tmp_path / "go")
    assert alone(queue, suspect) == [True]
    assert sum("makes room" in worker.log() for worker in workers.values()) == 1
    (tmp_path / "go").touch()
    assert suspect.result(timeout=20) == "seen"
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()


@pytest.mark.long
def test_a_worker_wrongly_given_up_begins_again_and_takes_its_losses_back(start, queue, tmp_path):
    """The worker is frozen for longer than it may be silent, and its child ends its job meanwhile."""
    quick = {"heartbeat_s": "0.2", "stale_s": "1", "dead_s": "2", "sweep_s": "0.3"}
    frozen = start(name="frozen", **quick)
    ends, lasts = (faults.wait_for.enqueue(str(tmp_path / name)) for name in ("ends", "lasts"))
    begun(tmp_path / "ends")
    (child,) = begun(tmp_path / "lasts")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        other = start(name="other", **quick)
        begun(tmp_path / "ends", times=2)
        begun(tmp_path / "lasts", times=2)
        assert queue.counters(lasts.id) == (0, 0, 1)
        (tmp_path / "ends").touch()  # Both of its children see it; one of them has no worker that listens.
        finished(ends, State.SUCCEEDED)
        assert alive(child)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    eventually(lambda: not alive(child), within_s=5, what="its child is killed")
    old = frozen.id
    eventually(lambda: frozen.log().count(" started") == 2, within_s=20, what="it begins again")
    assert f"Worker {old} was declared dead by others" in frozen.log()
    assert other.says(f"Dead worker detected: {short_id(old)}")
    assert queue.counters(lasts.id) == (0, 0, 0)
    rows = queue.execute("select name, state from outlive.workers order by started_at").fetchall()
    assert rows == [("frozen", "dead"), ("other", "active"), ("frozen", "active")]
    (tmp_path / "lasts").touch()
    finished(lasts, State.SUCCEEDED)
    for job in (ends, lasts):
        assert outcomes(queue, job) == [Outcome.LOST, Outcome.SUCCEEDED]
        assert attempts(queue, job)[1].worker == "other"


# Killers that are known: by their fingerprint, to hooks, by their task


def test_a_killer_enqueued_again_is_quarantined_without_another_kill(start, queue, tmp_path):
    worker = start(on_quarantine=hook_into(tmp_path))
    first = faults.known_killer.enqueue("poison.pdf")
    finished(first, State.QUARANTINED)
    again = faults.known_killer.enqueue("poison.pdf")
    finished(again, State.QUARANTINED)
    assert (outcomes(queue, first), outcomes(queue, again)) == ([Outcome.CRASHED] * 3, [])
    words = "killed its process 0 times, and 3 times with the same arguments as other jobs (max_crashes = 3)"
    assert queue.hold_of(again.id) == ("quarantined", words)
    eventually(lambda: {one["id"] for one in hook_calls(tmp_path)} == {str(first.id), str(again.id)})
    assert worker.says(f"Job {short_id(again.id)} is quarantined: {words}")
    other = faults.known_killer.enqueue("another.pdf")
    finished(other, State.QUARANTINED)
    assert outcomes(queue, other) == [Outcome.CRASHED] * 3


def test_by_default_only_the_job_counts_and_its_history_is_shown(start, queue, database_url):
    start()
    first = faults.die_by.enqueue("SIGSEGV")
    finished(first, State.QUARANTINED)
    again = faults.die_by.using(delay="1h").enqueue("SIGSEGV")
    shown = " ".join(Cli(database_url)("show", again.id).out.split())
    assert "the same task and arguments killed their process 3 times as other jobs, last with SIGSEGV" in shown
    assert str(first.id) in shown
    queue.run(store.cancel([again.id]))
    third = faults.die_by.enqueue("SIGSEGV")
    finished(third, State.QUARANTINED)
    assert outcomes(queue, third) == [Outcome.CRASHED] * 3


@pytest.mark.long
def test_the_hook_of_a_quarantine_gets_the_evidence(start, tmp_path):
    start(name="crawler-1", on_quarantine=hook_into(tmp_path))
    job = faults.segfault.using(max_crashes=1).enqueue()
    (fact,) = eventually(lambda: hook_calls(tmp_path), within_s=20)
    expected = {
        "event": "quarantine",
        "id": str(job.id),
        "task": "tests.faults.segfault",
        "details": "killed its process once (max_crashes = 1)",
        "crashes": 1,
        "outcome": "crashed",
        "signal": "SIGSEGV",
        "killed_on": "crawler-1",
    }
    assert {name: fact[name] for name in expected} == expected
    assert "the last words before the segfault" in fact["output"]
    assert "in segfault" in fact["stack"]
    assert fact["peak_memory_bytes"] > 0


@pytest.mark.long
def test_a_task_of_which_many_jobs_crash_raises_an_alert_once(start, tmp_path):
    hook = hook_into(tmp_path)
    for _ in range(2):
        start(sweep_s="0.3", on_quarantine=hook)

    def alerts() -> list[dict[str, Any]]:
        return [one for one in hook_calls(tmp_path) if one["event"] == "task_keeps_crashing"]

    crash = faults.exit_with.using(max_crashes=1)
    four = [crash.enqueue(code) for code in range(1, 5)]
    for job in four:
        finished(job, State.QUARANTINED)
    eventually(lambda: len(hook_calls(tmp_path)) == 4, within_s=20)
    finished(crash.enqueue(5), State.QUARANTINED)
    (alert,) = eventually(alerts, within_s=20)
    assert (alert["task"], alert["jobs"], alert["crashes"]) == ("tests.faults.exit_with", 5, 5)
    finished(crash.enqueue(6), State.QUARANTINED)
    eventually(lambda: len(hook_calls(tmp_path)) == 7, within_s=20, what="six quarantines and one alert")
    assert len(alerts()) == 1
