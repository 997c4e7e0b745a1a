"""Processes that a job forks are not the job: only the answer of the job's own process counts."""

import pytest

from outlive.states import State
from tests import faults
from tests.driving.jobs import attempts, finished

CODES = {"exits": 5, "raises": 1, "returns": 0, "reports": 1, "asks": 1}


@pytest.mark.fault(59)
def test_a_forked_copy_answers_for_no_job(start, queue):
    start(slots=2)
    for task in (faults.fork_fresh, faults.fork_async):
        jobs = {how: task.enqueue(how) for how in CODES}
        assert {how: finished(job) for how, job in jobs.items()} == dict.fromkeys(CODES, State.SUCCEEDED)
        assert {how: job.result(timeout=20)[0] for how, job in jobs.items()} == CODES
        assert "ValueError: only a copy" in (attempts(queue, jobs["raises"])[0].output or "")
    found = queue.execute("select count(*) from outlive.progress where current = 99").fetchone()
    assert found == (0,), "a copy reported progress"
    assert queue.execute("select from outlive.jobs where dedupe_key is not null").fetchall() == []


@pytest.mark.fault(59)
def test_a_copy_in_a_warm_child_costs_the_next_job_nothing(start, queue):
    start(slots=1)
    seen = [faults.fork_warm.enqueue(how).result(timeout=20) for how in CODES]
    assert [code for code, _ in seen] == list(CODES.values())
    assert len({pid for _, pid in seen}) == 1, "the process was not trusted any more"
    assert "the job's own process" in faults.use_a_pool.enqueue().result(timeout=30)


def test_an_app_that_forks_while_it_is_imported_has_one_zygote(start, changing, tmp_path):
    source = tmp_path / f"{changing.__name__}.py"
    source.write_text(f"import os, sys\nif os.fork() == 0:\n    sys.exit(0)\n{source.read_text()}")
    start(target=f"{changing.__name__}:app", folder=tmp_path, slots=1)
    assert changing.version.enqueue().result(timeout=20) == 1
