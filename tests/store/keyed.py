"""Jobs with a concurrency key."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from outlive import db
from outlive.model import Claimed, Ended
from tests.driving import making
from tests.driving.making import end, follow, links, make, values
from tests.store.acting import assert_sound

CUSTOMER = "customer-7"


def make_keyed(connection: db.Connection, key: str = CUSTOMER, concurrency: int | None = None, **wanted: Any) -> UUID:
    return make(connection, links=links(key, concurrency), **wanted)


def claim(connection: db.Connection, *wanted: Any, **more: Any) -> list[Claimed]:
    """Claim jobs, once the reapers have admitted them."""
    follow(connection)
    return making.claim(connection, *wanted, **more)


def admitted(connection: db.Connection, key: str = CUSTOMER) -> list[UUID]:
    """The jobs that have a slot of a key, once the reapers have admitted them."""
    follow(connection)
    return admitted_now(connection, key)


def admitted_now(connection: db.Connection, key: str = CUSTOMER) -> list[UUID]:
    query = "select job_id from outlive.keyed_jobs where key = %s and state = 'admitted' order by job_id"
    return values(connection, query, key)


def succeed(connection: db.Connection, *claimed: Claimed) -> None:
    assert end(connection, *(Ended(one.token) for one in claimed)) == []


@pytest.fixture(autouse=True)
def sound(connection: db.Connection) -> Iterator[None]:
    yield
    assert_sound(connection)
