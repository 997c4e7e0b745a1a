"""Batches of real workers: what has become of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlive import config
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


@contextmanager
def batched_app(database_url: str) -> Iterator[None]:
    """Let the app use the test's database."""
    batched.app.configure(config.load(flags={"database_url": database_url}))
    yield
    batched.app.configure(None)
