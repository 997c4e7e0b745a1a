"""Jobs that share a process while their worker or the database is slow, and what they log."""

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from outlive import State, config, store
from outlive.states import Outcome
from tests.driving.jobs import attempts, finished, outcomes
from tests.processes import configured
from tests.processes.sharing import app, hasty, large, mixed, nap, noted, outdated, threaded
from tests.waiting import eventually

TARGET = "tests.processes.sharing:app"


@pytest.fixture
def go(database_url: str, tmp_path: Path) -> Iterator[Path]:
    """A file that jobs wait for."""
    for one in (app, configured.app):
        one.configure(config.load(flags={"database_url": database_url}))
    yield tmp_path / "go"
    for one in (app, configured.app):
        one.configure(None)


def _has_lines(path: Path, number: int) -> bool:
    return path.exists() and path.read_text().count("\n") >= number


@pytest.mark.long
def test_large_results_that_the_worker_does_not_read_yet_stop_no_neighbour(start, go, tmp_path):
    """It reads no faster than the database writes. Here it is stopped."""
    notes, ticks = tmp_path / "notes", tmp_path / "notes.ticks"
    neighbour = large.enqueue(str(notes), 0, str(go))
    jobs = [large.enqueue(str(notes), 1_000_000, str(go)) for _ in range(60)]
    worker = start(slots=1, target=TARGET)
    eventually(lambda: jobs[-1].status() is State.RUNNING, within_s=30)
    eventually(partial(_has_lines, ticks, 1), within_s=30)
    worker.send(signal.SIGSTOP)
    go.touch()
    eventually(partial(_has_lines, notes, 60), within_s=30, what="all jobs return")
    eventually(partial(_has_lines, ticks, len(ticks.read_text().splitlines()) + 30), within_s=20, what="one goes on")
    worker.send(signal.SIGCONT)
    Path(f"{go}.end").touch()
    assert len({job.result(timeout=60).split()[0] for job in (neighbour, *jobs)}) == 1
    assert not _has_lines(notes, 61), "none ran twice"


def test_a_job_that_needs_a_process_of_its_own_waits_a_second_while_no_slot_is_free(start, queue, go):
    neighbours, job = [mixed.enqueue("", str(go)) for _ in range(5)], mixed.enqueue("exit", str(go))
    start(slots=1, target=TARGET)
    eventually(lambda: all(one.status() is State.RUNNING for one in (*neighbours, job)), within_s=30)
    Path(f"{go}.crowd").touch()
    later = "select count(*) from outlive.waiting where ready_at > now() + interval '0.5s'"
    eventually(lambda: queue.value(later) == 1, within_s=10)
    go.touch()
    assert finished(job, within_s=60) is State.QUARANTINED
    assert all(outcomes(queue, one) == [Outcome.SUCCEEDED] for one in neighbours)


def test_a_relaxed_step_that_is_not_written_when_the_process_dies_is_not_taken_again(start, go, database_url, tmp_path):
    notes, other = tmp_path / "notes", tmp_path / "other"
    job = hasty.enqueue(str(notes), str(go))
    with psycopg.connect(database_url) as stranger:
        stranger.execute("lock table outlive.steps in exclusive mode")
        worker = start(slots=2, target=TARGET)
        eventually(Path(f"{notes}.after").exists, within_s=30)
        pid = int(notes.read_text().split()[1])
        os.kill(pid, signal.SIGKILL)
        assert worker.says("was killed by SIGKILL with 1 job in it")
        probe = hasty.enqueue(str(other), str(go))
        eventually(Path(f"{other}.after").exists, within_s=30, what="another job begins after it")
    go.touch()
    assert probe.result(timeout=30)
    assert job.result(timeout=30) == pid
    assert notes.read_text() == f"charge {pid}\n"


def test_an_attempt_that_others_have_ended_keeps_no_step_and_undoes_nothing_and_no_neighbour_notices(
    start, queue, go, tmp_path
):
    notes, others = tmp_path / "notes", tmp_path / "others"
    job, neighbour = outdated.enqueue(str(notes), str(go)), outdated.enqueue(str(others), f"{go}.end")
    worker = start(slots=1, target=TARGET)
    eventually(lambda: queue.count("steps") == 2, within_s=30)
    with queue.transaction():  # Or the worker itself may end it first.
        queue.execute("update outlive.running set lease_until = '2000-01-01Z' where id = %s", [job.id])
        assert len(queue.run(store.expire())) == 1
    pid = job.result(timeout=30)
    go.touch()
    worker.says("which asks for something: it is cancelled")
    Path(f"{go}.end").touch()
    assert neighbour.result(timeout=30) == pid, "its process lives"
    assert Path(f"{notes}.paid").read_text() == f"charge {pid}\n", "the second attempt has paid, and no other goes on"
    assert not Path(f"{notes}.refunded").exists()
    assert outcomes(queue, neighbour) == [Outcome.SUCCEEDED]


def test_records_go_to_their_job_also_if_the_app_has_configured_logging_at_its_import(start, queue, go):
    jobs = {name: configured.logger.enqueue(name) for name in ("ann", "bob")}
    start(slots=1, target="tests.processes.configured:app")
    for name, job in jobs.items():
        job.result(timeout=30)
        [attempt] = attempts(queue, job)
        assert attempt.output == f"WARNING root: hello from {name}\nWARNING root: goodbye from {name}\n"
        assert outcomes(queue, job) == [Outcome.SUCCEEDED]


