"""Isolation."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from outlive import BadArguments, Job, JobProgress, State, config
from outlive.humanize import short_id
from outlive.states import Outcome
from tests import faults
from tests.driving.jobs import attempts, finished, outcomes
from tests.driving.making import Queue
from tests.driving.workers import Worker, alive, all_gone
from tests.waiting import eventually

Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the tasks of tests/guarantees/written.py."""
    path = tmp_path / "app.py"
    monkeypatch.setenv("TESTED_APP", str(path))
    return lambda text: cast("None", path.write_text(text))


def job_of(queue: Queue, task: str, args: bytes = b"{}") -> Job[Any]:
    """Enqueue a job of a task that the test's process does not have."""
    return faults.app.get_job(queue.make(task, args=args, notify=True))


def test_the_supervisor_imports_none_of_the_users_code(start, write, queue, tmp_path):
    seen = tmp_path / "imported by"
    write(f"open({str(seen)!r}, 'a').write(f'{{os.getpid()}}\\n')\nimport _lsprof\n@app.task\ndef one(): return 1\n")
    worker = start(target="tests.guarantees.written:app")
    assert job_of(queue, "tests.guarantees.written.one").result(timeout=20) == 1
    assert seen.read_text().split() == [str(worker.zygote())]
    mapped = [Path(f"/proc/{pid}/maps").read_text() for pid in (worker.pid, worker.zygote())]
    assert ["_lsprof" in one for one in mapped] == [False, True]


def test_each_job_has_a_process_of_its_own_fresh_warm_or_cold(start):
    worker = start()
    fresh = [faults.own_pid.enqueue().result(timeout=20) for _ in range(3)]
    assert len({pid for pid, *_ in fresh}) == 3
    assert all(pid == group == session and parent in worker.parents() for pid, group, session, parent in fresh)
    warm = [faults.lukewarm.enqueue().result(timeout=20) for _ in range(4)]
    assert warm[0] == warm[1] != warm[2] == warm[3]
    assert "outlive.child.zygote" in faults.own_command.enqueue().result(timeout=20)
    assert "outlive.child.serving" in faults.own_command_cold.enqueue().result(timeout=20)


def test_a_flood_of_output_stops_nothing_and_its_tail_is_kept(start, queue, tmp_path):
    start()
    for_ever = faults.flood_for_ever.enqueue(str(tmp_path / "flows"))
    eventually((tmp_path / "flows").exists)
    neighbours = [faults.add.enqueue(n, 1) for n in range(20)]
    assert faults.flood.enqueue(100).result(timeout=30) == "done"
    assert [job.result(timeout=20) for job in neighbours] == [n + 1 for n in range(20)]
    assert for_ever.status() is State.RUNNING
    for_ever.cancel()
    finished(for_ever, State.CANCELLED)
    kept = attempts(queue, for_ever)[0].output or ""
    assert 60_000 < len(kept) <= 64 * 1024
    assert set(kept) == set("flood")


def test_a_hard_timeout_ends_whatever_a_job_does(start, queue):
    worker = start()
    assert config.load(environ={}).timeout_s == 3600
    polite, deaf, locked = (task.enqueue() for task in (faults.hang, faults.ignore_sigterm, faults.hold_the_gil))
    unlimited = faults.stall.using(timeout=None).enqueue()
    for job in (polite, locked, deaf):
        finished(job, State.FAILED)
        (only,) = attempts(queue, job)
        assert (only.outcome, only.error) == (Outcome.TIMED_OUT, "Hard timeout exceeded: it ran for more than 0.5 s")
        assert only.started_at
        assert "tests/faults.py" in (only.stack or "")
        took_s = (only.ended_at - only.started_at).total_seconds()
        assert 5.4 <= took_s < 9 if job is deaf else 0.5 <= took_s < 9
        assert queue.counters(job.id) == (1, 0, 0)
        assert worker.says(f"Job {short_id(job.id)} timed out")
    assert unlimited.status() is State.RUNNING
    unlimited.cancel()
    finished(unlimited, State.CANCELLED)


def test_what_a_job_returns_after_its_timeout_is_not_kept_and_its_checkpoint_is(start, queue):
    start()
    job = faults.return_late.enqueue()
    assert finished(job) is State.FAILED
    (only,) = attempts(queue, job)
    assert (only.outcome, only.result) == (Outcome.TIMED_OUT, None)
    assert queue.value("select value #>> '{}' from outlive.steps where job_id = %s", job.id) == "half"
    assert queue.value("select count(*) from outlive.records") == 0


