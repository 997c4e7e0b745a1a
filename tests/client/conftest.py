"""The example app on the test's own database, and what is in that database."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

import outlive
from outlive import db
from tests.client.example import app_at

# Property tests leave no file behind, and a busy machine does not fail them.
settings.register_profile("quiet", database=None, deadline=None)
settings.load_profile("quiet")


@pytest.fixture
def app(database_url: str) -> Iterator[outlive.App]:
    app = app_at(database_url)
    yield app
    app.connections.close()


@pytest.fixture
def query(app: outlive.App, connection: db.Connection) -> Callable[..., list[tuple[Any, ...]]]:
    """The rows that a query finds."""
    return lambda text, *values: connection.execute(text, values).fetchall()


@pytest.fixture
def count(app: outlive.App, connection: db.Connection) -> Callable[[], int]:
    """How many jobs wait; none may be there that does not wait."""

    def count() -> int:
        row = connection.execute(
            "select count(w.id), count(*) from outlive.jobs j left join outlive.waiting w on w.id = j.id"
        ).fetchone()
        assert row is not None
        assert row[0] == row[1]
        return int(row[0])

    return count
