"""Jobs that wait: they hold no slot, their processes go on where they were, and whatever dies, none waits for ever."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outlive import Job, State, config, store
from outlive.errors import JobEnded, JobFailed, JobNotFound
from outlive.states import Outcome
from outlive.worker.attempts.job_calls import LOCK_S
from outlive.worker.processes.zygotes import MOST_LEAVING
from tests.driving.jobs import outcomes
from tests.driving.workers import alive, all_gone
from tests.processes.suspending import (
    Packed,
    app,
    asleeper,
    deaf,
    drowsy,
    gatherer,
    greedy,
    hasty,
    hoarder,
    hurried,
    notch,
    patient,
    receiver,
    sleeper,
    tells,
    waits_in_its_transaction,
    wary,
)
from tests.waiting import eventually

TARGET = "tests.processes.suspending:app"
CUT = """select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid not in (pg_backend_pid(), %s)"""


@pytest.fixture
def notes(database_url: str, tmp_path: Path) -> Iterator[Path]:
    """A file in which jobs note where they come by."""
    file = tmp_path / "notes"
    file.touch()
    app.configure(config.load(flags={"database_url": database_url}))
    yield file
    app.configure(None)


def lines(notes: Path) -> list[str]:
    return [line.split()[0] for line in notes.read_text().splitlines()]


def pids(notes: Path) -> set[str]:
    return {line.split()[-1] for line in notes.read_text().splitlines()}


def suspended(job: Job[Any]) -> bool:
    return job.status() is State.SUSPENDED


def test_a_job_goes_on_from_its_waits_in_its_process_with_what_it_has(start, notes, queue):
    files = [notes.with_name(f"notes-{n}") for n in range(5)]
    slept, early, late, gathered, failing = map(str, files)
    sleeping, awaiting = sleeper.enqueue("300ms", slept), asleeper.enqueue("100ms", str(notes))
    received, in_vain = receiver.enqueue(early), receiver.enqueue(late, "200ms")
    gathers, hears = gatherer.enqueue(gathered), gatherer.enqueue(failing, failing=True)
    received.send("packed", Packed([5]))  # Before it waits for it.
    awaiting.send("packed", Packed([1, 2]))
    start(target=TARGET)
    assert sleeping.result(timeout=30) == 700
    assert lines(files[0]) == ["begun", "charge", "slept"]
    assert len(pids(files[0])) == 1
    assert received.result(timeout=30) == [5]
    assert in_vain.result(timeout=30) == []
    assert lines(files[2]) == ["begun", "in"], "its signal did not come in time"
    assert gathers.result(timeout=30) == ["label 0", "label 1", "label 2"]
    assert lines(files[3]) == ["begun", "gathered"]
    with pytest.raises(JobFailed, match="no paper"):
        hears.result(timeout=30)
    assert awaiting.result(timeout=30) == "label 1,label 2"
    assert queue.value("select count(*) from outlive.signals") == 0, "each was received once"
    with pytest.raises(JobEnded, match=f"job {received.id} takes no signal packed: it has ended, and is succeeded"):
        received.send("packed", Packed([6]))
    with pytest.raises(JobNotFound):
        app.get_job(uuid4()).send("packed", Packed([6]))


def test_a_job_that_waits_holds_no_slot(start, notes):
    waiting = [receiver.enqueue(str(notes)) for _ in range(3)]
    start(slots=1, target=TARGET)
    eventually(lambda: all(map(suspended, waiting)), within_s=30)
    for job in waiting:
        job.send("packed", Packed([1, 2]))
    assert [job.result(timeout=30) for job in waiting] == [[1, 2]] * 3
    assert lines(notes).count("begun") == 3, "none was replayed"


def test_parked_processes_do_not_count_as_about_to_exit(start, notes):
    start(slots=1, target=TARGET)
    waiting = app.enqueue_many(sleeper.job("1h", str(notes)) for _ in range(MOST_LEAVING + 10))
    eventually(lambda: all(map(suspended, waiting)), within_s=20)


def test_a_job_sends_signals_to_another_job(start, notes, queue):
    job = receiver.enqueue(str(notes))
    tells.enqueue(job.id)
    start(slots=1, target=TARGET)  # So the first job goes on when the other one has sent both.
    assert job.result(timeout=30) == [1]
    assert queue.values("select value::text from outlive.signals") == ['{"parcels":[2]}']


def test_a_job_that_waits_in_its_open_transaction_or_in_another_task_is_told_what_to_write(start, notes, database_url):
    within, apart = waits_in_its_transaction.enqueue(database_url), hasty.enqueue(str(notes), apart=True)
    start(target=TARGET)
    with pytest.raises(JobFailed, match="the job can't wait while a transaction is open in which it has called `once`"):
        within.result(timeout=30)
    with pytest.raises(JobFailed, match=r"a job waits in its own task only: await .*areceive\(…, timeout=…\)"):
        apart.result(timeout=30)


@pytest.mark.long
def test_a_job_begins_to_wait_however_long_another_transaction_locks_it(start, notes, connect):
    go = notes.with_name("go")
    job, stranger = patient.enqueue(str(notes), str(go)), connect()
    start(target=TARGET)
    eventually(lambda: job.status() is State.RUNNING)
    stranger.execute("begin")
    stranger.run(store.send(job.id, "other", b"7"))
    go.touch()
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > LOCK_S + 1, within_s=LOCK_S + 10)
    assert job.status() is State.RUNNING
    stranger.execute("commit")
    eventually(lambda: job.status() is State.SUSPENDED)
    job.send("packed", Packed([3]))
    assert job.result(timeout=30) == [3]


@pytest.mark.long
def test_a_job_that_a_lock_holds_up_begins_to_wait_after_the_database_has_cut_its_connections(
    start, notes, queue, connect
):
    go = notes.with_name("go")
    job, stranger = notch.enqueue(str(notes), str(go)), connect()
    worker = start(target=TARGET)
    eventually(lambda: job.status() is State.RUNNING)
    stranger.execute("begin")
    stranger.run(store.supply(job.id, "tally", b"7", "a stranger", replacing=False))
    go.touch()
    worker.says("another transaction holds a lock that the step tally", within_s=30)
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > LOCK_S + 1, within_s=LOCK_S + 10)
    queue.execute(CUT, [stranger.info.backend_pid])
    worker.says("a connection to the database was lost")
    stranger.execute("commit")
    assert job.result(timeout=10) == 3


def test_a_signal_that_does_not_fit_its_type_says_how_to_give_the_job_another_one(start, notes, queue):
    job = receiver.using(max_attempts=1).enqueue(str(notes))
    job.send("packed", {"boxes": 1})
    start(target=TARGET)
    hint = f"the signal packed: .*; `outlive supply {job.id} receive:packed JSON --replace` gives it another value"
    with pytest.raises(JobFailed, match=hint):
        job.result(timeout=30)
    queue.run(store.supply(job.id, "receive:packed", b'{"parcels": [3]}', "someone", replacing=True))
    assert job.retry()
    assert job.result(timeout=30) == [3]


def test_a_job_whose_worker_dies_while_it_waits_is_replayed_elsewhere(start, notes):
    job = receiver.enqueue(str(notes))
    first = start(target=TARGET)
    eventually(lambda: suspended(job), within_s=30)
    first.kill()
    job.send("packed", Packed([8]))
    start(target=TARGET)
    assert job.result(timeout=30) == [8]
    assert lines(notes) == ["begun", "begun", "received"]


def test_a_parked_process_that_dies_costs_its_job_nothing(start, notes, queue):
    job = receiver.enqueue(str(notes))
    worker = start(target=TARGET)
    eventually(lambda: suspended(job), within_s=30)
    [pid] = pids(notes)
    os.kill(int(pid), signal.SIGKILL)
    assert worker.says("waits, and its process has died: the process was killed by SIGKILL")
    job.send("packed", Packed([8]))
    assert job.result(timeout=30) == [8]
    assert outcomes(queue, job) == [Outcome.SUCCEEDED]


def test_a_job_that_waits_after_its_zygote_was_replaced_gives_up_its_process(start, notes, tmp_path):
    """The process is not kept for half a minute, and does not go on with the old code."""
    worker = start(target=TARGET)
    for fault in ("the zygote dies", "reload"):
        file, go = notes.with_name(f"notes of {fault}"), tmp_path / fault
        file.touch()
        job = patient.enqueue(str(file), str(go))
        [pid] = map(int, eventually(lambda: pids(file), within_s=30))  # noqa: B023
        if fault == "reload":
            worker.send(signal.SIGHUP)
            worker.says("reloaded")
        else:
            os.kill(worker.zygote(), signal.SIGKILL)
            worker.says("the zygote died")
        go.touch()
        eventually(lambda: suspended(job), within_s=30)  # noqa: B023
        all_gone([pid], within_s=15)
        job.send("packed", Packed([8]))
        assert job.result(timeout=30) == [8]


def test_the_code_of_a_parked_process_that_is_ended_does_not_go_on(start, notes):
    """A call that raised would let the job undo what it has done, while another process goes on with it."""
    worker = start(target=TARGET)
    for fault in ("the zygote dies", "reload", "stop"):
        file = notes.with_name(f"notes of {fault}")
        job = wary.enqueue(str(file))
        eventually(lambda: suspended(job), within_s=30)  # noqa: B023
        [pid] = map(int, pids(file))
        if fault == "the zygote dies":
            os.kill(worker.zygote(), signal.SIGKILL)
        else:
            worker.send(signal.SIGHUP if fault == "reload" else signal.SIGTERM)
        all_gone([pid], within_s=30)
        job.send("packed", Packed([8]))
        if fault == "stop":
            start(target=TARGET)
        assert job.result(timeout=30) == [8]
        assert lines(file) == ["begun", "begun"]
    assert "it is killed" not in worker.log()


def test_a_worker_with_parked_processes_stops_at_once_and_its_jobs_go_on_waiting(start, notes):
    worker = start(target=TARGET)
    jobs = [sleeper.enqueue("1h", str(notes)) for _ in range(2)]
    eventually(lambda: all(map(suspended, jobs)), within_s=10)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 5
    assert all(map(suspended, jobs))
    assert not any(map(alive, map(int, pids(notes))))


@pytest.mark.parametrize("setting", ["park_bytes", "park_s"])
def test_a_process_is_parked_while_there_is_memory_and_time_for_it(start, notes, setting):
    """A process takes more than 1 MB, and the worker looks each second."""
    job = receiver.enqueue(str(notes))
    start(target=TARGET, **{setting: "1MB" if setting == "park_bytes" else "0.1"})
    eventually(lambda: suspended(job), within_s=30)
    all_gone([int(pid) for pid in pids(notes)], within_s=30)
    assert suspended(job)
    job.send("packed", Packed([8]))
    assert job.result(timeout=30) == [8]
    assert lines(notes) == ["begun", "begun", "received"]


def test_the_process_that_was_parked_first_makes_room_for_the_last(start, notes):
    start(target=TARGET, slots=1, park_bytes="100MB")
    jobs = [hoarder.enqueue(str(notes)) for _ in range(2)]
    eventually(lambda: all(map(suspended, jobs)) and len(pids(notes)) == 2, within_s=30)
    first, last = (int(line.split()[-1]) for line in notes.read_text().splitlines())
    all_gone([first], within_s=30)
    for job in jobs:
        job.send("packed", Packed([8]))
    assert [job.result(timeout=30) for job in jobs] == [[8]] * 2
    assert f"received {last}" in notes.read_text()
    assert lines(notes).count("begun") == 3


def test_a_parked_process_over_the_memory_of_its_task_is_ended_and_its_job_goes_on(start, notes, queue):
    go = notes.with_name("go")
    job = greedy.enqueue(str(notes), str(go))
    worker = start(target=TARGET, park_s="120")
    eventually(lambda: suspended(job), within_s=30)
    go.touch()
    all_gone([int(pid) for pid in pids(notes)], within_s=30)
    assert worker.says("waits, and its process ")  # Where the kernel limits it, it may come first.
    assert "is ended: the job's processes had" in worker.log() or "has died: the kernel" in worker.log()
    job.send("packed", Packed([8]))
    assert job.result(timeout=30) == [8]
    assert lines(notes) == ["begun", "begun", "received"]
    assert outcomes(queue, job) == [Outcome.SUCCEEDED]


def test_what_parked_processes_share_with_their_zygote_does_not_count(start, notes, monkeypatch):
    """The app has 100 MB, which each of them inherits, and little more. The last one makes it look again."""
    monkeypatch.setenv("APP_BYTES", "100000000")
    start(target=TARGET, slots=1, park_bytes="130MB")
    jobs = [receiver.enqueue(str(notes)) for _ in range(3)]
    last = hoarder.enqueue(str(notes))
    eventually(lambda: all(map(suspended, [*jobs, last])), within_s=30)
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 2.5)
    for job in (*jobs, last):
        job.send("packed", Packed([8]))
    assert [job.result(timeout=30) for job in (*jobs, last)] == [[8]] * 4
    assert lines(notes).count("begun") == 4, "none was replayed"


def test_parked_processes_may_have_a_quarter_of_what_their_container_has(start, notes, group):
    group.limit(400)
    start(target=TARGET, slots=1, within=group.within)
    jobs = [hoarder.enqueue(str(notes)) for _ in range(2)]
    eventually(lambda: all(map(suspended, jobs)) and len(pids(notes)) == 2, within_s=30)
    first, last = (int(line.split()[-1]) for line in notes.read_text().splitlines())
    all_gone([first], within_s=15)
    for job in jobs:
        job.send("packed", Packed([8]))
    assert [job.result(timeout=30) for job in jobs] == [[8]] * 2
    assert f"received {last}" in notes.read_text()


def test_neither_the_timeout_nor_the_stall_of_a_task_counts_while_its_process_is_parked(start, notes, queue):
    """It waits for longer than it may run, and then stalls: its limits count from where it goes on."""
    job = drowsy.enqueue(str(notes), "4s")
    start(target=TARGET)
    with pytest.raises(JobFailed, match="Stalled: no progress for 1 s"):
        job.result(timeout=30)
    assert lines(notes) == ["begun", "slept"]
    assert len(pids(notes)) == 1
    assert outcomes(queue, job) == [Outcome.TIMED_OUT]


def test_what_was_decided_about_an_attempt_before_it_waits_is_not_done_to_the_next(start, notes, queue, connect):
    """A stranger holds up the wait until the time of the attempt is over."""
    stranger, job = connect(), hurried.enqueue(str(notes))
    stranger.execute("begin")
    stranger.execute("select from outlive.jobs for no key update")
    worker = start(target=TARGET)
    worker.says("timed out", within_s=30)
    stranger.execute("commit")
    eventually(lambda: suspended(job), within_s=30)
    job.send("packed", Packed([8]))
    assert job.result(timeout=30) == [8]
    assert outcomes(queue, job) == [Outcome.SUCCEEDED]


def test_a_timeout_of_asyncio_ends_no_wait_so_that_no_code_goes_on_in_the_process_of_a_job_that_waits(start, notes):
    job = hasty.enqueue(str(notes), apart=False)
    start(target=TARGET)
    eventually(lambda: suspended(job), within_s=30)
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 0.5)
    job.send("packed", Packed([8]))
    assert job.result(timeout=30) == [8]
    assert lines(notes) == ["begun"]
    assert len(pids(notes)) == 1


def test_a_result_that_does_not_come_in_time_says_what_its_job_waits_for_and_the_job_can_be_cancelled(start, notes):
    job = receiver.enqueue(str(notes))
    start(target=TARGET)
    eventually(lambda: suspended(job), within_s=30)
    with pytest.raises(TimeoutError, match=r"did not finish within 0 s; suspended: waits for the signal packed$"):
        job.result(timeout=0)
    assert job.cancel()
    assert job.status() is State.CANCELLED


def test_a_job_ends_by_its_deadline_whether_it_runs_or_waits_in_a_parked_process_or_in_none(start, notes, queue):
    late = receiver.using(deadline="1h")
    unparked, parked, running = late.enqueue(str(notes)), late.enqueue(str(notes)), deaf.enqueue(str(notes))
    jobs: list[Job[Any]] = [unparked, parked, running]
    start(target=TARGET, slots=3)
    eventually(lambda: suspended(unparked) and suspended(parked) and len(lines(notes)) == 3, within_s=30)
    queue.run(store.unpark(queue.value("select parked_by from outlive.held where id = %s", unparked.id), [unparked.id]))
    assert running.status() is State.RUNNING
    queue.execute("update outlive.expiring set expires_at = now()")
    for job in jobs:
        with pytest.raises(JobFailed, match="deadline: it had to end by"):
            job.result(timeout=30)
        assert job.status() is State.CANCELLED
    assert lines(notes) == ["begun"] * 3
    assert [outcomes(queue, job) for job in jobs] == [[Outcome.CANCELLED]] * 3
    assert queue.value("select count(*) from outlive.expiring") == 0
