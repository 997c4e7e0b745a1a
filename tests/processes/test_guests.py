"""Browsers, node, numpy and pools of threads in jobs with a memory limit. Their leftovers end with the job."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import outlive
from outlive import linux, store
from outlive.model import Attempt
from outlive.states import Outcome, State
from tests import guests
from tests.driving.making import Queue
from tests.driving.workers import Start, Worker, alive, cmdline
from tests.waiting import eventually

needs_chromium = pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here: Debian's package chromium")
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="no node here: Debian's package nodejs")


@pytest.fixture
def worker(start: Start) -> Worker:
    return start(target="tests.guests:app")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """The directory of a browser's files. Most of its processes have it in their command lines."""
    return str(tmp_path / "profile")


def only_attempt(queue: Queue, job: outlive.Job[Any]) -> Attempt:
    (only,) = eventually(lambda: queue.run(store.list_attempts(job.id)), within_s=30, what=f"{job} ends")
    return only


def opened(profile: str) -> list[int]:
    """Wait until the browser is open; returns its processes, as the job saw them."""
    eventually(Path(profile + ".opened").exists, within_s=30, what="the browser is there")
    pids = [int(word) for word in Path(profile + ".opened").read_text().split()]
    assert len(pids) >= 4
    return pids


def left_of(profile: str, pids: list[int]) -> list[bytes]:
    """The living processes of a browser: those that the job saw, and later ones."""
    everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    marked = [pid for pid in everybody if profile.encode() in cmdline(pid)]
    return [cmdline(pid) for pid in {*pids, *marked} if alive(pid)]


@needs_chromium
def test_a_browser_renders_a_page_within_a_memory_limit(worker, profile, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<p id=answer></p><script>answer.textContent = 6 * 7</script>")
    assert '<p id="answer">42</p>' in guests.render.enqueue(profile, page.as_uri()).result(timeout=30)


def test_node_numpy_and_threads_work_within_a_memory_limit_and_jobs_draw_different_numbers(worker):
    if shutil.which("node"):
        assert guests.ask_node.enqueue("[3, 1, 2].sort().map(n => n * n).join()").result(timeout=30) == "1,4,9"
    assert guests.solve.enqueue(500).result(timeout=30) < 1e-9
    assert guests.meet_in_threads.enqueue(100).result(timeout=30) == 100
    jobs = [guests.draw_numbers.enqueue() for _ in range(10)]
    drawn = [number for job in jobs for number in job.result(timeout=30)]
    assert len(set(drawn)) == 30


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@needs_chromium
@pytest.mark.parametrize(
    ("then", "outcome"),
    [
        ("return", Outcome.SUCCEEDED),
        pytest.param("crash", Outcome.CRASHED, marks=pytest.mark.long),
        ("be killed", Outcome.CRASHED),
        ("stall", Outcome.TIMED_OUT),
        pytest.param("be cancelled", Outcome.CANCELLED, marks=pytest.mark.long),
    ],
)
def test_a_browser_is_gone_with_a_job_that_ends_before_it(worker, queue, profile, then, outcome):
    job = guests.browse.using(stall=0.5 if then == "stall" else 60).enqueue(profile, then)
    pids = opened(profile)
    if then == "be killed":
        kill([child for child in worker.children() if set(pids) & set(linux.descendants_of(child))])
    elif then == "be cancelled":
        job.cancel()
    assert only_attempt(queue, job).outcome is outcome
    eventually(lambda: not left_of(profile, pids), within_s=2, what="the browser is gone")


@needs_chromium
@pytest.mark.parametrize("first", ["worker", "zygote"])
def test_a_browser_stays_without_its_zygote_and_is_gone_with_its_worker(worker, queue, profile, first):
    job = guests.browse.enqueue(profile, "stay")
    pids = opened(profile)
    if first == "zygote":
        zygote = worker.zygote()
        kill([zygote])
        eventually(lambda: worker.zygote() != zygote, within_s=30, what="there is another zygote")
        assert all(alive(pid) for pid in pids)
        assert job.status() is State.RUNNING
    kill([worker.pid])
    eventually(lambda: not left_of(profile, pids), within_s=2, what="the browser is gone")


@needs_chromium
def test_a_browser_with_a_growing_page_is_ended_for_its_memory(worker, queue, profile):
    job = guests.browse_a_growing_page.enqueue(profile)
    ended = only_attempt(queue, job)
    assert (ended.outcome, job.status()) == (Outcome.OUT_OF_MEMORY, State.QUARANTINED)
    assert (ended.peak_memory_bytes or 0) > 512_000_000
    eventually(lambda: not left_of(profile, []), within_s=2, what="the browser is gone")


@needs_node
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(guests.GROWING_SCRIPT, id="one", marks=pytest.mark.long),
        pytest.param(guests.FAMILY_SCRIPT, id="three"),
    ],
)
def test_node_is_ended_for_the_memory_that_all_its_processes_have_together(worker, queue, tmp_path, script):
    path = tmp_path / "script.js"
    path.write_text(script)
    ended = only_attempt(queue, guests.run_node.enqueue(str(path), "3"))
    assert ended.outcome is Outcome.OUT_OF_MEMORY
    assert (ended.peak_memory_bytes or 0) > 256_000_000
    eventually(lambda: not left_of(str(path), []), within_s=2, what="node is gone")
