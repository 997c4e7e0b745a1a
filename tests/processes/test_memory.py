"""A limit on memory counts all memory that a job takes, of every kind, and no memory of others."""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from outlive.client.job import Job
from outlive.states import Outcome, State
from tests import faults
from tests.driving.commands import Cli
from tests.driving.jobs import attempts, finished
from tests.driving.workers import alive
from tests.processes.groups import HIDDEN
from tests.waiting import eventually


@pytest.fixture
def in_shared_memory() -> Iterator[Path]:
    """The path of a new file in /dev/shm."""
    path = Path(f"/dev/shm/outlive-test-{uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.fault(58)
def test_memory_that_no_process_has_for_itself_counts(start, queue, in_shared_memory):
    start()
    jobs = [faults.fill_shared_memory.enqueue(how, 300) for how in ("mmap", "memfd", str(in_shared_memory))]
    for job in jobs:
        assert finished(job) is State.QUARANTINED
        (only,) = attempts(queue, job)
        assert only.outcome is Outcome.OUT_OF_MEMORY
        assert 64_000_000 < (only.peak_memory_bytes or 0) < 200_000_000


@pytest.mark.long
def test_processes_that_are_read_in_portions_count_together_and_pages_that_they_share_count_once(start, queue):
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("cgroups can be hidden from a worker only by root, with unshare")
    worker = start(within=HIDDEN)
    assert worker.says("memory is limited by polling")
    many = faults.start_many.using(memory="160MB")
    modest, greedy = many.enqueue(100, 1, 2), many.enqueue(100, 1_500_000, 60)
    assert finished(greedy) is State.QUARANTINED
    (only,) = attempts(queue, greedy)
    assert "over the limit" in (only.error or "")
    assert modest.result(timeout=20) == 0


def test_how_its_memory_changed_is_kept_with_an_attempt_that_was_killed(start, queue, database_url):
    start(slots=3)
    eater, hung = faults.eat_slowly.enqueue(), faults.stall.using(timeout="2.5s").enqueue()
    short = faults.use_memory.enqueue(1, keep=False)
    assert finished(eater) is State.QUARANTINED
    course = attempts(queue, eater)[0].memory
    assert course is not None
    assert course.limit_bytes == 64_000_000
    assert course.used_bytes[0] < course.used_bytes[-1]
    assert course.at_s == sorted(course.at_s)
    assert "limit 64 MB" in Cli(database_url)("show", eater.id).out
    assert finished(short) is State.SUCCEEDED
    assert attempts(queue, short)[0].memory is None
    assert finished(hung) is State.FAILED
    course = attempts(queue, hung)[0].memory
    assert course is not None
    assert (course.limit_bytes, course.at_s[0] >= 1) == (None, True)


def test_how_its_memory_changes_is_seen_while_a_job_runs_and_written_only_for_those_who_look(
    start, queue, database_url
):
    start(slots=2)
    jobs = [faults.stall.using(memory="64MB").enqueue(), faults.stall.enqueue()]
    eventually(lambda: {job.status() for job in jobs} == {State.RUNNING}, what="both run")
    assert queue.count("watched") == 0
    show = Cli(database_url)

    def so_far_of(job: Job[None]) -> Any:
        return show("show", job.id, "--json").json["running"]["memory"]

    for job, limit_bytes in zip(jobs, (64_000_000, None), strict=True):
        so_far = eventually(partial(so_far_of, job), what="it is seen")
        assert so_far["limit_bytes"] == limit_bytes
        assert 2 <= len(so_far["at_s"]) == len(so_far["used_bytes"])
        assert "  memory " in show("show", job.id).out
        job.cancel()


def test_memory_both_mapped_and_open_counts_once_and_files_of_others_not_at_all(start, queue, in_shared_memory):
    with in_shared_memory.open("wb") as file:
        file.write(b"x" * 100_000_000)
    start()
    mapped = faults.fill_shared_memory.enqueue("mapped memfd", 45)
    reader = faults.read_shared_memory.enqueue(str(in_shared_memory))
    assert mapped.result(timeout=20) == 45
    assert reader.result(timeout=20) == 1 << 20
    in_shared_memory.write_bytes(b"x" * 40_000_000)
    job = faults.fill_shared_memory.enqueue(str(in_shared_memory), 300)
    assert finished(job) is State.QUARANTINED, "it counts as far as the job makes it grow"
    assert attempts(queue, job)[0].outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.fault(72)
@pytest.mark.parametrize("how", [*(pytest.param(how, marks=pytest.mark.long) for how in ("open", "read")), "write"])
@pytest.mark.parametrize("made", ["before the job", "while it runs"])
def test_shared_memory_of_a_neighbour_counts_against_no_job_that_attaches_to_it(
    start, queue, in_shared_memory, made, how
):
    start()
    waits = None
    if made == "while it runs":
        job = waits = faults.attach_shared_memory.enqueue(str(in_shared_memory), how)
        # What is made before the worker has looked at the job's files for the first time may be the job's own.
        runs = "select from outlive.running where started_at < clock_timestamp() - interval '500 ms'"
        eventually(lambda: queue.execute(runs).fetchall(), within_s=20)
    own = in_shared_memory.with_name(f"{in_shared_memory.name}.part")
    with own.open("wb") as file:
        file.write(b"x" * 100_000_000)
        own.rename(in_shared_memory)
        job = waits or faults.attach_shared_memory.enqueue(str(in_shared_memory), how)

        def over() -> bool:
            os.pwrite(file.fileno(), b"y", 0)  # It changes while the job runs.
            return job.status() not in (State.PENDING, State.RUNNING)

        eventually(over, within_s=30, what="the job has ended")
    (only,) = attempts(queue, job)
    assert (only.outcome, only.error) == (Outcome.SUCCEEDED, None)


@pytest.mark.fault(58)
def test_a_warm_child_that_goes_on_eating_when_it_is_idle_is_replaced(start, queue):
    worker = start(slots=1)
    first = faults.eat_when_idle.enqueue(2_000)
    pid = first.result(timeout=20)
    eventually(lambda: not alive(pid), within_s=10, what="the child that eats is gone")
    assert worker.says("of its earlier jobs, over their limit")
    assert attempts(queue, first)[0].outcome is Outcome.SUCCEEDED
    assert faults.eat_when_idle.enqueue(1).result(timeout=20) != pid


@pytest.mark.fault(58)
def test_a_warm_child_that_has_kept_more_than_the_limit_takes_no_further_job(start, queue):
    start(slots=1)
    jobs = [faults.use_memory.enqueue(40, keep=True) for _ in range(8)]
    pids = [job.result(timeout=30) for job in jobs]
    assert max(pids.count(pid) for pid in pids) <= 3
    assert {attempts(queue, job)[0].outcome for job in jobs} == {Outcome.SUCCEEDED}