def test_the_whole_process_group_is_ended(start, tmp_path):
    worker = start()
    job = faults.leave_grandchildren.using(timeout=1.5).enqueue(str(tmp_path / "pid"), stay=True)
    eventually((tmp_path / "pid.plain").exists)
    pids = [int((tmp_path / name).read_text()) for name in ("pid", "pid.plain")]
    assert all(alive(pid) for pid in pids)
    worker.says(f"Job {short_id(job.id)} timed out")
    all_gone(pids, within_s=2)


def test_a_bad_exit_ends_the_attempt_with_its_stderr(start, queue):
    start()
    for job, signal_name, exit_code in (
        (faults.complain_and_exit.using(max_crashes=1).enqueue(3), None, 3),
        (faults.complain_and_exit.using(max_crashes=1).enqueue(0), None, 0),
        (faults.die_by.using(max_crashes=1).enqueue("SIGABRT"), "SIGABRT", None),
    ):
        finished(job, State.QUARANTINED)
        (only,) = attempts(queue, job)
        assert (only.outcome, only.signal, only.exit_code) == (Outcome.CRASHED, signal_name, exit_code)
        if signal_name is None:
            assert "the complaint on stderr" in (only.output or "")


def test_memory_is_limited_for_the_whole_process_tree(start, queue):
    start()
    for job in (faults.eat_memory.enqueue(), faults.feed_a_grandchild.enqueue()):
        finished(job, State.QUARANTINED)
        (only,) = attempts(queue, job)
        assert only.outcome is Outcome.OUT_OF_MEMORY
        assert 64_000_000 < (only.peak_memory_bytes or 0) < 128_000_000
        assert queue.counters(job.id) == (0, 1, 0)
    core_soft, core_hard, address_space = faults.own_limits.enqueue().result(timeout=20)
    assert (core_soft, core_hard, address_space) == (0, 0, -1)


def test_memory_used_before_a_job_does_not_count_as_the_jobs(start, queue):
    start(slots=1)
    first = faults.use_memory.enqueue(40, keep=True)
    second = faults.use_memory.enqueue(40)
    small = faults.use_memory.enqueue(1)
    assert first.result(timeout=20) == second.result(timeout=20) == small.result(timeout=20)
    before, after = (attempts(queue, job)[0].peak_memory_bytes or 0 for job in (second, small))
    assert after < before - 30_000_000


def test_a_large_app_does_not_raise_the_limit(start, write, queue):
    write(
        "import time\nballast = b'x' * 200_000_000\n"
        "@app.task(memory='64MB', max_crashes=1)\ndef eat():\n"
        "    eaten = []\n    while True:\n        eaten.append(b'x' * 4_000_000); time.sleep(0.01)\n"
    )
    start(target="tests.guarantees.written:app")
    job = job_of(queue, "tests.guarantees.written.eat")
    finished(job, State.QUARANTINED)
    (only,) = attempts(queue, job)
    assert only.outcome is Outcome.OUT_OF_MEMORY
    # The watch or, where there is a cgroup, the kernel was faster.
    assert re.search(r"over the limit of 64,000,000|the kernel .* the job may have 64,000,000 bytes", only.error or "")
    if measured := re.search(r"had ([\d,]+) bytes", only.error or ""):
        assert 64_000_000 < int(measured[1].replace(",", "")) < 128_000_000


COLD = """
import sys, time
ballast = b"x" * 150_000_000 if sys.argv[0].endswith("zygote.py") else b""
@app.task(memory="64MB", max_crashes=1, preload=False)
def cold(megabytes, end=""):
    eaten = []
    for _ in range(megabytes):
        eaten.append(b"x" * 1_000_000); time.sleep(0.005)
    time.sleep(0.3)
    if end: os.kill(os.getpid(), getattr(signal, end))
"""


def test_a_job_in_a_new_interpreter_has_no_share_of_the_zygotes_memory_and_a_peak_of_its_own(start, write, queue):
    write("import signal" + COLD)
    start(target="tests.guarantees.written:app")
    job = job_of(queue, "tests.guarantees.written.cold", b'{"megabytes": 200}')
    finished(job, State.QUARANTINED)
    (only,) = attempts(queue, job)
    assert only.outcome is Outcome.OUT_OF_MEMORY
    # The watch or, where there is a cgroup, the kernel was faster.
    assert re.search(r"over the limit of 64,000,000|the kernel .* the job may have 64,000,000 bytes", only.error or "")

    for args, state in (
        (b'{"megabytes": 20}', State.SUCCEEDED),
        (b'{"megabytes": 20, "end": "SIGSEGV"}', State.QUARANTINED),
    ):
        job = job_of(queue, "tests.guarantees.written.cold", args)
        finished(job, state)
        (only,) = attempts(queue, job)
        assert 20_000_000 < (only.peak_memory_bytes or 0) < 100_000_000


