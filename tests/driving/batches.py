"""Batches of real workers: what has become of them."""

from typing import Any

from tests.driving.making import Queue
from tests.processes import batched

TARGET = "tests.processes.batched:app"
CALLS = """
select j.args ->> 'event', count(*), count(*) filter (where a.state = 'succeeded')
from outlive.jobs j left join outlive.attempts a on a.job_id = j.id and a.state = 'succeeded'
where j.task = 'tests.processes.batched.called' group by 1 order by 1
"""
"""Each callback: how many jobs were made of it, and how many of these have succeeded."""


def callbacks() -> dict[str, Any]:
    return {f"on_{event}": batched.called.job(event) for event in ("success", "failure", "done")}


def calls(queue: Queue) -> list[tuple[str, int, int]]:
    return [(event, made, succeeded) for event, made, succeeded in queue.execute(CALLS.encode()).fetchall()]
