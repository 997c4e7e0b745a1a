"""Jobs with a concurrency key."""

from typing import Any
from uuid import UUID

from outlive.model import Claimed, Ended
from tests.driving.making import Queue, links

CUSTOMER = "customer-7"


def make_keyed(connection: Queue, key: str = CUSTOMER, concurrency: int | None = None, **wanted: Any) -> UUID:
    return connection.make(links=links(key, concurrency), **wanted)


def claim(connection: Queue, *wanted: Any, **more: Any) -> list[Claimed]:
    """Claim jobs, once the reapers have admitted them."""
    connection.follow()
    return connection.claim(*wanted, **more)


def admitted(queue: Queue, key: str = CUSTOMER) -> list[UUID]:
    """The jobs that have a slot of a key, once the reapers have admitted them."""
    queue.follow()
    return admitted_now(queue, key)


def admitted_now(queue: Queue, key: str = CUSTOMER) -> list[UUID]:
    query = "select job_id from outlive.keyed_jobs where key = %s and state = 'admitted' order by job_id"
    return queue.values(query, key)


def succeed(queue: Queue, *claimed: Claimed) -> None:
    assert queue.end(*(Ended(one.token) for one in claimed)) == []