def test_plain_and_async_functions_take_and_give_values_as_annotated(start, queue):
    start()
    assert faults.add.enqueue(1, b=2).result(timeout=20) == 3
    assert faults.add_slowly.enqueue(3, 4).result(timeout=20) == 7
    price, due = Decimal("0.10"), date(2030, 1, 31)
    assert repr(faults.invoice.enqueue(price, due).result(timeout=20)) == repr((price, due))
    wrong = job_of(queue, faults.invoice.name, b'{"price": "1", "due": 5}')
    assert finished(wrong) is State.FAILED, "for good: it may have five attempts"
    assert [one.error for one in attempts(queue, wrong)] == ["BadArguments: argument due: expected date, got int"]


def test_a_result_that_cannot_be_stored_is_a_clear_failure_at_once(start, queue):
    start()
    expected = {
        "huge": "over the limit of 1,048,576",
        "nan": "nan",
        "nul": "NUL",
        "surrogate": "surrogate",
        "object": "object",
        "set": "set",
    }
    for kind, words in expected.items():
        job = faults.return_this.using(max_attempts=5).enqueue(kind)
        finished(job, State.FAILED)
        (only,) = attempts(queue, job)
        assert only.outcome is Outcome.FAILED
        assert "the result" in (only.error or "")
        assert words.lower() in (only.error or "").lower(), kind


def test_a_wrong_type_is_refused_where_the_job_is_enqueued(queue: Queue) -> None:
    with pytest.raises(BadArguments, match="invoice can't be enqueued: argument price: expected Decimal, got float"):
        faults.invoice.enqueue(0.1, date(2030, 1, 31))  # type: ignore[arg-type]
    assert queue.execute("select count(*) from outlive.jobs").fetchone() == (0,)


def test_progress_is_shown_live_and_a_checkpoint_is_handed_to_the_next_attempt(start, queue, tmp_path):
    start()
    job = faults.show_progress.enqueue(str(tmp_path / "go"))

    reported = JobProgress(State.RUNNING, 1, 3, 10, "page 3")
    eventually(lambda: job.progress() == reported, within_s=5)
    assert asyncio.run(job.aprogress()) == reported
    (tmp_path / "go").touch()
    finished(job, State.SUCCEEDED)
    steps = faults.step_by_step.enqueue(4)
    assert steps.result(timeout=20) == [4, 4]
    row = queue.row_of(steps.id)
    assert (row["current"], row["total"], row["message"]) == (4, 4, "step 4")


def test_a_job_that_makes_no_progress_is_ended(start, queue):
    worker = start()
    moving, stalled = faults.keep_moving.enqueue(12), faults.stall.using(stall=0.5).enqueue()
    finished(stalled, State.FAILED)
    assert attempts(queue, stalled)[0].error == "Stalled: no progress for 0.5 s"
    assert worker.says(f"Job {short_id(stalled.id)} timed out")
    assert moving.result(timeout=20) == "moved"


def test_a_running_job_is_cancelled_by_sigterm_within_a_second_then_by_sigkill(start, queue, tmp_path):
    start()
    polite = faults.clean_up.enqueue(str(tmp_path / "polite"))
    stubborn = faults.ignore_all.enqueue(str(tmp_path / "stubborn"))
    eventually(lambda: (tmp_path / "polite.started").exists() and (tmp_path / "stubborn").exists())
    asked_at = time.monotonic()
    assert polite.cancel()
    assert stubborn.cancel()
    eventually((tmp_path / "polite").exists, within_s=1)
    finished(polite, State.CANCELLED, within_s=2)
    assert (tmp_path / "polite").read_text() == "cleaned up"
    finished(stubborn, State.CANCELLED, within_s=10)
    assert 5 <= time.monotonic() - asked_at < 8
    assert outcomes(queue, polite) == outcomes(queue, stubborn) == [Outcome.CANCELLED]
    assert queue.counters(stubborn.id) == (0, 0, 0)


