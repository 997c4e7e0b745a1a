"""Jobs that share a process: many at once in one slot, each with its own context, and none pays for a neighbour."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

import outlive
from outlive import App, State, config
from outlive.errors import ConfigError, JobFailed
from outlive.states import Outcome
from tests.driving.commands import Cli
from tests.driving.jobs import attempts, finished, outcomes
from tests.driving.scraping import ANY_PORT, place_of, scrape
from tests.driving.workers import all_gone
from tests.processes.sharing import (
    app,
    busy,
    dozing,
    durable,
    enqueuer,
    grouped,
    guest,
    half,
    impatient,
    kept,
    loop,
    many_calls,
    marked,
    mixed,
    nap,
    recycled,
    sudden,
    talker,
    threaded,
)
from tests.waiting import eventually

TARGET = "tests.processes.sharing:app"
CHARGED = {Outcome.CRASHED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY, Outcome.LOST}


@pytest.fixture
def go(database_url: str, tmp_path: Path) -> Iterator[Path]:
    """A file that jobs wait for."""
    app.configure(config.load(flags={"database_url": database_url}))
    yield tmp_path / "go"
    app.configure(None)


def test_share_is_refused_for_a_plain_function():
    with pytest.raises(ConfigError, match="it is a plain function, which would keep the others"):

        @App().task(share=10)
        def fetch(url: str) -> None: ...


def test_many_jobs_share_one_process_and_one_slot_beside_jobs_of_other_tasks(start, go):
    jobs = [guest.enqueue(str(go)) for _ in range(50)]
    last = guest.enqueue()
    start(slots=2, target=TARGET)
    pid = last.result(timeout=30)
    assert talker.enqueue("ann").result(timeout=30)
    go.touch()
    assert {job.result(timeout=30) for job in jobs} == {pid}


def test_the_event_loop_is_that_of_uvloop_if_it_is_installed(start):
    start(target=TARGET)
    assert loop.enqueue().result(timeout=30) == ("uvloop" if find_spec("uvloop") else "asyncio")


def test_another_process_is_begun_when_the_first_is_full(start, go):
    jobs = [guest.enqueue(str(go)) for _ in range(700)]
    start(slots=2, target=TARGET)
    eventually(lambda: sum(job.status() is State.RUNNING for job in jobs[-3:]) == 3, within_s=30)
    go.touch()
    assert len({job.result(timeout=30) for job in jobs}) == 2


def test_a_second_process_ends_when_it_is_empty_and_the_first_has_room(start, go):
    ends = [go.with_name(name) for name in ("first", "last", "second")]
    one, other = (threaded.enqueue(str(end), 0) for end in ends[:2])
    start(slots=2, target=TARGET)
    eventually(lambda: {one.status(), other.status()} == {State.RUNNING}, within_s=30)
    late = threaded.enqueue(str(ends[2]), 0)  # Earlier, any two of them could have come to the first process.
    eventually(lambda: late.status() is State.RUNNING, within_s=30)
    ends[0].touch()
    pid = one.result(timeout=30)
    ends[2].touch()
    second = late.result(timeout=30)
    assert second != pid
    all_gone([second])
    ends[1].touch()
    assert other.result(timeout=30) == pid


def test_a_process_is_replaced_after_as_many_jobs_as_recycle_after_says(start, go):
    jobs = [recycled.enqueue() for _ in range(12)]
    start(slots=1, target=TARGET)
    assert sorted(Counter(outlive.gather(jobs, timeout=60)).values()) == [4, 4, 4]


def test_slots_and_jobs_are_told_apart_wherever_a_worker_is_shown(start, go, database_url):
    jobs = [guest.enqueue(str(go)) for _ in range(700)]
    worker = start(slots=3, target=TARGET, metrics_listen=ANY_PORT)
    eventually(lambda: sum(job.status() is State.RUNNING for job in jobs[-3:]) == 3, within_s=30)
    seen = scrape(place_of(worker))
    assert [seen(f"outlive_{name}") for name in ("slots", "slots_busy", "running_jobs")] == [3, 2, 700]
    assert "2 of 3 slots, 700 jobs" in Cli(database_url)("workers").out
    worker.send(signal.SIGTERM)
    worker.says("stops: 700 jobs are running in 2 slots")
    go.touch()
    assert worker.process.wait(30) == 0


def test_what_a_job_prints_logs_and_knows_is_its_own(start, queue, go):
    jobs = {name: talker.enqueue(name) for name in ("ann", "bob", "eve")}
    start(slots=1, target=TARGET)
    for name, job in jobs.items():
        in_thread, own, opened = job.result(timeout=30).split(" ", 2)
        assert in_thread == own == str(job.id)
        assert opened.count("opened") == 1, "once for all jobs of the process"
        [attempt] = attempts(queue, job)
        kinds = ["print of", "WARNING talker: log of", "thread of", "error of"]
        assert attempt.output == "".join(f"{kind} {name}\n" for kind in kinds)


def test_what_a_process_has_opened_is_closed_when_it_ends_and_its_records_keep_level_logger_and_fields(start, go):
    job = guest.enqueue()
    worker = start(slots=1, target=TARGET, log_format="json")
    pid = job.result(timeout=30)
    worker.stop()
    lines = [json.loads(line) for line in worker.log().splitlines()]
    assert f"closed in {pid}" in [line["message"] for line in lines]
    (record,) = [line for line in lines if line["message"] == "closed"]
    assert (record["level"], record["logger"], record["extra"]) == ("error", "shop", {"host": "h"})
    assert (record["task"], record["pid"], "job_id" in record) == (guest.name, pid, False)


@pytest.mark.parametrize("what", ["segfault", "exit", "kill", "block", "close descriptors", "leak"])
def test_a_job_that_kills_its_process_harms_no_neighbour_and_is_caught_alone(start, queue, go, what):
    neighbours = app.enqueue_many([mixed.job("", str(go)) for _ in range(500)])
    offender = mixed.enqueue(what, str(go))
    start(slots=2, target=TARGET, block_s="1")
    eventually(lambda: all(job.status() is State.RUNNING for job in (neighbours[-1], offender)), within_s=30)
    Path(f"{go}.crowd").touch()
    if what == "block":  # In a process of its own it may block as long as it likes.
        eventually(lambda: outcomes(queue, offender), within_s=60)
        assert offender.cancel()
    if what == "close descriptors":  # Nothing says who it was, so they run in small groups, and some alone.
        go.touch()
    ended = finished(offender, within_s=90)
    go.touch()
    pids = set(outlive.gather(neighbours, timeout=60))
    assert len(pids) <= 2 or what == "close descriptors", "they share again"
    ends = "select outcome, count(*) from outlive.attempts where job_id = any(%s) group by outcome"
    counts = dict(queue.execute(ends, [[job.id for job in neighbours]]).fetchall())
    assert counts.pop("succeeded") == 500
    assert counts.keys() <= {"released"}, "those that waited for a process of their own, at no cost"
    found = attempts(queue, offender)
    if what == "block":
        assert found[0].outcome is Outcome.CRASHED
        assert "blocked the event loop that it shares with 500 other jobs" in (found[0].error or "")
        assert "time.sleep(600)" in (found[0].stack or "") or "_harm" in (found[0].stack or "")
    else:
        assert ended is State.QUARANTINED
        assert len([one for one in found if one.outcome is not Outcome.RELEASED]) == 3
        if len(found) == 3:  # It was not given back while it waited for a process.
            assert "its shared process" in (found[0].output or ""), "what happened before it was alone"
        assert all(one.signal or one.error for one in found)
        assert not any("shared process" in (one.error or "") for one in found), "each says how its own process died"


LOOP = {
    "stop the loop": "a job can't stop the event loop that it shares",
    "close the loop": "a job can't close the event loop that it shares",
    "exit in a task": "a task of the job raised SystemExit: 3",
    "shut the threads": "a job can't shutdown_default_executor the event loop that it shares",
    "wait in a thread": "can wait with `await` only: asleep",
}


def test_jobs_that_would_end_the_loop_fail_alone_and_tasks_and_copies_that_others_leave_do_no_harm(start, queue, go):
    neighbours = [mixed.enqueue("", str(go)) for _ in range(20)]
    ending = {mixed.enqueue(what, str(go)): words for what, words in LOOP.items()}
    cancels, forks, leaves = (mixed.enqueue(what, str(go)) for what in ("cancel all", "fork", "leave tasks"))
    Path(f"{go}.crowd").touch()
    start(slots=1, target=TARGET)
    for job, words in ending.items():
        assert finished(job) is State.FAILED
        assert words in str(attempts(queue, job)[-1].error)
    pids = {job.result(timeout=30) for job in (cancels, forks, leaves)}
    assert "left 1 tasks behind, which are cancelled: left-behind" in str(attempts(queue, leaves)[-1].output)
    assert Path(f"{go}.cancelled").exists()
    all_gone([int(Path(f"{go}.copy").read_text())])
    go.touch()
    assert {*pids, *(job.result(timeout=30) for job in neighbours)} == pids
    assert len(pids) == 1, "their process lives"
    assert all(outcomes(queue, job) == [Outcome.SUCCEEDED] for job in (*neighbours, cancels, forks))


@pytest.mark.long
@pytest.mark.parametrize(("what", "outcome"), [("stop the loop", Outcome.FAILED), ("ignore", Outcome.TIMED_OUT)])
def test_hundreds_of_neighbours_outlast_a_job_that_stops_the_loop_or_ignores_its_timeout(
    start, queue, go, what, outcome
):
    neighbours = app.enqueue_many([mixed.job("", str(go)) for _ in range(500)])
    offender = mixed.using(timeout="3s").enqueue(what, str(go))
    Path(f"{go}.crowd").touch()
    start(slots=2, target=TARGET)
    assert finished(offender, within_s=60) is State.FAILED
    assert outcomes(queue, offender) == [outcome]
    go.touch()
    assert len(set(outlive.gather(neighbours, timeout=60))) == 1
    assert Counter(queue.values("select outcome from outlive.attempts")) == {"succeeded": 500, outcome.value: 1}


def test_task_groups_and_scopes_of_anyio_are_the_jobs_own(start, go):
    pytest.importorskip("anyio")
    jobs = [grouped.enqueue() for _ in range(20)]
    start(slots=1, target=TARGET)
    assert [job.result(timeout=30) for job in jobs] == [[str(job.id)] * 2 for job in jobs]


def test_many_jobs_that_work_in_turn_block_nothing(start, queue, go):
    jobs = [busy.enqueue(str(go), 0.05) for _ in range(60)]
    worker = start(slots=1, target=TARGET, block_s="1")
    eventually(lambda: all(job.status() is State.RUNNING for job in jobs), within_s=30)
    go.touch()
    assert len({job.result(timeout=60) for job in jobs}) == 1
    assert "blocked the event loop" not in worker.log()


def test_a_job_that_is_given_back_and_comes_again_runs_once(start, queue, go, tmp_path):
    first = busy.enqueue(str(go), 3)
    worker = start(slots=1, target=TARGET, block_s="30")
    eventually(lambda: first.status() is State.RUNNING, within_s=30)
    go.touch()
    eventually(Path(f"{go}.works").exists)
    jobs = [busy.enqueue(str(go), 0) for _ in range(10)]
    eventually(lambda: all(job.status() is State.RUNNING for job in jobs), within_s=10)
    jobs[5].cancel()
    assert finished(jobs[5]) is State.CANCELLED
    pids = {job.result(timeout=30) for job in (first, *jobs) if job is not jobs[5]}
    assert len(pids) == 1
    assert "answers for a job that it does not run" not in worker.log()


def test_a_process_in_which_a_left_task_goes_on_is_replaced(start, queue, go):
    first = mixed.enqueue("leave a deaf task", str(go))
    Path(f"{go}.crowd").touch()
    worker = start(slots=1, target=TARGET)
    go.touch()
    pid = first.result(timeout=30)
    assert mixed.enqueue("", str(go)).result(timeout=30) != pid
    assert worker.says("go on although they are cancelled")


def test_a_job_is_cancelled_without_its_neighbours(start, queue, go):
    neighbours = [guest.enqueue(str(go)) for _ in range(10)]
    job = guest.enqueue(str(go))
    start(slots=1, target=TARGET)
    eventually(lambda: job.status() is State.RUNNING, within_s=30)
    job.cancel()
    assert finished(job) is State.CANCELLED
    go.touch()
    assert len({one.result(timeout=30) for one in neighbours}) == 1
    assert all(outcomes(queue, one) == [Outcome.SUCCEEDED] for one in neighbours)


def test_a_job_that_ignores_its_timeout_costs_its_process_and_no_neighbour_anything(start, queue, go):
    neighbours = [mixed.enqueue("", str(go)) for _ in range(20)]
    offender = mixed.using(timeout="1s").enqueue("ignore", str(go))
    Path(f"{go}.crowd").touch()
    start(slots=1, target=TARGET)
    assert finished(offender, within_s=60) is State.FAILED
    assert outcomes(queue, offender) == [Outcome.TIMED_OUT]
    go.touch()
    assert len({job.result(timeout=30) for job in neighbours}) == 1
    assert all(outcomes(queue, job) == [Outcome.SUCCEEDED] for job in neighbours)


def test_a_killed_process_is_charged_to_no_job(start, queue, go):
    jobs = [guest.enqueue(str(go)) for _ in range(20)]
    probe = guest.enqueue()
    start(slots=1, target=TARGET)
    os.kill(probe.result(timeout=30), signal.SIGKILL)
    go.touch()
    assert len({job.result(timeout=30) for job in jobs}) == 1
    assert all(outcomes(queue, job) == [Outcome.SUCCEEDED] for job in jobs)


def test_jobs_that_may_share_with_few_others_are_not_claimed_again_and_again(start, queue, go, tmp_path):
    notes = tmp_path / "notes"
    jobs = [dozing.enqueue(str(notes), str(go)) for _ in range(12)]
    start(slots=1, target=TARGET)
    for times in (12, 24):
        eventually(partial(_has_lines, notes, times), within_s=30)
        os.kill(int(notes.read_text().split()[-1]), signal.SIGKILL)
    later = "select count(*) from outlive.waiting where ready_at > now() + interval '1s'"
    eventually(lambda: queue.value(later) >= 4, within_s=30)
    go.touch()
    assert all(job.result(timeout=60) for job in jobs)
    assert {outcome for job in jobs for outcome in outcomes(queue, job)} <= {Outcome.SUCCEEDED, Outcome.RELEASED}


def _has_lines(path: Path, number: int) -> bool:
    return path.exists() and path.read_text().count("\n") >= number


def test_a_job_that_begins_again_keeps_its_steps_and_its_checkpoint(start, queue, go, tmp_path):
    notes = tmp_path / "notes"
    job = kept.enqueue(str(notes), str(go))
    start(slots=2, target=TARGET)
    pid = int(eventually(lambda: notes.exists() and notes.read_text(), within_s=30).split()[1])
    eventually(Path(f"{notes}.kept").exists, within_s=10)
    os.kill(pid, signal.SIGKILL)
    go.touch()
    assert job.result(timeout=30) == (100, {"paid": 100})
    assert notes.read_text() == f"charge {pid}\n"


def test_a_job_that_begins_again_finds_its_checkpoint_if_it_has_kept_nothing_else(start, queue, go, tmp_path):
    notes = tmp_path / "notes"
    job = marked.enqueue(str(notes), str(go))
    start(slots=2, target=TARGET)
    eventually(partial(_has_lines, notes, 1), within_s=30)
    os.kill(int(notes.read_text().split()[1]), signal.SIGKILL)
    eventually(partial(_has_lines, notes, 2), within_s=30)
    go.touch()
    assert job.result(timeout=30) == {"page": 7}


def test_what_a_job_keeps_and_prints_survives_its_process_in_the_same_turn_of_the_loop(start, queue, go, tmp_path):
    start(slots=2, target=TARGET, block_s="1")
    for what in ("kill", "segfault", "block"):
        notes = tmp_path / what
        job = sudden.enqueue(what, str(notes))
        assert job.result(timeout=60) == {"page": 7}
        assert notes.read_text().count("charge") == 1, "its step runs once"
        assert "the last words\n" in (attempts(queue, job)[0].output or "")


def test_a_job_whose_process_dies_while_its_wait_is_written_begins_again_after_the_wait(
    start, queue, database_url, go, tmp_path
):
    notes = tmp_path / "notes"
    job = dozing.enqueue(str(notes), str(go))
    worker = start(slots=2, target=TARGET)
    pid = int(eventually(lambda: notes.exists() and notes.read_text(), within_s=30).split()[1])
    with psycopg.connect(database_url) as stranger:
        stranger.execute("select from outlive.running for update")
        go.touch()
        blocked = "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%suspend%'"
        eventually(lambda: queue.execute(blocked).fetchall(), within_s=10)
        os.kill(pid, signal.SIGKILL)
        assert worker.says("was killed by SIGKILL with 1 job in it")
        dozing.enqueue(str(tmp_path / "probe"), str(go))
        eventually(partial(_has_lines, tmp_path / "probe", 1), within_s=30, what="another job begins after it")
        assert not _has_lines(notes, 2), "it does not begin while its wait may be written"
    job.result(timeout=30)
    # Before its wait and after it; and once more if the statement gave up on the lock before it had written the wait.
    assert len(notes.read_text().splitlines()) in (2, 3)
    assert not CHARGED & {*outcomes(queue, job)}


def test_a_job_that_shares_waits_in_steps_and_gives_its_seat_back(start, queue, go, tmp_path):
    notes = tmp_path / "notes"
    jobs = [durable.enqueue(n, str(notes)) for n in range(20)]
    start(slots=1, target=TARGET)
    eventually(lambda: all(job.status() is State.SUSPENDED for job in jobs), within_s=30)
    for job in jobs:
        job.send("packed", 7)
    assert [job.result(timeout=60) for job in jobs] == [100 * n + 8 for n in range(20)]
    assert len(re.findall("charge", notes.read_text())) == 20, "no step ran twice"


def test_a_job_that_waits_goes_on_in_one_place_only_and_waits_in_its_own_task(start, go, tmp_path):
    ways = ("beside a task", "with a timeout of its own", "in another task")
    jobs = {how: half.enqueue(str(tmp_path / how), how) for how in ways}
    worker = start(slots=1, target=TARGET)
    for how in ways[:2]:
        assert jobs[how].result(timeout=30) == how
        assert not (tmp_path / f"{how}.error").exists(), "no error that never happened"
    with pytest.raises(JobFailed, match="a job waits in its own task only"):
        jobs[ways[2]].result(timeout=30)
    assert "answers for a job that it does not run" not in worker.log()


def test_a_job_that_shares_calls_its_worker_many_times_at_once_with_and_without_await(start, go):
    calls, enqueues = many_calls.enqueue(100), enqueuer.enqueue(str(go))
    worker = start(slots=3, target=TARGET)
    assert calls.result(timeout=30) == 100
    assert "calls under way and reads no answer" not in worker.log()
    assert enqueues.result(timeout=30)[2] == "3"


def test_time_in_which_a_neighbour_blocks_the_loop_counts_for_that_job_alone(start, queue, go):
    neighbours, blocker = [impatient.enqueue(block=False) for _ in range(5)], impatient.enqueue(block=True)
    start(slots=1, target=TARGET)
    assert finished(blocker) is State.FAILED
    assert [finished(job) for job in neighbours] == 5 * [State.SUCCEEDED]
    assert outcomes(queue, blocker) == [Outcome.TIMED_OUT]


@pytest.mark.long
def test_a_lifespan_may_take_longer_than_a_job_may_block(start, go, monkeypatch):
    monkeypatch.setenv("LIFESPAN_S", "3")
    job = guest.enqueue()
    worker = start(slots=1, target=TARGET, block_s="1")
    assert job.result(timeout=30)
    assert "stood still" not in worker.log()


def test_a_worker_that_stops_gives_back_what_shares_at_no_cost(start, queue, go):
    jobs = [guest.enqueue(str(go)) for _ in range(20)]
    worker = start(slots=1, target=TARGET, grace_s="6")
    eventually(lambda: all(job.status() is State.RUNNING for job in jobs), within_s=30)
    worker.stop()
    go.touch()
    start(slots=1, target=TARGET)
    assert all(job.result(timeout=30) for job in jobs)
    assert all(outcomes(queue, job) == [Outcome.RELEASED, Outcome.SUCCEEDED] for job in jobs)


@pytest.mark.parametrize("what", ["drain", "reload"])
def test_a_worker_that_drains_or_reloads_under_load_gives_no_shared_job_back(start, queue, database_url, go, what):
    worker = start(slots=2, target=TARGET, name="web-7", heartbeat_s="0.5")
    jobs = app.enqueue_many([nap.job(1) for _ in range(1500)])
    eventually(lambda: queue.value("select count(*) from outlive.running") > 100, within_s=30)
    assert Cli(database_url)(what, "web-7").code == 0
    if what == "drain":
        assert worker.process.wait(30) == 0
        start(slots=2, target=TARGET)
    outlive.gather(jobs, timeout=60)
    assert Counter(queue.values("select outcome from outlive.attempts")) == {"succeeded": 1500}