def test_calls_that_go_on_in_threads_when_their_jobs_have_ended_keep_no_neighbour_waiting(start, queue, go):
    stuck = [threaded.using(timeout=timeout).enqueue("", 600) for timeout in ("1s", "3s")]
    worker = start(slots=1, target=TARGET)
    assert finished(stuck[0]) is State.FAILED
    neighbour = threaded.enqueue(str(go), 0)
    assert finished(stuck[1]) is State.FAILED
    go.touch()
    pid = neighbour.result(timeout=20)
    assert worker.says("2 calls that jobs have left behind go on in them")
    assert threaded.enqueue("", 0).result(timeout=20) != pid, "it is replaced before its threads run out"


def test_a_job_that_has_returned_is_not_told_to_stop_while_its_tasks_end(start, queue, go):
    job = mixed.enqueue("leave a deaf task", str(go))
    Path(f"{go}.crowd").touch()
    worker = start(slots=1, target=TARGET, grace_s="5.1")
    worker.says("deaf: never")
    worker.stop()
    assert outcomes(queue, job) == [Outcome.SUCCEEDED]


def test_a_process_in_which_a_task_of_a_cancelled_job_goes_on_is_replaced(start, queue, go):
    first, job = mixed.enqueue("", str(go)), mixed.enqueue("leave a deaf task and wait", str(go))
    Path(f"{go}.crowd").touch()
    worker = start(slots=2, target=TARGET)
    eventually(lambda: job.status() is first.status() is State.RUNNING, within_s=20)
    worker.says("it waits")
    job.cancel()
    assert finished(job) is State.CANCELLED
    go.touch()
    assert worker.says("go on although they are cancelled")
    assert mixed.enqueue("", str(go)).result(timeout=30) != first.result(timeout=30)


@pytest.mark.parametrize("why", ["their processes died", "a process has run many", "workers differ"])
def test_all_suspects_that_are_claimed_together_begin_at_once_in_one_process(start, queue, go, tmp_path, why):
    """Those that wait in a worker would be charged with its death."""
    worker, notes = start(slots=1, target=TARGET), tmp_path / "notes"
    if why == "a process has run many":
        go.touch()
        for job in app.enqueue_many(noted.job(str(tmp_path / "before"), str(go)) for _ in range(55)):
            job.result(timeout=30)
        go.unlink()
    elif why == "workers differ":
        queue.execute("update outlive.tasks set share = 500")
    app.enqueue_many(noted.using(delay="1h").job(str(notes), str(go)) for _ in range(60))
    queue.execute(SUSPECTS, [int(why == "their processes died")])
    eventually(notes.exists, within_s=20)
    claimed = queue.value("select count(*) from outlive.running")
    eventually(partial(_has_lines, notes, claimed), within_s=3, what=f"{claimed} have begun")
    assert len({*notes.read_text().splitlines()}) == 1
    worker.kill_with_zygote()
    start(slots=1, target=TARGET, queues="none")
    eventually(lambda: not queue.value("select count(*) from outlive.running"), within_s=20)
    assert queue.value("select count(*) from outlive.held where losses = 3") == claimed


SUSPECTS = """
with w as (delete from outlive.waiting returning *)
insert into outlive.held (
  id, why, since, details, queue, source, task, priority, ready_at, attempt, failures, crashes, losses)
select id, 'suspect', now(), 'vanished', queue, source, task, priority, now(), 3, 0, %s, 2 from w
"""

UNFINISHED = """
select (select count(*) from outlive.waiting) + (select count(*) from outlive.running)
  + (select count(*) from outlive.held where why = 'suspect')
"""


def _let_pass(seconds: float) -> None:
    over = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > over, within_s=60)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_shared_jobs_whose_workers_are_killed_at_random_end_soon_after_the_last_kill(start, queue, go):
    """Each loss makes hundreds of them suspects at once. They run together, and not one by one."""
    chance = random.Random(2026)
    app.enqueue_many(nap.job(2) for _ in range(500))
    for _ in range(2):
        worker = start(slots=2, target=TARGET)
        eventually(lambda: queue.value("select count(*) from outlive.running") == 500, within_s=20)
        worker.kill()
    workers = [start(slots=2, target=TARGET) for _ in range(2)]
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if queue.value(UNFINISHED) < 250:
            app.enqueue_many(nap.job(2) for _ in range(250))
        _let_pass(chance.expovariate(1 / 2))
        hit = chance.randrange(len(workers))
        workers[hit].kill()
        workers[hit] = start(slots=2, target=TARGET, wait=False)
    eventually(lambda: not queue.value(UNFINISHED), within_s=40)
    assert queue.values("select distinct state from outlive.attempts where state <> 'pending'") == ["succeeded"]
    assert queue.values("select distinct outcome from outlive.attempts order by 1") == ["lost", "succeeded"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_one_of_hundreds_of_shared_jobs_that_kills_workers_is_proven_alone(start, queue, go):
    jobs = [*app.enqueue_many(nap.job(1) for _ in range(300)), nap.enqueue(0.3, kills=True)]
    jobs += app.enqueue_many(nap.job(1) for _ in range(199))
    workers = [start(slots=2, target=TARGET)]

    def is_killed() -> bool:
        return workers[-1].process.poll() is not None

    while queue.value(UNFINISHED):
        if is_killed():
            workers.append(start(slots=2, target=TARGET))
        eventually(lambda: is_killed() or not queue.value(UNFINISHED), within_s=60)
    assert [job.id for job in jobs if job.status() is not State.SUCCEEDED] == [jobs[300].id]
    known = "6 workers vanished while running it, twice with nothing beside it; no other worker vanished meanwhile"
    assert queue.hold_of(jobs[300].id) == ("quarantined", f"{known}: proven (max_losses = 3)")
    assert len(workers) == 7
    runs = "select count(*) from outlive.attempts group by job_id order by 1 desc limit 2"
    assert queue.values(runs) == [6, 5], "those that were beside it to the last ended alone"
