"""Fixtures for modules of many small tests: one database for all of them, emptied and set to noon for each test."""

from collections.abc import Iterator

import pytest

from tests.driving.databases import new_database
from tests.driving.making import Queue
from tests.store.acting import NOW, clear


@pytest.fixture(scope="module")
def database_url(server_url: str) -> Iterator[str]:
    with new_database(server_url) as url:
        yield url


@pytest.fixture(autouse=True)
def fresh_at_noon(queue: Queue) -> None:
    clear(queue)
    queue.set_now(NOW)
