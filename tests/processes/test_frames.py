"""Jobs that send forged, malformed, huge or endless frames harm only themselves."""

import signal
from typing import Any

import pytest

from outlive.states import Outcome, State
from tests import faults
from tests.driving.jobs import attempts, finished, number_in
from tests.driving.workers import cpu_s
from tests.waiting import eventually


@pytest.mark.fault(60)
def test_a_job_cannot_replace_the_checkpoint_of_another(start, tmp_path):
    start(slots=2, queues="a"), start(slots=1, queues="b")
    victim = faults.keep_a_checkpoint.using(queue="a").enqueue(str(tmp_path / "go"))
    token = number_in(tmp_path / "go.token")
    for where in ("a", "b"):  # In the same worker, and in another one.
        assert finished(faults.forge_progress.using(queue=where).enqueue(token)) is State.SUCCEEDED
    (tmp_path / "go").touch()
    assert victim.result(timeout=20) == {"page": 7}


@pytest.mark.fault(60)
def test_a_checkpoint_that_cannot_be_written_costs_only_itself(start, tmp_path):
    worker = start(slots=2)
    spoiling = faults.spoil_progress.enqueue(str(tmp_path / "enough"))
    worker.says("is dropped", within_s=20)
    for n in range(5):  # Each of them is written beside some that can't be.
        assert faults.step_by_step.enqueue(3).result(timeout=20) == [3, 3], n
    (tmp_path / "enough").touch()
    assert finished(spoiling) is State.SUCCEEDED
    assert worker.log().count("is dropped") == 1
    assert "progress failed" not in worker.log()


@pytest.mark.fault(60)
def test_a_warm_job_that_writes_garbage_costs_no_job_before_or_behind_it(start, queue):
    worker = start(slots=1)
    quick = faults.app.enqueue_many(
        faults.babble.job() for _ in range(500)
    )  # Their pace is known now: others are given ahead.
    eventually(lambda: all(job.status() is State.SUCCEEDED for job in quick), within_s=60)
    culprits = set()
    ends = {"socket": State.QUARANTINED, "tickets": State.RETRYABLE, "tickets, opened again": State.QUARANTINED}
    for where, end in ends.items():
        jobs = faults.app.enqueue_many([faults.babble.job(where if n == 50 else "") for n in range(100)])
        culprit = jobs.pop(50)
        culprits.add(culprit.id)
        eventually(lambda: all(job.status() is State.SUCCEEDED for job in jobs), within_s=30, what="the others succeed")  # noqa: B023
        assert finished(culprit, end) is end
    assert set(queue.values("select job_id from outlive.attempts where failures + crashes > 0")) == culprits
    assert "Traceback" not in worker.log()


@pytest.mark.fault(60)
def test_calls_that_cannot_be_read_and_floods_of_calls_cost_only_their_job(start, queue):
    worker = start(slots=2)
    refusals = faults.ask_nonsense.enqueue().result(timeout=20)
    assert (len(refusals), set(refusals)) == (6, {"BadArguments"})
    assert len(faults.spawn_more.enqueue(2).result(timeout=20)) == 3
    assert "job call failed" not in worker.log()
    flooding = faults.flood_with_calls.enqueue(100_000)
    assert len(faults.spawn_more.enqueue(2).result(timeout=20)) == 3
    assert finished(flooding) is State.QUARANTINED
    assert "reads no answer" in (attempts(queue, flooding)[0].error or "")
    assert worker.process.poll() is None


@pytest.mark.fault(60)
@pytest.mark.parametrize("whom", ["parent", "zygote"])
def test_a_flood_of_frames_while_a_process_above_dies_does_not_hold_the_worker(start, tmp_path, whom):
    worker = start(slots=2)
    flooding = faults.flood_and_kill.enqueue(str(tmp_path / "begun"), whom)
    eventually((tmp_path / "begun").exists, within_s=20)
    eventually(lambda: f"{whom} died" in worker.log() or "killed with its parent" in worker.log(), within_s=10)
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    flooding.cancel()
    assert finished(flooding) is State.CANCELLED
    assert worker.stop(within_s=10) == 0


@pytest.mark.fault(60)
def test_a_worker_answers_signals_while_its_jobs_flood_it(start, tmp_path):
    worker = start(slots=4)
    paths = [tmp_path / str(n) for n in range(4)]
    for path in paths:
        faults.flood_with_progress.enqueue(str(path))
    eventually(lambda: all(path.exists() for path in paths), within_s=20)
    told_s = cpu_s(worker.pid)
    worker.send(signal.SIGTERM)
    worker.says(" stops: ")
    heard_s = cpu_s(worker.pid) - told_s
    worker.send(signal.SIGTERM)
    assert worker.process.wait(20) == 0
    assert heard_s < 1


@pytest.mark.fault(16)
def test_a_child_that_says_more_than_it_may_is_killed_and_too_large_a_checkpoint_is_refused(start, queue):
    worker = start(slots=2)
    jobs = {kind: faults.say_large.enqueue(kind, 2) for kind in ("checkpoint", "result", "error")}
    words = {"checkpoint": "more than a job can keep", "result": "result", "error": "error"}
    for kind, job in jobs.items():
        assert finished(job) is State.QUARANTINED
        assert words[kind] in (attempts(queue, job)[0].error or "")
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    assert worker.process.poll() is None
    refused = faults.say_too_much.enqueue("checkpoint", 2)
    assert finished(refused) is State.FAILED
    (only,) = attempts(queue, refused)
    assert only.outcome is Outcome.FAILED
    assert "the checkpoint has 2,000,002 bytes, over the limit of 1,048,576" in (only.error or "")


@pytest.mark.fault(16)
@pytest.mark.long
def test_the_supervisor_stays_small_whatever_its_jobs_say_at_once(start, queue):
    worker = start(slots=8)
    jobs: list[Any] = [faults.say_large.enqueue("records", 15) for _ in range(6)]
    jobs += [faults.say_large.enqueue("call", 15) for _ in range(6)]
    jobs += [faults.say_large.enqueue("checkpoint", 15) for _ in range(3)]
    ends = [finished(job, within_s=120) for job in jobs]
    assert ends == [State.SUCCEEDED] * 12 + [State.QUARANTINED] * 3
    assert worker.peak_bytes() < 150_000_000