def test_on_sigterm_jobs_may_finish_and_the_rest_is_released_at_no_cost(start, queue, tmp_path):
    worker = start(grace_s="6", lease_s="2")
    told = faults.stop_with_progress.enqueue(str(tmp_path / "told"))
    polite = faults.clean_up.enqueue(str(tmp_path / "polite"))
    stubborn = faults.ignore_all.enqueue(str(tmp_path / "stubborn"))
    eventually(lambda: all((tmp_path / name).exists() for name in ("told", "polite.started", "stubborn")))
    asked_at = time.monotonic()
    worker.send(signal.SIGTERM)
    worker.says(" stops: ")
    late = faults.add.enqueue(1, 1)
    assert told.result(timeout=2) == "told in time"
    eventually((tmp_path / "polite").exists)
    assert 1 <= time.monotonic() - asked_at < 4
    pid = int((tmp_path / "stubborn").read_text())
    assert worker.process.wait(20) == 0
    assert 6 <= time.monotonic() - asked_at < 9
    assert not alive(pid)
    for job in (polite, stubborn):
        assert job.status() is State.PENDING
        assert outcomes(queue, job) == [Outcome.RELEASED]
        assert queue.counters(job.id) == (0, 0, 0)
    assert (late.status(), attempts(queue, late)) == (State.PENDING, [])


def test_a_slow_database_does_not_cost_the_last_job_its_end(start, queue, tmp_path):
    worker = start()
    told = faults.stop_with_progress.enqueue(str(tmp_path / "told"))
    eventually((tmp_path / "told").exists)
    with queue.transaction():
        queue.execute("lock table outlive.running in exclusive mode")
        worker.send(signal.SIGTERM)
        worker.says(f"Job {short_id(told.id)} completed successfully")
        eventually(lambda: not worker.tree(), what="its processes are gone")
    assert worker.process.wait(20) == 0
    assert told.result(timeout=0) == "told in time"


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_it_at_once(start, tmp_path, second):
    worker = start()
    polite = faults.clean_up.enqueue(str(tmp_path / "polite"))
    eventually((tmp_path / "polite.started").exists)
    worker.send(signal.SIGTERM)
    worker.says(" stops: ")
    assert worker.stop(second, within_s=3) == 0
    assert (tmp_path / "polite").read_text() == "cleaned up"
    assert polite.status() is State.PENDING


def test_a_worker_claims_only_tasks_that_it_has(start, queue):
    start()
    strangers = [job_of(queue, "shop.tasks.fetch") for _ in range(10)]
    assert faults.add.enqueue(1, 2).result(timeout=20) == 3
    assert [(job.status(), attempts(queue, job)) for job in strangers] == [(State.PENDING, [])] * 10


def reload(worker: Worker) -> None:
    def reloads() -> int:
        return worker.log().count("the app was reloaded") + worker.log().count("the reload failed")

    before = reloads()
    os.kill(worker.pid, signal.SIGHUP)
    eventually(lambda: reloads() > before)


def test_a_task_that_is_gone_is_released_for_5_s_untouched(start, write, queue):
    task = "@app.task(preload=False)\ndef cold(): return 'here again'\n"
    write(task)
    worker = start(target="tests.guarantees.written:app")
    write("")
    job = job_of(queue, "tests.guarantees.written.cold")
    eventually(lambda: attempts(queue, job))
    (only,) = attempts(queue, job)
    assert (only.outcome, job.status()) == (Outcome.RELEASED, State.PENDING)
    assert queue.counters(job.id) == (0, 0, 0)
    waits = queue.execute("select ready_at - %s between '4.9 s' and '5.1 s' from outlive.waiting", [only.ended_at])
    assert waits.fetchone() == (True,)
    reload(worker)
    write(task)
    reload(worker)
    assert job_of(queue, "tests.guarantees.written.cold").result(timeout=20) == "here again"


def test_a_reload_that_fails_leaves_the_old_app(start, write, queue):
    write("@app.task\ndef version(): return 1\n")
    worker = start(target="tests.guarantees.written:app")
    write("this is no Python")
    reload(worker)
    assert job_of(queue, "tests.guarantees.written.version").result(timeout=20) == 1
    write("@app.task\ndef version(): return 2\n")
    reload(worker)
    assert job_of(queue, "tests.guarantees.written.version").result(timeout=20) == 2
    eventually(lambda: len(worker.zygotes()) == 1)
