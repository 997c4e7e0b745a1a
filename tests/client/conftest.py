"""The example app on the test's own database, and questions to that database."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import outlive
from outlive import embedded
from tests.client.example import app_at
from tests.driving.folders import open_folder
from tests.driving.making import Queue


@pytest.fixture
def app(database_url: str) -> Iterator[outlive.App]:
    app = app_at(database_url)
    yield app
    app.connections.close()


@pytest.fixture
def query(app: outlive.App, queue: Queue) -> Callable[..., list[tuple[Any, ...]]]:
    """The rows that a query finds."""
    return lambda text, *values: queue.execute(text, values).fetchall()


@pytest.fixture
def count(app: outlive.App, queue: Queue) -> Callable[[], int]:
    """Counts the waiting jobs, and checks that there are no others."""

    def count() -> int:
        row = queue.execute(
            "select count(w.id), count(*) from outlive.jobs j left join outlive.waiting w on w.id = j.id"
        ).fetchone()
        assert row is not None
        assert row[0] == row[1]
        return int(row[0])

    return count


@pytest.fixture
def server() -> Iterator[Path]:
    """The directory of a server that belongs to the test."""
    with open_folder() as folder:
        yield folder / "server"
        embedded.release(folder / "server", wait_s=10)
