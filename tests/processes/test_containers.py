"""A job that takes its whole container down, again and again, among jobs that are well."""

from typing import Any

import pytest

from outlive import Job
from outlive.states import State
from tests import faults
from tests.driving.making import Queue
from tests.waiting import eventually


def states(queue: Queue, jobs: list[Job[Any]]) -> dict[str, int]:
    """The number of these jobs in each state."""
    rows = queue.execute(
        "select status, count(*) from outlive.job_states where id = any(%s) group by 1", [[job.id for job in jobs]]
    )
    return dict(rows.fetchall())


@pytest.mark.long
@pytest.mark.fault(12)
@pytest.mark.timeout(300)  # It starts many workers, which takes long on a machine that is busy.
def test_a_job_that_kills_its_container_is_caught_and_no_healthy_one_is(start, queue):
    """Two containers, each replaced when it is gone, as an orchestrator does."""
    poison = faults.take_all_down.enqueue()
    well = faults.app.enqueue_many(faults.add.job(n, n) for n in range(200))
    containers = [start(wait=False, slots=4, sweep_s="1") for _ in range(2)]
    deaths = 0

    def all_is_over() -> bool:
        nonlocal deaths
        for n, container in enumerate(containers):
            if container.process.poll() is not None:
                deaths += 1
                containers[n] = start(wait=False, slots=4, sweep_s="1")
        return states(queue, [poison]) == {"quarantined": 1} and states(queue, well) == {"succeeded": len(well)}

    eventually(all_is_over, within_s=240, what="the poison is caught and all others are done")
    assert deaths == 4
    (killer,) = queue.execute("select id, losses, crashes, details from outlive.killers").fetchall()
    known = "4 workers vanished while running it, twice with nothing beside it; no other worker vanished meanwhile"
    assert killer == (poison.id, 4, 0, f"{known}: proven (max_losses = 3)")
    assert queue.execute("select from outlive.waiting union all select from outlive.running").fetchall() == []
    twice = "select job_id from outlive.attempts where outcome = 'succeeded' group by 1 having count(*) > 1"
    assert queue.execute(twice).fetchall() == []
    assert poison.status() is State.QUARANTINED
